//! Received ICMP errors about TCP segments that this host sent (RFC 792, RFC 1191, RFC 4443).
//!
//! An error quotes the packet it is about: its IP header and at least the first eight bytes of TCP,
//! that is both ports and the sequence number. An off-path attacker can send such a message, so
//! only its form is checked here: the checksums, and that every byte read lies inside it. The
//! connection checks that the quoted segment is outstanding (RFC 5927 section 4.1).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use smoltcp::wire::{Icmpv4Packet, Icmpv6Packet, IpProtocol, Ipv4Packet, Ipv6Packet};

use crate::wire::ip::{ICMP_HEADER_LEN, PROTOCOL_TCP};
use crate::wire::seq::Seq;
use crate::wire::tcp::{Flags, FourTuple};

/// Bytes of TCP that are always quoted: ports and sequence number (RFC 792).
const TCP_QUOTED_LEN: usize = 8;
/// Quoted bytes of TCP from which acknowledgment number and flags can be read.
const TCP_FLAGS_END: usize = 14;
/// Limit on IPv6 extension headers before TCP.
const EXTENSION_COUNT_MAX: usize = 8;

/// Kind of an ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IcmpErrorKind {
    /// Fragmentation Needed (RFC 1191) or Packet Too Big (RFC 4443): the packet exceeds the MTU of
    /// a link. `mtu` is the next-hop MTU in bytes; `None` from routers older than RFC 1191, which
    /// do not report it.
    PacketTooBig {
        /// See the variant.
        mtu: Option<u16>,
    },
    /// Protocol Unreachable (IPv4), or Parameter Problem with an unrecognized Next Header (IPv6).
    ProtocolUnreachable,
    /// Port Unreachable.
    PortUnreachable,
    /// Destination Unreachable for any other reason: network or host unreachable, administratively
    /// prohibited.
    DestinationUnreachable {
        /// Code field of the message.
        code: u8,
    },
    /// Time Exceeded: the hop limit or the reassembly timeout.
    TimeExceeded,
    /// Parameter Problem: a router or the destination rejects a header field.
    ParameterProblem,
    /// Source Quench (IPv4); to be ignored (RFC 6633).
    SourceQuench,
}

impl IcmpErrorKind {
    /// True for a hard error, a condition that does not clear by itself (RFC 1122 section 4.2.3.9:
    /// codes 2 and 3; RFC 4443 section 3.1 code 4 and section 3.4 code 1).
    #[must_use]
    pub const fn is_hard(self) -> bool {
        matches!(self, Self::ProtocolUnreachable | Self::PortUnreachable)
    }
}

/// ICMP error and the TCP segment that it quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// Kind of the error.
    pub kind: IcmpErrorKind,
    /// The connection; `local` is the source of the quoted packet.
    pub tuple: FourTuple,
    /// Sequence number of the quoted segment.
    pub seq: Seq,
    /// Acknowledgment number of the quoted segment, if it is quoted and the ACK flag is set.
    pub ack: Option<Seq>,
    /// Length of the quoted packet by its IP header, in bytes.
    pub packet_len: u32,
}

/// Reason why a packet is not an ICMP error about a TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// Not ICMP, or not an error message.
    #[error("not an ICMP error")]
    NotError,
    /// Shorter than the lengths in its headers, or the quote is below the minimum.
    #[error("truncated")]
    Truncated,
    /// A fragment; ICMP errors are never that long.
    #[error("IP fragment")]
    Fragment,
    /// Wrong checksum of the IPv4 header or of the message.
    #[error("bad checksum")]
    BadChecksum,
    /// The quoted packet is not the beginning of a TCP segment, or its source is not the
    /// destination of the message.
    #[error("bad quotation")]
    BadQuote,
}

impl IcmpError {
    /// Parses an IP packet (the frame without its link header); bytes after its end are ignored.
    ///
    /// # Errors
    /// [`ParseError`]. With [`ParseError::NotError`] the packet may be of another protocol or type
    /// that the caller handles; with the others it is to be dropped.
    pub fn parse(packet: &[u8]) -> Result<Self, ParseError> {
        match packet.first().ok_or(ParseError::Truncated)? >> 4 {
            4 => parse_v4(packet),
            6 => parse_v6(packet),
            _ => Err(ParseError::NotError),
        }
    }
}

fn parse_v4(packet: &[u8]) -> Result<IcmpError, ParseError> {
    let ip = Ipv4Packet::new_checked(packet).map_err(|_| ParseError::Truncated)?;
    if ip.next_header() != IpProtocol::Icmp {
        return Err(ParseError::NotError);
    }
    if !ip.verify_checksum() {
        return Err(ParseError::BadChecksum);
    }
    if ip.more_frags() || ip.frag_offset() != 0 {
        return Err(ParseError::Fragment);
    }
    let message = ip.payload();
    let header = message.first_chunk::<ICMP_HEADER_LEN>().ok_or(ParseError::Truncated)?;
    let kind = match (header[0], header[1]) {
        (3, 2) => IcmpErrorKind::ProtocolUnreachable,
        (3, 3) => IcmpErrorKind::PortUnreachable,
        (3, 4) => {
            let mtu = u16::from_be_bytes([header[6], header[7]]);
            IcmpErrorKind::PacketTooBig { mtu: (mtu != 0).then_some(mtu) }
        }
        (3, code) => IcmpErrorKind::DestinationUnreachable { code },
        (4, _) => IcmpErrorKind::SourceQuench,
        (11, _) => IcmpErrorKind::TimeExceeded,
        (12, _) => IcmpErrorKind::ParameterProblem,
        _ => return Err(ParseError::NotError),
    };
    if !Icmpv4Packet::new_unchecked(message).verify_checksum() {
        return Err(ParseError::BadChecksum);
    }
    let quote = Quote::parse_v4(&message[ICMP_HEADER_LEN..])?;
    quote.to_error(kind, IpAddr::V4(ip.dst_addr()))
}

