//! One direction of a wire that loses, repeats, delays, reorders and corrupts.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ferrowarp_proto::time::Instant;
use rand::Rng;
use rand::rngs::SmallRng;

/// What the wire does to frames. Probabilities from 0 to 1.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// A frame is lost.
    pub loss: f64,
    /// With a lost frame go those behind it for up to so many nanoseconds.
    pub burst_ns_max: u64,
    /// A frame arrives twice.
    pub duplicate: f64,
    /// A frame is held back for a while.
    pub reorder: f64,
    /// A bit is flipped.
    pub corrupt: f64,
    /// Time on the wire, in nanoseconds.
    pub delay_ns: u64,
    /// Added to the delay at random, up to this.
    pub jitter_ns: u64,
}

/// Frames on their way, earliest first.
pub struct Link {
    faults: Faults,
    flying: BinaryHeap<Reverse<(Instant, u64, Vec<u8>)>>,
    sent: u64,
    losing_until: Instant,
    /// Frames of a smooth wire never overtake each other.
    last_arrival: Instant,
}

impl Link {
    /// A wire with nothing on it.
    #[must_use]
    pub fn new(faults: Faults) -> Self {
        Self {
            faults,
            flying: BinaryHeap::new(),
            sent: 0,
            losing_until: Instant::ZERO,
            last_arrival: Instant::ZERO,
        }
    }

    /// Repairs the wire: what is sent from now on arrives.
    pub const fn heal(&mut self) {
        self.faults.loss = 0.0;
        self.faults.corrupt = 0.0;
        self.losing_until = Instant::ZERO;
    }

    /// From now on the wire has these faults.
    pub const fn damage(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Takes a frame at `now`.
    pub fn send(&mut self, now: Instant, mut frame: Vec<u8>, chance: &mut SmallRng) {
        if now < self.losing_until {
            return;
        }
        if chance.random_bool(self.faults.loss) {
            self.losing_until = now + chance.random_range(0..=self.faults.burst_ns_max);
            return;
        }
        // Only what checksums guard: ARP has none, and a wrong answer would be believed.
        let is_ip = frame[12..14] == [8, 0];
        if is_ip && chance.random_bool(self.faults.corrupt) {
            // Where nobody but TCP's checksum looks: in the payload, if there is any.
            let headers = 14 + 20 + usize::from(frame[46] >> 4) * 4;
            let start = if frame.len() > headers { headers } else { 14 };
            let bit = chance.random_range(start * 8..frame.len() * 8);
            frame[bit / 8] ^= 1 << (bit % 8);
        }
        let copies = if chance.random_bool(self.faults.duplicate) { 2 } else { 1 };
        for _ in 0..copies {
            let jitter = chance.random_range(0..=self.faults.jitter_ns);
            let mut arrival = now + (self.faults.delay_ns + jitter);
            if chance.random_bool(self.faults.reorder) {
                let hold = chance.random_range(1..=20 * (self.faults.delay_ns + 1000));
                arrival = arrival + hold;
            } else {
                arrival = arrival.max(self.last_arrival);
                self.last_arrival = arrival;
            }
            self.sent += 1;
            self.flying.push(Reverse((arrival, self.sent, frame.clone())));
        }
    }

    /// The next frame that has arrived by `now`.
    pub fn arrive(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.next_arrival()? > now {
            return None;
        }
        self.flying.pop().map(|Reverse((_, _, frame))| frame)
    }

    /// When the next frame arrives.
    #[must_use]
    pub fn next_arrival(&self) -> Option<Instant> {
        self.flying.peek().map(|Reverse((at, _, _))| *at)
    }
}
