//! The end that takes the file.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use ferrowarp::{Access, ConnRequest, Context, Listener, Mr, Operation, SendWr, Wc, WcStatus};
use sha2::{Digest as _, Sha256};

use crate::copy::source::post;
use crate::copy::wire::{By, LEN_MAX, Message, Slots};
use crate::copy::{CHANNEL_SLOTS, Digest, MOVE, PIECE_LEN, READS, SLOT_LEN, SLOTS};
use crate::link::{Channel, End, Id, Watch, check, ended, parameters, piece};
use crate::machine::{Idle, Machine, Step};

/// Connection requests that may wait.
const BACKLOG: usize = 8;

/// The end that takes one file.
pub struct Sink {
    context: Context,
    listener: Listener,
    out: Option<PathBuf>,
    timeout: Duration,
    taking: Option<Taking>,
    idle: Idle,
    /// Octets and digest, once the file is complete.
    pub outcome: Option<(u64, Digest)>,
}

/// A file that is coming in.
struct Taking {
    end: End,
    channel: Channel,
    slots: Mr,
    out: Option<Partial>,
    /// What was announced; there once it was.
    source: Option<(By, Slots)>,
    len: u64,
    arrived: u64,
    /// Octets in slots that are being read, oldest first.
    reading: VecDeque<u32>,
    asked: u64,
    taken: u64,
    hash: Sha256,
    announced: Option<Digest>,
    done: Option<Digest>,
    watch: Watch,
    batch: Vec<Wc>,
    scratch: Vec<u8>,
}

/// A file that is removed unless it becomes complete.
struct Partial {
    file: File,
    path: PathBuf,
    complete: bool,
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.complete {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Sink {
    /// Listens on `port`. Without `out` the file is only digested.
    ///
    /// # Errors
    /// If the port is in use.
    pub fn new(
        context: &Context,
        port: u16,
        out: Option<&Path>,
        timeout: Duration,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            context: context.clone(),
            listener: context.listen(port, BACKLOG)?,
            out: out.map(Path::to_owned),
            timeout,
            taking: None,
            idle: Idle::default(),
            outcome: None,
        })
    }

    fn accept(&mut self, request: ConnRequest) -> anyhow::Result<()> {
        if self.taking.is_some() {
            // The peer may have gone meanwhile, which is no error here.
            let _ = request.reject(b"busy with another file");
            return Ok(());
        }
        let out = self.out.as_ref().map(|path| {
            let told = || format!("cannot write {}: choose another place", path.display());
            let file = File::create_new(path).with_context(told)?;
            anyhow::Ok(Partial { file, path: path.clone(), complete: false })
        });
        let end = End::new(&self.context, 4 * usize::from(CHANNEL_SLOTS))?;
        let channel = Channel::new(&end, CHANNEL_SLOTS.into(), LEN_MAX)?;
        let access = Access::REMOTE_WRITE | Access::LOCAL_WRITE;
        let slots = end.memory(usize::try_from(SLOTS * SLOT_LEN)?, access)?;
        let offer = request.offer();
        let param = parameters(offer.crc, offer.markers_out, READS, &[])?;
        let out = out.transpose()?;
        request.accept(&channel.qp, param)?;
        self.taking = Some(Taking {
            end,
            channel,
            slots,
            out,
            source: None,
            len: 0,
            arrived: 0,
            reading: VecDeque::new(),
            asked: 0,
            taken: 0,
            hash: Sha256::new(),
            announced: None,
            done: None,
            watch: Watch::new(self.timeout),
            batch: Vec::with_capacity(32),
            scratch: vec![0; PIECE_LEN],
        });
        Ok(())
    }
}

impl Machine for Sink {
    fn step(&mut self) -> anyhow::Result<Step> {
        let Some(taking) = &mut self.taking else {
            let busy = self.context.drive();
            if let Some(request) = self.listener.poll() {
                self.accept(request)?;
            }
            self.idle.step(busy);
            return Ok(Step::Running);
        };
        let step = taking.step()?;
        if step == Step::Finished {
            self.outcome = taking.done.map(|digest| (taking.arrived, digest));
        }
        Ok(step)
    }
}

