//! TCP segments over IP and Ethernet: parsing of received segments and header templates for sent
//! ones (RFC 9293 section 3.1, RFC 7323, RFC 2018).
//!
//! Neither uses smoltcp, for two reasons: both run once per packet, and smoltcp's option parser
//! keeps three SACK blocks of four. A frame is Ethernet II with or without an 802.1Q tag. It
//! carries IPv4, whose options are skipped, or IPv6, whose skippable extension headers are skipped.

mod emit;
mod ip_header;
mod options;
mod plain;
#[cfg(test)]
mod tests;

use core::fmt;
use core::hash::{Hash, Hasher};
use core::net::{IpAddr, SocketAddr};
use core::ops::{BitOr, Range};

use super::bytes::{be16, be32};
use super::checksum::{self, Accumulator};
use super::ethernet::VLAN_ETHERNET_LEN;
use super::ip::PROTOCOL_TCP;
use super::seq::Seq;
use crate::device::{ChecksumMode, ChecksumState, RxFrame};
use ip_header::IpHeader;

pub use emit::{Fields, HeaderTemplate, rst_reply};
pub use options::{MAX_WSCALE, Options, SackBlock, TIMESTAMPS_LEN};
pub use plain::{PlainHeader, PlainSegment, plain_ports};

pub use super::ethernet::ETHERNET_LEN;
pub use super::ip::Ecn;
pub use super::ip::{IPV4_LEN, IPV6_LEN};
pub use super::parse_error::ParseError;

/// Length of a TCP header without options, in bytes.
pub const TCP_LEN: usize = 20;
/// Maximum header length of a frame, in bytes: Ethernet, VLAN tag, IPv6, TCP with all options.
pub const MAX_HEADER_LEN: usize = VLAN_ETHERNET_LEN + IPV6_LEN + 60;
/// Four-tuple of a connection: local and remote address and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FourTuple {
    /// Local address and port: the destination of received segments.
    pub local: SocketAddr,
    /// Remote address and port: the source of received segments.
    pub remote: SocketAddr,
}

/// Makes as few writes as possible: the cost of a keyed hash grows with their number.
impl Hash for FourTuple {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        let ports = u64::from(self.local.port()) << 16 | u64::from(self.remote.port());
        match (self.local.ip(), self.remote.ip()) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                state.write_u64(u64::from(local.to_bits()) << 32 | u64::from(remote.to_bits()));
            }
            (local, remote) => {
                for ip in [local, remote] {
                    let bits = match ip {
                        IpAddr::V4(ip) => u128::from(ip.to_bits()),
                        IpAddr::V6(ip) => ip.to_bits(),
                    };
                    state.write_u128(bits);
                }
            }
        }
        state.write_u64(ports);
    }
}

/// Control bits, in the order of the header's 14th byte (RFC 9293 section 3.1).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronize sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// Reset the connection.
    pub const RST: Self = Self(0x04);
    /// Push function.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgment field is significant.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer is significant; ignored, since MPA has no urgent data.
    pub const URG: Self = Self(0x20);
    /// ECN-Echo (RFC 3168).
    pub const ECE: Self = Self(0x40);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: Self = Self(0x80);

    /// True if every bit of `other` is set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// True if any bit of `other` is set.
    #[must_use]
    pub const fn any(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [char; 8] = ['F', 'S', 'R', 'P', '.', 'U', 'E', 'W'];
        for (bit, name) in NAMES.into_iter().enumerate() {
            if self.0 & (1 << bit) != 0 {
                fmt::Write::write_char(f, name)?;
            }
        }
        Ok(())
    }
}

/// Header fields of a received segment, whose checksums are correct (see [`Segment::parse`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Four-tuple of its connection; `local` is the destination.
    pub tuple: FourTuple,
    /// Sequence number of the first byte, or of the SYN.
    pub seq: Seq,
    /// Acknowledgment number; significant with [`Flags::ACK`].
    pub ack: Seq,
    /// Control bits.
    pub flags: Flags,
    /// Window field, not scaled.
    pub window: u16,
    /// ECN field of the IP header.
    pub ecn: Ecn,
    /// Options.
    pub options: Options,
    /// Range of the payload in the frame. Ethernet padding after it is not included.
    pub payload: Range<usize>,
}

impl Segment {
    /// Returns the length of the payload in sequence space.
    #[expect(clippy::cast_possible_truncation, reason = "a payload is below 64 KiB")]
    #[inline]
    #[must_use]
    pub fn payload_len(&self) -> u32 {
        self.payload.len() as u32
    }

    /// Returns the length in sequence space (`SEG.LEN`): payload, SYN and FIN.
    #[must_use]
    pub fn seq_len(&self) -> u32 {
        self.payload_len()
            + u32::from(self.flags.has(Flags::SYN))
            + u32::from(self.flags.has(Flags::FIN))
    }

