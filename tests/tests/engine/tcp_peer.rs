//! An engine against a peer made of hand-written segments, which may violate TCP.

use ferrowarp_proto::ddp::memory::{Access, Memory};
use ferrowarp_proto::engine::EngineConfig;
use ferrowarp_proto::mpa::fpdu;
use ferrowarp_proto::mpa::startup::{self, Offer};
use ferrowarp_proto::time::{MICROSECOND, MILLISECOND, SECOND};
use ferrowarp_proto::verbs::cm::{CmError, ConnEvent, ConnParam, EndReason, ReadDepths};
use ferrowarp_proto::verbs::qp::{QpCap, QpInit, QpState};
use ferrowarp_proto::verbs::wc::{QpId, WcStatus};
use ferrowarp_proto::verbs::wr::{Operation, Payload, RecvWr, SendWr, Sge};
use ferrowarp_proto::wire::ddp::{Tagged, Untagged, Version};
use ferrowarp_proto::wire::rdmap::Opcode;
use ferrowarp_proto::wire::tcp::Flags;
use ferrowarp_tests::raw::{
    CQ, PD, PORT, Peer, SegmentFixture, build_fpdu, empty_write_fpdu, mpa_request, recv_wr,
    untagged_fpdu,
};
use ferrowarp_tests::sim::world::address;

// req-test: MPA-040, MPA-104, MPA-119, MPA-120
#[test]
fn tiny_mss_is_respected() {
    for mss in [64, 100, 128, 139, 200] {
        let mut fx = SegmentFixture::new(|_| {});
        let mut peer = Peer::connect(&mut fx, 5000, mss);
        let qp = peer.start_mpa(&mut fx);
        peer.send(&mut fx, &empty_write_fpdu());
        let lkey = fx.arena.register(0, 4096, Access::ALL, PD);
        let sge = Sge { addr: 0, len: 3000, lkey };
        let payload = Payload::Gather([sge].into());
        let operation = Operation::Write { payload, rkey: 1, remote: 0 };
        let wr = SendWr { wr_id: 1, operation, signaled: true, fence: false };
        fx.engine.post_send(qp, wr).unwrap();
        peer.settle(&mut fx);
        assert!(
            peer.payload_lens.iter().all(|&len| len <= usize::from(mss)),
            "{mss}: {:?}",
            peer.payload_lens
        );
        let mut written = 0;
        let mut rest = &peer.received[..];
        while let Some((ulpdu, used)) = fpdu::parse(rest, true).unwrap() {
            written += ulpdu.len() - 14;
            rest = &rest[used..];
        }
        assert_eq!((written, rest.len()), (3000, 0), "MSS {mss}");
    }
}

/// Returns a connected peer on the host of this number.
fn connect_from(fx: &mut SegmentFixture, host: usize) -> Peer {
    let mut peer = Peer::at(address(host), 5000);
    peer.handshake(fx, 1460);
    peer
}

/// Connections that last received are looked up by their ports alone, and then compared: hosts that
/// use the same ports, and forged segments of others, change nothing for each other.
#[test]
fn hosts_with_equal_ports_are_told_apart() {
    const COUNT: u32 = 50;
    let mut fx = SegmentFixture::new(|_| {});
    let mut peers = [10, 11].map(|host| connect_from(&mut fx, host));
    let qps = [0, 1].map(|at| {
        let qp = peers[at].start_mpa(&mut fx);
        peers[at].send(&mut fx, &empty_write_fpdu());
        qp
    });
    let send = Opcode::Send { invalidate: false, solicited: false };
    let receive = recv_wr(&fx, 0);
    for msn in 1..=COUNT {
        for (at, len) in [(0, 100), (1, 200)] {
            let wr_id = u64::from(msn);
            fx.engine.post_recv(qps[at], RecvWr { wr_id, ..receive.clone() }).unwrap();
            let fpdu = untagged_fpdu(send, 0, msn, &vec![msn.to_le_bytes()[0]; len]);
            let forger = Peer::at(address(12), 5000);
            let seq = peers[at].tcp.snd_nxt;
            forger.send_segment(&fx, Flags::ACK, seq, &fpdu);
            peers[at].send(&mut fx, &fpdu);
            let wc = fx.queues.poll(CQ).expect("a completion");
            assert_eq!((wc.qp, wc.wr_id, wc.status), (qps[at], wr_id, WcStatus::Success));
            assert_eq!(wc.byte_len as usize, len);
        }
    }
    assert_eq!(fx.engine.counters().segments_unmatched, u64::from(2 * COUNT));
    for qp in qps {
        let stats = fx.engine.tcp_stats(qp).expect("is connected");
        assert_eq!((stats.out_of_window, stats.duplicates_in), (0, 0));
    }
}

