//! A client that writes and a server that reads, over a link with delay and loss. Timers fire at
//! the ticks of the timer wheel.

use std::collections::BTreeMap;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{Config, Endpoint, Event, HeapFrame};
use crate::time::{Instant, SECOND};

/// A client that writes and a server that reads, `delay_ns` apart; timers fire at the ticks of the
/// timer wheel.
pub(super) struct Pair {
    pub(super) ends: [Option<Endpoint>; 2],
    cfg: [Config; 2],
    pub(super) now: Instant,
    delay_ns: u64,
    /// Frames in flight by arrival time; the counter keeps those of equal times in order.
    wire: BTreeMap<(Instant, u64), (usize, HeapFrame)>,
    count: u64,
    /// Number of the client's data segments to be passed, then number to be lost.
    pub(super) pass_count: usize,
    pub(super) lose_count: usize,
    /// Probability of losing any frame, in parts of 10,000.
    pub(super) loss_per_10k: u32,
    rng: SmallRng,
    /// Bits per second of each direction, and when its transmitter becomes idle.
    pub(super) bits_per_second: u64,
    free_at: [Instant; 2],
}

const TICK_NS: u64 = 1 << 14;

impl Pair {
    pub(super) fn new(cfg: [Config; 2], delay_ns: u64, seed: u64) -> Self {
        let now = Instant::from_nanos(SECOND);
        let ends = [Some(Endpoint::client(&cfg[0], 77, now)), None];
        let wire = BTreeMap::new();
        let mut pair = Self {
            ends,
            cfg,
            now,
            delay_ns,
            wire,
            count: 0,
            pass_count: 0,
            lose_count: 0,
            loss_per_10k: 0,
            rng: SmallRng::seed_from_u64(seed),
            bits_per_second: u64::MAX,
            free_at: [now; 2],
        };
        pair.run(SECOND, |pair| {
            pair.ends[1].as_ref().is_some_and(|end| end.events.contains(&Event::Established))
        });
        pair
    }

    pub(super) fn client(&mut self) -> &mut Endpoint {
        self.ends[0].as_mut().unwrap()
    }

    pub(super) fn server(&mut self) -> &mut Endpoint {
        self.ends[1].as_mut().unwrap()
    }

    fn send(&mut self) {
        for side in 0..2 {
            let Some(end) = &mut self.ends[side] else { continue };
            for frame in end.transmit(self.now) {
                if side == 0 && !frame.parse().payload.is_empty() {
                    if self.pass_count > 0 {
                        self.pass_count -= 1;
                    } else if self.lose_count > 0 {
                        self.lose_count -= 1;
                        continue;
                    }
                }
                let bits = 8 * (frame.bytes.len() as u64 + 24);
                let start = self.free_at[side].max(self.now);
                self.free_at[side] =
                    start + bits * SECOND / self.bits_per_second.min(100_000_000_000);
                if self.rng.random_range(0..10_000) < self.loss_per_10k {
                    continue;
                }
                self.count += 1;
                let arrival = self.free_at[side] + self.delay_ns;
                self.wire.insert((arrival, self.count), (1 - side, frame));
            }
        }
    }

    /// Runs until `done`, for at most `limit_ns`; returns the time elapsed.
    pub(super) fn run(&mut self, limit_ns: u64, done: impl Fn(&Self) -> bool) -> u64 {
        let start = self.now;
        self.send();
        while !done(self) && self.now.since(start) < limit_ns {
            let arrival = self.wire.first_key_value().map(|(key, _)| key.0);
            let timers = self.ends.iter().flatten().filter_map(|end| end.tcb.deadline());
            let ticks =
                timers.map(|at| Instant::from_nanos((at.as_nanos() / TICK_NS + 1) * TICK_NS));
            let Some(next) = arrival.into_iter().chain(ticks).min() else { break };
            self.now = self.now.max(next);
            while let Some(entry) = self.wire.first_entry().filter(|e| e.key().0 <= self.now) {
                let (to, frame) = entry.remove();
                if let Some(end) = &mut self.ends[to] {
                    end.receive(self.now, &frame);
                } else {
                    let end = Endpoint::server(&self.cfg[to], &frame.parse(), 99, self.now);
                    self.ends[to] = Some(end);
                }
            }
            for end in self.ends.iter_mut().flatten() {
                end.timeout(self.now);
            }
            self.send();
        }
        self.now.since(start)
    }

    /// The client writes `bytes`; returns the time until the server has read them.
    pub(super) fn write(&mut self, bytes: u64) -> u64 {
        self.write_within(bytes, SECOND)
    }

    pub(super) fn write_within(&mut self, bytes: u64, limit_ns: u64) -> u64 {
        let target = self.server().read + bytes;
        self.client().to_write += bytes;
        self.run(limit_ns, |pair| pair.ends[1].as_ref().unwrap().read >= target)
    }

    /// Runs for `ns` without new data, so that the connection becomes idle.
    pub(super) fn run_idle(&mut self, ns: u64) {
        self.run(ns, |_| false);
        self.now = self.now + 1;
    }
}
