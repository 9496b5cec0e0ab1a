//! The sink: receives the file.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use ferrowarp::{Access, ConnRequest, Context, ListenAddr, Listener, Mr, RemoteAddr, Wc, WcStatus};
use sha2::{Digest as _, Sha256};

use crate::background_file::BackgroundFile;
use crate::copy::copy_message::{LEN_MAX, Message, RdmaOp, SlotRegion};
use crate::copy::failure::{Failing, cause_for_peer, peer_error};
use crate::copy::{CHANNEL_SLOTS, CHUNK_LEN, Digest, IRD_ORD, KIND_RDMA, SLOT_LEN, SLOTS};
use crate::endpoint::{
    Endpoint, WrId, check_shard, check_wc, conn_param, end_reason, refusal, reject, sge_at,
};
use crate::message_channel::MessageChannel;
use crate::run_loop::{IdleBackoff, Step, Task};
use crate::watchdog::Watchdog;

/// Listen backlog: connection requests.
const BACKLOG: usize = 8;
/// Buffers of the output file: a slot of chunks.
const BUFFERS: usize = SLOT_LEN as usize / CHUNK_LEN;
/// Interval of repeated credits while the reader of the output pauses. Without them the source
/// would give up.
const ALIVE_INTERVAL: Duration = Duration::from_millis(100);

/// Opens the output file, which may wait for the reader of a named pipe.
///
/// # Errors
/// If there is a file already, or it cannot be written.
pub fn open_output(out: Option<&Path>) -> anyhow::Result<Option<BackgroundFile>> {
    out.map(|path| BackgroundFile::create_new(path, BUFFERS)).transpose()
}

/// The sink of one file.
pub struct Sink {
    context: Context,
    listener: Listener,
    out: Option<BackgroundFile>,
    timeout: Duration,
    incoming: Option<IncomingFile>,
    idle: IdleBackoff,
    /// Length and digest, once the file is complete.
    pub outcome: Option<(u64, Digest)>,
}

/// A file being received.
struct IncomingFile {
    end: Endpoint,
    channel: MessageChannel,
    slots: Mr,
    out: Option<BackgroundFile>,
    /// Operation and slots of the source, once its Open has been received.
    source: Option<(RdmaOp, SlotRegion)>,
    len: u64,
    received: u64,
    /// Lengths of the outstanding RDMA Reads, oldest first.
    reads_in_flight: VecDeque<u32>,
    requested: u64,
    /// Lengths of the filled slots, oldest first.
    filled: VecDeque<u32>,
    /// Bytes of the oldest filled slot that the output has.
    taken: usize,
    consumed: u64,
    /// Time of the last credit.
    credited: Instant,
    hash: Sha256,
    source_digest: Option<Digest>,
    digest: Option<Digest>,
    failing: Option<Failing>,
    watchdog: Watchdog,
    batch: Box<[Wc]>,
    /// Completions of the last poll, at the beginning of `batch`.
    polled: usize,
    scratch: Vec<u8>,
}

impl Sink {
    /// Address on which it listens.
    #[must_use]
    pub fn local_addr(&self) -> ListenAddr {
        self.listener.local_addr()
    }

