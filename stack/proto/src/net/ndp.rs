//! Neighbor discovery over `smoltcp::wire` (RFC 4861): neighbor solicitations and advertisements.
//! Redirects and router advertisements are ignored: routes are configured.

use core::net::Ipv6Addr;

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, HardwareAddress, Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv6Packet, Ipv6Repr,
    NdiscNeighborFlags, NdiscRepr, RawHardwareAddress,
};

use crate::wire::ethernet::{ETHERTYPE_IPV6, EthernetLink};

/// Hop limit of all neighbor discovery messages: no router has forwarded them.
const HOP_LIMIT: u8 = 255;
/// All-nodes multicast address (link-local scope).
pub(super) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Bytes of the IPv6 header and of a message with one option.
const PACKET_LEN: usize = 40 + 32;

/// Neighbor discovery message that passed all checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Neighbor Solicitation for `target`.
    Solicitation {
        /// Target address.
        target: Ipv6Addr,
        /// Source address; `None` if unspecified: duplicate address detection.
        source: Option<Ipv6Addr>,
        /// Source link-layer address option, if present.
        mac: Option<[u8; 6]>,
    },
    /// Neighbor Advertisement of `target`.
    Advertisement {
        /// Target address.
        target: Ipv6Addr,
        /// Target link-layer address option; may be absent in the answer to a unicast solicitation.
        mac: Option<[u8; 6]>,
        /// Solicited flag (S).
        solicited: bool,
        /// Override flag (O).
        overrides: bool,
    },
}

/// Parses an ICMPv6 message from `src` to `dst` with this hop limit. `None` if it is neither of the
/// two messages above or violates RFC 4861 section 7.1.
#[must_use]
pub fn parse(src: Ipv6Addr, dst: Ipv6Addr, hop_limit: u8, message: &[u8]) -> Option<Message> {
    if hop_limit != HOP_LIMIT || message.len() < 24 {
        return None;
    }
    let packet = Icmpv6Packet::new_checked(message).ok()?;
    let Icmpv6Repr::Ndisc(repr) =
        Icmpv6Repr::parse(&src, &dst, &packet, &ChecksumCapabilities::default()).ok()?
    else {
        return None;
    };
    match repr {
        NdiscRepr::NeighborSolicit { target_addr: target, lladdr } if is_unicast(target) => {
            let mac = lladdr.and_then(to_mac);
            if !src.is_unspecified() {
                return Some(Message::Solicitation { target, source: Some(src), mac });
            }
            let is_proper = dst == solicited_node(target) && lladdr.is_none();
            is_proper.then_some(Message::Solicitation { target, source: None, mac: None })
        }
        NdiscRepr::NeighborAdvert { flags, target_addr: target, lladdr } if is_unicast(target) => {
            let solicited = flags.contains(NdiscNeighborFlags::SOLICITED);
            let overrides = flags.contains(NdiscNeighborFlags::OVERRIDE);
            let is_proper = !(solicited && dst.is_multicast());
            let mac = lladdr.and_then(to_mac);
            is_proper.then_some(Message::Advertisement { target, mac, solicited, overrides })
        }
        _ => None,
    }
}

/// Writes to `out` the Neighbor Solicitation for `target` from `source`; returns the length of the
/// frame. It is sent to `mac`, or to the solicited-node multicast address if that is `None`.
///
/// # Panics
/// If `out` is shorter than the frame; 90 bytes always suffice.
pub fn write_solicitation(
    link: EthernetLink,
    source: Ipv6Addr,
    target: Ipv6Addr,
    mac: Option<[u8; 6]>,
    out: &mut [u8],
) -> usize {
    let group = solicited_node(target);
    let (dst, destination) = match mac {
        Some(mac) => (target, mac),
        None => (group, multicast_mac(group)),
    };
    let repr = NdiscRepr::NeighborSolicit { target_addr: target, lladdr: Some(to_raw(link.mac)) };
    write(link, (source, dst), destination, repr, out)
}

/// Writes to `out` the Neighbor Advertisement for `ours`: solicited, to `solicitor`, or
/// unsolicited, to all nodes. The Override flag is set. Returns the length of the frame.
///
/// # Panics
/// As [`write_solicitation`].
pub fn write_advertisement(
    link: EthernetLink,
    ours: Ipv6Addr,
    solicitor: Option<(Ipv6Addr, [u8; 6])>,
    out: &mut [u8],
) -> usize {
    let (dst, destination) = solicitor.unwrap_or((ALL_NODES, multicast_mac(ALL_NODES)));
    let solicited = if solicitor.is_some() {
        NdiscNeighborFlags::SOLICITED
    } else {
        NdiscNeighborFlags::empty()
    };
    let repr = NdiscRepr::NeighborAdvert {
        flags: solicited | NdiscNeighborFlags::OVERRIDE,
        target_addr: ours,
        lladdr: Some(to_raw(link.mac)),
    };
    write(link, (ours, dst), destination, repr, out)
}

