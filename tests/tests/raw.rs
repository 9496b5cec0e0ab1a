//! An engine against a peer made of hand-written segments, which keeps no rule it does not like.

use ferrowarp_proto::ddp::memory::{Access, Memory};
use ferrowarp_proto::engine::EngineConfig;
use ferrowarp_proto::mpa::fpdu;
use ferrowarp_proto::mpa::startup::{self, Offer};
use ferrowarp_proto::time::{MICROSECOND, MILLISECOND, SECOND};
use ferrowarp_proto::verbs::cm::{CmError, ConnParam, EndReason, Event, ReadDepths};
use ferrowarp_proto::verbs::qp::{QpInit, QpState};
use ferrowarp_proto::verbs::wc::{QpId, WcStatus};
use ferrowarp_proto::verbs::wr::{Operation, Payload, SendWr, Sge};
use ferrowarp_proto::wire::ddp::{Tagged, Untagged, Version};
use ferrowarp_proto::wire::rdmap::Opcode;
use ferrowarp_proto::wire::tcp::{Flags, Options};
use ferrowarp_tests::raw::{Bed, CQ, PD, PORT, Peer, framed, inbox, nothing, request, untagged};
use ferrowarp_tests::sim::world::address;

// req-test: MPA-040, MPA-104, MPA-119, MPA-120
#[test]
fn a_tiny_segment_size_is_kept_to() {
    for mss in [64, 100, 128, 139, 200] {
        let mut bed = Bed::new(|_| {});
        let mut peer = Peer::connect(&mut bed, 5000, mss);
        let qp = peer.set_up(&mut bed);
        peer.send(&mut bed, &nothing());
        let lkey = bed.arena.register(0, 4096, Access::ALL, PD);
        let sge = Sge { addr: 0, len: 3000, lkey };
        let payload = Payload::Gather([sge].into_iter().collect());
        let operation = Operation::Write { payload, rkey: 1, remote: 0 };
        let wr = SendWr { wr_id: 1, operation, signaled: true, fence: false };
        bed.engine.post_send(qp, wr).unwrap();
        peer.settle(&mut bed);
        assert!(peer.lens.iter().all(|&len| len <= usize::from(mss)), "{mss}: {:?}", peer.lens);
        let mut written = 0;
        let mut rest = &peer.heard[..];
        while let Some((ulpdu, used)) = fpdu::parse(rest, true).unwrap() {
            written += ulpdu.len() - 14;
            rest = &rest[used..];
        }
        assert_eq!((written, rest.len()), (3000, 0), "MSS {mss}");
    }
}

/// Five peers send every second octet of an FPDU, so that nothing can be handed up; then the first
/// one goes away and the others send the rest.
fn hold_to_the_brim(change: impl FnOnce(&mut EngineConfig), brim: (usize, usize)) {
    let mut bed = Bed::new(change);
    let mut peers: Vec<_> =
        (0..5).map(|index| Peer::connect(&mut bed, 5000 + index, 1460)).collect();
    let qps: Vec<_> = peers.iter_mut().map(|peer| peer.set_up(&mut bed)).collect();
    let fpdu = untagged(Opcode::Send { invalidate: false, solicited: false }, 0, 1, &[7; 138]);
    let mut before = (0, 0);
    for peer in &peers {
        for at in (1..fpdu.len()).step_by(2) {
            let seq = peer.seq + u32::try_from(at).unwrap();
            peer.put(&bed, Flags::ACK, Options::default(), seq, &fpdu[at..=at]);
        }
        bed.settle();
        let held = bed.engine.ooo_usage();
        assert!(held.0 <= brim.0 && held.1 <= brim.1, "{held:?}");
        assert!(held.0 > before.0 || held.1 > before.1, "there is room for each");
        before = held;
    }
    let refused = bed.engine.counters().ooo_pool_exhausted;
    let held = (before.0 + before.1 / 256) as u64;
    assert!(refused > 0 && refused + held == 5 * (fpdu.len() as u64 / 2), "{refused} {held}");
    // What is refused is asked for all the same.
    assert!(bed.engine.device().outbound.borrow().len() > 5);
    bed.engine.device().outbound.borrow_mut().clear();
    // One that goes away makes room, and whoever fills its gaps gets on.
    peers[0].put(&bed, Flags::RST, Options::default(), peers[0].seq, &[]);
    bed.pass();
    let now = bed.engine.ooo_usage();
    assert!(now.0 < before.0 || now.1 < before.1);
    for (peer, &qp) in peers.iter_mut().zip(&qps).skip(1) {
        bed.engine.post_recv(qp, inbox(&bed, 1)).unwrap();
        // Of what is held the first copy stays, so each time one gap is filled.
        for _ in 0..fpdu.len() / 2 {
            peer.put(&bed, Flags::ACK, Options::default(), peer.seq, &fpdu);
        }
        peer.send(&mut bed, &fpdu);
        bed.settle();
        assert_eq!(bed.queues.poll(CQ).map(|wc| (wc.qp, wc.byte_len)), Some((qp, 138)));
    }
    assert_eq!(bed.engine.ooo_usage(), (0, 0), "all was given back");
}

