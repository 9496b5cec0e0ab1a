//! Neighbors: the host asks and answers once, and what one shard learns all know.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferrowarp_proto::net::routing::InterfaceAddress;
use ferrowarp_proto::net::{arp, ndp};
use ferrowarp_proto::time::{MILLISECOND, SECOND};
use ferrowarp_proto::wire::ethernet::EthernetLink;
use ferrowarp_proto::wire::ip::Packet;
use ferrowarp_proto::wire::tcp::Flags;
use ferrowarp_tests::frame::is_membership_report;
use ferrowarp_tests::ip;
use ferrowarp_tests::manual_tcp_peer::MACS;
use ferrowarp_tests::sim::world::{address, address_v6};

use super::{COUNT, ShardsFixture};

const ARP: [u8; 2] = [8, 6];

fn v4(end: usize) -> Ipv4Addr {
    match address(end) {
        IpAddr::V4(ip) => ip,
        IpAddr::V6(_) => unreachable!(),
    }
}

fn v6(end: usize) -> Ipv6Addr {
    match address_v6(end) {
        IpAddr::V6(ip) => ip,
        IpAddr::V4(_) => unreachable!(),
    }
}

/// ARP packets among what was sent, as requests or replies.
fn arp_count(sent: &[(usize, Vec<u8>)], is_request: bool) -> usize {
    let packets = sent.iter().filter(|(_, frame)| frame[12..14] == ARP);
    packets.filter(|(_, frame)| (frame[21] == 1) == is_request).count()
}

/// The peer's ARP request for the address of the host.
fn request() -> Vec<u8> {
    let mut frame = vec![0; 60];
    let link = EthernetLink::without_vlan(MACS[0]);
    let len = arp::write_request(link, v4(0), v4(1), None, &mut frame);
    frame.truncate(len);
    frame
}

#[test]
fn addresses_are_announced_once() {
    let mut fx = ShardsFixture::unannounced(COUNT, |_, _| {});
    let sent = fx.process();
    assert_eq!((sent.len(), arp_count(&sent, true)), (1, 1), "{sent:?}");
    assert_eq!(sent[0].0, 0, "the lead");
    fx.now = fx.now + SECOND;
    assert_eq!(fx.process(), []);
}

#[test]
fn arp_request_on_any_shard_is_answered_once() {
    let mut fx = ShardsFixture::new(|_| {});
    for shard in 0..COUNT {
        fx.inject(shard, request());
        let sent = fx.process();
        assert_eq!((sent.len(), arp_count(&sent, false)), (1, 1), "{sent:?}");
    }
    assert_eq!(fx.end.count(|of| of.frames_forwarded), 0, "those are segments");
}

#[test]
fn neighbor_solicitation_on_any_shard_is_answered_once() {
    let (ours, theirs) = (v6(1), v6(0));
    let mut fx = ShardsFixture::unannounced(COUNT, |config, _| {
        config.addresses.push(InterfaceAddress { ip: ours.into(), prefix_len: 64 });
    });
    let sent = fx.process();
    assert!(sent.iter().all(|&(shard, _)| shard == 0), "the lead announces and reports");
    assert_eq!(sent.iter().filter(|(_, frame)| is_membership_report(frame)).count(), 1);
    let mut request = vec![0; 128];
    let link = EthernetLink::without_vlan(MACS[0]);
    let len = ndp::write_solicitation(link, theirs, ours, None, &mut request);
    request.truncate(len);
    for shard in 0..COUNT {
        fx.inject(shard, request.clone());
        let sent = fx.process();
        assert_eq!(sent.len(), 1, "{sent:?}");
        let packet = Packet::parse(&sent[0].1, sent[0].1.len(), 14, true).unwrap();
        let message = &sent[0].1[packet.l4..packet.end];
        let advert = ndp::parse(ours, theirs, packet.hop_limit, message);
        assert!(
            matches!(advert, Some(ndp::Message::Advertisement { target, .. }) if target == ours),
            "{advert:?}"
        );
    }
}

#[test]
fn shards_that_need_a_neighbor_ask_once() {
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2]] {
        let mut fx = ShardsFixture::new(|_| {});
        let mut requests = 0;
        for shard in order {
            fx.connect(shard, (address(0), 9).into());
            requests += arp_count(&fx.process(), true);
            fx.now = fx.now + MILLISECOND;
        }
        assert_eq!(requests, 1, "{order:?}");
        // Without a reply all ask again, once.
        fx.now = fx.now + SECOND;
        assert_eq!(arp_count(&fx.process(), true), 1, "{order:?}");
    }
}

#[test]
fn reply_on_any_shard_resolves_the_neighbor_for_all() {
    for shard in 0..COUNT {
        let mut fx = ShardsFixture::new(|_| {});
        for from in 0..COUNT {
            fx.connect(from, (address(0), 9).into());
        }
        let sent = fx.process();
        let (_, request) = sent.iter().find(|(_, frame)| frame[12..14] == ARP).expect("a request");
        fx.inject(shard, ip::arp_reply(request, MACS[0]).unwrap());
        let syns = fx.segments();
        assert_eq!(syns.len(), COUNT, "one of each shard");
        assert!(syns.iter().all(|segment| segment.flags == Flags::SYN));
        // Known by now: nobody asks.
        for from in 0..COUNT {
            fx.connect(from, (address(0), 10).into());
        }
        let sent = fx.process();
        assert_eq!((sent.len(), arp_count(&sent, true)), (COUNT, 0));
    }
}

#[test]
fn another_shard_answers_and_asks_after_the_lead_has_died() {
    let mut fx = ShardsFixture::new(|_| {});
    fx.end.kill_shard(0);
    fx.process();
    for shard in 1..COUNT {
        fx.inject(shard, request());
        let sent = fx.process();
        assert_eq!((sent.len(), arp_count(&sent, false)), (1, 1), "{sent:?}");
        assert_eq!(sent[0].0, 1, "the live shard with the lowest number");
    }
    fx.connect(3, (Ipv4Addr::new(198, 18, 0, 77), 9).into());
    assert_eq!(arp_count(&fx.process(), true), 1);
}
