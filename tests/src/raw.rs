//! One engine and a peer that sends hand-made segments, and so may violate any rule.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::rc::Rc;

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::ddp::vec_memory::VecMemory;
use ferrowarp_proto::device::ChecksumMode;
use ferrowarp_proto::engine::{Engine, EngineConfig};
use ferrowarp_proto::mpa::fpdu;
use ferrowarp_proto::mpa::startup::{self, Offer};
use ferrowarp_proto::time::{Instant, MICROSECOND};
use ferrowarp_proto::verbs::cm::{ConnEvent, ConnParam, RequestId};
use ferrowarp_proto::verbs::qp::{QpCap, QpInit};
use ferrowarp_proto::verbs::wc::{Completions, CqId, QpId, Wc};
use ferrowarp_proto::verbs::wr::{RecvWr, Sge};
use ferrowarp_proto::wire::ddp::{Tagged, Untagged, Version};
use ferrowarp_proto::wire::rdmap::Opcode;
use ferrowarp_proto::wire::seq::Seq;
use ferrowarp_proto::wire::tcp::{Fields, Flags, FourTuple, Options, Segment};

use crate::frame::Frame;
use crate::longest_poll::LongestPoll;
use crate::manual_tcp_peer::{MACS, TcpPeer};
use crate::sim::heap_device::{HeapDevice, PoolSizes};
pub use crate::sim::pairs::{CQ, PD, PORT};
use crate::sim::wire_invariants::check_sack_blocks;
use crate::sim::world::{CompletionQueues, address};

/// Completion queues that can be made to reject a push though not full: as when the application on
/// another core polls concurrently.
pub struct FaultyCq {
    queues: CompletionQueues,
    /// Results of the next pushes; pushes after them succeed.
    push_results: Rc<RefCell<VecDeque<bool>>>,
}

impl Completions for FaultyCq {
    fn push(&mut self, cq: CqId, wc: Wc) -> bool {
        self.push_results.borrow_mut().pop_front().unwrap_or(true) && self.queues.push(cq, wc)
    }

    fn claim_overrun(&mut self, cq: CqId) -> bool {
        self.queues.claim_overrun(cq)
    }

    fn on_qps_ended(&mut self, cq: CqId) {
        self.queues.on_qps_ended(cq);
    }
}

/// The engine's port, with this many control buffers.
#[must_use]
pub fn device(control: usize) -> HeapDevice {
    let pools = PoolSizes { data: 256, reserve: 16, control };
    HeapDevice::new(MACS[1], 1500, pools, usize::MAX)
}

/// The engine, in its own time.
pub struct SegmentFixture {
    /// The engine.
    pub engine: Engine<HeapDevice, Rc<VecMemory>, FaultyCq>,
    /// Results of the next pushes of completions; later ones succeed.
    pub push_results: Rc<RefCell<VecDeque<bool>>>,
    /// Registered memory of the engine.
    pub arena: Rc<VecMemory>,
    /// Completion queues of the engine.
    pub queues: CompletionQueues,
    /// Virtual time.
    pub now: Instant,
    /// Printed and bounded at the end of the test.
    polls: LongestPoll,
}

impl Drop for SegmentFixture {
    fn drop(&mut self) {
        self.polls.end();
    }
}

impl SegmentFixture {
    /// Creates an engine that listens on [`PORT`].
    ///
    /// # Panics
    /// If the limits allow no listener.
    #[must_use]
    pub fn new(change: impl FnOnce(&mut EngineConfig)) -> Self {
        let mut config = EngineConfig::new(address(1), 24, 7);
        change(&mut config);
        Self::with_device(device(64), config)
    }

    /// An engine on this device that listens.
    ///
    /// # Panics
    /// If the settings allow no listener.
    #[must_use]
    pub fn with_device(device: HeapDevice, config: EngineConfig) -> Self {
        let arena = Rc::new(VecMemory::new(1 << 20));
        let queues = CompletionQueues::new(2, 64);
        let push_results = Rc::<RefCell<VecDeque<bool>>>::default();
        let cq = FaultyCq { queues: queues.clone(), push_results: Rc::clone(&push_results) };
        let mut engine = Engine::new(config, device, Rc::clone(&arena), cq);
        engine.listen(PORT, 64).expect("works");
        let (now, polls) = (Instant::from_nanos(1000), LongestPoll::default());
        Self { engine, push_results, arena, queues, now, polls }
    }

    /// Puts a frame on the wire to the engine.
    pub fn inject(&self, frame: Vec<u8>) {
        self.engine.device().inbound.borrow_mut().push_back(frame);
    }

    /// Removes and returns the frames that the engine has sent.
    pub fn take_sent(&self) -> Vec<Vec<u8>> {
        self.engine.device().outbound.borrow_mut().drain(..).collect()
    }

