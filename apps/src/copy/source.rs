//! The source: sends the file.

use std::fs::OpenOptions;
use std::io::{Cursor, Read};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use ferrowarp::{Access, Context, Mr, RemoteAddr, Wc};
use nix::fcntl::OFlag;
use sha2::{Digest as _, Sha256};

use crate::copy::copy_message::{LEN_MAX, Message, RdmaOp, SlotRegion};
use crate::copy::failure::{Failing, peer_error};
use crate::copy::{CHANNEL_SLOTS, CHUNK_LEN, Digest, IRD_ORD, KIND_RDMA, SLOT_LEN, SLOTS};
use crate::endpoint::{
    CLOSE_TIMEOUT, Endpoint, WrId, check_wc, conn_param, end_reason, poll_established, refusal,
    sge_at,
};
use crate::message_channel::MessageChannel;
use crate::run_loop::{Step, Task};
use crate::watchdog::Watchdog;

/// Files up to this length are read at once: files of `/proc` and `/sys` have another length than
/// they claim.
const SMALL_LEN: u64 = 64 << 10;
/// Longest file that claims to be a small one.
const UNSIZED_LEN_MAX: u64 = 64 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connecting,
    Opening,
    Sending,
    Ending,
    Closing,
}

/// Result of a copy.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Length of the file in bytes.
    pub len: u64,
    /// Time from the first byte read to the sink's Done.
    pub elapsed: Duration,
    /// Digest computed by the source.
    pub source_digest: Digest,
    /// Digest computed by the sink.
    pub sink_digest: Digest,
}

/// The source of one file.
pub struct Source {
    end: Endpoint,
    channel: MessageChannel,
    slots: Mr,
    file: Box<dyn Read + Send>,
    path: PathBuf,
    by: RdmaOp,
    state: State,
    sink: SlotRegion,
    len: u64,
    remaining: u64,
    filled: u64,
    consumed: u64,
    hash: Sha256,
    digest: Digest,
    started: Instant,
    failing: Option<Failing>,
    watchdog: Watchdog,
    batch: Box<[Wc]>,
    /// Completions of the last poll, at the beginning of `batch`.
    polled: usize,
    scratch: Vec<u8>,
    /// Result, once Done was received from the sink.
    pub outcome: Option<Outcome>,
}

impl Source {
    /// Starts to connect to `remote`.
    ///
    /// # Errors
    /// If the file cannot be read, or there is no route to `remote`.
    pub fn new(
        context: &Context,
        remote: SocketAddr,
        path: &Path,
        by: RdmaOp,
        timeout: Duration,
    ) -> anyhow::Result<Self> {
        let (file, len) = open_file(path)?;
        let end = Endpoint::new(context, 4 * usize::from(CHANNEL_SLOTS))?;
        let channel = MessageChannel::new(&end, CHANNEL_SLOTS.into(), u32::try_from(LEN_MAX)?)?;
        let slots = end.alloc_mr(usize::try_from(SLOTS * SLOT_LEN)?, Access::REMOTE_READ)?;
        channel.qp.connect(remote, conn_param(true, false, IRD_ORD, &[])?)?;
        Ok(Self {
            end,
            channel,
            slots,
            file,
            path: path.to_owned(),
            by,
            state: State::Connecting,
            sink: SlotRegion::default(),
            len,
            remaining: len,
            filled: 0,
            consumed: 0,
            hash: Sha256::new(),
            digest: Digest::default(),
            started: Instant::now(),
            failing: None,
            watchdog: Watchdog::new(timeout),
            batch: [Wc::default(); 32].into(),
            polled: 0,
            scratch: vec![0; CHUNK_LEN],
            outcome: None,
        })
    }

    /// Fills the next slot from the file and announces it.
    fn fill_slot(&mut self) -> anyhow::Result<()> {
        let slot = usize::try_from(self.filled % u64::from(SLOTS))?;
        let offset = slot * usize::try_from(SLOT_LEN)?;
        let len = usize::try_from(self.remaining.min(SLOT_LEN.into()))?;
        for start in (0..len).step_by(CHUNK_LEN) {
            let chunk = &mut self.scratch[..CHUNK_LEN.min(len - start)];
            let error_text = || format!("cannot read {}: did it change?", self.path.display());
            self.file.read_exact(chunk).with_context(error_text)?;
            self.hash.update(&chunk);
            self.slots.write(offset + start, chunk);
            self.end.context.drive();
        }
        let bytes = u32::try_from(len)?;
        if self.by == RdmaOp::Write {
            self.post_write(u64::try_from(offset)?, slot, bytes)?;
        }
        self.remaining -= u64::from(bytes);
        self.filled += 1;
        // The Send is delivered only after the preceding Write has been placed.
        self.channel.send(&Message::Filled { len: bytes }.emit())?;
        if self.remaining == 0 {
            self.send_end()?;
        }
        Ok(())
    }

    /// Posts the RDMA Write of a slot. The send queue is never full: it holds more requests than
    /// there are slots.
    fn post_write(&self, offset: u64, slot: usize, len: u32) -> anyhow::Result<()> {
        let sink_slot = u64::try_from(slot)? * u64::from(self.sink.len);
        let target = RemoteAddr { addr: self.sink.addr + sink_slot, rkey: self.sink.rkey };
        let source = sge_at(&self.slots, offset, len);
        let (qp, wr_id) = (&self.channel.qp, WrId::of_kind(KIND_RDMA));
        let posted = qp.post().write(source, target).wr_id(wr_id).signaled().ring();
        posted.map_err(|refused| refusal(qp, refused))
    }

