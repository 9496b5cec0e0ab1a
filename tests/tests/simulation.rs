//! Two engines on a bad wire, from seeds. `FERROWARP_SEEDS=COUNT` and `FERROWARP_SEED=FIRST`
//! choose how many and which; a failing seed is named, and runs again into a capture file.

use std::sync::Mutex;

use ferrowarp_proto::engine::Counters;
use ferrowarp_proto::tcp::{Algorithm, EcnMode};
use ferrowarp_proto::time::{MICROSECOND, MILLISECOND, SECOND};
use ferrowarp_tests::sim::extensions;
use ferrowarp_tests::sim::frames::PoolSizes;
use ferrowarp_tests::sim::link::{Faults, GilbertElliott};
use ferrowarp_tests::sim::mutate::Mutator;
use ferrowarp_tests::sim::rough::{self, Rough};
use ferrowarp_tests::sim::router::{Answer, Router};
use ferrowarp_tests::sim::seeds;
use ferrowarp_tests::sim::workload::{Report, arena_len, run, run_with_windows};
use ferrowarp_tests::sim::world::{EndOptions, World, WorldOptions};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Runs seeds with options drawn from each by `draw`. Returns what was counted of the path, over
/// all of them.
fn over_seeds(
    name: &str,
    default_count: u64,
    per_side: usize,
    draw: impl Fn(&mut SmallRng, &mut WorldOptions) + Sync,
) -> Counters {
    let path = Mutex::new(Counters::default());
    seeds::each(name, env!("CARGO_TARGET_TMPDIR"), default_count, |seed, capture| {
        let mut chance = SmallRng::seed_from_u64(seed ^ 0xfa57);
        let mut options = WorldOptions::new(seed);
        let conns = chance.random_range(1..4);
        options.arena_len = arena_len(conns);
        options.ipv6 = chance.random_bool(0.5);
        options.vlan = chance.random_bool(0.25).then(|| chance.random_range(1..4095));
        // Without a draw: what else a seed decides stays as it was.
        options.offload = seed % 2 == 0;
        draw(&mut chance, &mut options);
        options.revision = [2, 0][usize::from(chance.random_bool(0.25))];
        let mut world = World::new(&options);
        if let Some(path) = capture {
            eprintln!("{name}, seed {seed}, {conns} connections: {options:?}");
            world.capture_to(&path);
        }
        world.watch();
        run(&mut world, conns, per_side);
        let mut path = path.lock().expect("nobody panics with it");
        for end in &world.ends {
            let counters = end.engine.counters();
            path.emss_changes += counters.emss_changes;
            path.icmp_errors_in += counters.icmp_errors_in;
            path.icmp_errors_ignored += counters.icmp_errors_ignored;
            path.fpdus_placed_ooo += counters.fpdus_placed_ooo;
            path.crc_errors += counters.crc_errors;
            path.marker_errors += counters.marker_errors;
        }
    });
    path.into_inner().expect("nobody panicked with it")
}

/// Writes through windows that are bound and invalidated by either side all the while.
// req-test: RDMAP-007, RDMAP-183, RDMAP-323
#[test]
fn windows_come_and_go() {
    seeds::each("windows-at-work", env!("CARGO_TARGET_TMPDIR"), 40, |seed, capture| {
        let mut chance = SmallRng::seed_from_u64(seed ^ 0x3a17);
        let mut options = WorldOptions::new(seed);
        let conns = chance.random_range(1..4);
        options.arena_len = arena_len(conns);
        options.faults.loss = chance.random_range(0.0..0.05);
        options.faults.reorder = chance.random_range(0.0..0.1);
        let mut world = World::new(&options);
        if let Some(path) = capture {
            world.capture_to(&path);
        }
        world.watch();
        run_with_windows(&mut world, conns, 200);
    });
}

