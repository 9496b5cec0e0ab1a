//! Segments out: the frames themselves, as planned.

#[cfg(doc)]
use super::Transmit;
use super::plan::{Control, Resend, Why};
use super::recovery::{Phase, Probe};
use super::send::Fin;
use super::state::State;
use super::{Moment, NEVER, Plan, Tcb};
use crate::device::{Retained, RxFrame};
use crate::time::Instant;
use crate::wire::seq::Seq;
use crate::wire::tcp::{Ecn, Fields, Flags, Options};

impl<R: RxFrame, T: Retained> Tcb<R, T> {
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
                self.stats.record().probes += 1;
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
            more = self.reassembly.report(self.rcv.nxt, &mut options.sack, max);
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
            self.stats.record().cuts += 1;
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
                self.stats.record().resends += 1;
                self.board.resent(now, index, self.sack);
                if index == 0 {
                    self.note_copy(seq);
                }
                self.resent_at = Moment::of(now);
                self.credit.spend(len);
                self.recovery.on_resend(self.ts.value(now));
                self.recovery.on_sent(len);
                if index == 0 && self.recovery.phase == Phase::Fast {
                    // The timer is that of the first record's latest transmission.
                    self.timers.rto = now + self.rtt.rto(&self.cfg);
                }
            }
            Why::Tail => {
                self.resent_at = Moment::of(now);
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
