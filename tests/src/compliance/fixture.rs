//! One engine, and a peer that sends arbitrary FPDUs over a correct TCP.

use std::collections::BTreeMap;
use std::rc::Rc;

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::ddp::vec_memory::VecMemory;
use ferrowarp_proto::device::ChecksumMode;
use ferrowarp_proto::engine::{Engine, EngineConfig};
use ferrowarp_proto::time::{Instant, MICROSECOND};
use ferrowarp_proto::verbs::cm::{ConnEvent, ConnParam, EndReason, RequestId};
use ferrowarp_proto::verbs::qp::{QpCap, QpInit};
use ferrowarp_proto::verbs::wc::{QpId, Wc};
use ferrowarp_proto::verbs::wr::{Operation, Payload, RecvWr, SendWr, Sge};
use ferrowarp_proto::wire::seq::Seq;
use ferrowarp_proto::wire::tcp::{Fields, Flags, FourTuple, Options, Segment};

use crate::conn_param;
use crate::frame::Frame;
use crate::ip;
use crate::longest_poll::LongestPoll;
use crate::manual_tcp_peer::{MACS, TcpPeer};
use crate::peer::{Header, Terminate, fpdu, marked_fpdu, opcode};
pub use crate::raw::PORT;
use crate::raw::{CQ, PD};
use crate::sim::heap_device::{HeapDevice, PoolSizes, PortOffload};
use crate::sim::world::{CompletionQueues, address};

/// Default port of a peer that connects.
const PEER_PORT: u16 = 5000;
const ARENA_LEN: usize = 1 << 16;
/// The peer's initial sequence number.
const PEER_ISS: Seq = Seq(0xffff_ff00);

/// The engine, and the peer's view of its connection.
pub struct FpduFixture {
    /// The stack.
    pub engine: Engine<HeapDevice, Rc<VecMemory>, CompletionQueues>,
    /// Its memory.
    pub arena: Rc<VecMemory>,
    pub(super) queues: CompletionQueues,
    /// Virtual time, which advances while the engine works.
    pub now: Instant,
    pub(super) stags: BTreeMap<String, u32>,
    /// STag of the whole memory, with all access rights.
    pub mem_stag: u32,
    pub(super) mss: u16,
    /// Port of the peer, if it connects.
    pub peer_port: u16,
    /// The peer of the connection sends no acknowledgments.
    acks_stopped: bool,
    /// Segments sent by the stack are lost.
    pub drop_tx: bool,
    /// The peer sets a reserved bit in each ULPDU: it has the same effect, but the fast path of
    /// reception leaves it to the general one.
    pub sets_reserved_bit: bool,
    pub(super) qp: Option<QpId>,
    pub(super) request: Option<RequestId>,
    peer: Option<TcpPeer>,
    pub(super) received: Vec<u8>,
    /// Payloads of the stack's segments, in order.
    pub segments: Vec<Vec<u8>>,
    /// The stack has sent its FIN.
    pub fin_sent: bool,
    /// The stack has sent a RST.
    pub rst_sent: bool,
    /// All TCP frames, in the order in which they were sent.
    pub frames: Vec<Vec<u8>>,
    /// Printed and bounded at the end of the test.
    polls: LongestPoll,
}

impl Drop for FpduFixture {
    fn drop(&mut self) {
        self.polls.end();
    }
}

impl FpduFixture {
    /// An engine that listens, without a connection.
    ///
    /// # Panics
    /// If it cannot listen.
    #[must_use]
    pub fn new() -> Self {
        Self::with_mtu(1500)
    }

    /// Like [`Self::new`], with a device of this MTU.
    ///
    /// # Panics
    /// If it cannot listen.
    #[must_use]
    pub fn with_mtu(mtu: u16) -> Self {
        Self::with_config(mtu, |_| {})
    }

    /// Like [`Self::with_mtu`], with a changed configuration.
    ///
    /// # Panics
    /// If it cannot listen.
    #[must_use]
    pub fn with_config(mtu: u16, change: impl FnOnce(&mut EngineConfig)) -> Self {
        Self::with_device(Self::device(mtu), change)
    }

    fn device(mtu: u16) -> HeapDevice {
        let pools = PoolSizes { data: 256, reserve: 16, control: 64 };
        HeapDevice::new(MACS[1], mtu, pools, usize::MAX)
    }

