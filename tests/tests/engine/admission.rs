//! Connections that complete the TCP handshake but send no MPA request: they take no backlog slot
//! from those that do.

use std::net::{IpAddr, Ipv4Addr};

use ferrowarp_proto::time::{MILLISECOND, SECOND};
use ferrowarp_proto::verbs::cm::{ConnEvent, ConnParam, ReadDepths};
use ferrowarp_proto::wire::tcp::Flags;
use ferrowarp_tests::raw::{PORT, Peer, SegmentFixture, mpa_request};

const MSS: u16 = 1460;
/// More than the backlog, and than the connection requests that may await the application's
/// decision.
const SILENT_COUNT: u16 = 1000;

/// Peers on distinct ports that have completed the handshake.
fn silent_peers(fx: &mut SegmentFixture, count: u16) -> Vec<Peer> {
    (0..count).map(|at| Peer::connect(fx, 10_000 + at, MSS)).collect()
}

/// A well-behaved peer is served at once: its request is reported, accepted and answered.
fn expect_served(fx: &mut SegmentFixture, port: u16) {
    let asked_at = fx.now;
    let mut peer = Peer::connect(fx, port, MSS);
    peer.start_mpa(fx);
    assert!(fx.now.since(asked_at) < SECOND);
    assert!(!peer.rst_received);
}

/// Advances time, firing timers.
fn advance(fx: &mut SegmentFixture, ns: u64) {
    let end = fx.now + ns;
    while fx.now < end {
        fx.now = (fx.now + 10 * MILLISECOND).min(end);
        fx.drive();
        fx.engine.device().outbound.borrow_mut().clear();
    }
}

#[test]
fn silent_peers_do_not_occupy_the_backlog() {
    let mut fx = SegmentFixture::new(|_| {});
    silent_peers(&mut fx, SILENT_COUNT);
    assert_eq!(fx.engine.usage().awaiting_request, usize::from(SILENT_COUNT));
    expect_served(&mut fx, 5000);
    // They are dropped after the startup timeout.
    advance(&mut fx, 11 * SECOND);
    assert_eq!((fx.engine.usage().awaiting_request, fx.engine.connection_count()), (0, 1));
}

#[test]
fn partial_requests_do_not_occupy_the_backlog() {
    let mut fx = SegmentFixture::new(|_| {});
    for mut peer in silent_peers(&mut fx, SILENT_COUNT) {
        peer.send(&mut fx, &mpa_request()[..19]);
        fx.poll();
        peer.receive(&fx);
    }
    expect_served(&mut fx, 5000);
    advance(&mut fx, 11 * SECOND);
    assert_eq!(fx.engine.connection_count(), 1);
}

#[test]
fn request_sent_byte_by_byte_hits_the_startup_timeout() {
    let mut fx = SegmentFixture::new(|_| {});
    let mut peers = silent_peers(&mut fx, 100);
    for at in 0..10 {
        for peer in &mut peers {
            peer.send(&mut fx, &mpa_request()[at..=at]);
            fx.poll();
            peer.receive(&fx);
        }
        expect_served(&mut fx, 5000 + u16::try_from(at).unwrap());
        advance(&mut fx, SECOND);
    }
    // Ten seconds have passed, though each sent a byte a second ago.
    assert_eq!((fx.engine.usage().awaiting_request, fx.engine.connection_count()), (0, 10));
}

#[test]
fn requests_followed_by_rst_leave_the_backlog() {
    let mut fx = SegmentFixture::new(|_| {});
    for mut peer in silent_peers(&mut fx, SILENT_COUNT) {
        peer.send(&mut fx, &mpa_request());
        peer.send_segment(&fx, Flags::RST, peer.tcp.snd_nxt, &[]);
        fx.poll();
        peer.receive(&fx);
    }
    assert_eq!((fx.engine.usage().awaiting_request, fx.engine.connection_count()), (0, 0));
    assert!(fx.engine.event_count() <= 256, "an application that does not ask loses no memory");
    let mut peer = Peer::connect(&mut fx, 5000, MSS);
    peer.send(&mut fx, &mpa_request());
    fx.poll();
    // Requests of reset connections are no longer reported.
    let asked = fx.connect_request();
    let qp = fx.create_qp();
    assert!(fx.engine.is_request_pending(asked));
    fx.engine.accept(fx.now, asked, qp, &ConnParam::default()).unwrap();
    assert!(!fx.engine.is_request_pending(asked));
}

