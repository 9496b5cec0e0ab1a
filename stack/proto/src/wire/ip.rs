//! IP headers of packets other than plain TCP: IPv4 options, IPv6 extension headers, fragments.
//!
//! TCP segments have a parser of their own ([`super::tcp::Segment::parse`]), which uses this module
//! only for extension headers.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::bytes::be16;
use super::checksum;
use super::parse_error::ParseError;

/// Length of an IPv4 header without options, in bytes.
pub const IPV4_LEN: usize = 20;
/// Length of an IPv6 header, in bytes.
pub const IPV6_LEN: usize = 40;

/// Protocol number of ICMP (IPv4).
pub const PROTOCOL_ICMP: u8 = 1;
/// Protocol number of TCP.
pub const PROTOCOL_TCP: u8 = 6;
/// Protocol number of ICMPv6.
pub const PROTOCOL_ICMPV6: u8 = 58;
/// Length of an ICMP or ICMPv6 header, in bytes: what precedes the quoted packet of an error, or
/// the data of an echo.
pub const ICMP_HEADER_LEN: usize = 8;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
/// Protocol number of the IPv6 Destination Options header.
pub const DESTINATION_OPTIONS: u8 = 60;

/// Maximum number of extension headers of a packet, not counting the fragment header.
const EXTENSION_COUNT_MAX: usize = 8;
/// Maximum total length of these headers, in bytes.
const EXTENSION_LEN_MAX: usize = 512;

/// Header fields of an IP packet, with offsets in the frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Source address. Not checked: it may be other than unicast.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Type of service (IPv4), traffic class (IPv6).
    pub traffic_class: u8,
    /// Time to live (IPv4), hop limit (IPv6).
    pub hop_limit: u8,
    /// Protocol number of the payload.
    pub protocol: u8,
    /// Offset of the IP header.
    pub l3: usize,
    /// Offset of the payload: after the IPv4 options, or after the IPv6 extension headers up to and
    /// including the fragment header.
    pub l4: usize,
    /// Offset of the end of the packet.
    pub end: usize,
    /// Fragment fields; `None` if the packet is not a fragment.
    pub fragment: Option<Fragment>,
}

/// Fragment fields of an IP header (RFC 791 section 3.1, RFC 8200 section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Identification: with the addresses (and, for IPv4, the protocol) identifies the packet that
    /// was fragmented.
    pub id: u32,
    /// Fragment offset, in bytes.
    pub offset: usize,
    /// More Fragments flag.
    pub more: bool,
    /// Offset in the frame of the byte that holds the payload's protocol after reassembly: the IPv4
    /// Protocol field, or the Next Header field in front of the IPv6 fragment header.
    pub protocol_at: usize,
}

impl Packet {
    /// Parses the IP header at offset `l3` of a frame of `frame_len` bytes that begins with `head`.
    /// All headers must lie in `head`. With `verify` the IPv4 header checksum is verified.
    ///
    /// # Errors
    /// See [`ParseError`]; the first cause found.
    pub fn parse(
        head: &[u8],
        frame_len: usize,
        l3: usize,
        verify: bool,
    ) -> Result<Self, ParseError> {
        let packet = match head.get(l3).ok_or(ParseError::Truncated)? >> 4 {
            4 => Self::parse_v4(head, l3, verify)?,
            6 => Self::parse_v6(head, l3)?,
            _ => return Err(ParseError::BadVersion),
        };
        if packet.end > frame_len {
            return Err(ParseError::Truncated);
        }
        Ok(packet)
    }

    fn parse_v4(head: &[u8], l3: usize, verify: bool) -> Result<Self, ParseError> {
        let ip = &head[l3..];
        let fixed = ip.first_chunk::<IPV4_LEN>().ok_or(ParseError::Truncated)?;
        let header_len = usize::from(fixed[0] & 0x0f) * 4;
        let total_len = usize::from(be16(fixed, 2));
        if header_len < IPV4_LEN || total_len < header_len {
            return Err(ParseError::BadHeaderLength);
        }
        let header = ip.get(..header_len).ok_or(ParseError::Truncated)?;
        if verify && checksum::sum(header) != 0xffff {
            return Err(ParseError::BadIpChecksum);
        }
        let frag_field = be16(fixed, 6);
        let fragment = (frag_field & 0x3fff != 0).then(|| Fragment {
            id: u32::from(be16(fixed, 4)),
            offset: usize::from(frag_field & 0x1fff) * 8,
            more: frag_field & 0x2000 != 0,
            protocol_at: l3 + 9,
        });
        Ok(Self {
            src: IpAddr::V4(Ipv4Addr::new(fixed[12], fixed[13], fixed[14], fixed[15])),
            dst: IpAddr::V4(Ipv4Addr::new(fixed[16], fixed[17], fixed[18], fixed[19])),
            traffic_class: fixed[1],
            hop_limit: fixed[8],
            protocol: fixed[9],
            l3,
            l4: l3 + header_len,
            end: l3 + total_len,
            fragment,
        })
    }

