//! Transmit scheduling: selects the next segment to send, among control segments, lost records and
//! new ones, and checks the windows.

use super::pacing::PacingCredit;
use super::send::Fin;
use crate::device::{Retained, RxFrame};
use crate::tcp::Tcb;
use crate::tcp::recovery::ca_state::CaState;
use crate::time::{Instant, NEVER};
use crate::wire::seq::Seq;

/// Shortest sub-segment that a record is split into, unless the window is smaller.
const SPLIT_MIN: u32 = 128;

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Returns the plan of the next frame. To be called until `Idle` (or the end of a budget),
    /// after a burst of segments was processed, after a timeout, and when the upper layer has new
    /// data. A plan is valid until the next call on this connection: the call that takes it carries
    /// it out. One that is dropped, for lack of a frame, is made again later.
    ///
    /// `ready` is the data that the upper layer has to send. It is also needed while the window is
    /// closed, as it starts the persist timer.
    ///
    /// Order: RST and SYN; ACKs that must be sent alone (SACK, duplicate ACKs); lost records; new
    /// ones, which carry other ACKs; FIN; probes; the ACK.
    // Where it is called, all but the fast plan is behind calls.
    #[inline(always)]
    pub fn next_transmit(&mut self, now: Instant, ready: TxDemand) -> Transmit {
        match self.plan_fast(now, ready) {
            // While data is out of order the ACK reports SACK blocks.
            Some(Transmit::Control(_)) if !self.is_plain_ack_due() => plan_control(Control::Ack),
            Some(transmit) => transmit,
            None => {
                let mut transmit = self.plan_slow(now, ready);
                self.update_fast_path();
                // The slow path has refreshed what the fast one tests: the segment may take that.
                if let Transmit::NewData(plan) = &mut transmit {
                    plan.is_fast = self.fast_path_takes(plan.capacity);
                }
                transmit
            }
        }
    }

    /// Selects what to send, in any state.
    fn plan_slow(&mut self, now: Instant, ready: TxDemand) -> Transmit {
        // RST and SYN before all, and ACKs that carry SACK blocks or count as duplicates.
        if let Some(control) = self.urgent_control() {
            return plan_control(control);
        }
        if self.state.can_send() {
            // RFC 8985 section 7.3 and RFC 5682 section 3.1, step 2: a probe, or two new segments.
            if (self.pending.tlp || self.recovery.prefers_new_data())
                && let Some(transmit) = self.plan_tlp_or_frto(now, ready)
            {
                return transmit;
            }
            // RFC 6675 section 4, NextSeg() rule 1: lost records before new ones.
            if let Some(retransmit) = self.choose_retransmit(now) {
                return Transmit::Retransmit(retransmit);
            }
            // NextSeg() rule 2: new data, as far as both windows admit it; else our FIN.
            if let TxDemand::Record(len) = ready {
                if let Some(capacity) = self.new_data_capacity(now, len) {
                    return Transmit::NewData(NewDataPlan::new(capacity));
                }
            } else if self.scoreboard.unsent().is_none() {
                if self.snd.fin == Fin::Due {
                    if self.can_send_fin(now) {
                        return plan_control(Control::Fin);
                    }
                } else {
                    // No data waits for the window any more.
                    self.rare.persist = NEVER;
                }
            }
            // RFC 9293 sections 3.8.4 and 3.8.6.1: keepalive and zero-window probe.
            if self.pending.probe {
                return plan_control(Control::Probe);
            }
        }
        // RFC 9293 section 3.8.6.3: an ACK that nothing else carried.
        if self.rcv.ack_now {
            return plan_control(Control::Ack);
        }
        Transmit::Idle
    }

    #[inline]
    fn urgent_control(&self) -> Option<Control> {
        if let Some(seq) = self.pending.stray_reset {
            return Some(Control::StrayReset(seq));
        }
        if self.pending.reset {
            return Some(Control::Reset);
        }
        if self.pending.syn {
            return Some(Control::Syn);
        }
        (self.rcv.pure_ack && self.rcv.ack_now).then_some(Control::Ack)
    }

    /// True if our FIN may be sent: after everything before it, and within the window, of which it
    /// takes one sequence number. If the window is closed, the peer may drop the FIN as out of the
    /// window, and all our ACKs after it, as their sequence number is beyond.
    fn can_send_fin(&mut self, now: Instant) -> bool {
        if self.local.fin_seq.is_none() && self.snd.usable() == 0 {
            self.arm_persist(now, 1);
            return false;
        }
        self.rare.persist = NEVER;
        // After a timeout it is retransmitted once everything before it was.
        !self.scoreboard.needs_retransmit()
    }

    /// Selects what is sent before lost records: a tail loss probe, which may exceed the congestion
    /// window, and the new segments of F-RTO (RFC 5682 section 3.1, step 2).
    #[cold]
    fn plan_tlp_or_frto(&mut self, now: Instant, ready: TxDemand) -> Option<Transmit> {
        if self.pending.tlp {
            return self.plan_tlp(now, ready);
        }
        if let TxDemand::Record(len) = ready
            && let Some(capacity) = self.new_data_capacity(now, len)
        {
            return Some(Transmit::NewData(NewDataPlan::new(capacity)));
        }
        self.recovery.on_no_new_data();
        None
    }

    /// Selects the probe: a new segment if there is one and the peer's window admits it, else the
    /// last record again (RFC 8985 section 7.3). Returns `None` if it is no longer needed.
    #[cold]
    fn plan_tlp(&mut self, now: Instant, ready: TxDemand) -> Option<Transmit> {
        if !self.scoreboard.is_clean() {
            // No frame was available when it was due, and the peer has reported by SACK what is
            // missing since.
            self.pending.tlp = false;
            return None;
        }
        if let Some(index) = self.scoreboard.unsent()
            && let Some(retransmit) = self.choose_unsent(now, index)
        {
            return Some(Transmit::Retransmit(retransmit));
        }
        if let TxDemand::Record(len) = ready
            && let Some(capacity) = self.new_data_capacity(now, len)
        {
            return Some(Transmit::NewData(NewDataPlan::new(capacity)));
        }
        let last = self.scoreboard.sent_count().checked_sub(1);
        let last_record = last.and_then(|index| Some((index, self.scoreboard.get(index)?)));
        if let Some((mut index, record)) = last_record
            && self.recovery.ca_state == CaState::Open
            && (index == 0 || record.end() <= self.snd.una + self.snd.wnd)
        {
            let (seq, mut len) = (record.seq, record.len);
            if len > u32::from(self.emss) {
                // The segment size has decreased, or the record was a path MTU probe: only its end
                // is sent.
                self.scoreboard.update(|records| records.split(index, len - u32::from(self.emss)));
                self.stats.record().resegments += 1;
                self.on_split(now, seq);
                (index, len) = (index + 1, u32::from(self.emss));
            }
            return Some(Transmit::Retransmit(RetransmitPlan::tlp(index, len)));
        }
        self.pending.tlp = false;
        None
    }

    /// True if the congestion window and pacing admit `len` bytes now. The window always admits one
    /// segment with nothing in the network. A tail loss probe is always admitted.
    ///
    /// A segment delayed by pacing counts as cwnd-limited, as the rate is derived from the window.
    /// With a peer that acknowledges whole bursts at a time, the window would otherwise hardly ever
    /// count as used.
    fn cwnd_admits(&mut self, now: Instant, len: u32) -> bool {
        if self.snd.flight() == 0 {
            self.pacing_credit = PacingCredit::IDLE_BURST;
        }
        let pipe = self.pipe();
        let admits = (pipe == 0 || pipe + len <= self.cc.cwnd()) && !self.is_paced(now);
        self.cc.cwnd_limited |= !admits;
        self.pending.tlp || admits
    }

    fn choose_retransmit(&mut self, now: Instant) -> Option<RetransmitPlan> {
        if let Some(index) = self.scoreboard.update(|records| records.next_lost())
            && !self.recovery.defers_retransmit()
        {
            let record = self.scoreboard.get(index)?;
            let (seq, len, end) = (record.seq, record.len, record.end());
            // RFC 8899 section 4.3: the check may lower EMSS.
            if index == 0 {
                self.check_black_hole(now, seq, len);
            }
            // req: DDP-019
            let len = len.min(u32::from(self.emss));
            // The first record is sent even if the window has shrunk below it.
            let in_window = index == 0 || end <= self.snd.una + self.snd.wnd;
            let admitted = self.recovery.force_retransmit || self.cwnd_admits(now, len);
            return (in_window && admitted)
                .then(|| RetransmitPlan::new(index, len, RetransmitReason::Lost));
        }
        let index = self.scoreboard.unsent()?;
        self.choose_unsent(now, index)
    }

    /// Selects the record that waits for the window: whole if it fits, else in sub-segments by the
    /// rule of SWS avoidance.
    #[cold]
    fn choose_unsent(&mut self, now: Instant, index: usize) -> Option<RetransmitPlan> {
        // req: MPA-040, MPA-120
        let whole = self.scoreboard.get(index)?.len.min(u32::from(self.emss));
        let usable = self.snd.usable();
        let len = if whole <= usable {
            whole
        } else if self.sws_admits(usable) {
            usable
        } else {
            self.arm_persist(now, whole);
            return None;
        };
        self.cwnd_admits(now, len)
            .then(|| RetransmitPlan::new(index, len, RetransmitReason::Unsent))
    }

    /// Sender's SWS avoidance (RFC 9293 section 3.8.6.2.1, without Nagle) for a record that does
    /// not fit into the `usable` bytes of the window. They are used if they are at least half of
    /// the largest window advertised, or if the persist timer has expired. A tinygram is sent only
    /// if the whole window is that small.
    #[doc(alias = "Nagle")]
    #[doc(alias = "SWS avoidance")]
    #[doc(alias = "silly window syndrome")]
    fn sws_admits(&self, usable: u32) -> bool {
        usable > 0
            && (self.sws_override || usable >= self.snd.max_wnd / 2)
            && (usable >= SPLIT_MIN || usable == self.snd.wnd)
    }

    /// Returns the capacity for a new record of `len` bytes, if one may be sent: it fits, or is
    /// worth splitting.
    #[inline]
    fn new_data_capacity(&mut self, now: Instant, len: u32) -> Option<u32> {
        if self.local.fin_seq.is_some()
            || (self.scoreboard.needs_retransmit() && !self.recovery.prefers_new_data())
            || self.scoreboard.len() >= self.cfg.max_records.into()
            || self.scoreboard.unsent().is_some()
        {
            return None;
        }
        let usable = self.snd.usable();
        if usable < len.min(u32::from(self.emss)) && !self.sws_admits(usable) {
            self.arm_persist(now, len);
            return None;
        }
        // Retransmissions count: the time until a probe has repaired a lost tail is not idle.
        let sent_before = self.last_tx_at.age(now).min(self.last_retransmit_at.age(now));
        // RFC 5681 section 4.1 assumes an RTO of at least a second. With one that follows the round
        // trip down to milliseconds, the window would be reset between one message and the next,
        // while the peer prepares its response.
        let idle = self.rtt.rto(&self.cfg).max(self.cfg.rto_initial_ns);
        if self.snd.flight() == 0 && sent_before > idle {
            self.advance_ts_clock(now);
            if self.cfg.idle_restart {
                self.cc.on_idle(u32::from(self.emss));
            }
        }
        if !self.cwnd_admits(now, u32::from(self.emss)) {
            return None;
        }
        if len > u32::from(self.emss)
            && self.pmtu.wants_probe(now)
            && let Some(capacity) = self.pmtu_probe_capacity(now, usable)
        {
            return Some(capacity);
        }
        Some(usable.min(u32::from(self.emss)))
    }
}

