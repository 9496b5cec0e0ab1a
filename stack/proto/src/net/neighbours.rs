//! Neighbour cache: IP address to hardware address, for ARP and neighbour discovery alike
//! (RFC 4861 section 7, RFC 826).
//!
//! Whoever needs an address looks again in a later pass; nothing is queued here and nothing is
//! dropped. [`Neighbours::epoch`] moves on whenever looking again may pay. An entry comes into
//! being only when this host wants to talk to that neighbour: what strangers say of themselves
//! changes entries by the rules of RFC 4861 section 7.2.5, and never makes one. (Section 7.2.3
//! would note who asks us; a host that we then talk to could so be spoken for in advance.)

mod state;
#[cfg(test)]
mod tests;

use core::net::IpAddr;
use std::collections::HashMap;

pub use state::State;

use crate::net::keyed::KeyedHash;
use crate::net::rate::RateLimit;
use crate::time::{Instant, MILLISECOND, SECOND};
use crate::wire::link::is_unicast;
use state::{Address, Event, Told};

/// Entries at most.
const COUNT_MAX: usize = 1024;
/// Questions to all neighbours together, in one second, at most.
const QUESTIONS_PER_SECOND: u32 = 1000;
/// How soon a question is tried again that the bound held back; timers are looked at no more
/// often than this.
const TICK_NS: u64 = 10 * MILLISECOND;

/// An entry that was not looked up for so long may give way: who needs it looks every second.
const IN_USE_NS: u64 = 3 * SECOND;

/// Times and counts of the state machine (RFC 4861 section 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourConfig {
    /// How long a sign of reachability counts, on average (REACHABLE_TIME).
    pub reachable_ns: u64,
    /// How long signs are waited for before a neighbour is probed (DELAY_FIRST_PROBE_TIME).
    pub delay_ns: u64,
    /// Between two questions (RETRANS_TIMER).
    pub retrans_ns: u64,
    /// Questions at the known address (MAX_UNICAST_SOLICIT).
    pub unicast_count: u8,
    /// Questions to everybody (MAX_MULTICAST_SOLICIT). Two more than the three of the RFC, as
    /// RFC 7048 allows: a connection attempt fails with the last.
    pub multicast_count: u8,
    /// How long a neighbour that did not answer is left alone.
    pub hold_down_ns: u64,
}

impl Default for NeighbourConfig {
    fn default() -> Self {
        Self {
            reachable_ns: 30 * SECOND,
            delay_ns: 5 * SECOND,
            retrans_ns: SECOND,
            unicast_count: 3,
            multicast_count: 5,
            hold_down_ns: 3 * SECOND,
        }
    }
}

/// What the cache says of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is there.
    Known([u8; 6]),
    /// It is being asked for: look again when the epoch changes.
    Wait,
    /// Nobody answered. Looking again later starts over.
    Unreachable,
}

/// A question to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Who is asked for.
    pub ip: IpAddr,
    /// Where it is asked; `None`: everywhere.
    pub mac: Option<[u8; 6]>,
}

/// What a neighbour said of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statement {
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
pub struct NeighbourId {
    index: u32,
    generation: u32,
}

/// What became of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It changed nothing that matters.
    Nothing,
    /// An address became known.
    Resolved,
    /// A neighbour whose address was known has another.
    Moved,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    ip: IpAddr,
    generation: u32,
    state: State,
    /// Known in all states but `Incomplete` and `Failed`.
    mac: [u8; 6],
    /// End of the state's time.
    due: Instant,
    /// Questions sent in this state.
    questions: u8,
    used_at: Instant,
}

impl Entry {
    /// The end of its time is to be acted on even if nobody uses the entry.
    const fn has_timer(&self) -> bool {
        matches!(self.state, State::Incomplete | State::Delay | State::Probe)
    }

    /// Lower goes first when room is needed: what failed, then what is not talked to.
    const fn worth(&self) -> (u8, Instant) {
        let class = match self.state {
            State::Failed => 0,
            State::Stale => 1,
            State::Incomplete => 2,
            State::Reachable | State::Delay | State::Probe => 3,
        };
        (class, self.used_at)
    }
}

