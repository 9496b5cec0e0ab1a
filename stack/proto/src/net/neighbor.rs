//! Neighbour cache: IP address to hardware address, for ARP and neighbour discovery alike
//! (RFC 4861 section 7, RFC 826).
//!
//! Whoever needs an address looks again in a later pass; nothing is queued here and nothing is
//! dropped. [`NeighborCache::epoch`] moves on whenever looking again may pay. An entry comes into
//! being only when this host wants to talk to that neighbour: what strangers say of themselves
//! changes entries by the rules of RFC 4861 section 7.2.5, and never makes one. (Section 7.2.3
//! would note who asks us; a host that we then talk to could so be spoken for in advance.)

mod state;
#[cfg(test)]
mod tests;

use core::net::IpAddr;
use std::collections::HashMap;

pub use state::NudState;

use crate::net::rate_limit::RateLimit;
use crate::net::siphash_keys::SipBuildHasher;
use crate::time::{Instant, MILLISECOND, SECOND};
use crate::wire::ethernet::is_unicast;
use state::{AdvertInfo, Event, Lladdr};

/// Entries at most.
const ENTRY_COUNT_MAX: usize = 1024;
/// Questions to all neighbours together, in one second, at most.
const SOLICITS_PER_SECOND: u32 = 1000;
/// How soon a question is tried again that the bound held back; timers are looked at no more
/// often than this.
const TICK_NS: u64 = 10 * MILLISECOND;

/// An entry that was not looked up for so long may give way: who needs it looks every second.
const IN_USE_NS: u64 = 3 * SECOND;

/// Times and counts of the state machine (RFC 4861 section 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighborConfig {
    /// How long a sign of reachability counts, on average (REACHABLE_TIME).
    pub reachable_ns: u64,
    /// How long signs are waited for before a neighbour is probed (DELAY_FIRST_PROBE_TIME).
    pub delay_first_probe_ns: u64,
    /// Between two questions (RETRANS_TIMER).
    pub retrans_timer_ns: u64,
    /// Questions at the known address (MAX_UNICAST_SOLICIT).
    pub unicast_solicit_max: u8,
    /// Questions to everybody (MAX_MULTICAST_SOLICIT). Two more than the three of the RFC, as
    /// RFC 7048 allows: a connection attempt fails with the last.
    pub multicast_solicit_max: u8,
    /// How long a neighbour that did not answer is left alone.
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

/// What the cache says of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// It is there.
    Found([u8; 6]),
    /// It is being asked for: look again when the epoch changes.
    Pending,
    /// Nobody answered. Looking again later starts over.
    Unreachable,
}

/// A question to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Solicit {
    /// Who is asked for.
    pub ip: IpAddr,
    /// Where it is asked; `None`: everywhere.
    pub mac: Option<[u8; 6]>,
}

/// What a neighbour said of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advert {
    /// Its address.
    pub ip: IpAddr,
    /// Its hardware address, if it said that.
    pub mac: Option<[u8; 6]>,
    /// In answer to a question: the S flag, or an ARP reply to us alone.
    pub solicited: bool,
    /// The O flag; always with ARP, and where it asks us.
    pub overrides: bool,
}

/// Names an entry; of no meaning once the entry gave way to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighborId {
    index: u32,
    generation: u32,
}

/// What became of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheUpdate {
    /// It changed nothing that matters.
    Unchanged,
    /// An address became known.
    Resolved,
    /// A neighbour whose address was known has another.
    LladdrChanged,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    ip: IpAddr,
    generation: u32,
    state: NudState,
    /// Known in all states but `Incomplete` and `Failed`.
    mac: [u8; 6],
    /// End of the state's time.
    expires_at: Instant,
    /// Questions sent in this state.
    solicits_sent: u8,
    used_at: Instant,
}

impl Entry {
    /// The end of its time is to be acted on even if nobody uses the entry.
    const fn has_timer(&self) -> bool {
        matches!(self.state, NudState::Incomplete | NudState::Delay | NudState::Probe)
    }