/// Five hosts send every second byte of an FPDU, so that nothing is contiguous; then the first one
/// disconnects and the others send the rest.
fn fill_ooo_limits(change: impl FnOnce(&mut EngineConfig), brim: (usize, usize)) {
    let mut fx = SegmentFixture::new(change);
    let mut peers: Vec<_> = (0..5).map(|index| connect_from(&mut fx, 10 + index)).collect();
    let qps: Vec<_> = peers.iter_mut().map(|peer| peer.start_mpa(&mut fx)).collect();
    let fpdu = untagged_fpdu(Opcode::Send { invalidate: false, solicited: false }, 0, 1, &[7; 138]);
    let mut before = (0, 0);
    for peer in &peers {
        for at in (1..fpdu.len()).step_by(2) {
            let seq = peer.tcp.snd_nxt + u32::try_from(at).unwrap();
            peer.send_segment(&fx, Flags::ACK, seq, &fpdu[at..=at]);
        }
        fx.settle();
        let held = fx.engine.ooo_usage();
        assert!(held.0 <= brim.0 && held.1 <= brim.1, "{held:?}");
        assert!(held.0 > before.0 || held.1 > before.1, "there is capacity for each");
        before = held;
    }
    let refused = fx.engine.counters().ooo_pool_exhausted;
    let held = (before.0 + before.1 / 256) as u64;
    assert!(refused > 0 && refused + held == 5 * (fpdu.len() as u64 / 2), "{refused} {held}");
    // Dropped segments are reported as missing (duplicate ACKs).
    assert!(fx.engine.device().outbound.borrow().len() > 5);
    fx.engine.device().outbound.borrow_mut().clear();
    // A closed connection frees capacity, and a peer that fills its gaps makes progress.
    peers[0].send_segment(&fx, Flags::RST, peers[0].tcp.snd_nxt, &[]);
    fx.poll();
    let now = fx.engine.ooo_usage();
    assert!(now.0 < before.0 || now.1 < before.1);
    for (peer, &qp) in peers.iter_mut().zip(&qps).skip(1) {
        fx.engine.post_recv(qp, recv_wr(&fx, 1)).unwrap();
        // The first copy of buffered data is kept, so each segment fills one gap.
        for _ in 0..fpdu.len() / 2 {
            peer.send_segment(&fx, Flags::ACK, peer.tcp.snd_nxt, &fpdu);
        }
        peer.send(&mut fx, &fpdu);
        fx.settle();
        assert_eq!(fx.queues.poll(CQ).map(|wc| (wc.qp, wc.byte_len)), Some((qp, 138)));
    }
    assert_eq!(fx.engine.ooo_usage(), (0, 0), "all was given back");
}

#[test]
fn ooo_frames_are_bounded_over_all_connections() {
    let change = |config: &mut EngineConfig| {
        config.ooo_frames_max = 100;
        config.ooo_bytes_max = 0;
    };
    fill_ooo_limits(change, (100, 0));
}

// req-test: MPA-167
#[test]
fn ooo_copies_are_bounded_over_all_connections() {
    let change = |config: &mut EngineConfig| {
        config.ooo_frames_max = 0;
        config.ooo_bytes_max = 100 * 256;
    };
    fill_ooo_limits(change, (0, 100 * 256));
}

