//! Two connections over a seeded faulty link in virtual time.

use std::collections::{BTreeMap, HashMap};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{Endpoint, HeapFrame, OooPolicy};
use crate::tcp::{Algorithm, Config, EcnMode, Event, State, TooBig};
use crate::time::{Instant, MICROSECOND, MILLISECOND, SECOND};
use crate::wire::tcp::Flags;

/// Probabilities of the faults of the link, in parts of 1000.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    pub(super) lose: u32,
    pub(super) duplicate: u32,
    pub(super) reorder: u32,
}

/// Router with a smaller MTU in the middle of the path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Router {
    /// MTU behind it, in bytes of IP packet.
    pub(super) mtu: u16,
    /// For a packet that exceeds the MTU: `Some(true)`: sends an ICMP error with the MTU;
    /// `Some(false)`: one without; `None`: drops the packet silently.
    pub(super) icmp_reports_mtu: Option<bool>,
}

pub(super) struct Sim {
    rng: SmallRng,
    faults: Faults,
    pub(super) router: Option<Router>,
    delay_ns: u64,
    pub(super) now: Instant,
    ends: [Option<Endpoint>; 2],
    cfg: [Config; 2],
    iss: [u32; 2],
    /// Frames in flight by arrival time; the counter keeps those of equal times in order.
    wire: BTreeMap<(Instant, u64), (usize, HeapFrame)>,
    /// ICMP errors in flight, back to the sender.
    icmp_in_flight: BTreeMap<(Instant, u64), (usize, TooBig)>,
    count: u64,
    /// Length of each data segment by sender and sequence number.
    boundaries: [HashMap<u32, usize>; 2],
}

