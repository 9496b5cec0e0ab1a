//! How large a packet the path takes.
//!
//! A connection starts with what the link and the peer's MSS option allow. Three things change it:
//!
//! - A router's "packet too big" lowers it (RFC 1191, RFC 8201), if it is about a segment under way
//!   (RFC 5927) and says something possible.
//! - A black hole lowers it: the record at the left edge was sent again and again at full size and
//!   never acknowledged (RFC 4821 section 7.7), so the next copy is cut to a base size.
//! - A probe raises it (RFC 8899, carried over to TCP as in RFC 4821): one segment of a larger
//!   size, made of bytes that would have been sent anyway. If it is acknowledged its size is the
//!   new one; if it is lost, that is no sign of congestion, and its bytes go again in segments of
//!   the size known to pass. After [`MAX_PROBES`] losses the size counts as too large.
//!
//! When a search has ended below what link and peer allow, it begins anew after
//! [`PathMtuConfig::raise_ns`]. There is no timer: the time is looked at once in a round trip, and
//! whenever the fast path does not serve.

mod connection;

use super::NEVER;
#[cfg(doc)]
use super::Tcb;
use crate::time::{Instant, SECOND};
use crate::wire::seq::Seq;

/// Losses of a probe until its size counts as too large (RFC 8899 section 5.1.2, `MAX_PROBES`).
const MAX_PROBES: u8 = 3;
/// Copies of the record at the left edge that may be lost at one size before it is cut smaller.
const BLACK_HOLE_RETRANS: u8 = 2;
/// The same where the peer reports segments as large that came later: then it was probably chance,
/// unless the path changed between the two.
const BLACK_HOLE_RETRANS_SACKED: u8 = 4;
/// Times that routers may lower the size between two searches.
const PTB_MAX: u8 = 16;
/// Sizes to fall back to over a black hole. 1280 passes nearly everywhere, as IPv6 asks for it;
/// below it only IPv4 goes.
const BASE_PLPMTUS: [u16; 5] = [1280, 1024, 576, 296, 68];
/// Sizes of packets that links are known to carry, largest first: jumbo frames, FDDI, Ethernet, and
/// Ethernet less common encapsulations.
const COMMON_MTUS: [u16; 9] = [9000, 4352, 2002, 1500, 1492, 1480, 1420, 1280, 1006];
/// Sizes to try where a router does not tell (RFC 1191 section 7.1).
const PLATEAUS: [u16; 10] = [32_000, 17_914, 8166, 4352, 2002, 1492, 1006, 508, 296, 68];
/// FPDUs are multiples of four bytes; a smaller gain is none.
const STEP_MIN: u16 = 4;
/// No link of IPv4 carries less (RFC 791), of IPv6 less (RFC 8200 section 5).
const MIN_MTU: [u16; 2] = [68, 1280];

/// When larger sizes are tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Probing {
    /// Never, and black holes are not looked for: the size follows routers alone, and only down.
    Off,
    /// The link's size is used from the start; black holes are looked for, and larger sizes probed
    /// once the size was lowered.
    #[default]
    Auto,
    /// Starts at 1,280 bytes and probes upward, so that no segment is ever lost to its size.
    Always,
}

/// Settings of path MTU discovery. Sizes in bytes of IP packet.
#[derive(Clone, Copy, Debug)]
pub struct PathMtuConfig {
    /// Believe ICMP "packet too big" about segments under way. Without it, silence and probes
    /// decide alone.
    pub icmp: bool,
    /// When larger sizes are tried.
    pub probe: Probing,
    /// The size is never lowered below this over IPv4; values below 68 count as 68. A small floor
    /// would let a forged message make a connection crawl.
    pub floor_v4: u16,
    /// The same over IPv6, where values below 1280 count as 1280.
    pub floor_v6: u16,
    /// Time from the end of a search, or from a router's message, to the next search (RFC 8899
    /// section 5.1.1, `PMTU_RAISE_TIMER`).
    pub raise_ns: u64,
}

impl Default for PathMtuConfig {
    fn default() -> Self {
        Self {
            icmp: true,
            probe: Probing::Auto,
            floor_v4: 576,
            floor_v6: 1280,
            raise_ns: 600 * SECOND,
        }
    }
}

/// A router's message that a segment was too big for the next link. See [`Tcb::packet_too_big`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooBig {
    /// Sequence number of the segment.
    pub seq: Seq,
    /// Its acknowledgment number, if known.
    pub ack: Option<Seq>,
    /// Bytes of IP packet that would pass; `None` if the router does not say.
    pub mtu: Option<u16>,
    /// Bytes that the packet had.
    pub packet_len: u32,
}

