//! Construction of outgoing frames, as decided by `transmit_plan`.

use super::send::Fin;
use super::transmit_plan::{Control, ControlPlan, NewDataPlan, RetransmitPlan, RetransmitReason};
use crate::device::{Retained, RxFrame, TxFrame};
use crate::tcp::Tcb;
#[cfg(doc)]
use crate::tcp::Transmit;
use crate::tcp::connection_state::State;
use crate::tcp::recovery::ca_state::CaState;
use crate::tcp::recovery::tlp::TlpProbe;
use crate::tcp::timestamps::CoarseInstant;
use crate::time::{Instant, NEVER};
use crate::wire::seq::Seq;
use crate::wire::tcp::{Ecn, Fields, Flags, Options};

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Carries out the plan of [`Transmit::Control`]: writes the frame to `buf`. Returns its
    /// length.
    ///
    /// # Panics
    /// If `buf` is shorter than the frame; [`crate::wire::tcp::MAX_HEADER_LEN`] always suffices.
    #[expect(clippy::needless_pass_by_value, reason = "a plan is carried out once")]
    pub fn write_control(&mut self, now: Instant, plan: ControlPlan, buf: &mut [u8]) -> usize {
        if plan.control == Control::PlainAck {
            return self.write_plain_ack(now, buf);
        }
        // RFC 7323 section 5.5: our clock skips a long idle time before the first segment after it.
        self.advance_ts_clock(now);
        let fields = match plan.control {
            // RFC 9293 section 3.5.2, group 2: SEG.ACK of what it answers, and no ACK.
            Control::StrayReset(seq) => {
                self.pending.stray_reset = None;
                Fields { seq, flags: Flags::RST, ..Fields::default() }
            }
            // RFC 9293 section 3.10.5: RST at SND.NXT. RFC 7323 section 3.2: it has timestamps.
            Control::Reset => {
                self.pending.reset = false;
                Fields {
                    seq: self.snd.nxt,
                    ack: self.rcv.nxt,
                    flags: Flags::RST | Flags::ACK,
                    options: Options::timestamps(self.timestamps(now)),
                    ..Fields::default()
                }
            }
            // RFC 9293 sections 3.10.1 and 3.10.7.2: SYN at ISS, with ACK in SYN-RECEIVED.
            Control::Syn => self.syn_fields(now),
            // RFC 8257 section 3.2: an ACK for each change of CE; it has ECE as it was then.
            Control::Ack | Control::PlainAck => match self.ecn.pop_owed_ack() {
                Some((ack, echo)) => self.owed_ack_fields(now, ack, echo),
                None => self.ack_fields(now, self.snd.nxt, Flags::ACK),
            },
            // RFC 9293 section 3.8.4: one below SND.UNA, so that the peer answers.
            Control::Probe => {
                self.pending.probe = false;
                self.stats.record().probes += 1;
                self.ack_fields(now, self.snd.una - 1, Flags::ACK)
            }
            // RFC 9293 section 3.10.4: the FIN takes a sequence number, the same each time.
            Control::Fin => {
                let seq = *self.local.fin_seq.get_or_insert(self.snd.nxt);
                self.snd.nxt = seq + 1;
                self.snd.fin = Fin::Sent;
                self.arm_rto(now);
                self.arm_pto(now);
                self.ack_fields(now, seq, Flags::FIN | Flags::ACK)
            }
        };
        self.count_segment();
        self.update_fast_path();
        self.template.emit(buf, &fields, 0, self.cfg.checksum)
    }

    /// If [`Tcb::is_plain_ack_due`], instead of [`Tcb::next_transmit`] and [`Tcb::write_control`]:
    /// writes the ACK to `buf`. Returns its length.
    ///
    /// # Panics
    /// If `buf` is shorter than the frame.
    #[inline]
    pub fn write_plain_ack(&mut self, now: Instant, buf: &mut [u8]) -> usize {
        debug_assert!(self.is_plain_ack_due());
        let header = self.plain_ack_header(now);
        self.count_segment();
        self.template.emit_plain(buf, &header, 0, self.cfg.checksum)
    }

    #[inline]
    const fn count_segment(&mut self) {
        self.segment_counts.segments_out = self.segment_counts.segments_out.wrapping_add(1);
    }

    fn syn_fields(&mut self, now: Instant) -> Fields {
        self.pending.syn = false;
        if self.retries == 0 {
            self.last_tx_at = CoarseInstant::of(now);
            self.rcv_round.start(now, Seq(0));
        }
        self.snd.nxt = self.local.iss + 1;
        self.arm_rto(now);
        let is_syn_ack = self.state == State::SynReceived;
        let flags = if is_syn_ack {
            Flags::SYN | Flags::ACK | self.ecn.syn_ack_flags()
        } else {
            Flags::SYN | self.ecn.syn_flags(self.cfg.ecn, self.retries > 0)
        };
        let ts = self.timestamps(now);
        Fields {
            seq: self.local.iss,
            ack: if is_syn_ack { self.rcv.nxt } else { Seq(0) },
            flags,
            window: self.rcv_limits.syn_window(),
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

    /// Returns the header fields of a pure ACK, FIN or probe, with all SACK blocks that fit.
    fn ack_fields(&mut self, now: Instant, seq: Seq, flags: Flags) -> Fields {
        let ts = self.timestamps(now);
        let mut options = Options::timestamps(ts);
        let mut more = false;
        if self.sack && (self.dsack_queue.has_pending() || !self.assembler.is_empty()) {
            let max = if ts.is_some() { 3 } else { 4 };
            // The D-SACK block first, then the range that contains it (RFC 2883 section 4).
            let dsack = self.dsack_queue.pop();
            let around = dsack.and_then(|block| self.assembler.as_ref()?.range_of(block.0));
            options.sack.extend(dsack.into_iter().chain(around));
            let rcv_nxt = self.rcv.nxt;
            more = self
                .assembler
                .update(|assembler| assembler.fill_sack_blocks(rcv_nxt, &mut options.sack, max));
        }
        let more = more || self.dsack_queue.has_pending();
        self.rcv.on_pure_ack_sent(&mut self.timers, self.sack, more);
        let (ack, window) = (self.rcv.nxt, self.rcv.select_window());
        let flags = flags | self.ecn.ece;
        Fields { seq, ack, flags, window, options, ..Fields::default() }
    }

    #[inline]
    fn data_fields(&mut self, now: Instant, seq: Seq, push: bool) -> Fields {
        self.rcv.on_data_sent(&mut self.timers);
        Fields {
            seq,
            ack: self.rcv.nxt,
            flags: if push { Flags::ACK | Flags::PSH } else { Flags::ACK } | self.ecn.ece,
            window: self.rcv.select_window(),
            ecn: Ecn::NotEct,
            options: Options::timestamps(self.timestamps(now)),
        }
    }

    /// Carries out the plan of [`Transmit::Retransmit`]: writes the frame to `buf`, with a linear
    /// copy of the payload and current headers. Returns its length; 0 if the record was
    /// acknowledged since.
    ///
    /// # Panics
    /// If `buf` is shorter than headers and payload.
    pub fn write_retransmit(
        &mut self,
        now: Instant,
        plan: RetransmitPlan,
        buf: &mut [u8],
    ) -> usize {
        let RetransmitPlan { index, len, reason } = plan;
        let index = index as usize;
        // A record longer than the plan is cut, and its rest is a record of its own.
        if let Some(record) = self.scoreboard.get(index).filter(|record| len < record.len) {
            let seq = record.seq;
            self.scoreboard.update(|records| records.split(index, len));
            self.stats.record().resegments += 1;
            self.on_split(now, seq);
        }
        let header_len = self.header_len();
        // Looked up again, as the split has shortened it. It may also be acknowledged by now.
        let Some(record) = self.scoreboard.get(index) else { return 0 };
        let (seq, end) = (record.seq, record.end());
        let (offset, payload_len) = (record.offset as usize, len as usize);
        buf[header_len..header_len + payload_len]
            .copy_from_slice(&record.frame.bytes()[offset..offset + payload_len]);
        // RFC 9293 section 3.9.1.2: PSH, if no data follows.
        let is_last = index + 1 == self.scoreboard.len();
        let mut fields = self.data_fields(now, seq, is_last);
        match reason {
            // RFC 6675 section 5, step C: marked, and counted in `pipe` again.
            RetransmitReason::Lost => {
                self.stats.record().retransmits += 1;
                self.scoreboard.update(|records| records.mark_retransmitted(now, index, self.sack));
                // RFC 8899 section 4.3: repeated loss of the first record may show a black hole.
                if index == 0 {
                    self.on_head_retransmit(seq);
                }
                self.last_retransmit_at = CoarseInstant::of(now);
                self.pacing_credit.spend(len);
                self.recovery.on_retransmit(self.ts.tsval(now));
                self.recovery.on_sent(len);
                if index == 0 && self.recovery.ca_state == CaState::Recovery {
                    // The RTO runs from the latest transmission of the first record.
                    self.timers.rto = now + self.rtt.rto(&self.cfg);
                }
            }
            // RFC 8985 section 7.3: the probe is not counted as a retransmission of recovery.
            RetransmitReason::Tlp => {
                self.last_retransmit_at = CoarseInstant::of(now);
                self.scoreboard.update(|records| records.mark_retransmitted(now, index, true));
                self.on_tlp_sent(now, TlpProbe::Retransmit, Some(seq));
            }
            // As new data: ECT, no retransmission mark.
            RetransmitReason::Unsent => {
                self.ecn.mark_new_data(&mut fields);
                self.scoreboard.update(|records| records.mark_sent(now, index));
                self.arm_rto(now);
                self.on_new_data_sent(now, end);
            }
        }
        self.count_segment();
        self.update_fast_path();
        self.template.emit(buf, &fields, payload_len, self.cfg.checksum)
    }

    /// Carries out the plan of [`Transmit::NewData`] for the `payload_len` bytes that are in
    /// `frame` at [`Tcb::header_len`]: writes the headers before them, retains the frame, and adds
    /// the record to the scoreboard, until it is acknowledged. The length of the frame was set.
    ///
    /// `push`: no more data is ready, so the peer should not wait for more (PSH, RFC 9293
    /// section 3.9.1.2).
    ///
    /// Returns true if the frame is to be transmitted now. Returns false if the plan does not admit
    /// the record: the caller drops the frame, and its bytes are sent by [`Transmit::Retransmit`],
    /// in parts or when the window opens.
    ///
    /// # Panics
    /// If the frame is shorter than headers and payload.
    #[expect(clippy::cast_possible_truncation, reason = "a payload is below 64 KiB")]
    #[must_use]
    #[inline]
    pub fn send_new_data(
        &mut self,
        now: Instant,
        plan: NewDataPlan,
        frame: &mut impl TxFrame<Retained = T>,
        payload_len: usize,
        push: bool,
    ) -> bool {
        debug_assert!(0 < payload_len);
        let (len, offset) = (payload_len as u32, self.header_len() as u32);
        let is_admitted = plan.admits(len);
        if is_admitted && plan.is_fast() {
            self.send_whole_record(now, plan, frame, payload_len, push);
            return true;
        }
        if is_admitted {
            self.write_new_data(now, frame.buf_mut(), payload_len, push);
        }
        self.on_new_record(now, frame.retain(), len, offset, is_admitted);
        self.update_fast_path();
        is_admitted
    }

    /// As [`Tcb::send_new_data`], of a record that [`Tcb::plan_whole_record`] has admitted.
    ///
    /// # Panics
    /// If the frame is shorter than headers and payload.
    #[expect(clippy::cast_possible_truncation, reason = "a payload is below 64 KiB")]
    #[expect(clippy::needless_pass_by_value, reason = "a plan is carried out once")]
    #[inline(always)]
    pub fn send_whole_record(
        &mut self,
        now: Instant,
        plan: NewDataPlan,
        frame: &mut impl TxFrame<Retained = T>,
        payload_len: usize,
        push: bool,
    ) {
        let (len, offset) = (payload_len as u32, self.header_len() as u32);
        debug_assert!(plan.is_fast() && plan.admits(len), "{plan:?} of {len} bytes");
        debug_assert!(self.fast_path_takes(len), "nothing came between the plan and this call");
        self.count_segment();
        let header = self.fast_path_header(now, push);
        self.template.emit_plain(frame.buf_mut(), &header, payload_len, self.cfg.checksum);
        self.on_sent_fast(now, frame.retain(), len, offset);
    }

    /// Writes the headers of new data off the fast path.
    #[cold]
    fn write_new_data(&mut self, now: Instant, buf: &mut [u8], payload_len: usize, push: bool) {
        self.count_segment();
        let mut fields = self.data_fields(now, self.snd.nxt, push);
        self.ecn.mark_new_data(&mut fields);
        self.template.emit(buf, &fields, payload_len, self.cfg.checksum);
    }

    /// Adds a new record to the scoreboard off the fast path; `is_sent`: it is sent now.
    #[cold]
    fn on_new_record(&mut self, now: Instant, retained: T, len: u32, offset: u32, is_sent: bool) {
        let seq = self.snd.nxt;
        self.scoreboard.push(now, seq, len, offset, retained, is_sent);
        if is_sent {
            if len > u32::from(self.emss) {
                self.on_pmtu_probe_sent(seq, len);
            }
            self.arm_rto(now);
            self.on_new_data_sent(now, seq + len);
        }
    }

    /// Notes that the bytes up to `end` were sent for the first time.
    #[inline]
    fn on_new_data_sent(&mut self, now: Instant, end: Seq) {
        let bytes = end - self.snd.nxt;
        self.recovery.on_sent(bytes);
        self.pacing_credit.spend(bytes);
        self.snd.nxt = end;
        self.last_tx_at = CoarseInstant::of(now);
        self.sws_override = false;
        self.rare.persist = NEVER;
        if self.pending.tlp {
            self.on_tlp_sent(now, TlpProbe::NewData, None);
        }
        self.recovery.on_new_data();
        self.arm_pto(now);
        // In slow start half a window in flight is cwnd-limited: it is full a round trip later.
        let pipe = self.pipe();
        let window = self.cc.cwnd();
        self.cc.cwnd_limited =
            pipe + u32::from(self.emss) > window || (self.cc.in_slow_start() && pipe > window / 2);
    }
}
