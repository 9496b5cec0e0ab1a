use core::net::{IpAddr, Ipv6Addr};

use super::{Interface, InterfaceConfig, Received};
use crate::counters::Counters;
use crate::device::Device;
use crate::device::test_device::{HeapFrame, MAC, TestDevice};
use crate::net::fragments::ReassemblyConfig;
use crate::net::neighbor::{Lookup, NeighborConfig};
use crate::net::next_hop::NextHop;
use crate::net::reply_limits::ReplyLimits;
use crate::net::routing::{InterfaceAddress, Route};
use crate::net::{arp, mld, ndp};
use crate::time::{Instant, MILLISECOND, SECOND};
use crate::wire::checksum;
use crate::wire::ethernet::{BROADCAST, EthernetLink};
use crate::wire::ip::IpFields;

/// Local address, a neighbor, a router, and a host behind it, of each family.
const HOSTS: [[&str; 4]; 2] = [
    ["198.18.0.1", "198.18.0.2", "198.18.0.254", "203.0.113.9"],
    ["2001:2::1", "2001:2::2", "2001:2::fe", "2001:db8::9"],
];
const PEER: EthernetLink = EthernetLink::without_vlan([2, 0, 0, 0, 0, 2]);
/// Offset of the MLD message in a frame.
const MLD_AT: usize = 14 + 40 + 8;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn v6(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

struct Fixture {
    net: Interface,
    device: TestDevice,
    counters: Counters,
    now: Instant,
}

impl Fixture {
    /// Has announced its addresses and reported their groups.
    fn new(addresses: &[&str]) -> Self {
        let mut fixture = Self::silent(addresses);
        fixture.poll();
        fixture
    }

    /// Has sent nothing yet.
    fn silent(addresses: &[&str]) -> Self {
        let device = TestDevice::new();
        let prefix = |&text: &&str| InterfaceAddress { ip: ip(text), prefix_len: 24 };
        let config = InterfaceConfig {
            addresses: &addresses.iter().map(prefix).collect::<Vec<_>>(),
            routes: &HOSTS.map(|[_, _, router, _]| Route::default_via(ip(router))),
            vlan: None,
            ip: IpFields::DEFAULT,
            static_neighbors: &[],
            neighbors: NeighborConfig::default(),
            fragments: ReassemblyConfig::default(),
            seed: 7,
        };
        let net = Interface::new(&config, &device.capabilities(), ReplyLimits::new(7, 1000));
        let now = Instant::from_nanos(SECOND);
        Self { net, device, counters: Counters::default(), now }
    }

    fn receive(&mut self, frame: &[u8]) -> Received {
        let frame = HeapFrame::new(frame);
        self.net.on_frame(self.now, &frame, &mut self.device, &mut self.counters)
    }

    /// Returns what is sent at the start of a pass.
    fn poll(&mut self) -> Vec<Vec<u8>> {
        self.net.poll_transmit(self.now, &mut self.device, &mut self.counters);
        self.sent()
    }

    /// Returns the targets of the ARP requests and solicitations that are due.
    fn solicited(&mut self) -> Vec<IpAddr> {
        self.net.send_solicits(self.now, &mut self.device, &mut self.counters);
        let target = |frame: Vec<u8>| {
            assert!(frame[..6] == BROADCAST || frame[..2] == [0x33, 0x33]);
            match message(&frame) {
                Message::Request(target) => target,
                Message::Reply(_) => panic!("{frame:?}"),
            }
        };
        self.sent().into_iter().map(target).collect()
    }

    fn sent(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.device.sent)
    }

    fn resolve(&mut self, hop: &mut NextHop, remote: &str) -> Lookup {
        self.net.resolve_next_hop(self.now, hop, (ip(remote), [0; 6]))
    }
}

/// An ARP or neighbor discovery message: the address it asks for, or that it gives.
#[derive(Debug, PartialEq, Eq)]
enum Message {
    Request(IpAddr),
    Reply(IpAddr),
}

fn message(frame: &[u8]) -> Message {
    if let Some(packet) = arp::parse(&frame[14..]) {
        let (sender, target) = (packet.sender.0.into(), packet.target.into());
        return if packet.is_request { Message::Request(target) } else { Message::Reply(sender) };
    }
    let address = |at: usize| Ipv6Addr::from(*frame[at..].first_chunk::<16>().unwrap());
    match ndp::parse(address(22), address(38), frame[21], &frame[54..]) {
        Some(ndp::Message::Solicitation { target, .. }) => Message::Request(target.into()),
        Some(ndp::Message::Advertisement { target, .. }) => Message::Reply(target.into()),
        None => panic!("{frame:?}"),
    }
}

