//! Invariants of every segment on the wire, whether or not it is lost.
//!
//! - The window's right edge, the acknowledgment number and both timestamps never go back.
//! - Nothing is sent beyond the window that the sender has received.
//! - The byte before a SACK block was not received.
//! - Segments start at FPDU boundaries, unless FPDUs had to be split.

use std::collections::{HashMap, VecDeque};

use ferrowarp_proto::device::ChecksumMode;
use ferrowarp_proto::wire::mpa::{FrameKind, Startup};
use ferrowarp_proto::wire::seq::Seq;
use ferrowarp_proto::wire::tcp::{Flags, FourTuple, SackBlock, Segment};

use crate::frame::Frame;

/// Parses the segment in `frame`; `None` if it is not TCP, a fragment, or corrupted.
fn parse(frame: &[u8], verify: bool) -> Option<Segment> {
    let mode = if verify { ChecksumMode::Software } else { ChecksumMode::NotNeeded };
    let tagged = frame.get(12..14) == Some(&[0x81, 0]);
    let parse = if tagged { Segment::parse_vlan } else { Segment::parse };
    parse(&Frame::new(frame), mode).ok()
}

/// Parses an MPA Request or Reply at the start of `bytes`; returns it with its length.
fn startup(bytes: &[u8]) -> Option<(Startup, usize)> {
    let kinds = [FrameKind::Request, FrameKind::Reply];
    kinds.into_iter().find_map(|kind| Startup::parse(bytes, kind).ok().flatten())
}

/// Checks that each SACK block begins beyond the acknowledgment number (RFC 2018 section 3), except
/// for a D-SACK block and the range around it (RFC 2883 section 4).
///
/// # Panics
/// If one does not.
pub fn check_sack_blocks(seg: &Segment) {
    let blocks = &seg.options.sack;
    let is_in_next =
        |first: SackBlock| blocks.get(1).is_some_and(|next| next.0 <= first.0 && first.1 <= next.1);
    let skipped = match blocks.first() {
        Some(&first) if is_in_next(first) => 2,
        Some(&first) if first.0 < seg.ack => 1,
        _ => 0,
    };
    let are_beyond = blocks.iter().skip(skipped).all(|block| block.0 > seg.ack);
    assert!(are_beyond, "SACK of {blocks:?} with the acknowledgment of {:?}", seg.ack);
}

/// FPDU boundaries in one direction of the stream. A unit is a startup frame or an FPDU.
#[derive(Debug, Default)]
struct FpduBoundaries {
    /// First byte that is not part of a known unit.
    next: Option<Seq>,
    /// Bytes from `next` on, in order.
    pending: Vec<u8>,
    /// Set once the startup frame is complete: its M bit, which requests markers.
    started: Option<bool>,
    /// The other end's startup frame requests markers, so this direction has them.
    marked: bool,
    /// Bytes since the startup frame.
    position: usize,
    /// Starts of units, oldest first; those below `acked` are removed.
    starts: VecDeque<Seq>,
    /// Highest acknowledgment that has reached the sender's port.
    acked: Option<Seq>,
}

impl FpduBoundaries {
    /// Adds bytes, which follow those already seen.
    fn extend(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
        let mut used = 0;
        while let Some(len) = self.unit_len(&self.pending[used..]) {
            let start = self.next.expect("bytes follow a SYN");
            self.starts.push_back(start);
            if self.started.is_some() {
                self.position += len;
            } else {
                self.started = startup(&self.pending[used..]).map(|(frame, _)| frame.markers);
            }
            used += len;
            // Contents are checked elsewhere; only the length of a unit counts here.
            self.next = Some(start + u32::try_from(len).expect("short"));
        }
        self.pending.drain(..used);
    }

    /// Length of the unit at the start of `bytes`, if all of it is there.
    fn unit_len(&self, bytes: &[u8]) -> Option<usize> {
        let len = if self.started.is_some() {
            let lead = if self.at_marker(0) { 4 } else { 0 };
            let length = bytes.get(lead..)?.first_chunk()?;
            let content = (usize::from(u16::from_be_bytes(*length)) + 2).next_multiple_of(4) + 4;
            self.with_markers(content)
        } else {
            startup(bytes)?.1
        };
        (bytes.len() >= len).then_some(len)
    }

    /// True if there is a marker `ahead` bytes from the current position.
    const fn at_marker(&self, ahead: usize) -> bool {
        self.marked && (self.position + ahead).is_multiple_of(512)
    }

    /// Length of a unit with `content` bytes besides its markers.
    fn with_markers(&self, content: usize) -> usize {
        let mut len = 0;
        for _ in 0..content {
            len += if self.at_marker(len) { 5 } else { 1 };
        }
        len
    }