#[test]
fn ooo_frames_are_copied_when_scarce() {
    let mut fx = SegmentFixture::new(|config| config.ooo_frames_max = 8);
    let mut peer = Peer::connect(&mut fx, 5000, 1460);
    let qp = peer.start_mpa(&mut fx);
    fx.engine.post_recv(qp, recv_wr(&fx, 1)).unwrap();
    let send = Opcode::Send { invalidate: false, solicited: false };
    let bytes: Vec<u8> = (0..1400u16).map(|at| (at % 251) as u8).collect();
    let first = untagged_fpdu(send, 0, 1, &bytes);
    // The first of fifteen messages is lost, the others are buffered.
    let len = u32::try_from(first.len()).unwrap();
    for index in 1..15 {
        let fpdu = untagged_fpdu(send, 0, index + 1, &bytes);
        let seq = peer.tcp.snd_nxt + index * len;
        peer.send_segment(&fx, Flags::ACK, seq, &fpdu);
        fx.engine.post_recv(qp, recv_wr(&fx, u64::from(index) + 1)).unwrap();
    }
    fx.settle();
    assert_eq!(fx.engine.ooo_usage(), (4, 10 * 1472));
    assert_eq!(fx.engine.counters().ooo_pool_exhausted, 0);
    peer.send(&mut fx, &first);
    fx.settle();
    let found: Vec<_> = std::iter::from_fn(|| fx.queues.poll(CQ)).collect();
    let expected: Vec<_> = (1..=15).map(|wr_id| (wr_id, WcStatus::Success, 1400)).collect();
    let seen: Vec<_> = found.iter().map(|wc| (wc.wr_id, wc.status, wc.byte_len)).collect();
    assert_eq!(seen, expected);
    assert_eq!(fx.engine.ooo_usage(), (0, 0));
}

#[test]
fn ooo_data_after_an_error_is_not_buffered() {
    let mut fx = SegmentFixture::new(|_| {});
    let mut peer = Peer::connect(&mut fx, 5000, 1460);
    peer.start_mpa(&mut fx);
    let mut bad = empty_write_fpdu();
    bad[5] ^= 1;
    peer.send(&mut fx, &[empty_write_fpdu(), bad].concat());
    fx.settle();
    for at in 1..50 {
        peer.send_segment(&fx, Flags::ACK, peer.tcp.snd_nxt + 1400 * at, &[0; 1400]);
    }
    fx.settle();
    assert_eq!((fx.engine.ooo_usage(), fx.engine.counters().ooo_dropped), ((0, 0), 0));
    // The data is still acknowledged once it is contiguous.
    peer.send(&mut fx, &[0; 1400]);
    peer.tcp.snd_nxt += 1400 * 49;
    peer.settle(&mut fx);
    peer.send_segment(&fx, Flags::ACK | Flags::FIN, peer.tcp.snd_nxt, &[]);
    peer.settle(&mut fx);
    assert_eq!(fx.engine.unfinished_count(), 0);
}

// req-test: DDP-243
#[test]
fn receive_windows_grow_within_the_shared_budget() {
    const BUDGET: u64 = 800_000;
    let mut fx = SegmentFixture::new(|config| config.window_growth_max = BUDGET);
    let start = EngineConfig::new(address(1), 24, 7).tcp.recv_window;
    let bytes = empty_write_fpdu().repeat(70);
    let len = u32::try_from(bytes.len()).unwrap();
    let mut grown = Vec::new();
    for index in 0..4 {
        let mut peer = Peer::connect(&mut fx, 5000 + index, 1460);
        peer.start_mpa(&mut fx);
        // Before the MPA startup completes, the window does not grow.
        assert!(peer.snd_wnd <= start + 128, "{}", peer.snd_wnd);
        for _ in 0..40 {
            for _ in 0..30 {
                peer.send_segment(&fx, Flags::ACK, peer.tcp.snd_nxt, &bytes);
                peer.tcp.snd_nxt += len;
            }
            fx.poll();
            peer.receive(&fx);
        }
        grown.push(u64::from(peer.snd_wnd - start));
    }
    let sum: u64 = grown.iter().sum();
    // Windows are advertised in units of 128 bytes.
    assert!(sum > BUDGET / 2 && sum <= BUDGET + 4 * 128, "{grown:?}");
    assert!(grown.iter().all(|grown| *grown > 20_000), "there is some for each: {grown:?}");
}

