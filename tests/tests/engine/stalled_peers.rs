//! Peers that make no progress: however many TX frames they pin, the next client is served within a
//! second.

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::engine::EngineConfig;
use ferrowarp_proto::mpa::fpdu;
use ferrowarp_proto::time::{Instant, MILLISECOND, SECOND};
use ferrowarp_proto::verbs::cm::{ConnEvent, EndReason};
use ferrowarp_proto::verbs::wc::{QpId, WcStatus};
use ferrowarp_proto::verbs::wr::{Operation, Payload, SendWr, Sge};
use ferrowarp_proto::wire::tcp::Flags;
use ferrowarp_tests::raw::{CQ, PD, Peer, SegmentFixture, empty_write_fpdu};

/// Buffers of the data pool, see [`SegmentFixture::new`].
const POOL: usize = 256;
/// Bytes of each RDMA Write.
const LEN: u32 = 64 * 1024;

/// Posts a Write of [`LEN`] bytes.
fn write(fx: &mut SegmentFixture, qp: QpId, lkey: u32) {
    let sge = Sge { addr: 0, len: LEN, lkey };
    let payload = Payload::Gather([sge].into());
    let operation = Operation::Write { payload, rkey: 1, remote: 0 };
    let wr = SendWr { wr_id: 1, operation, signaled: true, fence: false };
    fx.engine.post_send(qp, wr).unwrap();
}

/// A connection whose responder may send.
fn open(fx: &mut SegmentFixture, port: u16) -> (Peer, QpId) {
    let mut peer = Peer::connect(fx, port, 1460);
    let qp = peer.start_mpa(fx);
    peer.send(fx, &empty_write_fpdu());
    (peer, qp)
}

/// Write payload bytes in a stream of FPDUs, each of which is verified; an incomplete FPDU at the
/// end is not counted.
fn written(mut stream: &[u8]) -> usize {
    let mut bytes = 0;
    while let Some((ulpdu, used)) = fpdu::parse(stream, true).unwrap() {
        bytes += ulpdu.len() - 14;
        stream = &stream[used..];
    }
    bytes
}

/// A new client connects and receives a whole Write within a second.
fn expect_next_client_served(fx: &mut SegmentFixture, port: u16, lkey: u32) {
    let began = fx.now;
    let (mut client, qp) = open(fx, port);
    write(fx, qp, lkey);
    while written(&client.received) < LEN as usize {
        assert!(fx.now.since(began) < SECOND, "{} bytes in a second", client.received.len());
        client.settle(fx);
    }
    let done = std::iter::from_fn(|| fx.queues.poll(CQ)).find(|wc| wc.qp == qp);
    assert_eq!(done.map(|wc| wc.status), Some(WcStatus::Success));
}

/// Advances time; frames sent by the engine are lost.
fn advance_to(fx: &mut SegmentFixture, until: Instant) {
    while fx.now < until {
        fx.now = (fx.now + 50 * MILLISECOND).min(until);
        fx.drive();
        fx.engine.device().outbound.borrow_mut().clear();
    }
}

fn pinned(fx: &SegmentFixture) -> String {
    let usage = fx.engine.usage();
    format!("{} frames, {} copies", fx.engine.device().frames_in_use(), usage.sent_copies)
}

/// Peers that acknowledge until the congestion window is large, and then nothing: each could pin
/// the whole pool.
#[test]
fn stalled_peers_leave_tx_frames_to_new_clients() {
    let mut fx = SegmentFixture::new(|config: &mut EngineConfig| config.sent_copies_bytes_max = 0);
    let lkey = fx.arena.register(0, u64::from(LEN), Access::ALL, PD);
    let mut stalled = Vec::new();
    for port in 0..8 {
        let (mut peer, qp) = open(&mut fx, 5000 + port);
        for _ in 0..16 {
            write(&mut fx, qp, lkey);
        }
        while peer.received.len() < 8 * LEN as usize {
            assert!(!peer.rst_received);
            fx.poll();
            if peer.receive(&fx) {
                peer.send_segment(&fx, Flags::ACK, peer.tcp.snd_nxt, &[]);
            }
            while fx.queues.poll(CQ).is_some() {}
        }
        stalled.push(peer);
    }
    for _ in 0..100 {
        fx.poll();
        fx.engine.device().outbound.borrow_mut().clear();
    }
    println!("{}", pinned(&fx));
    assert!(fx.engine.device().frames_in_use() < POOL, "some are left");
    expect_next_client_served(&mut fx, 6000, lkey);
    assert_eq!(fx.engine.counters().stalled_resets, 0, "nobody had to go for it");
}