/// A segment under way that is larger than [`PathMtu::plpmtu`].
#[derive(Clone, Copy, Debug)]
struct PmtuProbe {
    seq: Seq,
    end: Seq,
    size: u16,
    /// No part of it was sent a second time: its acknowledgment proves that it passed.
    intact: bool,
    /// Bytes of it that were taken out of what congestion control hears of losses.
    excluded: u32,
}

/// What is known of the path. Sizes in bytes of IP packet.
#[derive(Clone, Debug)]
pub(super) struct PathMtu {
    /// Most that link and peer allow.
    max_plpmtu: u16,
    /// In use; known to pass, or assumed at first.
    plpmtu: u16,
    /// Largest size not known to fail.
    search_max: u16,
    /// `search_max` is what link and peer allow, or what a router told: it is tried first.
    try_search_max: bool,
    /// Least that `size` is lowered to.
    floor: u16,
    is_v6: bool,
    /// Losses of probes since the bound last moved, and the largest size lost.
    probe_losses: u8,
    lost_probe_size: u16,
    /// Times routers lowered the size since the last search began.
    ptb_count: u8,
    /// Record at the left edge, and how often it was sent again.
    head_seq: Seq,
    head_retrans: u8,
    probe: Option<Box<PmtuProbe>>,
    /// Payload of the probe offered to the upper layer.
    probe_payload: u32,
    /// When something larger may be tried, and whether that was found to have passed.
    probe_at: Instant,
    probe_due: bool,
}

impl PathMtu {
    /// For packets of up to `max_plpmtu` bytes, by link and peer.
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
            probe_payload: 0,
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

    /// True if it is time to try something larger; on the way of every new segment.
    #[inline]
    pub(super) fn wants_probe(&self, now: Instant) -> bool {
        now >= self.probe_at
    }

    /// Looks at the time, once in a round trip: the fast path does not.
    pub(super) fn check_due(&mut self, now: Instant) {
        self.probe_due = self.wants_probe(now);
    }

    /// True if the next segment may be a probe.
    pub(super) const fn is_probe_due(&self) -> bool {
        self.probe_due
    }

    /// True while a probe's fate is open; on the way of every acknowledgment.
    #[inline]
    pub(super) const fn is_probing(&self) -> bool {
        self.probe.is_some()
    }

    /// A segment of `len` bytes was offered as a probe.
    #[inline]
    pub(super) const fn admits(&self, len: u32) -> bool {
        len <= self.probe_payload && self.probe.is_none()
    }

    /// The size to try next; `None` when the search has ended.
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
            // Not one of the usual links: halve the gap while it is worth it.
            (gap >= (self.plpmtu / 32).max(16)).then_some(self.search_max - gap / 2)
        }
    }

    /// Decides when to try the next size.
    fn schedule_probe(&mut self, now: Instant, cfg: &PathMtuConfig) {
        self.probe_payload = 0;
        self.probe_at = if self.max_plpmtu - self.plpmtu < STEP_MIN || cfg.probe == Probing::Off {
            NEVER
        } else if self.next_probe_size().is_some() {
            now
        } else {
            now + cfg.raise_ns
        };
        self.check_due(now);
    }

    /// The search began, or begins anew: all that was too large once may pass now.
    const fn restart_search(&mut self) {
        (self.search_max, self.try_search_max) = (self.max_plpmtu, true);
        (self.probe_losses, self.lost_probe_size, self.ptb_count) = (0, 0, 0);
    }

    /// A router refused a packet. True if the size changed, or a probe is known to be lost.
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
        // RFC 8201 section 4; and what would have passed was not refused.
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

    /// Copies of the record at the left edge, which starts at `seq`.
    fn head_retrans_of(&self, seq: Seq) -> u8 {
        if seq == self.head_seq { self.head_retrans } else { 0 }
    }

    /// A record in a packet of `len` bytes was lost too often. True if the size is now smaller.
    fn on_black_hole(&mut self, now: Instant, len: u16, cfg: &PathMtuConfig) -> bool {
        if cfg.probe == Probing::Off {
            return false;
        }
        let smaller =
            BASE_PLPMTUS.into_iter().map(|base| base.max(self.floor)).find(|base| *base < len);
        let Some(smaller) = smaller else { return false };
        self.plpmtu = self.plpmtu.min(smaller);
        // The next size gets one try: every one costs a timeout.
        self.head_retrans -= 1;
        // It may have been something else; what was in use before is tried first.
        self.schedule_probe(now, cfg);
        true
    }

    /// The record at the left edge was sent again.
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

/// The largest size that links are known to carry, below that of a packet which did not pass.
fn plateau_below(packet_len: u32) -> u16 {
    PLATEAUS.into_iter().find(|size| u32::from(*size) < packet_len).unwrap_or(0)
}
