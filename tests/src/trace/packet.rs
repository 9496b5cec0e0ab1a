//! Frames of a trace, written and parsed without the stack's wire code, so that an error there does
//! not go undetected.

use std::net::{IpAddr, SocketAddr};

/// Length of an Ethernet header.
const ETHERNET: usize = 14;

/// Control bits by letter, from the lowest bit up.
const LETTERS: [(char, u8); 8] = [
    ('F', 0x01),
    ('S', 0x02),
    ('R', 0x04),
    ('P', 0x08),
    ('.', 0x10),
    ('U', 0x20),
    ('E', 0x40),
    ('W', 0x80),
];

/// FIN.
pub const FIN: u8 = 0x01;
/// SYN.
pub const SYN: u8 = 0x02;
/// RST.
pub const RST: u8 = 0x04;
/// PSH.
pub const PSH: u8 = 0x08;
/// ACK.
pub const ACK: u8 = 0x10;

/// Parses control bits from their letters.
#[must_use]
pub fn flags(letters: &str) -> Option<u8> {
    if letters == "-" {
        return Some(0);
    }
    letters.chars().try_fold(0, |flags, letter| {
        let (_, bit) = LETTERS.iter().find(|(known, _)| *known == letter)?;
        Some(flags | bit)
    })
}

/// Returns the letters of control bits, SYN first, ACK last.
#[must_use]
pub fn letters(flags: u8) -> String {
    let order = ['S', 'F', 'R', 'P', 'U', 'E', 'W', '.'];
    let bit =
        |letter| LETTERS.iter().find(|(known, _)| *known == letter).map_or(0, |(_, bit)| *bit);
    let letters: String = order.into_iter().filter(|letter| flags & bit(*letter) != 0).collect();
    if letters.is_empty() { "-".to_owned() } else { letters }
}

/// A TCP segment with absolute sequence numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Source address and port.
    pub source: SocketAddr,
    /// Destination address and port.
    pub target: SocketAddr,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgment number.
    pub ack: u32,
    /// Control bits.
    pub flags: u8,
    /// Window field.
    pub window: u16,
    /// ECN field of the IP header.
    pub ecn: u8,
    /// Maximum segment size.
    pub mss: Option<u16>,
    /// Window scale.
    pub wscale: Option<u8>,
    /// SACK permitted.
    pub sack_permitted: bool,
    /// Timestamps.
    pub ts: Option<(u32, u32)>,
    /// SACK blocks.
    pub sack: Vec<(u32, u32)>,
    /// Further option bytes, sent unchanged; their number is a multiple of four.
    pub raw_options: Vec<u8>,
    /// Payload.
    pub payload: Vec<u8>,
}

impl Packet {
    /// A segment with all fields zero or absent.
    #[must_use]
    pub const fn new(source: SocketAddr, target: SocketAddr) -> Self {
        Self {
            source,
            target,
            seq: 0,
            ack: 0,
            flags: 0,
            window: 0,
            ecn: 0,
            mss: None,
            wscale: None,
            sack_permitted: false,
            ts: None,
            sack: Vec::new(),
            raw_options: Vec::new(),
            payload: Vec::new(),
        }
    }

    /// Length in sequence space.
    #[must_use]
    pub fn seq_len(&self) -> u32 {
        let payload = u32::try_from(self.payload.len()).expect("a payload is below 64 KiB");
        payload + u32::from(self.flags & SYN != 0) + u32::from(self.flags & FIN != 0)
    }

    fn options(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if let Some(mss) = self.mss {
            out.extend([2, 4]);
            out.extend(mss.to_be_bytes());
        }
        if self.sack_permitted {
            out.extend([1, 1, 4, 2]);
        }
        if let Some(shift) = self.wscale {
            out.extend([1, 3, 3, shift]);
        }
        if let Some((val, ecr)) = self.ts {
            out.extend([1, 1, 8, 10]);
            out.extend(val.to_be_bytes());
            out.extend(ecr.to_be_bytes());
        }
        if !self.sack.is_empty() {
            let len = u8::try_from(2 + 8 * self.sack.len()).expect("a few blocks");
            out.extend([1, 1, 5, len]);
            for (start, end) in &self.sack {
                out.extend(start.to_be_bytes());
                out.extend(end.to_be_bytes());
            }
        }
        out.extend(&self.raw_options);
        assert!(out.len() <= 40 && out.len().is_multiple_of(4), "the options do not fit");
        out
    }

