//! How large a packet the path takes.
//!
//! A connection starts with what the link and the peer's MSS option allow. Three things change it:
//!
//! - A router's "packet too big" lowers it (RFC 1191, RFC 8201), if it is about a segment under way
//!   (RFC 5927) and says something possible.
//! - A black hole lowers it: the record at the left edge was sent again and again at full size and
//!   never acknowledged (RFC 4821 section 7.7), so the next copy is cut to a base size.
//! - A probe raises it (RFC 8899, carried over to TCP as in RFC 4821): one segment of a larger
//!   size, made of octets that would have been sent anyway. If it is acknowledged its size is the
//!   new one; if it is lost, that is no sign of congestion, and its octets go again in segments of
//!   the size known to pass. After [`TRIES`] losses the size counts as too large.
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
const TRIES: u8 = 3;
/// Copies of the record at the left edge that may be lost at one size before it is cut smaller.
const COPIES: u8 = 2;
/// The same where the peer reports segments as large that came later: then it was probably chance,
/// unless the path changed between the two.
const COPIES_DOUBTFUL: u8 = 4;
/// Times that routers may lower the size between two searches.
const CHANGES_MAX: u8 = 16;
/// Sizes to fall back to over a black hole. 1280 passes nearly everywhere, as IPv6 asks for it;
/// below it only IPv4 goes.
const BASES: [u16; 5] = [1280, 1024, 576, 296, 68];
/// Sizes of packets that links are known to carry, largest first: jumbo frames, FDDI, Ethernet, and
/// Ethernet less common encapsulations.
const COMMON: [u16; 9] = [9000, 4352, 2002, 1500, 1492, 1480, 1420, 1280, 1006];
/// Sizes to try where a router does not tell (RFC 1191 section 7.1).
const PLATEAUS: [u16; 10] = [32_000, 17_914, 8166, 4352, 2002, 1492, 1006, 508, 296, 68];
/// FPDUs are multiples of four octets; a smaller gain is none.
const STEP_MIN: u16 = 4;
/// No link of IPv4 carries less (RFC 791), of IPv6 less (RFC 8200 section 5).
const LEAST: [u16; 2] = [68, 1280];

/// When larger sizes are tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Probing {
    /// Never, and black holes are not looked for: the size follows routers alone, and only down.
    Off,
    /// The link's size is used from the start; black holes are looked for, and larger sizes probed
    /// once the size was lowered.
    #[default]
    Auto,
    /// Starts at 1,280 octets and probes upward, so that no segment is ever lost to its size.
    Always,
}

/// Settings of path MTU discovery. Sizes in octets of IP packet.
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
    /// Octets of IP packet that would pass; `None` if the router does not say.
    pub mtu: Option<u16>,
    /// Octets that the packet had.
    pub packet_len: u32,
}

/// A segment under way that is larger than [`PathMtu::size`].
#[derive(Clone, Copy, Debug)]
struct Probe {
    seq: Seq,
    end: Seq,
    size: u16,
    /// No part of it was sent a second time: its acknowledgment proves that it passed.
    intact: bool,
    /// Octets of it that were taken out of what congestion control hears of losses.
    excused: u32,
}

/// What is known of the path. Sizes in octets of IP packet.
#[derive(Clone, Debug)]
pub(super) struct PathMtu {
    /// Most that link and peer allow.
    limit: u16,
    /// In use; known to pass, or assumed at first.
    size: u16,
    /// Largest size not known to fail.
    bound: u16,
    /// `bound` is what link and peer allow, or what a router told: it is tried first.
    bound_told: bool,
    /// Least that `size` is lowered to.
    floor: u16,
    is_v6: bool,
    /// Losses of probes since the bound last moved, and the largest size lost.
    lost: u8,
    lost_size: u16,
    /// Times routers lowered the size since the last search began.
    changes: u8,
    /// Record at the left edge, and how often it was sent again.
    front: Seq,
    copies: u8,
    probe: Option<Box<Probe>>,
    /// Payload of the probe offered to the upper layer.
    planned: u32,
    /// When something larger may be tried, and whether that was found to have passed.
    probe_at: Instant,
    is_due: bool,
}

impl PathMtu {
    /// For packets of up to `limit` octets, by link and peer.
    pub(super) fn new(cfg: &PathMtuConfig, limit: u16, is_v6: bool) -> Self {
        let floor = if is_v6 { cfg.floor_v6 } else { cfg.floor_v4 };
        let floor = floor.max(LEAST[usize::from(is_v6)]).min(limit);
        let mut path = Self {
            limit,
            size: limit,
            bound: limit,
            bound_told: true,
            floor,
            is_v6,
            lost: 0,
            lost_size: 0,
            changes: 0,
            front: Seq(0),
            copies: 0,
            probe: None,
            planned: 0,
            probe_at: NEVER,
            is_due: false,
        };
        if cfg.probe == Probing::Always {
            path.size = limit.min(BASES[0].max(floor));
            path.schedule(Instant::ZERO, cfg);
        }
        path
    }

    pub(super) const fn size(&self) -> u16 {
        self.size
    }

