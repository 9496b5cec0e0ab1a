//! A listener and peers that complete the handshake and no request: they take no place from those
//! that do.

use std::net::{IpAddr, Ipv4Addr};

use ferrowarp_proto::time::{MILLISECOND, SECOND};
use ferrowarp_proto::verbs::cm::{ConnParam, Event, ReadDepths};
use ferrowarp_proto::wire::tcp::{Flags, Options};
use ferrowarp_tests::raw::{Bed, PORT, Peer, request};

const MSS: u16 = 1460;
/// More than the backlog, and than the application could be asked to decide on at a time.
const SILENT_COUNT: u16 = 1000;

/// Peers on ports of their own that have completed the handshake.
fn silent_peers(bed: &mut Bed, count: u16) -> Vec<Peer> {
    (0..count).map(|at| Peer::connect(bed, 10_000 + at, MSS)).collect()
}

/// An honest peer is served at once: its request is offered, accepted, and answered.
fn serve(bed: &mut Bed, port: u16) {
    let asked_at = bed.now;
    let mut peer = Peer::connect(bed, port, MSS);
    peer.set_up(bed);
    assert!(bed.now.since(asked_at) < SECOND);
    assert!(!peer.reset);
}

/// Lets time go by, firing timers.
fn wait(bed: &mut Bed, ns: u64) {
    let end = bed.now + ns;
    while bed.now < end {
        bed.now = (bed.now + 10 * MILLISECOND).min(end);
        bed.engine.drive(bed.now);
        bed.engine.device().outbound.borrow_mut().clear();
    }
}

#[test]
fn peers_that_never_speak_take_no_place_in_the_backlog() {
    let mut bed = Bed::new(|_| {});
    silent_peers(&mut bed, SILENT_COUNT);
    assert_eq!(bed.engine.usage().awaiting_request, usize::from(SILENT_COUNT));
    serve(&mut bed, 5000);
    // And they are given up after the time for the start-up.
    wait(&mut bed, 11 * SECOND);
    assert_eq!((bed.engine.usage().awaiting_request, bed.engine.connection_count()), (0, 1));
}

#[test]
fn peers_that_stop_within_the_request_take_no_place_in_the_backlog() {
    let mut bed = Bed::new(|_| {});
    for mut peer in silent_peers(&mut bed, SILENT_COUNT) {
        peer.send(&mut bed, &request()[..19]);
        bed.pass();
        peer.listen(&bed);
    }
    serve(&mut bed, 5000);
    wait(&mut bed, 11 * SECOND);
    assert_eq!(bed.engine.connection_count(), 1);
}

#[test]
fn a_request_sent_byte_by_byte_has_the_time_of_any_other() {
    let mut bed = Bed::new(|_| {});
    let mut peers = silent_peers(&mut bed, 100);
    for at in 0..10 {
        for peer in &mut peers {
            peer.send(&mut bed, &request()[at..=at]);
            bed.pass();
            peer.listen(&bed);
        }
        serve(&mut bed, 5000 + u16::try_from(at).unwrap());
        wait(&mut bed, SECOND);
    }
    // Ten seconds are over, though each of them was heard a second ago.
    assert_eq!((bed.engine.usage().awaiting_request, bed.engine.connection_count()), (0, 10));
}

#[test]
fn requests_of_peers_that_reset_take_no_place_in_the_backlog() {
    let mut bed = Bed::new(|_| {});
    for mut peer in silent_peers(&mut bed, SILENT_COUNT) {
        peer.send(&mut bed, &request());
        peer.put(&bed, Flags::RST, Options::default(), peer.seq, &[]);
        bed.pass();
        peer.listen(&bed);
    }
    assert_eq!((bed.engine.usage().awaiting_request, bed.engine.connection_count()), (0, 0));
    assert!(bed.engine.event_count() <= 256, "an application that does not ask loses no memory");
    let mut peer = Peer::connect(&mut bed, 5000, MSS);
    peer.send(&mut bed, &request());
    bed.pass();
    // Those that are gone are not offered any more.
    let asked = bed.request();
    let qp = bed.qp();
    assert!(bed.engine.is_request_pending(asked));
    bed.engine.accept(bed.now, asked, qp, &ConnParam::default()).unwrap();
    assert!(!bed.engine.is_request_pending(asked));
}

