//! Plain segments: the headers of nearly every segment of an established connection. They have no
//! IP options or extension headers, and no TCP options but timestamps in the layout that every
//! common sender uses. Received ones are compared with the template of their connection, as words,
//! instead of [`Segment::parse`] and a look-up of the four-tuple.

use super::emit::HeaderLayout;
use super::options::TIMESTAMPS_PREFIX;
use super::{
    ETHERNET_LEN, Ecn, Flags, HeaderTemplate, IPV4_LEN, IPV6_LEN, Options, PROTOCOL_TCP,
    ParseError, Segment, TCP_LEN, TIMESTAMPS_LEN, VLAN_ETHERNET_LEN, tcp_sum, unverified,
};
use crate::device::{ChecksumMode, RxFrame};
use crate::wire::bytes::{array_at, be16, be32};
use crate::wire::checksum;
use crate::wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN};
use crate::wire::seq::Seq;

/// Length of the headers in front of the TCP options, by layout.
const V4_LEN: usize = ETHERNET_LEN + IPV4_LEN + TCP_LEN;
const V6_LEN: usize = ETHERNET_LEN + IPV6_LEN + TCP_LEN;
const VLAN_V4_LEN: usize = VLAN_ETHERNET_LEN + IPV4_LEN + TCP_LEN;
const VLAN_V6_LEN: usize = VLAN_ETHERNET_LEN + IPV6_LEN + TCP_LEN;

/// Header fields of a segment without options other than timestamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlainHeader {
    /// Sequence number.
    pub seq: Seq,
    /// Acknowledgment number.
    pub ack: Seq,
    /// Control bits.
    pub flags: Flags,
    /// Window field, not scaled.
    pub window: u16,
    /// ECN field of the IP header.
    pub ecn: Ecn,
    /// Timestamps: TSval, TSecr.
    pub ts: Option<(u32, u32)>,
}

impl PlainHeader {
    /// True if a segment with this header, that begins at `seq`, continues a train of segments with
    /// the header `first`: they differ in the sequence number alone, and in PSH. In particular a
    /// change of the ECN codepoint ends a train (RFC 8257 section 3.2).
    #[inline]
    #[must_use]
    pub fn continues(&self, first: &Self, seq: Seq) -> bool {
        self.seq == seq
            && self.ack == first.ack
            && (self.flags.0 ^ first.flags.0) & !Flags::PSH.0 == 0
            && self.window == first.window
            && self.ecn == first.ecn
            && self.ts == first.ts
    }
}

/// Received segment with a plain header, contiguous in its frame; its checksums are correct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainSegment {
    /// Header fields.
    pub header: PlainHeader,
    /// There are other options, or timestamps in another layout: [`HeaderTemplate::segment`] parses
    /// them. Of such a segment only the rest of the header is plain.
    pub has_other_options: bool,
    /// Start of the payload in the frame.
    pub payload_start: u16,
    /// End of the payload, at least its start. Ethernet padding after it is not included.
    pub payload_end: u16,
}

impl PlainSegment {
    /// Returns the length of the payload in sequence space.
    #[inline]
    #[must_use]
    pub const fn payload_len(&self) -> u32 {
        (self.payload_end - self.payload_start) as u32
    }
}

/// Returns the bytes where a plain segment has its ports, remote one first; `None` if the frame is
/// shorter. Tells connections apart without parsing; other frames have any bytes there.
#[inline]
#[must_use]
pub fn plain_ports(head: &[u8]) -> Option<u32> {
    let fixed = head.first_chunk::<V4_LEN>()?;
    if be16(fixed, 12) == ETHERTYPE_IPV4 {
        return Some(be32(fixed, V4_LEN - TCP_LEN));
    }
    let len = match (be16(fixed, 12), be16(fixed, 16)) {
        (ETHERTYPE_VLAN, ETHERTYPE_IPV4) => VLAN_V4_LEN,
        (ETHERTYPE_VLAN, _) => VLAN_V6_LEN,
        _ => V6_LEN,
    };
    head.get(len - TCP_LEN..len).map(|tcp| be32(tcp, 0))
}