    /// True if it is time to try something larger; on the way of every new segment.
    #[inline]
    pub(super) fn wants_probe(&self, now: Instant) -> bool {
        now >= self.probe_at
    }

    /// Looks at the time, once in a round trip: the fast path does not.
    pub(super) fn look(&mut self, now: Instant) {
        self.is_due = self.wants_probe(now);
    }

    /// True if the next segment may be a probe.
    pub(super) const fn is_due(&self) -> bool {
        self.is_due
    }

    /// True while a probe's fate is open; on the way of every acknowledgment.
    #[inline]
    pub(super) const fn is_probing(&self) -> bool {
        self.probe.is_some()
    }

    /// A segment of `len` octets was offered as a probe.
    #[inline]
    pub(super) const fn admits(&self, len: u32) -> bool {
        len <= self.planned && self.probe.is_none()
    }

    /// The size to try next; `None` when the search has ended.
    fn target(&self) -> Option<u16> {
        let gap = self.bound - self.size;
        if gap < STEP_MIN {
            None
        } else if self.bound_told {
            Some(self.bound)
        } else if let Some(size) = COMMON.into_iter().find(|size| *size <= self.bound)
            && size >= self.size + STEP_MIN
        {
            Some(size)
        } else {
            // Not one of the usual links: halve the gap while it is worth it.
            (gap >= (self.size / 32).max(16)).then_some(self.bound - gap / 2)
        }
    }

    /// Decides when to try the next size.
    fn schedule(&mut self, now: Instant, cfg: &PathMtuConfig) {
        self.planned = 0;
        self.probe_at = if self.limit - self.size < STEP_MIN || cfg.probe == Probing::Off {
            NEVER
        } else if self.target().is_some() {
            now
        } else {
            now + cfg.raise_ns
        };
        self.look(now);
    }

    /// The search began, or begins anew: all that was too large once may pass now.
    const fn forget(&mut self) {
        (self.bound, self.bound_told) = (self.limit, true);
        (self.lost, self.lost_size, self.changes) = (0, 0, 0);
    }

    /// A router refused a packet. True if the size changed, or a probe is known to be lost.
    pub(super) fn refused(&mut self, now: Instant, error: &TooBig, cfg: &PathMtuConfig) -> bool {
        let told = match error.mtu {
            Some(mtu) => mtu,
            None => plateau_below(error.packet_len),
        };
        // RFC 8201 section 4; and what would have passed was not refused.
        let is_possible = u32::from(told) < error.packet_len && !(self.is_v6 && told < LEAST[1]);
        // req: MPA-163
        let told = told.max(self.floor);
        if !cfg.icmp || !is_possible {
            return false;
        }
        if told < self.size && self.changes < CHANGES_MAX {
            self.changes += 1;
            self.size = told;
        } else if !self.probe.as_ref().is_some_and(|probe| probe.intact && told < probe.size) {
            return false;
        }
        (self.bound, self.bound_told) = (told.max(self.size), true);
        (self.lost, self.lost_size) = (0, 0);
        if let Some(probe) = &mut self.probe {
            probe.intact = false;
        }
        self.schedule(now, cfg);
        true
    }

    /// Copies of the record at the left edge, which starts at `seq`.
    fn copies_of(&self, seq: Seq) -> u8 {
        if seq == self.front { self.copies } else { 0 }
    }

    /// A record in a packet of `len` octets was lost too often. True if the size is now smaller.
    fn leave_hole(&mut self, now: Instant, len: u16, cfg: &PathMtuConfig) -> bool {
        if cfg.probe == Probing::Off {
            return false;
        }
        let smaller = BASES.into_iter().map(|base| base.max(self.floor)).find(|base| *base < len);
        let Some(smaller) = smaller else { return false };
        self.size = self.size.min(smaller);
        // The next size gets one try: every one costs a timeout.
        self.copies -= 1;
        // It may have been something else; what was in use before is tried first.
        self.schedule(now, cfg);
        true
    }

    /// The record at the left edge was sent again.
    const fn count_copy(&mut self, seq: Seq) {
        if seq.0 != self.front.0 {
            self.front = seq;
            self.copies = 0;
        }
        self.copies = self.copies.saturating_add(1);
    }

    fn probe_passed(&mut self, now: Instant, size: u16, cfg: &PathMtuConfig) {
        self.size = self.size.max(size);
        self.bound = self.bound.max(size);
        (self.lost, self.lost_size) = (0, 0);
        self.schedule(now, cfg);
    }

    fn probe_lost(&mut self, now: Instant, size: u16, cfg: &PathMtuConfig) {
        self.lost += 1;
        self.lost_size = self.lost_size.max(size);
        if self.lost >= TRIES {
            self.bound = (self.lost_size - 1).clamp(self.size, self.bound);
            self.bound_told = false;
            (self.lost, self.lost_size) = (0, 0);
        }
        self.schedule(now, cfg);
    }
}

/// The largest size that links are known to carry, below that of a packet which did not pass.
fn plateau_below(packet_len: u32) -> u16 {
    PLATEAUS.into_iter().find(|size| u32::from(*size) < packet_len).unwrap_or(0)
}
