//! Active opens: source address and port, the time they may take, and why they fail.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use ferrowarp_proto::time::{Instant, SECOND};
use ferrowarp_proto::verbs::cm::{CmError, ConnEvent, ConnParam, ConnectError, ListenAddr};
use ferrowarp_proto::verbs::wc::QpId;
use ferrowarp_tests::sim::link::Faults;
use ferrowarp_tests::sim::pairs::{PORT, event, qp_init};
use ferrowarp_tests::sim::world::{World, WorldOptions, address};

/// Port to connect from, and another to connect to.
const LOCAL: u16 = 7777;
const OTHER: u16 = PORT + 1;

fn world() -> World {
    let mut world = World::new(&WorldOptions::new(3));
    for port in [PORT, OTHER] {
        world.ends[1].engine.listen(port, 8).unwrap();
    }
    world
}

fn connect(world: &mut World, remote: SocketAddr, param: &ConnParam) -> Result<QpId, CmError> {
    let now = world.now;
    let engine = &mut world.ends[0].engine;
    let qp = engine.create_qp(qp_init(16, 16)).unwrap();
    engine.connect(now, qp, remote, param).map(|()| qp)
}

fn from_port(port: u16) -> ConnParam {
    ConnParam::new().local_port(port)
}

/// Connects, and accepts; returns the queue pairs.
fn establish(world: &mut World, remote: SocketAddr, param: &ConnParam) -> [QpId; 2] {
    let qp = connect(world, remote, param).unwrap();
    let ConnEvent::ConnectRequest { request, offer, .. } = event(world, 1) else { panic!() };
    assert_eq!(offer.peer, SocketAddr::new(address(0), param.local_port));
    let (now, engine) = (world.now, &mut world.ends[1].engine);
    let passive = engine.create_qp(qp_init(16, 16)).unwrap();
    engine.accept(now, request, passive, &ConnParam::new()).unwrap();
    for end in 0..2 {
        assert!(matches!(event(world, end), ConnEvent::Established { .. }));
    }
    [qp, passive]
}

#[test]
fn port_serves_one_connection_to_each_peer_until_time_wait_is_over() {
    let mut world = world();
    let [remote, other] = [PORT, OTHER].map(|port| world.socket(1, port));
    // Below `source_ports` too.
    let [qp, _] = establish(&mut world, remote, &from_port(LOCAL));
    let again = connect(&mut world, remote, &from_port(LOCAL));
    assert_eq!(again, Err(CmError::ConnectionExists(LOCAL)));
    establish(&mut world, other, &from_port(LOCAL));
    establish(&mut world, remote, &from_port(LOCAL + 1));
    let now = world.now;
    world.ends[0].engine.close(now, qp).unwrap();
    for end in [1, 0] {
        assert!(matches!(event(&mut world, end), ConnEvent::Disconnected { .. }));
    }
    let again = connect(&mut world, remote, &from_port(LOCAL));
    assert_eq!(again, Err(CmError::ConnectionExists(LOCAL)), "TIME-WAIT");
    world.run_for(2 * SECOND);
    establish(&mut world, remote, &from_port(LOCAL));
}

/// Peers may connect to a listener from any port.
#[test]
fn port_of_a_listener_is_refused_if_it_covers_the_address() {
    let mut world = world();
    let remote = world.socket(1, PORT);
    let addrs = [format!("{LOCAL}"), format!("0.0.0.0:{LOCAL}"), format!("{}:{LOCAL}", address(0))];
    for addr in addrs {
        let addr: ListenAddr = addr.parse().unwrap();
        world.ends[0].engine.listen(addr, 1).unwrap();
        let refused = connect(&mut world, remote, &from_port(LOCAL));
        assert_eq!(refused, Err(CmError::PortInUse(LOCAL)), "{addr}");
        world.ends[0].engine.unlisten(addr);
    }
    establish(&mut world, remote, &from_port(LOCAL));
    // A listener that opens later does not take the connection's segments.
    world.ends[0].engine.listen(LOCAL, 1).unwrap();
    establish(&mut world, remote, &from_port(LOCAL + 1));
}

#[test]
fn source_and_remote_that_no_connection_can_have_are_refused() {
    let mut world = world();
    let remote = world.socket(1, PORT);
    let from = |ip: &str| from_port(LOCAL).local_address(ip.parse().unwrap());
    for (ip, error) in [
        ("198.18.0.9", CmError::NotLocal),
        ("127.0.0.1", CmError::NotLocal),
        ("224.0.0.1", CmError::NotLocal),
        ("::1", CmError::NotLocal),
    ] {
        assert_eq!(connect(&mut world, remote, &from(ip)), Err(error), "{ip}");
    }
    let port_0 = SocketAddr::new(remote.ip(), 0);
    assert_eq!(connect(&mut world, port_0, &from_port(LOCAL)), Err(CmError::RemotePort));
    // None of them holds the port. Unspecified: as the route selects.
    let ours = address(0).to_string();
    for (port, ip) in [(0, "0.0.0.0"), (1, &*ours), (2, "::ffff:0.0.0.0"), (3, "::")] {
        establish(&mut world, remote, &from(ip).local_port(LOCAL + port));
    }
}

