//! Fair sharing of resources between connections: work per poll, and receive window growth.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ferrowarp_proto::device::ChecksumMode;
use ferrowarp_proto::net::arp;
use ferrowarp_proto::time::{Instant, MICROSECOND, MILLISECOND, SECOND};
use ferrowarp_proto::verbs::cm::ConnParam;
use ferrowarp_proto::verbs::wc::{QpId, WcStatus};
use ferrowarp_proto::verbs::wr::{Operation, Payload, SendWr, Sge};
use ferrowarp_proto::wire::ethernet::EthernetLink;
use ferrowarp_proto::wire::rdmap::Opcode;
use ferrowarp_proto::wire::tcp::{Flags, Segment};
use ferrowarp_tests::frame::Frame;
use ferrowarp_tests::longest_poll::LongestPoll;
use ferrowarp_tests::raw::{Peer, SegmentFixture, recv_wr, untagged_fpdu};
use ferrowarp_tests::sim::heap_device::{PoolSizes, TX_QUEUE_LEN, prefetched_bytes};
use ferrowarp_tests::sim::link::Faults;
use ferrowarp_tests::sim::pairs::{self, CQ, PORT, connect_new, qp_init};
use ferrowarp_tests::sim::world::{World, WorldOptions};

const ARENA_LEN: u32 = 1 << 20;

/// Many connections wait for one ARP reply. When it arrives they all start, but over several polls.
#[test]
fn connects_awaiting_arp_resume_over_several_polls() {
    const COUNT: usize = 1000;
    let pools = PoolSizes { control: 4096, ..WorldOptions::new(1).pools };
    let mut world = World::new(&WorldOptions { pools, ..WorldOptions::new(1) });
    let (now, remote) = (world.now, world.socket(1, PORT));
    let end = &mut world.ends[0];
    for _ in 0..COUNT {
        let qp = end.engine.create_qp(qp_init(16, 16)).unwrap();
        end.engine.connect(now, qp, remote, &ConnParam::default()).unwrap();
    }
    while end.engine.deadline().is_some_and(|deadline| deadline <= now) {
        end.engine.drive(now);
    }
    assert_eq!(end.engine.usage().unresolved, COUNT);
    let (them, us) = (Ipv4Addr::new(198, 18, 0, 2), Ipv4Addr::new(198, 18, 0, 1));
    assert_eq!((remote.ip(), world.socket(0, 1).ip()), (IpAddr::V4(them), IpAddr::V4(us)));
    let mut reply = vec![0; 60];
    let link = EthernetLink::without_vlan([2, 0, 0, 0, 0, 2]);
    arp::write_reply(link, them, (us, [2, 0, 0, 0, 0, 1]), &mut reply);
    let end = &mut world.ends[0];
    end.engine.device().inbound.borrow_mut().push_back(reply);
    let (mut waiting, mut syns) = (COUNT, 0);
    for _ in 0..100 {
        end.engine.drive(now);
        syns += end.engine.device().outbound.borrow_mut().drain(..).count();
        let left = end.engine.usage().unresolved;
        assert!(waiting - left <= 64, "{} looked at the cache in one pass", waiting - left);
        waiting = left;
    }
    assert_eq!(waiting, 0);
    assert!(syns >= COUNT, "{syns}");
}

struct Pair {
    qps: [QpId; 2],
    stags: [u32; 2],
}

fn connect(world: &mut World) -> Pair {
    let stags = [0, 1].map(|end| pairs::register(world, end, 0, u64::from(ARENA_LEN)));
    Pair { qps: connect_new(world, qp_init(16, 16), &Default::default()), stags }
}

/// Posts a Write of `len` bytes.
fn post_write(world: &mut World, pair: &Pair, wr_id: u64, len: u32) {
    post_write_to(world, pair, wr_id, len, 0);
}