    /// Builds the frame for it, between two MAC addresses.
    ///
    /// # Panics
    /// If it does not fit in an IP packet.
    #[must_use]
    pub fn frame(&self, from: [u8; 6], to: [u8; 6]) -> Vec<u8> {
        let options = self.options();
        let tcp_len = 20 + options.len() + self.payload.len();
        let mut frame = Vec::new();
        frame.extend(to);
        frame.extend(from);
        match (self.source.ip(), self.target.ip()) {
            (IpAddr::V4(source), IpAddr::V4(target)) => {
                let len = u16::try_from(20 + tcp_len).expect("an IPv4 packet");
                frame.extend([0x08, 0x00, 0x45, self.ecn]);
                frame.extend(len.to_be_bytes());
                frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
                frame.extend(source.octets());
                frame.extend(target.octets());
                let sum = !sum(&frame[ETHERNET..], 0);
                frame[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum.to_be_bytes());
            }
            (IpAddr::V6(source), IpAddr::V6(target)) => {
                let len = u16::try_from(tcp_len).expect("an IPv6 packet");
                frame.extend([0x86, 0xdd, 0x60, self.ecn << 4, 0, 0]);
                frame.extend(len.to_be_bytes());
                frame.extend([6, 64]);
                frame.extend(source.octets());
                frame.extend(target.octets());
            }
            _ => panic!("one family"),
        }
        let at = frame.len();
        frame.extend(self.source.port().to_be_bytes());
        frame.extend(self.target.port().to_be_bytes());
        frame.extend(self.seq.to_be_bytes());
        frame.extend(self.ack.to_be_bytes());
        let words = u8::try_from(5 + options.len() / 4).expect("at most 15");
        frame.extend([words << 4, self.flags]);
        frame.extend(self.window.to_be_bytes());
        frame.extend([0; 4]);
        frame.extend(options);
        frame.extend(&self.payload);
        let sum = !sum(&frame[at..], pseudo(self.source.ip(), self.target.ip(), tcp_len));
        frame[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
        frame
    }

    /// Parses a frame; all lengths and checksums have to be correct.
    ///
    /// # Errors
    /// Describes the error.
    pub fn read(frame: &[u8]) -> Result<Self, String> {
        let short = || "the frame is cut off".to_owned();
        let ip = frame.get(ETHERNET..).ok_or_else(short)?;
        let (source, target, ecn, tcp): (IpAddr, IpAddr, u8, &[u8]) = match frame[12..14] {
            [0x08, 0x00] => {
                let header = ip.get(..20).ok_or_else(short)?;
                if header[0] != 0x45 || header[9] != 6 || sum(header, 0) != 0xffff {
                    return Err("a wrong IPv4 header".to_owned());
                }
                let tcp = ip.get(20..usize::from(be16(header, 2))).ok_or_else(short)?;
                let address = |at| -> [u8; 4] { header[at..at + 4].try_into().expect("4 of 20") };
                (address(12).into(), address(16).into(), header[1] & 3, tcp)
            }
            [0x86, 0xdd] => {
                let header = ip.get(..40).ok_or_else(short)?;
                if header[0] >> 4 != 6 || header[6] != 6 {
                    return Err("a wrong IPv6 header".to_owned());
                }
                let tcp = ip.get(40..40 + usize::from(be16(header, 4))).ok_or_else(short)?;
                let address =
                    |at| -> [u8; 16] { header[at..at + 16].try_into().expect("16 of 40") };
                (address(8).into(), address(24).into(), header[1] >> 4 & 3, tcp)
            }
            _ => return Err("no IP packet".to_owned()),
        };
        if tcp.len() < 20 || sum(tcp, pseudo(source, target, tcp.len())) != 0xffff {
            return Err("a wrong TCP checksum".to_owned());
        }
        let header_len = usize::from(tcp[12] >> 4) * 4;
        let options = tcp.get(20..header_len).ok_or("a wrong TCP header length")?;
        let mut packet =
            Self::new(SocketAddr::new(source, be16(tcp, 0)), SocketAddr::new(target, be16(tcp, 2)));
        packet.seq = be32(tcp, 4);
        packet.ack = be32(tcp, 8);
        packet.flags = tcp[13];
        packet.window = be16(tcp, 14);
        packet.ecn = ecn;
        packet.payload = tcp[header_len..].to_vec();
        packet.read_options(options)?;
        Ok(packet)
    }

    fn read_options(&mut self, mut rest: &[u8]) -> Result<(), String> {
        while let Some(&kind) = rest.first() {
            match kind {
                0 => return Ok(()),
                1 => {
                    rest = &rest[1..];
                    continue;
                }
                _ => {}
            }
            let len = rest.get(1).map_or(0, |len| usize::from(*len));
            let body = rest.get(2..len.max(2)).filter(|_| len >= 2);
            let Some(body) = body else { return Err("an option is cut off".to_owned()) };
            match (kind, body.len()) {
                (2, 2) => self.mss = Some(be16(body, 0)),
                (3, 1) => self.wscale = Some(body[0]),
                (4, 0) => self.sack_permitted = true,
                (5, 8 | 16 | 24 | 32) => {
                    self.sack = body.chunks(8).map(|b| (be32(b, 0), be32(b, 4))).collect();
                }
                (8, 8) => self.ts = Some((be32(body, 0), be32(body, 4))),
                _ => return Err(format!("an option of kind {kind} with {len} bytes")),
            }
            rest = &rest[len..];
        }
        Ok(())
    }
}

/// True for TCP over IPv4 or IPv6.
#[must_use]
pub fn is_tcp(frame: &[u8]) -> bool {
    match frame.get(12..14) {
        Some([0x08, 0x00]) => frame.get(ETHERNET + 9) == Some(&6),
        Some([0x86, 0xdd]) => frame.get(ETHERNET + 6) == Some(&6),
        _ => false,
    }
}

/// The reply to an ARP request, with `mac` for any address. `None` for other frames.
#[must_use]
pub fn arp_reply(frame: &[u8], mac: [u8; 6]) -> Option<Vec<u8>> {
    let packet = frame.get(14..42).filter(|packet| frame[12..14] == [8, 6] && packet[7] == 1)?;
    let (sender_mac, sender_ip, target_ip) = (&packet[8..14], &packet[14..18], &packet[24..28]);
    let mut reply = [sender_mac, &mac, &frame[12..14], &packet[..7], &[2], &mac].concat();
    reply.extend([target_ip, sender_mac, sender_ip].concat());
    Some(reply)
}

/// The byte at a position of a stream; `ours` selects one of the two streams of a connection.
#[must_use]
pub fn pattern(ours: bool, at: u32) -> u8 {
    let mixed = (at ^ u32::from(ours) << 31).wrapping_add(1).wrapping_mul(0x9e37_79b1);
    mixed.to_be_bytes()[0]
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The one's complement sum of RFC 1071 over 16-bit words, folded.
fn sum(bytes: &[u8], start: u32) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|word| u32::from(u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)])));
    let mut sum = words.fold(start, |sum, word| sum + word);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).expect("folded")
}