    fn with_device(device: HeapDevice, change: impl FnOnce(&mut EngineConfig)) -> Self {
        let arena = Rc::new(VecMemory::new(ARENA_LEN));
        let local = arena.register(0, ARENA_LEN as u64, Access::ALL, PD);
        let queues = CompletionQueues::new(2, 64);
        let mut config = EngineConfig::new(address(1), 24, 7);
        change(&mut config);
        let mut engine = Engine::new(config, device, Rc::clone(&arena), queues.clone());
        engine.listen(PORT, 8).expect("nobody else listens");
        Self {
            engine,
            arena,
            queues,
            now: Instant::from_nanos(1000),
            stags: BTreeMap::new(),
            mem_stag: local,
            mss: 1460,
            peer_port: PEER_PORT,
            acks_stopped: false,
            drop_tx: false,
            sets_reserved_bit: false,
            qp: None,
            request: None,
            peer: None,
            received: Vec::new(),
            segments: Vec::new(),
            fin_sent: false,
            rst_sent: false,
            frames: Vec::new(),
            polls: LongestPoll::default(),
        }
    }

    pub(super) fn sge(&self, addr: u32, len: u32) -> Sge {
        Sge { addr: u64::from(addr), len, lkey: self.mem_stag }
    }

    pub(super) fn create_qp(&mut self) -> QpId {
        let init = QpInit { pd: PD, send_cq: CQ, recv_cq: CQ, cap: QpCap::new(16, 16) };
        let qp = self.engine.create_qp(init).expect("a free queue pair");
        self.qp = Some(qp);
        qp
    }

    pub(super) fn post_wr(&mut self, place: &str, wr_id: u32, operation: Operation) {
        let wr = SendWr { wr_id: u64::from(wr_id), operation, signaled: true, fence: false };
        self.engine.post_send(self.qp.expect(place), wr).expect(place);
    }

    /// The peer sends bytes; it connects first if there is no connection.
    ///
    /// # Panics
    /// If they are more than 4 GiB.
    pub fn inject(&mut self, bytes: &[u8]) {
        if self.peer.is_none() {
            let tuple = FourTuple {
                local: (address(0), self.peer_port).into(),
                remote: (address(1), PORT).into(),
            };
            self.peer = Some(TcpPeer::new(tuple, PEER_ISS));
            self.inject_segment(Flags::SYN, &[]);
            self.settle();
        }
        self.inject_segment(Flags::ACK | Flags::PSH, bytes);
        self.settle();
    }

    /// Queues a segment of the peer.
    fn inject_segment(&mut self, flags: Flags, payload: &[u8]) {
        let Some(peer) = &mut self.peer else { return };
        let mut options = Options::default();
        if flags.has(Flags::SYN) {
            options.mss = Some(self.mss);
        }
        let frame = peer.build_frame(&peer.fields(flags, options), payload);
        let len = u32::try_from(payload.len()).expect("short");
        peer.snd_nxt += len + u32::from(flags.has(Flags::SYN));
        self.frames.push(frame.clone());
        self.engine.device().inbound.borrow_mut().push_back(frame);
    }

    /// Drives the engine once. True if it had anything to do.
    pub fn drive(&mut self) -> bool {
        let Self { engine, polls, now, .. } = self;
        polls.time(|| engine.drive(*now))
    }

    /// Runs the engine and acknowledges what it sends, until it is idle.
    pub(super) fn settle(&mut self) {
        for _ in 0..200 {
            self.drive();
            self.now = self.now + 10 * MICROSECOND;
            let frames: Vec<_> = self.engine.device().outbound.borrow_mut().drain(..).collect();
            for frame in frames {
                self.on_frame(frame);
            }
            if self.request.is_none()
                && self.qp.is_none()
                && let Some(ConnEvent::ConnectRequest { request, .. }) = self.engine.next_event()
            {
                self.request = Some(request);
            }
        }
    }