#[test]
fn events_of_destroyed_qps_are_freed() {
    let mut fx = SegmentFixture::new(|_| {});
    for at in 0..1000 {
        let mut peer = Peer::connect(&mut fx, 10_000 + at, MSS);
        peer.send(&mut fx, &mpa_request());
        let asked = fx.connect_request();
        let qp = fx.create_qp();
        fx.engine.accept(fx.now, asked, qp, &ConnParam::default()).unwrap();
        fx.engine.disconnect(fx.now, qp).unwrap();
        fx.engine.destroy_qp(fx.now, qp);
        fx.poll();
        peer.send_segment(&fx, Flags::RST, peer.tcp.snd_nxt, &[]);
        fx.poll();
        peer.receive(&fx);
    }
    assert!(fx.engine.event_count() <= 512, "{}", fx.engine.event_count());
    assert!(fx.engine.next_event().is_none());
}

#[test]
fn silent_connections_are_bounded_and_the_oldest_is_reset_first() {
    const BOUND: usize = 100;
    let mut fx = SegmentFixture::new(|config| config.awaiting_request_max = BOUND);
    let mut peers = silent_peers(&mut fx, 250);
    assert_eq!(fx.engine.usage().awaiting_request, BOUND);
    assert_eq!(fx.engine.counters().requests_evicted, 150);
    assert_eq!(fx.engine.connection_count(), BOUND, "nothing is left of those reset");
    // The youngest connection is still served.
    peers.last_mut().unwrap().start_mpa(&mut fx);
}

#[test]
fn flood_from_one_address_evicts_only_its_own_connections() {
    const BOUND: usize = 100;
    let mut fx = SegmentFixture::new(|config| config.awaiting_request_max = BOUND);
    let legitimate: IpAddr = Ipv4Addr::new(198, 18, 0, 77).into();
    let mut legitimate = Peer::at(legitimate, 5000);
    legitimate.handshake(&mut fx, MSS);
    for peer in &mut silent_peers(&mut fx, SILENT_COUNT) {
        peer.receive(&fx);
        legitimate.receive(&fx);
    }
    assert!(fx.engine.counters().requests_evicted >= 900);
    legitimate.send(&mut fx, &mpa_request());
    fx.poll();
    fx.connect_request();
}

#[test]
fn complete_request_waits_while_the_backlog_is_full() {
    let mut fx = SegmentFixture::new(|_| {});
    fx.engine.unlisten(PORT);
    fx.engine.listen(PORT, 2).unwrap();
    let mut peers = silent_peers(&mut fx, 5);
    for peer in &mut peers {
        peer.send(&mut fx, &mpa_request());
        fx.poll();
        peer.receive(&fx);
    }
    let first = [fx.connect_request(), fx.connect_request()];
    assert!(fx.engine.next_event().is_none(), "no more than the application can decide on");
    assert_eq!(fx.engine.usage().awaiting_request, 3);
    let qp = fx.create_qp();
    fx.engine.accept(fx.now, first[0], qp, &ConnParam::default()).unwrap();
    assert!(matches!(fx.engine.next_event(), Some(ConnEvent::ConnectRequest { offer, .. })
        if offer.peer.port() == 10_002));
    fx.engine.reject(fx.now, first[1], ReadDepths::default(), b"").unwrap();
    let next = std::iter::from_fn(|| fx.engine.next_event()).find_map(|event| match event {
        ConnEvent::ConnectRequest { offer, .. } => Some(offer.peer.port()),
        _ => None,
    });
    assert_eq!(next, Some(10_003), "in their order");
    // The startup timeout of the last one has expired.
    advance(&mut fx, 11 * SECOND);
    assert_eq!(fx.engine.usage().awaiting_request, 0);
}