const fn plan_control(control: Control) -> Transmit {
    Transmit::Control(ControlPlan { control })
}

/// Data that the upper layer has to send. See [`Tcb::next_transmit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxDemand {
    /// No data.
    Nothing,
    /// A record, with its length in bytes if no limit shortens it. The length decides whether a
    /// small window suffices.
    Record(u32),
}

/// Frame that the connection has to send, with its plan. See [`Tcb::next_transmit`].
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Transmit {
    /// Nothing to send now.
    Idle,
    /// Frame without payload (SYN, SYN-ACK, ACK, FIN, probe, RST): [`Tcb::write_control`].
    Control(ControlPlan),
    /// Bytes written before, lost or not sent yet: [`Tcb::write_retransmit`].
    Retransmit(RetransmitPlan),
    /// A new record: [`Tcb::send_new_data`].
    NewData(NewDataPlan),
}

/// Plan of a new record, which the windows admit now: for [`Tcb::send_new_data`].
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct NewDataPlan {
    capacity: u32,
    /// Header prediction sends the record: only data and its ACKs are to be sent.
    is_fast: bool,
}

impl NewDataPlan {
    #[inline]
    const fn new(capacity: u32) -> Self {
        Self { capacity, is_fast: false }
    }

    /// Plan of the fast path, for at most EMSS bytes.
    #[inline]
    pub(in crate::tcp) const fn fast(capacity: u32) -> Self {
        Self { capacity, is_fast: true }
    }

