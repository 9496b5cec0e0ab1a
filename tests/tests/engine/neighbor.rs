//! ARP and Neighbor Discovery (ND) of one engine, frame by frame.

mod reachability;
mod sources;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ferrowarp_proto::device::ChecksumMode;
use ferrowarp_proto::engine::EngineConfig;
use ferrowarp_proto::mpa::startup::{self, Offer};
use ferrowarp_proto::net::neighbor::StaticNeighbor;
use ferrowarp_proto::net::routing::{InterfaceAddress, Route};
use ferrowarp_proto::net::{arp, ndp};
use ferrowarp_proto::time::{MILLISECOND, SECOND};
use ferrowarp_proto::verbs::cm::{CmError, ConnEvent, ConnParam, ConnectError};
use ferrowarp_proto::verbs::wc::QpId;
use ferrowarp_proto::wire::ethernet::{ETHERTYPE_ARP, EthernetLink};
use ferrowarp_proto::wire::ip::Packet;
use ferrowarp_proto::wire::seq::Seq;
use ferrowarp_proto::wire::tcp::{Flags, FourTuple, Options, Segment};
use ferrowarp_tests::frame::{Frame, is_membership_report};
use ferrowarp_tests::ip;
use ferrowarp_tests::manual_tcp_peer::{MACS, TcpPeer};
use ferrowarp_tests::raw::{PORT, SegmentFixture, device};
use ferrowarp_tests::sim::fragmenter::fragment;
use ferrowarp_tests::sim::pairs::qp_init;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

const PEER: [u8; 6] = MACS[0];
const MAC: [u8; 6] = MACS[1];
const MOVED: [u8; 6] = [2, 0, 0, 0, 0, 3];
const ROUTER: [u8; 6] = [2, 0, 0, 0, 0, 4];

/// Our address, on-link address `host`, and off-link address `host`, of either family.
fn ours(v6: bool) -> IpAddr {
    near(v6, 1)
}

fn near(v6: bool, host: u8) -> IpAddr {
    if v6 {
        IpAddr::V6(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, host.into()))
    } else {
        IpAddr::V4(Ipv4Addr::new(198, 18, 0, host))
    }
}

fn far(v6: bool, host: u8) -> IpAddr {
    if v6 {
        IpAddr::V6(Ipv6Addr::new(0x2001, 2, 0, 9, 0, 0, 0, host.into()))
    } else {
        IpAddr::V4(Ipv4Addr::new(198, 19, 0, host))
    }
}

/// A frame sent by the engine, as far as it matters here.
#[derive(Debug)]
enum Sent {
    /// ARP request or Neighbor Solicitation: target, and destination MAC address.
    Solicit(IpAddr, [u8; 6]),
    /// ARP reply or Neighbor Advertisement: target, and destination MAC address.
    Advert(IpAddr, [u8; 6]),
    Tcp(Segment, [u8; 6]),
    Other,
}

/// The engine, and its end of the link.
struct NeighborFixture {
    base: SegmentFixture,
    link: EthernetLink,
}

impl NeighborFixture {
    fn new(change: impl FnOnce(&mut EngineConfig)) -> Self {
        let mut config = EngineConfig::new(ours(false), 24, 7);
        config.addresses.push(InterfaceAddress { ip: ours(true), prefix_len: 64 });
        change(&mut config);
        let link = EthernetLink { mac: MAC, vlan: config.vlan };
        Self { base: SegmentFixture::with_device(device(512), config), link }
    }

    /// A fixture whose initial announcements have been sent.
    fn announced(change: impl FnOnce(&mut EngineConfig)) -> Self {
        let mut fx = Self::new(change);
        assert_eq!(fx.sent().len(), 2);
        fx
    }

    /// Drives the engine once; returns what it sent.
    fn sent(&mut self) -> Vec<Sent> {
        self.base.drive();
        let others = self.base.take_sent().into_iter().filter(|bytes| !is_membership_report(bytes));
        others.map(|bytes| self.read(bytes)).collect()
    }

