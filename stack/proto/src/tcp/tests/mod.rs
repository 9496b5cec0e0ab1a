//! Tests of whole connections. This file is the harness: heap frames, one end of a connection with
//! its application, and a scripted peer; the files next to it hold the tests.

mod acceptability;
mod bottleneck;
mod closed_window;
mod delivery;
mod ecn_echo;
mod fast_path_share;
mod handshake;
mod no_sack_no_ts;
mod pair;
mod path_mtu;
mod random_loss;
mod random_segments;
mod recovery;
mod reordering;
mod sack;
mod short_messages;
mod sim;
mod states;
mod sws;
mod tail_loss;
mod teardown;
mod unresponsive_peer;

use core::net::{IpAddr, SocketAddr};
use core::ops::Range;
use std::collections::BTreeMap;
use std::sync::Arc;

use rand::RngExt;
use rand::rngs::SmallRng;

use super::{
    Config, Contiguous, Delivered, Event, IssAndTsOffset, OooOffer, OooPool, Tcb, Transmit,
    TxDemand,
};
pub(super) use crate::device::test_device::HeapFrame;
use crate::device::test_device::TestTx;
use crate::device::{ChecksumMode, RxFrame, TxFrame};
use crate::time::Instant;
use crate::wire::seq::Seq;
use crate::wire::tcp::{
    Fields, Flags, FourTuple, HeaderTemplate, MAX_HEADER_LEN, Options, Segment,
};

pub(super) const MAC: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];

impl HeapFrame {
    pub(super) fn parse(&self) -> Segment {
        Segment::parse(self, ChecksumMode::Software).expect("a segment of a Tcb parses")
    }
}

pub(super) fn tuple(v6: bool, flipped: bool) -> FourTuple {
    let address = |last: u8| -> IpAddr {
        if v6 {
            IpAddr::from([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last])
        } else {
            IpAddr::from([198, 18, 0, last])
        }
    };
    let a = SocketAddr::new(address(1), 40_000);
    let b = SocketAddr::new(address(2), 4420);
    if flipped { FourTuple { local: b, remote: a } } else { FourTuple { local: a, remote: b } }
}

/// The byte at offset `at` of the stream that `side` sends.
pub(super) fn pattern(side: usize, at: u64) -> u8 {
    let mixed = (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ side as u64);
    (mixed >> 56) as u8
}

pub(super) fn iss_and_ts_offset(iss: u32) -> IssAndTsOffset {
    IssAndTsOffset { iss: Seq(iss), ts_offset: iss.wrapping_mul(0x9e37_79b1) }
}

pub(super) type TestTcb = Tcb<HeapFrame, HeapFrame>;

/// Response of the application to out-of-order data.
#[derive(Debug)]
pub(super) enum OooPolicy {
    /// TCP buffers it.
    Buffer,
    /// The application consumes it at once.
    Consume,
    /// It is dropped.
    Drop,
    /// One of the three, chosen at random for each segment.
    Random(SmallRng),
}

/// Memory for out-of-order data: frames first, then copies.
pub(super) fn ooo_pool() -> OooPool<HeapFrame> {
    OooPool::new(40, 16 << 20, 1460)
}

/// One end of a connection, with an application that writes records of a known pattern and verifies
/// what it reads.
pub(super) struct Endpoint {
    pub(super) tcb: TestTcb,
    side: usize,
    /// Bytes still to be written, and the length of records.
    pub(super) to_write: u64,
    pub(super) record_len: usize,
    pub(super) written: u64,
    pub(super) read: u64,
    /// Bytes received and not yet consumed, and their limit.
    pub(super) unconsumed: u32,
    pub(super) unconsumed_max: u32,
    pub(super) pool: OooPool<HeapFrame>,
    pub(super) ooo_policy: OooPolicy,
    /// Ranges consumed out of order, as offsets in the stream: start to end.
    consumed_ooo: BTreeMap<u64, u64>,
    pub(super) events: Vec<Event>,
    /// True if the scoreboard's invariants are checked at each step.
    pub(super) checks_scoreboard: bool,
}

