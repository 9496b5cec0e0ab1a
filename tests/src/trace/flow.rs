//! State of one connection in a trace: its initial numbers, and the invariants checked for every
//! segment sent, in addition to the lines of the trace.

use super::packet::{self, Packet};
use super::script::{Num, SegmentSpec};

/// See the [module's documentation](self).
#[derive(Clone, Debug, Default)]
pub struct Flow {
    /// Our initial sequence number, once known.
    pub iss: Option<u32>,
    /// The peer's initial sequence number.
    pub irs: u32,
    /// Our TSval at the start of the trace, once known.
    tsval_base: Option<u32>,
    /// Our latest TSval, and the time in microseconds at which it was sent.
    tsval: Option<(u32, u64)>,
    /// The peer's TSval at the start of the trace.
    peer_tsval_base: u32,
    /// The peer's SYN carried timestamps.
    peer_ts: bool,
    /// Window scale in our SYN and in the peer's.
    scales: (Option<u8>, Option<u8>),
    /// MSS option of the peer.
    peer_mss: u16,
    /// Last window field of the peer.
    pub window: u16,
    /// Highest right edge of the peer's window.
    snd_limit: Option<u32>,
    /// Our latest acknowledgment number, and the right edge of our window.
    last_ack_and_edge: Option<(u32, u32)>,
    /// Highest sequence number sent, plus one.
    pub sent_end: Option<u32>,
}

const fn seq_diff(a: u32, b: u32) -> i64 {
    a.wrapping_sub(b).cast_signed() as i64
}

#[expect(clippy::cast_possible_truncation, reason = "modulo 2^32")]
const fn wrap(micros: u64) -> u32 {
    micros as u32
}

#[expect(clippy::cast_possible_truncation, reason = "modulo 2^32")]
const fn from_base(base: u32, relative: i64) -> u32 {
    base.wrapping_add(relative as u32)
}

impl Flow {
    /// A connection without segments so far.
    #[must_use]
    pub fn new(iss: Option<u32>, irs: u32, peer_tsval_base: u32) -> Self {
        Self { iss, irs, peer_tsval_base, window: u16::MAX, peer_mss: 536, ..Self::default() }
    }

    fn iss(&self) -> u32 {
        self.iss.unwrap_or(0)
    }

    /// Builds the incoming segments of a line, at `micros` since the start.
    pub fn incoming(
        &mut self,
        spec: &SegmentSpec,
        mut base: Packet,
        micros: u64,
    ) -> Result<Vec<Packet>, String> {
        let Num::Is(seq) = spec.seq else { return Err("a segment in needs numbers".to_owned()) };
        let is_syn = spec.flags & packet::SYN != 0;
        let bytes = spec.end.map_or(0, |end| end - seq);
        let part = bytes / i64::from(spec.repeat);
        base.flags = spec.flags;
        base.ack = match spec.ack {
            Some(Num::Is(ack)) => from_base(self.iss(), ack),
            Some(Num::Any) => return Err("a segment in needs numbers".to_owned()),
            None => 0,
        };
        if let Some(window) = spec.win {
            self.window = u16::try_from(window).map_err(|_| "the window field has 16 bits")?;
        }
        base.window = self.window;
        base.ecn = spec.ecn.unwrap_or(0);
        base.mss = spec.mss.flatten();
        base.wscale = spec.wscale.flatten();
        base.sack_permitted = spec.sack_permitted.unwrap_or(false);
        base.raw_options.clone_from(&spec.raw_options);
        let blocks = spec.sack.as_ref().ok_or("a segment in needs its blocks")?;
        let iss = self.iss();
        let block = |&(from, to): &(i64, i64)| (from_base(iss, from), from_base(iss, to));
        base.sack = blocks.iter().map(block).collect();
        base.ts = self.incoming_ts(spec, micros)?;
        if is_syn {
            self.peer_ts = base.ts.is_some();
            self.scales.1 = base.wscale;
            self.peer_mss = base.mss.unwrap_or(536);
        }
        let mut packets = Vec::new();
        for copy in 0..i64::from(spec.repeat) {
            let mut packet = base.clone();
            let start = seq + copy * part;
            packet.seq = from_base(self.irs, start);
            let first = from_base(0, start - i64::from(!is_syn));
            let bytes = (0..u32::try_from(part).map_err(|_| "too long")?)
                .map(|at| packet::pattern(false, first.wrapping_add(at)));
            packet.payload = bytes.collect();
            self.on_incoming(&packet);
            packets.push(packet);
        }
        Ok(packets)
    }

