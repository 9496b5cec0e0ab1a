//! Segments, fragments and ICMP errors that arrive at another shard than their connection's.

use std::collections::BTreeSet;

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::engine::EngineConfig;
use ferrowarp_proto::time::{MILLISECOND, SECOND};
use ferrowarp_proto::verbs::cm::{CmError, ConnParam};
use ferrowarp_proto::verbs::qp::QpState;
use ferrowarp_proto::verbs::wr::{Operation, Payload, RecvWr, SendWr, Sge};
use ferrowarp_proto::wire::rdmap::Opcode;
use ferrowarp_proto::wire::tcp::Flags;
use ferrowarp_tests::ip;
use ferrowarp_tests::manual_tcp_peer::MACS;
use ferrowarp_tests::raw::{empty_write_fpdu, mpa_request, untagged_fpdu};
use ferrowarp_tests::sim::fragmenter::fragment;
use ferrowarp_tests::sim::pairs::{CQ, PD, PORT, qp_init};
use ferrowarp_tests::sim::sim_port::Steering;
use ferrowarp_tests::sim::world::address;

use super::{COUNT, Peer, ShardsFixture};

/// Path MTU discovery: destination unreachable, fragmentation needed.
const TOO_BIG: (u8, u8) = (3, 4);

#[test]
fn one_of_two_shards_takes_the_only_source_port() {
    let mut fx = ShardsFixture::new(|config| config.source_ports = 50_000..=50_000);
    let remote = (address(0), 9).into();
    fx.connect(2, remote);
    let qp = fx.end.create_qp(1, qp_init(16, 16));
    let engine = fx.end.shard_mut(1);
    let refused = engine.connect(fx.now, qp, remote, &ConnParam::default());
    assert_eq!(refused, Err(CmError::NoResources));
    assert_eq!(engine.qp_state(qp), QpState::Idle, "it may connect elsewhere");
    engine.connect(fx.now, qp, (address(0), 10).into(), &ConnParam::default()).unwrap();
    assert_eq!(fx.connection_counts(), [0, 1, 1, 0]);
    assert_eq!(fx.end.owned_count(), Some(2));
}

/// They have the same keys, and would try the same ports otherwise.
#[test]
fn shards_begin_at_source_ports_far_apart() {
    for shards in 2..=COUNT {
        let mut fx = ShardsFixture::with(shards, |_, _| {});
        let stride = EngineConfig::new(address(1), 24, 7).source_ports.len() / shards;
        for shard in 0..shards {
            fx.connect(shard, (address(0), 9).into());
        }
        let sent = fx.process();
        let (_, request) = sent.iter().find(|(_, frame)| frame[12..14] == [8, 6]).unwrap();
        fx.inject(0, ip::arp_reply(request, MACS[0]).unwrap());
        let mut ports: Vec<_> = fx.segments().iter().map(|syn| syn.tuple.remote.port()).collect();
        ports.sort_unstable();
        assert_eq!(ports.len(), shards);
        assert!(ports.windows(2).all(|pair| usize::from(pair[1] - pair[0]) >= stride), "{ports:?}");
    }
}

/// The replies to the only source port go to one queue; the shards know which.
#[test]
fn connect_without_a_port_for_its_queue_uses_another() {
    let mut forwarded = 0;
    for shard in 0..COUNT {
        let mut fx = ShardsFixture::with(COUNT, |config, options| {
            config.source_ports = 50_000..=50_000;
            (options.steering, options.is_rss_known) = (Steering::Predicted, true);
        });
        fx.connect(shard, (address(0), 9).into());
        let sent = fx.process();
        let (_, request) = sent.iter().find(|(_, frame)| frame[12..14] == [8, 6]).unwrap();
        fx.inject(0, ip::arp_reply(request, MACS[0]).unwrap());
        let syn = fx.segments().remove(0);
        let mut peer = Peer::at(address(0), 9, syn.tuple.remote.port());
        peer.tcp.rcv_nxt = syn.seq + 1;
        let answer = peer.frame(Flags::SYN | Flags::ACK, &[]);
        let queue = fx.end.steer(fx.now, &answer);
        fx.inject(queue, answer);
        assert_eq!(fx.segments().remove(0).ack, peer.tcp.snd_nxt + 1);
        forwarded += fx.end.count(|of| of.frames_forwarded);
    }
    assert_eq!(forwarded, COUNT as u64 - 1, "for one shard it is the right port");
}