impl Endpoint {
    pub(super) fn new(tcb: TestTcb, side: usize) -> Self {
        Self {
            tcb,
            side,
            to_write: 0,
            record_len: usize::MAX,
            written: 0,
            read: 0,
            unconsumed: 0,
            unconsumed_max: 0,
            pool: ooo_pool(),
            ooo_policy: OooPolicy::Buffer,
            consumed_ooo: BTreeMap::new(),
            events: Vec::new(),
            checks_scoreboard: true,
        }
    }

    pub(super) fn client(cfg: &Config, iss: u32, now: Instant) -> Self {
        let tuple = tuple(false, false);
        let template = HeaderTemplate::new(MAC[0], MAC[1], tuple);
        Self::new(Tcb::connect(now, &Arc::new(cfg.clone()), template, iss_and_ts_offset(iss)), 0)
    }

    pub(super) fn server(cfg: &Config, syn: &Segment, iss: u32, now: Instant) -> Self {
        let template = HeaderTemplate::new(MAC[1], MAC[0], syn.tuple);
        Self::new(
            Tcb::accept(now, &Arc::new(cfg.clone()), template, syn, iss_and_ts_offset(iss)),
            1,
        )
    }

    fn check_scoreboard(&self) {
        if self.checks_scoreboard {
            self.tcb.scoreboard.check(self.tcb.sack);
        }
    }

    /// Checks that the bytes are those of the stream from `position` on.
    fn check_bytes(&self, frame: &impl RxFrame, bytes: &Range<usize>, position: u64) {
        assert!(!bytes.is_empty());
        let mut found = vec![0; bytes.len()];
        frame.copy_out(bytes.start, &mut found);
        for (byte, at) in found.into_iter().zip(position..) {
            assert_eq!(byte, pattern(1 - self.side, at), "side {} byte {at}", self.side);
        }
    }

    fn read_in_order(&mut self, frame: &impl RxFrame, bytes: &Range<usize>) {
        self.check_bytes(frame, bytes, self.read);
        self.read += bytes.len() as u64;
        let keep = u32::try_from(bytes.len()).unwrap();
        if self.unconsumed + keep <= self.unconsumed_max {
            self.unconsumed += keep;
            self.tcb.add_unconsumed(keep);
        }
    }

    /// 0: buffer, 1: consume, 2: drop.
    fn choose_ooo_action(&mut self) -> u32 {
        match &mut self.ooo_policy {
            OooPolicy::Buffer => 0,
            OooPolicy::Consume => 1,
            OooPolicy::Drop => 2,
            OooPolicy::Random(rng) => rng.random_range(0..3),
        }
    }

    fn handle_ooo(&mut self, frame: HeapFrame, offer: OooOffer) {
        let (seq, bytes) = (offer.seq(), offer.bytes());
        assert!(seq > self.tcb.rcv.nxt, "in-order data is not out-of-order");
        let position = self.read + u64::from(seq - self.tcb.rcv.nxt);
        self.check_bytes(&frame, &bytes, position);
        match self.choose_ooo_action() {
            0 => drop(self.tcb.buffer_ooo(&mut self.pool, offer, frame)),
            1 => {
                self.tcb.consumed_ooo(&mut self.pool, offer);
                let end = position + bytes.len() as u64;
                let before = self.consumed_ooo.range(..end).next_back();
                assert!(before.is_none_or(|before| *before.1 <= position), "taken twice");
                self.consumed_ooo.insert(position, end);
            }
            _ => self.tcb.drop_ooo(offer),
        }
    }

    /// Reads bytes consumed out of order that have become contiguous.
    fn read_consumed_ooo(&mut self, len: u32) {
        let end = self.read + u64::from(len);
        while self.read < end {
            let (start, stop) = self.consumed_ooo.pop_first().expect("taken before");
            assert_eq!(start, self.read);
            self.read = stop;
        }
        assert_eq!(self.read, end);
    }

    /// The application consumes all unconsumed bytes.
    pub(super) fn consume(&mut self) {
        self.tcb.consume(self.unconsumed);
        self.unconsumed = 0;
    }