    fn read(&self, bytes: Vec<u8>) -> Sent {
        let to = *bytes.first_chunk().unwrap();
        let l3 = self.link.header_len();
        assert_eq!(bytes[6..12], MAC);
        let ethertype = self.link.parse_header(&bytes).expect("of our VLAN").0;
        if ethertype == ETHERTYPE_ARP {
            let packet = arp::parse(&bytes[l3..]).unwrap();
            let is_question = packet.is_request && packet.target != packet.sender.0;
            return if is_question {
                Sent::Solicit(packet.target.into(), to)
            } else {
                Sent::Advert(packet.sender.0.into(), to)
            };
        }
        let packet = Packet::parse(&bytes, bytes.len(), l3, true).unwrap();
        if let (IpAddr::V6(src), IpAddr::V6(dst)) = (packet.src, packet.dst) {
            match ndp::parse(src, dst, packet.hop_limit, &bytes[packet.l4..packet.end]) {
                Some(ndp::Message::Solicitation { target, .. }) => {
                    return Sent::Solicit(target.into(), to);
                }
                Some(ndp::Message::Advertisement { target, .. }) => {
                    return Sent::Advert(target.into(), to);
                }
                None => {}
            }
        }
        let frame = Frame::new(bytes);
        let parsed = match self.link.vlan {
            None => Segment::parse(&frame, ChecksumMode::Software),
            Some(_) => Segment::parse_vlan(&frame, ChecksumMode::Software),
        };
        match parsed {
            Ok(segment) => Sent::Tcp(segment, to),
            Err(_) => Sent::Other,
        }
    }

    /// An advertisement of `ip` at `mac`: solicited by us, or to all nodes.
    fn advertise(&mut self, ip: IpAddr, mac: [u8; 6], answers: bool) {
        let link = EthernetLink { mac, ..self.link };
        let mut out = vec![0; 90];
        let len = match (ip, answers) {
            (IpAddr::V4(ip), true) => {
                let IpAddr::V4(us) = ours(false) else { unreachable!() };
                arp::write_reply(link, ip, (us, MAC), &mut out)
            }
            (IpAddr::V4(ip), false) => arp::write_announcement(link, ip, &mut out),
            (IpAddr::V6(ip), answers) => {
                let IpAddr::V6(us) = ours(true) else { unreachable!() };
                ndp::write_advertisement(link, ip, answers.then_some((us, MAC)), &mut out)
            }
        };
        out.truncate(len);
        self.base.inject(out);
    }

    fn qp(&mut self) -> QpId {
        self.base.engine.create_qp(qp_init(4, 4)).unwrap()
    }

    fn connect(&mut self, remote: IpAddr) -> QpId {
        let qp = self.qp();
        let remote = SocketAddr::new(remote, PORT);
        self.base.engine.connect(self.base.now, qp, remote, &ConnParam::default()).unwrap();
        qp
    }

    /// A peer with this MAC address.
    fn peer(&self, tuple: FourTuple, mac: [u8; 6]) -> TcpPeer {
        TcpPeer::with_link(EthernetLink { mac, ..self.link }, tuple, Seq(100))
    }

    /// Injects a segment without payload.
    fn inject(&self, peer: &TcpPeer, flags: Flags) {
        self.base.inject(peer.build_frame(&peer.fields(flags, Options::default()), &[]));
    }

    fn advance(&mut self, ns: u64) {
        self.base.now = self.base.now + ns;
    }
}

fn syn_of(sent: &[Sent]) -> Option<(&Segment, [u8; 6])> {
    sent.iter().find_map(|sent| match sent {
        Sent::Tcp(segment, to) if segment.flags.has(Flags::SYN) => Some((segment, *to)),
        _ => None,
    })
}

fn solicited(sent: &[Sent]) -> Vec<IpAddr> {
    let ip = |sent: &Sent| if let Sent::Solicit(ip, _) = sent { Some(*ip) } else { None };
    sent.iter().filter_map(ip).collect()
}

