//! Emulation of one direction of a link.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::faults::Faults;
use crate::packet::{IpPacket, packet_len, wire_bytes};

/// A frame: bytes from the Ethernet header on, without the frame check sequence.
pub trait Frame {
    /// Returns the frame's bytes.
    fn bytes(&self) -> &[u8];
    /// Returns the frame's bytes for modification.
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

/// Counters of one direction, in frames unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkCounters {
    /// Passed to the emulator.
    pub sent: u64,
    /// Bytes of these frames.
    pub sent_bytes: u64,
    /// Dropped because the packet exceeds the path MTU.
    pub too_long: u64,
    /// Dropped because the queue was full.
    pub overflowed: u64,
    /// Marked CE.
    pub marked: u64,
    /// Dropped by random loss.
    pub lost: u64,
    /// Corrupted.
    pub corrupted: u64,
    /// Duplicated.
    pub duplicated: u64,
    /// Delayed so that later frames overtake.
    pub reordered: u64,
    /// Returned by [`LinkEmulator::receive`].
    pub arrived: u64,
    /// Bytes of these frames.
    pub arrived_bytes: u64,
    /// Emulator errors: dropped because [`LinkEmulator::frames_max`] were in flight, or not
    /// duplicated because there was no memory.
    pub no_buffer: u64,
}

/// Random numbers of one frame, all drawn at once, so that every frame draws equally many.
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

/// True with probability `share`, for a uniform `draw`.
fn occurs(draw: u64, share: f64) -> bool {
    /// 2^-53: scales the draw's upper 53 bits to [0, 1) without rounding.
    const UNIT: f64 = 1.0 / (1_u64 << 53) as f64;
    (draw >> 11) as f64 * UNIT < share
}

/// Scales a draw to a number from 0 to `most`.
fn scale(draw: u64, most: u64) -> u64 {
    let product = u128::from(draw) * (u128::from(most) + 1);
    u64::try_from(product >> 64).expect("less than `most` and one")
}

/// A frame in flight. Earlier arrivals compare greater, because the heap pops the greatest.
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

/// Emulator of one direction of a link. Times are in nanoseconds since an origin of the caller's
/// choice, and never go back.
#[derive(Debug)]
pub struct LinkEmulator<F> {
    faults: Faults,
    rng: SmallRng,
    /// Bad state of [`crate::GilbertElliott`].
    in_bad_state: bool,
    in_flight: BinaryHeap<InFlight<F>>,
    /// Serial number of frames; orders those with the same arrival time.
    sequence: u64,
    /// Time at which the queue is empty and the last frame is serialized.
    wire_free_ns: u64,
    /// Latest arrival time of a frame that was not reordered: jitter alone never reorders.
    last_arrival_ns: u64,
    frames_max: usize,
    counters: LinkCounters,
}

impl<F: Frame> LinkEmulator<F> {
    /// Creates a link with no frames in flight.
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

    /// Sets the maximum of frames in flight, 2^20 unless set.
    #[must_use]
    pub fn frames_max(mut self, count: usize) -> Self {
        self.frames_max = count;
        self.in_flight.reserve(count);
        self
    }

    /// Returns the faults.
    #[must_use]
    pub const fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Replaces the faults. Frames in flight are not affected.
    pub const fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
        self.in_bad_state = false;
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counters(&self) -> &LinkCounters {
        &self.counters
    }

    /// Returns the number of frames in flight.
    #[must_use]
    pub fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// True if no frame is in flight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Accepts a frame at `now_ns`. `copy` is called if the frame is to be duplicated. Costs about
    /// 50 ns plus the heap operations; no allocation with [`LinkEmulator::frames_max`] set.
    pub fn send(&mut self, now_ns: u64, mut frame: F, copy: impl FnOnce(&F) -> Option<F>) {
        let draws = Draws::draw(&mut self.rng);
        let len = frame.bytes().len();
        self.counters.sent += 1;
        self.counters.sent_bytes += len as u64;
        let is_lost = self.draw_loss(&draws);
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
        if occurs(draws.corrupt, self.faults.corrupt) {
            self.flip_bit(&mut frame, draws.bit);
        }
        if occurs(draws.duplicate, self.faults.duplicate) {
            match copy(&frame) {
                Some(second) => {
                    self.counters.duplicated += 1;
                    self.schedule_arrival(sent_ns, second, draws.delays[1]);
                }
                None => self.counters.no_buffer += 1,
            }
        }
        self.schedule_arrival(sent_ns, frame, draws.delays[0]);
    }

    /// Returns the next frame that has arrived by `now_ns`.
    pub fn receive(&mut self, now_ns: u64) -> Option<F> {
        if self.next_arrival_ns()? > now_ns {
            return None;
        }
        let frame = self.in_flight.pop()?.frame;
        self.counters.arrived += 1;
        self.counters.arrived_bytes += frame.bytes().len() as u64;
        Some(frame)
    }

    /// Returns the arrival time of the next frame.
    #[must_use]
    pub fn next_arrival_ns(&self) -> Option<u64> {
        self.in_flight.peek().map(|next| next.key.0.0)
    }

    fn draw_loss(&mut self, draws: &Draws) -> bool {
        let Some((to_bad, to_good, loss)) = self.faults.burst_transitions() else {
            return occurs(draws.loss, self.faults.loss);
        };
        let step = if self.in_bad_state { to_good } else { to_bad };
        self.in_bad_state ^= occurs(draws.state_change, step);
        self.in_bad_state && occurs(draws.loss, loss)
    }

    /// Queues and serializes the frame. Returns the time at which its last byte is sent, or `None`
    /// if the queue is full.
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