fn write(
    link: EthernetLink,
    (src, dst): (Ipv6Addr, Ipv6Addr),
    destination: [u8; 6],
    repr: NdiscRepr<'_>,
    out: &mut [u8],
) -> usize {
    let packet = link.write_header(destination, ETHERTYPE_IPV6, out);
    let repr = Icmpv6Repr::Ndisc(repr);
    let ip = Ipv6Repr {
        src_addr: src,
        dst_addr: dst,
        next_header: IpProtocol::Icmpv6,
        payload_len: repr.buffer_len(),
        hop_limit: HOP_LIMIT,
    };
    let mut packet = Ipv6Packet::new_unchecked(&mut packet[..PACKET_LEN]);
    ip.emit(&mut packet);
    let mut message = Icmpv6Packet::new_unchecked(packet.payload_mut());
    repr.emit(&src, &dst, &mut message, &ChecksumCapabilities::default());
    link.header_len() + PACKET_LEN
}

/// Solicited-node multicast address of `ip` (RFC 4291 section 2.7.1).
#[must_use]
pub const fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let bits = ip.to_bits() & 0x00ff_ffff;
    Ipv6Addr::from_bits(0xff02_0000_0000_0000_0000_0001_ff00_0000 | bits)
}

/// Ethernet address of a multicast group (RFC 2464 section 7).
#[must_use]
pub const fn multicast_mac(group: Ipv6Addr) -> [u8; 6] {
    let [.., m0, m1, m2, m3] = group.octets();
    [0x33, 0x33, m0, m1, m2, m3]
}

/// True if a host with the address `ours` has joined `group`.
#[must_use]
pub fn listens_to(ours: Ipv6Addr, group: Ipv6Addr) -> bool {
    group == ALL_NODES || group == solicited_node(ours)
}

fn is_unicast(ip: Ipv6Addr) -> bool {
    !(ip.is_multicast() || ip.is_unspecified())
}

fn to_raw(mac: [u8; 6]) -> RawHardwareAddress {
    HardwareAddress::Ethernet(EthernetAddress(mac)).into()
}

