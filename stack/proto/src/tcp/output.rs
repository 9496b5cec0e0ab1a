//! Segments out: what is due, and the frames themselves.

use super::recovery::{Phase, Probe};
use super::send::Fin;
use super::state::State;
use super::{Moment, NEVER, Plan, Ready, Tcb, Transmit};
use crate::device::{Retained, RxFrame};
use crate::time::Instant;
use crate::wire::seq::Seq;
use crate::wire::tcp::{Ecn, Fields, Flags, Options};

/// Shortest piece that a record is cut into, unless the window is smaller.
const PIECE_MIN: u32 = 128;

/// Frames of headers only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    /// The connection's end.
    Reset,
    /// Answers a segment that makes no sense.
    StrayReset(Seq),
    /// SYN or SYN-ACK, by the state.
    Syn,
    /// ACK.
    Ack,
    /// FIN, with the ACK.
    Fin,
    /// Below the peer's window: makes it answer.
    Probe,
}

/// Which octets are copied from retained frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resend {
    /// Record on the scoreboard.
    index: u32,
    /// Payload octets; less than the record has if it is to be cut.
    len: u32,
    why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// The record is lost.
    Lost,
    /// Tail-loss probe.
    Tail,
    /// The record was written when the window did not admit it, and is now sent first.
    Unsent,
}

impl Resend {
    #[expect(clippy::cast_possible_truncation, reason = "records are counted in 16 bits")]
    const fn new(index: usize, len: u32, why: Why) -> Self {
        Self { index: index as u32, len, why }
    }

    /// A tail-loss probe.
    pub(super) const fn tail(index: usize, len: u32) -> Self {
        Self::new(index, len, Why::Tail)
    }