    fn on_frame(&mut self, bytes: Vec<u8>) {
        if let Some(answer) = ip::arp_reply(&bytes, MACS[0]) {
            self.engine.device().inbound.borrow_mut().push_back(answer);
            return;
        }
        let frame = Frame::from(bytes.clone());
        let Ok(segment) = Segment::parse(&frame, ChecksumMode::Software) else { return };
        self.frames.push(bytes);
        if self.drop_tx {
            return;
        }
        if segment.flags.has(Flags::SYN) && self.peer.is_none() {
            let peer = self.peer.insert(TcpPeer::new(segment.tuple, PEER_ISS));
            peer.rcv_nxt = segment.seq + 1;
            self.inject_segment(Flags::SYN | Flags::ACK, &[]);
            return;
        }
        let Some(peer) = &mut self.peer else { return };
        if segment.tuple != peer.tuple {
            return;
        }
        self.rst_sent |= segment.flags.has(Flags::RST);
        if segment.flags.has(Flags::SYN) {
            peer.rcv_nxt = segment.seq + 1;
        } else if segment.seq == peer.rcv_nxt && segment.seq_len() > 0 {
            let payload = &frame.bytes[segment.payload.clone()];
            self.received.extend(payload);
            if !payload.is_empty() {
                self.segments.push(payload.to_vec());
            }
            self.fin_sent |= segment.flags.has(Flags::FIN);
            peer.rcv_nxt += segment.seq_len();
        } else {
            return;
        }
        if !self.acks_stopped {
            self.inject_segment(Flags::ACK, &[]);
        }
    }
}

/// Functions for tests that are not written down as exchanges.
impl FpduFixture {
    /// A connection in full operation, opened by the peer with revision 2, with segments of `mss`
    /// bytes: the stack serves `ird` Reads and issues `ord`.
    ///
    /// # Panics
    /// If the stack does not accept.
    #[must_use]
    pub fn connected(mss: u16, ird: u8, ord: u8) -> Self {
        Self::connected_with_offload(mss, ird, ord, PortOffload::None)
    }

    /// As [`Self::connected`], over a port with offloads.
    ///
    /// # Panics
    /// If the stack does not accept.
    #[must_use]
    pub fn connected_with_offload(mss: u16, ird: u8, ord: u8, offload: PortOffload) -> Self {
        Self::connected_over(mss, ird, ord, |device| device.set_offload(offload))
    }

    /// As [`Self::connected`], over a port that was changed.
    ///
    /// # Panics
    /// If the stack does not accept.
    #[must_use]
    pub fn connected_over(
        mss: u16,
        ird: u8,
        ord: u8,
        change: impl FnOnce(&mut HeapDevice),
    ) -> Self {
        let mut device = Self::device(1500);
        change(&mut device);
        let mut fx = Self::with_device(device, |_| {});
        fx.mss = mss;
        fx.connect(ird, ord);
        fx
    }

    /// Opens a connection as [`FpduFixture::connected`] does.
    ///
    /// # Panics
    /// If the stack does not accept.
    pub fn connect(&mut self, ird: u8, ord: u8) {
        let block = [0, ord, 0, ird];
        self.inject(&[b"MPA ID Req Frame", &[0x50, 2, 0, 4][..], &block].concat());
        let (ird, ord) = (u16::from(ird), u16::from(ord));
        self.accept(&conn_param(|it| {
            it.ird = ird;
            it.ord = ord;
        }));
        let event = self.engine.next_event();
        assert!(matches!(event, Some(ConnEvent::Established { .. })), "{event:?}");
        self.inject_ulpdu(&Header::write(0, 0, true).encode(&[]));
        self.received.clear();
        self.segments.clear();
    }

    /// Parks the connection and opens another one as [`FpduFixture::connected`] does.
    ///
    /// # Panics
    /// If the stack does not accept.
    #[must_use]
    pub fn connect_another(&mut self, ird: u8, ord: u8) -> ParkedConnection {
        let aside = self.park_connection();
        self.connect(ird, ord);
        aside
    }

    /// Parks the connection; the peer may open another one, from a new port.
    #[must_use]
    pub const fn park_connection(&mut self) -> ParkedConnection {
        self.peer_port += 1;
        let acks_stopped = std::mem::replace(&mut self.acks_stopped, false);
        ParkedConnection { peer: self.peer.take(), acks_stopped, qp: self.qp.take() }
    }

    /// Exchanges the connection with a parked one.
    pub const fn swap_connection(&mut self, to: &mut ParkedConnection) {
        std::mem::swap(&mut self.peer, &mut to.peer);
        std::mem::swap(&mut self.acks_stopped, &mut to.acks_stopped);
        std::mem::swap(&mut self.qp, &mut to.qp);
    }