/// More peers than frames stop acknowledging. Their frames are copied out, and when they
/// acknowledge again they receive the missing data intact.
#[test]
fn tx_frames_of_stalled_peers_are_copied_out() {
    const COUNT: u16 = 512;
    const { assert!(COUNT as usize == 2 * POOL) };
    let mut fx = SegmentFixture::new(|_| {});
    let lkey = fx.arena.register(0, u64::from(LEN), Access::ALL, PD);
    let bytes: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
    fx.arena.write(0, &bytes);
    let mut stalled = Vec::new();
    for index in 0..COUNT {
        let (peer, qp) = open(&mut fx, 5000 + index);
        write(&mut fx, qp, lkey);
        fx.poll();
        stalled.push(peer);
    }
    println!("{}", pinned(&fx));
    expect_next_client_served(&mut fx, 20_000, lkey);
    assert!(fx.engine.usage().sent_copies >= usize::from(COUNT) - POOL);
    assert_eq!(fx.engine.counters().stalled_resets, 0);
    for index in [0, usize::from(COUNT) - 1] {
        let peer = &mut stalled[index];
        let last = fx.now + 60 * SECOND;
        while written(&peer.received) < LEN as usize {
            assert!(fx.now < last && !peer.rst_received, "{} bytes", peer.received.len());
            peer.settle(&mut fx);
            fx.now = fx.now + 100 * MILLISECOND;
        }
        // Each FPDU carries its offset, and was verified.
        let mut rest = &peer.received[..];
        while let Some((ulpdu, used)) = fpdu::parse(rest, true).unwrap() {
            let at = u64::from_be_bytes(ulpdu[6..14].try_into().unwrap());
            assert!((at..).zip(&ulpdu[14..]).all(|(at, byte)| u64::from(*byte) == at % 251));
            rest = &rest[used..];
        }
    }
}

/// Peers that close their windows beyond the data in flight, and send a zero-window ACK once a
/// minute.
#[test]
fn zero_window_peers_pin_no_tx_frames() {
    const COUNT: u16 = 64;
    let mut fx = SegmentFixture::new(|_| {});
    let lkey = fx.arena.register(0, u64::from(LEN), Access::ALL, PD);
    let mut stalled = Vec::new();
    for index in 0..COUNT {
        let (mut peer, qp) = open(&mut fx, 5000 + index);
        write(&mut fx, qp, lkey);
        fx.poll();
        fx.engine.device().outbound.borrow_mut().clear();
        peer.tcp.rcv_wnd = 0;
        stalled.push(peer);
    }
    for minute in 0..10 {
        for peer in &stalled {
            peer.send_segment(&fx, Flags::ACK, peer.tcp.snd_nxt, &[]);
        }
        let until = fx.now + 60 * SECOND;
        advance_to(&mut fx, until);
        println!("minute {minute}: {}", pinned(&fx));
    }
    assert_eq!(fx.engine.connection_count(), usize::from(COUNT), "they answer");
    expect_next_client_served(&mut fx, 20_000, lkey);
    assert_eq!(fx.engine.counters().stalled_resets, 0);
}

/// Peers that take nothing and answer each segment hold their queue pairs for as long as the
/// setting permits, whether they closed the window before the data was sent or after.
#[test]
fn peers_that_only_answer_are_given_up() {
    const COUNT: u16 = 40;
    const LIMIT_NS: u64 = 4 * SECOND;
    let mut fx = SegmentFixture::new(|config: &mut EngineConfig| {
        config.tcp.stall_timeout_ns = Some(LIMIT_NS);
    });
    let lkey = fx.arena.register(0, u64::from(LEN), Access::ALL, PD);
    let (mut idle, idle_qp) = open(&mut fx, 20_000);
    idle.settle(&mut fx);
    let mut stalled = Vec::new();
    for index in 0..COUNT {
        let (mut peer, qp) = open(&mut fx, 5000 + index);
        peer.tcp.rcv_wnd = 0;
        if index % 2 == 0 {
            peer.settle(&mut fx);
            peer.send_segment(&fx, Flags::ACK, peer.tcp.snd_nxt, &[]);
            fx.poll();
        }
        write(&mut fx, qp, lkey);
        fx.poll();
        stalled.push(peer);
    }
    let began = fx.now;
    fx.engine.device().outbound.borrow_mut().clear();
    while fx.now.since(began) < LIMIT_NS + SECOND {
        if fx.now.since(began) < LIMIT_NS - SECOND {
            assert_eq!(fx.engine.connection_count(), usize::from(COUNT) + 1);
        }
        fx.now = fx.now + 10 * MILLISECOND;
        fx.drive();
        for (segment, _) in fx.take_segments() {
            if let Some(peer) = stalled.iter().find(|peer| peer.tcp.tuple == segment.tuple) {
                peer.send_segment(&fx, Flags::ACK, peer.tcp.snd_nxt, &[]);
            }
        }
    }
    assert_eq!(fx.engine.connection_count(), 1, "only the idle one is left");
    let ended = std::iter::from_fn(|| fx.engine.next_event()).filter(|event| {
        matches!(event, ConnEvent::Disconnected { reason: EndReason::TimedOut, .. })
    });
    assert_eq!(ended.count(), usize::from(COUNT));
    write(&mut fx, idle_qp, lkey);
    while written(&idle.received) < LEN as usize {
        idle.settle(&mut fx);
    }
}