    pub(super) const fn payload_len(self) -> usize {
        self.len as usize
    }
}

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// What to send next. To be called until `Idle` (or the end of a budget), after a burst of
    /// segments was handled, after a timeout, and when the upper layer has something new; each
    /// answer is carried out before the next call on this connection.
    ///
    /// `ready` is what the upper layer has to send. It matters also while the window is closed: it
    /// starts the timer that probes it.
    ///
    /// Order: what ends or begins a connection; ACKs that count alone (SACK, duplicates); lost
    /// records; fresh ones, which carry other ACKs; FIN; probes; the ACK.
    #[inline]
    pub fn next_transmit(&mut self, now: Instant, ready: Ready) -> Transmit {
        match self.plan_calm(now, ready) {
            Some(Transmit::Control) => self.plan_control(Control::Ack),
            Some(transmit) => transmit,
            None => {
                let transmit = self.plan_any(now, ready);
                self.refresh();
                transmit
            }
        }
    }

    /// Whatever is due, in any state.
    fn plan_any(&mut self, now: Instant, ready: Ready) -> Transmit {
        if let Some(control) = self.urgent_control() {
            return self.plan_control(control);
        }
        if self.state.sends() {
            if (self.due.tail || self.recovery.prefers_fresh())
                && let Some(transmit) = self.plan_unusual(now, ready)
            {
                return transmit;
            }
            if let Some(resend) = self.choose_resend(now) {
                return self.plan_resend(resend);
            }
            if let Ready::Record(len) = ready {
                if let Some(room) = self.fresh_room(now, len) {
                    return Transmit::Fresh { room: room as usize };
                }
            } else if self.board.unsent().is_none() {
                if self.snd.fin == Fin::Due {
                    if self.fin_may_go(now) {
                        return self.plan_control(Control::Fin);
                    }
                } else {
                    // Nothing waits for the window any more.
                    self.rare.persist = NEVER;
                }
            }
            if self.due.probe {
                return self.plan_control(Control::Probe);
            }
        }
        if self.rcv.due {
            return self.plan_control(Control::Ack);
        }
        Transmit::Idle
    }

    fn plan_control(&mut self, control: Control) -> Transmit {
        self.plan = Plan::Control(control);
        self.calm.end();
        Transmit::Control
    }

    #[inline]
    fn urgent_control(&self) -> Option<Control> {
        if let Some(seq) = self.due.stray_reset {
            return Some(Control::StrayReset(seq));
        }
        if self.due.reset {
            return Some(Control::Reset);
        }
        if self.due.syn {
            return Some(Control::Syn);
        }
        (self.rcv.pure && self.rcv.due).then_some(Control::Ack)
    }

    /// Our FIN may leave: after all that is before it, and in the window, where it takes an octet.
    /// A peer whose window is closed may drop it as if it lay beyond, and all that we acknowledge
    /// behind it.
    fn fin_may_go(&mut self, now: Instant) -> bool {
        if self.own.fin_seq.is_none() && self.snd.usable() == 0 {
            self.arm_persist(now);
            return false;
        }
        self.rare.persist = NEVER;
        // After a timeout it goes again once all before it has.
        !self.board.resend_waits()
    }

    /// What goes before lost records and past the congestion window: a tail-loss probe, and the new
    /// segments of F-RTO (RFC 5682 section 3.1, step 2).
    #[cold]
    fn plan_unusual(&mut self, now: Instant, ready: Ready) -> Option<Transmit> {
        if self.due.tail {
            return self.plan_probe(now, ready);
        }
        if let Ready::Record(len) = ready
            && let Some(room) = self.fresh_room(now, len)
        {
            return Some(Transmit::Fresh { room: room as usize });
        }
        self.recovery.without_fresh();
        None
    }

    /// True if congestion window and pacing admit `len` octets now. With nothing in the network one
    /// segment always may go, and a tail-loss probe whatever they say.
    ///
    /// What waits for its burst waits for the window: that is where the rate comes from. Where a
    /// peer acknowledges whole bursts at a time the window would otherwise hardly ever count as
    /// used.
    fn cwnd_admits(&mut self, now: Instant, len: u32) -> bool {
        let pipe = self.pipe();
        let admits = (pipe == 0 || pipe + len <= self.cc.window()) && !self.is_paced(now);
        self.cc.limited |= !admits;
        self.due.tail || admits
    }

    fn choose_resend(&mut self, now: Instant) -> Option<Resend> {
        if let Some(index) = self.board.next_lost()
            && !self.recovery.holds_back()
        {
            let record = self.board.get(index)?;
            if index == 0 {
                let (seq, len) = (record.seq, record.len);
                self.watch_front(now, seq, len);
            }
            let record = self.board.get(index)?;
            let len = record.len.min(u32::from(self.emss));
            // The first record goes out even if the window shrank below it.
            let in_window = index == 0 || record.end() <= self.snd.una + self.snd.wnd;
            let admitted = self.recovery.first_due || self.cwnd_admits(now, len);
            return (in_window && admitted).then(|| Resend::new(index, len, Why::Lost));
        }
        let index = self.board.unsent()?;
        self.choose_unsent(now, index)
    }

    /// A record that waits for the window: whole if it fits, in pieces by the silly-window rule.
    #[cold]
    pub(super) fn choose_unsent(&mut self, now: Instant, index: usize) -> Option<Resend> {
        let len = self.board.get(index)?.len.min(u32::from(self.emss));
        let usable = self.snd.usable();
        let len = if len <= usable {
            len
        } else if self.is_worth_cutting(usable) {
            usable
        } else {
            self.arm_persist(now);
            return None;
        };
        self.cwnd_admits(now, len).then(|| Resend::new(index, len, Why::Unsent))
    }

    /// The sender's silly-window rule (RFC 9293 section 3.8.6.2.1, Nagle off) for a record that
    /// does not fit the window's `usable` octets: they are used if they are half of what the peer
    /// has ever offered, or if the timer has run out on a larger offer; and not for a crumb, unless
    /// the peer has nothing more to offer.
    fn is_worth_cutting(&self, usable: u32) -> bool {
        usable > 0
            && (self.override_silly || usable >= self.snd.max_wnd / 2)
            && (usable >= PIECE_MIN || usable == self.snd.wnd)
    }

    /// Room for a new record, if one of `len` octets may leave: it fits, or is worth cutting.
    #[inline]
    pub(super) fn fresh_room(&mut self, now: Instant, len: u32) -> Option<u32> {
        if self.own.fin_seq.is_some()
            || (self.board.resend_waits() && !self.recovery.prefers_fresh())
            || self.board.len() >= self.cfg.max_records.into()
            || self.board.unsent().is_some()
        {
            return None;
        }
        let usable = self.snd.usable();
        if usable < len.min(u32::from(self.emss)) && !self.is_worth_cutting(usable) {
            self.arm_persist(now);
            return None;
        }
        if self.snd.flight() == 0 && self.sent_at.age(now) > self.rtt.rto(&self.cfg) {
            self.wake_clock(now);
            if self.cfg.idle_restart {
                self.cc.on_idle(u32::from(self.emss));
            }
        }
        if !self.cwnd_admits(now, u32::from(self.emss)) {
            return None;
        }
        if len > u32::from(self.emss)
            && self.pmtu.wants_probe(now)
            && let Some(room) = self.probe_room(now, usable)
        {
            return Some(room);
        }
        Some(usable.min(u32::from(self.emss)))
    }

    /// After [`Transmit::Control`]: writes the frame to `buf` and returns its length; 0 if
    /// nothing was announced.
    ///
    /// # Panics
    /// If `buf` is shorter than the frame; [`crate::wire::tcp::MAX_HEADER_LEN`] always suffices.
    pub fn write_control(&mut self, now: Instant, buf: &mut [u8]) -> usize {
        let Plan::Control(control) = core::mem::replace(&mut self.plan, Plan::Nothing) else {
            return 0;
        };
        self.wake_clock(now);
        let fields = match control {
            Control::StrayReset(seq) => {
                self.due.stray_reset = None;
                Fields { seq, flags: Flags::RST, ..Fields::default() }
            }
            Control::Reset => {
                self.due.reset = false;
                Fields {
                    seq: self.snd.nxt,
                    ack: self.rcv.nxt,
                    flags: Flags::RST | Flags::ACK,
                    options: Options::timestamps(self.timestamps(now)),
                    ..Fields::default()
                }
            }
            Control::Syn => self.syn_fields(now),
            Control::Ack => match self.ecn.take_owed() {
                Some((ack, echo)) => self.owed_ack_fields(now, ack, echo),
                None => self.ack_fields(now, self.snd.nxt, Flags::ACK),
            },
            Control::Probe => {
                self.due.probe = false;
                self.stats.probes += 1;
                self.ack_fields(now, self.snd.una - 1, Flags::ACK)
            }
            Control::Fin => {
                let seq = *self.own.fin_seq.get_or_insert(self.snd.nxt);
                self.snd.nxt = seq + 1;
                self.snd.fin = Fin::Sent;
                self.busy(now);
                self.arm_tail(now);
                self.ack_fields(now, seq, Flags::FIN | Flags::ACK)
            }
        };
        self.count_segment();
        self.refresh();
        self.template.emit(buf, &fields, 0, self.cfg.checksum)
    }

    #[inline]
    const fn count_segment(&mut self) {
        self.traffic.segments_out = self.traffic.segments_out.wrapping_add(1);
    }

    fn syn_fields(&mut self, now: Instant) -> Fields {
        self.due.syn = false;
        if self.retries == 0 {
            self.sent_at = Moment::of(now);
            self.round.begin(now, Seq(0));
        }
        self.snd.nxt = self.own.iss + 1;
        self.busy(now);
        let answers = self.state == State::SynReceived;
        let flags = if answers {
            Flags::SYN | Flags::ACK | self.ecn.syn_ack_flags()
        } else {
            Flags::SYN | self.ecn.syn_flags(self.cfg.ecn, self.retries > 0)
        };
        let ts = self.timestamps(now);
        Fields {
            seq: self.own.iss,
            ack: if answers { self.rcv.nxt } else { Seq(0) },
            flags,
            window: self.limits.syn_window(),
            options: Options {
                mss: Some(self.cfg.mss),
                wscale: self.scaling.then_some(self.rcv.wscale),
                sack_permitted: self.sack,
                ts,
                ..Options::default()
            },
            ..Fields::default()
        }
    }

    /// A pure ACK, or a FIN or probe, with all that an ACK may report.
    fn ack_fields(&mut self, now: Instant, seq: Seq, flags: Flags) -> Fields {
        let ts = self.timestamps(now);
        let mut options = Options::timestamps(ts);
        let mut more = false;
        if self.sack && (self.reports.any() || !self.reassembly.is_empty()) {
            let max = if ts.is_some() { 3 } else { 4 };
            // Octets received twice first, then the run they are in (RFC 2883 section 4).
            let twice = self.reports.take();
            let around = twice.and_then(|block| self.reassembly.run_of(block.0));
            options.sack.extend(twice.into_iter().chain(around));
            more = self.reassembly.report(&mut options.sack, max);
        }
        let more = more || self.reports.any();
        self.rcv.sent_pure(&mut self.timers, self.sack, more);
        let (ack, window) = (self.rcv.nxt, self.rcv.offer());
        let flags = flags | self.ecn.echo;
        Fields { seq, ack, flags, window, options, ..Fields::default() }
    }

    #[inline]
    pub(super) fn timestamps(&self, now: Instant) -> Option<(u32, u32)> {
        self.ts_on.then(|| (self.ts.value(now), self.ts.recent))
    }

    #[inline]
    fn data_fields(&mut self, now: Instant, seq: Seq, push: bool) -> Fields {
        self.rcv.carried(&mut self.timers);
        Fields {
            seq,
            ack: self.rcv.nxt,
            flags: if push { Flags::ACK | Flags::PSH } else { Flags::ACK } | self.ecn.echo,
            window: self.rcv.offer(),
            ecn: Ecn::NotCapable,
            options: Options::timestamps(self.timestamps(now)),
        }
    }

    /// Something that will be acknowledged leaves now.
    #[inline]
    fn busy(&mut self, now: Instant) {
        if self.timers.rto == NEVER {
            self.timers.rto = now + self.rtt.rto(&self.cfg);
            self.progress_at = Moment::of(now);
        }
    }

    /// After [`Transmit::Resend`]: writes to `buf` the frame with a linear copy of the octets and
    /// headers of now, and returns its length; 0 if nothing was announced.
    ///
    /// # Panics
    /// If `buf` is shorter than headers and payload.
    pub fn write_resend(&mut self, now: Instant, buf: &mut [u8]) -> usize {
        let Plan::Resend(resend) = core::mem::replace(&mut self.plan, Plan::Nothing) else {
            return 0;
        };
        let Resend { index, len, why } = resend;
        let index = index as usize;
        if let Some(record) = self.board.get(index).filter(|record| len < record.len) {
            let seq = record.seq;
            self.board.cut(index, len);
            self.stats.cuts += 1;
            self.note_cut(now, seq);
        }
        let header_len = self.header_len();
        let Some(record) = self.board.get(index) else { return 0 };
        let (seq, end) = (record.seq, record.end());
        let (offset, payload_len) = (record.offset as usize, len as usize);
        buf[header_len..header_len + payload_len]
            .copy_from_slice(&record.frame.octets()[offset..offset + payload_len]);
        let is_last = index + 1 == self.board.len();
        let mut fields = self.data_fields(now, seq, is_last);
        match why {
            Why::Lost => {
                self.stats.resends += 1;
                self.board.resent(now, index, self.sack);
                if index == 0 {
                    self.note_copy(seq);
                }
                self.credit.spend(len);
                self.recovery.on_resend(self.ts.value(now));
                self.recovery.on_sent(len);
                if index == 0 && self.recovery.phase == Phase::Fast {
                    // The timer is that of the first record's latest transmission.
                    self.timers.rto = now + self.rtt.rto(&self.cfg);
                }
            }
            Why::Tail => {
                self.board.resent(now, index, true);
                self.note_probe(now, Probe::Again, Some(seq));
            }
            Why::Unsent => {
                self.ecn.mark_fresh(&mut fields);
                self.board.sent(now, index);
                self.busy(now);
                self.first_sent(now, end);
            }
        }
        self.count_segment();
        self.refresh();
        self.template.emit(buf, &fields, payload_len, self.cfg.checksum)
    }

    /// After [`Transmit::Fresh`]: writes the headers in front of `payload_len` octets that lie in
    /// `buf` at [`Tcb::header_len`], and returns the frame's length. [`Tcb::sent`] must follow.
    ///
    /// `push` says that nothing is ready behind it: the peer is not to wait for more (PSH, RFC 9293
    /// section 3.9.1.2). Nothing is written if the window or the segment size does not admit so
    /// much; `sent` will say so.
    ///
    /// # Panics
    /// If `buf` is shorter than headers and payload.
    #[expect(clippy::cast_possible_truncation, reason = "a payload is below 64 KiB")]
    #[inline]
    pub fn write_fresh(
        &mut self,
        now: Instant,
        buf: &mut [u8],
        payload_len: usize,
        push: bool,
    ) -> usize {
        debug_assert!(0 < payload_len);
        if !self.calm_admits(payload_len as u32) && !self.admits_whole(payload_len as u32) {
            return self.header_len() + payload_len;
        }
        let fields = if self.calm.sends() {
            self.calm_fields(now, push)
        } else {
            let mut fields = self.data_fields(now, self.snd.nxt, push);
            self.ecn.mark_fresh(&mut fields);
            fields
        };
        self.count_segment();
        self.template.emit(buf, &fields, payload_len, self.cfg.checksum)
    }

    /// Right after [`Tcb::write_fresh`]: keeps the record until it is acknowledged. `retained` is
    /// the frame just written.
    ///
    /// True: transmit the frame now. False: the window or the peer's segment size does not admit
    /// the record; drop the frame, its octets go out by [`Transmit::Resend`] in pieces or when the
    /// window opens.
    #[expect(clippy::cast_possible_truncation, reason = "a payload is below 64 KiB")]
    #[must_use]
    #[inline]
    pub fn sent(&mut self, now: Instant, retained: T, payload_len: usize) -> bool {
        let len = payload_len as u32;
        let offset = self.header_len() as u32;
        if self.calm_admits(len) {
            self.sent_calm(now, retained, len, offset);
            return true;
        }
        let admitted = self.sent_any(now, retained, len, offset);
        self.refresh();
        admitted
    }

    #[cold]
    fn sent_any(&mut self, now: Instant, retained: T, len: u32, offset: u32) -> bool {
        let admitted = self.admits_whole(len);
        let seq = self.snd.nxt;
        self.board.push(now, seq, len, offset, retained, admitted);
        if admitted {
            if len > u32::from(self.emss) {
                self.probe_sent(seq, len);
            }
            self.busy(now);
            self.first_sent(now, seq + len);
        }
        admitted
    }

    /// A record of `len` octets may leave now in one segment. A peer may tell a segment size below
    /// the shortest record that MPA makes.
    #[inline]
    fn admits_whole(&self, len: u32) -> bool {
        len <= self.snd.usable() && (len <= u32::from(self.emss) || self.pmtu.admits(len))
    }

    /// Octets up to `end` were sent for the first time.
    #[inline]
    fn first_sent(&mut self, now: Instant, end: Seq) {
        let octets = end - self.snd.nxt;
        self.recovery.on_sent(octets);
        self.credit.spend(octets);
        self.snd.nxt = end;
        self.sent_at = Moment::of(now);
        self.override_silly = false;
        self.rare.persist = NEVER;
        if self.due.tail {
            self.note_probe(now, Probe::Fresh, None);
        }
        self.recovery.on_fresh();
        self.arm_tail(now);
        // In slow start a window half used still counts: it will be full in a round trip.
        let pipe = self.pipe();
        let window = self.cc.window();
        self.cc.limited =
            pipe + u32::from(self.emss) > window || (self.cc.in_slow_start() && pipe > window / 2);
    }
}
