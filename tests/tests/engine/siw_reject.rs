//! siw quirk: the FIN after an MPA reject is delayed, so that the peer can process the reply first.

use ferrowarp_proto::mpa::startup::{self, Offer};
use ferrowarp_proto::time::MILLISECOND;
use ferrowarp_proto::verbs::cm::ReadDepths;
use ferrowarp_proto::wire::mpa::{FrameKind, Startup};
use ferrowarp_proto::wire::tcp::Flags;
use ferrowarp_tests::raw::{Peer, SegmentFixture};

const WHY: &[u8] = b"not today";

/// A peer that was rejected and has not read the reply yet.
fn rejected(hold_ms: u64) -> (SegmentFixture, Peer) {
    let mut fx =
        SegmentFixture::new(|config| config.siw_reject_fin_delay_ns = hold_ms * MILLISECOND);
    let mut peer = Peer::connect(&mut fx, 5000, 1460);
    let request = startup::build_request(Offer { crc: true, ..Offer::default() }, 2, [].into());
    let mut bytes = vec![0; request.wire_len()];
    request.emit(&mut bytes);
    peer.send(&mut fx, &bytes);
    let request = fx.connect_request();
    fx.engine.reject(fx.now, request, ReadDepths::default(), WHY).unwrap();
    fx.poll();
    peer.receive(&fx);
    let (reply, _) = Startup::parse(&peer.received, FrameKind::Reply).unwrap().expect("the reply");
    assert!(reply.reject && reply.private_data[..] == *WHY);
    (fx, peer)
}

fn acknowledge(fx: &SegmentFixture, peer: &Peer) {
    peer.send_segment(fx, Flags::ACK, peer.tcp.snd_nxt, &[]);
}

/// Advances time while the peer only receives; returns the milliseconds until FIN, if it came.
fn ms_until_fin(fx: &mut SegmentFixture, peer: &mut Peer, ms: u64) -> Option<u64> {
    for passed in 0..ms {
        if peer.fin_received {
            return Some(passed);
        }
        fx.now = fx.now + MILLISECOND;
        fx.poll();
        peer.receive(fx);
    }
    None
}

fn close(fx: &mut SegmentFixture, peer: &mut Peer) {
    peer.send_segment(fx, Flags::ACK | Flags::FIN, peer.tcp.snd_nxt, &[]);
    peer.tcp.snd_nxt += 1;
    fx.poll();
    peer.receive(fx);
}

fn expect_closed(fx: &mut SegmentFixture, peer: &mut Peer) {
    acknowledge(fx, peer);
    fx.poll();
    assert_eq!((fx.engine.unfinished_count(), peer.rst_received), (0, false));
}

#[test]
fn fin_follows_the_fin_of_the_rejected_peer() {
    let (mut fx, mut peer) = rejected(100);
    assert_eq!(ms_until_fin(&mut fx, &mut peer, 10), None);
    acknowledge(&fx, &peer);
    assert_eq!(ms_until_fin(&mut fx, &mut peer, 50), None);
    close(&mut fx, &mut peer);
    assert!(peer.fin_received, "at once");
    expect_closed(&mut fx, &mut peer);
    assert_eq!(fx.engine.connection_count(), 0, "it is the peer that waits in TIME-WAIT");
}

#[test]
fn fin_follows_the_hold_time_after_the_reply_is_acked() {
    let (mut fx, mut peer) = rejected(100);
    // The reply is acknowledged later than the hold time after it was sent.
    assert_eq!(ms_until_fin(&mut fx, &mut peer, 350), None);
    acknowledge(&fx, &peer);
    let waited = ms_until_fin(&mut fx, &mut peer, 200);
    assert!(matches!(waited, Some(98..=103)), "{waited:?}");
    acknowledge(&fx, &peer);
    close(&mut fx, &mut peer);
    expect_closed(&mut fx, &mut peer);
}

#[test]
fn silent_rejected_peer_is_reset_after_the_timeout() {
    let (mut fx, mut peer) = rejected(100);
    assert_eq!(ms_until_fin(&mut fx, &mut peer, 4900), None);
    assert!(!peer.rst_received);
    ms_until_fin(&mut fx, &mut peer, 200);
    assert!(peer.rst_received);
    assert_eq!(fx.engine.connection_count(), 0);
}

#[test]
fn data_of_a_rejected_peer_is_discarded() {
    let (mut fx, mut peer) = rejected(100);
    peer.send(&mut fx, &[0xff; 1000]);
    let ahead = peer.tcp.snd_nxt + 100;
    peer.send_segment(&fx, Flags::ACK, ahead, &[0xff; 1000]);
    fx.poll();
    peer.tcp.snd_nxt = ahead - 100;
    peer.send(&mut fx, &[0xff; 1100]);
    assert_eq!(ms_until_fin(&mut fx, &mut peer, 50), None);
    close(&mut fx, &mut peer);
    assert!(peer.fin_received);
    expect_closed(&mut fx, &mut peer);
}

#[test]
fn zero_hold_time_sends_fin_at_once() {
    let (mut fx, mut peer) = rejected(0);
    assert!(peer.fin_received);
    close(&mut fx, &mut peer);
    expect_closed(&mut fx, &mut peer);
}