#[test]
fn frames_held_out_of_order_are_bounded_over_all_connections() {
    let change = |config: &mut EngineConfig| {
        config.ooo_frames_max = 100;
        config.ooo_bytes_max = 0;
    };
    hold_to_the_brim(change, (100, 0));
}

// req-test: MPA-167
#[test]
fn copies_held_out_of_order_are_bounded_over_all_connections() {
    let change = |config: &mut EngineConfig| {
        config.ooo_frames_max = 0;
        config.ooo_bytes_max = 100 * 256;
    };
    hold_to_the_brim(change, (0, 100 * 256));
}

#[test]
fn frames_are_copied_when_they_get_scarce() {
    let mut bed = Bed::new(|config| config.ooo_frames_max = 8);
    let mut peer = Peer::connect(&mut bed, 5000, 1460);
    let qp = peer.set_up(&mut bed);
    bed.engine.post_recv(qp, inbox(&bed, 1)).unwrap();
    let send = Opcode::Send { invalidate: false, solicited: false };
    let octets: Vec<u8> = (0..1400u16).map(|at| (at % 251) as u8).collect();
    let first = untagged(send, 0, 1, &octets);
    // The first of fifteen messages is lost, the others are held.
    let len = u32::try_from(first.len()).unwrap();
    for index in 1..15 {
        let fpdu = untagged(send, 0, index + 1, &octets);
        let seq = peer.seq + index * len;
        peer.put(&bed, Flags::ACK, Options::default(), seq, &fpdu);
        bed.engine.post_recv(qp, inbox(&bed, u64::from(index) + 1)).unwrap();
    }
    bed.settle();
    assert_eq!(bed.engine.ooo_usage(), (4, 10 * 1472));
    assert_eq!(bed.engine.counters().ooo_pool_exhausted, 0);
    peer.send(&mut bed, &first);
    bed.settle();
    let found: Vec<_> = std::iter::from_fn(|| bed.queues.poll(CQ)).collect();
    let expected: Vec<_> = (1..=15).map(|wr_id| (wr_id, WcStatus::Success, 1400)).collect();
    let seen: Vec<_> = found.iter().map(|wc| (wc.wr_id, wc.status, wc.byte_len)).collect();
    assert_eq!(seen, expected);
    assert_eq!(bed.engine.ooo_usage(), (0, 0));
}

#[test]
fn a_connection_that_is_not_set_up_holds_little() {
    let mut bed = Bed::new(|_| {});
    let peer = Peer::connect(&mut bed, 5000, 1460);
    for at in (1..200).step_by(2) {
        peer.put(&bed, Flags::ACK, Options::default(), peer.seq + at, &[0]);
    }
    bed.settle();
    assert_eq!(bed.engine.ooo_usage(), (0, 16 * 256));
    assert_eq!(bed.engine.counters().ooo_dropped, 84);
}