    /// Removes and returns the segments that the engine has sent, each with its frame.
    ///
    /// # Panics
    /// If a SACK block is not valid.
    pub fn take_segments(&self) -> Vec<(Segment, Frame)> {
        let parse = |bytes: Vec<u8>| {
            let frame = Frame::from(bytes);
            let segment = Segment::parse(&frame, ChecksumMode::Software).ok()?;
            check_sack_blocks(&segment);
            Some((segment, frame))
        };
        self.take_sent().into_iter().filter_map(parse).collect()
    }

    /// Drives the engine once. True if it had anything to do.
    pub fn drive(&mut self) -> bool {
        let Self { engine, polls, now, .. } = self;
        polls.time(|| engine.drive(*now))
    }

    /// Passes until all injected frames are processed.
    pub fn process(&mut self) {
        while {
            self.drive();
            self.now = self.now + MICROSECOND;
            !self.engine.device().inbound.borrow().is_empty()
        } {}
        self.drive();
    }

    /// Advances time, firing timers; what the engine sends is lost.
    pub fn advance(&mut self, ns: u64) {
        let end = self.now + ns;
        while self.now < end {
            let next = self.engine.deadline().unwrap_or(end).max(self.now + MICROSECOND);
            self.now = next.min(end);
            self.drive();
            self.take_sent();
        }
    }

    /// Drives the engine once, and advances the time.
    pub fn poll(&mut self) {
        self.drive();
        self.now = self.now + 10 * MICROSECOND;
    }

    /// Drives the engine until it is idle.
    pub fn settle(&mut self) {
        for _ in 0..100 {
            self.poll();
        }
    }

    /// Returns the pending connect request.
    ///
    /// # Panics
    /// If there is none.
    pub fn connect_request(&mut self) -> RequestId {
        match self.engine.next_event() {
            Some(ConnEvent::ConnectRequest { request, .. }) => request,
            other => panic!("unexpected {other:?}"),
        }
    }

    /// Creates an idle queue pair.
    ///
    /// # Panics
    /// If it fails.
    pub fn create_qp(&mut self) -> QpId {
        let init = QpInit { pd: PD, send_cq: CQ, recv_cq: CQ, cap: QpCap::new(64, 16) };
        self.engine.create_qp(init).expect("works")
    }
}

/// The peer of one connection.
pub struct Peer {
    /// Its TCP endpoint.
    pub tcp: TcpPeer,
    /// SND.UNA: the engine's last acknowledgment number.
    pub snd_una: Seq,
    /// In-order data received from the engine.
    pub received: Vec<u8>,
    /// Payload lengths of the engine's segments.
    pub payload_lens: Vec<usize>,
    /// SND.WND: the window of the engine's last segment.
    pub snd_wnd: u32,
    snd_wnd_shift: u8,
    /// The engine has reset the connection.
    pub rst_received: bool,
    /// The engine has sent a FIN.
    pub fin_received: bool,
}

impl Peer {
    /// Creates a peer with `port` and without a connection.
    #[must_use]
    pub fn unconnected(port: u16) -> Self {
        Self::at(address(0), port)
    }

    /// Creates a peer with an address and a port and without a connection.
    #[must_use]
    pub fn at(source: IpAddr, port: u16) -> Self {
        let tuple = FourTuple { local: (source, port).into(), remote: (address(1), PORT).into() };
        let iss = Seq(0xffff_ff00);
        Self {
            tcp: TcpPeer::new(tuple, iss),
            snd_una: iss,
            received: Vec::new(),
            payload_lens: Vec::new(),
            snd_wnd: 0,
            snd_wnd_shift: 0,
            rst_received: false,
            fin_received: false,
        }
    }

    /// Connects from `port`, advertising `mss`.
    pub fn connect(fx: &mut SegmentFixture, port: u16, mss: u16) -> Self {
        let mut peer = Self::unconnected(port);
        peer.handshake(fx, mss);
        peer
    }

    /// Performs the three-way handshake, advertising `mss`.
    pub fn handshake(&mut self, fx: &mut SegmentFixture, mss: u16) {
        let peer = self;
        let options =
            Options { mss: Some(mss), wscale: Some(0), sack_permitted: true, ..Options::default() };
        fx.inject(peer.tcp.build_frame(&peer.tcp.fields(Flags::SYN, options), &[]));
        peer.tcp.snd_nxt += 1;
        fx.poll();
        peer.receive(fx);
        peer.send_segment(fx, Flags::ACK, peer.tcp.snd_nxt, &[]);
        fx.poll();
    }

    /// Sends one segment to the engine.
    pub fn send_segment(&self, fx: &SegmentFixture, flags: Flags, seq: Seq, payload: &[u8]) {
        let fields = Fields { seq, ..self.tcp.fields(flags, Options::default()) };
        fx.inject(self.tcp.build_frame(&fields, payload));
    }

    /// Sends data in order.
    ///
    /// # Panics
    /// If its length exceeds the sequence number space.
    pub fn send(&mut self, fx: &mut SegmentFixture, bytes: &[u8]) {
        self.send_segment(fx, Flags::ACK, self.tcp.snd_nxt, bytes);
        self.tcp.snd_nxt += u32::try_from(bytes.len()).expect("works");
        fx.poll();
    }