fn to_mac(address: RawHardwareAddress) -> Option<[u8; 6]> {
    address.as_bytes().try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1);
    const PEER: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0xab, 0xcdef);
    const LINK: EthernetLink = EthernetLink::without_vlan([2, 0, 0, 0, 0, 1]);
    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

    fn parse_frame(frame: &[u8]) -> Option<Message> {
        let address = |at: usize| Ipv6Addr::from(*frame[at..].first_chunk::<16>().unwrap());
        parse(address(22), address(38), frame[21], &frame[54..])
    }

    /// Recomputes the checksum.
    fn fill_checksum(frame: &mut [u8]) {
        let address = |at: usize| Ipv6Addr::from(*frame[at..].first_chunk::<16>().unwrap());
        let (src, dst) = (address(22), address(38));
        Icmpv6Packet::new_unchecked(&mut frame[54..]).fill_checksum(&src, &dst);
    }

    #[test]
    fn solicitation_matches_golden_bytes() {
        let mut out = [0; 90];
        assert_eq!(write_solicitation(LINK, LOCAL, PEER, None, &mut out), 86);
        let expected: &[u8] = &[
            0x33, 0x33, 0xff, 0xab, 0xcd, 0xef, 2, 0, 0, 0, 0, 1, 0x86, 0xdd, // Ethernet
            0x60, 0, 0, 0, 0, 32, 58, 255, // IPv6
            0x20, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, // source
            0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0xab, 0xcd, 0xef, // destination
            135, 0, 0xa5, 0x97, 0, 0, 0, 0, // ICMPv6
            0x20, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xab, 0xcd, 0xef, // target
            1, 1, 2, 0, 0, 0, 0, 1, // source link-layer address
        ];
        // The checksum is computed independently.
        let mut sum = crate::wire::checksum::Accumulator::new(32 + 58);
        sum.push(&expected[22..54]);
        let mut message = expected[54..].to_vec();
        message[2..4].fill(0);
        sum.push(&message);
        let sum = !sum.finish();
        assert_eq!(out[..56], expected[..56]);
        assert_eq!(out[56..58], sum.to_be_bytes());
        assert_eq!(out[58..86], expected[58..]);
        let mac = Some(LINK.mac);
        let solicitation = Message::Solicitation { target: PEER, source: Some(LOCAL), mac };
        assert_eq!(parse_frame(&out[..86]), Some(solicitation));
    }

    #[test]
    fn unicast_solicitation_is_sent_to_target_mac() {
        let mut out = [0; 90];
        let link = EthernetLink { vlan: Some(7), ..LINK };
        assert_eq!(write_solicitation(link, LOCAL, PEER, Some(MAC), &mut out), 90);
        assert_eq!(out[..18], [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x81, 0, 0, 7, 0x86, 0xdd]);
        assert_eq!(out[42..58], PEER.octets());
    }

    #[test]
    fn advertisement_to_solicitor_has_solicited_flag() {
        let mut out = [0; 90];
        assert_eq!(write_advertisement(LINK, LOCAL, Some((PEER, MAC)), &mut out), 86);
        let advert = |solicited| Message::Advertisement {
            target: LOCAL,
            mac: Some(LINK.mac),
            solicited,
            overrides: true,
        };
        assert_eq!(parse_frame(&out[..86]), Some(advert(true)));
        assert_eq!((&out[..6], out[58]), (&MAC[..], 0x60));
        write_advertisement(LINK, LOCAL, None, &mut out);
        assert_eq!(parse_frame(&out[..86]), Some(advert(false)));
        assert_eq!(out[..6], [0x33, 0x33, 0, 0, 0, 1]);
    }

    #[test]
    fn message_breaking_rfc_4861_section_7_1_is_rejected() {
        let mut solicitation = [0; 86];
        write_solicitation(LINK, LOCAL, PEER, None, &mut solicitation);
        let mut advert = [0; 86];
        write_advertisement(LINK, LOCAL, None, &mut advert);
        let with = |frame: &[u8; 86], changes: &[(usize, u8)]| {
            let mut frame = *frame;
            for &(at, value) in changes {
                frame[at] = value;
            }
            fill_checksum(&mut frame);
            parse_frame(&frame)
        };
        assert!(with(&solicitation, &[]).is_some());
        assert_eq!(with(&solicitation, &[(21, 254)]), None, "the hop limit is not 255");
        assert_eq!(with(&solicitation, &[(55, 1)]), None, "code");
        assert_eq!(with(&solicitation, &[(62, 0xff)]), None, "the target is multicast");
        assert_eq!(with(&solicitation, &[(79, 0)]), None, "option of no length");
        assert_eq!(with(&solicitation, &[(79, 2)]), None, "option beyond the end");
        assert_eq!(with(&solicitation, &[(54, 137)]), None, "redirect");
        assert_eq!(with(&solicitation, &[(54, 134)]), None, "router advertisement");
        assert_eq!(with(&advert, &[(58, 0x60)]), None, "solicited, to all nodes");
        let mut frame = solicitation;
        frame[80] ^= 1;
        assert_eq!(parse_frame(&frame), None, "checksum");
        assert_eq!(parse_frame(&solicitation[..77]), None, "truncated");
    }

    #[test]
    fn dad_solicitation_from_unspecified_source_is_parsed() {
        let mut frame = [0; 86];
        write_solicitation(LINK, Ipv6Addr::UNSPECIFIED, LOCAL, None, &mut frame);
        assert_eq!(parse_frame(&frame), None, "without a source link-layer address");
        let mut frame = frame[..78].to_vec();
        frame[19] = 24;
        fill_checksum(&mut frame);
        let probe = Message::Solicitation { target: LOCAL, source: None, mac: None };
        assert_eq!(parse_frame(&frame), Some(probe));
        frame[53] ^= 1;
        fill_checksum(&mut frame);
        assert_eq!(parse_frame(&frame), None, "to the wrong group");
    }

    #[test]
    fn solicited_node_group_and_multicast_mac_match_rfc_examples() {
        let ip: Ipv6Addr = "4037::01:800:200e:8c6c".parse().unwrap();
        assert_eq!(solicited_node(ip), "ff02::1:ff0e:8c6c".parse::<Ipv6Addr>().unwrap());
        assert_eq!(multicast_mac(ALL_NODES), [0x33, 0x33, 0, 0, 0, 1]);
        assert!(listens_to(ip, ALL_NODES) && listens_to(ip, solicited_node(ip)));
        assert!(!listens_to(LOCAL, solicited_node(ip)));
    }
}
