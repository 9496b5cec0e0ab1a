//! Several listeners on one port: the most specific gets the connection, with limits of its own.

use std::net::{IpAddr, SocketAddr};

use ferrowarp_proto::engine::EngineConfig;
use ferrowarp_proto::net::routing::InterfaceAddress;
use ferrowarp_proto::verbs::cm::{CmError, ConnEvent, ListenAddr};
use ferrowarp_proto::wire::tcp::Flags;
use ferrowarp_tests::raw::{PORT, SegmentFixture, mpa_request};
use ferrowarp_tests::sim::world::address;

use super::{Peer, new_fixture};

/// The second address of the engine, next to `address(1)`.
const OTHER: [u8; 4] = [198, 18, 0, 11];

fn with_two_addresses(change: impl FnOnce(&mut EngineConfig)) -> SegmentFixture {
    let mut fx = new_fixture(|config| {
        config.addresses.push(InterfaceAddress { ip: OTHER.into(), prefix_len: 24 });
        change(config);
    });
    fx.engine.unlisten(PORT);
    fx
}

fn peer_of(local: impl Into<IpAddr>, port: u16) -> Peer {
    Peer::to(SocketAddr::new(local.into(), PORT), address(0), port, 1)
}

fn one(ip: impl Into<IpAddr>) -> ListenAddr {
    (ip, PORT).into()
}

fn ipv4() -> ListenAddr {
    "0.0.0.0".parse::<IpAddr>().map(one).unwrap()
}

/// Sends a SYN and the request; returns the listener that reports it.
fn request(fx: &mut SegmentFixture, mut peer: Peer) -> ListenAddr {
    peer.syn(fx);
    peer.send(fx, Flags::default(), &mpa_request());
    match fx.engine.next_event() {
        Some(ConnEvent::ConnectRequest { listener, offer, .. }) => {
            assert_eq!(offer.local, peer.tcp.tuple.remote);
            listener
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn request_names_the_most_specific_listener() {
    let mut fx = with_two_addresses(|_| {});
    for addr in [ListenAddr::from(PORT), ipv4(), one(OTHER)] {
        fx.engine.listen(addr, 8).unwrap();
    }
    assert_eq!(request(&mut fx, peer_of(address(1), 5000)), ipv4());
    assert_eq!(request(&mut fx, peer_of(OTHER, 5001)), one(OTHER));
    fx.engine.unlisten(one(OTHER));
    fx.engine.unlisten(one(OTHER));
    assert_eq!(request(&mut fx, peer_of(OTHER, 5002)), ipv4());
    fx.engine.unlisten(ipv4());
    assert_eq!(request(&mut fx, peer_of(OTHER, 5003)), PORT.into());
}

#[test]
fn syn_to_an_address_without_listener_is_reset() {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let v6 = InterfaceAddress { ip: ip("2001:2::1"), prefix_len: 64 };
    let mut fx = with_two_addresses(|config| config.addresses.push(v6));
    for (port, addr) in [(5000, one(OTHER)), (5001, one(ip("::")))] {
        fx.engine.listen(addr, 8).unwrap();
        let peer = peer_of(address(1), port);
        peer.send_segment(&fx, &peer.tcp.fields(Flags::SYN, peer.syn_options()), &[]);
        fx.process();
        let answer = peer.take_segments(&fx).pop().expect("an answer");
        assert_eq!(answer.flags, Flags::RST | Flags::ACK);
    }
}

#[test]
fn listener_on_a_foreign_address_is_refused() {
    let mut fx = with_two_addresses(|_| {});
    for foreign in ["198.18.0.3", "127.0.0.1", "224.0.0.1", "255.255.255.255", "::1", "ff02::1"] {
        let addr = one(foreign.parse::<IpAddr>().unwrap());
        assert_eq!(fx.engine.listen(addr, 8), Err(CmError::NotLocal), "{foreign}");
        assert_eq!(fx.engine.listen_unframed(addr, 8), Err(CmError::NotLocal), "{foreign}");
    }
    let all_v6 = one("::".parse::<IpAddr>().unwrap());
    assert_eq!(fx.engine.listen(all_v6, 8), Err(CmError::NoAddressOfFamily));
    for addr in [ListenAddr::from(PORT), ipv4(), one(OTHER)] {
        fx.engine.listen(addr, 8).unwrap();
        assert_eq!(fx.engine.listen_unframed(addr, 8), Err(CmError::PortInUse(PORT)), "{addr}");
    }
}

/// Each has its own backlog, and half-open connections of one do not count against the other.
#[test]
fn listeners_on_one_port_have_limits_of_their_own() {
    let mut fx = with_two_addresses(|config| config.half_open_per_listener_max = 2);
    fx.engine.listen(PORT, 1).unwrap();
    fx.engine.listen(one(OTHER), 1).unwrap();
    assert_eq!(request(&mut fx, peer_of(address(1), 5000)), PORT.into());
    let late = peer_of(address(1), 5001);
    late.send_segment(&fx, &late.tcp.fields(Flags::SYN, late.syn_options()), &[]);
    fx.process();
    assert!(late.take_segments(&fx).is_empty(), "the backlog is full");
    for port in 5002..5004 {
        peer_of(OTHER, port).syn(&mut fx);
    }
    assert_eq!(fx.engine.counters().cookies_sent, 0);
    peer_of(OTHER, 5004).syn(&mut fx);
    assert_eq!(fx.engine.counters().cookies_sent, 1);
    // The end of one leaves the other, its connections and its limits.
    fx.engine.unlisten(PORT);
    fx.process();
    assert_eq!(fx.engine.connection_count(), 3, "the request of the first was taken");
    fx.engine.listen(PORT, 1).unwrap();
    assert_eq!(request(&mut fx, peer_of(address(1), 5005)), PORT.into());
    assert_eq!(fx.engine.counters().cookies_sent, 1);
}

/// A listener opens on the address while the ACK of a cookie is on its way.
#[test]
fn cookie_of_a_less_specific_listener_stays_valid() {
    let mut fx = with_two_addresses(|config| config.half_open_per_listener_max = 0);
    fx.engine.listen(PORT, 8).unwrap();
    let mut peer = peer_of(OTHER, 5000);
    peer.syn(&mut fx);
    assert_eq!(fx.engine.counters().cookies_sent, 1);
    fx.engine.listen(one(OTHER), 8).unwrap();
    peer.start_mpa(&mut fx);
    assert_eq!(fx.engine.counters().cookies_accepted, 1);
    // That of a listener that has ended does not.
    let mut peer = peer_of(OTHER, 5001);
    peer.syn(&mut fx);
    fx.engine.unlisten(one(OTHER));
    fx.engine.unlisten(PORT);
    fx.engine.listen(ipv4(), 8).unwrap();
    let sent = peer.send(&mut fx, Flags::default(), &mpa_request());
    assert!(sent.iter().any(|segment| segment.flags.has(Flags::RST)), "{sent:?}");
}