    fn incoming_ts(&self, spec: &SegmentSpec, micros: u64) -> Result<Option<(u32, u32)>, String> {
        let clock = self.peer_tsval_base.wrapping_add(wrap(micros));
        let echo =
            if spec.flags & packet::ACK == 0 { 0 } else { self.tsval.map_or(0, |(val, _)| val) };
        Ok(match spec.ts {
            Some(None) => None,
            None => (self.peer_ts && spec.flags & packet::SYN == 0).then_some((clock, echo)),
            Some(Some((val, ecr))) => {
                let val = match val {
                    Num::Is(val) => from_base(self.peer_tsval_base, val),
                    Num::Any => clock,
                };
                let ecr = match ecr {
                    Num::Is(ecr) => {
                        let none = "no timestamp was seen to echo; `*` echoes zero";
                        from_base(self.tsval_base.ok_or(none)?, ecr)
                    }
                    Num::Any => echo,
                };
                Some((val, ecr))
            }
        })
    }

    fn on_incoming(&mut self, packet: &Packet) {
        if packet.flags & packet::ACK == 0 {
            return;
        }
        let scale = match self.scales {
            (Some(_), Some(shift)) if packet.flags & packet::SYN == 0 => shift,
            _ => 0,
        };
        let edge = packet.ack.wrapping_add(u32::from(packet.window) << scale.min(14));
        if self.snd_limit.is_none_or(|known| seq_diff(edge, known) > 0) {
            self.snd_limit = Some(edge);
        }
    }

    /// Records an outgoing segment; returns the invariants that it violates.
    pub fn on_outgoing(&mut self, packet: &Packet, micros: u64) -> Vec<String> {
        let mut wrong = Vec::new();
        if packet.flags & packet::RST != 0 {
            return wrong;
        }
        if packet.flags & packet::SYN != 0 {
            self.iss.get_or_insert(packet.seq);
            self.scales.0 = packet.wscale;
            self.last_ack_and_edge = None;
        }
        if let Some((val, _)) = packet.ts {
            self.tsval_base.get_or_insert(val.wrapping_sub(wrap(micros)));
            let last = self.tsval.filter(|(_, at)| micros - at < 1 << 31);
            if last.is_some_and(|(last, _)| seq_diff(val, last) < 0) {
                wrong.push("TSval went back (RFC 7323 section 4.1)".to_owned());
            }
            self.tsval = Some((val, micros));
        }
        if packet.flags & packet::ACK != 0 {
            let scale = match self.scales {
                (Some(shift), Some(_)) if packet.flags & packet::SYN == 0 => shift,
                _ => 0,
            };
            let edge = packet.ack.wrapping_add(u32::from(packet.window) << scale);
            let (last_ack, last_edge) = self.last_ack_and_edge.unwrap_or((packet.ack, edge));
            if seq_diff(packet.ack, last_ack) < 0 {
                wrong.push("the acknowledgment went back".to_owned());
            }
            // Scaling may round the edge down by less than one unit (RFC 7323 section 2.4).
            let by = seq_diff(last_edge, edge);
            if by >= 1 << scale {
                wrong.push(format!("the window was taken back by {by} (RFC 9293 section 3.8.6)"));
            }
            self.last_ack_and_edge = Some((packet.ack, if by > 0 { last_edge } else { edge }));
        }
        let options = packet.ts.map_or(0, |_| 12);
        if packet.payload.len() + options > usize::from(self.peer_mss) {
            wrong.push("larger than the peer's segment size (RFC 6691)".to_owned());
        }
        let first = packet.seq.wrapping_sub(self.iss()).wrapping_sub(1);
        for (byte, at) in packet.payload.iter().zip(0..) {
            let at = first.wrapping_add(at);
            if *byte != packet::pattern(true, at) {
                wrong.push(format!("byte {} of the stream is wrong", at.wrapping_add(1)));
                break;
            }
        }
        let end = packet.seq.wrapping_add(packet.seq_len());
        let data_end = end.wrapping_sub(u32::from(packet.flags & packet::FIN != 0));
        if !packet.payload.is_empty()
            && self.snd_limit.is_none_or(|edge| seq_diff(data_end, edge) > 0)
        {
            wrong.push("beyond the peer's window".to_owned());
        }
        if self.sent_end.is_none_or(|sent| seq_diff(end, sent) > 0) {
            self.sent_end = Some(end);
        }
        wrong
    }

