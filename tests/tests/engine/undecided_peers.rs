//! Memory for out-of-order data: peers on whose connections no application has decided hold none of
//! it, and an accepted one leaves a part to others, however many connections it has.

use ferrowarp_proto::verbs::cm::{ConnEvent, ConnParam};
use ferrowarp_proto::verbs::wc::WcStatus;
use ferrowarp_proto::wire::rdmap::Opcode;
use ferrowarp_proto::wire::tcp::Flags;
use ferrowarp_tests::raw::{
    CQ, PORT, Peer, SegmentFixture, empty_write_fpdu, mpa_request, recv_wr, untagged_fpdu,
};
use ferrowarp_tests::sim::world::address;

/// Enough peers to fill the pools of out-of-order data with 15 segments each.
const COUNT: u16 = 800;
/// Payload of the messages of an established stream, one segment each.
const MESSAGE_LEN: usize = 1400;
/// Messages received out of order.
const MESSAGES: u32 = 15;

/// Sends segments of `len` bytes out of order on each connection, beyond a gap of 100 bytes.
fn flood(fx: &mut SegmentFixture, peers: &[Peer], len: usize) {
    for peer in peers {
        for at in 0..15 {
            let seq = peer.tcp.snd_nxt + 100 + at * (u32::try_from(len).unwrap() + 1);
            peer.send_segment(fx, Flags::ACK, seq, &vec![0; len]);
        }
        fx.poll();
        fx.take_sent();
    }
}

/// The first of several messages is lost: the others are all kept, and delivered once it arrives.
fn expect_losses_repaired(fx: &mut SegmentFixture, mut peer: Peer) {
    let port = peer.tcp.tuple.local.port();
    peer.handshake(fx, 1460);
    peer.send(fx, &mpa_request());
    let request = std::iter::from_fn(|| fx.engine.next_event()).find_map(|event| match event {
        ConnEvent::ConnectRequest { request, offer, .. } => {
            (offer.peer.port() == port).then_some(request)
        }
        _ => None,
    });
    let qp = fx.create_qp();
    fx.engine.accept(fx.now, request.expect("is offered"), qp, &ConnParam::default()).unwrap();
    peer.settle(fx);
    peer.send(fx, &empty_write_fpdu());
    let counters = fx.engine.counters();
    let dropped = (counters.ooo_dropped, counters.ooo_pool_exhausted);
    let send = Opcode::Send { invalidate: false, solicited: false };
    let message = |msn: u32| untagged_fpdu(send, 0, msn, &[msn.to_le_bytes()[0]; MESSAGE_LEN]);
    let len = u32::try_from(message(1).len()).unwrap();
    for msn in 1..=MESSAGES {
        fx.engine.post_recv(qp, recv_wr(fx, u64::from(msn))).unwrap();
    }
    for msn in 2..=MESSAGES {
        let seq = peer.tcp.snd_nxt + (msn - 1) * len;
        peer.send_segment(fx, Flags::ACK, seq, &message(msn));
    }
    fx.settle();
    let counters = fx.engine.counters();
    assert_eq!((counters.ooo_dropped, counters.ooo_pool_exhausted), dropped);
    peer.send(fx, &message(1));
    fx.settle();
    let completed = std::iter::from_fn(|| fx.queues.poll(CQ)).map(|wc| (wc.wr_id, wc.status));
    let expected = (1..=u64::from(MESSAGES)).map(|wr_id| (wr_id, WcStatus::Success));
    assert!(completed.eq(expected));
}

/// Lengths for copies of the smallest size, for copies of the largest one, and for frames.
#[test]
fn undecided_peers_hold_no_out_of_order_memory() {
    for len in [1, 1025, 1090] {
        for has_request in [false, true] {
            let mut fx = SegmentFixture::new(|_| {});
            fx.engine.unlisten(PORT);
            fx.engine.listen(PORT, usize::from(COUNT) + 10).unwrap();
            let mut peers: Vec<_> =
                (0..COUNT).map(|at| Peer::connect(&mut fx, 10_000 + at, 1460)).collect();
            if has_request {
                peers.iter_mut().for_each(|peer| peer.send(&mut fx, &mpa_request()));
            }
            flood(&mut fx, &peers, len);
            let usage = fx.engine.usage();
            let waiting =
                if has_request { usage.awaiting_decision } else { usage.awaiting_request };
            assert_eq!(waiting, usize::from(COUNT));
            assert_eq!((usage.ooo_frames, usage.ooo_bytes), (0, 0));
            expect_losses_repaired(&mut fx, Peer::unconnected(5000));
        }
    }
}

/// Its gaps are never filled. Lengths for copies of the smallest size, for copies of full size, and
/// for frames.
#[test]
fn accepted_peer_leaves_out_of_order_memory_to_others() {
    for (len, bytes_max) in [(1, 1 << 20), (1090, 1 << 20), (1090, 0)] {
        let mut fx = SegmentFixture::new(|config| {
            config.ooo_bytes_max = bytes_max;
            config.ooo_frames_max = 256;
        });
        let mut peers: Vec<_> =
            (0..60).map(|at| Peer::connect(&mut fx, 10_000 + at, 1460)).collect();
        for peer in &mut peers {
            peer.start_mpa(&mut fx);
            peer.send(&mut fx, &empty_write_fpdu());
        }
        let step = 15 * (u32::try_from(len).unwrap() + 1);
        for _ in 0..20 {
            flood(&mut fx, &peers, len);
            peers.iter_mut().for_each(|peer| peer.tcp.snd_nxt += step);
        }
        assert!(fx.engine.counters().ooo_pool_exhausted > 0, "{len} {bytes_max}");
        let usage = fx.engine.usage();
        let held = (usage.ooo_frames, usage.ooo_bytes);
        assert!(held.0 <= 256 * 5 / 6 && held.1 <= bytes_max * 5 / 6, "{held:?}");
        fx.engine.device().outbound.borrow_mut().clear();
        expect_losses_repaired(&mut fx, Peer::at(address(9), 5000));
    }
}

/// The pieces of a request may arrive in any order, if the later ones are sent again.
#[test]
fn request_is_complete_once_its_start_and_then_its_end_arrive() {
    let mut fx = SegmentFixture::new(|_| {});
    let mut peer = Peer::connect(&mut fx, 5000, 1460);
    let request = mpa_request();
    peer.send_segment(&fx, Flags::ACK, peer.tcp.snd_nxt + 10, &request[10..]);
    peer.send(&mut fx, &request[..10]);
    fx.poll();
    assert_eq!((fx.engine.usage().awaiting_request, fx.engine.counters().ooo_dropped), (1, 1));
    peer.send(&mut fx, &request[10..]);
    fx.connect_request();
}