    fn send_end(&mut self) -> anyhow::Result<()> {
        self.digest = self.hash.finalize_reset().into();
        self.state = State::Ending;
        self.channel.send(&Message::End { digest: self.digest }.emit())
    }

    fn on_message(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let message =
            Message::parse(bytes).context("the peer does not follow iwcopy's protocol")?;
        match (self.state, message) {
            (State::Opening, Message::Ready { slots }) => {
                ensure!(
                    slots.count >= SLOTS && slots.len >= SLOT_LEN || self.by == RdmaOp::Read,
                    "the peer offers smaller slots"
                );
                self.sink = slots;
                self.state = State::Sending;
                self.started = Instant::now();
                if self.remaining == 0 { self.send_end() } else { Ok(()) }
            }
            (State::Sending | State::Ending, Message::Consumed { count }) => {
                ensure!(
                    (self.consumed..=self.filled).contains(&count),
                    "the peer consumed more slots than were filled"
                );
                self.consumed = count;
                Ok(())
            }
            (State::Ending, Message::Done { digest }) => {
                let elapsed = self.started.elapsed();
                let (len, sent, arrived) = (self.len, self.digest, digest);
                self.outcome =
                    Some(Outcome { len, elapsed, source_digest: sent, sink_digest: arrived });
                self.state = State::Closing;
                self.watchdog = Watchdog::new(CLOSE_TIMEOUT);
                self.channel.qp.disconnect()?;
                Ok(())
            }
            (_, Message::Failure { reason }) => Err(peer_error(&reason)),
            (state, message) => bail!("unexpected message {message:?} in state {state:?}"),
        }
    }
}

impl Task for Source {
    fn step(&mut self) -> anyhow::Result<Step> {
        if let Some(failing) = &mut self.failing {
            return failing.step(&self.end, &mut self.channel);
        }
        self.advance().or_else(|error| {
            let polled = &self.batch[..self.polled];
            self.failing = Some(Failing::begin(&self.end, &mut self.channel, polled, error));
            Ok(Step::Running)
        })
    }
}

impl Source {
    fn on_completion(&mut self, wc: &Wc) -> anyhow::Result<()> {
        if self.state == State::Closing {
            return Ok(());
        }
        self.watchdog.progress(Instant::now());
        let id = WrId::unpack(wc.wr_id);
        if id.kind == KIND_RDMA {
            check_wc(wc, &self.channel.qp)
        } else if let Some(bytes) = self.channel.on_completion(id, wc)? {
            self.on_message(&bytes)
        } else {
            Ok(())
        }
    }

    fn advance(&mut self) -> anyhow::Result<Step> {
        self.polled = self.end.poll(&mut self.batch).len();
        if self.state == State::Closing {
            let is_over = self.channel.is_down() || self.watchdog.has_expired(Instant::now());
            return Ok(if is_over { Step::Finished } else { Step::Running });
        }
        for at in 0..self.polled {
            let wc = self.batch[at];
            self.on_completion(&wc)?;
        }
        match self.state {
            State::Connecting => {
                if poll_established(&self.channel.qp)?.is_some() {
                    let (addr, rkey) = (self.slots.addr(), self.slots.rkey());
                    let slots = SlotRegion { addr, rkey, count: SLOTS, len: SLOT_LEN };
                    self.state = State::Opening;
                    let open = Message::Open { by: self.by, len: self.len, slots };
                    self.channel.send(&open.emit())?;
                }
            }
            State::Closing => return Ok(Step::Running),
            State::Sending if self.filled - self.consumed < u64::from(SLOTS) => self.fill_slot()?,
            _ => {
                if let Some(reason) = end_reason(&self.channel.qp) {
                    bail!("{reason}");
                }
            }
        }
        self.end.check_peer()?;
        self.watchdog.check(Instant::now(), "the sink")?;
        Ok(Step::Running)
    }
}

/// Opens the file to copy. Returns its contents, and their length.
fn open_file(path: &Path) -> anyhow::Result<(Box<dyn Read + Send>, u64)> {
    let error_text = || format!("cannot read {}", path.display());
    // Before it is opened, which waits for the writer of a named pipe.
    let len = path.metadata().and_then(|meta| {
        let is_file = meta.is_file();
        is_file.then_some(meta.len()).ok_or_else(|| std::io::Error::other("not a regular file"))
    });
    let len = len.with_context(error_text)?;
    // Some files of `/proc` are read when they have something to tell, which nobody would await.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path);
    let mut file = opened.with_context(error_text)?;
    if len > SMALL_LEN {
        return Ok((Box::new(file), len));
    }
    let mut bytes = Vec::new();
    file.by_ref().take(UNSIZED_LEN_MAX + 1).read_to_end(&mut bytes).with_context(error_text)?;
    let len = bytes.len() as u64;
    ensure!(
        len <= UNSIZED_LEN_MAX,
        "{} does not report its length: copy it to a regular file first",
        path.display()
    );
    Ok((Box::new(Cursor::new(bytes)), len))
}
