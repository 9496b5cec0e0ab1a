//! Segments in: RFC 9293 section 3.10.7, with the checks of RFC 7323 (PAWS) and RFC 5961.

use core::ops::Range;

use super::reassembly::Insertion;
use super::state::{Event, State};
use super::{Delivered, Notice, Plan, Tcb};
use crate::device::{Retained, RxFrame};
use crate::time::{Instant, SECOND};
use crate::wire::seq::Seq;
use crate::wire::tcp::{Flags, Segment};

/// How long the peer's last timestamp is compared with. RFC 7323 section 5.5 has 24 days, for
/// clocks of a millisecond and slower; a clock of a microsecond turns in 71 minutes.
const TIMESTAMP_LIFE_NS: u64 = 1000 * SECOND;

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Takes a segment of this connection, `seg` being the parsed header of `frame`.
    ///
    /// Octets that came in order are handed back at once and are acknowledged from then on. Of
    /// what came early, the frame is kept; see [`Tcb::next_held`]. Each octet is handed up once.
    ///
    /// In state CLOSED nothing happens; the engine answers with [`crate::wire::tcp::reset_for`].
    ///
    /// Cost in order: constant, and O(records) of what `seg` acknowledges.
    pub fn handle_segment(&mut self, now: Instant, seg: &Segment, frame: R) -> Delivered<R> {
        self.stats.segments_in += 1;
        self.plan = Plan::Nothing;
        match self.state {
            State::Closed => return Delivered::Nothing,
            State::SynSent => {
                self.in_syn_sent(now, seg);
                return Delivered::Nothing;
            }
            _ => {}
        }
        if !self.timestamp_passes(now, seg) {
            return Delivered::Nothing;
        }
        if !self.is_acceptable(seg) {
            self.refuse(now, seg);
            return Delivered::Nothing;
        }
        self.heard_at = now;
        self.unanswered = 0;
        if seg.flags.any(Flags::RST | Flags::SYN) || !seg.flags.has(Flags::ACK) {
            self.exceptional(now, seg);
            return Delivered::Nothing;
        }
        self.keep_timestamp(now, seg);
        if self.state == State::SynReceived && !self.syn_acknowledged(now, seg) {
            return Delivered::Nothing;
        }
        if !self.process_ack(now, seg) {
            return Delivered::Nothing;
        }
        self.take_payload(now, seg, frame)
    }

    /// After [`Delivered::InOrder`]: the frames held out of order that became contiguous, in
    /// order, each with where its new octets lie. To be called until `None`.
    #[inline]
    pub fn next_held(&mut self) -> Option<(R, Range<usize>)> {
        // Nothing follows the peer's FIN, whatever it sent.
        if self.reassembly.is_empty() || self.rcv.finished {
            return None;
        }
        let (frame, octets) = self.reassembly.pop_at(self.rcv.nxt)?;
        self.rcv.nxt += seq_len(&octets);
        self.stats.octets_in += octets.len() as u64;
        self.take_fin();
        Some((frame, octets))
    }

    /// Section 3.10.7.3.
    fn in_syn_sent(&mut self, now: Instant, seg: &Segment) {
        let acks = seg.flags.has(Flags::ACK);
        if acks && (seg.ack <= self.snd.iss || seg.ack > self.snd.nxt) {
            if !seg.flags.has(Flags::RST) {
                self.due.stray_reset = Some(seg.ack);
            }
            return;
        }
        if seg.flags.has(Flags::RST) {
            if acks {
                self.notify(Notice::Reset);
                self.kill();
            }
            return;
        }
        if !seg.flags.has(Flags::SYN) {
            return;
        }
        self.heard_at = now;
        self.negotiate(now, seg);
        if acks {
            self.step(Event::SynAck);
            self.established(now, seg.ack);
            self.ack.due = true;
        } else {
            self.step(Event::Syn);
            self.due.syn = true;
        }
    }

    /// In SYN-RECEIVED: does this acknowledge our SYN? If not, section 3.10.7.4 asks for a RST.
    fn syn_acknowledged(&mut self, now: Instant, seg: &Segment) -> bool {
        if seg.ack != self.snd.nxt || seg.ack == self.snd.iss {
            self.due.stray_reset = Some(seg.ack);
            return false;
        }
        self.step(Event::SynAcked);
        self.established(now, seg.ack);
        true
    }

    fn established(&mut self, now: Instant, ack: Seq) {
        if self.retries == 0 {
            self.rtt.sample(now, now.since(self.sent_at), &self.cfg);
        }
        self.rtt.reset_backoff();
        self.retries = 0;
        self.rearmed = false;
        self.progress_at = now;
        self.due.syn = false;
        self.snd.una = ack;
        self.timers.rto = super::NEVER;
        self.unanswered = 0;
        if let Some(idle) = self.cfg.keepalive_ns {
            self.timers.keepalive = now + idle;
        }
        self.notify(Notice::Established);
        if self.close_pending {
            self.close();
        }
    }

    /// PAWS (RFC 7323 section 5.3, R1 to R3). A segment without timestamps where they were agreed
    /// on is dropped, unless it is a RST (section 3.2); a SYN then is of a peer that began anew and
    /// learns by the answer that this connection is still there (RFC 5961 section 4).
    #[inline]
    fn timestamp_passes(&mut self, now: Instant, seg: &Segment) -> bool {
        if !self.ts.on || seg.flags.has(Flags::RST) {
            return true;
        }
        let Some((val, _)) = seg.options.ts else {
            self.stats.paws_drops += 1;
            if seg.flags.has(Flags::SYN) {
                self.challenge(now);
            }
            return false;
        };
        let old = val.wrapping_sub(self.ts.recent).cast_signed() < 0;
        if old && now.since(self.ts.recent_at) < TIMESTAMP_LIFE_NS {
            self.stats.paws_drops += 1;
            self.be_courteous(now);
            return false;
        }
        true
    }

    /// RFC 7323 section 4.3: the timestamp of the segment that the next ACK answers.
    #[inline]
    fn keep_timestamp(&mut self, now: Instant, seg: &Segment) {
        if let (true, Some((val, _))) = (self.ts.on, seg.options.ts)
            && seg.seq <= self.rcv.last_ack
        {
            self.ts.recent = val;
            self.ts.recent_at = now;
        }
    }

    /// The acceptability test of section 3.10.7.4, taken generously at the right edge: an ACK
    /// from a peer that has filled the window lies just there, and payload beyond is cut off.
    #[inline]
    pub(super) fn is_acceptable(&self, seg: &Segment) -> bool {
        let len = seg.seq_len();
        if len == 0 {
            return self.rcv.nxt <= seg.seq && seg.seq <= self.rcv.edge;
        }
        seg.seq <= self.rcv.edge && seg.seq + len > self.rcv.nxt
    }

    /// A segment outside the window: an ACK answers it, except a RST.
    #[cold]
    fn refuse(&mut self, now: Instant, seg: &Segment) {
        if seg.flags.has(Flags::RST) {
            self.stats.out_of_window += 1;
            return;
        }
        let end = seg.seq + seg.seq_len();
        if self.state == State::SynReceived && seg.flags.has(Flags::SYN) && seg.seq == self.rcv.irs
        {
            if !seg.flags.has(Flags::ACK) {
                // The peer's SYN once more: our SYN-ACK was lost.
                self.due.syn = true;
            } else if self.syn_acknowledged(now, seg) {
                // Both ends opened at once (figure 8 of section 3.5); the sequence number is that
                // of the SYN we know, which the test of acceptability does not foresee.
                self.snd.update_window(seg.seq, seg.ack, u32::from(seg.window));
                self.ack.due = true;
            }
            return;
        }
        if !seg.payload.is_empty() && end <= self.rcv.nxt {
            self.stats.duplicates_in += 1;
            self.ack.out_of_order(self.sack.then_some((seg.seq, end)));
            return;
        }
        self.stats.out_of_window += 1;
        if self.state == State::TimeWait && seg.flags.has(Flags::FIN) {
            self.linger(now);
        }
        if seg.flags.has(Flags::SYN) {
            self.challenge(now);
        } else {
            self.be_courteous(now);
        }
    }

    /// RST and SYN in the window (RFC 5961 sections 3.2 and 4.2); segments without ACK.
    #[cold]
    fn exceptional(&mut self, now: Instant, seg: &Segment) {
        if seg.flags.has(Flags::RST) {
            if self.state == State::TimeWait {
                // An old RST must not cut TIME-WAIT short (RFC 1337).
            } else if seg.seq == self.rcv.nxt {
                self.notify(Notice::Reset);
                self.kill();
            } else if seg.seq > self.rcv.nxt {
                self.challenge(now);
            } else {
                // Its octets reach into the window, the RST itself lies before it.
                self.stats.out_of_window += 1;
            }
        } else if seg.flags.has(Flags::SYN) {
            self.challenge(now);
        }
    }

    /// Payload and FIN of an acceptable segment.
    #[inline]
    fn take_payload(&mut self, now: Instant, seg: &Segment, frame: R) -> Delivered<R> {
        let fin = seg.flags.has(Flags::FIN);
        let len = seq_len(&seg.payload);
        if len == 0 && !fin {
            return Delivered::Nothing;
        }
        let end = seg.seq + len;
        let plain = !fin && !self.receive_shut && self.rcv.fin.is_none();
        if plain
            && seg.seq == self.rcv.nxt
            && end <= self.rcv.edge
            && self.reassembly.is_empty()
            && self.state.receives()
        {
            self.rcv.nxt = end;
            self.stats.octets_in += u64::from(len);
            self.ack.moved();
            self.ack.in_order(now, &mut self.rcv, len, &self.cfg);
            return Delivered::InOrder { frame, octets: seg.payload.clone() };
        }
        self.take_payload_slow(now, seg, frame)
    }

    fn take_payload_slow(&mut self, now: Instant, seg: &Segment, frame: R) -> Delivered<R> {
        if !self.state.receives() {
            // Beyond the peer's FIN, or after the connection's end.
            return Delivered::Nothing;
        }
        let mut octets = seg.payload.clone();
        let mut start = seg.seq;
        let mut end = start + seq_len(&octets);
        let mut dsack = None;
        if start < self.rcv.nxt {
            // The head was received before: the first copy wins.
            let known = (self.rcv.nxt - start).min(end - start);
            dsack = Some((start, start + known)).filter(|_| known > 0);
            octets.start += known as usize;
            start = self.rcv.nxt;
            end = end.max(start);
        }
        let right = self.rcv.fin.map_or(self.rcv.edge, |fin| self.rcv.edge.min(fin));
        if end > right {
            let beyond = (end - right).min(end - start);
            octets.end -= beyond as usize;
            end = end - beyond;
        } else if seg.flags.has(Flags::FIN) && self.rcv.fin.is_none() {
            self.rcv.fin = Some(end);
        }
        if octets.is_empty() {
            self.take_fin();
            self.ack.out_of_order(dsack.filter(|_| self.sack));
            return Delivered::Nothing;
        }
        if self.receive_shut {
            self.abort();
            return Delivered::Nothing;
        }
        if start != self.rcv.nxt {
            self.hold_early(start, octets, frame);
            return Delivered::Nothing;
        }
        // What is held already stays the first copy.
        if let Some(first) = self.reassembly.first().filter(|first| *first < end) {
            let first = first.max(start);
            octets.end -= (end - first) as usize;
            end = first;
        }
        if octets.is_empty() {
            return Delivered::Nothing;
        }
        let gap_filled = !self.reassembly.is_empty();
        self.rcv.nxt = end;
        self.stats.octets_in += octets.len() as u64;
        self.ack.moved();
        self.ack.in_order(now, &mut self.rcv, seq_len(&octets), &self.cfg);
        self.ack.due |= gap_filled;
        if dsack.is_some() && self.sack {
            self.ack.out_of_order(dsack);
        }
        self.take_fin();
        Delivered::InOrder { frame, octets }
    }

    fn hold_early(&mut self, start: Seq, octets: Range<usize>, frame: R) {
        let block = (start, start + seq_len(&octets));
        let mut dsack = None;
        match self.reassembly.insert(start, octets, frame) {
            Insertion::Held => self.stats.held += 1,
            Insertion::Full => self.stats.held_overflow += 1,
            Insertion::Duplicate => {
                self.stats.duplicates_in += 1;
                dsack = self.sack.then_some(block);
            }
        }
        self.ack.out_of_order(dsack);
    }

    /// Takes the peer's FIN once everything before it is here.
    #[inline]
    fn take_fin(&mut self) {
        if self.rcv.finished || self.rcv.fin != Some(self.rcv.nxt) {
            return;
        }
        self.rcv.finished = true;
        self.rcv.nxt += 1;
        self.rcv.edge = self.rcv.edge.max(self.rcv.nxt);
        self.ack.due = true;
        self.step(Event::Fin);
        self.notify(Notice::PeerClosed);
        if self.state == State::TimeWait {
            self.linger(self.heard_at);
        }
    }
}

/// Octets of sequence space that a range in a frame takes.
#[expect(clippy::cast_possible_truncation, reason = "a payload is below 64 KiB")]
#[inline]
fn seq_len(octets: &Range<usize>) -> u32 {
    octets.len() as u32
}