    /// Processes what the engine sent; true if there is anything to acknowledge.
    pub fn receive(&mut self, fx: &SegmentFixture) -> bool {
        let mut ack_due = false;
        for (segment, frame) in fx.take_segments() {
            if segment.tuple != self.tcp.tuple {
                continue;
            }
            self.rst_received |= segment.flags.has(Flags::RST);
            self.fin_received |= segment.flags.has(Flags::FIN);
            if !segment.payload.is_empty() {
                self.payload_lens.push(segment.payload.len());
            }
            self.snd_una = segment.ack;
            self.snd_wnd = u32::from(segment.window) << self.snd_wnd_shift;
            if segment.flags.has(Flags::SYN) {
                self.snd_wnd_shift = segment.options.wscale.unwrap_or(0);
                self.tcp.rcv_nxt = segment.seq + 1;
                ack_due = true;
            } else if segment.seq == self.tcp.rcv_nxt && segment.seq_len() > 0 {
                self.received.extend(&frame.bytes[segment.payload.clone()]);
                self.tcp.rcv_nxt += segment.seq_len();
                ack_due = true;
            }
        }
        ack_due
    }

    /// Processes and acknowledges what the engine sends, until it is idle.
    pub fn settle(&mut self, fx: &mut SegmentFixture) {
        for _ in 0..1000 {
            fx.poll();
            if self.receive(fx) {
                self.send_segment(fx, Flags::ACK, self.tcp.snd_nxt, &[]);
            }
        }
    }

    /// Performs the MPA startup exchange, and returns the engine's queue pair.
    ///
    /// # Panics
    /// If it fails.
    pub fn start_mpa(&mut self, fx: &mut SegmentFixture) -> QpId {
        self.start_mpa_with(fx, &ConnParam::default())
    }

    /// As [`Peer::start_mpa`], accepted with `param`.
    pub fn start_mpa_with(&mut self, fx: &mut SegmentFixture, param: &ConnParam) -> QpId {
        self.send(fx, &mpa_request());
        let request = fx.connect_request();
        let qp = fx.create_qp();
        fx.engine.accept(fx.now, request, qp, param).expect("the request is pending");
        assert!(matches!(fx.engine.next_event(), Some(ConnEvent::Established { .. })));
        self.settle(fx);
        assert_eq!(self.received.len(), 24, "the reply");
        self.received.clear();
        qp
    }
}

/// Returns an MPA Request Frame.
#[must_use]
pub fn mpa_request() -> Vec<u8> {
    let request = startup::build_request(
        Offer { ird: 4, ord: 4, crc: true, ..Offer::default() },
        2,
        [].into(),
    );
    let mut bytes = vec![0; request.wire_len()];
    request.emit(&mut bytes);
    bytes
}

/// Returns an MPA Reply Frame that accepts the request of an initiator with default parameters.
#[must_use]
pub fn mpa_reply() -> Vec<u8> {
    let request = startup::build_request(Offer { crc: true, ..Offer::default() }, 2, [].into());
    let (reply, _) = startup::accept(&request, Offer { crc: true, ..Offer::default() }, [].into());
    let mut bytes = vec![0; reply.wire_len()];
    reply.emit(&mut bytes);
    bytes
}

/// Builds an FPDU of the header that `emit` writes, and `payload`.
#[must_use]
pub fn build_fpdu(header_len: usize, emit: impl FnOnce(&mut [u8]), payload: &[u8]) -> Vec<u8> {
    let len = header_len + payload.len();
    let mut bytes = vec![0; fpdu::fpdu_len(len)];
    emit(&mut bytes[2..]);
    bytes[2 + header_len..2 + len].copy_from_slice(payload);
    fpdu::finalize(&mut bytes, len, true);
    bytes
}

/// Builds an FPDU with a complete untagged message.
#[must_use]
pub fn untagged_fpdu(opcode: Opcode, queue: u32, msn: u32, payload: &[u8]) -> Vec<u8> {
    let rsvd_ulp = opcode.control(Version::Ietf);
    let header = Untagged { last: true, rsvd_ulp, rsvd_ulp_rest: 0, qn: queue, msn, mo: 0 };
    build_fpdu(18, |out| header.emit(Version::Ietf, out), payload)
}

/// Builds a zero-length RDMA Write: the first FPDU, after which the responder may send.
#[must_use]
pub fn empty_write_fpdu() -> Vec<u8> {
    let rsvd_ulp = Opcode::Write.control(Version::Ietf);
    let header = Tagged { last: true, rsvd_ulp, stag: 0, to: 0 };
    build_fpdu(14, |out| header.emit(Version::Ietf, out), &[])
}

/// Registers 4,096 bytes at the start of the arena, and returns a receive request for them.
///
/// # Panics
/// If the table of regions is full.
#[must_use]
pub fn recv_wr(fx: &SegmentFixture, wr_id: u64) -> RecvWr {
    let lkey = fx.arena.register(0, 4096, Access::ALL, PD);
    RecvWr { wr_id, sg_list: [Sge { addr: 0, len: 4096, lkey }].into() }
}
