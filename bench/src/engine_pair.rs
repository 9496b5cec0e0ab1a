//! Two engines on one thread in virtual time, with messages from one to the other.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;

use ferrowarp_proto::ddp::atomic::AtomicOp;
use ferrowarp_proto::ddp::memory::{Access, Memory, MemoryRange, PageFault};
use ferrowarp_proto::ddp::recv_queue::RqProducer;
use ferrowarp_proto::ddp::regions::RegionTable;
use ferrowarp_proto::ddp::untagged::BufferQueue;
use ferrowarp_proto::ddp::vec_memory::VecMemory;
use ferrowarp_proto::engine::{Engine, EngineConfig};
use ferrowarp_proto::rdmap::requester::Requester;
use ferrowarp_proto::rdmap::send_queue::SqProducer;
use ferrowarp_proto::rdmap::send_queue::WqeHead;
use ferrowarp_proto::rdmap::send_queue::wqe::{SendFlags, WqeOpcode};
use ferrowarp_proto::time::{Instant, MICROSECOND, SECOND};
use ferrowarp_proto::verbs::cm::{ConnEvent, ConnParam};
use ferrowarp_proto::verbs::qp::{QpCap, QpInit};
use ferrowarp_proto::verbs::wc::{Completions, CqId, QpId, Wc, WcStatus};
use ferrowarp_proto::verbs::wr::Sge;

use crate::loopback::{self, LoopDevice};
use crate::workload::{SINK, SOURCE, Transfer, Workload, payload};

const PORT: u16 = 18515;
const PD: u32 = 1;
/// Bytes of registered memory at each end, unless a message needs more.
const ARENA_LEN: u32 = 1 << 20;
/// Virtual time per pass.
const PASS_NS: u64 = MICROSECOND;

/// One completion queue.
struct CompletionQueue {
    entries: VecDeque<Wc>,
    len_max: usize,
}

impl Completions for CompletionQueue {
    fn push(&mut self, _cq: CqId, wc: Wc) -> bool {
        let fits = self.entries.len() < self.len_max;
        if fits {
            self.entries.push_back(wc);
        }
        fits
    }
}

/// Registered memory whose copies are not inlined, so that a profile attributes them.
struct ProfiledMemory(VecMemory);

impl Memory for ProfiledMemory {
    fn regions(&self) -> &RegionTable {
        self.0.regions()
    }

    #[inline(never)]
    fn place(&self, range: MemoryRange, bytes: &[u8]) -> Result<(), PageFault> {
        self.0.place(range, bytes)
    }

    #[inline(never)]
    fn fetch(&self, range: MemoryRange, out: &mut [u8]) -> Result<(), PageFault> {
        self.0.fetch(range, out)
    }

    fn atomic(&self, range: MemoryRange, op: AtomicOp) -> Result<Option<u64>, PageFault> {
        self.0.atomic(range, op)
    }
}

struct Endpoint {
    engine: Engine<LoopDevice, Rc<ProfiledMemory>, CompletionQueue>,
    arena: Rc<ProfiledMemory>,
    stag: u32,
    qp: QpId,
    sq: SqProducer,
    rq: RqProducer,
}

/// Two connected engines, with messages from the source to the sink.
pub struct EnginePair {
    source: Endpoint,
    sink: Endpoint,
    now: Instant,
    workload: Workload,
    slot_count: u32,
    posted: u64,
    completed: u64,
    transfer: Transfer,
}

impl EnginePair {
    /// Connects two engines.
    pub fn connect(workload: Workload) -> Self {
        let arena_len = ARENA_LEN.max(workload.size);
        let [left, right] = loopback::pair(workload.mtu, workload.checksum());
        let source = Endpoint::new(1, left, &workload, arena_len);
        let sink = Endpoint::new(2, right, &workload, arena_len);
        source.arena.0.write(0, &payload(arena_len));
        let mut pair = Self {
            source,
            sink,
            now: Instant::from_nanos(1000),
            workload,
            slot_count: arena_len / workload.size.max(1),
            posted: 0,
            completed: 0,
            transfer: Transfer::Write,
        };
        pair.establish();
        pair
    }