#[test]
fn what_nobody_wants_any_more_is_not_held() {
    let mut bed = Bed::new(|_| {});
    let mut peer = Peer::connect(&mut bed, 5000, 1460);
    peer.set_up(&mut bed);
    let mut bad = nothing();
    bad[5] ^= 1;
    peer.send(&mut bed, &[nothing(), bad].concat());
    bed.settle();
    for at in 1..50 {
        peer.put(&bed, Flags::ACK, Options::default(), peer.seq + 1400 * at, &[0; 1400]);
    }
    bed.settle();
    assert_eq!((bed.engine.ooo_usage(), bed.engine.counters().ooo_dropped), ((0, 0), 0));
    // All the same it is acknowledged when its turn has come.
    peer.send(&mut bed, &[0; 1400]);
    peer.seq += 1400 * 49;
    peer.settle(&mut bed);
    peer.put(&bed, Flags::ACK | Flags::FIN, Options::default(), peer.seq, &[]);
    peer.settle(&mut bed);
    assert_eq!(bed.engine.unfinished_count(), 0);
}

// req-test: DDP-243
#[test]
fn windows_grow_within_the_budget_of_all() {
    const BUDGET: u64 = 800_000;
    let mut bed = Bed::new(|config| config.window_growth_max = BUDGET);
    let start = EngineConfig::new(address(1), 24, 7).tcp.recv_window;
    let octets = nothing().repeat(70);
    let len = u32::try_from(octets.len()).unwrap();
    let mut grown = Vec::new();
    for index in 0..4 {
        let mut peer = Peer::connect(&mut bed, 5000 + index, 1460);
        peer.set_up(&mut bed);
        // Before both ends have agreed, nothing makes the window grow.
        assert!(peer.window <= start + 128, "{}", peer.window);
        for _ in 0..40 {
            for _ in 0..30 {
                peer.put(&bed, Flags::ACK, Options::default(), peer.seq, &octets);
                peer.seq += len;
            }
            bed.pass();
            peer.listen(&bed);
        }
        grown.push(u64::from(peer.window - start));
    }
    let sum: u64 = grown.iter().sum();
    // Windows are told in units of 128 octets.
    assert!(sum > BUDGET / 2 && sum <= BUDGET + 4 * 128, "{grown:?}");
    assert!(grown.iter().all(|grown| *grown > 20_000), "there is some for each: {grown:?}");
}

#[test]
fn what_is_scarce_goes_round() {
    // Room for 64 frames in a pass, and 8 connections that would each take 16.
    let mut bed = Bed::new(|_| {});
    let mut peers: Vec<_> =
        (0..8).map(|index| Peer::connect(&mut bed, 5000 + index, 1460)).collect();
    let lkey = bed.arena.register(0, 1 << 20, Access::ALL, PD);
    let sg_list = [Sge { addr: 0, len: 1 << 20, lkey }].into_iter().collect();
    let operation = Operation::Write { payload: Payload::Gather(sg_list), rkey: 1, remote: 0 };
    let qps: Vec<_> = peers.iter_mut().map(|peer| peer.set_up(&mut bed)).collect();
    for peer in &mut peers {
        peer.send(&mut bed, &nothing());
    }
    for qp in qps {
        for wr_id in 0..8 {
            let operation = operation.clone();
            let wr = SendWr { wr_id, operation, signaled: true, fence: false };
            bed.engine.post_send(qp, wr).unwrap();
        }
    }
    for _ in 0..300 {
        bed.pass();
        let frames = bed.engine.device().outbound.borrow().clone();
        for peer in &mut peers {
            *bed.engine.device().outbound.borrow_mut() = frames.clone();
            if peer.listen(&bed) {
                peer.put(&bed, Flags::ACK, Options::default(), peer.seq, &[]);
            }
        }
    }
    let heard: Vec<_> = peers.iter().map(|peer| peer.heard.len()).collect();
    let (least, most) = (heard.iter().min().unwrap(), heard.iter().max().unwrap());
    assert!(2 * least > *most, "{heard:?}");
}