    pub(super) fn receive(&mut self, now: Instant, frame: &HeapFrame) {
        let edge = self.tcb.rcv.adv;
        let seg = frame.parse();
        match self.tcb.handle_segment(now, &seg, frame.clone()) {
            Delivered::Nothing => {}
            Delivered::InOrder { frame, bytes } => {
                self.read_in_order(&frame, &bytes);
                while let Some(next) = self.tcb.next_contiguous() {
                    match next {
                        Contiguous::Buffered { segment, bytes } => {
                            self.read_in_order(&segment, &bytes);
                            self.pool.release(segment);
                        }
                        Contiguous::Consumed { len, .. } => self.read_consumed_ooo(len),
                    }
                }
            }
            Delivered::OutOfOrder { frame, offer } => self.handle_ooo(frame, offer),
        }
        self.tcb.release_ooo(&mut self.pool);
        assert!(self.tcb.rcv.adv >= edge || self.tcb.peer.irs == seg.seq, "the window shrank");
        self.check_scoreboard();
        self.poll_events();
    }

    pub(super) fn poll_events(&mut self) {
        while let Some(event) = self.tcb.poll_event() {
            match event {
                Event::RcvWndLimited => self.tcb.grow_window(self.tcb.window_wanted()),
                _ => self.events.push(event),
            }
        }
    }

    pub(super) fn timeout(&mut self, now: Instant) {
        self.tcb.handle_timeout(now);
        self.check_scoreboard();
        self.poll_events();
    }

    /// Sends one frame; `None` when idle.
    pub(super) fn transmit_one(&mut self, now: Instant) -> Option<HeapFrame> {
        let mut buf = vec![0xee; 10_000];
        loop {
            let limit = self.record_len.min(1 << 20) as u64;
            let next_len = u32::try_from(self.to_write.min(limit)).unwrap();
            let ready = if next_len > 0 { TxDemand::Record(next_len) } else { TxDemand::Nothing };
            let len = match self.tcb.next_transmit(now, ready) {
                Transmit::Idle => return None,
                Transmit::Control(plan) => self.tcb.write_control(now, plan, &mut buf),
                Transmit::Retransmit(plan) => {
                    let payload_len = plan.payload_len();
                    let len = self.tcb.write_retransmit(now, plan, &mut buf);
                    assert_eq!(len, self.tcb.header_len() + payload_len);
                    len
                }
                Transmit::NewData(plan) => {
                    // Above EMSS only as a path MTU probe.
                    let (capacity, emss) = (plan.capacity(), self.tcb.emss());
                    assert!(0 < capacity && (capacity <= emss || !self.tcb.pmtu.is_probing()));
                    let payload_len = next_len.min(capacity.max(emss) as u32) as usize;
                    let start = self.tcb.header_len();
                    for byte in &mut buf[start..start + payload_len] {
                        *byte = pattern(self.side, self.written);
                        self.written += 1;
                    }
                    self.to_write -= payload_len as u64;
                    let len = start + payload_len;
                    let mut frame = TestTx::new(&buf[..len]);
                    let push = self.to_write == 0;
                    if !self.tcb.send_new_data(now, plan, &mut frame, payload_len, push) {
                        continue;
                    }
                    buf[..len].copy_from_slice(frame.buf_mut());
                    len
                }
            };
            self.check_scoreboard();
            assert!(len > 0);
            return Some(HeapFrame::new(&buf[..len]));
        }
    }

    /// Sends all frames that may be sent now.
    pub(super) fn transmit(&mut self, now: Instant) -> Vec<HeapFrame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.transmit_one(now) {
            frames.push(frame);
            assert!(frames.len() < 10_000, "output never ends");
        }
        self.poll_events();
        frames
    }
}

/// The instant `us` microseconds after the origin.
pub(super) fn at_us(us: u64) -> Instant {
    Instant::from_nanos(us * 1000)
}

/// One connection under test and a scripted peer: segments of the peer are given by their fields,
/// and those of the connection are returned parsed. Timestamps and SACK as negotiated.
pub(super) struct Script {
    pub(super) end: Endpoint,
    pub(super) now: Instant,
    /// The peer's next sequence number, acknowledgment number, window field, and TSval with TSecr.
    pub(super) seq: Seq,
    pub(super) ack: Seq,
    pub(super) window: u16,
    pub(super) ts: Option<(u32, u32)>,
    template: HeaderTemplate,
}

