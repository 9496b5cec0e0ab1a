//! The short way against the general one: the same frames at the same times, and the same timers,
//! counters and completions.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrowarp_proto::engine::Counters;
use ferrowarp_proto::tcp::EcnMode;
use ferrowarp_proto::time::{Instant, MICROSECOND, MILLISECOND};
use ferrowarp_proto::verbs::cm::ConnEvent;
use ferrowarp_proto::verbs::wc::{Wc, WcOpcode};
use ferrowarp_proto::verbs::wr::{Operation, Payload, SendWr, Sge};
use ferrowarp_tests::sim::pairs::{CQ, Connected, qp_init, receive, settle};
use ferrowarp_tests::sim::seeds;
use ferrowarp_tests::sim::world::{World, WorldOptions};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

/// Turns of an application.
const TURNS: usize = 400;
/// Receives that each end has posted.
const RECEIVES: usize = 64;
/// Length of each of their buffers, and of the longest message.
const LEN_MAX: u32 = 1 << 16;
/// Start of those buffers, and length of an arena.
const RECEIVE_AREA: u64 = 1 << 18;
const ARENA_LEN: usize = 1 << 19;

/// State of an end after a turn.
#[derive(Debug, PartialEq)]
struct State {
    deadline: Option<Instant>,
    counters: Counters,
    completions: Vec<Wc>,
    events: Vec<ConnEvent>,
}

/// Operation of one or few segments, most often of a single short one.
fn operation(rng: &mut impl Rng, pair: &Connected, end: usize) -> Operation {
    let len = match rng.random_range(0..20) {
        0 => 0,
        1 => rng.random_range(1400..1460),
        // Around the longest ULPDU.
        2 => rng.random_range(64_740..=LEN_MAX),
        3 => rng.random_range(0..6000),
        _ => rng.random_range(1..200),
    };
    let (addr, remote) = (rng.random_range(0..1 << 16), rng.random_range(0..1 << 16));
    // Seldom one that is not registered, which ends the stream.
    let lkey = pair.stags[end] ^ u32::from(rng.random_bool(0.001));
    let sge = Sge { addr, len, lkey };
    let payload = match rng.random_range(0..4) {
        0 => Payload::inline(&vec![7; (len % 97) as usize]).expect("96 bytes at most"),
        1 => Payload::Gather([sge, Sge { len: len % 5, ..sge }].into()),
        _ => Payload::Gather([sge].into()),
    };
    let rkey = pair.stags[1 - end];
    match rng.random_range(0..8) {
        0 => Operation::Read { sink: [sge].into(), rkey, remote },
        1..4 => {
            let solicited = rng.random_bool(0.2);
            // The peer refuses to invalidate this region, and ends the stream.
            let invalidate = rng.random_bool(0.002).then_some(rkey);
            Operation::Send { payload, solicited, invalidate }
        }
        _ => Operation::Write { payload, rkey, remote },
    }
}

/// Effect of a run.
struct Outcome {
    /// Of both ends, after each turn.
    states: Vec<[State; 2]>,
    memory: [Vec<u8>; 2],
    /// Capture of all frames, with their times.
    frames: Vec<u8>,
    /// Frames received and sent by the short way, at both ends.
    short_way_counts: [u64; 2],
}

/// Takes what an end has to report.
fn state_of(pair: &mut Connected, end: usize) -> State {
    let side = &mut pair.world.ends[end];
    let events = std::iter::from_fn(|| side.engine.next_event()).collect();
    let completions: Vec<Wc> = std::iter::from_fn(|| side.queues.poll(CQ)).collect();
    for _ in completions.iter().filter(|wc| wc.opcode == WcOpcode::Recv) {
        let wr = receive(0, pair.stags[end], RECEIVE_AREA, LEN_MAX);
        side.engine.post_recv(pair.qps[end], wr).expect("a free slot");
    }
    let (deadline, counters) = (side.engine.deadline(), *side.engine.counters());
    State { deadline, counters, completions, events }
}