#[test]
fn transmit_capacity_is_shared_fairly() {
    // 64 frames per poll, and 8 connections that would each take 16.
    let mut fx = SegmentFixture::new(|_| {});
    let mut peers: Vec<_> =
        (0..8).map(|index| Peer::connect(&mut fx, 5000 + index, 1460)).collect();
    let lkey = fx.arena.register(0, 1 << 20, Access::ALL, PD);
    let sg_list = [Sge { addr: 0, len: 1 << 20, lkey }].into();
    let operation = Operation::Write { payload: Payload::Gather(sg_list), rkey: 1, remote: 0 };
    let qps: Vec<_> = peers.iter_mut().map(|peer| peer.start_mpa(&mut fx)).collect();
    for peer in &mut peers {
        peer.send(&mut fx, &empty_write_fpdu());
    }
    for qp in qps {
        for wr_id in 0..8 {
            let operation = operation.clone();
            let wr = SendWr { wr_id, operation, signaled: true, fence: false };
            fx.engine.post_send(qp, wr).unwrap();
        }
    }
    for _ in 0..300 {
        fx.poll();
        let frames = fx.engine.device().outbound.borrow().clone();
        for peer in &mut peers {
            *fx.engine.device().outbound.borrow_mut() = frames.clone();
            if peer.receive(&fx) {
                peer.send_segment(&fx, Flags::ACK, peer.tcp.snd_nxt, &[]);
            }
        }
    }
    let received: Vec<_> = peers.iter().map(|peer| peer.received.len()).collect();
    let (least, most) = (received.iter().min().unwrap(), received.iter().max().unwrap());
    assert!(2 * least > *most, "{received:?}");
}

#[test]
fn cq_overrun_keeps_order_and_is_reported_once() {
    let mut fx = SegmentFixture::new(|_| {});
    let mut peer = Peer::connect(&mut fx, 5000, 1460);
    let qp = peer.start_mpa(&mut fx);
    for wr_id in 0..6 {
        fx.engine.post_recv(qp, recv_wr(&fx, wr_id)).unwrap();
    }
    let send = Opcode::Send { invalidate: false, solicited: false };
    let bytes: Vec<u8> = (1..=5).flat_map(|msn| untagged_fpdu(send, 0, msn, b"x")).collect();
    // The completion queue has space again within the same poll.
    *fx.push_results.borrow_mut() = [true, false, true, false, true].into();
    peer.send(&mut fx, &bytes);
    peer.settle(&mut fx);
    let found: Vec<_> = std::iter::from_fn(|| fx.queues.poll(CQ)).collect();
    let seen: Vec<_> = found.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let done = WcStatus::Success;
    let expected = [(0, done), (1, done), (2, done), (3, done), (4, done), (5, WcStatus::Flushed)];
    assert_eq!(seen, expected);
    assert_eq!(fx.engine.next_event(), Some(ConnEvent::CqOverrun { cq: CQ }));
    assert!(matches!(fx.engine.next_event(), Some(ConnEvent::Disconnected { .. })));
    assert_eq!(fx.engine.next_event(), None);
}

#[test]
fn new_listener_does_not_count_older_connections() {
    let mut fx = SegmentFixture::new(|_| {});
    let old: Vec<_> = (0..4).map(|index| Peer::connect(&mut fx, 5000 + index, 1460)).collect();
    fx.engine.unlisten(PORT);
    fx.engine.listen(PORT, 2).unwrap();
    // Connections of the old listener do not count; these do, with a complete MPA request each.
    for index in 0..2 {
        Peer::connect(&mut fx, 6000 + index, 1460).send(&mut fx, &mpa_request());
    }
    fx.settle();
    assert_eq!((fx.engine.connection_count(), old.len()), (2, 4));
    Peer::connect(&mut fx, 7000, 1460);
    assert_eq!(fx.engine.connection_count(), 2, "the backlog is full");
}

/// Posted work is fetched between `rx_burst` and `drive`; a frame that arrives in between may be
/// the peer's reaction to something done after the post.
#[test]
fn frames_after_a_fetch_wait_for_the_next_poll() {
    let mut fx = SegmentFixture::new(|_| {});
    let peer = Peer::unconnected(5000);
    fx.engine.rx_burst();
    peer.send_segment(&fx, Flags::SYN, peer.tcp.snd_nxt, &[]);
    fx.drive();
    assert_eq!(fx.engine.usage().half_open, 0);
    fx.engine.rx_burst();
    fx.drive();
    assert_eq!(fx.engine.usage().half_open, 1);
}