impl Segment {
    /// Returns the fields of a plain header. `None` if there are SACK blocks; options of a SYN are
    /// ignored.
    #[inline]
    #[must_use]
    pub fn plain_header(&self) -> Option<PlainHeader> {
        let &Self { seq, ack, flags, window, ecn, .. } = self;
        let ts = self.options.ts;
        self.options.sack.is_empty().then_some(PlainHeader { seq, ack, flags, window, ecn, ts })
    }
}

impl HeaderTemplate {
    /// Parses a received frame if it is a plain segment of this connection, to its hardware
    /// address, but for its options. `None` if it is any other, is malformed, or consists of
    /// several parts: [`Segment::parse`] then decides. Checksums are verified as there.
    #[inline(never)]
    #[must_use]
    pub fn parse_plain(&self, frame: &impl RxFrame, mode: ChecksumMode) -> Option<PlainSegment> {
        self.parse_plain_inline(frame, mode)
    }

    /// As [`HeaderTemplate::parse_plain`], inlined: for one frame its result stays in registers.
    #[inline(always)]
    #[must_use]
    pub fn parse_plain_inline(
        &self,
        frame: &impl RxFrame,
        mode: ChecksumMode,
    ) -> Option<PlainSegment> {
        match self.layout {
            HeaderLayout::V4 => self.parse_plain_as::<ETHERNET_LEN, IPV4_LEN, V4_LEN>(frame, mode),
            HeaderLayout::V6 => self.parse_plain_as::<ETHERNET_LEN, IPV6_LEN, V6_LEN>(frame, mode),
            HeaderLayout::VlanV4 | HeaderLayout::VlanV6 => self.parse_plain_vlan(frame, mode),
        }
    }

    #[inline(never)]
    fn parse_plain_vlan(&self, frame: &impl RxFrame, mode: ChecksumMode) -> Option<PlainSegment> {
        if self.is_v6() {
            self.parse_plain_as::<VLAN_ETHERNET_LEN, IPV6_LEN, VLAN_V6_LEN>(frame, mode)
        } else {
            self.parse_plain_as::<VLAN_ETHERNET_LEN, IPV4_LEN, VLAN_V4_LEN>(frame, mode)
        }
    }

    /// Parses a frame with an IP header of `IP_LEN` bytes at offset `L3`, and TCP options at `LEN`.
    #[inline(always)]
    fn parse_plain_as<const L3: usize, const IP_LEN: usize, const LEN: usize>(
        &self,
        frame: &impl RxFrame,
        mode: ChecksumMode,
    ) -> Option<PlainSegment> {
        const { assert!(LEN == L3 + IP_LEN + TCP_LEN) };
        // Ethernet: from the wire to this port and VLAN.
        let head = frame.head();
        let fixed = head.first_chunk::<LEN>()?;
        if fixed[..6] != self.macs[6..] {
            return None;
        }
        if L3 == VLAN_ETHERNET_LEN
            && (be16(fixed, 12) != ETHERTYPE_VLAN || be16(fixed, 14) & 0x0fff != self.vlan)
        {
            return None;
        }
        // IP: addresses of the connection, no options or extensions, no fragment.
        let (ecn, end) = if IP_LEN == IPV4_LEN {
            self.match_v4::<L3>(fixed)?
        } else {
            self.match_v6::<L3>(fixed)?
        };
        let tcp = fixed[L3 + IP_LEN..].first_chunk::<TCP_LEN>()?;
        // Source and destination port are our remote and local one.
        let ports = u32::from_ne_bytes(*array_at(tcp, 0)).rotate_left(16);
        if ports != u32::from_ne_bytes(self.ports) {
            return None;
        }
        // Data offset, in words: no options, or timestamps alone (RFC 7323 appendix A).
        let (start, ts) = match tcp[12] >> 4 {
            5 => (LEN, None),
            8 => {
                let options = head[LEN..].first_chunk::<{ TIMESTAMPS_LEN as usize }>()?;
                let is_usual = options[..4] == TIMESTAMPS_PREFIX;
                let ts = is_usual.then(|| (be32(options, 4), be32(options, 8)));
                (LEN + options.len(), ts)
            }
            words @ 6.. => (L3 + IP_LEN + usize::from(words) * 4, None),
            _ => return None,
        };
        // The length in the IP header covers the headers, and is within the frame.
        if end < start || end > head.len() {
            return None;
        }
        // Checksums that the port has not verified.
        if mode != ChecksumMode::NotNeeded {
            let verify = unverified(frame, mode).ok()?;
            if verify.ip && !self.has_correct_checksums(frame, L3, end, verify.tcp) {
                return None;
            }
        }
        // RFC 9293 section 3.1: the fields that vary from segment to segment.
        let header = PlainHeader {
            seq: Seq(be32(tcp, 4)),
            ack: Seq(be32(tcp, 8)),
            flags: Flags(tcp[13]),
            window: be16(tcp, 14),
            ecn,
            ts,
        };
        let has_other_options = start != LEN && ts.is_none();
        let (payload_start, payload_end) = (u16::try_from(start).ok()?, u16::try_from(end).ok()?);
        Some(PlainSegment { header, has_other_options, payload_start, payload_end })
    }

