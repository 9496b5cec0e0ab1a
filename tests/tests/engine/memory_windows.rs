//! Memory windows and invalidation, between two engines in virtual time.

use ferrowarp_proto::ddp::memory::{Access, MemoryFault};
use ferrowarp_proto::time::{MICROSECOND, MILLISECOND};
use ferrowarp_proto::verbs::wc::{CqId, QpId, WcOpcode, WcStatus};
use ferrowarp_proto::verbs::wr::{Bind, Operation, Payload, Sge};
use ferrowarp_tests::sim::link::Faults;
use ferrowarp_tests::sim::pairs::*;
use ferrowarp_tests::sim::seeds;
use ferrowarp_tests::sim::world::{World, WorldOptions};
use rand::RngExt;

/// Offset and length of the window in the region at end 1.
const AT: u64 = 1024;
const LEN: u64 = 512;

/// Bytes of the window.
fn window_bytes(world: &World, offset: usize, len: usize) -> Vec<u8> {
    let start = usize::try_from(AT).unwrap();
    world.ends[1].arena.read(start + offset, len)
}

fn regions(world: &World) -> &ferrowarp_proto::ddp::regions::RegionTable {
    use ferrowarp_proto::ddp::memory::Memory;
    world.ends[1].arena.regions()
}

/// A request to bind a window of end 1 to [`AT`] and [`LEN`] of a zero-based region.
fn bind_request(window: u32, region: u32) -> Bind {
    Bind {
        rkey: window & !0xff | window.wrapping_add(1) & 0xff,
        lkey: region,
        addr: AT,
        len: LEN,
        access: Access::REMOTE_WRITE | Access::REMOTE_READ,
        zero_based: true,
    }
}

/// The fault when a stream of end 1 resolves one byte at `stag`, if any.
fn resolve_fault(world: &World, stag: u32, qp: QpId) -> Option<MemoryFault> {
    let reach = world.ends[1].engine.qp_access_scope(qp).expect("a queue pair of end 1");
    regions(world).resolve(stag, reach, Access::REMOTE_WRITE, 0, 1).err()
}

/// Connects, with a window bound at end 1: queue pairs, region and the window's STag.
fn connect_with_mw(world: &mut World) -> ([QpId; 2], u32, u32) {
    let qps = connect(world, 0, None);
    let region = register(world, 1, 0, 4096);
    let window = regions(world).allocate_window(PD).unwrap();
    let request = bind_request(window, region);
    post(world, 1, qps[1], signaled_wr(1, Operation::Bind(request)));
    let wc = completions(world, 1, CQ, 1)[0];
    assert_eq!((wc.wr_id, wc.opcode, wc.status), (1, WcOpcode::Bind, WcStatus::Success));
    (qps, region, request.rkey)
}

// req-test: RDMAP-007, RDMAP-032, RDMAP-183, RDMAP-337
#[test]
fn mw_is_invalidated_by_the_peer_and_rebound() {
    let mut world = World::new(&WorldOptions::new(1));
    let ([active, passive], region, mut rkey) = connect_with_mw(&mut world);
    for round in 0..3_u8 {
        let buffer = receive(10, region, 0, 64);
        world.ends[1].engine.post_recv(passive, buffer).unwrap();
        post(&mut world, 0, active, write(2, &[round + 1; 8], rkey, LEN - 8));
        post(&mut world, 0, active, send(3, b"done", Some(rkey)));
        let wc = completions(&mut world, 1, CQ, 1)[0];
        // The STag is invalid when the completion is reported; earlier Writes are placed.
        assert_eq!(resolve_fault(&world, rkey, passive), Some(MemoryFault::InvalidStag));
        assert_eq!((wc.wr_id, wc.invalidated()), (10, Some(rkey)));
        let end = usize::try_from(LEN).unwrap();
        assert_eq!(window_bytes(&world, end - 8, 8), [round + 1; 8]);
        completions(&mut world, 0, CQ, 2);
        let request = bind_request(rkey, region);
        post(&mut world, 1, passive, signaled_wr(1, Operation::Bind(request)));
        assert_eq!(completions(&mut world, 1, CQ, 1)[0].status, WcStatus::Success);
        assert_eq!(
            resolve_fault(&world, rkey, passive),
            Some(MemoryFault::InvalidStag),
            "the old key"
        );
        rkey = request.rkey;
    }
    // The next key is valid; the previous one terminates the connection.
    post(&mut world, 0, active, write(4, b"x", rkey, 0));
    post(&mut world, 0, active, write(5, b"y", rkey - 1, 0));
    assert_eq!(disconnect_cause(&mut world, 1), (passive, Some((1, 1, 0))));
    assert_eq!(window_bytes(&world, 0, 1), b"x");
}