/// Settings of TCP as ends may have them.
fn some_end(chance: &mut SmallRng) -> EndOptions {
    let window = 1 << chance.random_range(13..19);
    EndOptions {
        timestamps: chance.random_bool(0.7),
        sack: chance.random_bool(0.7),
        ecn: [EcnMode::Off, EcnMode::Accept, EcnMode::Request][chance.random_range(0..3)],
        pacing: chance.random_bool(0.7),
        congestion: [Algorithm::Cubic, Algorithm::NewReno, Algorithm::Dctcp]
            [chance.random_range(0..3)],
        windows: (window, window << chance.random_range(0..6)),
        markers: chance.random_bool(0.3),
    }
}

fn some_mtu(chance: &mut SmallRng) -> u16 {
    [576, 1280, 1500, 4000, 9000][chance.random_range(0..5)]
}

#[test]
fn good_wire() {
    over_seeds("good-wire", 100, 60, |chance, options| {
        options.mtu = some_mtu(chance);
        // The first segments of a connection, before its peer's window is open, may be cut.
        options.aligned = true;
        options.tcp.iter_mut().for_each(|end| end.markers = chance.random_bool(0.3));
    });
}

/// Markers both ways on a bad wire; Writes ahead of their turn are placed as they come.
// req-test: MPA-007, MPA-039, MPA-053
#[test]
fn markers_and_early_placement() {
    let path = over_seeds("markers-and-early-placement", 300, 40, |chance, options| {
        options.mtu = some_mtu(chance);
        options.place_early = true;
        options.faults.loss = chance.random_range(0.0..0.05);
        options.faults.reorder = chance.random_range(0.0..0.1);
        options.faults.duplicate = chance.random_range(0.0..0.05);
        options.faults.corrupt = chance.random_range(0.0..0.01);
        options.faults.delay_ns = chance.random_range(0..300_000);
        options.tcp = [some_end(chance), some_end(chance)];
        let both = chance.random_range(1..4);
        options.tcp[0].markers = both & 1 != 0;
        options.tcp[1].markers = both & 2 != 0;
        options.head_len = [usize::MAX, chance.random_range(120..600)][chance.random_range(0..2)];
    });
    assert!(path.fpdus_placed_ooo > 1000, "{path:?}");
    assert_eq!((path.crc_errors, path.marker_errors), (0, 0));
}

// req-test: DDP-013, DDP-244, RDMAP-028, RDMAP-211
#[test]
fn every_fault_at_once() {
    over_seeds("every-fault-at-once", 800, 40, |chance, options| {
        options.mtu = some_mtu(chance);
        // A sender in timeout sends one frame at a time: a long burst would outlast its tries.
        let bursts = GilbertElliott {
            mean_len: chance.random_range(1.0..3.0),
            loss: chance.random_range(0.5..0.9),
        };
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
        options.tcp = [some_end(chance), some_end(chance)];
    });
}

/// The wire is cut, pools are empty, an end stands still or its application is busy, now and then.
#[test]
fn incidents() {
    over_seeds("incidents", 500, 40, |chance, options| {
        options.mtu = some_mtu(chance);
        options.incidents = Some((chance.random_range(1..12), 50 * MILLISECOND));
        options.tcp = [some_end(chance), some_end(chance)];
        options.faults.loss = chance.random_range(0.0..0.01);
        options.faults.delay_ns = chance.random_range(0..500_000);
        options.head_len = [usize::MAX, chance.random_range(120..600)][chance.random_range(0..2)];
    });
}

