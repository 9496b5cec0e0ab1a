//! Ends with several shards, whose ports steer as predicted, wrongly, or differently from one frame
//! to the next. Seeds are chosen as in `simulation`.

use std::sync::Mutex;

use ferrowarp_proto::steering::mesh::source_ports_max;
use ferrowarp_proto::time::{Instant, MICROSECOND, MILLISECOND, SECOND};
use ferrowarp_tests::sim::fault_schedule::ScheduledFault;
use ferrowarp_tests::sim::heap_device::PortOffload;
use ferrowarp_tests::sim::link::Faults;
use ferrowarp_tests::sim::router::{IcmpReply, Router};
use ferrowarp_tests::sim::seeds;
use ferrowarp_tests::sim::segment_mutator::SegmentMutator;
use ferrowarp_tests::sim::sim_port::{SHARD_COUNT_MAX, ShardOptions, Steering};
use ferrowarp_tests::sim::workload::{
    EndPlan, KEEPALIVE_NS, PEER_GONE_NS, Plan, Workload, arena_len, may_fail_options, run,
    run_with_faults_for, run_with_forged_segments,
};
use ferrowarp_tests::sim::world::{World, WorldOptions};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::simulation::{some_end, some_mtu};

/// Counters, summed over all shards and seeds.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    forwarded: u64,
    abandoned: u64,
    received: u64,
    dropped: u64,
    reassembled: u64,
    icmp_errors: u64,
    cookies: u64,
}

impl Totals {
    fn add(&mut self, world: &World) {
        for end in &world.ends {
            self.forwarded += end.count(|of| of.frames_forwarded);
            self.abandoned += end.count(|of| of.source_ports_abandoned);
            self.received += end.count(|of| of.frames_from_shards);
            self.dropped += end.count(|of| of.shard_messages_dropped);
            self.reassembled += end.count(|of| of.packets_reassembled);
            self.icmp_errors += end.count(|of| of.icmp_errors_in);
            self.cookies += end.count(|of| of.cookies_accepted);
        }
    }
}

/// Settings of a world whose ends have shards, with a faulty link, and a number of connections.
fn some_options(
    rng: &mut SmallRng,
    seed: u64,
    draw: impl FnOnce(&mut SmallRng, &mut WorldOptions, &mut ShardOptions),
) -> (WorldOptions, usize) {
    let conns = rng.random_range(2..7);
    let mut options = WorldOptions { arena_len: arena_len(conns), ..WorldOptions::of_seed(seed) };
    options.ipv6 = rng.random_bool(0.5);
    options.vlan = rng.random_bool(0.25).then(|| rng.random_range(1..4095));
    options.offload = PortOffload::of_seed(rng.random());
    options.mtu = some_mtu(rng);
    options.tcp = [some_end(rng), some_end(rng)];
    options.faults.loss = rng.random_range(0.0..0.03);
    options.faults.duplicate = rng.random_range(0.0..0.03);
    options.faults.reorder = rng.random_range(0.0..0.05);
    options.faults.delay_ns = rng.random_range(0..200_000);
    match rng.random_range(0..4) {
        0 => {
            options.mtu = 1500;
            options.fragment_mtu = Some([576, 1000, 1280][rng.random_range(0..3)]);
        }
        1 => {
            let least = if options.ipv6 { 1280 } else { 576 };
            let mut some = || rng.random_range(least..4000);
            let mtus = [9000, some(), some(), some()];
            let phase_ns = [50 * MICROSECOND, 20 * MILLISECOND][rng.random_range(0..2)];
            let icmp_reply = IcmpReply::WithMtu;
            options.router =
                Some(Router { mtus, phase_ns, icmp_reply, forged: rng.random_bool(0.5) });
        }
        _ => {}
    }
    if rng.random_bool(0.3) {
        // All SYNs are answered with cookies. If a SYN-ACK were duplicated and the first data
        // lost, the ACK of the second one would come first, and be reset: its cookie is invalid.
        options.half_open_max = 0;
        options.faults.duplicate = 0.0;
    }
    let several = rng.random_range(0..2);
    let mut counts = [0, 1].map(|_| rng.random_range(1..=SHARD_COUNT_MAX));
    counts[several] = rng.random_range(2..=SHARD_COUNT_MAX);
    let mut shards = ShardOptions::new(counts);
    draw(rng, &mut options, &mut shards);
    options.shards = Some(shards);
    (options, conns)
}

