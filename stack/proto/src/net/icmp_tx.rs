//! ICMP errors that this host sends: about packets whose reassembly failed.

use core::net::{Ipv4Addr, Ipv6Addr};

use crate::net::fragments::{FailureReason, ReassemblyFailure};
use crate::wire::checksum::{self, Accumulator};
use crate::wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, EthernetLink};
use crate::wire::ip::{IPV4_LEN, IPV6_LEN, PROTOCOL_ICMP, PROTOCOL_ICMPV6};

/// Bytes of the ICMP header, before the quoted packet.
const HEADER_LEN: usize = 8;
/// TTL or hop limit of ICMP errors.
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
    let len = HEADER_LEN + failure.quote.len();
    let total = link.header_len() + ip_len + len;
    let ip = link.write_header(failure.mac, ethertype, out.get_mut(..total)?);
    let (header, message) = ip.split_at_mut(ip_len);
    let pseudo = if is_v4 {
        write_v4(&failure.quote, len, header)?
    } else {
        write_v6(&failure.quote, len, header)?
    };
    message[..HEADER_LEN].copy_from_slice(&[kind, code, 0, 0, 0, 0, 0, 0]);
    message[6..8].copy_from_slice(&rest.to_be_bytes());
    message[HEADER_LEN..].copy_from_slice(&failure.quote);
    let mut sum = Accumulator::new(pseudo);
    sum.push(message);
    message[2..4].copy_from_slice(&(!sum.finish()).to_be_bytes());
    Some(total)
}

/// Writes the IPv4 header of an error to the source of the quoted packet; returns the sum of the
/// pseudo-header, 0 for ICMP.
fn write_v4(quote: &[u8], len: usize, header: &mut [u8]) -> Option<u16> {
    let [src, dst] = [12, 16].map(|at| quote.get(at..)?.first_chunk::<4>());
    let (src, dst) = (Ipv4Addr::from(*src?), Ipv4Addr::from(*dst?));
    header.copy_from_slice(&[0; IPV4_LEN]);
    header[0] = 0x45;
    header[2..4].copy_from_slice(&u16::try_from(IPV4_LEN + len).ok()?.to_be_bytes());
    header[6..10].copy_from_slice(&[0x40, 0, HOP_LIMIT, PROTOCOL_ICMP]);
    header[12..16].copy_from_slice(&dst.octets());
    header[16..20].copy_from_slice(&src.octets());
    let sum = !checksum::sum(header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    Some(0)
}

fn write_v6(quote: &[u8], len: usize, header: &mut [u8]) -> Option<u16> {
    let [src, dst] = [8, 24].map(|at| quote.get(at..)?.first_chunk::<16>());
    let (src, dst) = (Ipv6Addr::from(*src?), Ipv6Addr::from(*dst?));
    let len = u16::try_from(len).ok()?;
    header[..4].copy_from_slice(&[0x60, 0, 0, 0]);
    header[4..6].copy_from_slice(&len.to_be_bytes());
    header[6..8].copy_from_slice(&[PROTOCOL_ICMPV6, HOP_LIMIT]);
    header[8..24].copy_from_slice(&dst.octets());
    header[24..40].copy_from_slice(&src.octets());
    let mut sum = Accumulator::new(checksum::add(len, u16::from(PROTOCOL_ICMPV6)));
    sum.push(&header[8..40]);
    Some(sum.finish())
}

#[cfg(test)]
mod tests {
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
                    "no room"
                );
            }
        }
    }
}
