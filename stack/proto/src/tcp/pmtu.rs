//! Path MTU discovery (RFC 8899, RFC 1191, RFC 8201): the PLPMTU of a connection.
//!
//! It starts at what the link and the peer's MSS option allow. Three things change it:
//!
//! - A Packet Too Big message (PTB) lowers it, if it refers to an outstanding segment (RFC 5927)
//!   and its MTU is plausible.
//! - A black hole lowers it: the first outstanding record was retransmitted repeatedly at full size
//!   and never acknowledged (RFC 4821 section 7.7). The next retransmission is split to a base size
//!   (BASE_PLPMTU).
//! - A probe raises it (RFC 8899, applied to TCP as in RFC 4821): one larger segment, of data that
//!   would be sent anyway. If it is acknowledged, its size becomes the PLPMTU. If it is lost, that
//!   is no congestion signal, and its bytes are retransmitted in segments of the PLPMTU. After
//!   [`MAX_PROBES`] losses the size counts as too large.
//!
//! If a search ends below what link and peer allow, the next one begins after
//! [`PathMtuConfig::raise_ns`]. There is no timer: the time is checked once per round trip, and on
//! the slow path.

use super::Tcb;
use super::recovery::ca_state::CaState;
use super::settings::{PathMtuConfig, Probing};
use super::upper_layer::Event;
use crate::device::{Retained, RxFrame};
use crate::time::{Instant, NEVER};
use crate::wire::seq::Seq;
use crate::wire::tcp::{TCP_LEN, TIMESTAMPS_LEN};

/// Number of probe losses after which a size counts as too large (RFC 8899 section 5.1.2,
/// `MAX_PROBES`).
const MAX_PROBES: u8 = 3;
/// Lost retransmissions of the first outstanding record after which its size counts as a black
/// hole.
const BLACK_HOLE_RETRANS: u8 = 2;
/// The same if the peer SACKs later segments as large: the losses were then probably chance, unless
/// the path changed in between.
const BLACK_HOLE_RETRANS_SACKED: u8 = 4;
/// Most PTB messages that may lower the PLPMTU between two searches.
const PTB_MAX: u8 = 16;
/// Base sizes (BASE_PLPMTU) after a black hole, largest first. 1280 passes nearly everywhere, as
/// IPv6 requires it; the smaller ones are for IPv4 only.
const BASE_PLPMTUS: [u16; 5] = [1280, 1024, 576, 296, 68];
/// Common link MTUs, largest first: jumbo frames, FDDI, Ethernet, and Ethernet less common
/// encapsulations.
const COMMON_MTUS: [u16; 9] = [9000, 4352, 2002, 1500, 1492, 1480, 1420, 1280, 1006];
/// Plateau table for PTB messages without an MTU (RFC 1191 section 7.1).
const PLATEAUS: [u16; 10] = [32_000, 17_914, 8166, 4352, 2002, 1492, 1006, 508, 296, 68];
/// Smallest increase worth a probe: FPDUs are multiples of four bytes.
const STEP_MIN: u16 = 4;
/// Minimum link MTU of IPv4 (RFC 791) and IPv6 (RFC 8200 section 5).
const MIN_MTU: [u16; 2] = [68, 1280];

/// Packet Too Big message (over IPv4: Fragmentation Needed) about a segment. See
/// [`Tcb::packet_too_big`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooBig {
    /// Sequence number of the segment.
    pub seq: Seq,
    /// Acknowledgment number of the segment, if known.
    pub ack: Option<Seq>,
    /// MTU reported, in bytes of IP packet; `None` if the message has none.
    pub mtu: Option<u16>,
    /// Length of the packet that was dropped, bytes.
    pub packet_len: u32,
}

/// Outstanding probe: a segment larger than [`PathMtu::plpmtu`].
#[derive(Clone, Copy, Debug)]
struct PmtuProbe {
    seq: Seq,
    end: Seq,
    size: u16,
    /// Its acknowledgment confirms its size: no part was retransmitted, and no PTB message refused
    /// it.
    intact: bool,
    /// Bytes of it already excluded from the losses that congestion control is given.
    excluded: u32,
}

