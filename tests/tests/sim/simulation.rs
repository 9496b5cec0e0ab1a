//! Two engines on a faulty wire, deterministic from seeds. `FERROWARP_SEEDS=COUNT` and
//! `FERROWARP_SEED=FIRST` choose the number of seeds and the first one; a failing seed is reported,
//! and runs again with a capture file.

use std::sync::Mutex;

use ferrowarp_proto::engine::{Counters, PARTIAL_BYTES_MIN};
use ferrowarp_proto::tcp::{Algorithm, EcnMode};
use ferrowarp_proto::time::{MICROSECOND, MILLISECOND, SECOND};
use ferrowarp_tests::sim::heap_device::PoolSizes;
use ferrowarp_tests::sim::link::{Faults, GilbertElliott};
use ferrowarp_tests::sim::router::{IcmpReply, Router};
use ferrowarp_tests::sim::seeds;
use ferrowarp_tests::sim::segment_mutator::SegmentMutator;
use ferrowarp_tests::sim::workload::{
    EndPlan, KEEPALIVE_NS, PEER_GONE_NS, Plan, Report, Workload, arena_len, may_fail_options,
    mostly_shared_words, run, run_with_faults_for, run_with_forged_segments,
};
use ferrowarp_tests::sim::world::{EndOptions, World, WorldOptions};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Runs seeds with options drawn from each by `draw`. Returns the path counters, summed over all
/// seeds; `None` if the seeds are too few to expect anything of the sums.
fn over_seeds(
    name: &str,
    default_count: u64,
    per_side: usize,
    draw: impl Fn(&mut SmallRng, &mut WorldOptions) + Sync,
) -> Option<Counters> {
    let path = Mutex::new(Counters::default());
    let folder = env!("CARGO_TARGET_TMPDIR");
    let are_enough = seeds::for_each_seed(name, folder, default_count, |seed, capture| {
        let mut rng = SmallRng::seed_from_u64(seed ^ 0xfa57);
        let mut options = WorldOptions::of_seed(seed);
        let conns = rng.random_range(1..4);
        options.arena_len = arena_len(conns);
        options.ipv6 = rng.random_bool(0.5);
        options.vlan = rng.random_bool(0.25).then(|| rng.random_range(1..4095));
        draw(&mut rng, &mut options);
        options.revision = [2, 0][usize::from(rng.random_bool(0.25))];
        let mut world = World::new(&options);
        if let Some(path) = capture {
            eprintln!("{name}, seed {seed}, {conns} connections: {options:?}");
            world.capture_to(&path);
        }
        world.check_invariants();
        run(&mut world, Plan::new(conns, per_side));
        let mut path = path.lock().expect("nobody panics with it");
        for end in &world.ends {
            let counters = end.engine.counters();
            path.emss_changes += counters.emss_changes;
            path.icmp_errors_in += counters.icmp_errors_in;
            path.icmp_errors_ignored += counters.icmp_errors_ignored;
            path.fpdus_placed_ooo += counters.fpdus_placed_ooo;
            path.assembly_exhausted += counters.assembly_exhausted;
            path.partials_evicted += counters.partials_evicted;
            path.crc_errors += counters.crc_errors;
            path.marker_errors += counters.marker_errors;
        }
    });
    are_enough.then(|| path.into_inner().expect("nobody panicked with it"))
}

/// Writes through windows that either side binds and invalidates meanwhile.
// req-test: RDMAP-007, RDMAP-183, RDMAP-323
#[test]
fn requests_through_memory_windows_complete() {
    seeds::for_each_seed("mw-workload", env!("CARGO_TARGET_TMPDIR"), 40, |seed, capture| {
        let mut rng = SmallRng::seed_from_u64(seed ^ 0x3a17);
        let mut options = WorldOptions::of_seed(seed);
        let conns = rng.random_range(1..4);
        options.arena_len = arena_len(conns);
        options.faults.loss = rng.random_range(0.0..0.05);
        options.faults.reorder = rng.random_range(0.0..0.1);
        let mut world = World::new(&options);
        if let Some(path) = capture {
            world.capture_to(&path);
        }
        world.check_invariants();
        run(&mut world, Plan { windows: true, ..Plan::new(conns, 200) });
    });
}