impl Sim {
    pub(super) fn new(seed: u64, faults: Faults, cfg: [Config; 2]) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        // Just below the wrap, so that it happens early in the transfer.
        let iss = [0, 1].map(|_| 0u32.wrapping_sub(rng.random_range(0..100_000)));
        let now = Instant::from_nanos(SECOND);
        Self {
            ends: [Some(Endpoint::client(&cfg[0], iss[0], now)), None],
            delay_ns: rng.random_range(1..200) * MICROSECOND,
            rng,
            faults,
            now,
            cfg,
            iss,
            router: None,
            wire: BTreeMap::new(),
            icmp_in_flight: BTreeMap::new(),
            count: 0,
            boundaries: Default::default(),
        }
    }

    fn forward(&mut self, from: usize, frame: &HeapFrame) {
        let packet_len = frame.bytes.len() - 14;
        if let Some(router) = self.router.filter(|router| packet_len > router.mtu.into()) {
            if let Some(tells) = router.icmp_reports_mtu {
                let seg = frame.parse();
                let error = TooBig {
                    seq: seg.seq,
                    ack: Some(seg.ack),
                    mtu: tells.then_some(router.mtu),
                    packet_len: packet_len as u32,
                };
                self.count += 1;
                self.icmp_in_flight.insert((self.now + self.delay_ns, self.count), (from, error));
            }
            return;
        }
        let occurs = |rng: &mut SmallRng, parts: u32| rng.random_range(0..1000) < parts;
        if occurs(&mut self.rng, self.faults.lose) {
            return;
        }
        let copies = 1 + usize::from(occurs(&mut self.rng, self.faults.duplicate));
        for _ in 0..copies {
            let mut arrival = self.now + self.delay_ns;
            if occurs(&mut self.rng, self.faults.reorder) {
                arrival = arrival + self.rng.random_range(0..4 * self.delay_ns);
            }
            self.count += 1;
            self.wire.insert((arrival, self.count), (1 - from, frame.clone()));
        }
    }

    /// Checks that a retransmission has the boundaries of the first transmission.
    fn check_boundary(&mut self, from: usize, frame: &HeapFrame, cuts: u32) {
        let seg = frame.parse();
        if seg.payload.is_empty() || cuts > 0 {
            return;
        }
        let len = *self.boundaries[from].entry(seg.seq.0).or_insert(seg.payload.len());
        assert_eq!(len, seg.payload.len(), "record at {:?} changed its length", seg.seq);
    }

    fn transmit(&mut self, side: usize) {
        let Some(end) = &mut self.ends[side] else { return };
        let frames = end.transmit(self.now);
        let cuts = end.tcb.stats().resegments;
        for frame in &frames {
            self.check_boundary(side, frame, cuts);
            self.forward(side, frame);
        }
    }

    fn deliver_due(&mut self) {
        while let Some(entry) = self.icmp_in_flight.first_entry().filter(|e| e.key().0 <= self.now)
        {
            let (to, error) = entry.remove();
            let now = self.now;
            let end = self.end(to);
            end.tcb.packet_too_big(now, &error);
            end.tcb.scoreboard.check(end.tcb.sack);
            end.poll_events();
        }
        while let Some(entry) = self.wire.first_entry().filter(|e| e.key().0 <= self.now) {
            let (to, frame) = entry.remove();
            if self.ends[to].is_none() {
                let seg = frame.parse();
                if seg.flags.has(Flags::SYN) && !seg.flags.has(Flags::ACK) {
                    let end = Endpoint::server(&self.cfg[to], &seg, self.iss[to], self.now);
                    self.ends[to] = Some(end);
                }
            } else if let Some(end) = &mut self.ends[to] {
                end.receive(self.now, &frame);
            }
        }
    }

    /// Advances to the next event and handles it; false if there is none.
    fn step(&mut self) -> bool {
        for side in 0..2 {
            self.transmit(side);
        }
        let arrival = self.wire.first_key_value().map(|(key, _)| key.0);
        let refusal = self.icmp_in_flight.first_key_value().map(|(key, _)| key.0);
        let timers = self.ends.iter().flatten().filter_map(|end| end.tcb.deadline());
        let Some(next) = arrival.into_iter().chain(refusal).chain(timers).min() else {
            return false;
        };
        self.now = self.now.max(next);
        self.deliver_due();
        for end in self.ends.iter_mut().flatten() {
            end.timeout(self.now);
            // A slow application consumes at random times.
            if end.unconsumed > 0 && self.rng.random_range(0..4) == 0 {
                end.consume();
            }
        }
        true
    }

    pub(super) fn run_until(&mut self, what: &str, done: impl Fn(&[Option<Endpoint>; 2]) -> bool) {
        let limit = self.now + 600 * SECOND;
        let mut steps = 0;
        while !done(&self.ends) {
            // Unconsumed bytes do not stop progress: `step` has them consumed.
            let alive = self.step();
            steps += 1;
            assert!(alive, "{what}: no event left");
            assert!(self.now < limit && steps < 2_000_000, "{what}: no progress");
        }
    }

    pub(super) fn end(&mut self, side: usize) -> &mut Endpoint {
        self.ends[side].as_mut().expect("connected")
    }

    pub(super) fn connect(&mut self) {
        self.run_until("connect", |ends| {
            ends.iter()
                .all(|end| end.as_ref().is_some_and(|end| end.events.contains(&Event::Established)))
        });
    }

    /// Connects, transfers `bytes` each way, closes, and checks both streams.
    fn transfer(&mut self, bytes: [u64; 2], record_lens: [usize; 2], unconsumed_max: u32) {
        self.connect();
        let mixes = self.rng.random();
        for (side, (bytes, record_len)) in bytes.into_iter().zip(record_lens).enumerate() {
            let end = self.end(side);
            end.to_write = bytes;
            end.record_len = record_len;
            end.unconsumed_max = unconsumed_max;
            if mixes {
                end.ooo_policy = OooPolicy::Random(SmallRng::seed_from_u64(bytes));
            }
            end.tcb.open_window();
        }
        self.run_until("transfer", |ends| {
            let read = |side: usize| ends[side].as_ref().map(|end| end.read);
            read(0) == Some(bytes[1]) && read(1) == Some(bytes[0])
        });
        for side in 0..2 {
            self.end(side).tcb.close();
        }
        self.run_until("close", |ends| {
            ends.iter().flatten().all(|end| end.tcb.state() == State::Closed)
        });
        for (side, bytes) in bytes.into_iter().enumerate() {
            let end = self.end(side);
            assert!(end.events.contains(&Event::PeerClosed), "{:?}", end.events);
            assert_eq!(end.events.last(), Some(&Event::Closed));
            assert!(!end.events.contains(&Event::TimedOut));
            assert!(!end.events.contains(&Event::Reset));
            assert_eq!(end.tcb.stats().bytes_out, bytes);
            assert_eq!((end.pool.frames(), end.pool.bytes()), (0, 0), "all buffers were returned");
            assert!(!end.tcb.assembler.holds_memory());
        }
    }
}