/// Path MTU state. Sizes in bytes of IP packet.
#[derive(Clone, Debug)]
pub(super) struct PathMtu {
    /// MAX_PLPMTU: most that the link and the peer's MSS allow.
    max_plpmtu: u16,
    /// PLPMTU: size in use; confirmed, or assumed at first.
    plpmtu: u16,
    /// Largest size not known to fail.
    search_max: u16,
    /// `search_max` is MAX_PLPMTU, or the MTU of a PTB message: it is probed first.
    try_search_max: bool,
    /// Lower bound of `plpmtu`.
    floor: u16,
    is_v6: bool,
    /// Probes lost since the search last advanced, and the largest size among them.
    probe_losses: u8,
    lost_probe_size: u16,
    /// PTB messages that lowered `plpmtu` since the last search began.
    ptb_count: u8,
    /// First outstanding record when one was last retransmitted, and how often it was.
    head_seq: Seq,
    head_retrans: u8,
    probe: Option<Box<PmtuProbe>>,
    /// Time from which a larger size may be probed, and whether it had passed when last checked.
    probe_at: Instant,
    probe_due: bool,
}

impl PathMtu {
    /// Starts discovery with `limit`, the most bytes that link and peer allow.
    pub(super) fn new(cfg: &PathMtuConfig, limit: u16, is_v6: bool) -> Self {
        let floor = if is_v6 { cfg.floor_v6 } else { cfg.floor_v4 };
        let floor = floor.max(MIN_MTU[usize::from(is_v6)]).min(limit);
        let mut path = Self {
            max_plpmtu: limit,
            plpmtu: limit,
            search_max: limit,
            try_search_max: true,
            floor,
            is_v6,
            probe_losses: 0,
            lost_probe_size: 0,
            ptb_count: 0,
            head_seq: Seq(0),
            head_retrans: 0,
            probe: None,
            probe_at: NEVER,
            probe_due: false,
        };
        if cfg.probe == Probing::Always {
            path.plpmtu = limit.min(BASE_PLPMTUS[0].max(floor));
            path.schedule_probe(Instant::ZERO, cfg);
        }
        path
    }

    pub(super) const fn plpmtu(&self) -> u16 {
        self.plpmtu
    }

    /// True if a larger size may be probed now. Evaluated for new segments.
    #[inline]
    pub(super) fn wants_probe(&self, now: Instant) -> bool {
        now >= self.probe_at
    }

    /// Checks the time. To be called once per round trip, as the fast path does not.
    pub(super) fn check_due(&mut self, now: Instant) {
        self.probe_due = self.wants_probe(now);
    }

    /// True if the next segment may be a probe.
    pub(super) const fn is_probe_due(&self) -> bool {
        self.probe_due
    }

    /// True while a probe is outstanding. Evaluated for ACKs.
    #[inline]
    pub(super) const fn is_probing(&self) -> bool {
        self.probe.is_some()
    }

    /// Returns the next size to probe; `None` if the search has ended.
    fn next_probe_size(&self) -> Option<u16> {
        let gap = self.search_max - self.plpmtu;
        if gap < STEP_MIN {
            None
        } else if self.try_search_max {
            Some(self.search_max)
        } else if let Some(size) = COMMON_MTUS.into_iter().find(|size| *size <= self.search_max)
            && size >= self.plpmtu + STEP_MIN
        {
            Some(size)
        } else {
            // No common MTU is left: bisect the range while the gain is worth a probe.
            (gap >= (self.plpmtu / 32).max(16)).then_some(self.search_max - gap / 2)
        }
    }

    /// Sets the time of the next probe.
    fn schedule_probe(&mut self, now: Instant, cfg: &PathMtuConfig) {
        self.probe_at = if self.max_plpmtu - self.plpmtu < STEP_MIN || cfg.probe == Probing::Off {
            NEVER
        } else if self.next_probe_size().is_some() {
            now
        } else {
            now + cfg.raise_ns
        };
        self.check_due(now);
    }

    /// Starts a new search: sizes that were too large before may pass now.
    const fn restart_search(&mut self) {
        (self.search_max, self.try_search_max) = (self.max_plpmtu, true);
        (self.probe_losses, self.lost_probe_size, self.ptb_count) = (0, 0, 0);
    }