/// Random TCP settings of an end.
pub(crate) fn some_end(rng: &mut SmallRng) -> EndOptions {
    let window = 1 << rng.random_range(13..19);
    EndOptions {
        timestamps: rng.random_bool(0.7),
        sack: rng.random_bool(0.7),
        ecn: [EcnMode::Off, EcnMode::Accept, EcnMode::Request][rng.random_range(0..3)],
        pacing: rng.random_bool(0.7),
        congestion: [Algorithm::Cubic, Algorithm::NewReno, Algorithm::Dctcp]
            [rng.random_range(0..3)],
        windows: (window, window << rng.random_range(0..6)),
        markers: rng.random_bool(0.3),
    }
}

pub(crate) fn some_mtu(rng: &mut SmallRng) -> u16 {
    [576, 1280, 1500, 4000, 9000][rng.random_range(0..5)]
}

#[test]
fn fpdus_stay_aligned_on_a_perfect_wire() {
    over_seeds("perfect-wire", 50, 60, |rng, options| {
        options.mtu = some_mtu(rng);
        // The first segments of a connection, before its peer's window is open, may be resegmented.
        options.fpdu_aligned = true;
        options.tcp.iter_mut().for_each(|end| end.markers = rng.random_bool(0.3));
    });
}

/// Markers in both directions on a faulty wire; out-of-order Writes are placed on arrival.
// req-test: MPA-007, MPA-039, MPA-053
#[test]
fn marked_writes_are_placed_out_of_order_on_a_faulty_wire() {
    let path = over_seeds("markers-and-ooo-placement", 150, 40, |rng, options| {
        options.mtu = some_mtu(rng);
        options.ooo_placement = true;
        options.faults.loss = rng.random_range(0.0..0.05);
        options.faults.reorder = rng.random_range(0.0..0.1);
        options.faults.duplicate = rng.random_range(0.0..0.05);
        options.faults.corrupt = rng.random_range(0.0..0.01);
        options.faults.delay_ns = rng.random_range(0..300_000);
        options.tcp = [some_end(rng), some_end(rng)];
        let both = rng.random_range(1..4);
        options.tcp[0].markers = both & 1 != 0;
        options.tcp[1].markers = both & 2 != 0;
        options.head_len = [usize::MAX, rng.random_range(120..600)][rng.random_range(0..2)];
    });
    let Some(path) = path else { return };
    assert!(path.fpdus_placed_ooo > 1000, "{path:?}");
    assert_eq!((path.crc_errors, path.marker_errors), (0, 0));
}

// req-test: DDP-013, DDP-244, RDMAP-028, RDMAP-211
#[test]
fn data_survives_every_fault_at_once() {
    over_seeds("every-fault-at-once", 400, 40, |rng, options| {
        options.mtu = some_mtu(rng);
        // After an RTO a sender sends one frame at a time: a long loss burst would outlast its
        // retries.
        let bursts = GilbertElliott {
            mean_len: rng.random_range(1.0..3.0),
            loss: rng.random_range(0.5..0.9),
        };
        let delay_ns = rng.random_range(0..200_000);
        options.faults = Faults {
            loss: rng.random_range(0.0..0.05),
            bursts: rng.random_bool(0.5).then_some(bursts),
            duplicate: rng.random_range(0.0..0.05),
            reorder: rng.random_range(0.0..0.1),
            hold_ns: Some(20 * (delay_ns + 1000)),
            corrupt: rng.random_range(0.0..0.02),
            delay_ns,
            jitter_ns: rng.random_range(0..50_000),
            ..Faults::NONE
        };
        if rng.random_bool(0.3) {
            // From 80 Mb/s to 8 Gb/s, with a queue that fills.
            options.faults.rate = Some(rng.random_range(10_000_000..1_000_000_000));
            options.faults.queue = Some(rng.random_range(20_000..200_000));
            options.faults.mark = Some(rng.random_range(0..20_000));
        }
        options.tcp = [some_end(rng), some_end(rng)];
    });
}

/// Link outages, empty pools, stalled ends and busy applications, at scheduled times.
#[test]
fn data_survives_scheduled_faults() {
    over_seeds("scheduled-faults", 250, 40, |rng, options| {
        options.mtu = some_mtu(rng);
        options.scheduled_faults = Some((rng.random_range(1..12), 50 * MILLISECOND));
        options.tcp = [some_end(rng), some_end(rng)];
        options.faults.loss = rng.random_range(0.0..0.01);
        options.faults.delay_ns = rng.random_range(0..500_000);
        options.head_len = [usize::MAX, rng.random_range(120..600)][rng.random_range(0..2)];
    });
}