#[test]
fn an_overrun_keeps_the_order_and_is_told_once() {
    let mut bed = Bed::new(|_| {});
    let mut peer = Peer::connect(&mut bed, 5000, 1460);
    let qp = peer.set_up(&mut bed);
    for wr_id in 0..6 {
        bed.engine.post_recv(qp, inbox(&bed, wr_id)).unwrap();
    }
    let send = Opcode::Send { invalidate: false, solicited: false };
    let octets: Vec<u8> = (1..=5).flat_map(|msn| untagged(send, 0, msn, b"x")).collect();
    // There is room again while the pass goes on.
    *bed.answers.borrow_mut() = [true, false, true, false, true].into();
    peer.send(&mut bed, &octets);
    peer.settle(&mut bed);
    let found: Vec<_> = std::iter::from_fn(|| bed.queues.poll(CQ)).collect();
    let seen: Vec<_> = found.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let done = WcStatus::Success;
    let expected = [(0, done), (1, done), (2, done), (3, done), (4, done), (5, WcStatus::Flushed)];
    assert_eq!(seen, expected);
    assert_eq!(bed.engine.next_event(), Some(Event::CqOverrun { cq: CQ }));
    assert!(matches!(bed.engine.next_event(), Some(Event::Disconnected { .. })));
    assert_eq!(bed.engine.next_event(), None);
}

#[test]
fn a_listener_that_comes_back_keeps_its_own_count() {
    let mut bed = Bed::new(|_| {});
    let old: Vec<_> = (0..4).map(|index| Peer::connect(&mut bed, 5000 + index, 1460)).collect();
    bed.engine.unlisten(PORT);
    bed.engine.listen(PORT, 2).unwrap();
    // Those of before do not count, and these do, with a whole request each.
    for index in 0..2 {
        Peer::connect(&mut bed, 6000 + index, 1460).send(&mut bed, &request());
    }
    bed.settle();
    assert_eq!((bed.engine.connection_count(), old.len()), (2, 4));
    Peer::connect(&mut bed, 7000, 1460);
    assert_eq!(bed.engine.connection_count(), 2, "the backlog is full");
}

/// Posted work is taken between the two, and a frame may be the peer's answer to something that was
/// done after the post.
#[test]
fn frames_that_come_after_a_fetch_wait_for_the_next_pass() {
    let mut bed = Bed::new(|_| {});
    let peer = Peer::stranger(5000);
    bed.engine.rx_burst();
    peer.put(&bed, Flags::SYN, Options::default(), peer.seq, &[]);
    bed.engine.drive(bed.now);
    assert_eq!(bed.engine.usage().half_open, 0);
    bed.engine.rx_burst();
    bed.engine.drive(bed.now);
    assert_eq!(bed.engine.usage().half_open, 1);
}

#[test]
fn a_send_that_may_not_invalidate_leaves_its_buffer_to_the_flush() {
    let mut bed = Bed::new(|_| {});
    let foreign = bed.arena.register(0, 64, Access::ALL, PD + 1);
    for (port, stag) in [(5000, foreign), (5001, 0x1234_5600)] {
        let mut peer = Peer::connect(&mut bed, port, 1460);
        let qp = peer.set_up(&mut bed);
        bed.engine.post_recv(qp, inbox(&bed, 1)).unwrap();
        let rsvd_ulp = Opcode::Send { invalidate: true, solicited: false }.control(Version::Ietf);
        let header = Untagged { last: true, rsvd_ulp, rsvd_ulp_rest: stag, qn: 0, msn: 1, mo: 0 };
        peer.send(&mut bed, &framed(18, |out| header.emit(Version::Ietf, out), b"bye"));
        peer.settle(&mut bed);
        let flushed = bed.queues.poll(CQ).map(|wc| (wc.qp, wc.wr_id, wc.status));
        assert_eq!(flushed, Some((qp, 1, WcStatus::Flushed)));
        assert!(matches!(bed.engine.next_event(), Some(Event::Disconnected { .. })));
    }
    let pd = bed.arena.regions().pd_of(foreign);
    assert_eq!(pd, Some(PD + 1), "what is not the stream's stays valid");
}

