//! Listeners on one address, on one family or on all.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use ferrowarp::{
    AsyncEvent, CmError, ConnParam, ConnectError, DriveMode, Ended, InterfaceAddress, ListenAddr,
    Listener, Qp,
};

use crate::support::*;

const V6: [&str; 2] = ["2001:2::1", "2001:2::2"];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Two ends with this number of shards; the right one has the addresses 2 and 3, and both have an
/// IPv6 address.
fn ends(shards: usize) -> (Endpoint, Endpoint) {
    let configs = [1, 2].map(|host| {
        let mut config = config(host, DriveMode::Inline);
        let v6 = InterfaceAddress { ip: ip(V6[usize::from(host - 1)]), prefix_len: 64 };
        config.addresses.push(v6);
        config.addresses.push(InterfaceAddress { ip: address(5 - host), prefix_len: 24 });
        config.shards = shards;
        config
    });
    let [left, mut right] = configs;
    right.source_ports = 50_000..=50_002;
    let (left, right) = ring_pair(left, right).unwrap();
    (Endpoint::new(left), Endpoint::new(right))
}

fn connect(left: &Endpoint, to: IpAddr, port: u16) -> Qp {
    let qp = left.qp();
    qp.connect(SocketAddr::new(to, port), ConnParam::default()).unwrap();
    qp
}

/// Accepts a request of a listener; returns the local address of the connection.
fn accept(right: &Endpoint, listener: &Listener, peer: &Qp) -> SocketAddr {
    let request = listener.accept_timeout(TIMEOUT).expect("a request");
    let local = request.offer().local;
    let qp = right.qp();
    request.accept(&qp, ConnParam::default()).unwrap();
    assert_eq!(peer.wait_established(TIMEOUT).unwrap().peer, local);
    local
}

fn most_specific_listener_gets_the_request(shards: usize) {
    let (left, right) = ends(shards);
    let listen = |addr: ListenAddr| right.context.listen(addr, 8).unwrap();
    let all = listen(PORT.into());
    let v4 = listen((ip("0.0.0.0"), PORT).into());
    let one = listen((address(2), PORT).into());
    assert_eq!([&all, &v4, &one].map(Listener::port), [PORT; 3]);
    let channel = right.context.event_channel().unwrap();
    // Over all shards.
    for _ in 0..shards {
        for (to, listener) in [(address(2), &one), (address(3), &v4), (ip(V6[1]), &all)] {
            let qp = connect(&left, to, PORT);
            drive_until(&left.context, &right.context, || {
                let event = channel.next_event();
                event.inspect(|event| {
                    let expected = AsyncEvent::ConnectRequest { listener: listener.local_addr() };
                    assert_eq!(*event, expected);
                });
                event.is_some()
            });
            assert_eq!(accept(&right, listener, &qp), SocketAddr::new(to, PORT));
            while channel.next_event().is_some() {}
        }
    }
    assert!([&all, &v4, &one].iter().all(|listener| listener.next_request().is_none()));
    // The next one takes over.
    drop(one);
    let qp = connect(&left, address(2), PORT);
    accept(&right, &v4, &qp);
    drop(all);
    let refused = connect(&left, ip(V6[1]), PORT).wait_established(TIMEOUT);
    assert_eq!(refused, Err(ConnectError::Refused));
}

#[test]
fn most_specific_listener_gets_the_request_with_one_shard() {
    most_specific_listener_gets_the_request(1);
}

#[test]
fn most_specific_listener_gets_the_request_with_two_shards() {
    most_specific_listener_gets_the_request(2);
}

/// tgtd binds `0.0.0.0` and `::` on one port.
#[test]
fn families_share_a_port_and_equal_listeners_do_not() {
    let (_left, right) = ends(1);
    let listen = |addr: ListenAddr| right.context.listen(addr, 1);
    let addrs = ["0.0.0.0:4420", "[::]:4420", "4420", "198.18.0.3:4420", "[2001:2::2]:4420"];
    let addrs = addrs.map(|addr| addr.parse::<ListenAddr>().unwrap());
    let listeners = addrs.map(|addr| listen(addr).unwrap());
    for (addr, listener) in addrs.into_iter().zip(listeners) {
        assert_eq!(listener.local_addr(), addr);
        assert_eq!(listen(addr).err(), Some(CmError::PortInUse(4420)), "{addr}");
        assert_eq!(
            right.context.listen_unframed(addr, 1).err(),
            Some(CmError::PortInUse(4420)),
            "{addr}"
        );
        drop(listener);
        drop(listen(addr).expect("free again"));
    }
    let mapped = listen("[::ffff:198.18.0.2]:4420".parse().unwrap()).unwrap();
    assert_eq!(mapped.local_addr().ip(), Some(address(2)));
}

