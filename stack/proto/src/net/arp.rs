//! ARP over `smoltcp::wire` (RFC 826; announcements as in RFC 5227).

use core::net::Ipv4Addr;

use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr, EthernetAddress};

use crate::wire::ethernet::{BROADCAST, ETHERTYPE_ARP, EthernetLink};

/// Bytes of an ARP packet.
const PACKET_LEN: usize = 28;

/// Received ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// ARP request; false for a reply.
    pub is_request: bool,
    /// Sender protocol address and sender hardware address.
    pub sender: (Ipv4Addr, [u8; 6]),
    /// Target protocol address.
    pub target: Ipv4Addr,
}

/// Parses an ARP packet without its Ethernet header; `None` if it is malformed or not about IPv4
/// over Ethernet.
#[must_use]
pub fn parse(packet: &[u8]) -> Option<Arp> {
    let packet = ArpPacket::new_checked(packet).ok()?;
    let ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr,
        source_protocol_addr,
        target_protocol_addr,
        ..
    } = ArpRepr::parse(&packet).ok()?
    else {
        return None;
    };
    let is_request = match operation {
        ArpOperation::Request => true,
        ArpOperation::Reply => false,
        ArpOperation::Unknown(_) => return None,
    };
    Some(Arp {
        is_request,
        sender: (source_protocol_addr, source_hardware_addr.0),
        target: target_protocol_addr,
    })
}

/// Writes to `out` the ARP request for `target`, to `mac` or broadcast; returns the length of the
/// frame.
///
/// # Panics
/// If `out` is shorter than the frame; 46 bytes always suffice.
pub fn write_request(
    link: EthernetLink,
    source: Ipv4Addr,
    target: Ipv4Addr,
    mac: Option<[u8; 6]>,
    out: &mut [u8],
) -> usize {
    let destination = mac.unwrap_or(BROADCAST);
    write(link, ArpOperation::Request, source, (target, [0; 6]), destination, out)
}

/// Writes to `out` the ARP announcement of `ours`, broadcast (RFC 5227 section 3); returns the
/// length of the frame.
///
/// # Panics
/// As [`write_request`].
pub fn write_announcement(link: EthernetLink, ours: Ipv4Addr, out: &mut [u8]) -> usize {
    write(link, ArpOperation::Request, ours, (ours, [0; 6]), BROADCAST, out)
}

/// Writes to `out` the ARP reply to the requester `target`; returns the length of the frame.
///
/// # Panics
/// As [`write_request`].
pub fn write_reply(
    link: EthernetLink,
    source: Ipv4Addr,
    target: (Ipv4Addr, [u8; 6]),
    out: &mut [u8],
) -> usize {
    write(link, ArpOperation::Reply, source, target, target.1, out)
}

fn write(
    link: EthernetLink,
    operation: ArpOperation,
    source: Ipv4Addr,
    target: (Ipv4Addr, [u8; 6]),
    destination: [u8; 6],
    out: &mut [u8],
) -> usize {
    let packet = link.write_header(destination, ETHERTYPE_ARP, out);
    let repr = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: EthernetAddress(link.mac),
        source_protocol_addr: source,
        target_hardware_addr: EthernetAddress(target.1),
        target_protocol_addr: target.0,
    };
    repr.emit(&mut ArpPacket::new_unchecked(&mut packet[..PACKET_LEN]));
    link.header_len() + PACKET_LEN
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: (Ipv4Addr, [u8; 6]) = (Ipv4Addr::new(198, 18, 0, 1), [2, 0, 0, 0, 0, 1]);
    const PEER: (Ipv4Addr, [u8; 6]) = (Ipv4Addr::new(198, 18, 0, 2), [2, 0, 0, 0, 0, 2]);

    #[test]
    fn request_and_reply_round_trip() {
        let (ours, theirs) =
            (EthernetLink::without_vlan(LOCAL.1), EthernetLink { mac: PEER.1, vlan: Some(5) });
        let mut out = [0xee; 64];
        assert_eq!(write_request(ours, LOCAL.0, PEER.0, None, &mut out), 42);
        assert_eq!(&out[..14], &[255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1, 8, 6]);
        let request = parse(&out[14..]).unwrap();
        assert_eq!(request, Arp { is_request: true, sender: LOCAL, target: PEER.0 });
        assert_eq!(write_request(ours, LOCAL.0, PEER.0, Some(PEER.1), &mut out), 42);
        assert_eq!(out[..6], PEER.1, "a probe is unicast");
        assert_eq!(write_reply(theirs, PEER.0, LOCAL, &mut out), 46);
        let reply = Some(Arp { is_request: false, sender: PEER, target: LOCAL.0 });
        assert_eq!(parse(&out[18..]), reply);
        assert_eq!(parse(&out[18..45]), None);
        assert_eq!(write_announcement(ours, LOCAL.0, &mut out), 42);
        assert_eq!(
            parse(&out[14..]),
            Some(Arp { is_request: true, sender: LOCAL, target: LOCAL.0 })
        );
        // Operation of another protocol (reverse ARP).
        out[21] = 3;
        assert_eq!(parse(&out[14..]), None);
    }
}
