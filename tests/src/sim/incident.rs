//! What happens for a while, and is over.

use ferrowarp_proto::time::{Instant, MICROSECOND, MILLISECOND};
use rand::Rng;
use rand::rngs::SmallRng;

/// Something that goes on for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incident {
    /// The wire is cut: what is sent is lost.
    Cut,
    /// The pool for data has nothing.
    NoData {
        /// Whose.
        end: usize,
    },
    /// The pool for control segments has nothing.
    NoControl {
        /// Whose.
        end: usize,
    },
    /// The port has no buffer to receive into: what arrives is lost.
    Deaf {
        /// Whose.
        end: usize,
    },
    /// The process does not run, and finds time to have jumped. Its port still receives.
    Pause {
        /// Whose.
        end: usize,
    },
    /// The application neither posts nor polls.
    Busy {
        /// Whose.
        end: usize,
    },
}

/// An incident from `from` until before `until`.
#[derive(Clone, Copy, Debug)]
struct Entry {
    what: Incident,
    from: Instant,
    until: Instant,
}

/// What happens when.
#[derive(Clone, Debug, Default)]
pub struct Schedule {
    entries: Vec<Entry>,
}

impl Schedule {
    /// `count` incidents that begin within `span_ns`, at random.
    #[must_use]
    pub fn draw(chance: &mut SmallRng, count: usize, span_ns: u64) -> Self {
        let mut schedule = Self::default();
        for _ in 0..count {
            let end = chance.random_range(0..2);
            let from = Instant::from_nanos(chance.random_range(0..span_ns));
            let (what, len) = match chance.random_range(0..6) {
                // Mostly short, now and then for seconds.
                0 if chance.random_bool(0.2) => (Incident::Cut, 3000 * MILLISECOND),
                0 => (Incident::Cut, 30 * MILLISECOND),
                1 => (Incident::NoData { end }, 20 * MILLISECOND),
                2 => (Incident::NoControl { end }, 20 * MILLISECOND),
                3 => (Incident::Deaf { end }, 5 * MILLISECOND),
                4 => (Incident::Pause { end }, 500 * MILLISECOND),
                _ => (Incident::Busy { end }, 50 * MILLISECOND),
            };
            schedule.add(what, from, chance.random_range(100 * MICROSECOND..len));
        }
        schedule
    }

    /// Adds an incident.
    pub fn add(&mut self, what: Incident, from: Instant, len_ns: u64) {
        self.entries.push(Entry { what, from, until: from + len_ns });
    }

    /// Nothing happens any more.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Whether it goes on at `now`.
    #[must_use]
    pub fn is_on(&self, now: Instant, what: Incident) -> bool {
        self.entries
            .iter()
            .any(|entry| entry.what == what && entry.from <= now && now < entry.until)
    }

    /// When what goes on at `now` is over.
    #[must_use]
    pub fn end_of(&self, now: Instant, what: Incident) -> Option<Instant> {
        let on = |entry: &&Entry| entry.what == what && entry.from <= now && now < entry.until;
        self.entries.iter().filter(on).map(|entry| entry.until).max()
    }

    /// When something next begins or ends after `now`.
    #[must_use]
    pub fn next(&self, now: Instant) -> Option<Instant> {
        let times = self.entries.iter().flat_map(|entry| [entry.from, entry.until]);
        times.filter(|&at| at > now).min()
    }
}
