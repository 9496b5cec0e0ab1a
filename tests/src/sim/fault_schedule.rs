//! Scheduled faults: each is active for a limited time.

use ferrowarp_proto::time::{Instant, MICROSECOND, MILLISECOND};
use rand::RngExt;
use rand::rngs::SmallRng;

/// A temporary fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduledFault {
    /// The link is down: frames sent are lost.
    LinkDown,
    /// Allocation from the data pool fails.
    DataPoolEmpty {
        /// The end affected.
        end: usize,
    },
    /// Allocation from the control pool fails.
    ControlPoolEmpty {
        /// The end affected.
        end: usize,
    },
    /// The port has no receive buffers: arriving frames are lost.
    NoRxBuffers {
        /// The end affected.
        end: usize,
    },
    /// The process is not scheduled; its clock jumps when it resumes. Its port still receives.
    EnginePaused {
        /// The end affected.
        end: usize,
    },
    /// The thread of one shard is not scheduled. Its queue still receives.
    ShardStalled {
        /// The end affected.
        end: usize,
        /// The shard of that end.
        shard: usize,
    },
    /// The application neither posts nor polls.
    AppBusy {
        /// The end affected.
        end: usize,
    },
}

/// A fault, active from `from` until just before `until`.
#[derive(Clone, Copy, Debug)]
struct Entry {
    fault: ScheduledFault,
    from: Instant,
    until: Instant,
}

/// Faults and the times at which they are active.
#[derive(Clone, Debug, Default)]
pub struct FaultSchedule {
    entries: Vec<Entry>,
}

impl FaultSchedule {
    /// Draws `count` faults that begin within `span_ns`.
    #[must_use]
    pub fn draw(rng: &mut SmallRng, count: usize, span_ns: u64) -> Self {
        let mut schedule = Self::default();
        for _ in 0..count {
            let end = rng.random_range(0..2);
            let from = Instant::from_nanos(rng.random_range(0..span_ns));
            let (what, len) = match rng.random_range(0..6) {
                // Mostly short, sometimes for seconds.
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

    /// Adds a fault.
    pub fn add(&mut self, what: ScheduledFault, from: Instant, len_ns: u64) {
        self.entries.push(Entry { fault: what, from, until: from + len_ns });
    }

    /// Removes all faults.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// True if the fault is active at `now`.
    #[must_use]
    pub fn is_active(&self, now: Instant, what: ScheduledFault) -> bool {
        self.entries
            .iter()
            .any(|entry| entry.fault == what && entry.from <= now && now < entry.until)
    }

    /// End of the fault active at `now`, if there is one.
    #[must_use]
    pub fn active_until(&self, now: Instant, what: ScheduledFault) -> Option<Instant> {
        let on = |entry: &&Entry| entry.fault == what && entry.from <= now && now < entry.until;
        self.entries.iter().filter(on).map(|entry| entry.until).max()
    }

    /// Next time after `now` at which any fault begins or ends.
    #[must_use]
    pub fn next_change(&self, now: Instant) -> Option<Instant> {
        let times = self.entries.iter().flat_map(|entry| [entry.from, entry.until]);
        times.filter(|&at| at > now).min()
    }
}
