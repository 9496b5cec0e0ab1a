//! Answers to ping (RFC 792), over `smoltcp::wire`.

use core::net::Ipv4Addr;

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{Icmpv4Packet, Icmpv4Repr, IpProtocol, Ipv4Packet, Ipv4Repr};

/// Writes the echo reply to an IPv4 frame to `out`, if the frame is an echo request to `us` and
/// the reply fits; returns its length.
pub fn answer_echo(frame: &[u8], us: Ipv4Addr, src_mac: [u8; 6], out: &mut [u8]) -> Option<usize> {
    let checks = ChecksumCapabilities::default();
    let ip = Ipv4Packet::new_checked(frame.get(14..)?).ok()?;
    let ip_repr = Ipv4Repr::parse(&ip, &checks).ok()?;
    let is_fragment = ip.more_frags() || ip.frag_offset() != 0;
    if ip_repr.next_header != IpProtocol::Icmp || ip_repr.dst_addr != us || is_fragment {
        return None;
    }
    let icmp = Icmpv4Packet::new_checked(ip.payload()).ok()?;
    let Icmpv4Repr::EchoRequest { ident, seq_no, data } = Icmpv4Repr::parse(&icmp, &checks).ok()?
    else {
        return None;
    };
    let reply = Icmpv4Repr::EchoReply { ident, seq_no, data };
    let reply_ip = Ipv4Repr {
        src_addr: us,
        dst_addr: ip_repr.src_addr,
        next_header: IpProtocol::Icmp,
        payload_len: reply.buffer_len(),
        hop_limit: 64,
    };
    let len = 14 + reply_ip.buffer_len() + reply.buffer_len();
    let out = out.get_mut(..len)?;
    out[..6].copy_from_slice(&frame[6..12]);
    out[6..12].copy_from_slice(&src_mac);
    out[12..14].copy_from_slice(&[8, 0]);
    let mut packet = Ipv4Packet::new_unchecked(&mut out[14..]);
    reply_ip.emit(&mut packet, &checks);
    reply.emit(&mut Icmpv4Packet::new_unchecked(packet.payload_mut()), &checks);
    Some(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ping_is_answered_with_its_own_octets() {
        let (us, them) = (Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2));
        let checks = ChecksumCapabilities::default();
        let request = Icmpv4Repr::EchoRequest { ident: 7, seq_no: 9, data: b"0123456789" };
        let ip = Ipv4Repr {
            src_addr: them,
            dst_addr: us,
            next_header: IpProtocol::Icmp,
            payload_len: request.buffer_len(),
            hop_limit: 9,
        };
        let mut frame = vec![0; 14 + ip.buffer_len() + request.buffer_len()];
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
        let mut packet = Ipv4Packet::new_unchecked(&mut frame[14..]);
        ip.emit(&mut packet, &checks);
        request.emit(&mut Icmpv4Packet::new_unchecked(packet.payload_mut()), &checks);

        let mut out = [0xff; 128];
        let len = answer_echo(&frame, us, [2, 0, 0, 0, 0, 1], &mut out).unwrap();
        assert_eq!(&out[..12], &[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
        let reply = Ipv4Packet::new_checked(&out[14..len]).unwrap();
        assert_eq!((reply.src_addr(), reply.dst_addr()), (us, them));
        let icmp = Icmpv4Packet::new_checked(reply.payload()).unwrap();
        let expected = Icmpv4Repr::EchoReply { ident: 7, seq_no: 9, data: b"0123456789" };
        assert_eq!(Icmpv4Repr::parse(&icmp, &checks), Ok(expected));

        assert_eq!(answer_echo(&frame, them, [0; 6], &mut out), None);
        frame[40] ^= 1;
        assert_eq!(answer_echo(&frame, us, [0; 6], &mut out), None);
    }
}