/// An end crashes and restarts at its address, with segments of the old instance still in flight.
/// The other end detects it; new connections work.
#[test]
fn survivor_detects_peer_restart_and_reconnects() {
    seeds::for_each_seed("peer-restart", env!("CARGO_TARGET_TMPDIR"), 200, |seed, capture| {
        let mut rng = SmallRng::seed_from_u64(seed ^ 0xdead);
        let mut options = may_fail_options(seed);
        options.ipv6 = rng.random_bool(0.5);
        options.mtu = some_mtu(&mut rng);
        options.tcp = [some_end(&mut rng), some_end(&mut rng)];
        options.faults.loss = rng.random_range(0.0..0.02);
        options.faults.duplicate = rng.random_range(0.0..0.02);
        options.faults.reorder = rng.random_range(0.0..0.05);
        options.faults.delay_ns = rng.random_range(0..2_000_000);
        let mut world = World::new(&options);
        if let Some(path) = capture {
            eprintln!("peer-restart, seed {seed}: {options:?}");
            world.capture_to(&path);
        }
        world.check_invariants();
        for life in 0..4 {
            let mut work = Workload::new(&mut world, Plan::may_fail(40));
            let dies = world.now + rng.random_range(0..100 * MILLISECOND);
            if life == 3 {
                let done = world.run_until(100 * SECOND, |world| work.step(world));
                assert!(done && work.is_complete(), "the last life is undisturbed");
                work.finish(&mut world);
                return;
            }
            world.run_until(SECOND, |world| work.step(world) || world.now >= dies);
            world.restart_end(1);
            let done = world.run_until(PEER_GONE_NS, |world| {
                work.step_end(world, 0);
                work.has_ended(0)
            });
            assert!(done, "end 0 never learns that its peer is gone");
            work.destroy_survivor(&mut world, 0);
        }
    });
}

/// Segments are forged for a while. Afterwards each connection works, or has failed at both ends.
#[test]
fn connections_work_or_end_after_forged_segments() {
    seeds::for_each_seed("forged-segments", env!("CARGO_TARGET_TMPDIR"), 600, |seed, capture| {
        let mut rng = SmallRng::seed_from_u64(seed ^ 0xf07e);
        let keeps_seq = rng.random_bool(0.6);
        let rate = [2, 10, 60][rng.random_range(0..3)];
        let mutator = SegmentMutator::from_seed(seed, rate, keeps_seq);
        let options = WorldOptions {
            ipv6: rng.random_bool(0.5),
            mtu: some_mtu(&mut rng),
            tcp: [some_end(&mut rng), some_end(&mut rng)],
            ..may_fail_options(seed)
        };
        let lasts_ns = rng.random_range(0..200 * MILLISECOND);
        run_with_forged_segments(&options, mutator, keeps_seq, lasts_ns, 30, capture);
    });
}

/// Atomic operations and Immediate Data on connections that end in mid-flight, in many ways.
#[test]
fn rfc7306_operations_execute_at_most_once_on_connections_that_end() {
    let name = "rfc7306-on-connections-that-end";
    let total = Mutex::new(Report::default());
    let folder = env!("CARGO_TARGET_TMPDIR");
    let are_enough = seeds::for_each_seed(name, folder, 400, |seed, capture| {
        let mut rng = SmallRng::seed_from_u64(seed ^ 0x7306);
        let conns = rng.random_range(1..5);
        let mut options = WorldOptions {
            arena_len: arena_len(conns),
            ipv6: rng.random_bool(0.5),
            mtu: some_mtu(&mut rng),
            tcp: [some_end(&mut rng), some_end(&mut rng)],
            keepalive_ns: Some(KEEPALIVE_NS),
            ..WorldOptions::of_seed(seed)
        };
        options.faults.loss = rng.random_range(0.0..0.05);
        options.faults.duplicate = rng.random_range(0.0..0.05);
        options.faults.reorder = rng.random_range(0.0..0.1);
        options.faults.delay_ns = rng.random_range(0..300_000);
        options.ooo_placement = rng.random_bool(0.3);
        let fault_count = rng.random_range(1..8);
        options.scheduled_faults = rng.random_bool(0.3).then_some((fault_count, 20 * MILLISECOND));
        let mut world = World::new(&options);
        if let Some(path) = capture {
            eprintln!("{name}, seed {seed}, {conns} connections: {options:?}");
            world.capture_to(&path);
        }
        if rng.random_bool(0.4) {
            world.mutator = Some(SegmentMutator::from_seed(seed, 10, true));
        } else {
            world.check_invariants();
        }
        let ends = EndPlan::EndedFirst(3);
        let plan = Plan { draw: mostly_shared_words, ends, ..Plan::new(conns, 40) };
        let report = run_with_faults_for(&mut world, plan, 100 * MILLISECOND, true);
        let mut total = total.lock().expect("nobody panics with it");
        total.word_ops.0 += report.word_ops.0;
        total.word_ops.1 += report.word_ops.1;
        total.received += report.received;
    });
    let total = total.into_inner().expect("nobody panicked with it");
    if !are_enough {
        return;
    }
    // Some were interrupted, and not all of these had been executed.
    assert!(total.received > 0 && total.word_ops.1 < total.word_ops.0, "{total:?}");
}

