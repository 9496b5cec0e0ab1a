//! The server of iwping, for many concurrent clients.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use ferrowarp::{Access, ConnRequest, Context, ListenAddr, Mr, RemoteAddr, Wc, WcStatus};

use crate::acceptor::Acceptor;
use crate::endpoint::{Endpoint, PEER_TIMED_OUT, WrId};
use crate::endpoint::{
    check_wc, conn_param, end_reason, poll_established, refusal, reject, sge_at,
};
use crate::message_channel::MessageChannel;
use crate::mpa_options::{IrdOrdArgs, negotiated_line, start_mode};
use crate::output;
use crate::ping::advert::{ADVERT_LEN, Advert, SIZE_MAX, printable_text};
use crate::ping::iwping_options::CommonArgs;
use crate::ping::{CHANNEL_SLOTS, IRD_ORD, KIND_READ, KIND_WRITE};
use crate::run_loop::{IdleBackoff, Step, Task};
use crate::watchdog::Watchdog;

/// Listen backlog: connection requests.
const BACKLOG: usize = 1024;
/// Clients polled per step, in addition to those with completions.
const CLIENTS_PER_STEP: usize = 16;
/// Completions that a client can have outstanding: receives and Sends of its channel, one RDMA
/// Read, one RDMA Write.
const COMPLETIONS_PER_CLIENT: usize = 2 * CHANNEL_SLOTS as usize + 2;

/// The server, or its worker for one shard: answers pings.
pub struct PingServer {
    end: Endpoint,
    shared: Arc<Shared>,
    /// Maximum of concurrent clients, of all workers.
    clients_max: usize,
    /// Continues after a client has disconnected.
    persistent: bool,
    verbose: bool,
    immediate: bool,
    reads: IrdOrdArgs,
    timeout: Duration,
    /// Clients by the index of their queue pair.
    clients: Vec<Option<ClientSession>>,
    client_count: usize,
    /// Index of the client that is polled next.
    next_client: usize,
    batch: Box<[Wc]>,
    idle: IdleBackoff,
}

/// State that the workers share.
struct Shared {
    acceptor: Acceptor,
    /// Clients that are being served.
    client_count: AtomicUsize,
    /// The only client is gone.
    is_over: AtomicBool,
    /// Called with one line when a client fails.
    on_failure: Mutex<OnFailure>,
}

/// Callback for the reason why a client failed.
pub type OnFailure = Box<dyn FnMut(&str) + Send>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Awaiting the advertisement of the client's source buffer.
    AwaitSource,
    /// RDMA Read of the source buffer in progress.
    Reading,
    /// Awaiting the advertisement of the client's sink buffer.
    AwaitSink,
}

/// One client.
struct ClientSession {
    channel: MessageChannel,
    /// Buffer for the client's pings, allocated when their length is known.
    buffer: Option<Mr>,
    is_up: bool,
    state: State,
    /// Length of the current ping in bytes.
    size: u32,
    rounds: u64,
    watchdog: Watchdog,
    /// Expires while the client is idle for as long.
    idle: Watchdog,
}

impl PingServer {
    /// Starts to listen. With `clients` the server runs until interrupted and serves so many
    /// clients concurrently; without, it finishes after the first client. Returns a worker for each
    /// shard of the context, which all have to run.
    ///
    /// # Errors
    /// If the port is in use, the address is not one of the context, or the completion queue for so
    /// many clients exceeds a limit of the context.
    pub fn workers(
        context: &Context,
        common: &CommonArgs,
        addr: ListenAddr,
        clients: Option<u16>,
        on_failure: OnFailure,
    ) -> anyhow::Result<Vec<Self>> {
        let &CommonArgs { verbose, immediate, reads, timeout, .. } = common;
        let listener = if immediate {
            context.listen_unframed(addr, BACKLOG)?
        } else {
            context.listen(addr, BACKLOG)?
        };
        let clients_max = usize::from(clients.unwrap_or(1));
        let shared = Arc::new(Shared {
            acceptor: Acceptor::new(vec![listener], context.shard_count()),
            client_count: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
            on_failure: Mutex::new(on_failure),
        });
        let worker = |shard| {
            Ok(Self {
                // All clients may be of one shard.
                end: Endpoint::on_shard(context, shard, clients_max * COMPLETIONS_PER_CLIENT)?,
                shared: Arc::clone(&shared),
                clients_max,
                persistent: clients.is_some(),
                verbose,
                immediate,
                reads,
                timeout,
                clients: Vec::new(),
                client_count: 0,
                next_client: 0,
                batch: vec![Wc::default(); 256].into(),
                idle: IdleBackoff::default(),
            })
        };
        (0..context.shard_count()).map(worker).collect()
    }