fn pseudo(source: IpAddr, target: IpAddr, tcp_len: usize) -> u32 {
    let words = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => u32::from(sum(&ip.octets(), 0)),
        IpAddr::V6(ip) => u32::from(sum(&ip.octets(), 0)),
    };
    words(source) + words(target) + 6 + u32::try_from(tcp_len).expect("below 64 KiB")
}

#[cfg(test)]
mod tests {
    use super::{ACK, PSH, Packet, flags, letters};

    #[test]
    fn packet_round_trip() {
        for family in ["198.18.0.1:7", "[fd00::1]:7"] {
            let end = family.parse().unwrap();
            let mut packet = Packet::new(end, end);
            packet.seq = 0xffff_fffe;
            packet.flags = ACK | PSH;
            packet.ecn = 2;
            packet.mss = Some(1460);
            packet.wscale = Some(7);
            packet.ts = Some((1, 2));
            packet.sack = vec![(3, 4)];
            packet.payload = vec![1, 2, 3];
            let mut frame = packet.frame([1; 6], [2; 6]);
            assert_eq!(Packet::read(&frame), Ok(packet));
            *frame.last_mut().unwrap() ^= 1;
            assert!(Packet::read(&frame).is_err());
        }
    }

    #[test]
    fn letters_name_flags() {
        assert_eq!(flags("S."), Some(0x12));
        assert_eq!(flags("-"), Some(0));
        assert_eq!(flags("Q"), None);
        assert_eq!(letters(0x12), "S.");
        assert_eq!(letters(0), "-");
    }
}