// req-test: DDP-244
#[test]
fn data_survives_exhausted_frame_pools() {
    over_seeds("exhausted-frame-pools", 100, 40, |rng, options| {
        options.mtu = some_mtu(rng);
        options.pools = PoolSizes {
            data: rng.random_range(1..12),
            reserve: 1,
            control: rng.random_range(1..3),
        };
        options.faults.loss = rng.random_range(0.0..0.02);
    });
}

#[test]
fn data_survives_small_ooo_buffers() {
    over_seeds("small-ooo-buffers", 150, 40, |rng, options| {
        options.mtu = some_mtu(rng);
        options.ooo_limits = (rng.random_range(0..20), rng.random_range(0..100_000));
        options.faults.loss = rng.random_range(0.0..0.05);
        options.faults.reorder = rng.random_range(0.0..0.05);
        options.faults.delay_ns = rng.random_range(0..1_000_000);
        // The headers lie in the first segment.
        options.head_len = rng.random_range(120..2000);
        options.tcp = [some_end(rng), some_end(rng)];
    });
}

/// Long FPDUs in short segments, and hardly any memory for those that are incomplete: MPA declines
/// what TCP delivers, in order and after gaps were filled.
#[test]
fn data_survives_little_memory_for_partial_fpdus() {
    let path = over_seeds("little-partial-memory", 100, 40, |rng, options| {
        options.mtu = [4000, 9000][rng.random_range(0..2)];
        options.cut_to = Some(rng.random_range(300..3000));
        options.partial_bytes_max = rng.random_range(PARTIAL_BYTES_MIN..100_000);
        options.faults.loss = rng.random_range(0.0..0.05);
        options.faults.reorder = rng.random_range(0.0..0.1);
        options.faults.delay_ns = rng.random_range(0..300_000);
        options.ooo_placement = rng.random_bool(0.3);
        options.tcp = [some_end(rng), some_end(rng)];
    });
    let Some(path) = path else { return };
    println!("{} declined, {} evicted", path.assembly_exhausted, path.partials_evicted);
    assert!(path.assembly_exhausted > 50, "{path:?}");
}

#[test]
fn data_survives_chained_rx_buffers() {
    over_seeds("chained-rx-buffers", 50, 40, |rng, options| {
        options.mtu = some_mtu(rng);
        options.head_len = rng.random_range(120..600);
        options.faults.reorder = 0.05;
        options.faults.loss = 0.01;
    });
}

#[test]
fn data_survives_a_fragmenting_wire() {
    over_seeds("fragmenting-wire", 100, 30, |rng, options| {
        options.mtu = 1500;
        options.fragment_mtu = Some([576, 1000, 1280][rng.random_range(0..3)]);
        options.faults.reorder = 0.05;
        options.faults.duplicate = 0.02;
        options.faults.loss = 0.005;
    });
}

// req-test: MPA-168, MPA-170
#[test]
fn fragments_are_reassembled() {
    for ipv6 in [false, true] {
        let mut options = WorldOptions::new(7);
        (options.arena_len, options.ipv6, options.fragment_mtu) = (arena_len(1), ipv6, Some(600));
        let mut world = World::new(&options);
        run(&mut world, Plan::new(1, 20));
        for end in &world.ends {
            let counters = end.engine.counters();
            assert!(counters.packets_reassembled > 20, "{counters:?}");
            assert_eq!(counters.reassembly_failures, 0);
        }
    }
}

