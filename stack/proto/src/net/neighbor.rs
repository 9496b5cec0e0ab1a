//! Neighbor cache: maps IP addresses to link-layer addresses, for ARP and neighbor discovery
//! (RFC 4861 section 7, RFC 826).
//!
//! The cache queues no packets: a caller that gets [`Lookup::Pending`] repeats the lookup in a
//! later pass. [`NeighborCache::epoch`] changes whenever a repeated lookup may return another
//! result. Only this host's own traffic creates an entry ([`NeighborCache::find_or_insert`]).
//! Received advertisements and solicitations change existing entries by the rules of RFC 4861
//! section 7.2.5, and never create one. (Section 7.2.3 would create one for the sender of a
//! solicitation; an attacker could so set the address of a host before this host first sends to
//! it.)
//!
//! Static entries ([`NeighborCache::insert_static`]) are as they were configured: no message and no
//! timer changes them, and no solicitation is sent for them.

mod nud;
#[cfg(test)]
mod tests;

use core::net::IpAddr;
use std::collections::HashMap;

pub use nud::NudState;

use crate::net::rate_limit::RateLimit;
use crate::net::siphash_keys::SipBuildHasher;
use crate::time::{Instant, MILLISECOND, NEVER, SECOND};
use crate::wire::ethernet::is_unicast;
use nud::{AdvertInfo, Event, Lladdr};

/// Limit on the number of entries.
const ENTRY_COUNT_MAX: usize = 1024;
/// Delay until a rate-limited solicitation is retried; granularity of the entries' timers.
const TICK_NS: u64 = 10 * MILLISECOND;

/// An entry that was not looked up for this long may be evicted: a connection repeats its lookup
/// every second.
const IN_USE_NS: u64 = 3 * SECOND;

/// Neighbor with a link-layer address that is configured and not resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaticNeighbor {
    /// IP address of the neighbor, on a link of this host.
    pub ip: IpAddr,
    /// Its link-layer address.
    pub mac: [u8; 6],
}

/// Protocol constants of neighbor unreachability detection (RFC 4861 section 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NeighborConfig {
    /// Mean time that a reachability confirmation is valid (REACHABLE_TIME).
    pub reachable_ns: u64,
    /// Time in `Delay` before the first probe (DELAY_FIRST_PROBE_TIME).
    pub delay_first_probe_ns: u64,
    /// Interval between solicitations (RETRANS_TIMER).
    pub retrans_timer_ns: u64,
    /// Limit on unicast solicitations (MAX_UNICAST_SOLICIT).
    pub unicast_solicit_max: u8,
    /// Limit on multicast or broadcast solicitations (MAX_MULTICAST_SOLICIT). Two more than the
    /// three of the RFC, as RFC 7048 allows: a connection attempt fails with the last.
    pub multicast_solicit_max: u8,
    /// Time in `Failed` during which no solicitation is sent.
    pub hold_down_ns: u64,
}

impl Default for NeighborConfig {
    fn default() -> Self {
        Self {
            reachable_ns: 30 * SECOND,
            delay_first_probe_ns: 5 * SECOND,
            retrans_timer_ns: SECOND,
            unicast_solicit_max: 3,
            multicast_solicit_max: 5,
            hold_down_ns: 3 * SECOND,
        }
    }
}

/// Result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The link-layer address.
    Found([u8; 6]),
    /// Address resolution is in progress: repeat the lookup when the epoch changes.
    Pending,
    /// Address resolution failed. A lookup after the hold-down time starts it again.
    Unreachable,
}

/// Solicitation to be sent: a Neighbor Solicitation or an ARP request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Solicit {
    /// Target address.
    pub ip: IpAddr,
    /// Destination of a unicast probe; `None`: multicast or broadcast.
    pub mac: Option<[u8; 6]>,
}

/// Link-layer address that a neighbor has sent: in an advertisement, a solicitation or an ARP
/// packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advert {
    /// IP address of the neighbor.
    pub ip: IpAddr,
    /// Its link-layer address, if the message has one.
    pub mac: Option<[u8; 6]>,
    /// The S flag; for ARP, a reply addressed to this host alone.
    pub solicited: bool,
    /// The O flag; always set for ARP, and for solicitations.
    pub overrides: bool,
}

