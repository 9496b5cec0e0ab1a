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
const BACKLOG: usize = 1024;
/// Clients that are looked after in a step, besides those for which something completed.
const LOOKS: usize = 16;
/// Completions that a client can have outstanding: receives and Sends of its channel, a Read, a
/// Write.
const COMPLETIONS: usize = 2 * CHANNEL_SLOTS as usize + 2;

/// The end that answers.
pub struct Server {
    end: End,
    listener: Listener,
    /// Clients at a time.
    clients_max: usize,
    /// Goes on when a client has left.
    persistent: bool,
    verbose: bool,
    immediate: bool,
    reads: ReadArgs,
    timeout: Duration,
    /// By the index of their queue pair.
    clients: Vec<Option<Client>>,
    count: usize,
    /// The client that is looked after next.
    next: usize,
    batch: Vec<Wc>,
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
    channel: Channel,
    /// As long as the client's pings, once it has said how long they are.
    buffer: Option<Mr>,
    is_up: bool,
    state: State,
    /// Octets of the present ping.
    size: u32,
    rounds: u64,
    watch: Watch,
}

impl Server {
    /// Listens. With `clients` it goes on for ever, with so many clients at a time; without, the
    /// machine finishes with the first client.
    ///
    /// # Errors
    /// If the port is in use, or the context has no room for completions of so many clients.
    pub fn new(
        context: &Context,
        common: &Common,
        clients: Option<u16>,
        on_failure: Box<dyn FnMut(&str) + Send>,
    ) -> anyhow::Result<Self> {
        let &Common { port, verbose, immediate, reads, timeout, .. } = common;
        let listener = if immediate {
            context.listen_unframed(port, BACKLOG)?
        } else {
            context.listen(port, BACKLOG)?
        };
        let clients_max = usize::from(clients.unwrap_or(1));
        Ok(Self {
            end: End::new(context, clients_max * COMPLETIONS)?,
            listener,
            clients_max,
            persistent: clients.is_some(),
            verbose,
            immediate,
            reads,
            timeout,
            clients: Vec::new(),
            count: 0,
            next: 0,
            batch: Vec::with_capacity(256),
            idle: Idle::default(),
            on_failure,
        })
    }

    fn listen(&mut self) {
        while let Some(request) = self.listener.poll() {
            if self.count >= self.clients_max {
                // The peer may have gone meanwhile, which is no error here.
                let _ = request.reject(b"busy with other clients: try again later");
                continue;
            }
            if let Err(error) = self.accept(request) {
                (self.on_failure)(&format!("a client was refused: {error:#}"));
            }
        }
    }

    fn accept(&mut self, request: ConnRequest) -> anyhow::Result<()> {
        let slot_len = u32::try_from(ADVERT_LEN)?;
        let channel = match Channel::new(&self.end, CHANNEL_SLOTS.into(), slot_len) {
            Ok(channel) => channel,
            Err(error) => {
                let _ = request.reject(b"no room for another client");
                return Err(error);
            }
        };
        let offer = request.offer();
        let mut param = parameters(offer.crc, offer.markers_out, READS, &[])?;
        self.reads.put_into(&mut param);
        param.start = start(self.immediate);
        request.accept(&channel.qp, param)?;
        let index = usize::try_from(channel.qp.id().index)?;
        let client = Client {
            channel,
            buffer: None,
            is_up: false,
            state: State::Source,
            size: 0,
            rounds: 0,
            watch: Watch::new(self.timeout),
        };
        if index >= self.clients.len() {
            self.clients.resize_with(index + 1, || None);
        }
        self.clients[index] = Some(client);
        self.count += 1;
        Ok(())
    }

    /// Acts on what a client's turn came to; finished if the machine is.
    fn conclude(&mut self, index: usize, turn: anyhow::Result<Step>) -> anyhow::Result<Step> {
        if matches!(turn, Ok(Step::Running)) {
            return turn;
        }
        self.clients[index] = None;
        self.count -= 1;
        if !self.persistent {
            return turn;
        }
        if let Err(error) = turn {
            (self.on_failure)(&format!("a client failed: {error:#}"));
        }
        Ok(Step::Running)
    }