/// The path MTU changes repeatedly, faster or slower than PMTU discovery can follow.
fn changing_path_mtu(icmp_reply: IcmpReply) -> Option<Counters> {
    let name = format!("path-{icmp_reply:?}").to_lowercase();
    over_seeds(&name, 30, 120, |rng, options| {
        options.mtu = [1500, 4000, 9000][rng.random_range(0..3)];
        let least = if options.ipv6 { 1280 } else { 576 };
        let mut some = || rng.random_range(least..9000).min(rng.random_range(least..9000));
        let mtus = [9000, some(), some(), some()];
        let phase_ns = [50 * MICROSECOND, MILLISECOND, 20 * MILLISECOND, 300 * MILLISECOND];
        let phase_ns = phase_ns[rng.random_range(0..4)];
        options.router = Some(Router { mtus, phase_ns, icmp_reply, forged: rng.random_bool(0.5) });
        options.faults.delay_ns = rng.random_range(0..100_000);
        options.faults.loss = [0.0, 0.01][rng.random_range(0..2)];
        options.faults.reorder = [0.0, 0.02][rng.random_range(0..2)];
        options.faults.corrupt = [0.0, 0.01][rng.random_range(0..2)];
        options.tcp = [some_end(rng), some_end(rng)];
        options.head_len = [usize::MAX, 120][rng.random_range(0..2)];
    })
}

#[test]
fn data_survives_a_changing_path_mtu_with_icmp() {
    for icmp_reply in [IcmpReply::WithMtu, IcmpReply::WithoutMtu] {
        let Some(path) = changing_path_mtu(icmp_reply) else { return };
        assert!(
            path.emss_changes > 0 && path.icmp_errors_in > 0 && path.icmp_errors_ignored > 0,
            "{path:?}"
        );
    }
}

#[test]
fn data_survives_a_changing_path_mtu_without_icmp() {
    let Some(path) = changing_path_mtu(IcmpReply::Silent) else { return };
    assert!(path.emss_changes > 0, "{path:?}");
    assert_eq!((path.icmp_errors_in, path.icmp_errors_ignored), (0, 0));
}

/// Applications that poll their queues rarely.
#[test]
fn requests_of_slow_applications_complete() {
    over_seeds("slow-applications", 75, 40, |rng, options| {
        options.mtu = some_mtu(rng);
        options.app_delay_max_ns = Some(1 << rng.random_range(10..25));
        options.priority_tags = rng.random_bool(0.5);
        options.faults.loss = rng.random_range(0.0..0.02);
        options.faults.reorder = rng.random_range(0.0..0.02);
        options.faults.delay_ns = rng.random_range(0..200_000);
        options.tcp = [some_end(rng), some_end(rng)];
    });
}

/// A port MTU too small for the minimum FPDU, so that peers advertise an MSS as small: slow, but
/// everything works.
#[test]
fn requests_complete_with_a_tiny_port_mtu() {
    over_seeds("tiny-port-mtu", 40, 10, |rng, options| {
        options.mtu = rng.random_range(68..300);
        options.faults.loss = rng.random_range(0.0..0.01);
        options.tcp = [some_end(rng), some_end(rng)];
    });
}

/// A path whose MTU is temporarily too small for an FPDU. Segments without payload always pass.
#[test]
fn requests_complete_over_a_tiny_path_mtu() {
    over_seeds("tiny-path-mtu", 20, 10, |rng, options| {
        options.mtu = 1500;
        options.ipv6 = false;
        let mut some = || rng.random_range(100..300);
        let mtus = [1500, some(), some(), some()];
        let icmp_reply = [IcmpReply::WithMtu, IcmpReply::Silent][usize::from(rng.random_bool(0.5))];
        let phase_ns = [MILLISECOND, 20 * MILLISECOND][usize::from(rng.random_bool(0.5))];
        options.router = Some(Router { mtus, phase_ns, icmp_reply, forged: rng.random_bool(0.5) });
        options.tcp = [some_end(rng), some_end(rng)];
    });
}

#[test]
fn same_seed_gives_the_same_run() {
    let once = || -> Report {
        let mut options = WorldOptions::new(42);
        options.arena_len = arena_len(2);
        options.faults.loss = 0.02;
        options.faults.reorder = 0.05;
        run(&mut World::new(&options), Plan::new(2, 30))
    };
    assert_eq!(once(), once());
}