/// Of a port that the application chooses.
#[test]
fn chosen_source_port_names_the_shard_of_its_replies() {
    let mut fx = ShardsFixture::with(COUNT, |_, options| {
        (options.steering, options.is_rss_known) = (Steering::Predicted, true);
    });
    let remote = (address(0), 9).into();
    let mut shards = BTreeSet::new();
    for local_port in 7000..7016 {
        let param = ConnParam::new().local_port(local_port);
        let named: Vec<_> =
            fx.end.shards().map(|shard| shard.shard_of_replies(remote, &param)).collect();
        let shard = named[0].expect("it is known");
        assert_eq!(named, [Some(shard); COUNT]);
        let peer = Peer::at(address(0), 9, local_port);
        assert_eq!(fx.end.steer(fx.now, &peer.frame(Flags::SYN | Flags::ACK, &[])), shard);
        shards.insert(shard);
    }
    assert_eq!(shards.len(), COUNT);
    let shard = fx.end.shard(0);
    let own = (address(1), 9).into();
    for (remote, local_port) in [(remote, 0), (own, 7000), ((address(0), 0).into(), 7000)] {
        let param = ConnParam::new().local_port(local_port);
        assert_eq!(shard.shard_of_replies(remote, &param), None, "{remote} from {local_port}");
    }
    let unknown = ShardsFixture::new(|_| {});
    let param = ConnParam::new().local_port(7000);
    assert_eq!(unknown.end.shard(0).shard_of_replies(remote, &param), None);
}

#[test]
fn repeated_syn_on_another_shard_opens_no_second_connection() {
    let mut fx = ShardsFixture::new(|_| {});
    let mut peer = Peer::new(5000);
    let first = peer.send_syn(&mut fx, 1);
    fx.advance(10 * MILLISECOND);
    let again = peer.send_syn(&mut fx, 3);
    assert_eq!([first.len(), again.len()], [1, 1]);
    assert_eq!(first[0].seq, again[0].seq);
    assert_eq!(fx.connection_counts(), [0, 1, 0, 0]);
    peer.tcp.snd_nxt += 1;
    peer.tcp.rcv_nxt = first[0].seq + 1;
    peer.send(&mut fx, 2, Flags::default(), &mpa_request());
    assert_eq!(fx.accept().0, 1);
    assert_eq!(fx.end.count(|of| of.frames_forwarded), 2);
}

#[test]
fn cookie_is_accepted_by_any_shard_once() {
    let mut fx = ShardsFixture::new(|config| config.half_open_per_listener_max = 0);
    let mut peer = Peer::new(5000);
    peer.syn(&mut fx, 0);
    assert_eq!((fx.connection_counts(), fx.end.owned_count()), (vec![0; COUNT], Some(0)));
    let request = peer.frame(Flags::ACK, &mpa_request());
    for shard in [2, 3, 1] {
        fx.inject(shard, request.clone());
        let answers = fx.segments();
        assert!(answers.iter().all(|segment| !segment.flags.has(Flags::RST)), "{answers:?}");
        assert_eq!(fx.connection_counts(), [0, 0, 1, 0]);
    }
    assert_eq!(fx.end.count(|of| of.cookies_accepted), 1);
    assert_eq!(fx.accept().0, 2);
    assert!(fx.end.next_event().is_none());
}

#[test]
fn syn_on_another_shard_replaces_a_connection_in_time_wait() {
    let mut fx = ShardsFixture::new(|_| {});
    let old = Peer::in_time_wait(&mut fx, 5000, 1, 2);
    assert_eq!((fx.connection_counts(), fx.end.owned_count()), (vec![0, 1, 0, 0], Some(1)));
    // A stray segment is acknowledged by the connection, not answered by another shard.
    fx.inject(3, old.frame(Flags::ACK | Flags::FIN, &[]));
    let answers = fx.segments();
    assert!(answers.iter().all(|segment| !segment.flags.has(Flags::RST)), "{answers:?}");
    let mut new = Peer::new(5000);
    new.tcp.snd_nxt = old.tcp.snd_nxt + 500;
    new.ts.0 = old.ts.0 + 1;
    let answer = new.syn(&mut fx, 3);
    assert!(answer.seq > old.tcp.rcv_nxt);
    new.send(&mut fx, 0, Flags::default(), &mpa_request());
    fx.accept();
    assert_eq!(fx.end.connection_count(), 1);
    fx.advance(10 * SECOND);
    assert_eq!(fx.end.owned_count(), Some(1));
}

#[test]
fn packet_too_big_on_another_shard_lowers_the_mss() {
    let mut fx = ShardsFixture::new(|_| {});
    let mut peers = [5000, 5001].map(Peer::new);
    let qps = [peers[0].connect(&mut fx, 1, 1), peers[1].connect(&mut fx, 2, 2)];
    peers[0].send(&mut fx, 1, Flags::default(), &empty_write_fpdu());
    let stag = fx.end.arena.register(0, 4096, Access::ALL, PD);
    let sge = Sge { addr: 0, len: 4096, lkey: stag };
    let payload = Payload::Gather([sge].into());
    let operation = Operation::Write { payload, rkey: 0, remote: 0 };
    let wr = SendWr { wr_id: 1, operation, signaled: true, fence: false };
    let engine = fx.end.shard_mut(1);
    engine.post_send(qps[0], wr).unwrap();
    let before = [1, 2].map(|shard| fx.end.shard(shard).emss(qps[shard - 1]));
    let sent = fx.process();
    let (_, big) = sent.into_iter().find(|(_, frame)| frame.len() > 1400).expect("a full segment");
    fx.inject(3, ip::icmp_error(&big, 14, TOO_BIG, 1000));
    fx.process();
    let after = [1, 2].map(|shard| fx.end.shard(shard).emss(qps[shard - 1]));
    assert!(after[0] < before[0], "{after:?} {before:?}");
    assert_eq!(after[1], before[1], "that of another connection");
    let errors: Vec<u64> = fx.end.shards().map(|engine| engine.counters().icmp_errors_in).collect();
    assert_eq!(errors, [0, 1, 0, 0]);
}

