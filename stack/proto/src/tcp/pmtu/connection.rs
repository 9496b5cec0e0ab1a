//! A connection's path MTU: what routers say of it, probes, and the size of segments that follows.

use super::{COMMON, COPIES, COPIES_DOUBTFUL, PathMtu, Probe, STEP_MIN, TooBig};
use crate::device::{Retained, RxFrame};
use crate::tcp::recovery::Phase;
use crate::tcp::{Notice, Plan, TIMESTAMPS_OCTETS, Tcb};
use crate::time::Instant;
use crate::wire::seq::Seq;
use crate::wire::tcp::TCP_LEN;

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Octets of IP packet that a full data segment has.
    #[must_use]
    pub fn path_mtu(&self) -> u16 {
        self.pmtu.size()
    }

    /// Octets of IP and TCP header without options.
    fn fixed_headers(&self) -> u16 {
        let (_, network) = self.template.layer_lens();
        // 40 or 60.
        u16::try_from(network + TCP_LEN).unwrap_or(60)
    }

    /// Octets of a packet around its payload.
    fn packet_overhead(&self) -> u16 {
        self.fixed_headers() + self.options_octets()
    }

    fn options_octets(&self) -> u16 {
        if self.ts_on { TIMESTAMPS_OCTETS } else { 0 }
    }

    /// What the link and the peer's MSS option allow is known: discovery begins.
    pub(in crate::tcp) fn begin_path(&mut self) {
        let headers = self.fixed_headers();
        let limit = self.snd.mss.saturating_add(headers);
        self.pmtu = PathMtu::new(&self.cfg.path_mtu, limit, headers > 40);
        self.update_emss();
    }

    fn update_emss(&mut self) {
        // The peer told at least 64 and the path takes 68: more than the options' 12 is left.
        // req: MPA-008, DDP-014
        let mss = self.snd.mss.min(self.pmtu.size() - self.fixed_headers());
        self.emss = mss - self.options_octets();
    }

    fn path_changed(&mut self) {
        let before = self.emss;
        // req: MPA-118
        self.update_emss();
        if self.emss != before {
            self.notify(Notice::Emss);
        }
    }

    /// True if a message about a segment with these numbers can be about one of ours: it was sent
    /// and is not acknowledged (RFC 5927 section 4.1), and acknowledged something not long past.
    #[must_use]
    pub fn has_under_way(&self, seq: Seq, ack: Option<Seq>) -> bool {
        /// No window is larger (RFC 7323 section 2.3).
        const WINDOW_MAX: u32 = 1 << 30;
        let is_sent = self.snd.una <= seq && seq < self.snd.nxt;
        let is_recent =
            ack.is_none_or(|ack| ack <= self.rcv.nxt && self.rcv.nxt - ack < WINDOW_MAX);
        is_sent && is_recent
    }

    /// Takes a router's message. True if it was believed: then [`Tcb::emss`] is smaller, segments
    /// that were larger go again in pieces, and [`Notice::Emss`] follows. False if it is about
    /// nothing under way, says nothing new or nothing possible, or comes too often.
    pub fn packet_too_big(&mut self, now: Instant, error: &TooBig) -> bool {
        if !self.state.is_synchronised()
            || !self.has_under_way(error.seq, error.ack)
            || !self.pmtu.refused(now, error, &self.cfg.path_mtu)
        {
            return false;
        }
        self.plan = Plan::Nothing;
        self.path_changed();
        // Their loss is no sign of congestion, and no reason to wait for the timer.
        self.board.lose_longer(u32::from(self.emss));
        if self.board.resend_waits() {
            self.timers.rto = now + self.rtt.rto(&self.cfg);
        }
        self.refresh();
        true
    }

    /// Room for a probe, of which `usable` octets are in the peer's window: what is to be tried, or
    /// what the windows leave of it if that still gains something.
    #[cold]
    pub(in crate::tcp) fn probe_room(&mut self, now: Instant, usable: u32) -> Option<u32> {
        if self.pmtu.is_probing() || self.recovery.phase != Phase::Open || self.due.tail {
            return None;
        }
        if self.pmtu.target().is_none() {
            self.pmtu.forget();
        }
        let Some(target) = self.pmtu.target() else {
            self.pmtu.schedule(now, &self.cfg.path_mtu);
            return None;
        };
        // The congestion window is respected, the usual exception for one segment included not.
        let window = usable.min(self.cc.window().saturating_sub(self.pipe()));
        let next = COMMON.into_iter().rev().find(|size| *size >= self.pmtu.size + STEP_MIN);
        let overhead = self.packet_overhead();
        let least = u32::from(next.unwrap_or(target).min(target) - overhead) & !3;
        let room = u32::from(target - overhead).min(window) & !3;
        if room < least || room <= u32::from(self.emss) {
            return None;
        }
        self.pmtu.planned = room;
        Some(room)
    }

    /// A record longer than EMSS was sent in one segment.
    #[cold]
    pub(in crate::tcp) fn probe_sent(&mut self, seq: Seq, len: u32) {
        let size = self.packet_len(len);
        let probe = Probe { seq, end: seq + len, size, intact: true, excused: 0 };
        self.pmtu.probe = Some(Box::new(probe));
        self.pmtu.planned = 0;
        self.stats.record().path_probes += 1;
    }

    fn packet_len(&self, payload_len: u32) -> u16 {
        let payload_len = u16::try_from(payload_len).unwrap_or(u16::MAX);
        payload_len.saturating_add(self.packet_overhead())
    }

    /// With a probe under way, something was acknowledged.
    #[cold]
    pub(in crate::tcp) fn judge_probe(&mut self, now: Instant) {
        let Some(probe) = self.pmtu.probe.take_if(|probe| self.snd.una >= probe.end) else {
            return;
        };
        if probe.intact {
            self.pmtu.probe_passed(now, probe.size, &self.cfg.path_mtu);
            self.path_changed();
        }
    }

    /// The record at `seq` is cut to be sent again. If it is the probe, the probe was lost.
    #[cold]
    pub(in crate::tcp) fn note_cut(&mut self, now: Instant, seq: Seq) {
        let Some(probe) = self.pmtu.probe.as_mut().filter(|probe| probe.intact) else { return };
        if probe.seq <= seq && seq < probe.end {
            probe.intact = false;
            let size = probe.size;
            self.stats.record().path_probes_lost += 1;
            self.pmtu.probe_lost(now, size, &self.cfg.path_mtu);
        }
    }

    /// Of `lost` octets newly judged lost, those that were not part of a probe: what congestion
    /// control is to hear of (RFC 4821 section 7.6.1).
    #[cold]
    pub(in crate::tcp) fn excuse_probe(&mut self, lost: u32) -> u32 {
        let Some(probe) = self.pmtu.probe.as_mut() else { return lost };
        let of_probe = self.board.lost_within(probe.seq, probe.end);
        let newly = of_probe.saturating_sub(probe.excused).min(lost);
        probe.excused = probe.excused.max(of_probe);
        lost - newly
    }

    /// The record at the left edge, `len` octets at `seq`, is about to be sent again: looks for a
    /// black hole.
    pub(in crate::tcp) fn watch_front(&mut self, now: Instant, seq: Seq, len: u32) {
        // A closed window explains it, too.
        let copies = self.pmtu.copies_of(seq);
        if copies < COPIES || self.snd.wnd == 0 {
            return;
        }
        let len = len.min(u32::from(self.emss));
        if copies < COPIES_DOUBTFUL && self.board.sacked_max() >= len {
            return;
        }
        let len = self.packet_len(len);
        if self.pmtu.leave_hole(now, len, &self.cfg.path_mtu) {
            self.stats.record().black_holes += 1;
            self.path_changed();
        }
    }

    /// The record at the left edge was sent again.
    pub(in crate::tcp) fn note_copy(&mut self, seq: Seq) {
        self.pmtu.count_copy(seq);
    }
}