/// Many connections wait for one hardware address: a pass looks at a part of them, and the ones of
/// other neighbors have their turn.
#[test]
fn connections_that_await_an_address_are_resolved_in_turn() {
    const COUNT: usize = 1000;
    const PASS_MAX: usize = 64;
    let mut fx = NeighborFixture::announced(|config| {
        (config.qps_max, config.connections_max) = (COUNT + 8, COUNT + 8);
    });
    fx.connect(near(false, 3));
    fx.sent();
    fx.advertise(near(false, 3), ROUTER, true);
    assert!(syn_of(&fx.sent()).is_some());
    for _ in 0..COUNT {
        fx.connect(near(false, 2));
    }
    fx.sent();
    fx.advertise(near(false, 2), PEER, true);
    let (mut opened, mut passes) = (0, 0);
    while opened < COUNT {
        let is_syn = |sent: &&Sent| syn_of(std::slice::from_ref(*sent)).is_some();
        let sent = fx.sent();
        let (of_others, syns): (Vec<_>, Vec<_>) =
            sent.iter().filter(is_syn).partition(|sent| matches!(sent, Sent::Tcp(_, ROUTER)));
        assert!(syns.len() <= PASS_MAX, "{} in a pass", syns.len());
        assert!(passes != 1 || of_others.len() == 1, "a resolved neighbor waits for the others");
        if passes == 0 {
            fx.connect(near(false, 3));
        }
        opened += syns.len();
        passes += 1;
        assert!(passes < COUNT, "{opened} are opened");
    }
    assert!(passes >= COUNT / PASS_MAX, "{passes}");
}

#[test]
fn addresses_are_announced_at_startup() {
    let mut fx = NeighborFixture::new(|config| config.vlan = Some(5));
    fx.connect(near(false, 2));
    let sent = fx.sent();
    let Sent::Advert(first, [0xff, ..]) = sent[0] else { panic!("{sent:?}") };
    let Sent::Advert(second, [0x33, 0x33, ..]) = sent[1] else { panic!("{sent:?}") };
    assert_eq!((first, second), (ours(false), ours(true)));
    assert!(matches!(sent[2], Sent::Solicit(..)));
    fx.advance(SECOND / 2);
    assert!(fx.sent().is_empty(), "once");
}

#[test]
fn syn_waits_for_neighbor_resolution() {
    for v6 in [false, true] {
        for vlan in [None, Some(4094)] {
            let mut fx = NeighborFixture::announced(|config| config.vlan = vlan);
            fx.connect(near(v6, 2));
            assert_eq!(solicited(&fx.sent()), [near(v6, 2)]);
            fx.advance(300 * MILLISECOND);
            assert!(fx.sent().is_empty(), "nothing goes nowhere");
            fx.advertise(near(v6, 2), PEER, true);
            let sent = fx.sent();
            let (syn, to) = syn_of(&sent).expect("the SYN at once");
            assert_eq!((syn.tuple.remote.ip(), to), (ours(v6), PEER));
            assert_eq!(sent.len(), 1);
        }
    }
}

#[test]
fn handshake_follows_a_changed_link_address() {
    for v6 in [false, true] {
        let mut fx = NeighborFixture::announced(|_| {});
        fx.connect(near(v6, 2));
        fx.sent();
        fx.advertise(near(v6, 2), PEER, true);
        assert_eq!(syn_of(&fx.sent()).map(|(_, to)| to), Some(PEER));
        fx.advertise(near(v6, 2), MOVED, false);
        fx.sent();
        let again = (0..30).find_map(|_| {
            fx.advance(100 * MILLISECOND);
            syn_of(&fx.sent()).map(|(_, to)| to)
        });
        assert_eq!(again, Some(MOVED));
    }
}

#[test]
fn arp_replies_are_rate_limited() {
    let mut fx = NeighborFixture::announced(|_| {});
    let (IpAddr::V4(us), IpAddr::V4(them)) = (ours(false), near(false, 2)) else { unreachable!() };
    let mut request = vec![0; 42];
    arp::write_request(EthernetLink::without_vlan(PEER), them, us, None, &mut request);
    let mut answered = 0;
    for _ in 0..60 {
        for _ in 0..32 {
            fx.base.inject(request.clone());
        }
        answered += fx.sent().len();
    }
    assert_eq!(answered, 1000);
}