/// Posts a Write of `len` bytes to offset `remote`.
fn post_write_to(world: &mut World, pair: &Pair, wr_id: u64, len: u32, remote: u64) {
    let gather = Sge { addr: 0, len, lkey: pair.stags[0] };
    let payload = Payload::Gather([gather].into());
    let operation = Operation::Write { payload, rkey: pair.stags[1], remote };
    let wr = SendWr { wr_id, operation, signaled: true, fence: false };
    world.ends[0].engine.post_send(pair.qps[0], wr).unwrap();
}

/// Posts `count` Writes of 1 MiB and runs until they complete.
fn write(world: &mut World, pair: &Pair, count: u64) {
    for wr_id in 0..count {
        post_write(world, pair, wr_id, ARENA_LEN);
    }
    let mut done = 0;
    let all = world.run_until(60 * SECOND, |world| {
        while let Some(wc) = world.ends[0].queues.poll(CQ) {
            assert_eq!(wc.status, WcStatus::Success);
            done += 1;
        }
        done == count
    });
    assert!(all);
}

/// The first connection needs a wide window and takes the whole budget of window growth. Once it is
/// idle the second one gets its share, and no advertised window is shrunk.
#[test]
fn window_growth_of_idle_connections_is_reclaimed() {
    const BUDGET: u64 = 1 << 20;
    let mut options = WorldOptions::new(3);
    options.arena_len = ARENA_LEN as usize;
    options.window_growth_max = BUDGET;
    options.pools.data = 4096;
    // 1 Gb/s over 20 ms: 2.5 MB in flight.
    let rate = Some(125_000_000);
    options.faults = Faults { rate, delay_ns: 10 * MILLISECOND, ..Faults::NONE };
    let mut world = World::new(&options);
    world.polls = Some(LongestPoll::default());
    world.check_invariants();
    let first = connect(&mut world);
    write(&mut world, &first, 16);
    let growth = |world: &World| world.ends[1].engine.usage().window_growth;
    let reclaimed = |world: &World| world.ends[1].engine.counters().windows_reclaimed;
    assert!(growth(&world) > BUDGET * 9 / 10, "{}", growth(&world));
    let second = connect(&mut world);
    write(&mut world, &second, 8);
    assert_eq!(reclaimed(&world), 0, "the first was busy just now");
    let idle_until = world.now + 20 * SECOND;
    world.run_until(30 * SECOND, |world| world.now >= idle_until);
    // Both windows are wide and both connections idle; then the second receives data again.
    write(&mut world, &second, 16);
    assert_eq!(reclaimed(&world), 1);
    assert!((BUDGET / 2..=BUDGET).contains(&growth(&world)), "{}", growth(&world));
    // The first may send what was advertised to it, and its window advances from there.
    write(&mut world, &first, 16);
    assert!(growth(&world) <= BUDGET);
}