    /// A connection with revision 1 and markers in both directions: RDMA Writes that arrive out of
    /// order are placed at once. After startup the peer has sent an FPDU of 24 bytes, the stack
    /// nothing.
    ///
    /// # Panics
    /// If the stack does not accept.
    #[must_use]
    pub fn connected_with_markers(mss: u16) -> Self {
        Self::new().connect_with_markers(mss)
    }

    /// Like [`FpduFixture::connected_with_markers`], for a fixture without a connection.
    ///
    /// # Panics
    /// If the stack does not accept.
    #[must_use]
    pub fn connect_with_markers(self, mss: u16) -> Self {
        let mut fx = self;
        fx.mss = mss;
        fx.inject(b"MPA ID Req Frame\xc0\x01\0\0");
        let mut param = ConnParam::default();
        param.markers = true;
        param.ooo_placement = true;
        fx.accept(&param);
        let event = fx.engine.next_event();
        assert!(matches!(event, Some(ConnEvent::Established { .. })), "{event:?}");
        fx.inject(&marked_fpdu(&Header::write(0, 0, true).encode(&[]), true, 0));
        assert!(fx.received.split_off(20).is_empty(), "the reply and no more");
        fx.received.clear();
        fx.segments.clear();
        fx
    }

    /// The stack accepts the peer's MPA Request.
    ///
    /// # Panics
    /// If there is no request.
    pub fn accept(&mut self, param: &ConnParam) {
        self.settle();
        let request = self.request.take().expect("the peer asked");
        let qp = self.create_qp();
        self.engine.accept(self.now, request, qp, param).expect("it can be met");
    }

    /// The peer sends an FPDU.
    pub fn inject_ulpdu(&mut self, ulpdu: &[u8]) {
        self.inject(&self.fpdu(ulpdu));
    }

    /// Builds the peer's FPDU for a ULPDU.
    #[must_use]
    pub fn fpdu(&self, ulpdu: &[u8]) -> Vec<u8> {
        let mut ulpdu = ulpdu.to_vec();
        if let Some(control) = ulpdu.first_mut() {
            *control |= u8::from(self.sets_reserved_bit) << 2;
        }
        fpdu(&ulpdu, true)
    }

    /// The peer sends bytes in a segment that is lost; its next segment follows them.
    ///
    /// # Panics
    /// If there is no connection.
    pub fn drop_segment(&mut self, bytes: &[u8]) -> DroppedSegment {
        let peer = self.peer.as_mut().expect("somebody is connected");
        let lost = DroppedSegment { seq: peer.snd_nxt, bytes: bytes.to_vec() };
        peer.snd_nxt += u32::try_from(bytes.len()).expect("short");
        lost
    }

    /// The peer sends the bytes of a lost segment.
    ///
    /// # Panics
    /// If there is no connection.
    pub fn retransmit(&mut self, lost: &DroppedSegment) {
        let peer = self.peer.as_mut().expect("somebody is connected");
        let next = std::mem::replace(&mut peer.snd_nxt, lost.seq);
        self.inject_segment(Flags::ACK, &lost.bytes);
        if let Some(peer) = &mut self.peer {
            peer.snd_nxt = next;
        }
        self.settle();
    }

    /// From now on the peer advertises a window of this many segments and sends no acknowledgments.
    ///
    /// # Panics
    /// If there is no connection.
    pub const fn stop_acks(&mut self, segments: u16) {
        self.peer.as_mut().expect("somebody is connected").rcv_wnd = segments * self.mss;
        self.acks_stopped = true;
    }

    /// The peer acknowledges again, and advertises a window of `bytes`.
    ///
    /// # Panics
    /// If there is no connection.
    pub fn resume_acks(&mut self, bytes: u16) {
        self.peer.as_mut().expect("somebody is connected").rcv_wnd = bytes;
        self.acks_stopped = false;
        self.inject_segment(Flags::ACK, &[]);
        self.settle();
    }

    /// Builds a segment of the peer with changed fields or another payload, without sending it.
    ///
    /// # Panics
    /// If there is no connection.
    #[must_use]
    pub fn build_frame(&self, change: impl FnOnce(&mut Fields), payload: &[u8]) -> Vec<u8> {
        let peer = self.peer.as_ref().expect("somebody is connected");
        let mut fields = peer.fields(Flags::ACK, Options::default());
        change(&mut fields);
        peer.build_frame(&fields, payload)
    }

