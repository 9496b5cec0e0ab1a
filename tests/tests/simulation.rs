//! Two engines on a bad wire, from seeds. `FERROWARP_SEEDS=COUNT` and `FERROWARP_SEED=FIRST`
//! choose how many and which; a failing seed is named, and `FERROWARP_PCAP=FILE` captures it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ferrowarp_proto::engine::Counters;
use ferrowarp_proto::time::{MICROSECOND, MILLISECOND};
use ferrowarp_tests::sim::frames::PoolSizes;
use ferrowarp_tests::sim::link::{Bursts, Faults};
use ferrowarp_tests::sim::router::{Answer, Router};
use ferrowarp_tests::sim::workload::{Report, arena_len, run};
use ferrowarp_tests::sim::world::{World, WorldOptions};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Runs seeds with options drawn from each by `draw`. Returns what was counted of the path, over
/// all of them.
fn over_seeds(
    default_count: u64,
    per_side: usize,
    draw: impl Fn(&mut SmallRng, &mut WorldOptions),
) -> Counters {
    let mut path = Counters::default();
    let first = number("FERROWARP_SEED", 1);
    for seed in first..first + number("FERROWARP_SEEDS", default_count) {
        let mut chance = SmallRng::seed_from_u64(seed ^ 0xfa57);
        let mut options = WorldOptions::new(seed);
        let conns = chance.random_range(1..4);
        options.arena_len = arena_len(conns);
        options.ipv6 = chance.random_bool(0.5);
        options.vlan = chance.random_bool(0.25).then(|| chance.random_range(1..4095));
        draw(&mut chance, &mut options);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut world = World::new(&options);
            if let Ok(path) = std::env::var("FERROWARP_PCAP") {
                world.capture_to(&path);
            }
            run(&mut world, conns, per_side);
            world.ends.map(|end| *end.engine.counters())
        }));
        let counters = outcome.unwrap_or_else(|cause| {
            eprintln!(
                "seed {seed} failed; see it with FERROWARP_SEED={seed} FERROWARP_SEEDS=1 \
                 FERROWARP_PCAP=seed-{seed}.pcap"
            );
            eprintln!("{options:?}");
            std::panic::resume_unwind(cause)
        });
        for counters in counters {
            path.emss_changes += counters.emss_changes;
            path.icmp_errors += counters.icmp_errors;
            path.icmp_refused += counters.icmp_refused;
        }
    }
    path
}

fn some_mtu(chance: &mut SmallRng) -> u16 {
    [576, 1280, 1500, 4000, 9000][chance.random_range(0..5)]
}

#[test]
fn good_wire() {
    over_seeds(20, 60, |chance, options| options.mtu = some_mtu(chance));
}

#[test]
fn every_fault_at_once() {
    over_seeds(60, 40, |chance, options| {
        options.mtu = some_mtu(chance);
        // A sender in timeout sends one frame at a time: a long burst would outlast its tries.
        let bursts =
            Bursts { len: chance.random_range(1.0..3.0), loss: chance.random_range(0.5..0.9) };
        let delay_ns = chance.random_range(0..200_000);
        options.faults = Faults {
            loss: chance.random_range(0.0..0.05),
            bursts: chance.random_bool(0.5).then_some(bursts),
            duplicate: chance.random_range(0.0..0.05),
            reorder: chance.random_range(0.0..0.1),
            hold_ns: Some(20 * (delay_ns + 1000)),
            corrupt: chance.random_range(0.0..0.02),
            delay_ns,
            jitter_ns: chance.random_range(0..50_000),
            ..Faults::NONE
        };
        if chance.random_bool(0.3) {
            // From 80 Mb/s to 8 Gb/s, with a queue that fills.
            options.faults.rate = Some(chance.random_range(10_000_000..1_000_000_000));
            options.faults.queue = Some(chance.random_range(20_000..200_000));
            options.faults.mark = Some(chance.random_range(0..20_000));
        }
        options.timestamps = chance.random_bool(0.7);
        options.sack = chance.random_bool(0.7);
    });
}