/// The cache.
#[derive(Debug)]
pub struct Neighbours {
    config: NeighbourConfig,
    seed: u64,
    entries: Vec<Entry>,
    by_ip: HashMap<IpAddr, u32, KeyedHash>,
    epoch: u32,
    /// No timer ends before; [`NEVER`] if none runs.
    next_due: Instant,
    /// Where the search for due entries begins.
    cursor: usize,
    questions: RateLimit,
}

const NEVER: Instant = Instant::from_nanos(u64::MAX);

impl Neighbours {
    /// An empty cache.
    #[must_use]
    pub fn new(config: NeighbourConfig, seed: u64) -> Self {
        Self {
            config,
            seed,
            entries: Vec::new(),
            by_ip: HashMap::with_hasher(KeyedHash::new(seed)),
            epoch: 0,
            next_due: NEVER,
            cursor: 0,
            questions: RateLimit::new(QUESTIONS_PER_SECOND),
        }
    }

    /// Changes whenever an address became known, changed, or was given up.
    #[inline]
    #[must_use]
    pub const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// When [`Neighbours::next_question`] has something to do next, at the latest.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        (self.next_due != NEVER).then_some(self.next_due)
    }

    /// The entry of `ip`, made if there is none: it will be asked for. `None` while the cache is
    /// full of neighbours in use.
    pub fn find(&mut self, now: Instant, ip: IpAddr) -> Option<NeighbourId> {
        if let Some(&index) = self.by_ip.get(&ip) {
            let generation = self.entries[index as usize].generation;
            return Some(NeighbourId { index, generation });
        }
        let entry = Entry {
            ip,
            generation: 0,
            state: State::Incomplete,
            mac: [0; 6],
            due: now,
            questions: 0,
            used_at: now,
        };
        let index = self.place(entry)?;
        self.by_ip.insert(ip, index);
        self.next_due = self.next_due.min(now);
        Some(NeighbourId { index, generation: self.entries[index as usize].generation })
    }

    /// Stores an entry, in place of the one of least worth if the cache is full.
    fn place(&mut self, entry: Entry) -> Option<u32> {
        if self.entries.len() < COUNT_MAX {
            self.entries.push(entry);
            return u32::try_from(self.entries.len() - 1).ok();
        }
        let (index, least) =
            (0u32..).zip(&mut self.entries).min_by_key(|(_, entry)| entry.worth())?;
        let is_unused = matches!(least.state, State::Failed | State::Stale)
            || entry.used_at.since(least.used_at) > IN_USE_NS;
        if !is_unused {
            return None;
        }
        self.by_ip.remove(&least.ip);
        *least = Entry { generation: least.generation.wrapping_add(1), ..entry };
        Some(index)
    }

    fn entry(&mut self, id: NeighbourId) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(id.index as usize)?;
        (entry.generation == id.generation).then_some(entry)
    }

    /// A frame is about to go to a neighbour: where to. `None` if the entry gave way.
    pub fn look_up(&mut self, now: Instant, id: NeighbourId) -> Option<Answer> {
        let entry = self.entry(id)?;
        entry.used_at = now;
        let (state, is_over) = (entry.state, entry.due <= now);
        if state == State::Reachable && is_over {
            self.happen(now, id.index, Event::TimeUp);
        }
        if state != State::Failed || is_over {
            self.happen(now, id.index, Event::Used);
        }
        let entry = self.entry(id)?;
        Some(match entry.state {
            State::Incomplete => Answer::Wait,
            State::Failed => Answer::Unreachable,
            _ => Answer::Known(entry.mac),
        })
    }

    /// Frames to this neighbour at `mac` arrived: what was sent was acknowledged, or what came
    /// shows that acknowledgments arrive (RFC 4861 section 7.3.1).
    pub fn confirm(&mut self, now: Instant, id: NeighbourId, mac: [u8; 6]) {
        if self.entry(id).is_some_and(|entry| entry.mac == mac) {
            self.happen(now, id.index, Event::Progress);
        }
    }

    /// Frames to this neighbour were not acknowledged for a while: it is probed earlier than its
    /// time.
    pub fn doubt(&mut self, now: Instant, id: NeighbourId) {
        if self.entry(id).is_some() {
            self.happen(now, id.index, Event::Doubt);
        }
    }

    /// Notes what a neighbour said. Neighbours that we do not talk to are not noted, and an
    /// answer that nobody waits for counts as unasked.
    pub fn hear(&mut self, now: Instant, said: &Statement) -> Heard {
        let Some(&index) = self.by_ip.get(&said.ip) else { return Heard::Nothing };
        let entry = &self.entries[index as usize];
        let (was, old) = (entry.state, entry.mac);
        let waits = matches!(was, State::Incomplete | State::Probe) && entry.questions > 0;
        let address = match said.mac {
            None => Address::Absent,
            Some(mac) if !is_unicast(mac) => return Heard::Nothing,
            Some(mac) if mac == old => Address::Same,
            Some(_) => Address::Other,
        };
        let solicited = said.solicited && waits;
        let told = Told { solicited, overrides: said.overrides, address };
        let takes = was.after(Event::Told(told)).is_some_and(|outcome| outcome.takes_address);
        self.happen(now, index, Event::Told(told));
        let (true, Some(mac)) = (takes, said.mac) else { return Heard::Nothing };
        self.entries[index as usize].mac = mac;
        self.epoch = self.epoch.wrapping_add(1);
        let was_known = !matches!(was, State::Incomplete | State::Failed);
        if was_known { Heard::Moved } else { Heard::Resolved }
    }

    /// The next question that is due. Ask until `None`; cheap while nothing is due.
    pub fn next_question(&mut self, now: Instant) -> Option<Question> {
        if now < self.next_due {
            return None;
        }
        for _ in 0..self.entries.len() {
            let at = self.cursor % self.entries.len();
            let entry = &self.entries[at];
            if entry.has_timer() && entry.due <= now {
                let asks = entry.state != State::Incomplete
                    || entry.questions < self.config.multicast_count;
                if asks && !self.questions.admits(now) {
                    // The next time begins with this one.
                    self.next_due = now + TICK_NS;
                    return None;
                }
                self.cursor = at + 1;
                self.time_up(now, at);
                if asks {
                    return Some(self.question(now, at));
                }
            }
            self.cursor = at + 1;
        }
        let timers = self.entries.iter().filter(|entry| entry.has_timer()).map(|entry| entry.due);
        self.next_due = timers.min().map_or(NEVER, |due| due.max(now + TICK_NS));
        None
    }

    /// The time of an entry's state is up.
    fn time_up(&mut self, now: Instant, at: usize) {
        let entry = &self.entries[at];
        let count_max = match entry.state {
            State::Incomplete => self.config.multicast_count,
            State::Probe => self.config.unicast_count,
            _ => u8::MAX,
        };
        let is_last = entry.questions >= count_max;
        let event = if is_last { Event::NoAnswer } else { Event::TimeUp };
        self.happen(now, u32::try_from(at).expect("bounded"), event);
    }

    fn question(&mut self, now: Instant, at: usize) -> Question {
        let entry = &mut self.entries[at];
        entry.questions += 1;
        entry.due = now + self.config.retrans_ns;
        let mac = (entry.state == State::Probe).then_some(entry.mac);
        Question { ip: entry.ip, mac }
    }

    /// Changes an entry by the table.
    fn happen(&mut self, now: Instant, index: u32, event: Event) {
        let jitter = self.seed ^ u64::from(index) << 32 ^ now.as_nanos();
        let entry = &mut self.entries[index as usize];
        let Some(outcome) = entry.state.after(event) else { return };
        let was = core::mem::replace(&mut entry.state, outcome.state);
        if was == outcome.state && outcome.state != State::Reachable {
            return;
        }
        entry.questions = 0;
        entry.due = match outcome.state {
            State::Reachable => now + spread(self.config.reachable_ns, jitter),
            State::Delay => now + self.config.delay_ns,
            State::Failed => now + self.config.hold_down_ns,
            State::Incomplete | State::Probe | State::Stale => now,
        };
        if outcome.state == State::Failed {
            self.epoch = self.epoch.wrapping_add(1);
        }
        if entry.has_timer() {
            self.next_due = self.next_due.min(entry.due);
        }
    }
}

/// Between half and one and a half of `mean`, so that neighbours are not probed in step
/// (RFC 4861 section 6.3.2).
const fn spread(mean: u64, chance: u64) -> u64 {
    let mixed = chance.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
    mean / 2 + (mean >> 10) * mixed
}