#[test]
fn unreachable_neighbors_do_not_delay_others() {
    let mut fx = NeighborFixture::announced(|_| {});
    let dead: Vec<QpId> = (10..60).map(|host| fx.connect(near(host % 2 == 0, host))).collect();
    fx.connect(near(false, 2));
    fx.connect(near(true, 2));
    let mut targets = solicited(&fx.sent());
    targets.sort_unstable();
    targets.dedup();
    assert_eq!(targets.len(), 52, "all at once");
    fx.advertise(near(true, 2), PEER, true);
    fx.advertise(near(false, 2), PEER, true);
    assert_eq!(fx.sent().iter().filter(|sent| matches!(sent, Sent::Tcp(..))).count(), 2);
    for _ in 0..60 {
        fx.advance(100 * MILLISECOND);
        fx.sent();
    }
    let mut failed = Vec::new();
    while let Some(ConnEvent::ConnectFailed { qp, error, .. }) = fx.base.engine.next_event() {
        assert_eq!(error, ConnectError::Unreachable);
        failed.push(qp);
    }
    failed.sort_unstable_by_key(|qp| qp.index);
    assert_eq!(failed, dead);
    assert_eq!(fx.base.engine.counters().neighbors_unreachable, 50);
    assert_eq!(fx.base.engine.connection_count(), 2);
}

#[test]
fn next_hop_is_the_longest_prefix_match() {
    for v6 in [false, true] {
        let mut fx = NeighborFixture::announced(|config| {
            config.routes = vec![
                Route::default_via(near(v6, 253)),
                Route::new(far(v6, 0), if v6 { 64 } else { 24 }, near(v6, 254)),
            ];
        });
        fx.connect(far(v6, 7));
        assert_eq!(solicited(&fx.sent()), [near(v6, 254)]);
        fx.advertise(near(v6, 254), ROUTER, true);
        let sent = fx.sent();
        let (syn, to) = syn_of(&sent).unwrap();
        assert_eq!((to, syn.tuple.local), (ROUTER, SocketAddr::new(far(v6, 7), PORT)));
    }
}

/// The route's MTU limits the MSS, and a router with a known hardware address is not resolved.
#[test]
fn route_has_an_mtu_and_a_static_next_hop() {
    for v6 in [false, true] {
        let mut fx = NeighborFixture::announced(|config| {
            let router = near(v6, 254);
            config.routes = vec![Route::default_via(router).mtu(1300)];
            config.static_neighbors = vec![StaticNeighbor { ip: router, mac: ROUTER }];
        });
        fx.advertise(near(v6, 254), MOVED, true);
        fx.connect(far(v6, 7));
        let sent = fx.sent();
        assert!(solicited(&sent).is_empty());
        let (syn, to) = syn_of(&sent).unwrap();
        assert_eq!((to, syn.options.mss), (ROUTER, Some(if v6 { 1240 } else { 1260 })));
        fx.connect(near(v6, 2));
        assert_eq!(solicited(&fx.sent()), [near(v6, 2)]);
        fx.advertise(near(v6, 2), PEER, true);
        let sent = fx.sent();
        let (syn, _) = syn_of(&sent).unwrap();
        assert_eq!(syn.options.mss, Some(if v6 { 1440 } else { 1460 }), "the link has the port's");
    }
}

#[test]
fn connect_without_a_route_is_refused() {
    let mut fx = NeighborFixture::announced(|_| {});
    let qp = fx.qp();
    let now = fx.base.now;
    let mut refuse = |remote: IpAddr, local_address| {
        let mut param = ConnParam::default();
        param.local_address = local_address;
        fx.base.engine.connect(now, qp, SocketAddr::new(remote, 1), &param).unwrap_err()
    };
    for remote in [far(false, 1), far(true, 1), near(false, 255)] {
        assert_eq!(refuse(remote, None), CmError::Unreachable, "{remote}");
    }
    assert_eq!(refuse(near(false, 2), Some(near(false, 9))), CmError::NotLocal);
    assert_eq!(refuse(near(false, 2), Some(ours(true))), CmError::Unreachable);
    let mut param = ConnParam::default();
    param.local_address = Some(ours(false));
    let mapped = SocketAddr::new("::ffff:198.18.0.2".parse().unwrap(), 1);
    assert_eq!(fx.base.engine.connect(now, qp, mapped, &param), Ok(()));
    assert_eq!(solicited(&fx.sent()), [near(false, 2)]);
}