/// A message arrives byte by byte, the first byte last: the data that becomes contiguous is
/// delivered over several polls, so that other connections are served in between.
#[test]
fn filled_gap_is_delivered_over_several_polls() {
    const PIECES_PER_PASS: usize = 256;
    let mut fx = SegmentFixture::new(|_| {});
    let mut peers = [5000, 5001].map(|port| Peer::connect(&mut fx, port, 1460));
    let qps = [0, 1].map(|index: usize| peers[index].start_mpa(&mut fx));
    let send = Opcode::Send { invalidate: false, solicited: false };
    let fpdu = untagged_fpdu(send, 0, 1, &[7; 1400]);
    for (peer, qp) in peers.iter().zip(qps) {
        fx.engine.post_recv(qp, recv_wr(&fx, 1)).unwrap();
        for at in 1..fpdu.len() {
            let seq = peer.tcp.snd_nxt + u32::try_from(at).unwrap();
            peer.send_segment(&fx, Flags::ACK, seq, &fpdu[at..=at]);
            if at % 32 == 0 {
                fx.poll();
                fx.engine.device().outbound.borrow_mut().clear();
            }
        }
    }
    fx.settle();
    let held = |fx: &SegmentFixture| fx.engine.ooo_usage().1 / 256;
    let mut before = held(&fx);
    assert_eq!(before, 2 * (fpdu.len() - 1));
    for peer in &peers {
        peer.send_segment(&fx, Flags::ACK, peer.tcp.snd_nxt, &fpdu[..1]);
    }
    let mut passes = 0;
    while before > 0 {
        fx.engine.device().outbound.borrow_mut().clear();
        fx.poll();
        let now = held(&fx);
        assert!(now < before, "each pass goes on");
        assert!(before - now <= PIECES_PER_PASS + 2, "{} in one pass", before - now);
        assert!(now == 0 || fx.engine.deadline() == Some(Instant::ZERO), "there is more to do");
        before = now;
        passes += 1;
    }
    assert!(passes >= 2 * fpdu.len() / PIECES_PER_PASS, "{passes}");
    let done: Vec<_> = std::iter::from_fn(|| fx.queues.poll(CQ)).collect();
    assert_eq!(done.len(), 2);
    assert!(done.iter().all(|wc| (wc.status, wc.byte_len) == (WcStatus::Success, 1400)));
    // All data is acknowledged.
    for peer in &mut peers {
        peer.tcp.snd_nxt += u32::try_from(fpdu.len()).unwrap();
    }
    let acks: Vec<_> = fx.engine.device().outbound.borrow_mut().drain(..).collect();
    for peer in &peers {
        let is_answer = |frame: &Vec<u8>| {
            let frame = Frame::from(frame.clone());
            let segment = Segment::parse(&frame, ChecksumMode::Software).unwrap();
            segment.ack == peer.tcp.snd_nxt && segment.options.sack.is_empty()
        };
        assert!(acks.iter().any(is_answer));
    }
}

/// Lets one end run a pass whose transmit queue has this many free slots, and returns what it sent.
fn drive_with_slots(world: &mut World, end: usize, slots: usize) -> Vec<Vec<u8>> {
    let queue = world.ends[end].engine.device().outbound.clone();
    *queue.borrow_mut() = vec![Vec::new(); TX_QUEUE_LEN - slots].into();
    world.polls.get_or_insert_default();
    world.drive(end, 0);
    let mut queue = queue.borrow_mut();
    queue.drain(..).skip(TX_QUEUE_LEN - slots).collect()
}

/// A pass ends once the transmit queue is full. The connections that it did not visit come first in
/// the next one, and none is visited in vain.
#[test]
fn full_transmit_queue_is_shared_in_turn() {
    const COUNT: usize = 20;
    const SLOTS: usize = 8;
    let mut options = WorldOptions::new(5);
    options.arena_len = ARENA_LEN as usize;
    options.pools.data = 4096;
    let mut world = World::new(&options);
    let pairs: Vec<_> = (0..COUNT).map(|_| connect(&mut world)).collect();
    pairs::settle(&mut world);
    for pair in &pairs {
        post_write(&mut world, pair, 0, ARENA_LEN);
    }
    let shortages = |world: &World| world.ends[0].engine.counters().frame_shortages;
    // The first full queue of a while is found by a pass that visits all nevertheless.
    let mut turns = vec![drive_with_slots(&mut world, 0, SLOTS)];
    let before = shortages(&world);
    turns.extend((1..COUNT).map(|_| drive_with_slots(&mut world, 0, SLOTS)));
    assert!(shortages(&world) - before <= COUNT as u64, "{}", shortages(&world) - before);
    let mut ports: Vec<_> = turns
        .into_iter()
        .map(|frames| {
            let sent = frames.into_iter().filter_map(parse);
            let ports: Vec<_> = sent.map(|segment| segment.tuple.remote.port()).collect();
            assert_eq!(ports, [ports[0]; SLOTS], "no other has a free slot");
            ports[0]
        })
        .collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), COUNT, "each has had a turn");
}