/// An end vanishes without a word and another one is at its address, with segments of the old one
/// still under way. The other end learns of it; new connections are as good as any.
#[test]
fn rebirth() {
    seeds::each("rebirth", env!("CARGO_TARGET_TMPDIR"), 200, |seed, capture| {
        let mut chance = SmallRng::seed_from_u64(seed ^ 0xdead);
        let mut options = WorldOptions::new(seed);
        options.arena_len = rough::ARENA_LEN;
        options.ipv6 = chance.random_bool(0.5);
        options.mtu = some_mtu(&mut chance);
        options.tcp = [some_end(&mut chance), some_end(&mut chance)];
        options.faults.loss = chance.random_range(0.0..0.02);
        options.faults.duplicate = chance.random_range(0.0..0.02);
        options.faults.reorder = chance.random_range(0.0..0.05);
        options.faults.delay_ns = chance.random_range(0..2_000_000);
        options.keepalive_ns = Some(5 * SECOND);
        let mut world = World::new(&options);
        if let Some(path) = capture {
            eprintln!("rebirth, seed {seed}: {options:?}");
            world.capture_to(&path);
        }
        world.watch();
        let stag = rough::prepare(&world, 0);
        for life in 0..4 {
            let stags = [stag, rough::prepare(&world, 1)];
            rough::listen(&mut world);
            let mut work = Rough::connect(&mut world, stags, 40);
            let dies = world.now + chance.random_range(0..100 * MILLISECOND);
            if life == 3 {
                let done = world.run_until(100 * SECOND, |world| work.work(world));
                assert!(done && work.is_complete(), "the last life is undisturbed");
                work.finish(&mut world);
                return;
            }
            world.run_until(SECOND, |world| work.work(world) || world.now >= dies);
            world.rebirth(1);
            let told = world.run_until(300 * SECOND, |world| {
                work.work_at(world, 0);
                work.has_ended(0)
            });
            assert!(told, "end 0 never learns that its peer is gone");
            work.abandon(&mut world, 0);
        }
    });
}

/// Segments are forged for a while. Then all goes well, or has failed and both ends know.
#[test]
fn forged_segments() {
    seeds::each("forged-segments", env!("CARGO_TARGET_TMPDIR"), 600, |seed, capture| {
        let mut chance = SmallRng::seed_from_u64(seed ^ 0xf07e);
        let gentle = chance.random_bool(0.6);
        let rate = [2, 10, 60][chance.random_range(0..3)];
        let mutator = Mutator::seeded(seed, rate, gentle);
        let options = WorldOptions {
            ipv6: chance.random_bool(0.5),
            mtu: some_mtu(&mut chance),
            tcp: [some_end(&mut chance), some_end(&mut chance)],
            ..rough::options(seed)
        };
        let lasts_ns = chance.random_range(0..200 * MILLISECOND);
        rough::forged(&options, mutator, gentle, lasts_ns, 30, capture);
    });
}

/// Atomic operations and Immediate Data on connections that end in mid-flight, in many ways.
#[test]
fn extensions_on_connections_that_end() {
    let name = "extensions-on-connections-that-end";
    let total = Mutex::new(extensions::Report::default());
    seeds::each(name, env!("CARGO_TARGET_TMPDIR"), 400, |seed, capture| {
        let mut chance = SmallRng::seed_from_u64(seed ^ 0x7306);
        let conns = chance.random_range(1..5);
        let mut options = WorldOptions {
            arena_len: extensions::arena_len(conns),
            ipv6: chance.random_bool(0.5),
            mtu: some_mtu(&mut chance),
            tcp: [some_end(&mut chance), some_end(&mut chance)],
            keepalive_ns: Some(5 * SECOND),
            ..WorldOptions::new(seed)
        };
        options.faults.loss = chance.random_range(0.0..0.05);
        options.faults.duplicate = chance.random_range(0.0..0.05);
        options.faults.reorder = chance.random_range(0.0..0.1);
        options.faults.delay_ns = chance.random_range(0..300_000);
        options.place_early = chance.random_bool(0.3);
        let incidents = chance.random_range(1..8);
        options.incidents = chance.random_bool(0.3).then_some((incidents, 20 * MILLISECOND));
        let mut world = World::new(&options);
        if let Some(path) = capture {
            eprintln!("{name}, seed {seed}, {conns} connections: {options:?}");
            world.capture_to(&path);
        }
        if chance.random_bool(0.4) {
            world.mutator = Some(Mutator::seeded(seed, 10, true));
        } else {
            world.watch();
        }
        let report = extensions::run(&mut world, conns, 3, 40, 100 * MILLISECOND);
        let mut total = total.lock().expect("nobody panics with it");
        total.asked += report.asked;
        total.completed += report.completed;
        total.received += report.received;
    });
    let total = total.into_inner().expect("nobody panicked with it");
    // Some were cut short, and of these not all had happened.
    assert!(total.received > 0 && total.completed < total.asked, "{total:?}");
}

