//! Active opens: source address and port, the time they may take, and why they fail.

use std::net::{IpAddr, SocketAddr};

use ferrowarp_proto::time::SECOND;
use ferrowarp_proto::verbs::cm::{CmError, ConnEvent, ConnParam, ListenAddr};
use ferrowarp_proto::verbs::wc::QpId;
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
    let v6: IpAddr = "::".parse().unwrap();
    world.ends[0].engine.listen((v6, LOCAL), 1).unwrap();
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
        ("::", CmError::Unreachable),
    ] {
        assert_eq!(connect(&mut world, remote, &from(ip)), Err(error), "{ip}");
    }
    let port_0 = SocketAddr::new(remote.ip(), 0);
    assert_eq!(connect(&mut world, port_0, &from_port(LOCAL)), Err(CmError::RemotePort));
    // None of them holds the port. Unspecified: as the route selects.
    let ours = address(0).to_string();
    for (port, ip) in [(0, "0.0.0.0"), (1, &*ours), (2, "::ffff:0.0.0.0")] {
        establish(&mut world, remote, &from(ip).local_port(LOCAL + port));
    }
}
