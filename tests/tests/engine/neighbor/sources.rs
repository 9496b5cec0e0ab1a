//! Sources that are no hosts: no packet from one is answered.

use std::net::{IpAddr, SocketAddr};

use ferrowarp_proto::net::{arp, ndp};
use ferrowarp_proto::wire::ethernet::EthernetLink;
use ferrowarp_proto::wire::seq::Seq;
use ferrowarp_proto::wire::tcp::{Flags, FourTuple, Options};
use ferrowarp_tests::ip;
use ferrowarp_tests::manual_tcp_peer::TcpPeer;
use ferrowarp_tests::raw::PORT;
use ferrowarp_tests::sim::fragmenter::fragment;

use super::{MAC, NeighborFixture, PEER, Sent, ours};

/// Frames from `source` that are answered if it is a host.
fn requests(source: IpAddr) -> Vec<Vec<u8>> {
    let us = ours(source.is_ipv6());
    let link = EthernetLink::without_vlan(PEER);
    let mut frames = Vec::new();
    for (port, flags) in [(PORT, Flags::SYN), (1, Flags::SYN), (PORT, Flags::ACK)] {
        let tuple =
            FourTuple { local: (source, 5000 + port).into(), remote: SocketAddr::new(us, port) };
        let peer = TcpPeer::with_link(link, tuple, Seq(100));
        let frame = peer.build_frame(&peer.fields(flags, Options::default()), &[0; 600]);
        if flags == Flags::ACK {
            frames.extend(fragment(frame, 300, 7));
        } else {
            frames.push(frame);
        }
    }
    let mut solicit = vec![0; 90];
    match (source, us) {
        (IpAddr::V4(source), IpAddr::V4(us)) => {
            let echo = ip::icmp_message((8, 0), 0x0001_0001, &[1, 2, 3, 4, 5, 6, 7, 8]);
            let packet = ip::ipv4_packet(1, [source.octets(), us.octets()], 0, 0, &echo);
            frames.push([&MAC[..], &PEER, &[8, 0], &packet].concat());
            let len = arp::write_request(link, source, us, None, &mut solicit);
            solicit.truncate(len);
        }
        (IpAddr::V6(source), IpAddr::V6(us)) => {
            let mut echo = ip::icmp_message((128, 0), 0x0001_0001, &[1, 2, 3, 4, 5, 6, 7, 8]);
            echo[2..4].fill(0);
            let addresses = [source.octets(), us.octets()].concat();
            let sum = ip::transport_checksum(&addresses, 58, &echo);
            echo[2..4].copy_from_slice(&sum);
            let header = [0x60, 0, 0, 0, 0, u8::try_from(echo.len()).unwrap(), 58, 64];
            frames.push([&MAC[..], &PEER, &[0x86, 0xdd], &header, &addresses, &echo].concat());
            let len = ndp::write_solicitation(link, source, us, Some(MAC), &mut solicit);
            solicit.truncate(len);
        }
        _ => unreachable!("one family"),
    }
    frames.push(solicit);
    frames
}

#[test]
fn sources_that_are_no_hosts_get_no_answer() {
    let mut fx = NeighborFixture::announced(|_| {});
    let answers = |fx: &mut NeighborFixture, source: &str| {
        for frame in requests(source.parse().unwrap()) {
            fx.base.inject(frame);
        }
        fx.sent()
    };
    for host in ["198.18.0.2", "203.0.113.255", "2001:2::2", "2001:db8::9"] {
        let sent = answers(&mut fx, host);
        assert_eq!(sent.len(), 5, "{host}: {sent:?}");
    }
    let count = fx.base.engine.connection_count();
    for no_host in [
        // Broadcast and network address of the link, and everybody's.
        "198.18.0.255",
        "198.18.0.0",
        "255.255.255.255",
        "224.0.0.1",
        "239.1.2.3",
        "240.0.0.1",
        "127.0.0.1",
        "0.1.2.3",
        "198.18.0.1",
        "ff02::1",
        "ff05::2",
        "::1",
        // Any router of the link (RFC 4291 section 2.6.1).
        "2001:2::",
        "::198.18.0.2",
        "::ffff:198.18.0.2",
        "2001:2::1",
    ] {
        let sent = answers(&mut fx, no_host);
        assert!(sent.is_empty(), "{no_host}: {sent:?}");
    }
    // Without a sender address ARP is a probe for an address in use (RFC 5227).
    let sent = answers(&mut fx, "0.0.0.0");
    assert!(matches!(sent[..], [Sent::Advert(..)]), "{sent:?}");
    assert!(answers(&mut fx, "::").is_empty());
    assert_eq!(fx.base.engine.connection_count(), count);
}