    /// Handles the completions that are there.
    fn complete(&mut self) -> anyhow::Result<Step> {
        let mut batch = core::mem::take(&mut self.batch);
        batch.clear();
        self.end.poll(&mut batch);
        let mut step = Step::Running;
        for wc in &batch {
            let index = usize::try_from(wc.qp.index)?;
            let Some(Some(client)) = self.clients.get_mut(index) else { continue };
            if client.channel.qp.id() == wc.qp {
                let turn = client.complete(&self.end, wc, self.verbose);
                step = self.conclude(index, turn)?;
            }
            if step == Step::Finished {
                break;
            }
        }
        self.batch = batch;
        Ok(step)
    }

    /// Looks after some of the clients, others at each step.
    fn look_after(&mut self) -> anyhow::Result<Step> {
        let now = Instant::now();
        for _ in 0..LOOKS.min(self.clients.len()) {
            let index = self.next % self.clients.len();
            self.next = index + 1;
            let Some(client) = &mut self.clients[index] else { continue };
            let turn = client.look(now, self.verbose);
            if self.conclude(index, turn)? == Step::Finished {
                return Ok(Step::Finished);
            }
        }
        Ok(Step::Running)
    }
}

impl Machine for Server {
    fn step(&mut self) -> anyhow::Result<Step> {
        let busy = self.end.context.drive();
        self.listen();
        self.idle.step(busy || self.count > 0);
        if self.complete()? == Step::Finished {
            return Ok(Step::Finished);
        }
        self.look_after()
    }
}

impl Client {
    /// Takes note of a completion.
    fn complete(&mut self, end: &End, wc: &Wc, verbose: bool) -> anyhow::Result<Step> {
        self.greet(verbose)?;
        let id = Id::unpack(wc.wr_id);
        if id.kind == Id::CHANNEL_RECEIVE && wc.status != WcStatus::Success && self.is_between() {
            // The receives are flushed when a client leaves, which it may between rounds.
            return self.leave(ended(&self.channel.qp));
        }
        if id.kind < Id::FIRST_FREE {
            if let Some(octets) = self.channel.complete(id, wc)? {
                self.advert(end, &octets)?;
            }
            return Ok(Step::Running);
        }
        check(wc, &self.channel.qp)?;
        if id.kind == READ {
            self.fetched(verbose)?;
        }
        Ok(Step::Running)
    }

    /// What is to be done also when nothing completes.
    fn look(&mut self, now: Instant, verbose: bool) -> anyhow::Result<Step> {
        self.greet(verbose)?;
        if !self.is_between() {
            self.watch.check(now, "a client")?;
        } else if let Some(reason) = ended(&self.channel.qp) {
            return self.leave(Some(reason));
        }
        Ok(Step::Running)
    }

    fn greet(&mut self, verbose: bool) -> anyhow::Result<()> {
        if !self.is_up
            && let Some(agreed) = established(&self.channel.qp)?
        {
            self.is_up = true;
            if verbose {
                println!("server {}", agreement(&agreed));
            }
        }
        Ok(())
    }

    /// The buffer, which is made when the first ping says how long it is.
    fn buffer(&self) -> anyhow::Result<&Mr> {
        self.buffer.as_ref().context("the client pings with nothing")
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

    fn advert(&mut self, end: &End, octets: &[u8]) -> anyhow::Result<()> {
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
                let len = usize::try_from(self.size)?;
                if self.buffer.as_ref().is_none_or(|buffer| buffer.len() < len) {
                    // The old one goes first.
                    self.buffer = None;
                    self.buffer = Some(end.memory(len, Access::LOCAL_WRITE)?);
                }
                let sink = piece(self.buffer()?, 0, self.size);
                let (rkey, remote) = (advert.rkey, advert.addr);
                self.post(READ, Operation::Read { sink, rkey, remote })
            }
            State::Sink => {
                // A smaller sink gets what fits, as much as the client said.
                let size = advert.size.min(self.size);
                let payload = gather(piece(self.buffer()?, 0, size));
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
            self.buffer()?.read(0, &mut octets);
            println!("server ping data: {}", shown(&octets));
        }
        self.state = State::Sink;
        self.go_ahead()
    }

    fn go_ahead(&mut self) -> anyhow::Result<()> {
        let buffer = self.buffer()?;
        let advert = Advert { addr: buffer.addr(), rkey: buffer.rkey(), size: self.size };
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