/// In whatever order they arrive.
#[test]
fn spread_fragments_are_reassembled_and_delivered() {
    for id in 0..32_u32 {
        let mut fx = ShardsFixture::new(|_| {});
        let mut peer = Peer::new(5000);
        let qp = peer.connect(&mut fx, 1, 1);
        peer.send(&mut fx, 1, Flags::default(), &empty_write_fpdu());
        let lkey = fx.end.arena.register(0, 4096, Access::ALL, PD);
        let sg_list = [Sge { addr: 0, len: 4096, lkey }].into();
        fx.end.shard_mut(1).post_recv(qp, RecvWr { wr_id: 5, sg_list }).unwrap();
        let bytes = ferrowarp_tests::pattern(3, 1200);
        let fpdu =
            untagged_fpdu(Opcode::Send { invalidate: false, solicited: false }, 0, 1, &bytes);
        let mut parts = fragment(peer.frame(Flags::ACK, &fpdu), 576, id);
        assert_eq!(parts.len(), 3);
        parts.rotate_left(id as usize % 3);
        for (part, shard) in parts.into_iter().zip([3, 0, 2]) {
            fx.inject(shard, part);
            let answers = fx.segments();
            assert!(answers.iter().all(|segment| !segment.flags.has(Flags::RST)), "{answers:?}");
        }
        let wc = fx.end.queues.poll(CQ).expect("it was delivered");
        assert_eq!((wc.wr_id, wc.byte_len), (5, 1200));
        assert_eq!(fx.end.arena.read(0, 1200), bytes);
        assert_eq!(fx.end.count(|of| of.packets_reassembled), 1);
        assert_eq!(fx.end.count(|of| of.shard_messages_dropped), 0);
    }
}

#[test]
fn unmatched_segment_is_answered_with_one_rst_by_any_shard() {
    let mut fx = ShardsFixture::new(|_| {});
    for shard in 0..COUNT {
        for port in [PORT, PORT + 1] {
            let mut stray = Peer::at(address(0), 6000, port);
            let answers = stray.send(&mut fx, shard, Flags::default(), &[1; 10]);
            assert_eq!(answers.len(), 1, "{answers:?}");
            assert_eq!(answers[0].flags, Flags::RST);
        }
    }
    assert_eq!(fx.end.count(|of| of.segments_unmatched), 2 * COUNT as u64);
}

#[test]
fn segment_of_another_shards_connection_is_never_answered_with_rst() {
    let mut fx = ShardsFixture::new(|_| {});
    let mut peer = Peer::new(5000);
    peer.connect(&mut fx, 1, 3);
    let mut answers = Vec::new();
    for shard in 0..COUNT {
        answers.extend(peer.send(&mut fx, shard, Flags::default(), &empty_write_fpdu()));
        // Longer than an ACK is delayed.
        fx.now = fx.now + MILLISECOND;
        answers.extend(peer.received(&mut fx));
    }
    assert!(answers.iter().all(|segment| !segment.flags.has(Flags::RST)), "{answers:?}");
    assert_eq!(answers.last().map(|segment| segment.ack), Some(peer.tcp.snd_nxt));
    assert_eq!(fx.end.count(|of| of.segments_unmatched), 0);
    assert_eq!(fx.end.shard(1).counters().frames_from_shards, COUNT as u64);
}

#[test]
fn segment_for_a_dead_shard_is_answered_with_rst_by_another() {
    let mut fx = ShardsFixture::new(|_| {});
    let mut peers = [5000, 5001].map(Peer::new);
    peers[0].connect(&mut fx, 1, 1);
    peers[1].connect(&mut fx, 2, 2);
    fx.end.kill_shard(1);
    assert_eq!(fx.end.owned_count(), Some(1));
    let answers = peers[0].send(&mut fx, 3, Flags::default(), &empty_write_fpdu());
    assert_eq!((answers.len(), answers[0].flags), (1, Flags::RST));
    let answers = peers[1].send(&mut fx, 3, Flags::default(), &empty_write_fpdu());
    assert!(answers.iter().all(|segment| !segment.flags.has(Flags::RST)), "{answers:?}");
    // The peer connects again, from the same port.
    let mut again = Peer::new(5000);
    again.tcp.snd_nxt = peers[0].tcp.snd_nxt + 500;
    again.connect(&mut fx, 0, 3);
}
