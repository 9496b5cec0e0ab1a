//! Connections of a host to itself: the port returns the frames.

use std::net::SocketAddr;

use ferrowarp_proto::time::SECOND;
use ferrowarp_proto::verbs::cm::{CmError, ConnEvent, ConnParam, ConnectError};
use ferrowarp_proto::verbs::wc::{QpId, WcStatus};
use ferrowarp_proto::verbs::wr::{AtomicOp, Operation, Payload, SendWr, Sge};
use ferrowarp_proto::wire::tcp::{Flags, Options};
use ferrowarp_tests::manual_tcp_peer::MACS;
use ferrowarp_tests::pattern;
use ferrowarp_tests::raw::{Peer, SegmentFixture};
use ferrowarp_tests::sim::heap_device::PortOffload;
use ferrowarp_tests::sim::pairs::{CQ, PORT, completions, qp_init, receive, register, signaled_wr};
use ferrowarp_tests::sim::sim_port::ShardOptions;
use ferrowarp_tests::sim::world::{World, WorldOptions, address};

/// A queue pair and its shard.
type ShardQp = (usize, QpId);

/// Returns the next event of end 0, and its shard.
fn event(world: &mut World) -> (usize, ConnEvent) {
    let mut found = None;
    world.run_until(30 * SECOND, |world| {
        found = world.ends[0].next_event();
        found.is_some()
    });
    found.expect("an event within 30 s")
}

fn connect(world: &mut World, (shard, qp): ShardQp, port: u16) -> Result<(), CmError> {
    let (now, remote) = (world.now, world.socket(0, port));
    world.ends[0].shard_mut(shard).connect(now, qp, remote, &ConnParam::default())
}

/// Connects a new queue pair of a shard of end 0 to end 0. Returns both.
fn connect_to_self(world: &mut World, shard: usize) -> [ShardQp; 2] {
    let active = (shard, world.ends[0].create_qp(shard, qp_init(64, 64)));
    connect(world, active, PORT).expect("the port returns frames");
    let (shard, ConnEvent::ConnectRequest { request, .. }) = event(world) else {
        panic!("no request");
    };
    let passive = (shard, world.ends[0].create_qp(shard, qp_init(64, 64)));
    let now = world.now;
    let engine = world.ends[0].shard_mut(shard);
    engine.accept(now, request, passive.1, &ConnParam::default()).expect("the request is new");
    for _ in 0..2 {
        assert!(matches!(event(world).1, ConnEvent::Established { .. }));
    }
    [active, passive]
}

fn post(world: &mut World, (shard, qp): ShardQp, wr: SendWr) {
    world.ends[0].shard_mut(shard).post_send(qp, wr).expect("a free slot of the send queue");
}

/// Each end writes, reads, sends and adds to the memory of the other.
fn exchange(world: &mut World, ends: [ShardQp; 2]) {
    const LEN: u32 = 100_000;
    let stag = register(world, 0, 0, 1 << 20);
    let op = AtomicOp::FetchAdd { add: 2, boundaries: 0 };
    for (seed, (from, to)) in (0..).zip([(0, 1), (1, 0)]) {
        let arena = std::rc::Rc::clone(&world.ends[0].arena);
        let bytes = pattern(seed, LEN as usize);
        arena.write(0, &bytes);
        arena.write(900_000, &40_u64.to_ne_bytes());
        let sge = |addr| Sge { addr, len: LEN, lkey: stag };
        let gather = || Payload::Gather([sge(0)].into());
        let recv = receive(9, stag, 500_000, LEN);
        let (shard, qp) = ends[to];
        world.ends[0].shard_mut(shard).post_recv(qp, recv).expect("a free slot");
        let word = Sge { addr: 800_000, len: 8, lkey: stag };
        let requests = [
            Operation::Write { payload: gather(), rkey: stag, remote: 150_000 },
            Operation::Read { sink: [sge(300_000)].into(), rkey: stag, remote: 150_000 },
            Operation::Send { payload: gather(), solicited: false, invalidate: None },
            Operation::Atomic { op, sink: word, rkey: stag, remote: 900_000 },
        ];
        for (number, operation) in (1..).zip(requests) {
            post(
                world,
                ends[from],
                SendWr { fence: number == 2, ..signaled_wr(number, operation) },
            );
        }
        let mut found = completions(world, 0, CQ, 5);
        found.sort_by_key(|wc| wc.wr_id);
        assert!(found.iter().all(|wc| wc.status == WcStatus::Success), "{found:?}");
        assert_eq!(found.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1, 2, 3, 4, 9]);
        for at in [150_000, 300_000, 500_000] {
            assert!(arena.read(at, bytes.len()) == bytes, "at {at}");
        }
        assert_eq!(arena.read(800_000, 8), 40_u64.to_ne_bytes());
        assert_eq!(arena.read(900_000, 8), 42_u64.to_ne_bytes());
    }
}