    /// Starts to listen on `addr`. Without `out` the file is only digested.
    ///
    /// # Errors
    /// If the port is in use, or the address is not one of the context.
    pub fn new(
        context: &Context,
        addr: impl Into<ListenAddr>,
        out: Option<BackgroundFile>,
        timeout: Duration,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            context: context.clone(),
            listener: context.listen(addr, BACKLOG)?,
            out,
            timeout,
            incoming: None,
            idle: IdleBackoff::default(),
            outcome: None,
        })
    }

    fn accept(&mut self, request: ConnRequest) -> anyhow::Result<()> {
        match self.prepare() {
            Ok(incoming) => {
                let offer = request.offer();
                let param = conn_param(offer.crc, offer.markers_out, IRD_ORD, &[])?;
                request.accept(&incoming.channel.qp, param)?;
                self.incoming = Some(incoming);
                Ok(())
            }
            Err(error) => {
                reject(request, &cause_for_peer(&error));
                Err(error)
            }
        }
    }

    /// Creates what a connection needs.
    fn prepare(&mut self) -> anyhow::Result<IncomingFile> {
        let end = Endpoint::new(&self.context, 4 * usize::from(CHANNEL_SLOTS))?;
        let channel = MessageChannel::new(&end, CHANNEL_SLOTS.into(), u32::try_from(LEN_MAX)?)?;
        let access = Access::REMOTE_WRITE | Access::LOCAL_WRITE;
        let slots = end.alloc_mr(usize::try_from(SLOTS * SLOT_LEN)?, access)?;
        Ok(IncomingFile {
            end,
            channel,
            slots,
            out: self.out.take(),
            source: None,
            len: 0,
            received: 0,
            reads_in_flight: VecDeque::new(),
            requested: 0,
            filled: VecDeque::new(),
            taken: 0,
            consumed: 0,
            credited: Instant::now(),
            hash: Sha256::new(),
            source_digest: None,
            digest: None,
            failing: None,
            watchdog: Watchdog::new(self.timeout),
            batch: [Wc::default(); 32].into(),
            polled: 0,
            scratch: vec![0; CHUNK_LEN],
        })
    }
}

impl Task for Sink {
    fn step(&mut self) -> anyhow::Result<Step> {
        let Some(incoming) = &mut self.incoming else {
            let busy = self.context.drive();
            if let Some(request) = self.listener.poll() {
                self.accept(request)?;
            }
            self.idle.step(busy);
            if !busy && let Some(shard) = self.context.shard(0) {
                check_shard(&shard)?;
            }
            return Ok(Step::Running);
        };
        while let Some(request) = self.listener.next_request() {
            reject(request, "busy with another file: try again later");
        }
        let step = incoming.step()?;
        if step == Step::Finished {
            self.outcome = incoming.digest.map(|digest| (incoming.received, digest));
        }
        Ok(step)
    }
}

impl IncomingFile {
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

    fn advance(&mut self) -> anyhow::Result<Step> {
        self.polled = self.end.poll(&mut self.batch).len();
        for at in 0..self.polled {
            let wc = self.batch[at];
            self.on_completion(&wc)?;
        }
        self.consume()?;
        match (end_reason(&self.channel.qp), &self.digest) {
            (Some(_), Some(_)) => return Ok(Step::Finished),
            (Some(reason), None) => bail!("{reason}"),
            (None, _) => {}
        }
        self.end.check_peer()?;
        self.watchdog.check(Instant::now(), "the source")?;
        Ok(Step::Running)
    }

    fn on_completion(&mut self, wc: &Wc) -> anyhow::Result<()> {
        if self.digest.is_some() && wc.status == WcStatus::Flushed {
            return Ok(());
        }
        self.watchdog.progress(Instant::now());
        let id = WrId::unpack(wc.wr_id);
        if id.kind == KIND_RDMA {
            check_wc(wc, &self.channel.qp)?;
            let len = self.reads_in_flight.pop_front().context("a Read completed twice")?;
            self.filled.push_back(len);
            Ok(())
        } else if let Some(bytes) = self.channel.on_completion(id, wc)? {
            self.on_message(&bytes)
        } else {
            Ok(())
        }
    }

