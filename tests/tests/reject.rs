//! A reject, and the FIN behind it: the peer has time to look at the one before it hears the other.

use ferrowarp_proto::mpa::startup::{self, Offer, ReadDepths};
use ferrowarp_proto::time::MILLISECOND;
use ferrowarp_proto::wire::mpa::{FrameKind, Startup};
use ferrowarp_proto::wire::tcp::{Flags, Options};
use ferrowarp_tests::raw::{Bed, Peer};

const WHY: &[u8] = b"not today";

/// A peer that was rejected and has not looked yet.
fn rejected(hold_ms: u64) -> (Bed, Peer) {
    let mut bed = Bed::new(|config| config.siw_reject_fin_delay_ns = hold_ms * MILLISECOND);
    let mut peer = Peer::connect(&mut bed, 5000, 1460);
    let request = startup::build_request(Offer { crc: true, ..Offer::default() }, 2, b"");
    let mut octets = vec![0; request.wire_len()];
    request.emit(&mut octets);
    peer.send(&mut bed, &octets);
    let request = bed.request();
    bed.engine.reject(bed.now, request, ReadDepths::default(), WHY).unwrap();
    bed.pass();
    peer.listen(&bed);
    let (reply, _) = Startup::parse(&peer.heard, FrameKind::Reply).unwrap().expect("the reply");
    assert!(reply.reject && reply.private_data == *WHY);
    (bed, peer)
}

fn acknowledge(bed: &Bed, peer: &Peer) {
    peer.put(bed, Flags::ACK, Options::default(), peer.seq, &[]);
}

/// Time passes, and the peer only listens. How long until FIN came, if it did.
fn wait(bed: &mut Bed, peer: &mut Peer, ms: u64) -> Option<u64> {
    for passed in 0..ms {
        if peer.finished {
            return Some(passed);
        }
        bed.now = bed.now + MILLISECOND;
        bed.pass();
        peer.listen(bed);
    }
    None
}

fn close(bed: &mut Bed, peer: &mut Peer) {
    peer.put(bed, Flags::ACK | Flags::FIN, Options::default(), peer.seq, &[]);
    peer.seq += 1;
    bed.pass();
    peer.listen(bed);
}

fn gone(bed: &mut Bed, peer: &mut Peer) {
    acknowledge(bed, peer);
    bed.pass();
    assert_eq!((bed.engine.unfinished_count(), peer.reset), (0, false));
}

#[test]
fn fin_follows_the_peers() {
    let (mut bed, mut peer) = rejected(100);
    assert_eq!(wait(&mut bed, &mut peer, 10), None);
    acknowledge(&bed, &peer);
    assert_eq!(wait(&mut bed, &mut peer, 50), None);
    close(&mut bed, &mut peer);
    assert!(peer.finished, "at once");
    gone(&mut bed, &mut peer);
    assert_eq!(bed.engine.connection_count(), 0, "it is the peer that waits in TIME-WAIT");
}

#[test]
fn a_peer_that_does_not_close_is_closed_to_a_while_after_it_had_the_reply() {
    let (mut bed, mut peer) = rejected(100);
    // Its acknowledgement comes later than the reject by more than the while.
    assert_eq!(wait(&mut bed, &mut peer, 350), None);
    acknowledge(&bed, &peer);
    let waited = wait(&mut bed, &mut peer, 200);
    assert!(matches!(waited, Some(98..=103)), "{waited:?}");
    acknowledge(&bed, &peer);
    close(&mut bed, &mut peer);
    gone(&mut bed, &mut peer);
}

#[test]
fn a_peer_that_neither_acknowledges_nor_closes_is_reset_in_the_end() {
    let (mut bed, mut peer) = rejected(100);
    assert_eq!(wait(&mut bed, &mut peer, 4900), None);
    assert!(!peer.reset);
    wait(&mut bed, &mut peer, 200);
    assert!(peer.reset);
    assert_eq!(bed.engine.connection_count(), 0);
}

#[test]
fn what_a_rejected_peer_sends_is_discarded() {
    let (mut bed, mut peer) = rejected(100);
    peer.send(&mut bed, &[0xff; 1000]);
    let ahead = peer.seq + 100;
    peer.put(&bed, Flags::ACK, Options::default(), ahead, &[0xff; 1000]);
    bed.pass();
    peer.seq = ahead - 100;
    peer.send(&mut bed, &[0xff; 1100]);
    assert_eq!(wait(&mut bed, &mut peer, 50), None);
    close(&mut bed, &mut peer);
    assert!(peer.finished);
    gone(&mut bed, &mut peer);
}

#[test]
fn without_a_hold_fin_follows_at_once() {
    let (mut bed, mut peer) = rejected(0);
    assert!(peer.finished);
    close(&mut bed, &mut peer);
    gone(&mut bed, &mut peer);
}
