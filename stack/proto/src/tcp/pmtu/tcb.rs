//! Path MTU discovery of a connection: PTB messages, probes, and the EMSS that results.

use super::{
    BLACK_HOLE_RETRANS, BLACK_HOLE_RETRANS_SACKED, COMMON_MTUS, PathMtu, PmtuProbe, STEP_MIN,
    TooBig,
};
use crate::device::{Retained, RxFrame};
use crate::tcp::events::Event;
use crate::tcp::recovery::state::CaState;
use crate::tcp::tcb::Tcb;
use crate::tcp::tx::plan::Plan;
use crate::time::Instant;
use crate::wire::seq::Seq;
use crate::wire::tcp::{TCP_LEN, TIMESTAMPS_LEN};

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// PLPMTU: bytes of IP packet of a full data segment.
    #[must_use]
    pub fn path_mtu(&self) -> u16 {
        self.pmtu.plpmtu()
    }

    /// Returns the length of the IP and TCP headers without options.
    fn fixed_headers(&self) -> u16 {
        let (_, network) = self.template.l2_l3_len();
        // 40 or 60.
        u16::try_from(network + TCP_LEN).unwrap_or(60)
    }

    /// Returns the bytes of a packet that are not payload.
    fn packet_overhead(&self) -> u16 {
        self.fixed_headers() + self.options_bytes()
    }

    fn options_bytes(&self) -> u16 {
        if self.ts_on { TIMESTAMPS_LEN.into() } else { 0 }
    }

    /// Starts discovery: the limits of the link and of the peer's MSS option are known.
    pub(in crate::tcp) fn init_pmtu(&mut self) {
        let headers = self.fixed_headers();
        let limit = self.snd.mss.saturating_add(headers);
        self.pmtu = PathMtu::new(&self.cfg.path_mtu, limit, headers > 40);
        self.update_emss();
    }

    fn update_emss(&mut self) {
        // The peer's MSS is at least 64 and the path MTU at least 68: more than the options' 12 is
        // left.
        // req: MPA-008, DDP-014
        let mss = self.snd.mss.min(self.pmtu.plpmtu() - self.fixed_headers());
        self.emss = mss - self.options_bytes();
    }

    fn on_pmtu_changed(&mut self) {
        let before = self.emss;
        // req: MPA-118
        self.update_emss();
        if self.emss != before {
            self.raise_event(Event::EmssChanged);
        }
    }

    /// True if a segment with these numbers may be one of ours that is outstanding: its sequence
    /// number was sent and is not acknowledged (RFC 5927 section 4.1), and its acknowledgment
    /// number is not old.
    #[must_use]
    pub fn matches_outstanding(&self, seq: Seq, ack: Option<Seq>) -> bool {
        /// Largest possible window (RFC 7323 section 2.3).
        const WINDOW_MAX: u32 = 1 << 30;
        let is_sent = self.snd.una <= seq && seq < self.snd.nxt;
        let is_recent =
            ack.is_none_or(|ack| ack <= self.rcv.nxt && self.rcv.nxt - ack < WINDOW_MAX);
        is_sent && is_recent
    }

    /// Processes a PTB message. Returns true if it was accepted: [`Tcb::emss`] has decreased, which
    /// [`Event::EmssChanged`] reports, or a probe is known to be lost. Longer segments are
    /// retransmitted in parts. Returns false if the message refers to no outstanding segment,
    /// changes nothing, is not plausible, or comes too often.
    pub fn packet_too_big(&mut self, now: Instant, error: &TooBig) -> bool {
        if !self.state.is_synchronized()
            || !self.matches_outstanding(error.seq, error.ack)
            || !self.pmtu.on_packet_too_big(now, error, &self.cfg.path_mtu)
        {
            return false;
        }
        self.plan = Plan::Nothing;
        self.on_pmtu_changed();
        // Their loss is no congestion signal, and they do not wait for the timer.
        self.scoreboard.mark_longer_lost(u32::from(self.emss));
        if self.scoreboard.needs_retransmit() {
            self.timers.rto = now + self.rtt.rto(&self.cfg);
        }
        self.update_fast_path();
        true
    }

    /// Returns the payload capacity of a probe, with `usable` bytes left in the peer's window: the
    /// size to be tried, or what the windows leave of it if that is still a gain.
    #[cold]
    pub(in crate::tcp) fn pmtu_probe_capacity(&mut self, now: Instant, usable: u32) -> Option<u32> {
        if self.pmtu.is_probing() || self.recovery.ca_state != CaState::Open || self.pending.tlp {
            return None;
        }
        if self.pmtu.next_probe_size().is_none() {
            self.pmtu.restart_search();
        }
        let Some(target) = self.pmtu.next_probe_size() else {
            self.pmtu.schedule_probe(now, &self.cfg.path_mtu);
            return None;
        };
        // The congestion window is respected, without the usual exception for one segment.
        let window = usable.min(self.cc.cwnd().saturating_sub(self.pipe()));
        let next = COMMON_MTUS.into_iter().rev().find(|size| *size >= self.pmtu.plpmtu + STEP_MIN);
        let overhead = self.packet_overhead();
        let least = u32::from(next.unwrap_or(target).min(target) - overhead) & !3;
        let payload_len = u32::from(target - overhead).min(window) & !3;
        if payload_len < least || payload_len <= u32::from(self.emss) {
            return None;
        }
        self.pmtu.probe_payload = payload_len;
        Some(payload_len)
    }

    /// Notes that a record longer than EMSS was sent in one segment, as a probe.
    #[cold]
    pub(in crate::tcp) fn on_pmtu_probe_sent(&mut self, seq: Seq, len: u32) {
        let size = self.packet_len(len);
        let probe = PmtuProbe { seq, end: seq + len, size, intact: true, excluded: 0 };
        self.pmtu.probe = Some(Box::new(probe));
        self.pmtu.probe_payload = 0;
        self.stats.record().pmtu_probes += 1;
    }

    fn packet_len(&self, payload_len: u32) -> u16 {
        let payload_len = u16::try_from(payload_len).unwrap_or(u16::MAX);
        payload_len.saturating_add(self.packet_overhead())
    }

    /// Processes an advance of SND.UNA while a probe is outstanding.
    #[cold]
    pub(in crate::tcp) fn check_pmtu_probe(&mut self, now: Instant) {
        let Some(probe) = self.pmtu.probe.take_if(|probe| self.snd.una >= probe.end) else {
            return;
        };
        if probe.intact {
            self.pmtu.on_probe_acked(now, probe.size, &self.cfg.path_mtu);
            self.on_pmtu_changed();
        }
    }

    /// Notes that the record at `seq` is split to be retransmitted. If it is the probe, the probe
    /// was lost.
    #[cold]
    pub(in crate::tcp) fn on_split(&mut self, now: Instant, seq: Seq) {
        let Some(probe) = self.pmtu.probe.as_mut().filter(|probe| probe.intact) else { return };
        if probe.seq <= seq && seq < probe.end {
            probe.intact = false;
            let size = probe.size;
            self.stats.record().pmtu_probes_lost += 1;
            self.pmtu.on_probe_lost(now, size, &self.cfg.path_mtu);
        }
    }

    /// Returns how many of `lost` bytes newly marked lost are not part of a probe: only these are
    /// given to congestion control (RFC 4821 section 7.6.1).
    #[cold]
    pub(in crate::tcp) fn exclude_probe_loss(&mut self, lost: u32) -> u32 {
        let Some(probe) = self.pmtu.probe.as_mut() else { return lost };
        let of_probe = self.scoreboard.lost_in_range(probe.seq, probe.end);
        let newly = of_probe.saturating_sub(probe.excluded).min(lost);
        probe.excluded = probe.excluded.max(of_probe);
        lost - newly
    }

    /// Checks for a black hole. To be called before the first outstanding record, `len` bytes at
    /// `seq`, is retransmitted.
    pub(in crate::tcp) fn check_black_hole(&mut self, now: Instant, seq: Seq, len: u32) {
        // A closed window is another explanation.
        let retransmits = self.pmtu.head_retrans_of(seq);
        if retransmits < BLACK_HOLE_RETRANS || self.snd.wnd == 0 {
            return;
        }
        let len = len.min(u32::from(self.emss));
        let is_sacked = self.scoreboard.longest_sacked() >= len;
        let threshold = if is_sacked { BLACK_HOLE_RETRANS_SACKED } else { BLACK_HOLE_RETRANS };
        if retransmits < threshold {
            return;
        }
        let len = self.packet_len(len);
        if self.pmtu.on_black_hole(now, len, threshold, &self.cfg.path_mtu) {
            self.stats.record().black_holes += 1;
            self.on_pmtu_changed();
        }
    }

    /// Notes that the first outstanding record was retransmitted.
    pub(in crate::tcp) fn on_head_retransmit(&mut self, seq: Seq) {
        self.pmtu.on_head_retransmit(seq);
    }
}