    /// Parses a frame without VLAN tag. All headers must lie in [`RxFrame::head`]; the payload may
    /// extend beyond it.
    ///
    /// Except in mode `NotNeeded`, checksums are verified here if the port has not done so
    /// ([`RxFrame::checksum`]). Cost: about 25 ns, and one pass over the bytes if checksums
    /// are verified.
    ///
    /// # Errors
    /// See [`ParseError`]; the first cause found.
    #[inline]
    pub fn parse(frame: &impl RxFrame, mode: ChecksumMode) -> Result<Self, ParseError> {
        Self::parse_at::<ETHERNET_LEN>(frame, mode)
    }

    /// As [`Segment::parse`], for a frame with one VLAN tag, whose contents are not checked.
    ///
    /// # Errors
    /// See [`ParseError`]; the first cause found.
    #[inline(never)]
    pub fn parse_vlan(frame: &impl RxFrame, mode: ChecksumMode) -> Result<Self, ParseError> {
        Self::parse_at::<VLAN_ETHERNET_LEN>(frame, mode)
    }

    /// Parses a frame whose IP header is at offset `L3`, with the `EtherType` in front of it.
    #[inline(always)]
    fn parse_at<const L3: usize>(
        frame: &impl RxFrame,
        mode: ChecksumMode,
    ) -> Result<Self, ParseError> {
        let head = frame.head();
        let verify = unverified(frame, mode)?;
        let ip = IpHeader::parse::<L3>(head, verify.ip)?;
        if ip.end > frame.len() {
            return Err(ParseError::Truncated);
        }
        let tcp = head.get(ip.l4..).ok_or(ParseError::Truncated)?;
        let fixed = tcp.first_chunk::<TCP_LEN>().ok_or(ParseError::Truncated)?;
        let header_len = usize::from(fixed[12] >> 4) * 4;
        if header_len < TCP_LEN || ip.l4 + header_len > ip.end {
            return Err(ParseError::BadHeaderLength);
        }
        let options = Options::parse(tcp.get(TCP_LEN..header_len).ok_or(ParseError::Truncated)?)?;
        // req: MPA-024
        if verify.tcp && tcp_sum(frame, ip.address_sum, ip.l4..ip.end) != 0xffff {
            return Err(ParseError::BadTcpChecksum);
        }
        let (remote_port, local_port) = (be16(fixed, 0), be16(fixed, 2));
        if remote_port == 0 || local_port == 0 {
            return Err(ParseError::BadAddress);
        }
        Ok(Self {
            tuple: FourTuple {
                local: SocketAddr::new(ip.dst, local_port),
                remote: SocketAddr::new(ip.src, remote_port),
            },
            seq: Seq(be32(fixed, 4)),
            ack: Seq(be32(fixed, 8)),
            flags: Flags(fixed[13]),
            window: be16(fixed, 14),
            ecn: ip.ecn,
            options,
            payload: ip.l4 + header_len..ip.end,
        })
    }
}

/// Checksums of a received frame that are to be verified here: `tcp` implies `ip`.
struct Unverified {
    ip: bool,
    tcp: bool,
}

/// Returns the checksums to be verified here: they are needed, and the port has not verified them.
///
/// # Errors
/// [`ParseError::BadTcpChecksum`] if the port found one of them wrong.
#[inline]
fn unverified(frame: &impl RxFrame, mode: ChecksumMode) -> Result<Unverified, ParseError> {
    let (ip, tcp) = match (mode, frame.checksum()) {
        (ChecksumMode::NotNeeded, _) | (_, ChecksumState::Good) => (false, false),
        (_, ChecksumState::Bad) => return Err(ParseError::BadTcpChecksum),
        (_, ChecksumState::TransportGood) => (true, false),
        (_, ChecksumState::Unknown) => (true, true),
    };
    Ok(Unverified { ip, tcp })
}

/// Returns the sum over pseudo-header and `segment`, the position of TCP header and payload: 0xffff
/// if the checksum is correct.
fn tcp_sum(frame: &impl RxFrame, address_sum: u16, segment: Range<usize>) -> u16 {
    let head = frame.head();
    let mut accumulator = Accumulator::new(pseudo_sum(address_sum, segment.len()));
    let in_head = head.len().min(segment.end);
    accumulator.push(&head[segment.start..in_head]);
    if in_head < segment.end {
        push_tail(frame, in_head..segment.end, &mut accumulator);
    }
    accumulator.finish()
}

/// Adds bytes behind the head of a frame of several segments: they are copied and summed in pieces.
/// A function of its own, so that no buffer is zeroed for the others.
#[inline(never)]
fn push_tail(frame: &impl RxFrame, mut bytes: Range<usize>, accumulator: &mut Accumulator) {
    let mut buffer = [0; 512];
    while !bytes.is_empty() {
        let part = bytes.len().min(buffer.len());
        frame.copy_out(bytes.start, &mut buffer[..part]);
        accumulator.push(&buffer[..part]);
        bytes.start += part;
    }
}

/// Returns the pseudo-header sum: addresses, protocol, TCP length (header and payload).
#[expect(clippy::cast_possible_truncation, reason = "an IP packet is below 64 KiB + 40")]
const fn pseudo_sum(address_sum: u16, tcp_len: usize) -> u16 {
    checksum::fold(address_sum as u32 + PROTOCOL_TCP as u32 + tcp_len as u32)
}