/// A request of `PEER` for `target`, broadcast or multicast.
fn request(source: &str, target: &str) -> Vec<u8> {
    request_from(PEER, source, target)
}

fn request_from(link: EthernetLink, source: &str, target: &str) -> Vec<u8> {
    let mut out = [0; 128];
    let len = match (ip(source), ip(target)) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            arp::write_request(link, source, target, None, &mut out)
        }
        (IpAddr::V6(source), IpAddr::V6(target)) => {
            ndp::write_solicitation(link, source, target, None, &mut out)
        }
        _ => panic!("one family"),
    };
    out[..len].to_vec()
}

/// A reply of `PEER` that gives its hardware address for `source`.
fn reply(source: &str, target: &str) -> Vec<u8> {
    let mut out = [0; 128];
    let len = match (ip(source), ip(target)) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            arp::write_reply(PEER, source, (target, MAC), &mut out)
        }
        (IpAddr::V6(source), IpAddr::V6(target)) => {
            ndp::write_advertisement(PEER, source, Some((target, MAC)), &mut out)
        }
        _ => panic!("one family"),
    };
    out[..len].to_vec()
}

/// An MLDv1 query of a router for `group`.
fn mld_query(group: Ipv6Addr, delay_ms: u16) -> Vec<u8> {
    let mut frame = [0; 128];
    let len = mld::write_report_v1(PEER, v6("fe80::fe"), group, &mut frame);
    // A report differs in the type and has no delay.
    frame[MLD_AT] -= 1;
    frame[MLD_AT + 4..MLD_AT + 6].copy_from_slice(&delay_ms.to_be_bytes());
    let sum = u16::from_be_bytes([frame[MLD_AT + 2], frame[MLD_AT + 3]]);
    let sum = checksum::add(checksum::add(sum, 0x100), !delay_ms);
    frame[MLD_AT + 2..MLD_AT + 4].copy_from_slice(&sum.to_be_bytes());
    frame[..len].to_vec()
}

#[test]
fn next_hop_is_solicited_once_and_found_by_its_reply() {
    for [local, neighbor, router, remote] in HOSTS {
        let mut fx = Fixture::new(&[local]);
        let mut hops = [(); 3].map(|()| NextHop::unresolved());
        let remotes = [neighbor, neighbor, remote];
        for (hop, remote) in hops.iter_mut().zip(remotes) {
            assert_eq!(fx.resolve(hop, remote), Lookup::Pending);
        }
        assert_eq!(fx.solicited(), [ip(neighbor), ip(router)], "each neighbor once");
        assert!(fx.solicited().is_empty());
        assert!(fx.net.poll_timeout(true).unwrap() <= fx.now + SECOND, "the next solicitation");
        let epoch = fx.net.neighbor_epoch();
        assert!(matches!(fx.receive(&reply(router, local)), Received::Handled));
        assert_ne!(fx.net.neighbor_epoch(), epoch, "pending lookups are repeated");
        let found = core::array::from_fn(|at| fx.resolve(&mut hops[at], remotes[at]));
        assert_eq!(found, [Lookup::Pending, Lookup::Pending, Lookup::Found(PEER.mac)]);
        fx.now = fx.now + SECOND;
        assert_eq!(fx.solicited(), [ip(neighbor)], "repeated until it replies");
        assert_eq!(fx.counters.neighbor_solicits_out, 3);
    }
}

#[test]
fn only_requests_for_a_local_address_are_answered() {
    for [local, neighbor, router, _] in HOSTS {
        let mut fx = Fixture::new(&[local]);
        assert!(matches!(fx.receive(&request(neighbor, local)), Received::Handled));
        let sent = fx.sent();
        assert_eq!(sent.len(), 1);
        assert_eq!((&sent[0][..6], message(&sent[0])), (&PEER.mac[..], Message::Reply(ip(local))));
        let _ = fx.receive(&request(neighbor, router));
        let mut spoofed = request_from(EthernetLink::without_vlan(MAC), neighbor, local);
        assert!(matches!(fx.receive(&spoofed), Received::Dropped), "from our own address");
        spoofed[6..12].copy_from_slice(&PEER.mac);
        assert!(matches!(fx.receive(&spoofed), Received::Dropped), "that gives our own address");
        let mut misdelivered = reply(neighbor, local);
        misdelivered[..6].copy_from_slice(&PEER.mac);
        assert!(matches!(fx.receive(&misdelivered), Received::Dropped), "to another host");
        assert_eq!(fx.counters.address_conflicts, 0);
        assert!(matches!(fx.receive(&reply(local, local)), Received::Dropped));
        assert_eq!(fx.counters.address_conflicts, 1, "claimed by another host");
        assert!(fx.sent().is_empty());
    }
}

