//! The end that has the file.

use std::fs::File;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use ferrowarp::{Access, Context, Mr, Operation, PostError, SendWr, Wc};
use sha2::{Digest as _, Sha256};

use crate::copy::wire::{By, LEN_MAX, Message, Slots};
use crate::copy::{CHANNEL_SLOTS, Digest, MOVE, PIECE_LEN, READS, SLOT_LEN, SLOTS};
use crate::link::{Channel, End, Id, Watch, check, ended, established, gather, parameters, piece};
use crate::machine::{Machine, Step};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connecting,
    Opening,
    Sending,
    Ending,
    Closing(Instant),
}

/// What came of a copy.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Octets of the file.
    pub len: u64,
    /// From the first octet read to the sink's answer.
    pub elapsed: Duration,
    /// At the source.
    pub sent: Digest,
    /// At the sink.
    pub arrived: Digest,
}

/// The end that has the file.
pub struct Source {
    end: End,
    channel: Channel,
    slots: Mr,
    file: File,
    path: PathBuf,
    by: By,
    state: State,
    sink: Slots,
    len: u64,
    left: u64,
    filled: u64,
    taken: u64,
    hash: Sha256,
    sent: Digest,
    began: Instant,
    watch: Watch,
    batch: Vec<Wc>,
    scratch: Vec<u8>,
    /// There once the sink has answered.
    pub outcome: Option<Outcome>,
}

impl Source {
    /// Begins to connect to `remote`.
    ///
    /// # Errors
    /// If the file cannot be read, or there is no way to `remote`.
    pub fn new(
        context: &Context,
        remote: SocketAddr,
        path: &Path,
        by: By,
        timeout: Duration,
    ) -> anyhow::Result<Self> {
        let told = || format!("cannot read {}", path.display());
        let file = File::open(path).with_context(told)?;
        let meta = file.metadata().with_context(told)?;
        ensure!(meta.is_file(), "{} is no regular file: choose one", path.display());
        let end = End::new(context, 4 * usize::from(CHANNEL_SLOTS))?;
        let channel = Channel::new(&end, CHANNEL_SLOTS.into(), LEN_MAX)?;
        let slots = end.memory(usize::try_from(SLOTS * SLOT_LEN)?, Access::REMOTE_READ)?;
        channel.qp.connect(remote, parameters(true, false, READS, &[])?)?;
        Ok(Self {
            end,
            channel,
            slots,
            file,
            path: path.to_owned(),
            by,
            state: State::Connecting,
            sink: Slots::default(),
            len: meta.len(),
            left: meta.len(),
            filled: 0,
            taken: 0,
            hash: Sha256::new(),
            sent: Digest::default(),
            began: Instant::now(),
            watch: Watch::new(timeout),
            batch: Vec::with_capacity(32),
            scratch: vec![0; PIECE_LEN],
            outcome: None,
        })
    }

    /// Fills the next slot from the file and announces it.
    fn fill(&mut self) -> anyhow::Result<()> {
        let slot = usize::try_from(self.filled % u64::from(SLOTS))?;
        let offset = slot * usize::try_from(SLOT_LEN)?;
        let len = usize::try_from(self.left.min(SLOT_LEN.into()))?;
        for start in (0..len).step_by(PIECE_LEN) {
            let piece = &mut self.scratch[..PIECE_LEN.min(len - start)];
            let told = || format!("cannot read {}: did it change?", self.path.display());
            self.file.read_exact(piece).with_context(told)?;
            self.hash.update(&piece);
            self.slots.write(offset + start, piece);
            self.end.context.drive();
        }
        let octets = u32::try_from(len)?;
        if self.by == By::Write {
            self.write(u64::try_from(offset)?, slot, octets)?;
        }
        self.left -= u64::from(octets);
        self.filled += 1;
        // A Send is delivered after the Write before it is in place.
        self.channel.send(&Message::Filled { len: octets }.emit())?;
        if self.left == 0 {
            self.finish()?;
        }
        Ok(())
    }