    /// True if a unit starts at `seq`, or will start there next; or if that is forgotten: the
    /// sender retransmits while the acknowledgment waits in its port's receive ring.
    fn starts_at(&self, seq: Seq) -> bool {
        self.next == Some(seq) || self.acked.is_some_and(|acked| seq < acked) || {
            let index = self.starts.partition_point(|&start| start < seq);
            self.starts.get(index) == Some(&seq)
        }
    }

    fn forget_below(&mut self, seq: Seq) {
        self.acked = Some(self.acked.map_or(seq, |acked| acked.max(seq)));
        while self.starts.front().is_some_and(|&start| start < seq) {
            self.starts.pop_front();
        }
    }
}

/// One direction of a connection, as observed from its sender's segments.
#[derive(Debug, Default)]
struct Flow {
    /// Window scale option sent by this end.
    wscale: Option<u8>,
    /// Window scaling is in effect; known at the first segment after the SYN.
    scaling: Option<bool>,
    rcv_adv: Option<Seq>,
    ack: Option<Seq>,
    ts: Option<(u32, u32)>,
    /// Highest sequence number sent, plus one.
    snd_nxt: Option<Seq>,
    /// Highest right edge of the peer's window that has reached this end.
    snd_limit: Option<Seq>,
    framing: FpduBoundaries,
    /// Segments that did not start at an FPDU boundary.
    misaligned: u64,
    /// The sender has reset the connection: earlier segments may still be in flight.
    is_reset: bool,
}

/// Checks every segment.
#[derive(Debug)]
pub struct WireChecker {
    /// By sender and by the four-tuple from the receiver's point of view.
    flows: HashMap<(usize, FourTuple), Flow>,
    aligned: bool,
    /// Ports whose connections are not checked.
    ignored_ports: Vec<u16>,
    /// Segments checked.
    pub segments: u64,
    /// Payload bytes sent: all, and those sent for the first time.
    pub bytes: (u64, u64),
    /// Segments that did not start at an FPDU boundary.
    pub misaligned: u64,
    /// RSTs of an end that had sent more than a SYN between the same ports.
    pub resets: u64,
}

fn is_not_before(new: u32, old: u32) -> bool {
    new.wrapping_sub(old).cast_signed() >= 0
}

impl WireChecker {
    /// Creates a checker without state. `aligned`: FPDUs are never split.
    #[must_use]
    pub fn new(aligned: bool) -> Self {
        Self {
            flows: HashMap::new(),
            aligned,
            ignored_ports: Vec::new(),
            segments: 0,
            bytes: (0, 0),
            misaligned: 0,
            resets: 0,
        }
    }

    /// Forgets all connections, because an end restarts.
    pub fn reset(&mut self) {
        self.flows.clear();
        self.ignored_ports.clear();
    }

    /// Checks the connections with this port no longer, because a shard has died.
    pub fn ignore_port(&mut self, port: u16) {
        self.ignored_ports.push(port);
    }

    fn ignores(&self, tuple: &FourTuple) -> bool {
        [tuple.local, tuple.remote].iter().any(|end| self.ignored_ports.contains(&end.port()))
    }

    /// Checks a `frame` that `end` sends.
    ///
    /// # Panics
    /// If the segment violates an invariant.
    pub fn on_sent(&mut self, end: usize, frame: &[u8]) {
        let Some(seg) = parse(frame, false).filter(|seg| !self.ignores(&seg.tuple)) else { return };
        self.segments += 1;
        if seg.flags.has(Flags::RST) {
            // An RST may answer any segment. Whatever follows belongs to another connection.
            if let Some(flow) = self.flows.get_mut(&(end, seg.tuple)) {
                flow.is_reset = true;
                self.resets += u64::from(flow.scaling.is_some());
            }
            return;
        }
        let back = (1 - end, FourTuple { local: seg.tuple.remote, remote: seg.tuple.local });
        if seg.flags.has(Flags::SYN) {
            let flow = self.flows.entry((end, seg.tuple)).or_default();
            if flow.is_reset {
                *flow = Flow::default();
            }
            if flow.snd_nxt.is_none_or(|known| known != seg.seq + 1) {
                *flow = Flow { snd_limit: flow.snd_limit, ..Flow::default() };
            }
            flow.snd_nxt = Some(seg.seq + 1);
            flow.framing.next.get_or_insert(seg.seq + 1);
            flow.wscale = seg.options.wscale;
            return;
        }
        let other = self.flows.get(&back);
        let scaling = other.is_some_and(|flow| flow.wscale.is_some());
        let marked = other.is_some_and(|flow| flow.framing.started == Some(true));
        let flow = self.flows.get_mut(&(end, seg.tuple)).filter(|flow| !flow.is_reset);
        let Some(flow) = flow else { return };
        flow.framing.marked = marked;
        flow.scaling.get_or_insert(scaling && flow.wscale.is_some());
        flow.check_receiver(&seg);
        let payload = &frame[seg.payload.clone()];
        self.bytes.0 += payload.len() as u64;
        self.bytes.1 += u64::from(flow.check_sender(&seg, payload, self.aligned));
        self.misaligned += std::mem::take(&mut flow.misaligned);
    }