/// While the transmit queue is full, connections that are ready are visited now and then, but not
/// all of them in one pass.
#[test]
fn full_transmit_queue_bounds_the_visits_of_a_pass() {
    const COUNT: usize = 2000;
    let mut world = World::new(&WorldOptions::new(1));
    let (now, remote) = (world.now, world.socket(1, PORT));
    let end = &mut world.ends[0];
    for _ in 0..COUNT {
        let qp = end.engine.create_qp(qp_init(16, 16)).unwrap();
        end.engine.connect(now, qp, remote, &ConnParam::default()).unwrap();
    }
    end.engine.drive(now);
    let mut reply = vec![0; 60];
    let link = EthernetLink::without_vlan([2, 0, 0, 0, 0, 2]);
    let (them, us) = (Ipv4Addr::new(198, 18, 0, 2), Ipv4Addr::new(198, 18, 0, 1));
    arp::write_reply(link, them, (us, [2, 0, 0, 0, 0, 1]), &mut reply);
    end.engine.device().inbound.borrow_mut().push_back(reply);
    let mut polls = LongestPoll::default();
    let shortages = |world: &World| world.ends[0].engine.counters().frame_shortages;
    let mut visits = Vec::new();
    for _ in 0..100 {
        let before = shortages(&world);
        world.now = world.now + 2 * MILLISECOND;
        polls.time(|| drive_with_slots(&mut world, 0, 0));
        visits.push(shortages(&world) - before);
    }
    let most = visits.iter().max().unwrap();
    assert!(*most > 64 && *most <= 512, "{visits:?}");
    assert!(visits.iter().sum::<u64>() > 2 * COUNT as u64, "all are visited again and again");
    polls.assert_below("ready connections", Duration::from_millis(50));
}

/// Parses a frame as its receiver does.
fn parse(frame: Vec<u8>) -> Option<Segment> {
    Segment::parse(&Frame::from(frame), ChecksumMode::Software).ok()
}

/// A connection sends 16 segments in a pass, also if the first is a short one that goes alone.
#[test]
fn connection_sends_sixteen_segments_per_pass() {
    let mut options = WorldOptions::new(8);
    options.arena_len = ARENA_LEN as usize;
    options.tcp[0].pacing = false;
    options.pools.data = 4096;
    let mut world = World::new(&options);
    let pair = connect(&mut world);
    // Opens the congestion window; it would close again on a connection that is idle for long.
    write(&mut world, &pair, 4);
    let acknowledged_at = world.now + MILLISECOND;
    world.run_until(SECOND, |world| world.now >= acknowledged_at);
    post_write(&mut world, &pair, 0, 64);
    // With nothing outstanding the short one would not have the short way.
    assert_eq!(drive_with_slots(&mut world, 0, TX_QUEUE_LEN).len(), 1);
    post_write(&mut world, &pair, 1, 64);
    post_write(&mut world, &pair, 2, ARENA_LEN);
    let sent = drive_with_slots(&mut world, 0, TX_QUEUE_LEN);
    let lens: Vec<_> = sent.iter().map(Vec::len).collect();
    assert!(lens[0] < 200 && lens[1] > 1400, "the short one is alone: {lens:?}");
    assert_eq!(lens.len(), 16);
    assert_eq!(drive_with_slots(&mut world, 0, TX_QUEUE_LEN).len(), 16);
}

/// A pass sends a burst of segments, as large as the peer's passes receive, instead of something
/// for all connections. Those that it did not visit come first in the next one.
#[test]
fn pass_sends_no_more_than_a_burst() {
    const COUNT: usize = 20;
    const SEGMENTS: usize = 3;
    let mut options = WorldOptions::new(10);
    options.arena_len = ARENA_LEN as usize;
    options.tcp[0].pacing = false;
    options.pools.data = 4096;
    let mut world = World::new(&options);
    let pairs: Vec<_> = (0..COUNT).map(|_| connect(&mut world)).collect();
    pairs::settle(&mut world);
    for pair in &pairs {
        post_write(&mut world, pair, 0, 4096);
    }
    let mut ports = Vec::new();
    while ports.len() < COUNT {
        let sent = drive_with_slots(&mut world, 0, TX_QUEUE_LEN);
        assert!((17..=32).contains(&sent.len()) || ports.len() + 7 > COUNT, "{}", sent.len());
        let sent: Vec<_> = sent.into_iter().filter_map(parse).collect();
        for turn in sent.chunks(SEGMENTS) {
            let port = turn[0].tuple.remote.port();
            assert!(turn.iter().all(|segment| segment.tuple.remote.port() == port));
            assert!(!ports.contains(&port), "each has one turn");
            ports.push(port);
        }
    }
}