// req-test: DDP-128
#[test]
fn nothing_behind_the_end_of_a_stream_is_placed() {
    let mut bed = Bed::new(|_| {});
    let mut peer = Peer::connect(&mut bed, 5000, 1460);
    let qp = peer.set_up(&mut bed);
    let stag = bed.arena.register(0, 64, Access::ALL, PD);
    let rsvd_ulp = Opcode::Write.control(Version::Ietf);
    let header = Tagged { last: true, rsvd_ulp, stag, to: 0 };
    let write = framed(14, |out| header.emit(Version::Ietf, out), b"late");
    let first = nothing();
    let end = peer.seq + u32::try_from(first.len()).unwrap();
    // Right behind the FIN, and before it on the wire.
    peer.put(&bed, Flags::ACK, Options::default(), end + 1, &write);
    peer.put(&bed, Flags::ACK | Flags::FIN, Options::default(), peer.seq, &first);
    bed.settle();
    let reason = EndReason::DataBehindFin;
    assert_eq!(bed.engine.next_event(), Some(Event::Disconnected { qp, reason }));
    peer.listen(&bed);
    assert!(peer.reset, "an abortive end");
    assert_eq!(bed.engine.counters().fpdus_in, 1);
    assert_eq!(bed.arena.read(0, 4), [0; 4]);
}

/// A stream that may be half-closed (`ConnParam::half_close`), after the peer's first FPDU.
fn connect_with_half_close(bed: &mut Bed) -> (Peer, QpId) {
    let mut peer = Peer::connect(bed, 5000, 1460);
    let param = ConnParam { half_close: true, ..ConnParam::default() };
    let qp = peer.set_up_with(bed, &param);
    peer.send(bed, &nothing());
    (peer, qp)
}

/// The peer, which has sent FIN, sends an FPDU after it: the connection is reset.
fn expect_reset_by_data_after_fin(bed: &mut Bed, peer: &mut Peer, qp: QpId) {
    peer.put(bed, Flags::ACK, Options::default(), peer.seq + 1, &nothing());
    bed.settle();
    let reason = EndReason::DataBehindFin;
    assert_eq!(bed.engine.next_event(), Some(Event::Disconnected { qp, reason }));
    peer.listen(bed);
    assert!(peer.reset);
}

// req-test: DDP-128
#[test]
fn data_after_fin_resets_a_half_closed_stream() {
    let mut bed = Bed::new(|_| {});
    let (mut peer, qp) = connect_with_half_close(&mut bed);
    peer.put(&bed, Flags::ACK | Flags::FIN, Options::default(), peer.seq, &[]);
    bed.settle();
    assert_eq!(bed.engine.next_event(), Some(Event::PeerFinished { qp }));
    // Nothing new: FIN once more.
    peer.put(&bed, Flags::ACK | Flags::FIN, Options::default(), peer.seq, &[]);
    bed.settle();
    assert_eq!((bed.engine.next_event(), bed.engine.qp_state(qp)), (None, QpState::Rts));
    expect_reset_by_data_after_fin(&mut bed, &mut peer, qp);
}