#[test]
fn refused_invalidate_flushes_the_receive() {
    let mut fx = SegmentFixture::new(|_| {});
    let foreign = fx.arena.register(0, 64, Access::ALL, PD + 1);
    for (port, stag) in [(5000, foreign), (5001, 0x1234_5600)] {
        let mut peer = Peer::connect(&mut fx, port, 1460);
        let qp = peer.start_mpa(&mut fx);
        fx.engine.post_recv(qp, recv_wr(&fx, 1)).unwrap();
        let rsvd_ulp = Opcode::Send { invalidate: true, solicited: false }.control(Version::Ietf);
        let header = Untagged { last: true, rsvd_ulp, rsvd_ulp_rest: stag, qn: 0, msn: 1, mo: 0 };
        peer.send(&mut fx, &build_fpdu(18, |out| header.emit(Version::Ietf, out), b"bye"));
        peer.settle(&mut fx);
        let flushed = fx.queues.poll(CQ).map(|wc| (wc.qp, wc.wr_id, wc.status));
        assert_eq!(flushed, Some((qp, 1, WcStatus::Flushed)));
        assert!(matches!(fx.engine.next_event(), Some(ConnEvent::Disconnected { .. })));
    }
    let pd = fx.arena.regions().pd_of(foreign);
    assert_eq!(pd, Some(PD + 1), "what is not the stream's stays valid");
}

// req-test: DDP-128
#[test]
fn data_after_fin_is_not_placed() {
    let mut fx = SegmentFixture::new(|_| {});
    let mut peer = Peer::connect(&mut fx, 5000, 1460);
    let qp = peer.start_mpa(&mut fx);
    let stag = fx.arena.register(0, 64, Access::ALL, PD);
    let rsvd_ulp = Opcode::Write.control(Version::Ietf);
    let header = Tagged { last: true, rsvd_ulp, stag, to: 0 };
    let write = build_fpdu(14, |out| header.emit(Version::Ietf, out), b"late");
    let first = empty_write_fpdu();
    let end = peer.tcp.snd_nxt + u32::try_from(first.len()).unwrap();
    // Directly after the FIN in sequence space, and before it on the wire.
    peer.send_segment(&fx, Flags::ACK, end + 1, &write);
    peer.send_segment(&fx, Flags::ACK | Flags::FIN, peer.tcp.snd_nxt, &first);
    fx.settle();
    let reason = EndReason::DataAfterFin;
    assert_eq!(fx.engine.next_event(), Some(ConnEvent::Disconnected { qp, reason }));
    peer.receive(&fx);
    assert!(peer.rst_received, "an abortive end");
    assert_eq!(fx.engine.counters().fpdus_in, 1);
    assert_eq!(fx.arena.read(0, 4), [0; 4]);
}

/// A stream that may be half-closed (`ConnParam::half_close`), after the peer's first FPDU.
fn connect_with_half_close(fx: &mut SegmentFixture) -> (Peer, QpId) {
    let mut peer = Peer::connect(fx, 5000, 1460);
    let mut param = ConnParam::default();
    param.half_close = true;
    let qp = peer.start_mpa_with(fx, &param);
    peer.send(fx, &empty_write_fpdu());
    (peer, qp)
}

/// The peer has sent FIN and sends an FPDU after it: expects the connection to be reset.
fn expect_reset_by_data_after_fin(fx: &mut SegmentFixture, peer: &mut Peer, qp: QpId) {
    peer.send_segment(fx, Flags::ACK, peer.tcp.snd_nxt + 1, &empty_write_fpdu());
    fx.settle();
    let reason = EndReason::DataAfterFin;
    assert_eq!(fx.engine.next_event(), Some(ConnEvent::Disconnected { qp, reason }));
    peer.receive(fx);
    assert!(peer.rst_received);
}

// req-test: DDP-128
#[test]
fn data_after_fin_resets_a_half_closed_stream() {
    let mut fx = SegmentFixture::new(|_| {});
    let (mut peer, qp) = connect_with_half_close(&mut fx);
    peer.send_segment(&fx, Flags::ACK | Flags::FIN, peer.tcp.snd_nxt, &[]);
    fx.settle();
    assert_eq!(fx.engine.next_event(), Some(ConnEvent::PeerFinished { qp }));
    // No new data: FIN retransmitted.
    peer.send_segment(&fx, Flags::ACK | Flags::FIN, peer.tcp.snd_nxt, &[]);
    fx.settle();
    assert_eq!((fx.engine.next_event(), fx.engine.qp_state(qp)), (None, QpState::Rts));
    expect_reset_by_data_after_fin(&mut fx, &mut peer, qp);
}