    fn establish(&mut self) {
        let param = ConnParam::new().crc(self.workload.crc);
        let remote = SocketAddr::new(self.workload.address(2), PORT);
        self.sink.engine.listen(PORT, 1).expect("no listener yet");
        self.source
            .engine
            .connect(self.now, self.source.qp, remote, &param)
            .expect("the queue pair is idle");
        let limit = self.now + SECOND;
        let mut established = 0;
        while established < 2 {
            assert!(self.now < limit, "not connected within a second");
            for end in [&mut self.source, &mut self.sink] {
                end.engine.drive(self.now);
                while let Some(event) = end.engine.next_event() {
                    match event {
                        ConnEvent::ConnectRequest { request, .. } => {
                            let accepted = end.engine.accept(self.now, request, end.qp, &param);
                            accepted.expect("the request is pending");
                        }
                        ConnEvent::Established { .. } => established += 1,
                        other => panic!("unexpected {other:?}"),
                    }
                }
            }
            self.now = self.now + PASS_NS;
        }
    }

    /// Drops every `count`th frame of the source from now on; 0: none.
    pub fn lose_every(&mut self, count: usize) {
        self.source.engine.device_mut().lose_every(count);
    }

    /// Transfers `count` messages, and waits until the sink has acknowledged every byte and all
    /// frames are free. A Send goes to where a Write would go, and a Read fetches the same bytes.
    /// Returns the frames that the source and the sink have sent.
    pub fn transfer(&mut self, transfer: Transfer, count: u64) -> [u64; 2] {
        if transfer == Transfer::Read && self.completed == 0 {
            // The initiator, which is the source, has to send first (RFC 5044 section 7.1.2).
            self.transfer(Transfer::Write, 1);
        }
        if transfer == Transfer::PingPong && self.transfer != transfer {
            self.post_recv(1 - transfer.poster(self.posted), self.posted);
        }
        self.transfer = transfer;
        let [segments, acks] = self.frames();
        let target = self.posted + count;
        let mut last_progress = self.now;
        while self.completed < target || self.source.engine.device().frames_in_use() > 0 {
            let worked = self.poll_source(target) | self.poll_sink(target);
            self.now = self.now + PASS_NS;
            if worked {
                last_progress = self.now;
            }
            assert!(self.now.since(last_progress) < 10 * SECOND, "no more progress");
        }
        let [segments_now, acks_now] = self.frames();
        [segments_now - segments, acks_now - acks]
    }

    /// One step of the source: posts, drives the engine, polls completions. Not inlined, so that a
    /// profile separates the two ends.
    #[inline(never)]
    fn poll_source(&mut self, target: u64) -> bool {
        if self.transfer.poster(self.posted) == SOURCE {
            self.post_up_to(target);
        }
        let worked = self.source.engine.drive(self.now);
        self.completed += self.source.poll_completions(self.transfer);
        worked
    }

    /// One step of the sink, which posts Reads and answers.
    #[inline(never)]
    fn poll_sink(&mut self, target: u64) -> bool {
        if self.transfer.poster(self.posted) == SINK {
            self.post_up_to(target);
        }
        let worked = self.sink.engine.drive(self.now);
        self.completed += self.sink.poll_completions(self.transfer);
        worked
    }

    /// Posts as the runtime does: requests are written to the send queue, then taken at once.
    #[inline]
    fn post_up_to(&mut self, target: u64) {
        let depth = self.transfer.depth(self.workload.depth);
        let (poster, sends) = (self.transfer.poster(self.posted), self.workload.depth);
        let outstanding = self.posted - self.completed;
        let count = (depth - outstanding).min(target - self.posted);
        if count == 0 {
            return;
        }
        for _ in 0..count {
            self.post(poster);
        }
        let end = self.end_mut(poster);
        end.sq.publish();
        end.engine.take_sends(end.qp, sends);
    }