    /// Returns the segment that [`HeaderTemplate::parse_plain`] found in the frame with this head,
    /// as [`Segment::parse`] does.
    ///
    /// # Errors
    /// [`ParseError::BadOption`].
    pub fn segment(&self, plain: &PlainSegment, head: &[u8]) -> Result<Segment, ParseError> {
        let PlainHeader { seq, ack, flags, window, ecn, ts } = plain.header;
        let payload = plain.payload_start.into()..plain.payload_end.into();
        let options = if plain.has_other_options {
            let range = self.l4() + TCP_LEN..payload.start;
            Options::parse(head.get(range).ok_or(ParseError::Truncated)?)?
        } else {
            Options::timestamps(ts)
        };
        Ok(Segment { tuple: self.tuple(), seq, ack, flags, window, ecn, options, payload })
    }

    /// Compares `EtherType` and IPv4 header; returns the ECN field and the end of the packet.
    #[inline(always)]
    fn match_v4<const L3: usize>(&self, fixed: &[u8]) -> Option<(Ecn, usize)> {
        const ETHERTYPE_VERSION_IHL: u32 = (ETHERTYPE_IPV4 as u32) << 8 | 0x45;
        // More Fragments and fragment offset; protocol.
        const MASK: u32 = 0x3fff_00ff;
        let start = be32(fixed, L3 - 2);
        let addresses = u64::from_ne_bytes(*array_at(fixed, L3 + 12)).rotate_left(32);
        let is_match = start >> 8 == ETHERTYPE_VERSION_IHL
            && be32(fixed, L3 + 6) & MASK == PROTOCOL_TCP.into()
            && addresses == u64::from_ne_bytes(*array_at(&self.ip, 12));
        let [.., traffic_class] = start.to_be_bytes();
        let end = L3 + usize::from(be16(fixed, L3 + 2));
        is_match.then_some((Ecn::from_traffic_class(traffic_class), end))
    }

    /// Compares `EtherType` and IPv6 header; returns the ECN field and the end of the packet.
    #[inline(always)]
    fn match_v6<const L3: usize>(&self, fixed: &[u8]) -> Option<(Ecn, usize)> {
        let (local, remote) = self.ip[8..].split_at(16);
        let is_match = be16(fixed, L3 - 2) == ETHERTYPE_IPV6
            && fixed[L3] >> 4 == 6
            && fixed[L3 + 6] == PROTOCOL_TCP
            && fixed[L3 + 8..L3 + 24] == *remote
            && fixed[L3 + 24..L3 + 40] == *local;
        let end = L3 + IPV6_LEN + usize::from(be16(fixed, L3 + 4));
        is_match.then_some((Ecn::from_traffic_class(fixed[L3 + 1] >> 4), end))
    }