/// Handle of an entry; invalid once the entry was evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighborId {
    index: u32,
    generation: u32,
}

/// Result of [`NeighborCache::on_advert`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheUpdate {
    /// No link-layer address changed.
    Unchanged,
    /// Address resolution completed.
    Resolved,
    /// The link-layer address of a neighbor changed.
    LladdrChanged,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    ip: IpAddr,
    generation: u32,
    state: NudState,
    /// Valid in all states except `Incomplete` and `Failed`.
    mac: [u8; 6],
    /// When the timer of the state expires.
    expires_at: Instant,
    /// Solicitations sent in this state.
    solicits_sent: u8,
    used_at: Instant,
    /// The entry was configured: it stays `Reachable`.
    is_static: bool,
}

impl Entry {
    /// True if the timer of the state has to be handled even without traffic to the neighbor.
    const fn has_timer(&self) -> bool {
        matches!(self.state, NudState::Incomplete | NudState::Delay | NudState::Probe)
    }

    /// Eviction order, lowest first: by state (`Failed`, `Stale`, `Incomplete`, the others), then
    /// least recently used.
    const fn eviction_key(&self) -> (u8, Instant) {
        let class = match self.state {
            NudState::Failed => 0,
            NudState::Stale => 1,
            NudState::Incomplete => 2,
            NudState::Reachable | NudState::Delay | NudState::Probe => 3,
        };
        (class, self.used_at)
    }
}

/// The neighbor cache.
#[derive(Debug)]
pub struct NeighborCache {
    config: NeighborConfig,
    seed: u64,
    entries: Vec<Entry>,
    by_ip: HashMap<IpAddr, u32, SipBuildHasher>,
    epoch: u32,
    /// Time of the next scan for expired timers; [`NEVER`] if no timer runs.
    next_timer_at: Instant,
    /// Index at which that scan begins.
    cursor: usize,
    solicit_limit: RateLimit,
}

impl NeighborCache {
    /// Creates an empty cache, which sends at most `solicits` solicitations.
    #[must_use]
    pub fn new(config: NeighborConfig, seed: u64, solicits: RateLimit) -> Self {
        Self {
            config,
            seed,
            entries: Vec::new(),
            by_ip: HashMap::with_hasher(SipBuildHasher::new(seed)),
            epoch: 0,
            next_timer_at: NEVER,
            cursor: 0,
            solicit_limit: solicits,
        }
    }