/// Closes the connection; in the end nothing is left of it.
fn close(world: &mut World, [active, passive]: [ShardQp; 2]) {
    let now = world.now;
    world.ends[0].shard_mut(active.0).close(now, active.1).expect("connected");
    for _ in 0..2 {
        assert!(matches!(event(world).1, ConnEvent::Disconnected { .. }));
    }
    assert_eq!(world.ends[0].connection_count(), 1, "in TIME-WAIT");
    world.run_for(300 * SECOND);
    assert_eq!(world.ends[0].connection_count(), 0);
    for (shard, qp) in [active, passive] {
        let now = world.now;
        world.ends[0].shard_mut(shard).destroy_qp(now, qp);
    }
    assert_eq!(world.ends[0].owned_count().unwrap_or(0), 0);
    let in_use =
        world.ends[0].shards().map(|engine| engine.device().frames_in_use()).sum::<usize>();
    assert_eq!(in_use, 0);
}

#[test]
fn queue_pairs_of_one_host_exchange_data() {
    let offloads =
        [PortOffload::None, PortOffload::Tcp, PortOffload::TcpIpv4, PortOffload::Segmentation];
    for (offload, ipv6) in offloads.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let vlan = ipv6.then_some(7);
        let options = WorldOptions { offload, ipv6, vlan, ..WorldOptions::new(3) };
        let mut world = World::new(&options);
        world.ends[0].listen(PORT, 4);
        let ends = connect_to_self(&mut world, 0);
        let before = world.frames;
        exchange(&mut world, ends);
        assert_eq!(world.frames, before, "nothing is sent on the wire");
        assert_eq!(world.ends[0].engine.device().hairpin_drops, 0);
        close(&mut world, ends);
    }
}

/// The MTU of the loop is that of its buffers, and not the port's.
#[test]
fn hairpin_mtu_is_independent_of_the_port() {
    for (mtu, hairpin_mtu) in [(1500, 9000), (9000, 1500)] {
        let hairpin_mtu = Some(hairpin_mtu);
        let mut world = World::new(&WorldOptions { mtu, hairpin_mtu, ..WorldOptions::new(3) });
        world.ends[0].listen(PORT, 4);
        let ends = connect_to_self(&mut world, 0);
        for (_, qp) in ends {
            let emss = world.ends[0].engine.emss(qp);
            assert_eq!(emss, hairpin_mtu.map(|mtu| usize::from(mtu) - 52));
        }
        exchange(&mut world, ends);
        close(&mut world, ends);
    }
}

#[test]
fn queue_pairs_of_any_shards_exchange_data() {
    let mut passive_shards = [0; 4];
    for (seed, is_rss_known) in (0..16_u8).flat_map(|seed| [(seed, true), (seed, false)]) {
        let shards = Some(ShardOptions { is_rss_known, ..ShardOptions::new([4, 1]) });
        let mut world = World::new(&WorldOptions { shards, ..WorldOptions::new(seed.into()) });
        world.ends[0].listen(PORT, 4);
        let ends = connect_to_self(&mut world, usize::from(seed) % 4);
        if is_rss_known {
            passive_shards[ends[1].0] += 1;
        } else {
            assert_eq!(ends[0].0, ends[1].0, "without RSS both ends are at one shard");
        }
        exchange(&mut world, ends);
        close(&mut world, ends);
    }
    assert!(passive_shards.iter().all(|&count| count > 0), "{passive_shards:?}");
}