    /// Records that `frame` has reached `end`. With `verify`, corrupted segments are ignored.
    pub fn on_received(&mut self, end: usize, frame: &[u8], verify: bool) {
        let Some(seg) = parse(frame, verify).filter(|seg| seg.flags.has(Flags::ACK)) else {
            return;
        };
        let Some(sender) = self.flows.get(&(1 - end, seg.tuple)) else { return };
        let syn = seg.flags.has(Flags::SYN);
        let shift = if syn { 0 } else { sender.shift() };
        let edge = seg.ack + (u32::from(seg.window) << shift);
        let back = FourTuple { local: seg.tuple.remote, remote: seg.tuple.local };
        let Some(flow) = self.flows.get_mut(&(end, back)) else { return };
        // An old duplicate from an earlier incarnation of the connection may carry any number.
        if flow.snd_nxt.is_some_and(|sent| seg.ack <= sent) {
            flow.snd_limit = Some(flow.snd_limit.map_or(edge, |known| known.max(edge)));
            flow.framing.forget_below(seg.ack);
        }
    }
}

impl Flow {
    /// Shift of the window field in segments without SYN.
    fn shift(&self) -> u8 {
        self.wscale.filter(|_| self.scaling == Some(true)).unwrap_or(0)
    }

    /// Checks acknowledgment, window and timestamps: the state of the sender's receive side.
    fn check_receiver(&mut self, seg: &Segment) {
        if !seg.flags.has(Flags::ACK) {
            return;
        }
        assert!(self.ack.is_none_or(|ack| seg.ack >= ack), "the acknowledgment went back: {seg:?}");
        self.ack = Some(seg.ack);
        check_sack_blocks(seg);
        let shift = self.shift();
        let edge = seg.ack + (u32::from(seg.window) << shift);
        // The window field is in units of 2^shift bytes, rounded down.
        let unit = (1 << shift) - 1;
        assert!(
            self.rcv_adv.is_none_or(|known| edge + unit >= known),
            "the window was retracted from {:?}: {seg:?}",
            self.rcv_adv
        );
        self.rcv_adv = Some(self.rcv_adv.map_or(edge, |known| known.max(edge)));
        if let Some((value, echo)) = seg.options.ts {
            let ok = self.ts.is_none_or(|(v, e)| is_not_before(value, v) && is_not_before(echo, e));
            assert!(ok, "timestamps went back from {:?}: {seg:?}", self.ts);
            self.ts = Some((value, echo));
        }
    }

    /// Checks the sender's send side; returns the number of bytes sent for the first time.
    fn check_sender(&mut self, seg: &Segment, payload: &[u8], aligned: bool) -> u32 {
        let Some(sent) = self.snd_nxt else { return 0 };
        let len = u32::try_from(payload.len()).expect("a segment is short");
        let end = seg.seq + len;
        if len == 0 {
            let end = seg.seq + seg.seq_len();
            if end > sent {
                let edge = self.snd_limit.expect("a SYN-ACK was received");
                assert!(end <= edge, "FIN beyond the window, whose edge is {edge:?}: {seg:?}");
            }
            self.snd_nxt = Some(sent.max(end));
            return 0;
        }
        assert!(seg.seq <= sent, "bytes were left out before {seg:?}");
        let edge = self.snd_limit.expect("a SYN-ACK was received");
        assert!(end <= edge, "beyond the window, whose edge is {edge:?}: {seg:?}");
        let new_len = if end > sent { end - sent } else { 0 };
        let new = &payload[payload.len() - new_len as usize..];
        let is_aligned = self.framing.starts_at(seg.seq);
        if !new.is_empty() {
            self.framing.extend(new);
        }
        // A boundary at the end of known bytes is recorded only now.
        let is_aligned = is_aligned || self.framing.starts_at(seg.seq);
        assert!(is_aligned || !aligned, "not the start of an FPDU: {seg:?}");
        self.misaligned += u64::from(!is_aligned);
        self.snd_nxt = Some(sent.max(seg.seq + seg.seq_len()));
        new_len
    }
}