    /// Counter that changes whenever a link-layer address became known or changed, or resolution
    /// failed.
    #[inline]
    #[must_use]
    pub const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Time at which [`NeighborCache::next_solicit`] is to be called next; `None` if no timer runs.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        (self.next_timer_at != NEVER).then_some(self.next_timer_at)
    }

    /// Adds an entry that stays as it is; a second one for the same address replaces the first.
    pub fn insert_static(&mut self, neighbor: StaticNeighbor) {
        let StaticNeighbor { ip, mac } = neighbor;
        let entry = Entry {
            ip,
            generation: 0,
            state: NudState::Reachable,
            mac,
            expires_at: NEVER,
            solicits_sent: 0,
            used_at: Instant::ZERO,
            is_static: true,
        };
        match self.by_ip.get(&ip) {
            Some(&index) => self.entries[index as usize] = entry,
            None => {
                if let Some(index) = self.insert(entry) {
                    self.by_ip.insert(ip, index);
                }
            }
        }
    }

    /// Returns the entry of `ip`; creates one and starts address resolution if there is none.
    /// `None` if the cache is full of entries in use.
    pub fn find_or_insert(&mut self, now: Instant, ip: IpAddr) -> Option<NeighborId> {
        if let Some(&index) = self.by_ip.get(&ip) {
            let generation = self.entries[index as usize].generation;
            return Some(NeighborId { index, generation });
        }
        let entry = Entry {
            ip,
            generation: 0,
            state: NudState::Incomplete,
            mac: [0; 6],
            expires_at: now,
            solicits_sent: 0,
            used_at: now,
            is_static: false,
        };
        let index = self.insert(entry)?;
        self.by_ip.insert(ip, index);
        self.next_timer_at = self.next_timer_at.min(now);
        Some(NeighborId { index, generation: self.entries[index as usize].generation })
    }

    /// Stores an entry; evicts the first in eviction order if the cache is full. `None` if that is
    /// in use.
    fn insert(&mut self, entry: Entry) -> Option<u32> {
        if self.entries.len() < ENTRY_COUNT_MAX {
            self.entries.push(entry);
            return u32::try_from(self.entries.len() - 1).ok();
        }
        let resolved = (0u32..).zip(&mut self.entries).filter(|(_, entry)| !entry.is_static);
        let (index, least) = resolved.min_by_key(|(_, entry)| entry.eviction_key())?;
        let is_unused = matches!(least.state, NudState::Failed | NudState::Stale)
            || entry.used_at.since(least.used_at) > IN_USE_NS;
        if !is_unused {
            return None;
        }
        self.by_ip.remove(&least.ip);
        *least = Entry { generation: least.generation.wrapping_add(1), ..entry };
        Some(index)
    }

    fn entry(&mut self, id: NeighborId) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(id.index as usize)?;
        (entry.generation == id.generation).then_some(entry)
    }

    /// Looks up the link-layer address for a packet that is about to be sent. `None` if the entry
    /// was evicted.
    pub fn lookup(&mut self, now: Instant, id: NeighborId) -> Option<Lookup> {
        let entry = self.entry(id)?;
        entry.used_at = now;
        let (state, is_over) = (entry.state, entry.expires_at <= now);
        if state == NudState::Reachable && is_over {
            self.apply_event(now, id.index, Event::Timeout);
        }
        if state != NudState::Failed || is_over {
            self.apply_event(now, id.index, Event::PacketToSend);
        }
        let entry = self.entry(id)?;
        Some(match entry.state {
            NudState::Incomplete => Lookup::Pending,
            NudState::Failed => Lookup::Unreachable,
            _ => Lookup::Found(entry.mac),
        })
    }

    /// Confirms reachability of this neighbor at `mac` (RFC 4861 section 7.3.1): data sent was
    /// acknowledged, or received data shows that acknowledgments arrive.
    pub fn confirm(&mut self, now: Instant, id: NeighborId, mac: [u8; 6]) {
        if self.entry(id).is_some_and(|entry| entry.mac == mac) {
            self.apply_event(now, id.index, Event::Confirmed);
        }
    }

    /// Reports that packets sent to this neighbor were not acknowledged for a while: it is probed
    /// before its reachable time ends.
    pub fn mark_suspect(&mut self, now: Instant, id: NeighborId) {
        if self.entry(id).is_some() {
            self.apply_event(now, id.index, Event::Suspect);
        }
    }

    /// Processes an advertised link-layer address (RFC 4861 section 7.2.5). Neighbors without an
    /// entry are ignored. An advertisement counts as solicited only while a solicitation is
    /// outstanding.
    pub fn on_advert(&mut self, now: Instant, advert: &Advert) -> CacheUpdate {
        let Some(&index) = self.by_ip.get(&advert.ip) else { return CacheUpdate::Unchanged };
        let entry = &self.entries[index as usize];
        if entry.is_static {
            return CacheUpdate::Unchanged;
        }
        let (was, old) = (entry.state, entry.mac);
        let solicit_pending =
            matches!(was, NudState::Incomplete | NudState::Probe) && entry.solicits_sent > 0;
        let lladdr = match advert.mac {
            None => Lladdr::Absent,
            Some(mac) if !is_unicast(mac) => return CacheUpdate::Unchanged,
            Some(mac) if mac == old => Lladdr::Same,
            Some(_) => Lladdr::Other,
        };
        let solicited = advert.solicited && solicit_pending;
        let info = AdvertInfo { solicited, overrides: advert.overrides, lladdr };
        let updates_lladdr =
            was.on_event(Event::Advert(info)).is_some_and(|outcome| outcome.updates_lladdr);
        self.apply_event(now, index, Event::Advert(info));
        let (true, Some(mac)) = (updates_lladdr, advert.mac) else { return CacheUpdate::Unchanged };
        self.entries[index as usize].mac = mac;
        self.epoch = self.epoch.wrapping_add(1);
        let was_known = !matches!(was, NudState::Incomplete | NudState::Failed);
        if was_known { CacheUpdate::LladdrChanged } else { CacheUpdate::Resolved }
    }

    /// True if [`NeighborCache::next_solicit`] has a timer to check.
    #[inline]
    #[must_use]
    pub const fn is_timer_due(&self, now: Instant) -> bool {
        self.next_timer_at.as_nanos() <= now.as_nanos()
    }

    /// Returns the next solicitation that is due. Call it until `None`; cheap while none is due.
    pub fn next_solicit(&mut self, now: Instant) -> Option<Solicit> {
        if now < self.next_timer_at {
            return None;
        }
        for _ in 0..self.entries.len() {
            let at = self.cursor % self.entries.len();
            let entry = &self.entries[at];
            if entry.has_timer() && entry.expires_at <= now {
                let sends_solicit = entry.state != NudState::Incomplete
                    || entry.solicits_sent < self.config.multicast_solicit_max;
                if sends_solicit && !self.solicit_limit.admits(now) {
                    // The next scan resumes at this entry.
                    self.next_timer_at = now + TICK_NS;
                    return None;
                }
                self.cursor = at + 1;
                self.on_timeout(now, at);
                if sends_solicit {
                    return Some(self.build_solicit(now, at));
                }
            }
            self.cursor = at + 1;
        }
        let timers =
            self.entries.iter().filter(|entry| entry.has_timer()).map(|entry| entry.expires_at);
        self.next_timer_at = timers.min().map_or(NEVER, |due| due.max(now + TICK_NS));
        None
    }

    /// Handles the timeout of an entry's state.
    fn on_timeout(&mut self, now: Instant, at: usize) {
        let entry = &self.entries[at];
        let count_max = match entry.state {
            NudState::Incomplete => self.config.multicast_solicit_max,
            NudState::Probe => self.config.unicast_solicit_max,
            _ => u8::MAX,
        };
        let is_last = entry.solicits_sent >= count_max;
        let event = if is_last { Event::SolicitsExhausted } else { Event::Timeout };
        self.apply_event(now, u32::try_from(at).expect("bounded"), event);
    }

    fn build_solicit(&mut self, now: Instant, at: usize) -> Solicit {
        let entry = &mut self.entries[at];
        entry.solicits_sent += 1;
        entry.expires_at = now + self.config.retrans_timer_ns;
        let mac = (entry.state == NudState::Probe).then_some(entry.mac);
        Solicit { ip: entry.ip, mac }
    }

    /// Changes an entry by the transition table.
    fn apply_event(&mut self, now: Instant, index: u32, event: Event) {
        let jitter = self.seed ^ u64::from(index) << 32 ^ now.as_nanos();
        let entry = &mut self.entries[index as usize];
        if entry.is_static {
            return;
        }
        let Some(outcome) = entry.state.on_event(event) else { return };
        let was = core::mem::replace(&mut entry.state, outcome.state);
        if was == outcome.state && outcome.state != NudState::Reachable {
            return;
        }
        entry.solicits_sent = 0;
        entry.expires_at = match outcome.state {
            NudState::Reachable => now + jittered(self.config.reachable_ns, jitter),
            NudState::Delay => now + self.config.delay_first_probe_ns,
            NudState::Failed => now + self.config.hold_down_ns,
            NudState::Incomplete | NudState::Probe | NudState::Stale => now,
        };
        if outcome.state == NudState::Failed {
            self.epoch = self.epoch.wrapping_add(1);
        }
        if entry.has_timer() {
            self.next_timer_at = self.next_timer_at.min(entry.expires_at);
        }
    }
}

/// Random duration between 0.5 and 1.5 times `mean`, so that neighbors are not probed in step
/// (RFC 4861 section 6.3.2).
const fn jittered(mean: u64, random: u64) -> u64 {
    let mixed = random.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
    mean / 2 + (mean >> 10) * mixed
}
