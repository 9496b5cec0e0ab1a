//! Link-local addresses of IPv6, and their zones.

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};

use ferrowarp::{Access, CmError, Config, ConnParam, DriveMode, InterfaceAddress};

use crate::support::*;

fn link_local(host: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, host)
}

fn endpoint_config(host: u8) -> Config {
    let ip = link_local(host.into()).into();
    config(host, DriveMode::Inline).address(InterfaceAddress { ip, prefix_len: 64 })
}

#[test]
fn link_local_peers_are_reached_without_a_scope_id() {
    let (left, right) = ring_pair(endpoint_config(1), endpoint_config(2)).unwrap();
    let (left, right) = (Endpoint::new(left), Endpoint::new(right));
    let listener = right.context.listen(PORT, 1).unwrap();
    let (a, b) = (left.qp(), right.qp());
    let remote = |scope_id| SocketAddr::V6(SocketAddrV6::new(link_local(2), PORT, 0, scope_id));
    // `ring` has no interface in the kernel, and so no zone.
    let other = a.connect(remote(1), ConnParam::new());
    assert_eq!(other, Err(CmError::OtherZone(1)));
    assert!(CmError::OtherZone(1).to_string().starts_with("scope ID 1 is not that of"));
    for scope_id in [1, u32::MAX] {
        let SocketAddr::V6(own) = remote(scope_id) else { panic!() };
        for addr in [own, SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 0, 0, scope_id)] {
            let refused = right.context.listen(addr, 1).err();
            assert_eq!(refused, Some(CmError::OtherZone(scope_id)), "{addr}");
        }
    }
    a.connect(remote(0), param(b"")).unwrap();
    listener.accept_timeout(TIMEOUT).expect("a request").accept(&b, param(b"")).unwrap();
    a.wait_established(TIMEOUT).unwrap();
    let (source, sink) = (left.mr(64, Access::LOCAL_READ), right.mr(64, Access::REMOTE_WRITE));
    source.write(0, &pattern(64, 1));
    write(&a, 1, source.sge(0, 64), &sink, 0).unwrap();
    drive_until(&left.context, &right.context, || contents(&sink) == pattern(64, 1));
}
