//! IP header of a received TCP segment: the parser that runs once per packet.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::wire::bytes::{array_at, be16};
use crate::wire::checksum;
use crate::wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use crate::wire::ip::Ecn;
use crate::wire::ip::{ExtensionHeaders, IPV4_LEN, IPV6_LEN, PROTOCOL_TCP};
use crate::wire::parse_error::ParseError;

/// Fields of the IP header, with offsets in the frame.
pub(super) struct IpHeader {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    pub(super) ecn: Ecn,
    /// Offset of the TCP header.
    pub(super) l4: usize,
    /// Offset of the end of the packet.
    pub(super) end: usize,
    /// Folded sum of the addresses; 0 for IPv4 if checksums are not verified.
    pub(super) address_sum: u16,
}

impl IpHeader {
    #[inline(always)]
    pub(super) fn parse<const L3: usize>(head: &[u8], verify: bool) -> Result<Self, ParseError> {
        let ethernet = head.first_chunk::<L3>().ok_or(ParseError::Truncated)?;
        match be16(ethernet, L3 - 2) {
            ETHERTYPE_IPV4 => Self::parse_v4::<L3>(head, verify),
            ETHERTYPE_IPV6 => Self::parse_v6::<L3>(head),
            _ => Err(ParseError::NotIp),
        }
    }

    #[inline(always)]
    fn parse_v4<const L3: usize>(head: &[u8], verify: bool) -> Result<Self, ParseError> {
        let ip = head[L3..].first_chunk::<IPV4_LEN>().ok_or(ParseError::Truncated)?;
        if ip[0] >> 4 != 4 {
            return Err(ParseError::BadVersion);
        }
        let header_len = usize::from(ip[0] & 0x0f) * 4;
        let total_len = usize::from(be16(ip, 2));
        if header_len < IPV4_LEN || total_len < header_len {
            return Err(ParseError::BadHeaderLength);
        }
        if verify {
            let header = head.get(L3..L3 + header_len);
            if checksum::sum(header.ok_or(ParseError::Truncated)?) != 0xffff {
                return Err(ParseError::BadIpChecksum);
            }
        }
        // More Fragments is set, or the fragment offset is not 0.
        if be16(ip, 6) & 0x3fff != 0 {
            return Err(ParseError::Fragment);
        }
        if ip[9] != PROTOCOL_TCP {
            return Err(ParseError::NotTcp);
        }
        // Network 0; classes D (multicast) and E, which includes the broadcast address.
        if ip[12] == 0 || ip[12] >= 224 {
            return Err(ParseError::BadAddress);
        }
        Ok(Self {
            src: IpAddr::V4(Ipv4Addr::new(ip[12], ip[13], ip[14], ip[15])),
            dst: IpAddr::V4(Ipv4Addr::new(ip[16], ip[17], ip[18], ip[19])),
            ecn: Ecn::from_traffic_class(ip[1]),
            l4: L3 + header_len,
            end: L3 + total_len,
            address_sum: if verify { checksum::sum(&ip[12..20]) } else { 0 },
        })
    }

    #[inline(always)]
    fn parse_v6<const L3: usize>(head: &[u8]) -> Result<Self, ParseError> {
        let ip = head[L3..].first_chunk::<IPV6_LEN>().ok_or(ParseError::Truncated)?;
        if ip[0] >> 4 != 6 {
            return Err(ParseError::BadVersion);
        }
        let end = L3 + IPV6_LEN + usize::from(be16(ip, 4));
        let l4 = if ip[6] == PROTOCOL_TCP {
            L3 + IPV6_LEN
        } else {
            skip_extension_headers(head, L3, end)?
        };
        let src = Ipv6Addr::from(*array_at::<16>(ip, 8));
        if src.is_multicast() || src.is_unspecified() {
            return Err(ParseError::BadAddress);
        }
        Ok(Self {
            src: IpAddr::V6(src),
            dst: IpAddr::V6(Ipv6Addr::from(*array_at::<16>(ip, 24))),
            ecn: Ecn::from_traffic_class(ip[1] >> 4),
            l4,
            end,
            address_sum: checksum::sum(&ip[8..40]),
        })
    }
}

/// Returns the offset of the TCP header of an IPv6 packet with extension headers.
#[cold]
fn skip_extension_headers(head: &[u8], l3: usize, end: usize) -> Result<usize, ParseError> {
    let chain = ExtensionHeaders::parse(head, l3, end)?;
    match chain.protocol {
        _ if chain.fragment.is_some() => Err(ParseError::Fragment),
        PROTOCOL_TCP => Ok(chain.l4),
        _ => Err(ParseError::NotTcp),
    }
}