#[test]
fn drained_pools() {
    over_seeds(30, 40, |chance, options| {
        options.mtu = some_mtu(chance);
        options.pools = PoolSizes {
            data: chance.random_range(1..12),
            reserve: 1,
            control: chance.random_range(1..3),
        };
        options.faults.loss = chance.random_range(0.0..0.02);
    });
}

#[test]
fn little_room_for_early_segments() {
    over_seeds(30, 40, |chance, options| {
        options.mtu = some_mtu(chance);
        options.holds = (chance.random_range(0..20), chance.random_range(0..100_000));
        options.faults.loss = chance.random_range(0.0..0.05);
        options.faults.reorder = chance.random_range(0.0..0.05);
        options.faults.delay_ns = chance.random_range(0..1_000_000);
        // The headers lie in the first run.
        options.head_len = chance.random_range(120..2000);
        options.sack = chance.random_bool(0.7);
    });
}

#[test]
fn chained_buffers() {
    over_seeds(20, 40, |chance, options| {
        options.mtu = some_mtu(chance);
        options.head_len = chance.random_range(120..600);
        options.faults.reorder = 0.05;
        options.faults.loss = 0.01;
    });
}

#[test]
fn a_wire_that_cuts_packets() {
    over_seeds(20, 30, |chance, options| {
        options.mtu = 1500;
        options.cut_at = Some([576, 1000, 1280][chance.random_range(0..3)]);
        options.faults.reorder = 0.05;
        options.faults.duplicate = 0.02;
        options.faults.loss = 0.005;
    });
}

#[test]
fn cut_packets_are_put_together() {
    for ipv6 in [false, true] {
        let mut options = WorldOptions::new(7);
        (options.arena_len, options.ipv6, options.cut_at) = (arena_len(1), ipv6, Some(600));
        let mut world = World::new(&options);
        run(&mut world, 1, 20);
        for end in &world.ends {
            let counters = end.engine.counters();
            assert!(counters.packets_reassembled > 20, "{counters:?}");
            assert_eq!(counters.reassembly_failures, 0);
        }
    }
}

/// The path's MTU goes down and up again and again, faster or slower than it can be followed.
fn a_changing_path(answer: Answer) -> Counters {
    over_seeds(20, 120, |chance, options| {
        options.mtu = [1500, 4000, 9000][chance.random_range(0..3)];
        let least = if options.ipv6 { 1280 } else { 576 };
        let mut some = || chance.random_range(least..9000).min(chance.random_range(least..9000));
        let mtus = [9000, some(), some(), some()];
        let turn_ns = [50 * MICROSECOND, MILLISECOND, 20 * MILLISECOND, 300 * MILLISECOND];
        let turn_ns = turn_ns[chance.random_range(0..4)];
        options.router = Some(Router { mtus, turn_ns, answer, forged: chance.random_bool(0.5) });
        options.faults.delay_ns = chance.random_range(0..100_000);
        options.faults.loss = [0.0, 0.01][chance.random_range(0..2)];
        options.faults.reorder = [0.0, 0.02][chance.random_range(0..2)];
        options.faults.corrupt = [0.0, 0.01][chance.random_range(0..2)];
        options.timestamps = chance.random_bool(0.7);
        options.sack = chance.random_bool(0.8);
        options.head_len = [usize::MAX, 120][chance.random_range(0..2)];
    })
}

#[test]
fn a_changing_path_with_answers() {
    for answer in [Answer::Size, Answer::NoSize] {
        let path = a_changing_path(answer);
        assert!(path.emss_changes > 0 && path.icmp_errors > 0 && path.icmp_refused > 0, "{path:?}");
    }
}

#[test]
fn a_changing_path_without_answers() {
    let path = a_changing_path(Answer::Nothing);
    assert!(path.emss_changes > 0, "{path:?}");
    assert_eq!((path.icmp_errors, path.icmp_refused), (0, 0));
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let once = || -> Report {
        let mut options = WorldOptions::new(42);
        options.arena_len = arena_len(2);
        options.faults.loss = 0.02;
        options.faults.reorder = 0.05;
        run(&mut World::new(&options), 2, 30)
    };
    assert_eq!(once(), once());
}