// req-test: DDP-128
#[test]
fn data_after_fin_resets_a_draining_stream() {
    let mut bed = Bed::new(|_| {});
    let (mut peer, qp) = connect_with_half_close(&mut bed);
    // What is posted does not fit into the window.
    peer.offers = 0;
    peer.put(&bed, Flags::ACK | Flags::FIN, Options::default(), peer.seq, &[]);
    bed.settle();
    let operation = Operation::Write { payload: Payload::empty(), rkey: 0, remote: 0 };
    let wr = SendWr { wr_id: 1, operation, signaled: true, fence: false };
    bed.engine.post_send(qp, wr).unwrap();
    bed.engine.close(bed.now, qp).unwrap();
    bed.settle();
    assert_eq!(bed.engine.next_event(), Some(Event::PeerFinished { qp }));
    assert_eq!((bed.engine.next_event(), bed.engine.qp_state(qp)), (None, QpState::Closing));
    peer.listen(&bed);
    assert!(peer.heard.is_empty() && !peer.finished, "nothing was sent yet");
    expect_reset_by_data_after_fin(&mut bed, &mut peer, qp);
}

#[test]
fn an_overrun_found_while_sending_needs_no_other_cause_for_the_next_pass() {
    let mut bed = Bed::new(|_| {});
    let mut peer = Peer::connect(&mut bed, 5000, 1460);
    let qp = peer.set_up(&mut bed);
    peer.send(&mut bed, &nothing());
    bed.settle();
    let operation = Operation::Write { payload: Payload::empty(), rkey: 0, remote: 0 };
    bed.answers.borrow_mut().push_back(false);
    let wr = SendWr { wr_id: 1, operation, signaled: true, fence: false };
    bed.engine.post_send(qp, wr).unwrap();
    bed.pass();
    assert!(bed.engine.deadline().is_some_and(|deadline| deadline <= bed.now));
    bed.pass();
    assert_eq!(bed.engine.qp_state(qp), QpState::Error);
}

#[test]
fn a_request_that_never_left_is_flushed_and_not_refused() {
    let mut bed = Bed::new(|_| {});
    let mut peer = Peer::connect(&mut bed, 5000, 1460);
    let qp = peer.set_up(&mut bed);
    // Before the peer's first FPDU nothing is sent, and that is a Terminate: access refused.
    let operation = Operation::Write { payload: Payload::empty(), rkey: 0, remote: 0 };
    let wr = SendWr { wr_id: 1, operation, signaled: true, fence: false };
    bed.engine.post_send(qp, wr).unwrap();
    peer.send(&mut bed, &untagged(Opcode::Terminate, 2, 1, &[0x11, 0, 0, 0]));
    bed.settle();
    assert_eq!(bed.queues.poll(CQ).map(|wc| wc.status), Some(WcStatus::Flushed));
}

#[test]
fn only_a_plain_syn_opens_a_connection() {
    for (flags, answered) in [
        (Flags::SYN | Flags::ACK, true),
        (Flags::SYN | Flags::RST, false),
        (Flags::SYN | Flags::ACK | Flags::RST, false),
    ] {
        let mut bed = Bed::new(|_| {});
        let mut peer = Peer::stranger(5000);
        peer.put(&bed, flags, Options::default(), peer.seq, &[]);
        bed.pass();
        peer.listen(&bed);
        assert_eq!((bed.engine.connection_count(), peer.reset), (0, answered), "{flags:?}");
    }
}

#[test]
fn a_small_window_takes_as_many_fpdus_as_fit_whole() {
    let mut bed = Bed::new(|_| {});
    let mut peer = Peer::connect(&mut bed, 5000, 1460);
    let qp = peer.set_up(&mut bed);
    peer.offers = 100;
    peer.send(&mut bed, &nothing());
    for wr_id in 0..5 {
        let payload = Payload::Inline([7; 20].into_iter().collect());
        let operation = Operation::Send { payload, solicited: false, invalidate: None };
        let wr = SendWr { wr_id, operation, signaled: true, fence: false };
        bed.engine.post_send(qp, wr).unwrap();
    }
    peer.lens.clear();
    peer.settle(&mut bed);
    assert_eq!(peer.lens, [88, 88, 44], "two FPDUs of 44 octets at a time, and none cut");
}