fn outcome(options: &WorldOptions, seed: u64, path: &Path) -> Outcome {
    let param = World::new(options).param(0);
    let mut pair = Connected::new(options, qp_init(16, RECEIVES), &[param.clone(), param]);
    pair.world.capture_to(path);
    for end in 0..2 {
        let bytes: Vec<u8> = (0..=250).cycle().take(options.arena_len).collect();
        pair.world.ends[end].arena.write(0, &bytes);
        for wr_id in 0..RECEIVES as u64 {
            let wr = receive(wr_id, pair.stags[end], RECEIVE_AREA, LEN_MAX);
            pair.world.ends[end].engine.post_recv(pair.qps[end], wr).expect("a free slot");
        }
    }
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut states = Vec::new();
    for turn in 0..TURNS {
        // The responder sends after the initiator's first message.
        let end = if turn < 10 { 0 } else { rng.random_range(0..2) };
        let count = if rng.random_bool(0.7) { 1 } else { rng.random_range(0..6) };
        for wr_id in 0..count {
            let operation = operation(&mut rng, &pair, end);
            let (signaled, fence) = (rng.random_bool(0.8), rng.random_bool(0.1));
            let wr = SendWr { wr_id, operation, signaled, fence };
            // Refused by a full queue, and by one that was flushed.
            let _ = pair.world.ends[end].engine.post_send(pair.qps[end], wr);
        }
        match rng.random_range(0..10) {
            0 => pair.world.run_for(rng.random_range(0..20_000) * MICROSECOND),
            1..4 => pair.world.run_for(rng.random_range(0..200) * MICROSECOND),
            steps => {
                for _ in 0..steps {
                    pair.world.step();
                }
            }
        }
        states.push([0, 1].map(|end| state_of(&mut pair, end)));
    }
    settle(&mut pair.world);
    states.push([0, 1].map(|end| state_of(&mut pair, end)));
    let counts = pair.world.ends.each_ref().map(|end| end.engine.short_way_counts());
    let short_way_counts = [0, 1].map(|at| counts[0][at] + counts[1][at]);
    let memory = [0, 1].map(|end| pair.world.ends[end].arena.read(0, options.arena_len));
    drop(pair);
    let frames = fs::read(path).expect("the capture was written");
    Outcome { states, memory, frames, short_way_counts }
}

#[test]
fn short_way_and_general_way_have_the_same_effect() {
    let folder = env!("CARGO_TARGET_TMPDIR");
    let counts = [const { AtomicU64::new(0) }; 2];
    let are_enough = seeds::for_each_seed("short-way", folder, 100, |seed, _| {
        let mut rng = SmallRng::seed_from_u64(seed ^ 0x5407);
        let mut options = WorldOptions::of_seed(seed);
        options.arena_len = ARENA_LEN;
        options.mtu = [1500, 1500, 576, 9000, 65_280][rng.random_range(0..5)];
        options.cq_len = if rng.random_bool(0.1) { rng.random_range(2..32) } else { 4096 };
        options.ipv6 = rng.random_bool(0.3);
        options.vlan = rng.random_bool(0.25).then(|| rng.random_range(1..4095));
        options.revision = [2, 0][usize::from(rng.random_bool(0.25))];
        options.faults.delay_ns = rng.random_range(1..50) * MICROSECOND;
        if rng.random_bool(0.2) {
            options.faults.delay_ns = rng.random_range(1..5) * MILLISECOND;
            options.faults.rate = Some(rng.random_range(1..100) << 20);
            options.faults.mark = Some(3000);
        }
        if rng.random_bool(0.2) {
            // Around the mark below which frames are shared out.
            options.pools.data = rng.random_range(100..200);
        }
        if rng.random_bool(0.5) {
            options.faults.loss = rng.random_range(0.0..0.05);
            options.faults.reorder = rng.random_range(0.0..0.1);
            options.faults.duplicate = rng.random_range(0.0..0.05);
            options.faults.corrupt = rng.random_range(0.0..0.02);
        }
        for end in &mut options.tcp {
            end.markers = rng.random_bool(0.1);
            end.timestamps = rng.random_bool(0.8);
            end.ecn = if rng.random_bool(0.2) { EcnMode::Request } else { end.ecn };
        }
        let [short, general] = [true, false].map(|short_way| {
            let path = format!("{folder}/short-way-{seed}-{short_way}.pcap");
            let found = outcome(&WorldOptions { short_way, ..options }, seed, Path::new(&path));
            fs::remove_file(&path).expect("it was written");
            found
        });
        for (turn, (found, expected)) in short.states.iter().zip(&general.states).enumerate() {
            assert_eq!(found, expected, "turn {turn}");
        }
        assert!(short.frames == general.frames, "other frames, or at other times");
        assert!(short.memory == general.memory, "other bytes were placed");
        assert_eq!(general.short_way_counts, [0; 2]);
        for (sum, count) in counts.iter().zip(short.short_way_counts) {
            sum.fetch_add(count, Ordering::Relaxed);
        }
    });
    let [received, sent] = counts.map(AtomicU64::into_inner);
    assert!(!are_enough || received > 10_000 && sent > 1000, "{received} and {sent}");
}