/// A random configuration: negotiated options, sizes and limits.
fn config(rng: &mut SmallRng) -> Config {
    Config {
        mss: [1460, 1460, 8960, 536][rng.random_range(0..4)],
        recv_window: [256 * 1024, 64 * 1024, 4000, 1 << 20][rng.random_range(0..4)],
        recv_window_max: [0, 500_000, 6 << 20][rng.random_range(0..3)],
        startup_window: [16 * 1024, 4000][rng.random_range(0..2)],
        timestamps: rng.random_range(0..4) > 0,
        sack: rng.random_range(0..4) > 0,
        tail_loss_probe: rng.random_range(0..2) > 0,
        max_ooo_segments: [256, 256, 3][rng.random_range(0..3)],
        // As long as a peer retransmits its FIN at most (`user_timeout_ns`).
        time_wait_ns: 120 * SECOND,
        congestion: [Algorithm::Cubic, Algorithm::NewReno, Algorithm::Dctcp]
            [rng.random_range(0..3)],
        ecn: [EcnMode::Off, EcnMode::Accept, EcnMode::Request][rng.random_range(0..3)],
        ..Config::default()
    }
}

fn run_seeds(range: core::ops::Range<u64>, faults: Faults, bytes: u64) -> u32 {
    let mut retransmits = 0;
    for seed in range {
        println!("seed {seed} faults {faults:?}");
        let mut rng = SmallRng::seed_from_u64(seed ^ 0x00c0_ffee);
        let cfg = [config(&mut rng), config(&mut rng)];
        let lens = [0, 1].map(|_| [usize::MAX, 300, 1448, 64][rng.random_range(0..4)]);
        let keep = [0, 0, 100_000][rng.random_range(0..3)];
        let bytes = [bytes, if rng.random() { bytes } else { 0 }];
        let mut sim = Sim::new(seed, faults, cfg);
        sim.transfer(bytes, lens, keep);
        retransmits +=
            sim.ends.iter().flatten().map(|end| end.tcb.stats().retransmits).sum::<u32>();
    }
    retransmits
}

#[test]
fn clean_link_causes_no_retransmits() {
    assert_eq!(run_seeds(0..60, Faults::default(), 400_000), 0);
}

#[test]
fn loss_is_repaired() {
    assert!(run_seeds(100..250, Faults { lose: 10, ..Faults::default() }, 300_000) > 1000);
    assert!(run_seeds(250..300, Faults { lose: 100, ..Faults::default() }, 60_000) > 1000);
}

#[test]
fn reordering_and_duplication_lose_no_data() {
    run_seeds(300..400, Faults { reorder: 100, duplicate: 50, ..Faults::default() }, 200_000);
}

#[test]
fn loss_reordering_and_duplication_together_lose_no_data() {
    run_seeds(400..520, Faults { lose: 30, reorder: 30, duplicate: 30 }, 150_000);
    run_seeds(520..540, Faults { lose: 250, reorder: 100, duplicate: 100 }, 10_000);
}

/// Nanoseconds that 50 MB take over a path of `delay_ns` each way.
fn long_transfer_ns(cfg: &Config, delay_ns: u64) -> u64 {
    let mut sim = Sim::new(7, Faults::default(), [cfg.clone(), cfg.clone()]);
    sim.delay_ns = delay_ns;
    let start = sim.now;
    sim.transfer([50_000_000, 0], [usize::MAX; 2], 0);
    sim.now.since(start) - cfg.time_wait_ns
}

#[test]
fn long_transfer_fills_the_pipe() {
    let window = 1 << 20;
    let cfg = Config { recv_window: window, recv_window_max: window, ..Config::default() };
    // At most one window per round trip: 50 round trips and slow start.
    let elapsed = long_transfer_ns(&cfg, MILLISECOND);
    assert!(elapsed < 130 * MILLISECOND, "{elapsed} ns");
}

#[test]
fn receive_window_autotunes_to_path() {
    // 256 KiB in each of 190 round trips, if the window did not grow.
    for timestamps in [true, false] {
        let cfg = Config { timestamps, max_records: 8192, ..Config::default() };
        let elapsed = long_transfer_ns(&cfg, 10 * MILLISECOND);
        assert!(elapsed < 30 * 20 * MILLISECOND, "timestamps {timestamps}: {elapsed} ns");
    }
}