#[test]
fn solicitations_are_answered_only_in_our_vlan() {
    for vlan in [None, Some(7)] {
        let mut fx = NeighborFixture::announced(|config| config.vlan = vlan);
        let ask = |fx: &mut NeighborFixture, link: EthernetLink, target: IpAddr, source: IpAddr| {
            let mut out = vec![0; 90];
            let len = match (target, source) {
                (IpAddr::V4(target), IpAddr::V4(source)) => {
                    arp::write_request(link, source, target, None, &mut out)
                }
                (IpAddr::V6(target), IpAddr::V6(source)) => {
                    ndp::write_solicitation(link, source, target, None, &mut out)
                }
                _ => unreachable!(),
            };
            out.truncate(len);
            fx.base.inject(out);
            fx.sent()
        };
        let link = EthernetLink { mac: PEER, vlan };
        for v6 in [false, true] {
            let sent = ask(&mut fx, link, ours(v6), near(v6, 2));
            assert!(
                matches!(sent[..], [Sent::Advert(ip, PEER)] if ip == ours(v6)),
                "{vlan:?} {sent:?}"
            );
            assert!(ask(&mut fx, link, near(v6, 3), near(v6, 2)).is_empty());
            let group = EthernetLink { mac: [3, 0, 0, 0, 0, 2], ..link };
            assert!(ask(&mut fx, group, ours(v6), near(v6, 2)).is_empty());
            let other = if vlan.is_some() { None } else { Some(7) };
            assert!(
                ask(&mut fx, EthernetLink { vlan: other, ..link }, ours(v6), near(v6, 2))
                    .is_empty()
            );
        }
        let IpAddr::V4(us) = ours(false) else { unreachable!() };
        let probe = ask(&mut fx, link, us.into(), Ipv4Addr::UNSPECIFIED.into());
        assert!(matches!(probe[..], [Sent::Advert(..)]), "a probe of our address gets a reply");
    }
}

#[test]
fn solicitation_from_a_group_mac_is_ignored() {
    let mut fx = NeighborFixture::announced(|_| {});
    let link = EthernetLink::without_vlan([0xff; 6]);
    let (IpAddr::V4(us4), IpAddr::V4(them4)) = (ours(false), near(false, 2)) else { panic!() };
    let (IpAddr::V6(us6), IpAddr::V6(them6)) = (ours(true), near(true, 2)) else { panic!() };
    let mut frames = [vec![0; 42], vec![0; 86]];
    arp::write_request(link, them4, us4, None, &mut frames[0]);
    ndp::write_solicitation(link, them6, us6, None, &mut frames[1]);
    for mut frame in frames {
        // Only the link-layer address in the message is wrong, not the frame's source.
        frame[6..12].copy_from_slice(&PEER);
        fx.base.inject(frame);
    }
    assert!(fx.sent().is_empty());
    assert_eq!(fx.base.engine.counters().frames_dropped, 2);
}

#[test]
fn rst_goes_to_the_source_link_address() {
    let mut fx = NeighborFixture::announced(|_| {});
    for v6 in [false, true] {
        let to = SocketAddr::new(ours(v6), 1);
        let tuple = FourTuple { local: (near(v6, 2), 5000).into(), remote: to };
        fx.inject(&fx.peer(tuple, PEER), Flags::ACK);
        let sent = fx.sent();
        let [Sent::Tcp(reset, PEER)] = &sent[..] else { panic!("{sent:?}") };
        assert!(reset.flags.has(Flags::RST));
        // No RST to an impossible source address, nor for a destination that is not ours.
        let not_ours = FourTuple { remote: (near(v6, 77), 1).into(), ..tuple };
        let from_us = FourTuple { local: (ours(v6), 2).into(), ..tuple };
        for (tuple, mac) in [(not_ours, PEER), (from_us, PEER), (tuple, [3, 0, 0, 0, 0, 1])] {
            fx.inject(&fx.peer(tuple, mac), Flags::ACK);
        }
        assert!(fx.sent().is_empty());
    }
    assert_eq!(fx.base.engine.counters().neighbor_solicits_out, 0);
}