    /// True if the fast path carries it out.
    #[inline]
    pub(super) const fn is_fast(&self) -> bool {
        self.is_fast
    }

    /// Returns the payload bytes admitted: [`Tcb::emss`], less with a small window, more for a path
    /// MTU probe. The announced record fits, unless no larger window is to be expected soon; the
    /// record should then be made to fit. A longer one is accepted and will be split.
    #[inline]
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// True if a record of `len` bytes may be sent now in one segment. The peer's MSS may be below
    /// the length of the shortest record that MPA makes.
    #[inline]
    pub(super) const fn admits(&self, len: u32) -> bool {
        len <= self.capacity
    }
}

/// Plan of a segment without payload: for [`Tcb::write_control`].
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct ControlPlan {
    pub(super) control: Control,
}

/// Control segment, without payload.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Control {
    /// ACK that has no more to report than its number and the window.
    PlainAck,
    /// RST that ends the connection.
    Reset,
    /// RST in reply to an unacceptable acknowledgment.
    StrayReset(Seq),
    /// SYN or SYN-ACK, by the state.
    Syn,
    /// ACK.
    Ack,
    /// FIN with ACK.
    Fin,
    /// Zero-window or keepalive probe: below the peer's window, so that it answers.
    Probe,
}

impl ControlPlan {
    #[inline]
    pub(in crate::tcp) const fn plain_ack() -> Self {
        Self { control: Control::PlainAck }
    }
}

/// Plan of bytes to be sent from a retained frame: for [`Tcb::write_retransmit`].
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct RetransmitPlan {
    /// Index of the record on the scoreboard.
    pub(super) index: u32,
    /// Payload bytes; less than the record has if it is to be split.
    pub(super) len: u32,
    pub(super) reason: RetransmitReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetransmitReason {
    /// The record is lost.
    Lost,
    /// Tail loss probe.
    Tlp,
    /// The record was written when the window did not admit it: this is its first transmission.
    Unsent,
}

impl RetransmitPlan {
    #[expect(clippy::cast_possible_truncation, reason = "records are counted in 16 bits")]
    const fn new(index: usize, len: u32, reason: RetransmitReason) -> Self {
        Self { index: index as u32, len, reason }
    }

    /// Tail loss probe.
    const fn tlp(index: usize, len: u32) -> Self {
        Self::new(index, len, RetransmitReason::Tlp)
    }

    /// Returns the payload bytes of the frame.
    #[must_use]
    pub const fn payload_len(&self) -> usize {
        self.len as usize
    }
}