    fn parse_v6(head: &[u8], l3: usize) -> Result<Self, ParseError> {
        let fixed = head[l3..].first_chunk::<IPV6_LEN>().ok_or(ParseError::Truncated)?;
        let address = |at: usize| {
            let bytes = fixed[at..].first_chunk::<16>().expect("inside the fixed header");
            IpAddr::V6(Ipv6Addr::from(*bytes))
        };
        let end = l3 + IPV6_LEN + usize::from(be16(fixed, 4));
        let chain = ExtensionHeaders::parse(head, l3, end)?;
        Ok(Self {
            src: address(8),
            dst: address(24),
            traffic_class: fixed[0] << 4 | fixed[1] >> 4,
            hop_limit: fixed[7],
            protocol: chain.protocol,
            l3,
            l4: chain.l4,
            end,
            fragment: chain.fragment,
        })
    }
}

/// Result of parsing the extension headers of an IPv6 packet: protocol and offset of the payload,
/// and the fields of the fragment header.
pub(super) struct ExtensionHeaders {
    pub(super) protocol: u8,
    pub(super) l4: usize,
    pub(super) fragment: Option<Fragment>,
}

impl ExtensionHeaders {
    /// Parses the extension headers of the packet at offset `l3` that ends at offset `end`. A
    /// fragment header is the last one parsed. The packet is rejected if an option may not be
    /// skipped or a routing header has segments left (RFC 8200 sections 4.2 and 4.4).
    pub(super) fn parse(head: &[u8], l3: usize, end: usize) -> Result<Self, ParseError> {
        let (mut protocol_at, mut at) = (l3 + 6, l3 + IPV6_LEN);
        for count in 0..=EXTENSION_COUNT_MAX {
            let protocol = *head.get(protocol_at).ok_or(ParseError::Truncated)?;
            if !matches!(protocol, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION_OPTIONS) {
                return Ok(Self { protocol, l4: at, fragment: None });
            }
            // A Hop-by-Hop Options header may only be the first.
            if protocol == HOP_BY_HOP && count > 0 {
                return Err(ParseError::BadExtension);
            }
            let header = head.get(at..end.min(head.len())).unwrap_or(&[]);
            let start = header.first_chunk::<8>().ok_or(ParseError::Truncated)?;
            if protocol == FRAGMENT {
                let frag_field = be16(start, 2);
                let fragment = Fragment {
                    id: u32::from_be_bytes([start[4], start[5], start[6], start[7]]),
                    offset: usize::from(frag_field & 0xfff8),
                    more: frag_field & 1 != 0,
                    protocol_at,
                };
                return Ok(Self { protocol: start[0], l4: at + 8, fragment: Some(fragment) });
            }
            let len = (usize::from(start[1]) + 1) * 8;
            let header = header.get(..len).ok_or(ParseError::Truncated)?;
            let is_skippable = match protocol {
                // Segments Left is 0: the packet has reached its final destination.
                ROUTING => start[3] == 0,
                _ => all_options_skippable(&header[2..]),
            };
            if !is_skippable {
                return Err(ParseError::BadExtension);
            }
            (protocol_at, at) = (at, at + len);
            if at - l3 > IPV6_LEN + EXTENSION_LEN_MAX {
                break;
            }
        }
        Err(ParseError::BadExtension)
    }
}

/// True if all options are well-formed and may be skipped if not recognized: the two highest-order
/// bits of their types are 00 (RFC 8200 section 4.2).
fn all_options_skippable(mut options: &[u8]) -> bool {
    while let [kind, rest @ ..] = options {
        if *kind == 0 {
            options = rest;
            continue;
        }
        let Some((&len, rest)) = rest.split_first() else { return false };
        let Some(rest) = rest.get(usize::from(len)..) else { return false };
        if kind >> 6 != 0 {
            return false;
        }
        options = rest;
    }
    true
}

/// ECN field of the IP header (RFC 3168 section 5); the values are those on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Ecn {
    /// Not ECN-Capable Transport.
    #[default]
    NotEct = 0,
    /// ECN-Capable Transport, ECT(1).
    Ect1 = 1,
    /// ECN-Capable Transport, ECT(0).
    Ect0 = 2,
    /// Congestion Experienced.
    Ce = 3,
}

/// Fields of the IP header that an application chooses. The ECN bits next to the DSCP are the
/// stack's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpFields {
    /// DSCP (RFC 2474): 0 to [`DSCP_MAX`].
    pub dscp: u8,
    /// Time to live (IPv4), hop limit (IPv6): at least 1.
    pub ttl: u8,
}

impl IpFields {
    /// Best effort, and the time to live that RFC 1700 recommends.
    pub const DEFAULT: Self = Self { dscp: 0, ttl: 64 };
}

/// Largest DSCP: it has six bits.
pub const DSCP_MAX: u8 = 63;

