//! The end that answers pings, of many clients at a time.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use ferrowarp::{Access, ConnRequest, Context, Listener, Mr, Operation, Qp, SendWr, Wc, WcStatus};

use crate::link::{Channel, End, Id, SILENT, Watch};
use crate::link::{check, ended, established, gather, parameters, piece};
use crate::machine::{Idle, Machine, Step};
use crate::ping::options::Common;
use crate::ping::wire::{ADVERT_LEN, Advert, SIZE_MAX, shown};
use crate::ping::{CHANNEL_SLOTS, READ, READS, WRITE};
use crate::startup::{ReadArgs, agreement, start};

/// Connection requests that may wait.
const BACKLOG: usize = 64;
/// Clients at a time.
const CLIENTS_MAX: usize = 256;

/// The end that answers.
pub struct Server {
    context: Context,
    listener: Listener,
    persistent: bool,
    verbose: bool,
    immediate: bool,
    reads: ReadArgs,
    timeout: Duration,
    clients: Vec<Client>,
    idle: Idle,
    /// Called with one line when a client fails.
    on_failure: Box<dyn FnMut(&str) + Send>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The client advertises its source next.
    Source,
    /// The source is being read.
    Reading,
    /// The client advertises its sink next.
    Sink,
}

/// One client.
struct Client {
    end: End,
    channel: Channel,
    buffer: Mr,
    is_up: bool,
    state: State,
    /// Octets of the present ping.
    size: u32,
    rounds: u64,
    watch: Watch,
    batch: Vec<Wc>,
}

impl Server {
    /// Listens. Unless it is `persistent` the machine finishes with the first client.
    ///
    /// # Errors
    /// If the port is in use.
    pub fn new(
        context: &Context,
        common: &Common,
        persistent: bool,
        on_failure: Box<dyn FnMut(&str) + Send>,
    ) -> anyhow::Result<Self> {
        let &Common { port, verbose, immediate, reads, timeout, .. } = common;
        let listener = if immediate {
            context.listen_unframed(port, BACKLOG)?
        } else {
            context.listen(port, BACKLOG)?
        };
        Ok(Self {
            context: context.clone(),
            listener,
            persistent,
            verbose,
            immediate,
            reads,
            timeout,
            clients: Vec::new(),
            idle: Idle::default(),
            on_failure,
        })
    }

    fn listen(&mut self) {
        while let Some(request) = self.listener.poll() {
            let limit = if self.persistent { CLIENTS_MAX } else { 1 };
            if self.clients.len() >= limit {
                // The peer may have gone meanwhile, which is no error here.
                let _ = request.reject(b"busy with other clients: try again later");
                continue;
            }
            match self.accept(request) {
                Ok(client) => self.clients.push(client),
                Err(error) => (self.on_failure)(&format!("a client was refused: {error:#}")),
            }
        }
    }

    fn accept(&self, request: ConnRequest) -> anyhow::Result<Client> {
        let end = End::new(&self.context, usize::from(CHANNEL_SLOTS) * 2)?;
        let channel = Channel::new(&end, CHANNEL_SLOTS, u32::try_from(ADVERT_LEN)?)?;
        let buffer = end.memory(usize::try_from(SIZE_MAX)?, Access::LOCAL_WRITE)?;
        let offer = request.offer();
        let mut param = parameters(offer.crc, offer.markers_out, READS, &[])?;
        self.reads.put_into(&mut param);
        param.start = start(self.immediate);
        request.accept(&channel.qp, param)?;
        Ok(Client {
            end,
            channel,
            buffer,
            is_up: false,
            state: State::Source,
            size: 0,
            rounds: 0,
            watch: Watch::new(self.timeout),
            batch: Vec::with_capacity(16),
        })
    }
}

impl Machine for Server {
    fn step(&mut self) -> anyhow::Result<Step> {
        let busy = self.context.drive();
        self.listen();
        self.idle.step(busy || !self.clients.is_empty());
        let mut index = 0;
        while index < self.clients.len() {
            match self.clients[index].step(self.verbose) {
                Ok(Step::Running) => index += 1,
                Ok(Step::Finished) => {
                    self.clients.swap_remove(index);
                    if !self.persistent {
                        return Ok(Step::Finished);
                    }
                }
                Err(error) => {
                    self.clients.swap_remove(index);
                    if !self.persistent {
                        return Err(error);
                    }
                    (self.on_failure)(&format!("a client failed: {error:#}"));
                }
            }
        }
        Ok(Step::Running)
    }
}

