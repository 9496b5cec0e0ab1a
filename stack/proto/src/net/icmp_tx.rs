//! ICMP messages that this host sends: their IP header, and errors about packets whose reassembly
//! failed.

use core::net::IpAddr;

use crate::net::fragments::{FailureReason, ReassemblyFailure};
use crate::wire::checksum::{self, Accumulator};
use crate::wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, EthernetLink};
use crate::wire::ip::{ICMP_HEADER_LEN, IPV4_LEN, IPV6_LEN, PROTOCOL_ICMP, PROTOCOL_ICMPV6};

/// TTL or hop limit of ICMP messages.
const HOP_LIMIT: u8 = 64;
/// IPv4 datagram size that every host must accept (RFC 791); the least MTU that is reported.
const EMTU_R_MIN: u16 = 576;

/// Writes to `out` the ICMP error about a failed reassembly; returns the length of the frame, or
/// `None` if no error is defined.
///
/// After a timeout it is Time Exceeded, fragment reassembly time exceeded (RFC 792, RFC 8200
/// section 4.5). After an eviction it is Fragmentation Needed, with the size of the first fragment
/// as MTU: segments of that size are not fragmented (draft-culley-iwarp-mpa-02 section 13.1.1.1).
/// In IPv6 only routers send Packet Too Big.
// req: MPA-171
#[must_use]
pub fn write_reassembly_failure(
    failure: &ReassemblyFailure,
    link: EthernetLink,
    out: &mut [u8],
) -> Option<usize> {
    let is_v4 = failure.quote.first()? >> 4 == 4;
    let (kind, code, rest) = match (is_v4, failure.reason) {
        (true, FailureReason::Timeout) => (11, 1, 0),
        (true, FailureReason::Evicted) => (3, 4, failure.fragment_len.max(EMTU_R_MIN)),
        (false, FailureReason::Timeout) => (3, 1, 0),
        (false, FailureReason::Evicted) => return None,
    };
    let (ethertype, ip_len) =
        if is_v4 { (ETHERTYPE_IPV4, IPV4_LEN) } else { (ETHERTYPE_IPV6, IPV6_LEN) };
    let len = ICMP_HEADER_LEN + failure.quote.len();
    let total = link.header_len() + ip_len + len;
    let ip = link.write_header(failure.mac, ethertype, out.get_mut(..total)?);
    let (header, message) = ip.split_at_mut(ip_len);
    let (src, dst) = addresses(&failure.quote, is_v4)?;
    let pseudo = write_ip_header(dst, src, len, header)?;
    message[..ICMP_HEADER_LEN].copy_from_slice(&[kind, code, 0, 0, 0, 0, 0, 0]);
    message[6..8].copy_from_slice(&rest.to_be_bytes());
    message[ICMP_HEADER_LEN..].copy_from_slice(&failure.quote);
    let mut sum = Accumulator::new(pseudo);
    sum.push(message);
    message[2..4].copy_from_slice(&(!sum.finish()).to_be_bytes());
    Some(total)
}

/// Returns source and destination of a quoted packet.
fn addresses(quote: &[u8], is_v4: bool) -> Option<(IpAddr, IpAddr)> {
    if is_v4 {
        let [src, dst] = [12, 16].map(|at| quote.get(at..)?.first_chunk::<4>());
        Some((IpAddr::from(*src?), IpAddr::from(*dst?)))
    } else {
        let [src, dst] = [8, 24].map(|at| quote.get(at..)?.first_chunk::<16>());
        Some((IpAddr::from(*src?), IpAddr::from(*dst?)))
    }
}

/// Writes the IP header of an ICMP message of `len` bytes; returns the sum of the pseudo-header, 0
/// over IPv4. `None` if the message is too long, or the addresses are of different versions.
pub(super) fn write_ip_header(
    src: IpAddr,
    dst: IpAddr,
    len: usize,
    header: &mut [u8],
) -> Option<u16> {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let [high, low] = u16::try_from(IPV4_LEN + len).ok()?.to_be_bytes();
            let fixed = [0x45, 0, high, low, 0, 0, 0x40, 0, HOP_LIMIT, PROTOCOL_ICMP, 0, 0];
            header[..12].copy_from_slice(&fixed);
            header[12..16].copy_from_slice(&src.octets());
            header[16..20].copy_from_slice(&dst.octets());
            let sum = !checksum::sum(header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            Some(0)
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let len = u16::try_from(len).ok()?;
            let [high, low] = len.to_be_bytes();
            header[..8].copy_from_slice(&[0x60, 0, 0, 0, high, low, PROTOCOL_ICMPV6, HOP_LIMIT]);
            header[8..24].copy_from_slice(&src.octets());
            header[24..40].copy_from_slice(&dst.octets());
            let mut sum = Accumulator::new(checksum::add(len, u16::from(PROTOCOL_ICMPV6)));
            sum.push(&header[8..40]);
            Some(sum.finish())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv6Addr;

    use super::*;
    use crate::net::icmp_error::{IcmpError, IcmpErrorKind};
    use crate::wire::seq::Seq;

    const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];

    /// First bytes of a TCP segment: ports and sequence number.
    const TCP: [u8; 8] = [0x13, 0x88, 0x1c, 0x06, 1, 2, 3, 4];

    fn v4() -> Vec<u8> {
        let ip = [0x45, 0, 3, 0xe8, 0, 7, 0x20, 0, 64, 6, 0, 0, 198, 18, 0, 2, 198, 18, 0, 1];
        [&ip[..], &TCP].concat()
    }

    fn v6() -> Vec<u8> {
        let mut ip = vec![0x60, 0, 0, 0, 3, 0xe8, 44, 64];
        for host in [2, 1] {
            ip.extend(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, host).octets());
        }
        // First fragment of several.
        ip.extend([6, 0, 0, 1, 0, 0, 0, 7]);
        [&ip[..], &TCP].concat()
    }

    #[test]
    fn reassembly_failure_is_reported_to_source() {
        let cases = [
            (v4(), FailureReason::Timeout, 1000, Some(IcmpErrorKind::TimeExceeded)),
            (
                v4(),
                FailureReason::Evicted,
                1000,
                Some(IcmpErrorKind::PacketTooBig { mtu: Some(1000) }),
            ),
            (
                v4(),
                FailureReason::Evicted,
                28,
                Some(IcmpErrorKind::PacketTooBig { mtu: Some(576) }),
            ),
            (v6(), FailureReason::Timeout, 1000, Some(IcmpErrorKind::TimeExceeded)),
            (v6(), FailureReason::Evicted, 1000, None),
        ];
        for (quote, reason, fragment_len, expected) in cases {
            for vlan in [None, Some(9)] {
                let link = EthernetLink { mac: MACS[0], vlan };
                let failure =
                    ReassemblyFailure { reason, mac: MACS[1], quote: quote.clone(), fragment_len };
                let mut out = [0xff; 256];
                let len = write_reassembly_failure(&failure, link, &mut out);
                assert_eq!(len.is_some(), expected.is_some());
                let (Some(len), Some(cause)) = (len, expected) else { continue };
                assert_eq!(out[..6], MACS[1]);
                // The parser checks the checksums.
                let error = IcmpError::parse(&out[link.header_len()..len]).unwrap();
                assert_eq!((error.kind, error.seq), (cause, Seq(0x0102_0304)));
                assert_eq!((error.tuple.local.port(), error.tuple.remote.port()), (5000, 7174));
                assert!(
                    write_reassembly_failure(&failure, link, &mut out[..len - 1]).is_none(),
                    "too short"
                );
            }
        }
    }
}