    /// A router reports that the longest of the stack's last eight frames exceeds a link's `mtu`
    /// (ICMP fragmentation needed).
    ///
    /// # Panics
    /// If the stack has sent nothing.
    pub fn inject_packet_too_big(&mut self, mtu: u16) {
        let sent = self.frames.iter().rev().filter(|frame| frame[6..12] == MACS[1]);
        let frame = sent.take(8).max_by_key(|frame| frame.len()).expect("a frame");
        let error = ip::icmp_error(frame, 14, (3, 4), u32::from(mtu));
        self.inject_frame(error);
    }

    /// Delivers a frame unchanged.
    pub fn inject_frame(&mut self, frame: Vec<u8>) {
        self.engine.device().inbound.borrow_mut().push_back(frame);
        self.settle();
    }

    /// The peer sends a segment without payload.
    pub fn inject_flags(&mut self, flags: Flags) {
        self.inject_with_flags(flags, &[]);
    }

    /// The peer sends a segment with these flags.
    pub fn inject_with_flags(&mut self, flags: Flags, payload: &[u8]) {
        self.inject_segment(flags, payload);
        if let Some(peer) = self.peer.as_mut().filter(|_| flags.has(Flags::FIN)) {
            peer.snd_nxt += 1;
        }
        self.settle();
    }

    /// Removes and returns the bytes that the stack has sent since the last call.
    pub fn take_sent(&mut self) -> Vec<u8> {
        self.settle();
        std::mem::take(&mut self.received)
    }

    /// Returns the ULPDUs that the stack has sent since the last call; checks CRCs and padding.
    ///
    /// # Panics
    /// If the bytes are not a sequence of whole FPDUs.
    pub fn sent_ulpdus(&mut self) -> Vec<Vec<u8>> {
        let sent = self.take_sent();
        let (ulpdus, rest) = parse_fpdus(&sent);
        assert!(rest.is_empty(), "{rest:02x?} is no whole FPDU");
        ulpdus
    }

