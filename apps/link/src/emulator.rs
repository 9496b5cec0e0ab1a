//! The wire itself.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::faults::Faults;
use crate::packet::{IpPacket, packet_len, wire_bytes};

/// Something with bytes that travels: from the Ethernet header on, without the check sequence.
pub trait Frame {
    /// All of them.
    fn bytes(&self) -> &[u8];
    /// All of them, to be changed.
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl Frame for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

/// What became of the frames so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Handed to the link.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Dropped because the packet was too long for the wire.
    pub too_long: u64,
    /// Dropped because the queue was full.
    pub overflowed: u64,
    /// Marked as having met congestion.
    pub marked: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Damaged.
    pub corrupted: u64,
    /// Arrived twice.
    pub duplicated: u64,
    /// Held back so that others overtake.
    pub reordered: u64,
    /// Given back.
    pub arrived: u64,
    /// Their bytes.
    pub arrived_bytes: u64,
    /// Not the wire's doing: refused because [`LinkEmulator::frames_max`] were under way, or not
    /// repeated because there was no memory.
    pub no_buffer: u64,
}

/// What chance has for one frame: drawn at once, so that every frame draws equally often.
struct Draws {
    state_change: u64,
    loss: u64,
    corrupt: u64,
    bit: u64,
    duplicate: u64,
    /// For the frame, and for its second copy.
    delays: [DelayDraws; 2],
}

#[derive(Clone, Copy)]
struct DelayDraws {
    jitter: u64,
    reorder: u64,
    hold: u64,
}

impl Draws {
    fn draw(rng: &mut SmallRng) -> Self {
        let mut next = || rng.random::<u64>();
        Self {
            state_change: next(),
            loss: next(),
            corrupt: next(),
            bit: next(),
            duplicate: next(),
            delays: [(); 2].map(|()| DelayDraws { jitter: next(), reorder: next(), hold: next() }),
        }
    }
}

/// Whether a draw falls into a share of all.
fn occurs(draw: u64, share: f64) -> bool {
    /// 2^-53: the draw's upper bits as a number from 0 to below 1, without rounding.
    const UNIT: f64 = 1.0 / (1_u64 << 53) as f64;
    (draw >> 11) as f64 * UNIT < share
}

/// A draw as a number from 0 to `most`.
fn scale(draw: u64, most: u64) -> u64 {
    let product = u128::from(draw) * (u128::from(most) + 1);
    u64::try_from(product >> 64).expect("less than `most` and one")
}

/// A frame on its way. Earlier ones are greater, because the heap gives the greatest.
#[derive(Debug)]
struct InFlight<F> {
    key: Reverse<(u64, u64)>,
    frame: F,
}

impl<F> PartialEq for InFlight<F> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<F> Eq for InFlight<F> {}

impl<F> PartialOrd for InFlight<F> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<F> Ord for InFlight<F> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key.cmp(&other.key)
    }
}

/// One direction of a wire. Times are in nanoseconds since an origin of the caller's choice, and
/// only ever move forward.
#[derive(Debug)]
pub struct LinkEmulator<F> {
    faults: Faults,
    rng: SmallRng,
    /// The bad time of [`crate::GilbertElliott`].
    in_bad_state: bool,
    in_flight: BinaryHeap<InFlight<F>>,
    /// Tells frames of one arrival time apart.
    sequence: u64,
    /// When the wire has sent all that waits for it.
    wire_free_ns: u64,
    /// Frames of a smooth wire never overtake each other.
    last_arrival_ns: u64,
    frames_max: usize,
    counters: LinkCounters,
}

impl<F: Frame> LinkEmulator<F> {
    /// A wire with nothing on it.
    #[must_use]
    pub fn new(faults: Faults, seed: u64) -> Self {
        Self {
            faults,
            rng: SmallRng::seed_from_u64(seed),
            in_bad_state: false,
            in_flight: BinaryHeap::new(),
            sequence: 0,
            wire_free_ns: 0,
            last_arrival_ns: 0,
            frames_max: 1 << 20,
            counters: LinkCounters::default(),
        }
    }

    /// Bounds the frames that are under way at a time, a million unless set.
    #[must_use]
    pub fn frames_max(mut self, count: usize) -> Self {
        self.frames_max = count;
        self.in_flight.reserve(count);
        self
    }

    /// What the wire does.
    #[must_use]
    pub const fn faults(&self) -> &Faults {
        &self.faults
    }