// req-test: DDP-244
#[test]
fn drained_pools() {
    over_seeds("drained-pools", 200, 40, |chance, options| {
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
    over_seeds("little-room-for-early-segments", 300, 40, |chance, options| {
        options.mtu = some_mtu(chance);
        options.holds = (chance.random_range(0..20), chance.random_range(0..100_000));
        options.faults.loss = chance.random_range(0.0..0.05);
        options.faults.reorder = chance.random_range(0.0..0.05);
        options.faults.delay_ns = chance.random_range(0..1_000_000);
        // The headers lie in the first run.
        options.head_len = chance.random_range(120..2000);
        options.tcp = [some_end(chance), some_end(chance)];
    });
}

#[test]
fn chained_buffers() {
    over_seeds("chained-buffers", 100, 40, |chance, options| {
        options.mtu = some_mtu(chance);
        options.head_len = chance.random_range(120..600);
        options.faults.reorder = 0.05;
        options.faults.loss = 0.01;
    });
}

#[test]
fn a_wire_that_cuts_packets() {
    over_seeds("a-wire-that-cuts-packets", 200, 30, |chance, options| {
        options.mtu = 1500;
        options.cut_at = Some([576, 1000, 1280][chance.random_range(0..3)]);
        options.faults.reorder = 0.05;
        options.faults.duplicate = 0.02;
        options.faults.loss = 0.005;
    });
}

// req-test: MPA-168, MPA-170
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
    let name = format!("path-{answer:?}").to_lowercase();
    over_seeds(&name, 30, 120, |chance, options| {
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
        options.tcp = [some_end(chance), some_end(chance)];
        options.head_len = [usize::MAX, 120][chance.random_range(0..2)];
    })
}

#[test]
fn a_changing_path_with_answers() {
    for answer in [Answer::Size, Answer::NoSize] {
        let path = a_changing_path(answer);
        assert!(
            path.emss_changes > 0 && path.icmp_errors_in > 0 && path.icmp_errors_ignored > 0,
            "{path:?}"
        );
    }
}

#[test]
fn a_changing_path_without_answers() {
    let path = a_changing_path(Answer::Nothing);
    assert!(path.emss_changes > 0, "{path:?}");
    assert_eq!((path.icmp_errors_in, path.icmp_errors_ignored), (0, 0));
}

/// Applications that have other things to do than to look at their queues.
#[test]
fn slow_applications() {
    over_seeds("slow-applications", 150, 40, |chance, options| {
        options.mtu = some_mtu(chance);
        options.slow_ns = Some(1 << chance.random_range(10..25));
        options.priority_tags = chance.random_bool(0.5);
        options.faults.loss = chance.random_range(0.0..0.02);
        options.faults.reorder = chance.random_range(0.0..0.02);
        options.faults.delay_ns = chance.random_range(0..200_000);
        options.tcp = [some_end(chance), some_end(chance)];
    });
}

/// Ports of less than an FPDU must have, and so peers that ask for segments as short: slow, but
/// nothing breaks.
#[test]
fn tiny_ports() {
    over_seeds("tiny-ports", 40, 10, |chance, options| {
        options.mtu = chance.random_range(68..300);
        options.faults.loss = chance.random_range(0.0..0.01);
        options.tcp = [some_end(chance), some_end(chance)];
    });
}

/// A path that takes less than an FPDU now and then. What carries no octets always passes.
#[test]
fn tiny_paths() {
    over_seeds("tiny-paths", 20, 10, |chance, options| {
        options.mtu = 1500;
        options.ipv6 = false;
        let mut some = || chance.random_range(100..300);
        let mtus = [1500, some(), some(), some()];
        let answer = [Answer::Size, Answer::Nothing][usize::from(chance.random_bool(0.5))];
        let turn_ns = [MILLISECOND, 20 * MILLISECOND][usize::from(chance.random_bool(0.5))];
        options.router = Some(Router { mtus, turn_ns, answer, forged: chance.random_bool(0.5) });
        options.tcp = [some_end(chance), some_end(chance)];
    });
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
