//! Frames from port to port, through the wire.

use std::time::Instant;

use ferrowarp::device::{RawFrame, RawPort};
use ferrowarp_link::{Faults, Frame, Link};

/// Frames taken from a port in one pass.
const TAKE_MAX: usize = 32;
/// Frames handed to a port in one pass.
const GIVE_MAX: usize = 64;
/// Frames that a port has not taken for so long are dropped: its other end is down.
const STUCK_NS: u64 = 1_000_000;

/// A frame under way.
#[derive(Debug)]
struct Passing(RawFrame);

impl Frame for Passing {
    fn octets(&self) -> &[u8] {
        self.0.octets()
    }

    fn octets_mut(&mut self) -> &mut [u8] {
        self.0.octets_mut()
    }
}

/// Nanoseconds since the program started to pass frames on.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Starts at 0.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// How late it is.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Frames that left later than the wire meant them to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// Later by more than is put up with.
    pub count: u64,
    /// The worst, in nanoseconds.
    pub most_ns: u64,
}

/// One direction.
#[derive(Debug)]
struct Way {
    link: Link<Passing>,
    late: Lateness,
    /// When the port at the end last took what it was given.
    taken_ns: u64,
}

/// Two ports and the wire between them.
#[derive(Debug)]
pub struct Forwarder {
    /// Left and right.
    ports: [RawPort; 2],
    /// From the port of the same index to the other.
    ways: [Way; 2],
    tolerated_ns: u64,
}

impl Forwarder {
    /// A wire with these faults from left to right and from right to left, with at most so many
    /// frames under way each way. A frame later than `tolerated_ns` counts as late.
    #[must_use]
    pub fn new(
        ports: [RawPort; 2],
        faults: [Faults; 2],
        seed: u64,
        frames_max: usize,
        tolerated_ns: u64,
    ) -> Self {
        let way = |index: usize| {
            // Far apart, so that neighbouring seeds have no direction in common.
            let seed = seed ^ (index as u64) << 63;
            let link = Link::new(faults[index], seed).frames_max(frames_max);
            Way { link, late: Lateness::default(), taken_ns: 0 }
        };
        Self { ports, ways: [way(0), way(1)], tolerated_ns }
    }

    /// Takes what has come and sends what is due. True if there was anything.
    pub fn pass(&mut self, clock: Clock) -> bool {
        let Self { ports: [left, right], ways: [to_right, to_left], tolerated_ns } = self;
        let taken = to_right.take(left, right, clock) + to_left.take(right, left, clock);
        let given =
            to_right.give(right, clock, *tolerated_ns) + to_left.give(left, clock, *tolerated_ns);
        taken + given > 0
    }

    /// When the next frame is due; at once if a port has not taken all it was given.
    #[must_use]
    pub fn next_due_ns(&self) -> Option<u64> {
        if self.ports.iter().any(RawPort::has_backlog) {
            return Some(0);
        }
        self.ways.iter().filter_map(|way| way.link.next_arrival_ns()).min()
    }

    /// The ports, left and right.
    #[must_use]
    pub const fn ports(&self) -> &[RawPort; 2] {
        &self.ports
    }

    /// What the wire did to frames from the port of that index, and how late they left.
    #[must_use]
    pub fn done(&self, from: usize) -> (&ferrowarp_link::Counters, Lateness) {
        (self.ways[from].link.counters(), self.ways[from].late)
    }
}

impl Way {
    fn take(&mut self, from: &mut RawPort, to: &mut RawPort, clock: Clock) -> usize {
        let now_ns = clock.now_ns();
        from.receive(TAKE_MAX, |frame| {
            let copy = |frame: &Passing| to.copy(frame.octets()).map(Passing);
            self.link.send(now_ns, Passing(frame), copy);
        })
    }

    fn give(&mut self, to: &mut RawPort, clock: Clock, tolerated_ns: u64) -> usize {
        let mut count = 0;
        let now_ns = clock.now_ns();
        while count < GIVE_MAX
            && let Some(due_ns) = self.link.next_arrival_ns()
            && let Some(Passing(frame)) = self.link.arrive(now_ns)
        {
            let late_ns = now_ns - due_ns;
            self.late.count += u64::from(late_ns > tolerated_ns);
            self.late.most_ns = self.late.most_ns.max(late_ns);
            to.send(frame);
            count += 1;
        }
        let sent = to.flush();
        if sent > 0 || !to.has_backlog() {
            self.taken_ns = now_ns;
        } else if now_ns - self.taken_ns > STUCK_NS {
            to.drop_waiting();
        }
        sent + count
    }
}
