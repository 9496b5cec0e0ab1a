//! ICMP echo replies (RFC 792, RFC 4443).

use core::net::IpAddr;

use crate::device::RxFrame;
use crate::net::icmp_tx::write_ip_header;
use crate::wire::checksum::Accumulator;
use crate::wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, EthernetLink};
use crate::wire::ip::{
    ICMP_HEADER_LEN, IPV4_LEN, IPV6_LEN, PROTOCOL_ICMP, PROTOCOL_ICMPV6, Packet,
};

/// ICMP types of echo request and echo reply, by IP version.
const ECHO_TYPES_V4: [u8; 2] = [8, 0];
const ECHO_TYPES_V6: [u8; 2] = [128, 129];

/// Writes to `out` the echo reply to the IP packet in `frame`, if that is an echo request with a
/// correct checksum and the reply fits in `mtu`; returns the length of the frame. The reply is sent
/// to `mac`; its source is the destination address of the request, which the caller has checked to
/// be local.
///
/// Cost: the bytes are copied once and summed twice.
pub fn write_reply(
    frame: &impl RxFrame,
    packet: &Packet,
    link: EthernetLink,
    mac: [u8; 6],
    mtu: usize,
    out: &mut [u8],
) -> Option<usize> {
    let len = packet.end.checked_sub(packet.l4).filter(|&len| len >= ICMP_HEADER_LEN)?;
    let (ethertype, ip_len, [request, reply]) = match (packet.src, packet.protocol) {
        (IpAddr::V4(_), PROTOCOL_ICMP) => (ETHERTYPE_IPV4, IPV4_LEN, ECHO_TYPES_V4),
        (IpAddr::V6(_), PROTOCOL_ICMPV6) => (ETHERTYPE_IPV6, IPV6_LEN, ECHO_TYPES_V6),
        _ => return None,
    };
    let total = link.header_len() + ip_len + len;
    if ip_len + len > mtu || total > out.len() {
        return None;
    }
    let ip = link.write_header(mac, ethertype, &mut out[..total]);
    let (header, message) = ip.split_at_mut(ip_len);
    let pseudo = write_ip_header(packet.dst, packet.src, len, header)?;
    frame.copy_out(packet.l4, message);
    let mut sum = Accumulator::new(pseudo);
    sum.push(message);
    if sum.finish() != 0xffff || message[..2] != [request, 0] {
        return None;
    }
    message[0] = reply;
    message[2..4].fill(0);
    let mut sum = Accumulator::new(pseudo);
    sum.push(message);
    message[2..4].copy_from_slice(&(!sum.finish()).to_be_bytes());
    Some(total)
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};

    use smoltcp::phy::ChecksumCapabilities;
    use smoltcp::wire as smol;

    use super::*;
    use crate::device::ChecksumState;

    const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
    const V4: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2)];
    const V6: [Ipv6Addr; 2] =
        [Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 2)];

    /// A received frame in two segments, the first of which has `.1` bytes.
    struct Frame(Vec<u8>, usize);

    impl RxFrame for Frame {
        fn head(&self) -> &[u8] {
            &self.0[..self.1]
        }

        fn len(&self) -> usize {
            self.0.len()
        }

        fn copy_out(&self, offset: usize, out: &mut [u8]) {
            out.copy_from_slice(&self.0[offset..offset + out.len()]);
        }

        fn checksum(&self) -> ChecksumState {
            ChecksumState::Unknown
        }
    }

    /// An echo request from host 1 to host 0.
    fn request(v6: bool, link: EthernetLink, data: &[u8]) -> Vec<u8> {
        let caps = ChecksumCapabilities::default();
        let len = ICMP_HEADER_LEN + data.len();
        let mut frame = vec![0; link.header_len() + if v6 { 40 } else { 20 } + len];
        if v6 {
            let packet = link.write_header(MACS[0], ETHERTYPE_IPV6, &mut frame);
            let echo = smol::Icmpv6Repr::EchoRequest { ident: 7, seq_no: 9, data };
            let ip = smol::Ipv6Repr {
                src_addr: V6[1],
                dst_addr: V6[0],
                next_header: smol::IpProtocol::Icmpv6,
                payload_len: len,
                hop_limit: 9,
            };
            let mut packet = smol::Ipv6Packet::new_unchecked(packet);
            ip.emit(&mut packet);
            let mut message = smol::Icmpv6Packet::new_unchecked(packet.payload_mut());
            echo.emit(&V6[1], &V6[0], &mut message, &caps);
        } else {
            let packet = link.write_header(MACS[0], ETHERTYPE_IPV4, &mut frame);
            let echo = smol::Icmpv4Repr::EchoRequest { ident: 7, seq_no: 9, data };
            let ip = smol::Ipv4Repr {
                src_addr: V4[1],
                dst_addr: V4[0],
                next_header: smol::IpProtocol::Icmp,
                payload_len: len,
                hop_limit: 9,
            };
            let mut packet = smol::Ipv4Packet::new_unchecked(packet);
            ip.emit(&mut packet, &caps);
            echo.emit(&mut smol::Icmpv4Packet::new_unchecked(packet.payload_mut()), &caps);
        }
        frame
    }

    fn reply_to(bytes: Vec<u8>, link: EthernetLink, head: usize) -> Option<Vec<u8>> {
        let frame = Frame(bytes, head);
        let packet = Packet::parse(frame.head(), frame.len(), link.header_len(), true).unwrap();
        let mut out = vec![0xff; 1518];
        let len = write_reply(&frame, &packet, link, MACS[1], 1500, &mut out)?;
        out.truncate(len);
        Some(out)
    }

    #[test]
    fn echo_reply_carries_request_data() {
        let caps = ChecksumCapabilities::default();
        for (vlan, data_len) in [(None, 0), (Some(9), 1), (None, 56), (None, 1001), (Some(1), 1452)]
        {
            let link = EthernetLink { mac: MACS[0], vlan };
            let data: Vec<u8> = (0..data_len).map(|at: usize| at as u8).collect();
            let l3 = link.header_len();
            for most in [62, usize::MAX] {
                let bytes = request(false, link, &data);
                let head = most.min(bytes.len());
                let out = reply_to(bytes, link, head).unwrap();
                assert_eq!(out[..6], MACS[1]);
                let ip = smol::Ipv4Packet::new_checked(&out[l3..]).unwrap();
                assert!(ip.verify_checksum() && ip.hop_limit() == 64);
                assert_eq!((ip.src_addr(), ip.dst_addr()), (V4[0], V4[1]));
                let icmp = smol::Icmpv4Packet::new_checked(ip.payload()).unwrap();
                let reply = smol::Icmpv4Repr::EchoReply { ident: 7, seq_no: 9, data: &data };
                assert_eq!(smol::Icmpv4Repr::parse(&icmp, &caps), Ok(reply));

                let bytes = request(true, link, &data);
                let head = most.min(bytes.len());
                let out = reply_to(bytes, link, head).unwrap();
                let ip = smol::Ipv6Packet::new_checked(&out[l3..]).unwrap();
                assert_eq!((ip.src_addr(), ip.dst_addr()), (V6[0], V6[1]));
                let icmp = smol::Icmpv6Packet::new_checked(ip.payload()).unwrap();
                let reply = smol::Icmpv6Repr::EchoReply { ident: 7, seq_no: 9, data: &data };
                assert_eq!(smol::Icmpv6Repr::parse(&V6[0], &V6[1], &icmp, &caps), Ok(reply));
            }
        }
    }

    #[test]
    fn malformed_or_oversized_request_gets_no_reply() {
        let link = EthernetLink::without_vlan(MACS[0]);
        for (v6, l4) in [(false, 34), (true, 54)] {
            let good = request(v6, link, b"0123456789");
            let full_len = good.len();
            assert!(reply_to(good.clone(), link, full_len).is_some());
            for (at, change) in [(l4, 1), (l4 + 1, 1), (l4 + 3, 1), (l4 + 12, 0x80)] {
                let mut bad = good.clone();
                bad[at] ^= change;
                assert_eq!(reply_to(bad, link, full_len), None, "{v6} {at}");
            }
            let long = request(v6, link, &[0; 1500]);
            assert_eq!(reply_to(long, link, 100), None, "the reply would not fit");
        }
    }
}