/// The state of many connections is loaded ahead of their turns; few stay in the caches anyway.
#[test]
fn state_of_many_connections_is_loaded_ahead() {
    let mut options = WorldOptions::new(11);
    options.arena_len = ARENA_LEN as usize;
    options.pools.data = 4096;
    let mut world = World::new(&options);
    let stags = connect(&mut world).stags;
    let mut pairs = Vec::new();
    let loaded = |world: &mut World, pairs: &mut Vec<Pair>, count: usize| {
        let connect =
            || Pair { qps: connect_new(world, qp_init(1, 1), &Default::default()), stags };
        pairs.resize_with(count, connect);
        pairs::settle(world);
        let before = prefetched_bytes();
        pairs.iter().for_each(|pair| post_write(world, pair, 0, 64));
        pairs::settle(world);
        prefetched_bytes() - before
    };
    assert_eq!(loaded(&mut world, &mut pairs, 60), 0);
    // At least connection and queue pair, at both ends, but for the first ones on the list.
    let bytes = loaded(&mut world, &mut pairs, 100);
    assert!(bytes > 2 * 90 * 1024, "{bytes}");
}

/// Returns a world with few data frames at the source, and connections of queue pairs of depth 1
/// that each have posted a Write of `len` bytes, to an offset that is its number.
fn posted_with_few_frames(data: usize, count: usize, len: u32) -> (World, Vec<Pair>) {
    let mut options = WorldOptions::new(12);
    options.arena_len = ARENA_LEN as usize;
    options.tcp[0].pacing = false;
    options.pools.data = data;
    let mut world = World::new(&options);
    let stags = connect(&mut world).stags;
    let connect =
        |_| Pair { qps: connect_new(&mut world, qp_init(1, 1), &Default::default()), stags };
    let pairs: Vec<_> = (0..count).map(connect).collect();
    pairs::settle(&mut world);
    for (number, pair) in (0..).zip(&pairs) {
        post_write_to(&mut world, pair, 0, len, number);
    }
    (world, pairs)
}

/// Connections that find no frame wait in order, and are not visited in vain. Each then gets one
/// frame in its turn.
#[test]
fn connections_await_frames_in_order() {
    const COUNT: usize = 100;
    let (mut world, _pairs) = posted_with_few_frames(40, COUNT, 1000);
    let mut turns: Vec<u64> = Vec::new();
    let shortages = |world: &World| world.ends[0].engine.counters().frame_shortages;
    while turns.len() < COUNT {
        let before = turns.len();
        let mut to_peer = Vec::new();
        for _ in 0..10 {
            to_peer.extend(drive_with_slots(&mut world, 0, TX_QUEUE_LEN));
        }
        let vain = shortages(&world);
        assert!(drive_with_slots(&mut world, 0, TX_QUEUE_LEN).is_empty());
        let vain = shortages(&world) - vain;
        assert!(vain <= 1, "only the first was visited: {vain}");
        // Tagged Offset, after the headers of Ethernet, IPv4 and TCP with timestamps, the length of
        // the FPDU, DDP's control field and the STag.
        let offset_of = |frame: &Vec<u8>| u64::from_be_bytes(frame[74..82].try_into().unwrap());
        turns.extend(to_peer.iter().map(offset_of));
        assert!(turns.len() > before, "those that wait get the frames that are acknowledged");
        let [peer, us] = [1, 0].map(|end: usize| world.ends[end].engine.device().inbound.clone());
        peer.borrow_mut().extend(to_peer);
        // The peer delays its ACKs.
        for _ in 0..3 {
            let acks = drive_with_slots(&mut world, 1, TX_QUEUE_LEN);
            us.borrow_mut().extend(acks);
            world.now = world.now + 50 * MILLISECOND;
        }
    }
    assert_eq!(turns, (0..COUNT as u64).collect::<Vec<_>>());
}