// req-test: DDP-190, DDP-206, RDMAP-277, RDMAP-332
#[test]
fn mw_is_valid_only_for_its_qp() {
    let mut world = World::new(&WorldOptions::new(2));
    let ([active, passive], _, rkey) = connect_with_mw(&mut world);
    let [other, other_peer] = connect(&mut world, 1, None);
    post(&mut world, 0, other, write(1, b"no", rkey, 0));
    assert_eq!(disconnect_cause(&mut world, 1), (other_peer, Some((1, 1, 2))));
    assert_eq!(window_bytes(&world, 0, 2), [0; 2]);
    // The bound one stays usable.
    post(&mut world, 0, active, write(2, b"go", rkey, 0));
    settle(&mut world);
    assert_eq!(window_bytes(&world, 0, 2), b"go");
    assert_eq!(resolve_fault(&world, rkey, passive), None);
}

// req-test: RDMAP-101, RDMAP-271, RDMAP-330
#[test]
fn read_through_mw_of_another_qp_is_refused() {
    let mut world = World::new(&WorldOptions::new(3));
    let (_, _, rkey) = connect_with_mw(&mut world);
    let [other, other_peer] = connect(&mut world, 1, None);
    let sink = Sge { addr: 0, len: 4, lkey: register(&world, 0, 0, 64) };
    post(
        &mut world,
        0,
        other,
        signaled_wr(1, Operation::Read { sink: [sink].into(), rkey, remote: 0 }),
    );
    assert_eq!(disconnect_cause(&mut world, 1), (other_peer, Some((0, 1, 3))));
    assert_eq!(completions(&mut world, 0, CqId(1), 1)[0].status, WcStatus::RemoteAccess);
}

// req-test: RDMAP-103, RDMAP-109, RDMAP-184, RDMAP-282, RDMAP-331
#[test]
fn send_with_invalidate_of_a_shared_stag_is_refused() {
    let cause = [(0, 2, 9), (0, 1, 9), (0, 2, 9)];
    for (case, cause) in cause.into_iter().enumerate() {
        let mut world = World::new(&WorldOptions::new(4));
        let (_, region, rkey) = connect_with_mw(&mut world);
        let [other, other_peer] = connect(&mut world, 1, None);
        world.ends[1].engine.post_recv(other_peer, receive(7, region, 0, 64)).unwrap();
        // Shared by the protection domain; the window of another queue pair; an unknown STag.
        let stag = [region, rkey, rkey ^ 0x55][case];
        post(&mut world, 0, other, send(1, b"bye", Some(stag)));
        assert_eq!(disconnect_cause(&mut world, 1), (other_peer, Some(cause)), "case {case}");
        let wc = completions(&mut world, 1, CqId(1), 1)[0];
        assert_eq!((wc.wr_id, wc.status), (7, WcStatus::Flushed), "not delivered");
        assert!(regions(&world).pd_of(region).is_some() && regions(&world).pd_of(rkey).is_some());
    }
}

#[test]
fn bind_beyond_region_rights_fails_and_terminates() {
    let mut world = World::new(&WorldOptions::new(5));
    let [_, passive] = connect(&mut world, 0, None);
    let region = world.ends[1].arena.register(0, 4096, Access::REMOTE_WRITE, PD);
    let window = regions(&world).allocate_window(PD).unwrap();
    post(&mut world, 1, passive, signaled_wr(1, Operation::Bind(bind_request(window, region))));
    let invalidate = Operation::Invalidate { stag: window };
    post(&mut world, 1, passive, signaled_wr(2, invalidate));
    let ends: Vec<_> = completions(&mut world, 1, CQ, 2)
        .iter()
        .map(|wc| (wc.wr_id, wc.opcode, wc.status))
        .collect();
    let expected =
        [(1, WcOpcode::Bind, WcStatus::Bind), (2, WcOpcode::Invalidate, WcStatus::Flushed)];
    assert_eq!(ends, expected);
    assert_eq!(disconnect_cause(&mut world, 1), (passive, None));
    assert_eq!(disconnect_cause(&mut world, 0).1, Some((0, 0, 0)));
}