    /// Compares a segment sent with part `copy` of a line's segments; returns the differences.
    #[must_use]
    pub fn mismatches(&self, spec: &SegmentSpec, copy: u32, packet: &Packet) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut check = |name: &str, seen: String, expected: String| {
            if seen != expected {
                wrong.push(format!("{name} is {seen}, expected {expected}"));
            }
        };
        let push = if spec.flags & packet::PSH == 0 { packet.flags & packet::PSH } else { 0 };
        let letters = packet::letters;
        check("flags", letters(packet.flags & !push), letters(spec.flags));
        if spec.no_push {
            check("PSH", (packet.flags & packet::PSH != 0).to_string(), "false".to_owned());
        }
        let len = packet.payload.len();
        if let Num::Is(seq) = spec.seq {
            let bytes = spec.end.map_or(0, |end| end - seq);
            let part = bytes / i64::from(spec.repeat);
            let start = seq + i64::from(copy) * part;
            let seen = seq_diff(packet.seq, self.iss());
            check("seq", seen.to_string(), seq_diff(from_base(0, start), 0).to_string());
            check("length", len.to_string(), part.to_string());
        }
        if let Some(Num::Is(ack)) = spec.ack {
            let seen = seq_diff(packet.ack, self.irs);
            check("ack", seen.to_string(), seq_diff(from_base(0, ack), 0).to_string());
        }
        if let Some(win) = spec.win {
            check("win", packet.window.to_string(), win.to_string());
        }
        if let Some(ecn) = spec.ecn {
            check("the ECN field", packet.ecn.to_string(), ecn.to_string());
        }
        if let Some(mss) = spec.mss {
            check("mss", format!("{:?}", packet.mss), format!("{mss:?}"));
        }
        if let Some(wscale) = spec.wscale {
            check("ws", format!("{:?}", packet.wscale), format!("{wscale:?}"));
        }
        if let Some(expected) = spec.sack_permitted {
            check("sackok", packet.sack_permitted.to_string(), expected.to_string());
        }
        match (spec.ts, packet.ts) {
            (None, _) | (Some(None), None) => {}
            (Some(expected), seen) if expected.is_some() != seen.is_some() => {
                check("timestamps", seen.is_some().to_string(), expected.is_some().to_string());
            }
            (Some(Some((val, ecr))), Some(seen)) => {
                if let Num::Is(val) = val {
                    let seen = seq_diff(seen.0, self.tsval_base.unwrap_or(0));
                    check("TSval", seen.to_string(), val.to_string());
                }
                if let Num::Is(ecr) = ecr {
                    let seen = seq_diff(seen.1, self.peer_tsval_base);
                    check("TSecr", seen.to_string(), ecr.to_string());
                }
            }
            _ => {}
        }
        if let Some(sack) = &spec.sack {
            let seen = self.blocks(packet);
            check("sack", format!("{seen:?}"), format!("{sack:?}"));
        }
        wrong
    }

    fn blocks(&self, packet: &Packet) -> Vec<(i64, i64)> {
        packet.sack.iter().map(|b| (seq_diff(b.0, self.irs), seq_diff(b.1, self.irs))).collect()
    }

    /// Formats a segment in trace syntax.
    #[must_use]
    pub fn describe(&self, packet: &Packet, outgoing: bool) -> String {
        let (near, far) = if outgoing { (self.iss(), self.irs) } else { (self.irs, self.iss()) };
        let seq = seq_diff(packet.seq, near);
        let mut text = format!("{} {seq}", packet::letters(packet.flags));
        if !packet.payload.is_empty() {
            text += &format!(":{}", seq + i64::try_from(packet.payload.len()).unwrap_or(0));
        }
        if packet.flags & packet::ACK != 0 {
            text += &format!(" ack {}", seq_diff(packet.ack, far));
        }
        text += &format!(" win {}", packet.window);
        if let Some(mss) = packet.mss {
            text += &format!(" mss {mss}");
        }
        if let Some(shift) = packet.wscale {
            text += &format!(" ws {shift}");
        }
        if packet.sack_permitted {
            text += " sackok";
        }
        if let Some((val, ecr)) = packet.ts {
            let ours = self.tsval_base.unwrap_or(0);
            let theirs = self.peer_tsval_base;
            let (val_base, ecr_base) = if outgoing { (ours, theirs) } else { (theirs, ours) };
            text += &format!(" ts {} {}", seq_diff(val, val_base), seq_diff(ecr, ecr_base));
        }
        if !packet.sack.is_empty() {
            text += " sack";
            for (from, to) in &packet.sack {
                text += &format!(" {}:{}", seq_diff(*from, far), seq_diff(*to, far));
            }
        }
        text + ["", " ect1", " ect0", " ce"][usize::from(packet.ecn)]
    }
}