/// A world, drawn from a seed.
struct Drawn {
    rng: SmallRng,
    options: WorldOptions,
    conns: usize,
    world: World,
}

/// Runs seeds, each in a world with options drawn from the seed and `salt` by `draw`. Returns what
/// [`seeds::for_each_seed`] returns.
fn for_each_world(
    name: &str,
    default_count: u64,
    salt: u64,
    draw: impl Fn(&mut SmallRng, &mut WorldOptions, &mut ShardOptions) + Sync,
    run: impl Fn(Drawn) + Sync,
) -> bool {
    seeds::for_each_seed(name, env!("CARGO_TARGET_TMPDIR"), default_count, |seed, capture| {
        let mut rng = SmallRng::seed_from_u64(seed ^ salt);
        let (options, conns) = some_options(&mut rng, seed, &draw);
        let mut world = World::new(&options);
        if let Some(path) = capture {
            eprintln!("{name}, seed {seed}, {conns} connections: {options:?}");
            world.capture_to(&path);
        }
        world.check_invariants();
        run(Drawn { rng, options, conns, world });
    })
}

/// As [`for_each_world`]; all requests complete, and `check` checks what each run has counted.
/// Returns the totals; `None` if the seeds are too few to expect anything of them.
fn over_seeds(
    name: &str,
    default_count: u64,
    draw: impl Fn(&mut SmallRng, &mut WorldOptions, &mut ShardOptions) + Sync,
    prepare: impl Fn(&mut SmallRng, &mut World) + Sync,
    check: impl Fn(&WorldOptions, &Totals) + Sync,
) -> Option<Totals> {
    let totals = Mutex::new(Totals::default());
    let are_enough = for_each_world(name, default_count, 0x5a4d, draw, |drawn| {
        let Drawn { mut rng, options, conns, mut world } = drawn;
        prepare(&mut rng, &mut world);
        run(&mut world, Plan { windows: rng.random_bool(0.2), ..Plan::new(conns, 30) });
        let mut of_run = Totals::default();
        of_run.add(&world);
        check(&options, &of_run);
        totals.lock().expect("nobody panics with it").add(&world);
    });
    are_enough.then(|| totals.into_inner().expect("nobody panicked with it"))
}

/// Steering that is wrong in one way or another.
fn wrong_steering(rng: &mut SmallRng) -> Steering {
    match rng.random_range(0..4) {
        0 => Steering::Mispredicted,
        1 => Steering::FirstQueue,
        2 => Steering::Scattered(1.0),
        _ => Steering::Scattered(rng.random_range(0.0..0.3)),
    }
}

/// Draws keepalives, and steering that is wrong with the given probability.
fn wrong_or_predicted(
    wrong: f64,
) -> impl Fn(&mut SmallRng, &mut WorldOptions, &mut ShardOptions) + Sync {
    move |rng, options, shards| {
        options.keepalive_ns = Some(KEEPALIVE_NS);
        if rng.random_bool(wrong) {
            shards.steering = wrong_steering(rng);
        }
    }
}

#[test]
fn predicted_segments_are_never_forwarded() {
    let totals = over_seeds(
        "predicted-steering",
        250,
        |_, _, _| {},
        |_, _| {},
        |options, totals| {
            assert_eq!(totals.abandoned, 0);
            // Fragments are reassembled on any shard.
            assert!(totals.forwarded == 0 || options.fragment_mtu.is_some(), "{totals:?}");
        },
    );
    let Some(totals) = totals else { return };
    assert!(totals.reassembled > 0 && totals.icmp_errors > 0, "{totals:?}");
}