#[test]
fn local_requests_keep_order_and_obey_the_fence() {
    let mut world = World::new(&WorldOptions::new(6));
    let ([_, passive], region, rkey) = connect_with_mw(&mut world);
    let library = register(&world, 0, 0, 64);
    let sink = Sge { addr: 0, len: 8, lkey: region };
    post(
        &mut world,
        1,
        passive,
        signaled_wr(1, Operation::Read { sink: [sink].into(), rkey: library, remote: 0 }),
    );
    let mut fenced = signaled_wr(2, Operation::Invalidate { stag: rkey });
    fenced.fence = true;
    post(&mut world, 1, passive, fenced);
    let again = Bind { lkey: region, ..bind_request(rkey, region) };
    post(&mut world, 1, passive, signaled_wr(3, Operation::Bind(again)));
    assert_eq!(resolve_fault(&world, rkey, passive), None, "the Read is not answered yet");
    let ids: Vec<_> = completions(&mut world, 1, CQ, 3).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [1, 2, 3]);
    assert_eq!(resolve_fault(&world, rkey, passive), Some(MemoryFault::InvalidStag));
    assert_eq!(resolve_fault(&world, again.rkey, passive), None);
    // Without a fence it does not wait for the Read.
    post(
        &mut world,
        1,
        passive,
        signaled_wr(4, Operation::Read { sink: [sink].into(), rkey: library, remote: 0 }),
    );
    world.run_for(MICROSECOND);
    post(&mut world, 1, passive, signaled_wr(5, Operation::Invalidate { stag: again.rkey }));
    assert_eq!(resolve_fault(&world, again.rkey, passive), Some(MemoryFault::InvalidStag));
    assert_eq!(completions(&mut world, 1, CQ, 2).len(), 2);
}

/// During a flood of Writes and Reads on a lossy wire, at a random time, the window is invalidated
/// by a request of its owner, by the peer, or with its region: from then on no byte of it changes,
/// whatever still arrives.
// req-test: DDP-197, DDP-210, RDMAP-281
#[test]
fn nothing_is_placed_after_invalidation_completes() {
    let run = |seed: u64, capture: Option<std::path::PathBuf>| {
        let faults =
            Faults { loss: 0.02, reorder: 0.05, delay_ns: 5 * MICROSECOND, ..Faults::NONE };
        let mut world = World::new(&WorldOptions { faults, ..WorldOptions::new(seed) });
        if let Some(path) = capture {
            world.capture_to(path);
        }
        let ([active, passive], region, rkey) = connect_with_mw(&mut world);
        let source = register(&world, 0, 0, 4096);
        world.ends[1].engine.post_recv(passive, receive(10, region, 0, 64)).unwrap();
        let whole = |number: u64| {
            let len = u32::try_from(LEN).unwrap();
            let sge = Sge { addr: number * 8, len, lkey: source };
            let payload = Payload::Gather([sge].into());
            signaled_wr(number, Operation::Write { payload, rkey, remote: 0 })
        };
        let bytes: Vec<u8> = (0..4096).map(|at: u32| (at / 8).to_le_bytes()[0]).collect();
        world.ends[0].arena.write(0, &bytes);
        let by_peer = seed.is_multiple_of(3);
        let before = world.rng.random_range(1..60);
        for number in 0..before {
            post(&mut world, 0, active, whole(number));
        }
        if by_peer {
            post(&mut world, 0, active, send(100, b"over", Some(rkey)));
        }
        let pause = world.rng.random_range(0..2 * MILLISECOND);
        if by_peer {
            let wc = completions(&mut world, 1, CQ, 1)[0];
            assert_eq!(wc.invalidated(), Some(rkey));
        } else {
            world.run_for(pause);
            if seed % 3 == 1 {
                let invalidate = Operation::Invalidate { stag: rkey };
                post(&mut world, 1, passive, signaled_wr(2, invalidate));
                let wc = completions(&mut world, 1, CQ, 1)[0];
                assert_eq!((wc.opcode, wc.status), (WcOpcode::Invalidate, WcStatus::Success));
            } else {
                regions(&world).invalidate(region);
                assert!(regions(&world).invalidate_windows(region));
            }
        }
        let window = |world: &World| window_bytes(world, 0, usize::try_from(LEN).unwrap());
        let then = window(&world);
        for number in 200..203 {
            // The stream may have ended already.
            let _ = world.ends[0].engine.post_send(active, whole(number));
        }
        settle(&mut world);
        assert!(window(&world) == then, "bytes changed after the invalidation");
        let (_, cause) = disconnect_cause(&mut world, 1);
        assert_eq!(cause, Some((1, 1, 0)));
    };
    seeds::for_each_seed("windows", env!("CARGO_TARGET_TMPDIR"), 120, run);
}