    /// Like [`Self::sent_ulpdus`], but only the ones of one message of `len` bytes, with headers of
    /// `header_len` bytes. Later ones are left for the next call.
    ///
    /// # Panics
    /// If the message is incomplete, or its last segment exceeds it.
    pub fn sent_ulpdus_of(&mut self, len: usize, header_len: usize) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        let mut left = len;
        for ulpdu in self.sent_ulpdus() {
            if left > 0 {
                left -= ulpdu.len() - header_len;
                found.push(ulpdu);
            } else {
                self.received.extend(fpdu(&ulpdu, true));
            }
        }
        assert_eq!(left, 0, "the message is not whole");
        found
    }

    /// Like [`Self::sent_ulpdus`], with parsed headers.
    ///
    /// # Panics
    /// If a header is invalid.
    pub fn sent_messages(&mut self) -> Vec<(Header, Vec<u8>)> {
        let apart = |ulpdu: Vec<u8>| {
            let (header, payload) = Header::decode(&ulpdu).expect("a right header");
            (header, payload.to_vec())
        };
        self.sent_ulpdus().into_iter().map(apart).collect()
    }

    /// Returns the Terminate that the stack has sent.
    ///
    /// # Panics
    /// If it has not sent just this.
    pub fn sent_terminate(&mut self) -> Terminate {
        let messages = self.sent_messages();
        let [(Header::Untagged { opcode: opcode::TERMINATE, qn: 2, msn: 1, mo: 0, .. }, payload)] =
            &messages[..]
        else {
            panic!("{messages:02x?} is no Terminate")
        };
        Terminate::decode(payload).expect("a right Terminate")
    }

    /// Posts an operation.
    ///
    /// # Panics
    /// If it is refused.
    pub fn post_op(&mut self, wr_id: u32, operation: Operation) {
        self.post_wr("ask", wr_id, operation);
    }

    /// Posts a Send of `len` bytes at `at`.
    pub fn post_send(&mut self, wr_id: u32, at: u32, len: u32) {
        let payload = Payload::Gather([self.sge(at, len)].into());
        self.post_op(wr_id, Operation::Send { payload, solicited: false, invalidate: None });
    }

    /// Posts a Write of `len` bytes at `at`.
    pub fn post_write(&mut self, wr_id: u32, at: u32, len: u32, rkey: u32, remote: u64) {
        let payload = Payload::Gather([self.sge(at, len)].into());
        self.post_op(wr_id, Operation::Write { payload, rkey, remote });
    }

    /// Posts a Read of `len` bytes to `at`.
    pub fn post_read(&mut self, wr_id: u32, at: u32, len: u32, rkey: u32, remote: u64) {
        let sink = self.sge(at, len);
        self.post_op(wr_id, Operation::Read { sink: [sink].into(), rkey, remote });
    }

    /// Posts a receive.
    ///
    /// # Panics
    /// If it is refused.
    pub fn post_recv(&mut self, wr_id: u32, at: u32, len: u32) {
        let sg_list = [self.sge(at, len)].into();
        let wr = RecvWr { wr_id: u64::from(wr_id), sg_list };
        let qp = self.qp.expect("somebody is connected");
        self.engine.post_recv(qp, wr).expect("a free slot of the receive queue");
    }

    /// Registers memory in the connection's protection domain, or in another one.
    #[must_use]
    pub fn register(&self, at: u64, len: u64, access: Access, foreign: bool) -> u32 {
        self.arena.register(at, len, access, PD + u32::from(foreign))
    }

    /// Registers memory for this stream alone, so that the peer may invalidate it.
    ///
    /// # Panics
    /// If there is no connection.
    #[must_use]
    pub fn register_for_stream(&self, at: u64, len: u64, access: Access) -> u32 {
        let reach = self.engine.qp_access_scope(self.qp()).expect("its queue pair is there");
        self.arena.register_for(at, len, access, PD, reach.stream)
    }

    /// Returns the completions since the last call.
    pub fn poll_cq(&mut self) -> Vec<Wc> {
        self.settle();
        std::iter::from_fn(|| self.queues.poll(CQ)).collect()
    }

    /// Returns the reason for the end of the connection, if it has ended.
    ///
    /// # Panics
    /// If there is another event.
    pub fn end_reason(&mut self) -> Option<EndReason> {
        self.settle();
        match self.engine.next_event()? {
            ConnEvent::Disconnected { reason, .. } => {
                assert_eq!(self.engine.next_event(), None, "the end is reported once");
                Some(reason)
            }
            other => panic!("{other:?}"),
        }
    }

    /// The protection domain of all queue pairs and regions.
    #[must_use]
    pub const fn pd(&self) -> u32 {
        PD
    }

    /// The queue pair.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn qp(&self) -> QpId {
        self.qp.expect("somebody is connected")
    }
}

/// A connection that is not the current one.
pub struct ParkedConnection {
    peer: Option<TcpPeer>,
    acks_stopped: bool,
    qp: Option<QpId>,
}

/// A segment that was lost.
#[derive(Clone, Debug)]
pub struct DroppedSegment {
    seq: Seq,
    bytes: Vec<u8>,
}

impl DroppedSegment {
    /// Its payload.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// A segment with other bytes, which begin `len` bytes before these.
    #[must_use]
    pub fn shifted_back(&self, len: u32, bytes: &[u8]) -> Self {
        Self { seq: self.seq - len, bytes: bytes.to_vec() }
    }
}

/// Parses whole FPDUs and checks their CRC and padding; returns the ULPDUs and the remaining bytes.
///
/// # Panics
/// If a CRC or padding is wrong.
#[must_use]
pub fn parse_fpdus(mut bytes: &[u8]) -> (Vec<Vec<u8>>, &[u8]) {
    let mut ulpdus = Vec::new();
    while let Some(length) = bytes.first_chunk() {
        let len = usize::from(u16::from_be_bytes(*length));
        let padded = (2 + len).next_multiple_of(4);
        let Some((fpdu, rest)) = bytes.split_at_checked(padded + 4) else { break };
        assert_eq!(crc32c::crc32c(&fpdu[..padded]).to_le_bytes(), fpdu[padded..], "CRC");
        assert!(fpdu[2 + len..padded].iter().all(|&byte| byte == 0), "padding");
        ulpdus.push(fpdu[2..2 + len].to_vec());
        bytes = rest;
    }
    (ulpdus, bytes)
}

impl Default for FpduFixture {
    fn default() -> Self {
        Self::new()
    }
}