    fn on_message(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let message =
            Message::parse(bytes).context("the peer does not follow iwcopy's protocol")?;
        match (self.source, message) {
            (None, Message::Open { by, len, slots }) => {
                ensure!(
                    slots.count == SLOTS && slots.len == SLOT_LEN,
                    "the peer uses another slot layout: use one version at both ends"
                );
                self.source = Some((by, slots));
                self.len = len;
                let (addr, rkey) = (self.slots.addr(), self.slots.rkey());
                let slots = SlotRegion { addr, rkey, count: SLOTS, len: SLOT_LEN };
                self.channel.send(&Message::Ready { slots }.emit())
            }
            (Some((by, slots)), Message::Filled { len }) => {
                let in_flight = self.requested - self.consumed;
                ensure!(
                    (1..=SLOT_LEN).contains(&len) && in_flight < u64::from(SLOTS),
                    "the peer filled a slot that was not free"
                );
                match by {
                    RdmaOp::Write => {
                        self.requested += 1;
                        self.filled.push_back(len);
                        Ok(())
                    }
                    RdmaOp::Read => self.post_read(len, &slots),
                }
            }
            (Some(_), Message::End { digest }) => {
                self.source_digest = Some(digest);
                Ok(())
            }
            (_, Message::Failure { reason }) => Err(peer_error(&reason)),
            (_, message) => bail!("unexpected message {message:?} from the peer"),
        }
    }

    /// Posts the RDMA Read of a slot; as at the source the send queue is never full.
    fn post_read(&mut self, len: u32, source: &SlotRegion) -> anyhow::Result<()> {
        let offset = self.requested % u64::from(SLOTS) * u64::from(SLOT_LEN);
        let sink = sge_at(&self.slots, offset, len);
        let source = RemoteAddr { addr: source.addr + offset, rkey: source.rkey };
        self.requested += 1;
        self.reads_in_flight.push_back(len);
        let (qp, wr_id) = (&self.channel.qp, WrId::of_kind(KIND_RDMA));
        let posted = qp.post().read(sink, source).wr_id(wr_id).signaled().ring();
        posted.map_err(|refused| refusal(qp, refused))
    }

    /// Consumes filled slots as far as the output takes their bytes, and returns a credit for each.
    fn consume(&mut self) -> anyhow::Result<()> {
        while let Some(&len) = self.filled.front() {
            let slot = usize::try_from(self.consumed % u64::from(SLOTS))?;
            let offset = slot * usize::try_from(SLOT_LEN)?;
            let len = usize::try_from(len)?;
            while self.taken < len {
                let mut chunk = match &mut self.out {
                    Some(out) => match out.take_buffer()? {
                        Some(buffer) => buffer,
                        None => return self.keep_alive(),
                    },
                    None => core::mem::take(&mut self.scratch),
                };
                chunk.resize(CHUNK_LEN.min(len - self.taken), 0);
                self.slots.read(offset + self.taken, &mut chunk);
                self.hash.update(&chunk);
                self.taken += chunk.len();
                match &mut self.out {
                    Some(out) => out.write(chunk),
                    None => self.scratch = chunk,
                }
                self.end.context.drive();
            }
            self.filled.pop_front();
            self.taken = 0;
            self.received += len as u64;
            self.consumed += 1;
            self.credit()?;
        }
        self.finish_if_complete()
    }

    fn credit(&mut self) -> anyhow::Result<()> {
        self.credited = Instant::now();
        self.channel.send(&Message::Consumed { count: self.consumed }.emit())
    }

    /// Tells the source, while the output takes nothing, that this end is still there.
    fn keep_alive(&mut self) -> anyhow::Result<()> {
        if self.credited.elapsed() < ALIVE_INTERVAL { Ok(()) } else { self.credit() }
    }

    /// Sends the digest once the whole file has been received and written.
    fn finish_if_complete(&mut self) -> anyhow::Result<()> {
        if self.source_digest.is_none() || self.consumed < self.requested || self.digest.is_some() {
            return Ok(());
        }
        ensure!(
            self.received == self.len,
            "{} bytes were announced, {} were received",
            self.len,
            self.received
        );
        if let Some(out) = &mut self.out
            && !out.is_written()?
        {
            return self.keep_alive();
        }
        let digest: Digest = self.hash.finalize_reset().into();
        if let Some(out) = self.out.take()
            && self.source_digest == Some(digest)
        {
            out.complete()?;
        }
        self.digest = Some(digest);
        self.channel.send(&Message::Done { digest }.emit())
    }
}