impl Client {
    fn step(&mut self, verbose: bool) -> anyhow::Result<Step> {
        self.batch.clear();
        self.end.poll(&mut self.batch);
        if !self.is_up
            && let Some(agreed) = established(&self.channel.qp)?
        {
            self.is_up = true;
            if verbose {
                println!("server {}", agreement(&agreed));
            }
        }
        for wc in core::mem::take(&mut self.batch) {
            let id = Id::unpack(wc.wr_id);
            if id.kind == Id::CHANNEL_RECEIVE && wc.status != WcStatus::Success && self.is_between()
            {
                // The receives are flushed when a client leaves, which it may between rounds.
                return self.leave(ended(&self.channel.qp));
            }
            if id.kind < Id::FIRST_FREE {
                if let Some(octets) = self.channel.complete(id, &wc)? {
                    self.advert(&octets)?;
                }
                continue;
            }
            check(&wc, &self.channel.qp)?;
            if id.kind == READ {
                self.fetched(verbose)?;
            }
        }
        if self.is_between() {
            if let Some(reason) = ended(&self.channel.qp) {
                return self.leave(Some(reason));
            }
        } else {
            self.watch.check(Instant::now(), "a client")?;
        }
        Ok(Step::Running)
    }

    fn leave(&self, reason: Option<Cow<'static, str>>) -> anyhow::Result<Step> {
        // It is down already, or going.
        let _ = self.channel.qp.disconnect();
        ensure!(reason.as_deref() != Some(SILENT), "{SILENT}");
        ensure!(self.rounds > 0, "a client left before its first ping");
        Ok(Step::Finished)
    }

    /// Between rounds a client may leave, or take its time; `--keepalive` looks whether it lives.
    fn is_between(&self) -> bool {
        self.state == State::Source
    }

    fn advert(&mut self, octets: &[u8]) -> anyhow::Result<()> {
        let advert = Advert::parse(octets).context("the client does not speak as rping does")?;
        ensure!(
            (1..=SIZE_MAX).contains(&advert.size),
            "the client pings with {} octets: at most {SIZE_MAX} are served",
            advert.size
        );
        self.watch.progress(Instant::now());
        match self.state {
            State::Source => {
                self.size = advert.size;
                self.state = State::Reading;
                let sink = piece(&self.buffer, 0, self.size);
                let (rkey, remote) = (advert.rkey, advert.addr);
                self.post(READ, Operation::Read { sink, rkey, remote })
            }
            State::Sink => {
                // A smaller sink gets what fits, as much as the client said.
                let size = advert.size.min(self.size);
                let payload = gather(piece(&self.buffer, 0, size));
                let (rkey, remote) = (advert.rkey, advert.addr);
                self.post(WRITE, Operation::Write { payload, rkey, remote })?;
                self.state = State::Source;
                self.rounds += 1;
                // Delivered after the Write before it is in place.
                self.go_ahead()
            }
            State::Reading => bail!("the client spoke out of turn"),
        }
    }

    fn fetched(&mut self, verbose: bool) -> anyhow::Result<()> {
        if verbose {
            let mut octets = vec![0; usize::try_from(self.size)?];
            self.buffer.read(0, &mut octets);
            println!("server ping data: {}", shown(&octets));
        }
        self.state = State::Sink;
        self.go_ahead()
    }

    fn go_ahead(&mut self) -> anyhow::Result<()> {
        let advert = Advert { addr: self.buffer.addr(), rkey: self.buffer.rkey(), size: self.size };
        self.channel.send(&advert.emit())
    }

    fn post(&self, kind: u8, operation: Operation) -> anyhow::Result<()> {
        let id = Id { kind, run: 0, index: 0, number: 0 };
        let request = SendWr { wr_id: id.pack(), operation, signaled: true, fence: false };
        post(&self.channel.qp, request)
    }
}

fn post(qp: &Qp, request: SendWr) -> anyhow::Result<()> {
    match (qp.post_send(request), ended(qp)) {
        (Ok(()), _) => Ok(()),
        (Err(_), Some(reason)) => bail!("{reason}"),
        (Err(error), None) => Err(error).context("a request was refused"),
    }
}