// req-test: DDP-128
#[test]
fn data_after_fin_resets_a_draining_stream() {
    let mut fx = SegmentFixture::new(|_| {});
    let (mut peer, qp) = connect_with_half_close(&mut fx);
    // The window is closed, so posted work is not sent.
    peer.tcp.rcv_wnd = 0;
    peer.send_segment(&fx, Flags::ACK | Flags::FIN, peer.tcp.snd_nxt, &[]);
    fx.settle();
    let operation = Operation::Write { payload: Payload::empty(), rkey: 0, remote: 0 };
    let wr = SendWr { wr_id: 1, operation, signaled: true, fence: false };
    fx.engine.post_send(qp, wr).unwrap();
    fx.engine.close(fx.now, qp).unwrap();
    fx.settle();
    assert_eq!(fx.engine.next_event(), Some(ConnEvent::PeerFinished { qp }));
    assert_eq!((fx.engine.next_event(), fx.engine.qp_state(qp)), (None, QpState::Closing));
    peer.receive(&fx);
    assert!(peer.received.is_empty() && !peer.fin_received, "nothing was sent yet");
    expect_reset_by_data_after_fin(&mut fx, &mut peer, qp);
}

#[test]
fn cq_overrun_on_transmit_schedules_the_next_poll() {
    let mut fx = SegmentFixture::new(|_| {});
    let mut peer = Peer::connect(&mut fx, 5000, 1460);
    let qp = peer.start_mpa(&mut fx);
    peer.send(&mut fx, &empty_write_fpdu());
    fx.settle();
    let operation = Operation::Write { payload: Payload::empty(), rkey: 0, remote: 0 };
    fx.push_results.borrow_mut().push_back(false);
    let wr = SendWr { wr_id: 1, operation, signaled: true, fence: false };
    fx.engine.post_send(qp, wr).unwrap();
    fx.poll();
    assert!(fx.engine.deadline().is_some_and(|deadline| deadline <= fx.now));
    fx.poll();
    assert_eq!(fx.engine.qp_state(qp), QpState::Error);
}

#[test]
fn unsent_request_is_flushed_not_refused() {
    let mut fx = SegmentFixture::new(|_| {});
    let mut peer = Peer::connect(&mut fx, 5000, 1460);
    let qp = peer.start_mpa(&mut fx);
    // Nothing is sent before the peer's first FPDU, which is a Terminate here (DDP, invalid STag).
    let operation = Operation::Write { payload: Payload::empty(), rkey: 0, remote: 0 };
    let wr = SendWr { wr_id: 1, operation, signaled: true, fence: false };
    fx.engine.post_send(qp, wr).unwrap();
    peer.send(&mut fx, &untagged_fpdu(Opcode::Terminate, 2, 1, &[0x11, 0, 0, 0]));
    fx.settle();
    assert_eq!(fx.queues.poll(CQ).map(|wc| wc.status), Some(WcStatus::Flushed));
}

#[test]
fn only_a_plain_syn_opens_a_connection() {
    for (flags, answered) in [
        (Flags::SYN | Flags::ACK, true),
        (Flags::SYN | Flags::RST, false),
        (Flags::SYN | Flags::ACK | Flags::RST, false),
    ] {
        let mut fx = SegmentFixture::new(|_| {});
        let mut peer = Peer::unconnected(5000);
        peer.send_segment(&fx, flags, peer.tcp.snd_nxt, &[]);
        fx.poll();
        peer.receive(&fx);
        assert_eq!((fx.engine.connection_count(), peer.rst_received), (0, answered), "{flags:?}");
    }
}

#[test]
fn small_window_is_filled_with_whole_fpdus() {
    let mut fx = SegmentFixture::new(|_| {});
    let mut peer = Peer::connect(&mut fx, 5000, 1460);
    let qp = peer.start_mpa(&mut fx);
    peer.tcp.rcv_wnd = 100;
    peer.send(&mut fx, &empty_write_fpdu());
    for wr_id in 0..5 {
        let payload = Payload::Inline([7; 20].into());
        let operation = Operation::Send { payload, solicited: false, invalidate: None };
        let wr = SendWr { wr_id, operation, signaled: true, fence: false };
        fx.engine.post_send(qp, wr).unwrap();
    }
    peer.payload_lens.clear();
    peer.settle(&mut fx);
    assert_eq!(peer.payload_lens, [88, 88, 44], "two FPDUs of 44 bytes at a time, and none cut");
}