#[test]
fn data_survives_wrong_steering() {
    let totals = over_seeds(
        "wrong-steering",
        250,
        |rng, _, shards| {
            shards.steering = wrong_steering(rng);
            shards.is_rss_known = rng.random_bool(0.5);
        },
        |_, _| {},
        |_, _| {},
    );
    let Some(totals) = totals else { return };
    assert!(totals.forwarded > 1000 && totals.received > 1000, "{totals:?}");
    assert!(totals.reassembled > 0 && totals.icmp_errors > 0, "{totals:?}");
    assert!(totals.cookies > 0, "{totals:?}");
    assert!(totals.abandoned > 100, "{totals:?}");
}

/// The port steers by a hash of its own: an active open finds a source port whose replies arrive at
/// its shard, and the SYN-ACKs of the others are all that is forwarded.
#[test]
fn opens_find_source_ports_for_their_shards() {
    let exhausted = Mutex::new(0_u64);
    let totals = over_seeds(
        "unknown-steering",
        250,
        |_, options, shards| {
            // A segment that is repeated may arrive before the first one has had its effect.
            let delay_ns = options.faults.delay_ns;
            options.faults = Faults { delay_ns, ..Faults::NONE };
            (options.fragment_mtu, options.router) = (None, None);
            shards.steering = Steering::Mispredicted;
            shards.is_rss_known = false;
        },
        |_, _| {},
        |options, totals| {
            let shards = options.shards.map_or(1, |shards| shards.counts[0]);
            if totals.abandoned + 1 < source_ports_max(shards) as u64 {
                assert_eq!(totals.forwarded, totals.abandoned, "{totals:?}");
            } else {
                *exhausted.lock().expect("nobody panics with it") += 1;
            }
        },
    );
    let Some(totals) = totals else { return };
    assert!(totals.abandoned > 500, "{totals:?}");
    // Those in which a connection may have tried all ports in vain.
    let exhausted = exhausted.into_inner().expect("nobody panicked with it");
    println!("{totals:?}, {exhausted} not checked");
}

#[test]
fn data_survives_steering_that_changes() {
    let totals = over_seeds(
        "changing-steering",
        250,
        |rng, _, shards| shards.steering = Steering::Changing(1 << rng.random_range(13..25)),
        |_, _| {},
        |_, _| {},
    );
    let Some(totals) = totals else { return };
    assert!(totals.forwarded > 1000, "{totals:?}");
}

/// Shards that are not driven for up to 100 ms, while their rings fill.
#[test]
fn data_survives_stalled_shards() {
    over_seeds(
        "stalled-shards",
        200,
        |rng, _, shards| {
            if rng.random_bool(0.7) {
                shards.steering = wrong_steering(rng);
            }
        },
        |rng, world| {
            for _ in 0..rng.random_range(1..12) {
                let end = rng.random_range(0..2);
                let shard = rng.random_range(0..world.ends[end].shard_count());
                let from = Instant::from_nanos(rng.random_range(0..100 * MILLISECOND));
                let stall = ScheduledFault::ShardStalled { end, shard };
                world.schedule.add(stall, from, rng.random_range(MILLISECOND..100 * MILLISECOND));
            }
        },
        |_, _| {},
    );
}

#[test]
fn data_survives_tiny_mesh_rings() {
    let totals = over_seeds(
        "tiny-mesh-rings",
        200,
        |rng, options, shards| {
            // The fragments of one packet may never fit together.
            options.fragment_mtu = None;
            shards.steering = wrong_steering(rng);
            shards.ring_len = rng.random_range(1..5);
        },
        |_, _| {},
        |_, _| {},
    );
    let Some(totals) = totals else { return };
    assert!(totals.dropped > 1000, "{totals:?}");
}