#[test]
fn events_of_destroyed_queue_pairs_take_no_memory() {
    let mut bed = Bed::new(|_| {});
    for at in 0..1000 {
        let mut peer = Peer::connect(&mut bed, 10_000 + at, MSS);
        peer.send(&mut bed, &request());
        let asked = bed.request();
        let qp = bed.qp();
        bed.engine.accept(bed.now, asked, qp, &ConnParam::default()).unwrap();
        bed.engine.disconnect(bed.now, qp).unwrap();
        bed.engine.destroy_qp(bed.now, qp);
        bed.pass();
        peer.put(&bed, Flags::RST, Options::default(), peer.seq, &[]);
        bed.pass();
        peer.listen(&bed);
    }
    assert!(bed.engine.event_count() <= 512, "{}", bed.engine.event_count());
    assert!(bed.engine.next_event().is_none());
}

#[test]
fn silent_connections_are_bounded_and_the_oldest_is_reset() {
    const BOUND: usize = 100;
    let mut bed = Bed::new(|config| config.awaiting_request_max = BOUND);
    let mut peers = silent_peers(&mut bed, 250);
    assert_eq!(bed.engine.usage().awaiting_request, BOUND);
    assert_eq!(bed.engine.counters().requests_evicted, 150);
    assert_eq!(bed.engine.connection_count(), BOUND, "nothing is left of those reset");
    // The youngest still has all the time it needs.
    peers.last_mut().unwrap().set_up(&mut bed);
}

#[test]
fn a_flood_from_one_address_evicts_its_own_connections() {
    const BOUND: usize = 100;
    let mut bed = Bed::new(|config| config.awaiting_request_max = BOUND);
    let honest: IpAddr = Ipv4Addr::new(198, 18, 0, 77).into();
    let mut honest = Peer::of(honest, 5000);
    honest.shake_hands(&mut bed, MSS);
    for peer in &mut silent_peers(&mut bed, SILENT_COUNT) {
        peer.listen(&bed);
        honest.listen(&bed);
    }
    assert!(bed.engine.counters().requests_evicted >= 900);
    honest.send(&mut bed, &request());
    bed.pass();
    bed.request();
}

#[test]
fn a_request_that_completes_while_the_backlog_is_full_waits_for_room() {
    let mut bed = Bed::new(|_| {});
    bed.engine.unlisten(PORT);
    bed.engine.listen(PORT, 2).unwrap();
    let mut peers = silent_peers(&mut bed, 5);
    for peer in &mut peers {
        peer.send(&mut bed, &request());
        bed.pass();
        peer.listen(&bed);
    }
    let first = [bed.request(), bed.request()];
    assert!(bed.engine.next_event().is_none(), "no more than the application can decide on");
    assert_eq!(bed.engine.usage().awaiting_request, 3);
    let qp = bed.qp();
    bed.engine.accept(bed.now, first[0], qp, &ConnParam::default()).unwrap();
    assert!(matches!(bed.engine.next_event(), Some(Event::ConnectRequest { offer, .. })
        if offer.peer.port() == 10_002));
    bed.engine.reject(bed.now, first[1], ReadDepths::default(), b"").unwrap();
    let next = std::iter::from_fn(|| bed.engine.next_event()).find_map(|event| match event {
        Event::ConnectRequest { offer, .. } => Some(offer.peer.port()),
        _ => None,
    });
    assert_eq!(next, Some(10_003), "in their order");
    // The last one has waited for as long as its start-up may take.
    wait(&mut bed, 11 * SECOND);
    assert_eq!(bed.engine.usage().awaiting_request, 0);
}