#[test]
fn data_of_a_rejected_peer_is_discarded_until_fin() {
    let mut fx = SegmentFixture::new(|_| {});
    let mut peer = Peer::connect(&mut fx, 5000, 1460);
    let request = startup::build_request(
        Offer { ird: 4, ord: 4, crc: true, ..Offer::default() },
        2,
        [].into(),
    );
    let mut bytes = vec![0; request.wire_len()];
    request.emit(&mut bytes);
    peer.send(&mut fx, &bytes);
    let request = fx.connect_request();
    for _ in 0..16 {
        peer.send(&mut fx, &[0; 1000]);
        peer.settle(&mut fx);
    }
    assert!(peer.snd_wnd < 1000, "{}", peer.snd_wnd);
    // Its buffered data is discarded, and must not keep the window closed.
    fx.engine.reject(fx.now, request, ReadDepths::default(), b"").unwrap();
    peer.settle(&mut fx);
    assert!(peer.snd_wnd > 10_000, "{}", peer.snd_wnd);
    for _ in 0..20 {
        peer.send(&mut fx, &[0; 1000]);
        peer.settle(&mut fx);
    }
    peer.send_segment(&fx, Flags::FIN | Flags::ACK, peer.tcp.snd_nxt, &[]);
    peer.tcp.snd_nxt += 1;
    peer.settle(&mut fx);
    // TIME-WAIT expires.
    fx.now = fx.now + 2_000_000 * MICROSECOND;
    peer.settle(&mut fx);
    assert!(!peer.rst_received);
    assert_eq!(fx.engine.connection_count(), 0);
}

/// After it acknowledged our FIN, a peer keeps sending, a byte of an FPDU every four seconds, or
/// whole FPDUs: seconds that the connection lasts, at most ten minutes.
fn seconds_alive_after_close(bytes: &[u8]) -> u64 {
    let mut fx = SegmentFixture::new(|_| {});
    let mut peer = Peer::connect(&mut fx, 5000, 1460);
    let qp = peer.start_mpa(&mut fx);
    peer.send(&mut fx, &empty_write_fpdu());
    fx.engine.close(fx.now, qp).unwrap();
    peer.settle(&mut fx);
    assert!(peer.fin_received);
    let began = fx.now;
    while fx.now.since(began) < 600 * SECOND && fx.engine.connection_count() > 0 {
        for part in bytes.chunks(1400) {
            peer.send(&mut fx, part);
        }
        for _ in 0..40 {
            fx.now = fx.now + 100 * MILLISECOND;
            fx.poll();
            peer.receive(&fx);
        }
    }
    assert_eq!(peer.rst_received, fx.engine.connection_count() == 0);
    fx.now.since(began) / SECOND
}

#[test]
fn partial_fpdus_do_not_keep_a_closed_connection() {
    // Bytes of the length field, and then of a long FPDU that never completes.
    let seconds = seconds_alive_after_close(&[5]);
    assert!((60..90).contains(&seconds), "{seconds}");
}

#[test]
fn whole_fpdus_keep_a_closed_connection() {
    let bytes: Vec<u8> = std::iter::repeat_n(empty_write_fpdu(), 300).flatten().collect();
    assert!(bytes.len() > 4096);
    assert!(seconds_alive_after_close(&bytes) >= 600);
}

#[test]
fn too_many_connections_error_names_its_limit() {
    let mut fx = SegmentFixture::new(|config| config.connections_max = 1);
    let init = QpInit { pd: PD, send_cq: CQ, recv_cq: CQ, cap: QpCap::new(1, 1) };
    let remote = (address(0), 9).into();
    let mut connect = || {
        let qp = fx.engine.create_qp(init).unwrap();
        fx.engine.connect(fx.now, qp, remote, &ConnParam::default())
    };
    assert_eq!(connect(), Ok(()));
    let refused = connect().unwrap_err();
    assert_eq!(refused, CmError::TooManyConnections);
    assert!(refused.to_string().contains("`limits.connections_max`"), "{refused}");
}