    /// Lower goes first when room is needed: what failed, then what is not talked to.
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

/// The cache.
#[derive(Debug)]
pub struct NeighborCache {
    config: NeighborConfig,
    seed: u64,
    entries: Vec<Entry>,
    by_ip: HashMap<IpAddr, u32, SipBuildHasher>,
    epoch: u32,
    /// No timer ends before; [`NEVER`] if none runs.
    next_timer_at: Instant,
    /// Where the search for due entries begins.
    cursor: usize,
    solicit_limit: RateLimit,
}

const NEVER: Instant = Instant::from_nanos(u64::MAX);

impl NeighborCache {
    /// An empty cache.
    #[must_use]
    pub fn new(config: NeighborConfig, seed: u64) -> Self {
        Self {
            config,
            seed,
            entries: Vec::new(),
            by_ip: HashMap::with_hasher(SipBuildHasher::new(seed)),
            epoch: 0,
            next_timer_at: NEVER,
            cursor: 0,
            solicit_limit: RateLimit::new(SOLICITS_PER_SECOND),
        }
    }

    /// Changes whenever an address became known, changed, or was given up.
    #[inline]
    #[must_use]
    pub const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// When [`NeighborCache::next_solicit`] has something to do next, at the latest.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        (self.next_timer_at != NEVER).then_some(self.next_timer_at)
    }

    /// The entry of `ip`, made if there is none: it will be asked for. `None` while the cache is
    /// full of neighbours in use.
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
        };
        let index = self.insert(entry)?;
        self.by_ip.insert(ip, index);
        self.next_timer_at = self.next_timer_at.min(now);
        Some(NeighborId { index, generation: self.entries[index as usize].generation })
    }

    /// Stores an entry, in place of the one of least worth if the cache is full.
    fn insert(&mut self, entry: Entry) -> Option<u32> {
        if self.entries.len() < ENTRY_COUNT_MAX {
            self.entries.push(entry);
            return u32::try_from(self.entries.len() - 1).ok();
        }
        let (index, least) =
            (0u32..).zip(&mut self.entries).min_by_key(|(_, entry)| entry.eviction_key())?;
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

    /// A frame is about to go to a neighbour: where to. `None` if the entry gave way.
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

    /// Frames to this neighbour at `mac` arrived: what was sent was acknowledged, or what came
    /// shows that acknowledgments arrive (RFC 4861 section 7.3.1).
    pub fn confirm(&mut self, now: Instant, id: NeighborId, mac: [u8; 6]) {
        if self.entry(id).is_some_and(|entry| entry.mac == mac) {
            self.apply_event(now, id.index, Event::Confirmed);
        }
    }

    /// Frames to this neighbour were not acknowledged for a while: it is probed earlier than its
    /// time.
    pub fn mark_suspect(&mut self, now: Instant, id: NeighborId) {
        if self.entry(id).is_some() {
            self.apply_event(now, id.index, Event::Suspect);
        }
    }

    /// Notes what a neighbour said. Neighbours that we do not talk to are not noted, and an
    /// answer that nobody waits for counts as unasked.
    pub fn on_advert(&mut self, now: Instant, advert: &Advert) -> CacheUpdate {
        let Some(&index) = self.by_ip.get(&advert.ip) else { return CacheUpdate::Unchanged };
        let entry = &self.entries[index as usize];
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

    /// The next question that is due. Ask until `None`; cheap while nothing is due.
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
                    // The next time begins with this one.
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

    /// The time of an entry's state is up.
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

    /// Changes an entry by the table.
    fn apply_event(&mut self, now: Instant, index: u32, event: Event) {
        let jitter = self.seed ^ u64::from(index) << 32 ^ now.as_nanos();
        let entry = &mut self.entries[index as usize];
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

/// Between half and one and a half of `mean`, so that neighbours are not probed in step
/// (RFC 4861 section 6.3.2).
const fn jittered(mean: u64, random: u64) -> u64 {
    let mixed = random.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
    mean / 2 + (mean >> 10) * mixed
}