impl Script {
    /// A client in SYN-SENT, and the SYN that it sent.
    pub(super) fn connecting(cfg: &Config) -> (Self, Segment) {
        let now = at_us(1_000_000);
        let mut end = Endpoint::client(cfg, 0xffff_fff0, now);
        let syn = end.transmit(now).remove(0).parse();
        let template = HeaderTemplate::new(MAC[1], MAC[0], tuple(false, true));
        let ack = syn.seq + 1;
        let script = Self { end, now, seq: Seq(5000), ack, window: 65_535, ts: None, template };
        (script, syn)
    }

    /// An established client; the peer offered `options` in its SYN-ACK.
    pub(super) fn established(cfg: &Config, options: Options) -> Self {
        let (mut script, _) = Self::connecting(cfg);
        script.wait_us(100);
        script.ts = options.ts;
        let seq = script.seq;
        script.seq += 1;
        let reply = script.send(Fields {
            seq,
            ack: script.ack,
            flags: Flags::SYN | Flags::ACK,
            window: script.window,
            options,
            ..Fields::default()
        });
        assert_eq!(reply.len(), 1);
        assert_eq!(reply[0].flags, Flags::ACK);
        assert_eq!(script.end.events, [Event::Established]);
        script.end.events.clear();
        script
    }

    /// Options of a peer that supports all of them.
    pub(super) fn full_options() -> Options {
        Options {
            mss: Some(1460),
            wscale: Some(7),
            sack_permitted: true,
            ts: Some((100, 0)),
            ..Options::default()
        }
    }

    /// Fields of the peer's next segment, an ACK.
    pub(super) fn fields(&self) -> Fields {
        Fields {
            seq: self.seq,
            ack: self.ack,
            flags: Flags::ACK,
            window: self.window,
            options: Options::timestamps(self.ts),
            ..Fields::default()
        }
    }

    /// Delivers a segment without payload; returns the segments sent after it.
    pub(super) fn send(&mut self, fields: Fields) -> Vec<Segment> {
        self.send_data(fields, 0)
    }

    /// Delivers a segment; nothing is sent yet.
    pub(super) fn deliver(&mut self, fields: &Fields, payload_len: usize) {
        let mut buf = vec![0; MAX_HEADER_LEN + payload_len];
        let start = self.template.base_len() + fields.options.wire_len();
        // The stream's pattern, by sequence number; bytes before the stream are arbitrary.
        let origin = u64::from(fields.seq - Seq(5001));
        for (i, byte) in buf[start..start + payload_len].iter_mut().enumerate() {
            *byte = pattern(1, origin + i as u64);
        }
        let len = self.template.emit(&mut buf, fields, payload_len, ChecksumMode::Software);
        self.end.receive(self.now, &HeapFrame::new(&buf[..len]));
    }

    /// Delivers a segment with payload; returns the segments sent after it.
    pub(super) fn send_data(&mut self, fields: Fields, payload_len: usize) -> Vec<Segment> {
        self.deliver(&fields, payload_len);
        self.output()
    }

    /// Returns the segments that the connection sends now.
    pub(super) fn output(&mut self) -> Vec<Segment> {
        self.end.transmit(self.now).iter().map(HeapFrame::parse).collect()
    }

    /// Advances time to the next deadline and fires the timers; returns the segments sent.
    pub(super) fn fire(&mut self) -> Vec<Segment> {
        self.now = self.end.tcb.deadline().expect("a timer runs").max(self.now);
        self.end.timeout(self.now);
        self.output()
    }

    /// Advances time without firing timers.
    pub(super) fn wait_us(&mut self, us: u64) {
        self.now = self.now + us * 1000;
    }

    /// The application writes `bytes`; returns the segments sent.
    pub(super) fn write(&mut self, bytes: u64) -> Vec<Segment> {
        self.end.to_write += bytes;
        self.output()
    }
}