#[test]
fn address_of_another_host_is_refused() {
    let (_left, right) = ends(1);
    for foreign in [address(1), ip("127.0.0.1"), ip("224.0.0.1"), ip("::1"), ip("ff02::1")] {
        let error = right.context.listen((foreign, PORT), 1).err();
        assert_eq!(error, Some(CmError::NotLocal), "{foreign}");
        assert_eq!(right.context.listen((foreign, 0), 1).err(), Some(CmError::NotLocal));
    }
    let (ipv4_only, _) = endpoints(DriveMode::Inline);
    for port in [PORT, 0] {
        let refused = ipv4_only.context.listen((ip("::"), port), 1).err();
        assert_eq!(refused, Some(CmError::NoAddressOfFamily));
    }
    assert!(ipv4_only.context.listen((ip("0.0.0.0"), PORT), 1).is_ok());
}

/// Connects from the port of listeners on other addresses.
#[test]
fn listener_leaves_its_port_to_other_addresses() {
    let (left, right) = ends(1);
    let all = left.context.listen(PORT, 1).unwrap();
    let listen = |addr: ListenAddr| right.context.listen(addr, 1).unwrap();
    let _others = [(ip("::"), PORT), (address(3), PORT)].map(|addr| listen(addr.into()));
    let qp = right.qp();
    let param = ConnParam::new().local_address(address(2)).local_port(PORT);
    qp.connect((address(1), PORT).into(), param).unwrap();
    let passive = left.qp();
    all.accept_timeout(TIMEOUT).expect("a request").accept(&passive, ConnParam::new()).unwrap();
    assert_eq!(qp.wait_established(TIMEOUT).unwrap().local, (address(2), PORT).into());
}

/// As with `rdma_cm`: the application has them, not the listener.
#[test]
fn requests_that_were_taken_outlive_the_listener() {
    let (left, right) = ends(2);
    let listener = right.context.listen(PORT, 8).unwrap();
    let qps: Vec<Qp> = (0..6).map(|_| connect(&left, address(2), PORT)).collect();
    let taken: Vec<_> = (0..4).map(|_| listener.accept_timeout(TIMEOUT).unwrap()).collect();
    drop(listener);
    // A successor on the port has no part in them.
    let successor = right.context.listen(PORT, 1).unwrap();
    let mut ends = Vec::new();
    for (at, request) in taken.into_iter().enumerate() {
        let from = request.offer().peer;
        let peer = qps.iter().find(|qp| qp.local() == Some(from)).expect("one of them");
        let qp = right.qp();
        let expected = match at {
            0 | 1 => request.accept(&qp, ConnParam::default()).map(|()| None),
            2 => request.reject(b"no").map(|()| Some(ConnectError::Rejected)),
            _ => {
                drop(request);
                Ok(Some(ConnectError::Rejected))
            }
        };
        assert_eq!(peer.wait_established(TIMEOUT).err(), expected.unwrap());
        ends.push((peer.id(), qp));
    }
    assert!(successor.poll().is_none());
    // Nobody has taken the others.
    for qp in qps.iter().filter(|qp| ends.iter().all(|&(taken, _)| taken != qp.id())) {
        let error = qp.wait_established(TIMEOUT).unwrap_err();
        assert!(matches!(error, ConnectError::Rejected | ConnectError::Reset), "{error:?}");
    }
}

/// Requests in the application's hands do not delay closing.
#[test]
fn taken_requests_end_with_the_context() {
    let (left, right) = ends(1);
    let listener = right.context.listen(PORT, 8).unwrap();
    let qp = connect(&left, address(2), PORT);
    let request = listener.accept_timeout(TIMEOUT).unwrap();
    drop(listener);
    let start = Instant::now();
    right.context.close();
    assert!(start.elapsed() < Duration::from_secs(4), "the linger time is 5 s");
    assert_eq!(request.reject(b""), Err(CmError::Ended(Ended::Closed)));
    assert_eq!(qp.wait_established(TIMEOUT), Err(ConnectError::Reset));
}

/// A port is free for an address if no listener shares both.
#[test]
fn port_0_avoids_listeners_that_share_an_address() {
    let (_left, right) = ends(1);
    let listen = |text: &str| right.context.listen(text.parse::<ListenAddr>().unwrap(), 1);
    let wide = listen("50001").unwrap();
    let v4 = listen("0.0.0.0:50002").unwrap();
    let one = listen("198.18.0.2:0").unwrap();
    assert_eq!(one.local_addr(), (address(2), 50_000).into());
    assert_eq!(listen("198.18.0.2:0").err(), Some(CmError::NoResources));
    assert_eq!(listen("198.18.0.3:0").unwrap().port(), 50_000);
    let v6 = listen("[::]:0").unwrap();
    assert_eq!(v6.port(), 50_002, "after the port that was chosen last");
    assert_eq!(listen("0").err(), Some(CmError::NoResources));
    drop((wide, v4, one));
    assert_eq!(listen("0").unwrap().port(), 50_000);
}