#[test]
fn echo_replies_are_rate_limited() {
    let mut fx = NeighborFixture::announced(|_| {});
    let echo = ip::icmp_message((8, 0), 0x0001_0001, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let packet = ip::ipv4_packet(1, [[198, 18, 0, 2], [198, 18, 0, 1]], 0, 0, &echo);
    let ping = [&MAC[..], &PEER, &[8, 0], &packet].concat();
    let mut answered = 0;
    for _ in 0..100 {
        for _ in 0..32 {
            fx.base.inject(ping.clone());
        }
        answered += fx.sent().iter().filter(|sent| matches!(sent, Sent::Other)).count();
    }
    assert_eq!(answered, 1000);
    fx.advance(SECOND);
    // To a multicast or broadcast address, or from one.
    for (at, bytes) in [(26, [224, 0, 0, 1]), (30, [198, 18, 0, 255]), (30, [224, 0, 0, 1])] {
        let mut bad = ping.clone();
        bad[at..at + 4].copy_from_slice(&bytes);
        ip::set_checksum(&mut bad[14..34], 10);
        fx.base.inject(bad);
    }
    let mut everybody = ping.clone();
    everybody[..6].fill(0xff);
    fx.base.inject(everybody);
    assert!(fx.sent().is_empty());
    fx.base.inject(ping);
    assert_eq!(fx.sent().len(), 1);
}

/// A valid frame of every kind that an off-path attacker can send.
fn seeds(vlan: Option<u16>) -> Vec<Vec<u8>> {
    let link = EthernetLink { mac: PEER, vlan };
    let mut frames = Vec::new();
    let mut note = |write: &dyn Fn(&mut [u8]) -> usize| {
        let mut out = vec![0; 90];
        let len = write(&mut out);
        out.truncate(len);
        frames.push(out);
    };
    let (IpAddr::V4(us4), IpAddr::V4(them4)) = (ours(false), near(false, 2)) else { panic!() };
    let (IpAddr::V6(us6), IpAddr::V6(them6)) = (ours(true), near(true, 2)) else { panic!() };
    note(&|out| arp::write_request(link, them4, us4, None, out));
    note(&|out| arp::write_reply(link, them4, (us4, MAC), out));
    note(&|out| arp::write_announcement(link, them4, out));
    note(&|out| ndp::write_solicitation(link, them6, us6, None, out));
    note(&|out| ndp::write_solicitation(link, them6, us6, Some(MAC), out));
    note(&|out| ndp::write_advertisement(link, them6, Some((us6, MAC)), out));
    note(&|out| ndp::write_advertisement(link, them6, None, out));
    for v6 in [false, true] {
        let tuple =
            FourTuple { local: (near(v6, 2), 5000).into(), remote: (ours(v6), PORT).into() };
        let peer = TcpPeer::with_link(link, tuple, Seq(0));
        let mut bytes = peer.build_frame(&peer.fields(Flags::SYN, Options::default()), &[0; 600]);
        frames.extend(fragment(bytes.clone(), 300, 7));
        let l3 = link.header_len();
        // The same as an echo request, whose checksum is wrong.
        bytes[l3 + if v6 { 6 } else { 9 }] = if v6 { 58 } else { 1 };
        bytes[l3 + if v6 { 40 } else { 20 }] = if v6 { 128 } else { 8 };
        frames.push(bytes);
    }
    frames
}

#[test]
fn corrupted_frames_are_survived() {
    let mut rng = SmallRng::seed_from_u64(1);
    for vlan in [None, Some(7)] {
        let seeds = seeds(vlan);
        let mut fx = NeighborFixture::announced(|config| config.vlan = vlan);
        for host in 2..6 {
            fx.connect(near(host % 2 == 0, host));
        }
        for round in 0..20_000 {
            let mut frame = seeds[rng.random_range(0..seeds.len())].clone();
            for _ in 0..rng.random_range(0..4) {
                let at = rng.random_range(0..frame.len());
                frame[at] = if rng.random_bool(0.5) { rng.random() } else { frame[at] ^ 1 };
            }
            if rng.random_bool(0.1) {
                frame.truncate(rng.random_range(0..=frame.len()));
            }
            fx.base.inject(frame);
            if round % 16 == 0 {
                fx.base.drive();
                fx.base.engine.device().outbound.borrow_mut().clear();
                fx.advance(rng.random_range(0..20) * MILLISECOND);
                while fx.base.engine.next_event().is_some() {}
            }
        }
        let counters = fx.base.engine.counters();
        assert!(counters.packets_reassembled > 0 && counters.frames_dropped > 0, "{counters:?}");
        // The engine still works.
        fx.advance(20 * SECOND);
        fx.sent();
        fx.advertise(near(false, 9), PEER, true);
        fx.connect(near(false, 9));
        assert!(solicited(&fx.sent()).contains(&near(false, 9)));
        fx.advertise(near(false, 9), PEER, true);
        assert_eq!(syn_of(&fx.sent()).map(|(_, to)| to), Some(PEER));
    }
}