    /// Verifies the checksums of IPv4 and, with `tcp`, of TCP. The packet is at `l3..end`, in the
    /// first part of the frame.
    // req: MPA-024
    fn has_correct_checksums(
        &self,
        frame: &impl RxFrame,
        l3: usize,
        end: usize,
        tcp: bool,
    ) -> bool {
        let ip_len = if self.is_v6() { IPV6_LEN } else { IPV4_LEN };
        (self.is_v6() || checksum::sum(&frame.head()[l3..l3 + ip_len]) == 0xffff)
            && (!tcp || tcp_sum(frame, self.address_sum, l3 + ip_len..end) == 0xffff)
    }

    /// Writes plain headers to the start of `buf`, as [`HeaderTemplate::emit`] does, and returns
    /// the length of the frame.
    ///
    /// # Panics
    /// If `buf` is shorter than headers and payload, or the IP packet longer than 65,535 bytes.
    #[inline(always)]
    pub fn emit_plain(
        &self,
        buf: &mut [u8],
        header: &PlainHeader,
        payload_len: usize,
        mode: ChecksumMode,
    ) -> usize {
        let header_len = self.emit_plain_headers(buf, header, payload_len, mode);
        let total = header_len + payload_len;
        if mode != ChecksumMode::NotNeeded {
            self.emit_checksum(&mut buf[self.l4()..total], mode);
        }
        total
    }

    /// As [`HeaderTemplate::emit_plain`], without the TCP checksum, which is zero. Returns the
    /// length of the headers.
    ///
    /// # Panics
    /// If `buf` is shorter than the headers, or the IP packet longer than 65,535 bytes.
    #[inline(always)]
    pub fn emit_plain_headers(
        &self,
        buf: &mut [u8],
        header: &PlainHeader,
        payload_len: usize,
        mode: ChecksumMode,
    ) -> usize {
        let options_len = if header.ts.is_some() { usize::from(TIMESTAMPS_LEN) } else { 0 };
        let base_len = self.emit_base(buf, header, options_len, payload_len, mode);
        if let Some((val, ecr)) = header.ts {
            let options: &mut [u8; TIMESTAMPS_LEN as usize] =
                buf[base_len..].first_chunk_mut().expect("a buffer longer than the headers");
            options[..4].copy_from_slice(&TIMESTAMPS_PREFIX);
            let stamps = u64::from(val) << 32 | u64::from(ecr);
            options[4..].copy_from_slice(&stamps.to_be_bytes());
        }
        base_len + options_len
    }

    /// Writes the headers without TCP options, which are `options_len` bytes long and follow; the
    /// TCP checksum is zero. Returns the length written. Timestamps in `header` are ignored.
    ///
    /// # Panics
    /// If `buf` is shorter than these headers, or the IP packet longer than 65,535 bytes.
    #[inline(always)]
    pub(super) fn emit_base(
        &self,
        buf: &mut [u8],
        header: &PlainHeader,
        options_len: usize,
        payload_len: usize,
        mode: ChecksumMode,
    ) -> usize {
        let len = options_len + payload_len;
        match self.layout {
            HeaderLayout::V4 => {
                self.emit_as::<ETHERNET_LEN, IPV4_LEN, V4_LEN>(buf, header, options_len, len, mode)
            }
            HeaderLayout::V6 => {
                self.emit_as::<ETHERNET_LEN, IPV6_LEN, V6_LEN>(buf, header, options_len, len, mode)
            }
            _ => self.emit_base_vlan(buf, header, options_len, len, mode),
        }
    }

    #[inline(never)]
    fn emit_base_vlan(
        &self,
        buf: &mut [u8],
        header: &PlainHeader,
        options_len: usize,
        len: usize,
        mode: ChecksumMode,
    ) -> usize {
        const L3: usize = VLAN_ETHERNET_LEN;
        if self.is_v6() {
            self.emit_as::<L3, IPV6_LEN, VLAN_V6_LEN>(buf, header, options_len, len, mode)
        } else {
            self.emit_as::<L3, IPV4_LEN, VLAN_V4_LEN>(buf, header, options_len, len, mode)
        }
    }