impl Ecn {
    #[inline]
    pub(super) const fn from_traffic_class(byte: u8) -> Self {
        match byte & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Frame with an IPv6 packet at offset 14: `extensions`, then four bytes of payload.
    fn v6(first: u8, extensions: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 14 + IPV6_LEN];
        bytes[14] = 0x6a;
        bytes[15] = 0xb0;
        bytes[18..20].copy_from_slice(&(extensions.len() as u16 + 4).to_be_bytes());
        bytes[20] = first;
        bytes[21] = 64;
        bytes[37] = 1;
        bytes[53] = 2;
        bytes.extend(extensions);
        bytes.extend([1, 2, 3, 4]);
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<Packet, ParseError> {
        Packet::parse(bytes, bytes.len(), 14, true)
    }

    #[test]
    fn only_skippable_extension_headers_are_skipped() {
        let plain = parse(&v6(58, &[])).unwrap();
        assert_eq!((plain.protocol, plain.l4, plain.end), (58, 54, 58));
        assert_eq!((plain.traffic_class, plain.hop_limit), (0xab, 64));
        assert_eq!((plain.src, plain.dst), ("::1".parse().unwrap(), "::2".parse().unwrap()));
        // Hop-by-hop with padding, routing without segments left, destination options of 16 bytes.
        let chain = [
            &[43, 0, 1, 4, 0, 0, 0, 0][..],
            &[60, 0, 9, 0, 7, 7, 7, 7],
            &[6, 1, 0x3e, 12, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
        ]
        .concat();
        let packet = parse(&v6(0, &chain)).unwrap();
        assert_eq!((packet.protocol, packet.l4, packet.fragment), (6, 54 + 32, None));
        let refused = |first, chain: &[u8]| parse(&v6(first, chain)).unwrap_err();
        for (first, chain) in [
            (43, [6, 0, 0, 1, 0, 0, 0, 0]),
            (60, [6, 0, 0x40, 4, 0, 0, 0, 0]),
            (60, [6, 0, 0xc2, 4, 0, 0, 0, 0]),
            (60, [6, 0, 1, 5, 0, 0, 0, 0]),
            (60, [6, 0, 1, 3, 0, 0, 0, 1]),
        ] {
            assert_eq!(refused(first, &chain), ParseError::BadExtension, "{first} {chain:?}");
        }
        let twice = [[0, 0, 1, 4, 0, 0, 0, 0], [6, 0, 1, 4, 0, 0, 0, 0]].concat();
        assert_eq!(refused(0, &twice), ParseError::BadExtension);
        assert_eq!(refused(60, &[6, 4, 1, 4, 0, 0, 0, 0]), ParseError::Truncated);
        let long = [60, 0, 1, 4, 0, 0, 0, 0].repeat(12);
        assert_eq!(refused(60, &long), ParseError::BadExtension);
    }

    #[test]
    fn fragment_id_offset_and_flag_are_parsed() {
        let part = [[44, 0, 1, 4, 0, 0, 0, 0], [6, 0, 0x12, 0x39, 1, 2, 3, 4]].concat();
        let packet = parse(&v6(60, &part)).unwrap();
        let fragment =
            Fragment { id: 0x0102_0304, offset: 0x1238, more: true, protocol_at: 14 + 40 };
        assert_eq!((packet.protocol, packet.l4), (6, 54 + 16));
        assert_eq!(packet.fragment, Some(fragment));

        let mut v4 = vec![0; 14];
        v4.extend([0x46, 2, 0, 28, 0xab, 0xcd, 0x20, 3, 9, 6, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2]);
        v4.extend([1, 1, 1, 0, 5, 6, 7, 8]);
        let sum = !checksum::sum(&v4[14..38]);
        v4[24..26].copy_from_slice(&sum.to_be_bytes());
        let packet = parse(&v4).unwrap();
        let fragment = Fragment { id: 0xabcd, offset: 24, more: true, protocol_at: 23 };
        assert_eq!(packet.fragment, Some(fragment));
        assert_eq!((packet.l4, packet.end, packet.hop_limit, packet.protocol), (38, 42, 9, 6));
        v4[22] = 8;
        assert_eq!(parse(&v4), Err(ParseError::BadIpChecksum));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200),
                                   flips in prop::collection::vec((0usize..100, any::<u8>()), 4),
                                   head in 0usize..200) {
            let check = |bytes: &[u8]| {
                let head = &bytes[..head.min(bytes.len())];
                if let Ok(packet) = Packet::parse(head, bytes.len(), 14, false) {
                    assert!(packet.l4 <= head.len() && packet.end <= bytes.len());
                }
            };
            check(&bytes);
            let mut near = v6(60, &[[43, 0, 1, 4, 0, 0, 0, 0], [44, 0, 0, 0, 0, 0, 0, 0],
                                    [6, 0, 0, 8, 0, 0, 0, 0]].concat());
            for (at, value) in flips {
                if let Some(byte) = near.get_mut(at) {
                    *byte = value;
                }
            }
            check(&near);
        }
    }
}