    fn poll_listener(&mut self) {
        let shared = Arc::clone(&self.shared);
        let worker = self.end.shard().index();
        while let Some(request) = shared.acceptor.poll(worker, ConnRequest::shard) {
            // Counted before it is accepted: others accept at the same time.
            if shared.client_count.fetch_add(1, Ordering::Relaxed) >= self.clients_max {
                shared.client_count.fetch_sub(1, Ordering::Relaxed);
                reject(request, "busy with other clients: try again later");
                continue;
            }
            if let Err(error) = self.accept(request) {
                shared.client_count.fetch_sub(1, Ordering::Relaxed);
                shared.on_failure(&format!("a client was refused: {error:#}"));
            }
        }
    }

    fn accept(&mut self, request: ConnRequest) -> anyhow::Result<()> {
        let slot_len = u32::try_from(ADVERT_LEN)?;
        let channel = match MessageChannel::new(&self.end, CHANNEL_SLOTS.into(), slot_len) {
            Ok(channel) => channel,
            Err(error) => {
                reject(request, "no capacity for another client");
                return Err(error);
            }
        };
        let offer = request.offer();
        let mut param = conn_param(offer.crc, offer.markers_out, IRD_ORD, &[])?;
        self.reads.apply_to(&mut param);
        param.start = start_mode(self.immediate);
        self.end.on_peer();
        request.accept(&channel.qp, param)?;
        let index = usize::try_from(channel.qp.id().index)?;
        let client = ClientSession {
            channel,
            buffer: None,
            is_up: false,
            state: State::AwaitSource,
            size: 0,
            rounds: 0,
            watchdog: Watchdog::new(self.timeout),
            idle: Watchdog::new(self.timeout),
        };
        if index >= self.clients.len() {
            self.clients.resize_with(index + 1, || None);
        }
        self.clients[index] = Some(client);
        self.client_count += 1;
        Ok(())
    }

    /// Handles the outcome of a client's step. Returns `Finished` if the server is finished.
    fn finish_client(
        &mut self,
        index: usize,
        outcome: anyhow::Result<Step>,
    ) -> anyhow::Result<Step> {
        if matches!(outcome, Ok(Step::Running)) {
            return outcome;
        }
        self.clients[index] = None;
        self.client_count -= 1;
        self.shared.client_count.fetch_sub(1, Ordering::Relaxed);
        if !self.persistent {
            self.shared.is_over.store(true, Ordering::Relaxed);
            return outcome;
        }
        if let Err(error) = outcome {
            self.shared.on_failure(&format!("a client failed: {error:#}"));
        }
        Ok(Step::Running)
    }

    /// Polls for completions and handles them.
    fn poll_completions(&mut self) -> anyhow::Result<Step> {
        let polled = self.end.poll(&mut self.batch).len();
        let mut step = Step::Running;
        for at in 0..polled {
            let wc = &self.batch[at];
            let index = usize::try_from(wc.qp.index)?;
            let Some(Some(client)) = self.clients.get_mut(index) else { continue };
            if client.channel.qp.id() == wc.qp {
                let outcome = client.on_completion(&self.end, wc, self.verbose);
                step = self.finish_client(index, outcome)?;
            }
            if step == Step::Finished {
                break;
            }
        }
        Ok(step)
    }

    /// Polls some of the clients, round robin.
    fn poll_clients(&mut self) -> anyhow::Result<Step> {
        let now = Instant::now();
        for _ in 0..CLIENTS_PER_STEP.min(self.clients.len()) {
            let index = self.next_client % self.clients.len();
            self.next_client = index + 1;
            let taken = self.shared.client_count.load(Ordering::Relaxed);
            let is_full = self.persistent && taken >= self.clients_max;
            let Some(client) = &mut self.clients[index] else { continue };
            let outcome =
                self.end.check_peer().and_then(|()| client.poll(now, self.verbose, is_full));
            if self.finish_client(index, outcome)? == Step::Finished {
                return Ok(Step::Finished);
            }
        }
        Ok(Step::Running)
    }
}

impl Shared {
    fn on_failure(&self, line: &str) {
        let mut on_failure = self.on_failure.lock().unwrap_or_else(PoisonError::into_inner);
        (*on_failure)(line);
    }
}

impl Task for PingServer {
    fn step(&mut self) -> anyhow::Result<Step> {
        let busy = self.end.drive();
        self.poll_listener();
        if self.shared.is_over.load(Ordering::Relaxed) {
            return Ok(Step::Finished);
        }
        self.idle.step(busy || self.client_count > 0);
        if !busy {
            self.end.check_shard()?;
        }
        if self.poll_completions()? == Step::Finished {
            return Ok(Step::Finished);
        }
        self.poll_clients()
    }
}

impl ClientSession {
    /// Handles a completion.
    fn on_completion(&mut self, end: &Endpoint, wc: &Wc, verbose: bool) -> anyhow::Result<Step> {
        self.check_established(verbose)?;
        let id = WrId::unpack(wc.wr_id);
        if id.kind == WrId::CHANNEL_RECV
            && wc.status != WcStatus::Success
            && self.is_between_rounds()
        {
            // Receives are flushed when a client disconnects, which it may do between rounds.
            return self.on_client_left(end_reason(&self.channel.qp));
        }
        if id.kind < WrId::FIRST_APP_KIND {
            if let Some(bytes) = self.channel.on_completion(id, wc)? {
                self.on_advert(end, &bytes)?;
            }
            return Ok(Step::Running);
        }
        check_wc(wc, &self.channel.qp)?;
        if id.kind == KIND_READ {
            self.on_read_complete(verbose)?;
        }
        Ok(Step::Running)
    }

