//! The parts of a frame that the emulator parses: position of the IP packet, ECN field, payload.

/// Ethernet overhead per frame in bytes: preamble 8, frame check sequence 4, interpacket gap 12
/// (IEEE 802.3).
const FRAME_OVERHEAD_LEN: u64 = 24;

/// Minimum frame length in bytes, without the frame check sequence.
const FRAME_LEN_MIN: u64 = 60;

/// Length of the Ethernet header in bytes.
const ETHERNET_HEADER_LEN: usize = 14;

/// Returns the bytes that a frame of `len` bytes, without frame check sequence, occupies on the
/// link: minimum frame length and overhead included.
#[must_use]
pub const fn wire_bytes(len: usize) -> u64 {
    let len = len as u64;
    FRAME_OVERHEAD_LEN + if len < FRAME_LEN_MIN { FRAME_LEN_MIN } else { len }
}

/// An IP packet in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IpPacket {
    /// Offset of its header in the frame.
    pub(crate) start: usize,
    is_v6: bool,
}

/// Returns the offset of the Ethernet payload, after any VLAN tags, and its EtherType.
fn find_ethertype(frame: &[u8]) -> Option<(usize, u16)> {
    let mut at = ETHERNET_HEADER_LEN - 2;
    loop {
        let kind = u16::from_be_bytes(*frame.get(at..)?.first_chunk()?);
        match kind {
            0x8100 | 0x88a8 => at += 4,
            kind => return Some((at + 2, kind)),
        }
    }
}

impl IpPacket {
    /// Returns the IP packet in `frame`, if there is one with a complete fixed header.
    pub(crate) fn parse(frame: &[u8]) -> Option<Self> {
        let (start, kind) = find_ethertype(frame)?;
        let (is_v6, header) = match kind {
            0x0800 => (false, 20),
            0x86dd => (true, 40),
            _ => return None,
        };
        (frame.len() >= start + header).then_some(Self { start, is_v6 })
    }

    /// Returns the offset of the TCP payload, if this is TCP (for IPv6, without extension headers).
    pub(crate) fn tcp_payload_offset(self, frame: &[u8]) -> Option<usize> {
        let (header, protocol) = if self.is_v6 {
            (40, frame[self.start + 6])
        } else {
            (usize::from(frame[self.start] & 15) * 4, frame[self.start + 9])
        };
        let tcp = self.start + header;
        let words = usize::from(frame.get(tcp + 12)? >> 4);
        (protocol == 6).then_some(tcp + words * 4)
    }

    /// Sets CE (RFC 3168) if the packet is ECN-capable (ECT or CE); else returns false.
    pub(crate) fn set_ce(self, frame: &mut [u8]) -> bool {
        let header = &mut frame[self.start..];
        // The ECN field: the two lowest bits of a byte that IPv6 shifts by four.
        let (at, shift) = if self.is_v6 { (1, 4) } else { (1, 0) };
        let bits = header[at] >> shift & 3;
        if bits == 0 {
            return false;
        }
        header[at] |= 3 << shift;
        if !self.is_v6 {
            // RFC 1624, equation 3: the 16-bit word grew by 3 minus the old ECN field.
            let old = u16::from_be_bytes([header[10], header[11]]);
            let sum = u32::from(!old) + u32::from(3 - bits);
            let folded = (sum & 0xffff) + (sum >> 16);
            let new = !u16::try_from(folded).unwrap_or(u16::MAX);
            header[10..12].copy_from_slice(&new.to_be_bytes());
        }
        true
    }
}

/// Returns the length of the Ethernet payload in bytes: the IP packet and any padding.
pub(crate) fn packet_len(frame: &[u8]) -> usize {
    find_ethertype(frame).map_or(0, |(start, _)| frame.len() - start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(tos: u8, tag: bool) -> Vec<u8> {
        let mut frame = vec![0; 12];
        if tag {
            frame.extend([0x81, 0, 0, 7]);
        }
        frame.extend([8, 0, 0x45, tos, 0, 52, 1, 2, 0x40, 0, 64, 6, 0, 0]);
        frame.extend([198, 18, 0, 1, 198, 18, 0, 2]);
        let start = frame.len() - 20;
        let sum = checksum(&frame[start..]);
        frame[start + 10..start + 12].copy_from_slice(&sum.to_be_bytes());
        frame.extend([0; 12]);
        frame.extend([0x80, 0x10, 0, 0, 0, 0, 0, 0]);
        frame.extend([0; 12]);
        frame
    }

    /// Reference checksum of a header; 0 over a header with a correct checksum.
    fn checksum(header: &[u8]) -> u16 {
        let sum: u32 =
            header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap()
    }

    #[test]
    fn set_ce_updates_ipv4_checksum() {
        for tag in [false, true] {
            for tos in 0..=255 {
                let mut frame = v4(tos, tag);
                let ip = IpPacket::parse(&frame).unwrap();
                assert_eq!(ip.set_ce(&mut frame), tos & 3 != 0);
                let expected = if tos & 3 == 0 { tos } else { tos | 3 };
                assert_eq!(frame[ip.start + 1], expected);
                assert_eq!(checksum(&frame[ip.start..ip.start + 20]), 0, "tos {tos}");
            }
        }
    }

    #[test]
    fn set_ce_writes_ipv6_traffic_class() {
        let mut frame = vec![0; 12];
        frame.extend([0x86, 0xdd, 0x60, 0x20, 0, 0, 0, 0, 6, 64]);
        frame.extend([0; 32]);
        let ip = IpPacket::parse(&frame).unwrap();
        assert!(ip.set_ce(&mut frame));
        assert_eq!(frame[14..16], [0x60, 0x30]);
        frame[15] = 0x0f;
        assert!(!ip.set_ce(&mut frame));
        assert_eq!(frame[15], 0x0f);
    }

    #[test]
    fn tcp_payload_offset_skips_vlan_ip_and_tcp_options() {
        let frame = v4(0, true);
        let ip = IpPacket::parse(&frame).unwrap();
        assert_eq!(ip.start, 18);
        assert_eq!(ip.tcp_payload_offset(&frame), Some(18 + 20 + 32));
        assert_eq!(packet_len(&frame), 52);
        let mut udp = frame;
        udp[18 + 9] = 17;
        assert_eq!(ip.tcp_payload_offset(&udp), None);
    }

    #[test]
    fn non_ip_frames_are_not_parsed() {
        let mut arp = vec![0; 42];
        arp[12..14].copy_from_slice(&[8, 6]);
        for frame in [&[][..], &[0; 13], &arp, &v4(1, false)[..33]] {
            assert_eq!(IpPacket::parse(frame), None);
        }
    }

    #[test]
    fn short_frames_count_as_minimum_length() {
        assert_eq!(wire_bytes(54), 84);
        assert_eq!(wire_bytes(1514), 1538);
    }
}