fn parse_v6(packet: &[u8]) -> Result<IcmpError, ParseError> {
    let ip = Ipv6Packet::new_checked(packet).map_err(|_| ParseError::Truncated)?;
    if ip.next_header() != IpProtocol::Icmpv6 {
        return Err(ParseError::NotError);
    }
    let message = ip.payload();
    let header = message.first_chunk::<ICMP_HEADER_LEN>().ok_or(ParseError::Truncated)?;
    let kind = match (header[0], header[1]) {
        (1, 4) => IcmpErrorKind::PortUnreachable,
        (1, code) => IcmpErrorKind::DestinationUnreachable { code },
        (2, _) => {
            let mtu = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
            IcmpErrorKind::PacketTooBig { mtu: Some(u16::try_from(mtu).unwrap_or(u16::MAX)) }
        }
        (3, _) => IcmpErrorKind::TimeExceeded,
        (4, 1) => IcmpErrorKind::ProtocolUnreachable,
        (4, _) => IcmpErrorKind::ParameterProblem,
        _ => return Err(ParseError::NotError),
    };
    let (src, dst) = (ip.src_addr(), ip.dst_addr());
    if !Icmpv6Packet::new_unchecked(message).verify_checksum(&src, &dst) {
        return Err(ParseError::BadChecksum);
    }
    let quote = Quote::parse_v6(&message[ICMP_HEADER_LEN..])?;
    quote.to_error(kind, IpAddr::V6(dst))
}

/// The quoted packet, as far as the sender of the error returned it.
struct Quote<'a> {
    src: IpAddr,
    dst: IpAddr,
    packet_len: u32,
    /// Quoted bytes from the TCP header on.
    tcp: &'a [u8],
}

impl<'a> Quote<'a> {
    fn parse_v4(quoted: &'a [u8]) -> Result<Self, ParseError> {
        let ip = quoted.first_chunk::<20>().ok_or(ParseError::Truncated)?;
        let header_len = usize::from(ip[0] & 0x0f) * 4;
        let is_first = u16::from_be_bytes([ip[6], ip[7]]) & 0x1fff == 0;
        if ip[0] >> 4 != 4 || header_len < 20 || !is_first || ip[9] != PROTOCOL_TCP {
            return Err(ParseError::BadQuote);
        }
        let address = |at: usize| Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]).into();
        Ok(Self {
            src: address(12),
            dst: address(16),
            packet_len: u16::from_be_bytes([ip[2], ip[3]]).into(),
            tcp: quoted.get(header_len..).ok_or(ParseError::Truncated)?,
        })
    }

    /// Routers on the path may have inserted extension headers before TCP.
    fn parse_v6(quoted: &'a [u8]) -> Result<Self, ParseError> {
        let ip = quoted.first_chunk::<40>().ok_or(ParseError::Truncated)?;
        if ip[0] >> 4 != 6 {
            return Err(ParseError::BadQuote);
        }
        let address = |at: usize| {
            let bytes: [u8; 16] = core::array::from_fn(|i| ip[at + i]);
            Ipv6Addr::from(bytes).into()
        };
        let (mut next, mut rest) = (ip[6], &quoted[40..]);
        for _ in 0..EXTENSION_COUNT_MAX {
            if next == PROTOCOL_TCP {
                break;
            }
            let header = rest.first_chunk::<8>().ok_or(ParseError::Truncated)?;
            let len = match next {
                // Hop-by-hop options, routing, destination options (RFC 8200 section 4).
                0 | 43 | 60 => 8 * (usize::from(header[1]) + 1),
                // First fragment, which includes the TCP header.
                44 if u16::from_be_bytes([header[2], header[3]]) & 0xfff8 == 0 => 8,
                // The length of the Authentication Header is in 4-byte words, minus 2 (RFC 4302
                // section 2.2).
                51 => 4 * (usize::from(header[1]) + 2),
                _ => return Err(ParseError::BadQuote),
            };
            next = header[0];
            rest = rest.get(len..).ok_or(ParseError::Truncated)?;
        }
        if next != PROTOCOL_TCP {
            return Err(ParseError::BadQuote);
        }
        Ok(Self {
            src: address(8),
            dst: address(24),
            packet_len: u32::from(u16::from_be_bytes([ip[4], ip[5]])) + 40,
            tcp: rest,
        })
    }

    /// Builds the error about this packet; `receiver` is the destination of the message.
    fn to_error(&self, kind: IcmpErrorKind, receiver: IpAddr) -> Result<IcmpError, ParseError> {
        let tcp = self.tcp.first_chunk::<TCP_QUOTED_LEN>().ok_or(ParseError::Truncated)?;
        let local_port = u16::from_be_bytes([tcp[0], tcp[1]]);
        let remote_port = u16::from_be_bytes([tcp[2], tcp[3]]);
        if self.src != receiver {
            return Err(ParseError::BadQuote);
        }
        let ack = self.tcp.first_chunk::<TCP_FLAGS_END>().and_then(|tcp| {
            let ack = u32::from_be_bytes([tcp[8], tcp[9], tcp[10], tcp[11]]);
            Flags(tcp[13]).has(Flags::ACK).then_some(Seq(ack))
        });
        Ok(IcmpError {
            kind,
            tuple: FourTuple {
                local: SocketAddr::new(self.src, local_port),
                remote: SocketAddr::new(self.dst, remote_port),
            },
            seq: Seq(u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]])),
            ack,
            packet_len: self.packet_len,
        })
    }
}

#[cfg(test)]
mod tests;