#[test]
fn a_rejected_peer_may_send_the_rest_of_its_stream() {
    let mut bed = Bed::new(|_| {});
    let mut peer = Peer::connect(&mut bed, 5000, 1460);
    let request =
        startup::build_request(Offer { ird: 4, ord: 4, crc: true, ..Offer::default() }, 2, b"");
    let mut octets = vec![0; request.wire_len()];
    request.emit(&mut octets);
    peer.send(&mut bed, &octets);
    let request = bed.request();
    for _ in 0..16 {
        peer.send(&mut bed, &[0; 1000]);
        peer.settle(&mut bed);
    }
    assert!(peer.window < 1000, "{}", peer.window);
    // What is kept of it is of no use any more, and must not keep the window shut.
    bed.engine.reject(bed.now, request, ReadDepths::default(), b"").unwrap();
    peer.settle(&mut bed);
    assert!(peer.window > 10_000, "{}", peer.window);
    for _ in 0..20 {
        peer.send(&mut bed, &[0; 1000]);
        peer.settle(&mut bed);
    }
    peer.put(&bed, Flags::FIN | Flags::ACK, Options::default(), peer.seq, &[]);
    peer.seq += 1;
    peer.settle(&mut bed);
    // TIME-WAIT.
    bed.now = bed.now + 2_000_000 * MICROSECOND;
    peer.settle(&mut bed);
    assert!(!peer.reset);
    assert_eq!(bed.engine.connection_count(), 0);
}

/// A peer that has acknowledged our FIN goes on sending, an octet of an FPDU every four seconds, or
/// whole FPDUs: how long the connection lasts, at most ten minutes, in seconds.
fn lasts_after_close(octets: &[u8]) -> u64 {
    let mut bed = Bed::new(|_| {});
    let mut peer = Peer::connect(&mut bed, 5000, 1460);
    let qp = peer.set_up(&mut bed);
    peer.send(&mut bed, &nothing());
    bed.engine.close(bed.now, qp).unwrap();
    peer.settle(&mut bed);
    assert!(peer.finished);
    let began = bed.now;
    while bed.now.since(began) < 600 * SECOND && bed.engine.connection_count() > 0 {
        for part in octets.chunks(1400) {
            peer.send(&mut bed, part);
        }
        for _ in 0..40 {
            bed.now = bed.now + 100 * MILLISECOND;
            bed.pass();
            peer.listen(&bed);
        }
    }
    assert_eq!(peer.reset, bed.engine.connection_count() == 0);
    bed.now.since(began) / SECOND
}

#[test]
fn dripping_peer_does_not_keep_a_closed_connection() {
    // Of the length field of an FPDU, and then of its octets: they are never whole.
    let seconds = lasts_after_close(&[5]);
    assert!((60..90).contains(&seconds), "{seconds}");
}

#[test]
fn peer_that_still_sends_keeps_a_closed_connection() {
    let octets: Vec<u8> = std::iter::repeat_n(nothing(), 300).flatten().collect();
    assert!(octets.len() > 4096);
    assert!(lasts_after_close(&octets) >= 600);
}

#[test]
fn a_full_table_is_told_with_the_setting_that_bounds_it() {
    let mut bed = Bed::new(|config| config.connections_max = 1);
    let init = QpInit { pd: PD, send_cq: CQ, recv_cq: CQ, max_send_wr: 1, max_recv_wr: 1 };
    let remote = (address(0), 9).into();
    let mut connect = || {
        let qp = bed.engine.create_qp(init).unwrap();
        bed.engine.connect(bed.now, qp, remote, &ConnParam::default())
    };
    assert_eq!(connect(), Ok(()));
    let refused = connect().unwrap_err();
    assert_eq!(refused, CmError::TooManyConnections);
    assert!(refused.to_string().contains("`limits.connections_max`"), "{refused}");
}