    /// Processes a PTB message. Returns true if the PLPMTU changed, or a probe is known to be lost.
    pub(super) fn on_packet_too_big(
        &mut self,
        now: Instant,
        error: &TooBig,
        cfg: &PathMtuConfig,
    ) -> bool {
        let mtu = match error.mtu {
            Some(mtu) => mtu,
            None => plateau_below(error.packet_len),
        };
        // RFC 8201 section 4; and a packet that fits the MTU is not dropped for its size.
        let is_possible = u32::from(mtu) < error.packet_len && !(self.is_v6 && mtu < MIN_MTU[1]);
        // req: MPA-163
        let mtu = mtu.max(self.floor);
        if !cfg.icmp || !is_possible {
            return false;
        }
        if mtu < self.plpmtu && self.ptb_count < PTB_MAX {
            self.ptb_count += 1;
            self.plpmtu = mtu;
        } else if !self.probe.as_ref().is_some_and(|probe| probe.intact && mtu < probe.size) {
            return false;
        }
        (self.search_max, self.try_search_max) = (mtu.max(self.plpmtu), true);
        (self.probe_losses, self.lost_probe_size) = (0, 0);
        if let Some(probe) = &mut self.probe {
            probe.intact = false;
        }
        self.schedule_probe(now, cfg);
        true
    }

    /// Returns the number of retransmissions of the first outstanding record, which starts at
    /// `seq`.
    fn head_retrans_of(&self, seq: Seq) -> u8 {
        if seq == self.head_seq { self.head_retrans } else { 0 }
    }

    /// Handles a black hole: a record in a packet of `len` bytes was lost `threshold` times at
    /// least. Returns true if the PLPMTU is now smaller.
    fn on_black_hole(
        &mut self,
        now: Instant,
        len: u16,
        threshold: u8,
        cfg: &PathMtuConfig,
    ) -> bool {
        if cfg.probe == Probing::Off {
            return false;
        }
        let smaller =
            BASE_PLPMTUS.into_iter().map(|base| base.max(self.floor)).find(|base| *base < len);
        let Some(smaller) = smaller else { return false };
        self.plpmtu = self.plpmtu.min(smaller);
        // The next size gets one try, as each costs a timeout.
        self.head_retrans = threshold - 1;
        // The cause may have been another: the size used before is probed first.
        self.schedule_probe(now, cfg);
        true
    }

    /// Counts a retransmission of the first outstanding record.
    const fn on_head_retransmit(&mut self, seq: Seq) {
        if seq.0 != self.head_seq.0 {
            self.head_seq = seq;
            self.head_retrans = 0;
        }
        self.head_retrans = self.head_retrans.saturating_add(1);
    }

    fn on_probe_acked(&mut self, now: Instant, size: u16, cfg: &PathMtuConfig) {
        self.plpmtu = self.plpmtu.max(size);
        self.search_max = self.search_max.max(size);
        (self.probe_losses, self.lost_probe_size) = (0, 0);
        self.schedule_probe(now, cfg);
    }

    fn on_probe_lost(&mut self, now: Instant, size: u16, cfg: &PathMtuConfig) {
        self.probe_losses += 1;
        self.lost_probe_size = self.lost_probe_size.max(size);
        if self.probe_losses >= MAX_PROBES {
            self.search_max = (self.lost_probe_size - 1).clamp(self.plpmtu, self.search_max);
            self.try_search_max = false;
            (self.probe_losses, self.lost_probe_size) = (0, 0);
        }
        self.schedule_probe(now, cfg);
    }
}

/// Returns the largest plateau below `packet_len`, the length of a packet that did not pass.
fn plateau_below(packet_len: u32) -> u16 {
    PLATEAUS.into_iter().find(|size| u32::from(*size) < packet_len).unwrap_or(0)
}

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
        self.on_pmtu_changed();
        // Their loss is no congestion signal, and they do not wait for the timer.
        self.scoreboard.update(|records| records.mark_longer_lost(u32::from(self.emss)));
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
        Some(payload_len)
    }

    /// Notes that a record longer than EMSS was sent in one segment, as a probe.
    #[cold]
    pub(in crate::tcp) fn on_pmtu_probe_sent(&mut self, seq: Seq, len: u32) {
        let size = self.packet_len(len);
        let probe = PmtuProbe { seq, end: seq + len, size, intact: true, excluded: 0 };
        self.pmtu.probe = Some(Box::new(probe));
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
