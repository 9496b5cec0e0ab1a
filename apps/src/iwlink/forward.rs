//! Forwards frames from port to port, through the link emulator.

use std::time::Instant;

use ferrowarp::device::{RawFrame, RawPort};
use ferrowarp_link::{Faults, Frame, LinkEmulator};

/// Frames received from a port per poll.
const RX_BURST: usize = 32;
/// Frames sent to a port per poll.
const TX_BURST: usize = 64;
/// Timeout after which frames that a port does not accept are dropped: its link is down.
const PORT_STALL_NS: u64 = 1_000_000;

/// A frame in flight.
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

/// Clock in nanoseconds since forwarding began.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Starts at 0.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Returns the time.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Lateness of frames against their due times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// Frames later than the threshold.
    pub count: u64,
    /// Maximum lateness, in nanoseconds.
    pub max_ns: u64,
}

/// One direction.
#[derive(Debug)]
struct Direction {
    link: LinkEmulator<LinkFrame>,
    lateness: Lateness,
    /// Time at which the egress port last accepted frames or had no backlog.
    last_tx_ns: u64,
}

/// Two ports and the emulated link between them.
#[derive(Debug)]
pub struct Forwarder {
    /// Left and right.
    ports: [RawPort; 2],
    /// From the port of the same index to the other.
    directions: [Direction; 2],
    late_after_ns: u64,
}

impl Forwarder {
    /// Creates a link with these faults from left to right and from right to left, and at most
    /// `frames_max` frames in flight per direction. A frame later than `late_after_ns` counts as
    /// late.
    #[must_use]
    pub fn new(
        ports: [RawPort; 2],
        faults: [Faults; 2],
        seed: u64,
        frames_max: usize,
        late_after_ns: u64,
    ) -> Self {
        let way = |index: usize| {
            // Far apart, so that neighboring seeds share no direction's seed.
            let seed = seed ^ (index as u64) << 63;
            let link = LinkEmulator::new(faults[index], seed).frames_max(frames_max);
            Direction { link, lateness: Lateness::default(), last_tx_ns: 0 }
        };
        Self { ports, directions: [way(0), way(1)], late_after_ns }
    }

    /// Receives frames and sends those that are due. True if there were any.
    pub fn poll(&mut self, clock: Clock) -> bool {
        let Self { ports: [left, right], directions: [to_right, to_left], late_after_ns } = self;
        let received = to_right.rx_burst(left, right, clock) + to_left.rx_burst(right, left, clock);
        let sent = to_right.tx_burst(right, clock, *late_after_ns)
            + to_left.tx_burst(left, clock, *late_after_ns);
        received + sent > 0
    }

    /// Returns the due time of the next frame; 0 if a port has a backlog.
    #[must_use]
    pub fn next_due_ns(&self) -> Option<u64> {
        if self.ports.iter().any(RawPort::has_backlog) {
            return Some(0);
        }
        self.directions.iter().filter_map(|way| way.link.next_arrival_ns()).min()
    }

    /// Returns the ports, left and right.
    #[must_use]
    pub const fn ports(&self) -> &[RawPort; 2] {
        &self.ports
    }

    /// Returns the counters and the lateness of frames received on port `from`.
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
