//! What happens for a while, and is over.

use ferrowarp_proto::time::{Instant, MICROSECOND, MILLISECOND};
use rand::Rng;
use rand::rngs::SmallRng;

/// Something that goes on for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduledFault {
    /// The wire is cut: what is sent is lost.
    LinkDown,
    /// The pool for data has nothing.
    DataPoolEmpty {
        /// Whose.
        end: usize,
    },
    /// The pool for control segments has nothing.
    ControlPoolEmpty {
        /// Whose.
        end: usize,
    },
    /// The port has no buffer to receive into: what arrives is lost.
    NoRxBuffers {
        /// Whose.
        end: usize,
    },
    /// The process does not run, and finds time to have jumped. Its port still receives.
    EnginePaused {
        /// Whose.
        end: usize,
    },
    /// The application neither posts nor polls.
    AppBusy {
        /// Whose.
        end: usize,
    },
}

/// An incident from `from` until before `until`.
#[derive(Clone, Copy, Debug)]
struct Entry {
    fault: ScheduledFault,
    from: Instant,
    until: Instant,
}

/// What happens when.
#[derive(Clone, Debug, Default)]
pub struct FaultSchedule {
    entries: Vec<Entry>,
}

impl FaultSchedule {
    /// `count` incidents that begin within `span_ns`, at random.
    #[must_use]
    pub fn draw(rng: &mut SmallRng, count: usize, span_ns: u64) -> Self {
        let mut schedule = Self::default();
        for _ in 0..count {
            let end = rng.random_range(0..2);
            let from = Instant::from_nanos(rng.random_range(0..span_ns));
            let (what, len) = match rng.random_range(0..6) {
                // Mostly short, now and then for seconds.
                0 if rng.random_bool(0.2) => (ScheduledFault::LinkDown, 3000 * MILLISECOND),
                0 => (ScheduledFault::LinkDown, 30 * MILLISECOND),
                1 => (ScheduledFault::DataPoolEmpty { end }, 20 * MILLISECOND),
                2 => (ScheduledFault::ControlPoolEmpty { end }, 20 * MILLISECOND),
                3 => (ScheduledFault::NoRxBuffers { end }, 5 * MILLISECOND),
                4 => (ScheduledFault::EnginePaused { end }, 500 * MILLISECOND),
                _ => (ScheduledFault::AppBusy { end }, 50 * MILLISECOND),
            };
            schedule.add(what, from, rng.random_range(100 * MICROSECOND..len));
        }
        schedule
    }

    /// Adds an incident.
    pub fn add(&mut self, what: ScheduledFault, from: Instant, len_ns: u64) {
        self.entries.push(Entry { fault: what, from, until: from + len_ns });
    }

    /// Nothing happens any more.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Whether it goes on at `now`.
    #[must_use]
    pub fn is_active(&self, now: Instant, what: ScheduledFault) -> bool {
        self.entries
            .iter()
            .any(|entry| entry.fault == what && entry.from <= now && now < entry.until)
    }

    /// When what goes on at `now` is over.
    #[must_use]
    pub fn active_until(&self, now: Instant, what: ScheduledFault) -> Option<Instant> {
        let on = |entry: &&Entry| entry.fault == what && entry.from <= now && now < entry.until;
        self.entries.iter().filter(on).map(|entry| entry.until).max()
    }

    /// When something next begins or ends after `now`.
    #[must_use]
    pub fn next_change(&self, now: Instant) -> Option<Instant> {
        let times = self.entries.iter().flat_map(|entry| [entry.from, entry.until]);
        times.filter(|&at| at > now).min()
    }
}