    /// Checks connection state and timeout, also without completions. `is_full`: the next client
    /// would get no place.
    fn poll(&mut self, now: Instant, verbose: bool, is_full: bool) -> anyhow::Result<Step> {
        self.check_established(verbose)?;
        if self.is_between_rounds()
            && let Some(reason) = end_reason(&self.channel.qp)
        {
            return self.on_client_left(Some(reason));
        }
        if self.may_be_idle() {
            self.watchdog.progress(now);
            if self.idle.has_expired(now) && is_full {
                let _ = self.channel.qp.disconnect();
                bail!("it was idle, and its place is the last one");
            }
        } else {
            self.watchdog.check(now, "a client")?;
        }
        Ok(Step::Running)
    }

    fn check_established(&mut self, verbose: bool) -> anyhow::Result<()> {
        if !self.is_up
            && let Some(info) = poll_established(&self.channel.qp)?
        {
            self.is_up = true;
            if verbose {
                output::print(&format!("server {}", negotiated_line(&info)));
            }
        }
        Ok(())
    }

    /// Returns the buffer, which is allocated when the first source buffer is advertised.
    fn buffer(&self) -> anyhow::Result<&Mr> {
        self.buffer.as_ref().context("the client pings with empty messages")
    }

    fn on_client_left(&self, reason: Option<Cow<'static, str>>) -> anyhow::Result<Step> {
        // The connection is down already, or closing.
        let _ = self.channel.qp.disconnect();
        ensure!(reason.as_deref() != Some(PEER_TIMED_OUT), "{PEER_TIMED_OUT}");
        ensure!(self.rounds > 0, "a client left before its first ping");
        Ok(Step::Finished)
    }

    /// True between rounds: a client may then disconnect.
    fn is_between_rounds(&self) -> bool {
        self.state == State::AwaitSource
    }

    /// True if a client may be idle: it has begun to ping, and has taken all that was sent to it.
    /// Keepalive detects dead clients then. After the timeout it loses its place if there is no
    /// other for the next client.
    fn may_be_idle(&self) -> bool {
        self.is_between_rounds() && self.rounds > 0 && self.channel.is_idle()
    }

    fn on_advert(&mut self, end: &Endpoint, bytes: &[u8]) -> anyhow::Result<()> {
        let advert = Advert::parse(bytes).context("the client does not follow rping's protocol")?;
        ensure!(
            (1..=SIZE_MAX).contains(&advert.size),
            "the client pings with {} bytes: at most {SIZE_MAX} are served",
            advert.size
        );
        let now = Instant::now();
        self.watchdog.progress(now);
        self.idle.progress(now);
        let place = RemoteAddr { addr: advert.addr, rkey: advert.rkey };
        match self.state {
            State::AwaitSource => {
                self.size = advert.size;
                self.state = State::Reading;
                let len = usize::try_from(self.size)?;
                if self.buffer.as_ref().is_none_or(|buffer| buffer.len() < len) {
                    // The old buffer is freed first.
                    self.buffer = None;
                    self.buffer = Some(end.alloc_mr(len, Access::LOCAL_WRITE)?);
                }
                let sink = sge_at(self.buffer()?, 0, self.size);
                let (qp, wr_id) = (&self.channel.qp, WrId::of_kind(KIND_READ));
                let posted = qp.post().read(sink, place).wr_id(wr_id).signaled().ring();
                posted.map_err(|refused| refusal(qp, refused))
            }
            State::AwaitSink => {
                // A smaller sink buffer gets as many bytes as it holds.
                let size = advert.size.min(self.size);
                let source = sge_at(self.buffer()?, 0, size);
                let (qp, wr_id) = (&self.channel.qp, WrId::of_kind(KIND_WRITE));
                let posted = qp.post().write(source, place).wr_id(wr_id).signaled().ring();
                posted.map_err(|refused| refusal(qp, refused))?;
                self.state = State::AwaitSource;
                self.rounds += 1;
                // The Send is delivered only after the preceding Write has been placed.
                self.send_go_ahead()
            }
            State::Reading => bail!("unexpected message from the client"),
        }
    }

    fn on_read_complete(&mut self, verbose: bool) -> anyhow::Result<()> {
        if verbose {
            let mut bytes = vec![0; usize::try_from(self.size)?];
            self.buffer()?.read(0, &mut bytes);
            output::print(&format!("server ping data: {}", printable_text(&bytes)));
        }
        self.state = State::AwaitSink;
        self.send_go_ahead()
    }

    fn send_go_ahead(&mut self) -> anyhow::Result<()> {
        let buffer = self.buffer()?;
        let advert = Advert { addr: buffer.addr(), rkey: buffer.rkey(), size: self.size };
        self.channel.send(&advert.emit())
    }
}