impl Taking {
    fn step(&mut self) -> anyhow::Result<Step> {
        self.batch.clear();
        self.end.poll(&mut self.batch);
        let batch = core::mem::take(&mut self.batch);
        for wc in &batch {
            if self.done.is_some() && wc.status == WcStatus::Flushed {
                continue;
            }
            self.watch.progress(Instant::now());
            let id = Id::unpack(wc.wr_id);
            if id.kind == MOVE {
                check(wc, &self.channel.qp)?;
                let len = self.reading.pop_front().context("a Read completed twice")?;
                self.take(len)?;
            } else if let Some(octets) = self.channel.complete(id, wc)? {
                self.message(&octets)?;
            }
        }
        self.batch = batch;
        match (ended(&self.channel.qp), &self.done) {
            (Some(_), Some(_)) => return Ok(Step::Finished),
            (Some(reason), None) => bail!("{reason}"),
            (None, _) => {}
        }
        self.watch.check(Instant::now(), "the source")?;
        Ok(Step::Running)
    }

    fn message(&mut self, octets: &[u8]) -> anyhow::Result<()> {
        let message = Message::parse(octets).context("the other end does not speak as iwcopy")?;
        match (self.source, message) {
            (None, Message::Open { by, len, slots }) => {
                ensure!(
                    slots.count == SLOTS && slots.len == SLOT_LEN,
                    "the other end uses other slots: another version?"
                );
                self.source = Some((by, slots));
                self.len = len;
                let (addr, rkey) = (self.slots.addr(), self.slots.rkey());
                let slots = Slots { addr, rkey, count: SLOTS, len: SLOT_LEN };
                self.channel.send(&Message::Ready { slots }.emit())
            }
            (Some((by, slots)), Message::Filled { len }) => {
                let under_way = self.asked - self.taken;
                ensure!(
                    (1..=SLOT_LEN).contains(&len) && under_way < u64::from(SLOTS),
                    "the other end filled a slot that was not free"
                );
                match by {
                    By::Write => {
                        self.asked += 1;
                        self.take(len)
                    }
                    By::Read => self.read(len, &slots),
                }
            }
            (Some(_), Message::End { digest }) => {
                self.announced = Some(digest);
                self.finish()
            }
            (_, message) => bail!("the other end said {message:?} out of turn"),
        }
    }

    /// Fetches a slot.
    fn read(&mut self, len: u32, source: &Slots) -> anyhow::Result<()> {
        let offset = self.asked % u64::from(SLOTS) * u64::from(SLOT_LEN);
        let operation = Operation::Read {
            sink: piece(&self.slots, offset, len),
            rkey: source.rkey,
            remote: source.addr + offset,
        };
        let id = Id { kind: MOVE, run: 0, index: 0, number: 0 };
        self.asked += 1;
        self.reading.push_back(len);
        let request = SendWr { wr_id: id.pack(), operation, signaled: true, fence: false };
        post(&self.channel, request)
    }

    /// Takes the octets of the oldest slot, and gives it back.
    fn take(&mut self, len: u32) -> anyhow::Result<()> {
        let slot = usize::try_from(self.taken % u64::from(SLOTS))?;
        let offset = slot * usize::try_from(SLOT_LEN)?;
        let len = usize::try_from(len)?;
        for start in (0..len).step_by(PIECE_LEN) {
            let piece = &mut self.scratch[..PIECE_LEN.min(len - start)];
            self.slots.read(offset + start, piece);
            self.hash.update(&piece);
            if let Some(out) = &mut self.out {
                let told = || format!("cannot write {}: is the disk full?", out.path.display());
                out.file.write_all(piece).with_context(told)?;
            }
            self.end.context.drive();
        }
        self.arrived += len as u64;
        self.taken += 1;
        self.channel.send(&Message::Taken { count: self.taken }.emit())?;
        self.finish()
    }

    /// Answers with the digest, once everything is there.
    fn finish(&mut self) -> anyhow::Result<()> {
        if self.announced.is_none() || self.taken < self.asked || self.done.is_some() {
            return Ok(());
        }
        ensure!(
            self.arrived == self.len,
            "{} octets were announced, {} came",
            self.len,
            self.arrived
        );
        let digest: Digest = self.hash.finalize_reset().into();
        if let Some(out) = &mut self.out {
            out.complete = self.announced == Some(digest);
        }
        self.done = Some(digest);
        self.channel.send(&Message::Done { digest }.emit())
    }
}
