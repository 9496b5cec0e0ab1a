//! The tail-loss probe (RFC 8985 section 7): when nothing is heard of the end of a flight, one
//! segment is sent so that the peer's answer tells what it lacks.

use super::plan::Resend;
use super::recovery::{Phase, Probe, Tail};
use super::send::Fin;
use super::{NEVER, Plan, Ready, Tcb, Transmit};
use crate::device::{Retained, RxFrame};
use crate::time::Instant;
use crate::wire::seq::Seq;
use crate::wire::tcp::{Block, Segment};

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Starts the probe's timer where it applies: one probe per flight, while no loss is known or
    /// suspected, and with SACK, without which the answer would say nothing (section 7.2). Where
    /// the retransmission timer would come first, the probe takes its place.
    #[inline]
    pub(super) fn arm_tail(&mut self, now: Instant) {
        let applies = self.cfg.tail_loss_probe
            && self.sack
            && self.recovery.phase == Phase::Open
            && self.board.is_calm()
            && self.tail.out(self.snd.una) == Probe::None;
        self.timers.tail = if applies {
            let alone = self.board.sent_len() <= 1;
            (now + self.rtt.probe_timeout(alone)).min(self.timers.rto)
        } else {
            NEVER
        };
    }

    /// Nothing was heard of the tail of a flight: a probe is due. With nothing in flight, the
    /// connection has been idle for a while, and the records' memory is given back.
    pub(super) fn tail_expired(&mut self, now: Instant) {
        if self.snd.flight() == 0 {
            self.timers.tail = NEVER;
            self.board.release_memory();
            self.recovery.release_memory();
            self.reports.release_memory();
            self.ecn.release_memory();
            return;
        }
        if self.found_late(now, self.timers.tail) {
            self.arm_tail(now);
            return;
        }
        self.timers.tail = NEVER;
        if self.recovery.phase != Phase::Open || !self.board.is_calm() {
            return;
        }
        if self.board.sent_len() > 0 {
            self.due.tail = true;
        } else if self.snd.fin == Fin::Sent {
            self.snd.fin = Fin::Due;
            self.note_probe(now, Probe::Fresh, None);
        }
        // The timeout counts from the probe (section 7.3).
        self.timers.rto = now + self.rtt.rto(&self.cfg);
    }

    /// The probe: a new segment if there is one and the peer's window admits it, else the last
    /// record once more (section 7.3). `None`: it is not wanted any more.
    #[cold]
    pub(super) fn plan_probe(&mut self, now: Instant, ready: Ready) -> Option<Transmit> {
        if !self.board.is_calm() {
            // No frame was to be had when it was due, and since then the peer told what it lacks.
            self.due.tail = false;
            return None;
        }
        if let Some(index) = self.board.unsent()
            && let Some(resend) = self.choose_unsent(now, index)
        {
            return Some(self.plan_resend(resend));
        }
        if let Ready::Record(len) = ready
            && let Some(room) = self.fresh_room(now, len)
        {
            return Some(Transmit::Fresh { room: room as usize });
        }
        let last = self.board.sent_len().checked_sub(1);
        let known = last.and_then(|index| Some((index, self.board.get(index)?)));
        if let Some((mut index, record)) = known
            && self.recovery.phase == Phase::Open
            && (index == 0 || record.end() <= self.snd.una + self.snd.wnd)
        {
            let (seq, mut len) = (record.seq, record.len);
            if len > u32::from(self.emss) {
                // The segment size has shrunk, or this was larger to probe the path: the end of it.
                self.board.cut(index, len - u32::from(self.emss));
                self.stats.record().cuts += 1;
                self.note_cut(now, seq);
                (index, len) = (index + 1, u32::from(self.emss));
            }
            return Some(self.plan_resend(Resend::tail(index, len)));
        }
        self.due.tail = false;
        None
    }

    pub(super) fn plan_resend(&mut self, resend: Resend) -> Transmit {
        let payload_len = resend.payload_len();
        self.plan = Plan::Resend(resend);
        Transmit::Resend { payload_len }
    }

    /// A probe leaves; `start` is where the record starts that it repeats.
    #[cold]
    pub(super) fn note_probe(&mut self, now: Instant, probe: Probe, start: Option<Seq>) {
        self.stats.record().tail_probes += 1;
        self.due.tail = false;
        self.timers.tail = NEVER;
        self.tail.probe = probe;
        self.tail.end = self.snd.nxt;
        self.tail.start = start;
        let first = start.unwrap_or(self.snd.una);
        self.tail.flight = self.loss_flight(first, self.snd.flight());
        self.tail.window = self.cc.window();
        self.tail.ts = self.ts.value(now);
        self.tail.alone = self.board.sent_len() <= 1;
        self.timers.rto = now + self.rtt.rto(&self.cfg);
    }

    /// What an ACK says about the probe that is out (section 7.4). `una`: what was acknowledged
    /// before it; `twice`: octets that the peer received twice; `pure`: a duplicate ACK that
    /// reports nothing.
    pub(super) fn take_probe_answer(
        &mut self,
        seg: &Segment,
        una: Seq,
        twice: Option<Block>,
        pure: bool,
    ) {
        if self.tail.probe == Probe::None {
            return;
        }
        let is_reported = self.tail.start.is_some_and(|start| twice.is_some_and(|b| b.0 == start));
        if self.tail.probe == Probe::Again && is_reported {
            // The original had arrived, too.
            self.probe_was_early();
        } else if seg.ack < self.tail.end {
            // Not answered yet.
        } else if self.tail.probe == Probe::Fresh {
            self.tail.probe = Probe::None;
        } else if self.tail.start == Some(una) && self.answers_before_probe(seg) {
            // The original's ACK: it was lost, or late.
            self.probe_was_early();
        } else if seg.ack > self.tail.end {
            // The probe repaired a loss that nothing else tells of.
            self.tail.probe = Probe::None;
            if self.recovery.phase == Phase::Open {
                self.stats.record().probe_repairs += 1;
                if !self.ecn.covers(una) {
                    let Tail { flight, window, .. } = self.tail;
                    self.cc.on_late_loss(window, flight, u32::from(self.emss));
                }
                self.ecn.on_loss(self.snd.nxt);
            }
        } else if pure {
            // Two ACKs for two copies, of a peer that does not report duplicates.
            self.probe_was_early();
        }
    }

    fn probe_was_early(&mut self) {
        self.stats.record().early_probes += 1;
        self.tail.probe = Probe::None;
        self.rtt.probe_was_early(self.tail.alone, &self.cfg);
    }

    /// The echo, which is of the record that was sent again, is of an earlier transmission.
    fn answers_before_probe(&self, seg: &Segment) -> bool {
        let echo = seg.options.ts.filter(|_| self.ts_on).map(|ts| ts.1);
        echo.is_some_and(|echo| echo.wrapping_sub(self.tail.ts).cast_signed() < 0)
    }
}