    fn post(&mut self, poster: usize) {
        let [from, to] = self.slots(self.posted);
        let (wr_id, flags) = (self.posted, SendFlags::SIGNALED);
        let at = |remote: Sge| WqeHead { wr_id, flags, stag: remote.lkey, remote: remote.addr };
        let posted = match self.transfer {
            Transfer::Write => self.source.sq.post(WqeOpcode::Write, &at(to), from.into()),
            Transfer::Send | Transfer::PingPong => {
                // Of the message itself, or of its answer.
                match self.transfer {
                    Transfer::PingPong => self.post_recv(poster, wr_id + 1),
                    _ => self.post_recv(SINK, wr_id),
                }
                let head = WqeHead { wr_id, flags, ..WqeHead::default() };
                let payload = [from, to][poster].into();
                self.end_mut(poster).sq.post(WqeOpcode::Send, &head, payload)
            }
            Transfer::Read => self.sink.sq.post(WqeOpcode::Read, &at(from), to.into()),
        };
        posted.expect("fewer outstanding than slots");
        self.posted += 1;
    }

    /// Returns the slots of a message at source and sink.
    fn slots(&self, number: u64) -> [Sge; 2] {
        let len = self.workload.size;
        let addr = self.transfer.slot(number) % u64::from(self.slot_count) * u64::from(len);
        [&self.source, &self.sink].map(|end| Sge { addr, len, lkey: end.stag })
    }

    /// Posts a receive of a message, into its slot.
    fn post_recv(&mut self, at: usize, number: u64) {
        let slot = self.slots(number)[at];
        let end = self.end_mut(at);
        end.rq.post(number, &[slot]).expect("fewer outstanding than slots");
        end.rq.publish();
    }

    fn end_mut(&mut self, at: usize) -> &mut Endpoint {
        if at == SINK { &mut self.sink } else { &mut self.source }
    }

    fn frames(&self) -> [u64; 2] {
        [&self.source, &self.sink].map(|end| end.engine.counters().frames_out)
    }

    /// True if the bytes written to the sink so far equal those of the source.
    pub fn is_verified(&self) -> bool {
        let slots = self.transfer.slot(self.completed).min(u64::from(self.slot_count));
        let len = usize::try_from(slots * u64::from(self.workload.size)).expect("in memory");
        self.sink.arena.0.read(0, len) == self.source.arena.0.read(0, len)
    }
}

impl Endpoint {
    fn new(host: u8, device: LoopDevice, workload: &Workload, arena_len: u32) -> Self {
        let address = workload.address(host);
        let seed = 0x5eed + u64::from(host);
        let mut config = EngineConfig::new(address, workload.prefix_len(), seed);
        config.tcp.timestamps = workload.timestamps;
        if host == 1 {
            config.tcp.ecn = workload.ecn_mode();
        }
        let arena = Rc::new(ProfiledMemory(VecMemory::new(arena_len as usize)));
        let stag = arena.0.register(0, u64::from(arena_len), Access::ALL, PD);
        let len_max = 2 * workload.depth;
        let queue = CompletionQueue { entries: VecDeque::with_capacity(len_max), len_max };
        let mut engine = Engine::new(config, device, Rc::clone(&arena), queue);
        let init = QpInit {
            pd: PD,
            send_cq: CqId(0),
            recv_cq: CqId(0),
            cap: QpCap::new(workload.depth, workload.depth),
        };
        let (requester, sq) = Requester::with_producer(init.cap.sends);
        let (recv_queue, rq) = BufferQueue::with_producer(init.cap.recvs);
        let qp = engine.create_qp_with(init, requester, recv_queue).expect("the first queue pair");
        Self { engine, arena, stag, qp, sq, rq }
    }

    /// Polls all completions; returns the number of messages that they end.
    #[inline]
    fn poll_completions(&mut self, transfer: Transfer) -> u64 {
        let mut count = 0;
        while let Some(wc) = self.engine.completions_mut().entries.pop_front() {
            assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
            count += u64::from(transfer.is_ended_by(wc.opcode));
        }
        self.engine.publish_retired(self.qp);
        count
    }
}