    /// From now on the wire does this. What is under way stays as it is.
    pub const fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
        self.in_bad_state = false;
    }

    /// What became of the frames so far.
    #[must_use]
    pub const fn counters(&self) -> &LinkCounters {
        &self.counters
    }

    /// Frames under way.
    #[must_use]
    pub fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether nothing is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Takes a frame at `now_ns`. `copy` is asked for a second one if chance wants it to arrive
    /// twice. About 50 ns and what a heap costs; no allocation with [`LinkEmulator::frames_max`]
    /// set.
    pub fn send(&mut self, now_ns: u64, mut frame: F, copy: impl FnOnce(&F) -> Option<F>) {
        let fate = Draws::draw(&mut self.rng);
        let len = frame.bytes().len();
        self.counters.sent += 1;
        self.counters.sent_bytes += len as u64;
        let is_lost = self.draw_loss(&fate);
        if self.faults.mtu.is_some_and(|mtu| packet_len(frame.bytes()) > usize::from(mtu)) {
            self.counters.too_long += 1;
            return;
        }
        if self.in_flight.len() >= self.frames_max {
            self.counters.no_buffer += 1;
            return;
        }
        let Some(sent_ns) = self.serialize(now_ns, &mut frame) else {
            self.counters.overflowed += 1;
            return;
        };
        if is_lost {
            self.counters.lost += 1;
            return;
        }
        if occurs(fate.corrupt, self.faults.corrupt) {
            self.flip_bit(&mut frame, fate.bit);
        }
        if occurs(fate.duplicate, self.faults.duplicate) {
            match copy(&frame) {
                Some(second) => {
                    self.counters.duplicated += 1;
                    self.schedule_arrival(sent_ns, second, fate.delays[1]);
                }
                None => self.counters.no_buffer += 1,
            }
        }
        self.schedule_arrival(sent_ns, frame, fate.delays[0]);
    }

    /// The next frame that has arrived by `now_ns`.
    pub fn receive(&mut self, now_ns: u64) -> Option<F> {
        if self.next_arrival_ns()? > now_ns {
            return None;
        }
        let frame = self.in_flight.pop()?.frame;
        self.counters.arrived += 1;
        self.counters.arrived_bytes += frame.bytes().len() as u64;
        Some(frame)
    }

    /// When the next frame arrives.
    #[must_use]
    pub fn next_arrival_ns(&self) -> Option<u64> {
        self.in_flight.peek().map(|flying| flying.key.0.0)
    }

    fn draw_loss(&mut self, fate: &Draws) -> bool {
        let Some((to_bad, to_good, loss)) = self.faults.burst_transitions() else {
            return occurs(fate.loss, self.faults.loss);
        };
        let step = if self.in_bad_state { to_good } else { to_bad };
        self.in_bad_state ^= occurs(fate.state_change, step);
        self.in_bad_state && occurs(fate.loss, loss)
    }

    /// Lets the frame wait for the wire and pass it: when its last byte is sent, or `None` if
    /// the queue has no room.
    fn serialize(&mut self, now_ns: u64, frame: &mut F) -> Option<u64> {
        let Some(rate) = self.faults.rate else { return Some(now_ns) };
        let bytes = wire_bytes(frame.bytes().len());
        let waiting_ns = self.wire_free_ns.saturating_sub(now_ns);
        let waiting = u128::from(waiting_ns) * u128::from(rate) / 1_000_000_000;
        let above = |bound: Option<u64>, more: u64| {
            bound.is_some_and(|bound| waiting + u128::from(more) > u128::from(bound))
        };
        if above(self.faults.queue, bytes) && waiting_ns > 0 {
            return None;
        }
        if above(self.faults.mark, 0)
            && let Some(ip) = IpPacket::parse(frame.bytes())
        {
            self.counters.marked += u64::from(ip.set_ce(frame.bytes_mut()));
        }
        let takes_ns = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
        let takes_ns = u64::try_from(takes_ns).unwrap_or(u64::MAX);
        self.wire_free_ns = self.wire_free_ns.max(now_ns).saturating_add(takes_ns);
        Some(self.wire_free_ns)
    }

    fn flip_bit(&mut self, frame: &mut F, draw: u64) {
        let bytes = frame.bytes_mut();
        let Some(ip) = IpPacket::parse(bytes) else { return };
        let start = if self.faults.payload_only {
            ip.tcp_payload_offset(bytes).unwrap_or(bytes.len())
        } else {
            ip.start
        };
        if start >= bytes.len() {
            return;
        }
        let bits = (bytes.len() - start) as u64 * 8;
        let bit = scale(draw, bits - 1);
        let at = start + usize::try_from(bit / 8).expect("less than a frame has");
        bytes[at] ^= 1 << (bit % 8);
        self.counters.corrupted += 1;
    }

    fn schedule_arrival(&mut self, sent_ns: u64, frame: F, flight: DelayDraws) {
        let jitter_ns = scale(flight.jitter, self.faults.jitter_ns);
        let mut arrival_ns = sent_ns.saturating_add(self.faults.delay_ns + jitter_ns);
        if occurs(flight.reorder, self.faults.reorder) {
            arrival_ns = arrival_ns.saturating_add(scale(flight.hold, self.faults.hold_max_ns()));
            self.counters.reordered += 1;
        } else {
            arrival_ns = arrival_ns.max(self.last_arrival_ns);
            self.last_arrival_ns = arrival_ns;
        }
        self.sequence += 1;
        self.in_flight.push(InFlight { key: Reverse((arrival_ns, self.sequence)), frame });
    }
}

#[cfg(test)]
mod tests;