    fn write(&self, offset: u64, slot: usize, len: u32) -> anyhow::Result<()> {
        let sink_slot = u64::try_from(slot)? * u64::from(self.sink.len);
        let operation = Operation::Write {
            payload: gather(piece(&self.slots, offset, len)),
            rkey: self.sink.rkey,
            remote: self.sink.addr + sink_slot,
        };
        let id = Id { kind: MOVE, run: 0, index: 0, number: 0 };
        let request = SendWr { wr_id: id.pack(), operation, signaled: true, fence: false };
        post(&self.channel, request)
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        self.sent = self.hash.finalize_reset().into();
        self.state = State::Ending;
        self.channel.send(&Message::End { digest: self.sent }.emit())
    }

    fn message(&mut self, octets: &[u8]) -> anyhow::Result<()> {
        let message = Message::parse(octets).context("the other end does not speak as iwcopy")?;
        match (self.state, message) {
            (State::Opening, Message::Ready { slots }) => {
                ensure!(
                    slots.count >= SLOTS && slots.len >= SLOT_LEN || self.by == By::Read,
                    "the other end offers smaller slots"
                );
                self.sink = slots;
                self.state = State::Sending;
                self.began = Instant::now();
                if self.left == 0 { self.finish() } else { Ok(()) }
            }
            (State::Sending | State::Ending, Message::Taken { count }) => {
                ensure!(
                    (self.taken..=self.filled).contains(&count),
                    "the other end took what was not there"
                );
                self.taken = count;
                Ok(())
            }
            (State::Ending, Message::Done { digest }) => {
                let elapsed = self.began.elapsed();
                let (len, sent, arrived) = (self.len, self.sent, digest);
                self.outcome = Some(Outcome { len, elapsed, sent, arrived });
                self.state = State::Closing(Instant::now());
                self.channel.qp.disconnect()?;
                Ok(())
            }
            (state, message) => bail!("the other end said {message:?} in state {state:?}"),
        }
    }
}

impl Machine for Source {
    fn step(&mut self) -> anyhow::Result<Step> {
        self.batch.clear();
        self.end.poll(&mut self.batch);
        if let State::Closing(since) = self.state {
            let is_over = self.channel.is_over(since);
            return Ok(if is_over { Step::Finished } else { Step::Running });
        }
        let mut batch = core::mem::take(&mut self.batch);
        for wc in &batch {
            self.watch.progress(Instant::now());
            let id = Id::unpack(wc.wr_id);
            if id.kind == MOVE {
                check(wc, &self.channel.qp)?;
            } else if let Some(octets) = self.channel.complete(id, wc)? {
                self.message(&octets)?;
                if matches!(self.state, State::Closing(_)) {
                    return Ok(Step::Running);
                }
            }
        }
        batch.clear();
        self.batch = batch;
        match self.state {
            State::Connecting => {
                if established(&self.channel.qp)?.is_some() {
                    let (addr, rkey) = (self.slots.addr(), self.slots.rkey());
                    let slots = Slots { addr, rkey, count: SLOTS, len: SLOT_LEN };
                    self.state = State::Opening;
                    let open = Message::Open { by: self.by, len: self.len, slots };
                    self.channel.send(&open.emit())?;
                }
            }
            State::Sending if self.filled - self.taken < u64::from(SLOTS) => self.fill()?,
            _ => {
                if let Some(reason) = ended(&self.channel.qp) {
                    bail!("{reason}");
                }
            }
        }
        self.watch.check(Instant::now(), "the sink")?;
        Ok(Step::Running)
    }
}

/// Posts a Write or a Read. There is always room: each has a slot, and there are more requests.
pub(super) fn post(channel: &Channel, request: SendWr) -> anyhow::Result<()> {
    match channel.qp.post_send(request) {
        Ok(()) => Ok(()),
        Err(PostError::QueueFull) => bail!("the send queue is full"),
        Err(error) => match ended(&channel.qp) {
            Some(reason) => bail!("{reason}"),
            None => Err(error).context("a request was refused"),
        },
    }
}