    /// Writes headers of `LEN` bytes, with an IP header of `IP_LEN` bytes at offset `L3`; `rest`
    /// bytes follow.
    #[inline(always)]
    fn emit_as<const L3: usize, const IP_LEN: usize, const LEN: usize>(
        &self,
        buf: &mut [u8],
        header: &PlainHeader,
        options_len: usize,
        rest: usize,
        mode: ChecksumMode,
    ) -> usize {
        const { assert!(LEN == L3 + IP_LEN + TCP_LEN) };
        let frame = buf.first_chunk_mut::<LEN>().expect("a buffer longer than the headers");
        let l4 = L3 + IP_LEN;
        let ethertype = if IP_LEN == IPV4_LEN { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
        frame[..12].copy_from_slice(&self.macs);
        if L3 == VLAN_ETHERNET_LEN {
            frame[12..14].copy_from_slice(&ETHERTYPE_VLAN.to_be_bytes());
            frame[14..16].copy_from_slice(&self.vlan.to_be_bytes());
        }
        frame[L3 - 2..L3].copy_from_slice(&ethertype.to_be_bytes());
        // IPv4 counts its header, IPv6 does not.
        let counted = if IP_LEN == IPV4_LEN { LEN - L3 } else { LEN - l4 } + rest;
        let ip_len = u16::try_from(counted).expect("an IP packet fits 16 bits");
        let ip = &mut frame[L3..l4];
        if IP_LEN == IPV4_LEN {
            self.write_v4(ip, ip_len, header.ecn, mode);
        } else {
            self.write_v6(ip, ip_len, header.ecn);
        }
        let tcp = &mut frame[l4..];
        tcp[..4].copy_from_slice(&self.ports);
        let numbers = u64::from(header.seq.0) << 32 | u64::from(header.ack.0);
        tcp[4..12].copy_from_slice(&numbers.to_be_bytes());
        // Data offset: the header has at most 60 bytes, 15 words. Checksum and urgent pointer are
        // zero.
        let words = ((TCP_LEN + options_len) / 4) as u64;
        let offset_flags = words << 60 | u64::from(header.flags.0) << 48;
        let fields = offset_flags | u64::from(header.window) << 32;
        tcp[12..20].copy_from_slice(&fields.to_be_bytes());
        LEN
    }

    /// Writes the IPv4 header of a packet of `ip_len` bytes, header included.
    #[inline(always)]
    fn write_v4(&self, ip: &mut [u8], ip_len: u16, ecn: Ecn, mode: ChecksumMode) {
        // Version and IHL, DSCP and ECN, length.
        let start = be32(&self.ip, 0) | (ecn as u32) << 16 | u32::from(ip_len);
        ip[..4].copy_from_slice(&start.to_be_bytes());
        ip[4..20].copy_from_slice(&self.ip[4..20]);
        if matches!(mode, ChecksumMode::Software | ChecksumMode::OffloadTcp) {
            let varying = u32::from(ip_len) + ecn as u32;
            let sum = !checksum::fold(u32::from(self.ip_sum) + varying);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
    }

    /// Writes the IPv6 header of a packet with `payload_len` bytes of payload.
    #[inline(always)]
    fn write_v6(&self, ip: &mut [u8], payload_len: u16, ecn: Ecn) {
        // Version, traffic class and flow label; length, next header and hop limit.
        let start = u64::from_be_bytes(*array_at(&self.ip, 0));
        let start = start | (ecn as u64) << 52 | u64::from(payload_len) << 16;
        ip[..8].copy_from_slice(&start.to_be_bytes());
        ip[8..40].copy_from_slice(&self.ip[8..]);
    }
}

#[cfg(test)]
mod tests;