#[test]
fn frames_beyond_the_bound_are_dropped_and_sent_again() {
    let mut world = World::new(&WorldOptions::new(3));
    world.ends[0].engine.device_mut().set_hairpin_len(8);
    world.ends[0].listen(PORT, 4);
    let ends = connect_to_self(&mut world, 0);
    exchange(&mut world, ends);
    assert!(world.ends[0].engine.device().hairpin_drops > 0);
    close(&mut world, ends);
}

#[test]
fn closed_port_refuses() {
    for ipv6 in [false, true] {
        let mut world = World::new(&WorldOptions { ipv6, ..WorldOptions::new(3) });
        let qp = (0, world.ends[0].create_qp(0, qp_init(4, 4)));
        connect(&mut world, qp, PORT).unwrap();
        let (_, failed) = event(&mut world);
        let ConnEvent::ConnectFailed { error, .. } = failed else { panic!("{failed:?}") };
        assert_eq!(error, ConnectError::Refused);
        assert_eq!(world.ends[0].connection_count(), 0);
    }
}

/// A connection has two ends: a port does not connect to itself.
#[test]
fn source_port_is_not_the_port_connected_to() {
    let connect = |last: u16, local_port: u16| {
        let mut fx = SegmentFixture::new(|config| config.source_ports = 50_000..=last);
        let qp = fx.create_qp();
        let remote = SocketAddr::new(address(1), 50_000);
        fx.engine.connect(fx.now, qp, remote, &ConnParam::new().local_port(local_port))?;
        fx.settle();
        Ok(fx.engine.next_event())
    };
    assert_eq!(connect(50_000, 0), Err(CmError::NoResources));
    assert_eq!(connect(50_001, 50_000), Err(CmError::PortInUse(50_000)));
    for local_port in [0, 50_001] {
        let failed = connect(50_001, local_port);
        assert!(matches!(failed, Ok(Some(ConnEvent::ConnectFailed { .. }))), "{failed:?}");
    }
}

/// A segment from our own address is answered only if we sent it, whatever hardware address its
/// frame has, and whether or not we have connected to ourselves.
#[test]
fn forged_segment_from_our_address_is_not_answered() {
    let mut fx = SegmentFixture::new(|_| {});
    for has_connected in [false, true] {
        if has_connected {
            let (now, qp) = (fx.now, fx.create_qp());
            let closed = SocketAddr::new(address(1), PORT + 1);
            fx.engine.connect(now, qp, closed, &ConnParam::default()).expect("the port is enabled");
        }
        fx.settle();
        fx.take_sent();
        assert_eq!(fx.engine.device().hairpins(), has_connected);
        let dropped = fx.engine.counters().frames_dropped;
        let mut forged = Peer::at(address(1), 50_000);
        for (to, mac) in [PORT, PORT + 1].into_iter().flat_map(|to| MACS.map(|mac| (to, mac))) {
            forged.tcp.tuple.remote.set_port(to);
            for flags in [Flags::SYN, Flags::ACK, Flags::RST] {
                let fields = forged.tcp.fields(flags, Options::default());
                let mut frame = forged.tcp.build_frame(&fields, &[]);
                frame[6..12].copy_from_slice(&mac);
                fx.inject(frame);
                fx.settle();
                assert_eq!(fx.engine.connection_count(), 0);
            }
        }
        assert_eq!(fx.engine.counters().frames_dropped, dropped + 12);
        assert!(fx.take_sent().is_empty());
        assert_eq!(fx.engine.device().hairpins(), has_connected);
    }
}

#[test]
fn port_that_returns_no_frames_reaches_no_own_address() {
    let mut world = World::new(&WorldOptions { hairpin_mtu: Some(0), ..WorldOptions::new(3) });
    let qp = (0, world.ends[0].create_qp(0, qp_init(4, 4)));
    assert_eq!(connect(&mut world, qp, PORT), Err(CmError::Unreachable));
}