#[test]
fn groups_are_reported_at_the_start_and_when_queried() {
    // The first two have one solicited-node group.
    let mut fx = Fixture::silent(&["2001:2::1", "2001:2:0:1::1", "fe80::2"]);
    let groups = ["2001:2::1", "fe80::2"].map(|ours| ndp::solicited_node(v6(ours)));
    let sent = fx.poll();
    let (report, announced) = sent.split_last().unwrap();
    assert_eq!(announced.len(), 3, "each address");
    let check_report = |report: &[u8]| {
        assert_eq!(report[22..38], v6("fe80::2").octets(), "the source is of the link");
        assert_eq!((report[MLD_AT], report[MLD_AT + 7]), (143, 2));
        for (record, group) in report[MLD_AT + 8..].chunks(20).zip(groups) {
            assert_eq!((record[0], &record[4..]), (4, &group.octets()[..]));
        }
    };
    check_report(report);
    assert!(fx.poll().is_empty());
    let again = fx.net.poll_timeout(true).unwrap();
    assert!(again < fx.now + SECOND);
    fx.now = again;
    let sent = fx.poll();
    assert_eq!(sent.len(), 1, "the first may be lost");
    check_report(&sent[0]);
    assert_eq!(fx.net.poll_timeout(true), None);

    let foreign = ndp::solicited_node(v6("2001:2::3"));
    assert!(matches!(fx.receive(&mld_query(foreign, 100)), Received::Dropped));
    assert_eq!(fx.net.poll_timeout(true), None);
    assert!(matches!(fx.receive(&mld_query(groups[0], 100)), Received::Handled));
    let due = fx.net.poll_timeout(true).unwrap();
    assert!(due < fx.now + 100 * MILLISECOND);
    fx.now = due;
    let sent = fx.poll();
    assert_eq!(sent.len(), 2, "one report per group");
    for (report, group) in sent.iter().zip(groups) {
        assert_eq!((&report[..6], report[MLD_AT]), (&ndp::multicast_mac(group)[..], 131));
    }
}

#[test]
fn announcements_and_reports_wait_for_a_full_device() {
    for limit in [
        (|device: &mut TestDevice, count| device.tx_free = count) as fn(&mut TestDevice, usize),
        |device, count| device.free_frames = count,
    ] {
        let mut fx = Fixture::silent(&["198.18.0.1", "2001:2::1"]);
        limit(&mut fx.device, 0);
        assert!(fx.poll().is_empty());
        assert_eq!(fx.net.poll_timeout(true), Some(fx.now + 10 * MILLISECOND));
        fx.now = fx.now + 10 * MILLISECOND;
        limit(&mut fx.device, 1);
        let sent = fx.poll();
        assert_eq!(sent.len(), 1, "the first address, and no report");
        assert_eq!(message(&sent[0]), Message::Request(ip("198.18.0.1")));
        assert_eq!(fx.net.poll_timeout(true), Some(fx.now + 10 * MILLISECOND));
        fx.now = fx.now + 10 * MILLISECOND;
        limit(&mut fx.device, 9);
        let sent = fx.poll();
        assert_eq!(message(&sent[0]), Message::Reply(ip("2001:2::1")));
        assert_eq!((sent.len(), sent[1][MLD_AT], fx.counters.frames_out), (2, 143, 3));
    }
}

#[test]
fn reply_is_dropped_by_a_full_device_and_resolution_goes_on() {
    for [local, neighbor, ..] in HOSTS {
        let mut fx = Fixture::new(&[local]);
        fx.device.tx_free = 0;
        assert!(matches!(fx.receive(&request(neighbor, local)), Received::Handled));
        let mut hop = NextHop::unresolved();
        assert_eq!(fx.resolve(&mut hop, neighbor), Lookup::Pending);
        assert!(fx.solicited().is_empty());
        fx.device.tx_free = 9;
        assert!(fx.solicited().is_empty(), "repeated by its timer");
        fx.now = fx.now + SECOND;
        assert_eq!(fx.solicited(), [ip(neighbor)]);
        assert!(matches!(fx.receive(&reply(neighbor, local)), Received::Handled));
        assert_eq!(fx.resolve(&mut hop, neighbor), Lookup::Found(PEER.mac));
    }
}