/// A shard dies, perhaps the lead. The peers of its connections notice; all others complete, and so
/// do new ones of the shards that live.
#[test]
fn connections_of_other_shards_outlive_a_shard() {
    let failed = Mutex::new(0);
    for_each_world("shard-death", 50, 0xdead, wrong_or_predicted(0.5), |drawn| {
        let Drawn { mut rng, options, conns, mut world } = drawn;
        let plan = Plan { ends: EndPlan::MayFail, ..Plan::new(conns, 40) };
        let mut work = Workload::new(&mut world, plan);
        let dies = world.now + rng.random_range(0..50 * MILLISECOND);
        world.run_until(SECOND, |world| work.step(world) || world.now >= dies);
        let ends: Vec<usize> = (0..2).filter(|&end| world.ends[end].shard_count() > 1).collect();
        let end = ends[rng.random_range(0..ends.len())];
        let shard = rng.random_range(0..world.ends[end].shard_count());
        work.kill_shard(&mut world, end, shard);
        let done = world.run_until(PEER_GONE_NS, |world| work.step(world));
        assert!(done, "neither complete nor over");
        *failed.lock().expect("nobody panics with it") += work.check_others_complete();
        work.finish(&mut world);
        // The checks have driven the engines ahead. What is still on the way gets its answer.
        world.now = world.now + 1000 * SECOND;
        world.run_for(SECOND);
        world.check_invariants();
        world.set_faults(options.faults);
        run(&mut world, Plan::new(conns, 20));
    });
    assert!(failed.into_inner().expect("nobody panicked with it") > 10);
}

/// Connections end in mid-flight, in many ways, and others follow on any shard.
#[test]
fn connections_follow_others_that_ended_on_any_shard() {
    let name = "shards-of-connections-that-end";
    for_each_world(name, 150, 0x7e4d, wrong_or_predicted(0.7), |drawn| {
        let Drawn { conns, mut world, .. } = drawn;
        let plan = Plan { ends: EndPlan::EndedFirst(3), ..Plan::new(conns, 40) };
        run_with_faults_for(&mut world, plan, 100 * MILLISECOND, true);
    });
}

/// An end restarts with all its shards; the other end's shards detect it, and connect again.
#[test]
fn shards_detect_peer_restart_and_reconnect() {
    let name = "shards-peer-restart";
    for_each_world(name, 100, 0x4e57, wrong_or_predicted(0.7), |drawn| {
        let Drawn { mut rng, conns, mut world, .. } = drawn;
        let plan = Plan { ends: EndPlan::MayFail, ..Plan::new(conns, 40) };
        for _ in 0..2 {
            let mut work = Workload::new(&mut world, plan);
            let dies = world.now + rng.random_range(0..100 * MILLISECOND);
            world.run_until(SECOND, |world| work.step(world) || world.now >= dies);
            world.restart_end(1);
            let done = world.run_until(PEER_GONE_NS, |world| {
                work.step_end(world, 0);
                work.has_ended(0)
            });
            assert!(done, "end 0 never learns that its peer is gone");
            work.destroy_survivor(&mut world, 0);
        }
        let mut work = Workload::new(&mut world, plan);
        let done = world.run_until(100 * SECOND, |world| work.step(world));
        assert!(done && work.is_complete(), "the last life is undisturbed");
        work.finish(&mut world);
    });
}

/// Segments are forged for a while, on ends whose ports steer wrongly. Afterwards each connection
/// works, or has failed at both ends.
#[test]
fn connections_of_shards_work_or_end_after_forged_segments() {
    let name = "shards-forged-segments";
    seeds::for_each_seed(name, env!("CARGO_TARGET_TMPDIR"), 1500, |seed, capture| {
        let mut rng = SmallRng::seed_from_u64(seed ^ 0xf07d);
        let keeps_seq = rng.random_bool(0.6);
        let rate = [2, 10, 60][rng.random_range(0..3)];
        let mutator = SegmentMutator::from_seed(seed, rate, keeps_seq);
        let mut shards = ShardOptions::new([0, 1].map(|_| rng.random_range(1..=SHARD_COUNT_MAX)));
        shards.steering = wrong_steering(&mut rng);
        let options = WorldOptions {
            ipv6: rng.random_bool(0.5),
            mtu: some_mtu(&mut rng),
            tcp: [some_end(&mut rng), some_end(&mut rng)],
            half_open_max: [0, 1024][rng.random_range(0..2)],
            shards: Some(shards),
            ..may_fail_options(seed)
        };
        let lasts_ns = rng.random_range(0..200 * MILLISECOND);
        run_with_forged_segments(&options, mutator, keeps_seq, lasts_ns, 30, capture);
    });
}