/// Short segments are copied where frames are short, so that many connections can each have one
/// outstanding.
#[test]
fn short_segments_hold_no_scarce_frames() {
    const COUNT: usize = 1000;
    let (mut world, _pairs) = posted_with_few_frames(200, COUNT, 64);
    let mut sent = 0;
    for _ in 0..COUNT {
        sent += drive_with_slots(&mut world, 0, TX_QUEUE_LEN).len();
    }
    let counters = world.ends[0].engine.counters();
    assert_eq!((sent, counters.frame_shortages), (COUNT, 0));
    assert!(counters.frames_copied_out >= COUNT as u64 - 200, "{}", counters.frames_copied_out);
}

/// Many connections that have only ACKs to send all do so in the pass that received their data.
#[test]
fn pass_acknowledges_all_that_it_receives() {
    const COUNT: u16 = 30;
    let mut fx = SegmentFixture::new(|_| {});
    let mut peers: Vec<_> = (0..COUNT).map(|at| Peer::connect(&mut fx, 5000 + at, 1460)).collect();
    let send = Opcode::Send { invalidate: false, solicited: false };
    let fpdu = untagged_fpdu(send, 0, 1, &[7; 100]);
    let qps: Vec<_> = peers.iter_mut().map(|peer| peer.start_mpa(&mut fx)).collect();
    for (peer, qp) in peers.iter().zip(qps) {
        fx.engine.post_recv(qp, recv_wr(&fx, 1)).unwrap();
        fx.engine.post_recv(qp, recv_wr(&fx, 2)).unwrap();
        // Out of order, so that the ACK is due at once.
        let seq = peer.tcp.snd_nxt + u32::try_from(fpdu.len()).unwrap();
        peer.send_segment(&fx, Flags::ACK, seq, &fpdu);
    }
    fx.engine.device().outbound.borrow_mut().clear();
    fx.poll();
    let acks: Vec<_> = fx.engine.device().outbound.borrow_mut().drain(..).collect();
    assert_eq!(acks.len(), usize::from(COUNT));
}

/// A receive window that has grown is advertised in the pass that made it grow: its peer waits for
/// it.
#[test]
fn grown_window_is_advertised_in_the_same_pass() {
    let mut options = WorldOptions::new(9);
    options.arena_len = ARENA_LEN as usize;
    options.pools.data = 4096;
    options.tcp[1].windows = (16 << 10, 1 << 20);
    let mut world = World::new(&options);
    let pair = connect(&mut world);
    pairs::settle(&mut world);
    for wr_id in 0..4 {
        post_write(&mut world, &pair, wr_id, ARENA_LEN);
    }
    let queue = |world: &World, end: usize| {
        let device = world.ends[end].engine.device();
        [&device.inbound, &device.outbound].map(std::rc::Rc::clone)
    };
    let ([in0, out0], [in1, out1]) = (queue(&world, 0), queue(&world, 1));
    let growth = |world: &World| world.ends[1].engine.usage().window_growth;
    let (mut grown, mut advertised) = (0, 0);
    for _ in 0..100 {
        world.ends[0].engine.drive(world.now);
        in1.borrow_mut().extend(out0.borrow_mut().drain(..));
        world.now = world.now + 10 * MICROSECOND;
        while !in1.borrow().is_empty() {
            let before = growth(&world);
            world.ends[1].engine.drive(world.now);
            let sent: Vec<_> = out1.borrow_mut().drain(..).collect();
            // Some frames are ARP's.
            let mut segments = sent.iter().rev().filter_map(|frame| parse(frame.clone()));
            let last = segments.next().map_or(advertised, |segment| segment.window);
            if growth(&world) > before {
                grown += 1;
                assert!(last > advertised, "{last} after {advertised}");
            }
            advertised = last;
            in0.borrow_mut().extend(sent);
        }
        world.now = world.now + 10 * MICROSECOND;
    }
    assert!(grown >= 2, "{grown}");
}
