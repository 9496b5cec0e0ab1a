//! Frames from port to port, through the wire.

use std::time::Instant;

use ferrowarp::device::{RawFrame, RawPort};
use ferrowarp_link::{Faults, Frame, LinkEmulator};

/// Frames taken from a port in one pass.
const RX_BURST: usize = 32;
/// Frames handed to a port in one pass.
const TX_BURST: usize = 64;
/// Frames that a port has not taken for so long are dropped: its other end is down.
const PORT_STALL_NS: u64 = 1_000_000;

/// A frame under way.
#[derive(Debug)]
struct LinkFrame(RawFrame);

impl Frame for LinkFrame {
    fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
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
    pub max_ns: u64,
}

/// One direction.
#[derive(Debug)]
struct Direction {
    link: LinkEmulator<LinkFrame>,
    lateness: Lateness,
    /// When the port at the end last took what it was given.
    last_tx_ns: u64,
}

/// Two ports and the wire between them.
#[derive(Debug)]
pub struct Forwarder {
    /// Left and right.
    ports: [RawPort; 2],
    /// From the port of the same index to the other.
    directions: [Direction; 2],
    late_after_ns: u64,
}

impl Forwarder {
    /// A wire with these faults from left to right and from right to left, with at most so many
    /// frames under way each way. A frame later than `late_after_ns` counts as late.
    #[must_use]
    pub fn new(
        ports: [RawPort; 2],
        faults: [Faults; 2],
        seed: u64,
        frames_max: usize,
        late_after_ns: u64,
    ) -> Self {
        let way = |index: usize| {
            // Far apart, so that neighbouring seeds have no direction in common.
            let seed = seed ^ (index as u64) << 63;
            let link = LinkEmulator::new(faults[index], seed).frames_max(frames_max);
            Direction { link, lateness: Lateness::default(), last_tx_ns: 0 }
        };
        Self { ports, directions: [way(0), way(1)], late_after_ns }
    }

    /// Takes what has come and sends what is due. True if there was anything.
    pub fn poll(&mut self, clock: Clock) -> bool {
        let Self { ports: [left, right], directions: [to_right, to_left], late_after_ns } = self;
        let taken = to_right.rx_burst(left, right, clock) + to_left.rx_burst(right, left, clock);
        let given = to_right.tx_burst(right, clock, *late_after_ns)
            + to_left.tx_burst(left, clock, *late_after_ns);
        taken + given > 0
    }

    /// When the next frame is due; at once if a port has not taken all it was given.
    #[must_use]
    pub fn next_due_ns(&self) -> Option<u64> {
        if self.ports.iter().any(RawPort::has_backlog) {
            return Some(0);
        }
        self.directions.iter().filter_map(|way| way.link.next_arrival_ns()).min()
    }

    /// The ports, left and right.
    #[must_use]
    pub const fn ports(&self) -> &[RawPort; 2] {
        &self.ports
    }

    /// What the wire did to frames from the port of that index, and how late they left.
    #[must_use]
    pub fn counters(&self, from: usize) -> (&ferrowarp_link::LinkCounters, Lateness) {
        (self.directions[from].link.counters(), self.directions[from].lateness)
    }
}

impl Direction {
    fn rx_burst(&mut self, from: &mut RawPort, to: &mut RawPort, clock: Clock) -> usize {
        let now_ns = clock.now_ns();
        from.receive(RX_BURST, |frame| {
            let copy = |frame: &LinkFrame| to.copy(frame.bytes()).map(LinkFrame);
            self.link.send(now_ns, LinkFrame(frame), copy);
        })
    }

    fn tx_burst(&mut self, to: &mut RawPort, clock: Clock, late_after_ns: u64) -> usize {
        let mut count = 0;
        let now_ns = clock.now_ns();
        while count < TX_BURST
            && let Some(due_ns) = self.link.next_arrival_ns()
            && let Some(LinkFrame(frame)) = self.link.receive(now_ns)
        {
            let late_ns = now_ns - due_ns;
            self.lateness.count += u64::from(late_ns > late_after_ns);
            self.lateness.max_ns = self.lateness.max_ns.max(late_ns);
            to.send(frame);
            count += 1;
        }
        let sent = to.flush();
        if sent > 0 || !to.has_backlog() {
            self.last_tx_ns = now_ns;
        } else if now_ns - self.last_tx_ns > PORT_STALL_NS {
            to.drop_waiting();
        }
        sent + count
    }
}