/// Waits for the failure of an attempt; returns the reason and the time that it took.
fn failure(world: &mut World, qp: QpId, start: Instant) -> (ConnectError, Duration) {
    match event(world, 0) {
        ConnEvent::ConnectFailed { qp: of, error, .. } if of == qp => {
            (error, Duration::from_nanos(world.now.since(start)))
        }
        other => panic!("{other:?}"),
    }
}

/// The time covers address resolution, the TCP handshake, and the decision of the peer.
#[test]
fn connect_times_out_in_each_stage_of_the_setup() {
    const TIMEOUT: Duration = Duration::from_millis(500);
    let mut world = world();
    let [served, absent] = [world.socket(1, PORT), SocketAddr::new(address(76), PORT)];
    // Resolves the address.
    establish(&mut world, served, &from_port(LOCAL));
    for (remote, loss) in [(absent, 0.0), (served, 1.0), (served, 0.0)] {
        world.set_faults(Faults { loss, ..Faults::NONE });
        let start = world.now;
        let param = ConnParam::new().connect_timeout(TIMEOUT);
        let qp = connect(&mut world, remote, &param).unwrap();
        let (error, took) = failure(&mut world, qp, start);
        assert_eq!(error, ConnectError::TimedOut);
        assert!((TIMEOUT..TIMEOUT + TIMEOUT / 10).contains(&took), "{took:?}");
        assert_eq!(world.ends[0].engine.connection_count(), 1);
    }
    // The responder has a request of the last one, which it cannot accept any more.
    world.run_for(SECOND);
    assert!(world.ends[1].engine.next_event().is_none());
    assert_eq!(world.ends[1].engine.connection_count(), 1);
}

/// The peer's application takes longer than an attempt lasts by default here, 90 s.
#[test]
fn connect_waits_as_long_as_it_is_told() {
    for timeout in [Duration::from_secs(200), Duration::MAX] {
        let mut world = world();
        let remote = world.socket(1, PORT);
        let qp = connect(&mut world, remote, &ConnParam::new().connect_timeout(timeout)).unwrap();
        let ConnEvent::ConnectRequest { request, .. } = event(&mut world, 1) else { panic!() };
        world.run_for(150 * SECOND);
        let (now, engine) = (world.now, &mut world.ends[1].engine);
        let passive = engine.create_qp(qp_init(16, 16)).unwrap();
        engine.accept(now, request, passive, &ConnParam::new()).unwrap();
        let established = event(&mut world, 0);
        assert!(matches!(established, ConnEvent::Established { qp: of, .. } if of == qp));
        // It does not end an established connection.
        world.run_for(300 * SECOND);
        assert_eq!(world.ends[0].engine.event_count(), 0);
    }
    let mut world = world();
    let remote = world.socket(1, PORT);
    for value in [Duration::ZERO, Duration::from_micros(999)] {
        let refused = connect(&mut world, remote, &ConnParam::new().connect_timeout(value));
        let (setting, min) = ("connect_timeout", Duration::from_millis(1));
        assert_eq!(refused, Err(CmError::TooShort { setting, value, min }));
    }
}

/// Twice as many as there are source ports, to a peer that does not decide, and to nobody.
#[test]
fn thousands_of_connects_time_out_and_leave_nothing() {
    const COUNT: usize = 10_000;
    let mut world = world();
    let [served, absent] = [world.socket(1, PORT), SocketAddr::new(address(76), PORT)];
    let param = ConnParam::new().connect_timeout(Duration::from_millis(1));
    for remote in [served, absent, served, absent] {
        let start = world.now;
        let connect_one = |_| connect(&mut world, remote, &param).unwrap();
        let mut waiting: HashSet<QpId> = (0..COUNT).map(connect_one).collect();
        let done = world.run_until(SECOND, |world| {
            let (now, engine) = (world.now, &mut world.ends[0].engine);
            while let Some(event) = engine.next_event() {
                let ConnEvent::ConnectFailed { qp, error: ConnectError::TimedOut, .. } = event
                else {
                    panic!("{event:?}")
                };
                assert!(waiting.remove(&qp), "reported once");
                engine.destroy_qp(now, qp);
            }
            waiting.is_empty()
        });
        let took = Duration::from_nanos(world.now.since(start));
        assert!(done && took < Duration::from_millis(100), "{} left, {took:?}", waiting.len());
        assert_eq!(world.ends[0].engine.connection_count(), 0);
    }
    // The peer gives up those that it has not heard of again.
    world.run_for(100 * SECOND);
    assert_eq!([0, 1].map(|end| world.ends[end].engine.connection_count()), [0, 0]);
    assert_eq!(world.ends[0].engine.deadline(), None, "no timer is left");
}