/// A connection with data and a closed window goes on probing it while others await frames, with
/// intervals that grow: it does not await one itself.
#[test]
fn closed_window_is_probed_while_others_await_frames() {
    let mut fx = SegmentFixture::new(|config: &mut EngineConfig| config.sent_copies_bytes_max = 0);
    let lkey = fx.arena.register(0, u64::from(LEN), Access::ALL, PD);
    let (mut closed, qp) = open(&mut fx, 5000);
    closed.settle(&mut fx);
    closed.tcp.rcv_wnd = 0;
    closed.send_segment(&fx, Flags::ACK, closed.tcp.snd_nxt, &[]);
    fx.poll();
    write(&mut fx, qp, lkey);
    let waiting = open(&mut fx, 20_000);
    let mut stalled = Vec::new();
    while fx.engine.device().frames_in_use() < POOL {
        let (peer, qp) = open(&mut fx, 5001 + u16::try_from(stalled.len()).unwrap());
        write(&mut fx, qp, lkey);
        fx.poll();
        fx.engine.device().outbound.borrow_mut().clear();
        stalled.push(peer);
    }
    write(&mut fx, waiting.1, lkey);
    // Before the first stalled peer is reset.
    let (began, mut probes) = (fx.now, Vec::new());
    while fx.now.since(began) < 4 * SECOND {
        fx.now = fx.now + 10 * MILLISECOND;
        fx.drive();
        let sent = fx.take_segments();
        if sent.iter().any(|(segment, _)| segment.tuple == closed.tcp.tuple) {
            probes.push(fx.now.since(began) / MILLISECOND);
            closed.send_segment(&fx, Flags::ACK, closed.tcp.snd_nxt, &[]);
        }
    }
    let gaps: Vec<u64> = probes.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.len() >= 2 && gaps.windows(2).all(|pair| pair[1] > pair[0]), "{probes:?}");
    assert_eq!(fx.engine.counters().stalled_resets, 0);
}

/// Without memory for copies the connections without progress for the longest time are reset, and
/// only in favor of connections with nothing outstanding.
#[test]
fn slowest_stalled_connection_is_reset_without_copy_memory() {
    const COUNT: u16 = 512;
    const { assert!(COUNT as usize == 2 * POOL) };
    let mut fx = SegmentFixture::new(|config: &mut EngineConfig| config.sent_copies_bytes_max = 0);
    let lkey = fx.arena.register(0, u64::from(LEN), Access::ALL, PD);
    let mut stalled = Vec::new();
    for index in 0..COUNT {
        let (peer, qp) = open(&mut fx, 5000 + index);
        write(&mut fx, qp, lkey);
        fx.poll();
        fx.engine.device().outbound.borrow_mut().clear();
        stalled.push(peer);
        if fx.engine.device().frames_in_use() >= POOL {
            break;
        }
    }
    assert!(stalled.len() < COUNT.into(), "the pool is drained: {}", pinned(&fx));
    let until = fx.now + 6 * SECOND;
    advance_to(&mut fx, until);
    assert_eq!(fx.engine.counters().stalled_resets, 0, "nobody is in want");
    expect_next_client_served(&mut fx, 20_000, lkey);
    let count = fx.engine.counters().stalled_resets;
    assert!((1..64).contains(&count), "{count}");
    // The first that stalled was reset.
    assert!(fx.engine.connection_count() < stalled.len() + 1);
    fx.engine.device().outbound.borrow_mut().clear();
    stalled[0].send_segment(&fx, Flags::ACK, stalled[0].tcp.snd_nxt, &[]);
    fx.poll();
    stalled[0].receive(&fx);
    assert!(stalled[0].rst_received);
}
