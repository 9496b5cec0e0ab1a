//! A link with a smaller MTU that changes over time, and the ICMP errors of its router.

use ferrowarp_proto::time::Instant;
use ferrowarp_proto::wire::checksum;
use ferrowarp_proto::wire::ethernet::{ETHERNET_LEN, ETHERTYPE_VLAN, VLAN_ETHERNET_LEN};
use ferrowarp_proto::wire::ip::{IPV4_LEN, IPV6_LEN, PROTOCOL_ICMP, PROTOCOL_ICMPV6};

/// Bytes of the packet quoted over IPv6: as many as fit the minimum IPv6 MTU (1,280 bytes).
const QUOTED_MAX: usize = 1280 - IPV6_LEN - 8;
/// Offset of a byte of the sequence number in the TCP header.
const SEQ_AT: usize = 5;

/// ICMP behaviour for packets above the MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpReply {
    /// No error: a black hole.
    Silent,
    /// An ICMP error with the next-hop MTU.
    WithMtu,
    /// Over IPv4, an ICMP error without the MTU, as from a router older than RFC 1191.
    WithoutMtu,
}

/// The router.
#[derive(Clone, Copy, Debug)]
pub struct Router {
    /// Its MTU in each of four phases, which repeat.
    pub mtus: [usize; 4],
    /// Length of a phase in nanoseconds.
    pub phase_ns: u64,
    /// ICMP behaviour for packets above the MTU.
    pub icmp_reply: IcmpReply,
    /// Each ICMP error is preceded by a forged one, which quotes a sequence number not in flight.
    pub forged: bool,
}

impl Router {
    fn mtu(&self, now: Instant) -> usize {
        let turn = now.as_nanos() / self.phase_ns % self.mtus.len() as u64;
        self.mtus[usize::try_from(turn).expect("four turns")]
    }

    /// Returns the ICMP errors to send back for a frame; `None` if the frame is forwarded.
    #[must_use]
    pub fn filter(&self, now: Instant, frame: &[u8]) -> Option<Vec<Vec<u8>>> {
        let mtu = self.mtu(now);
        let tagged = frame[12..14] == ETHERTYPE_VLAN.to_be_bytes();
        let l3 = if tagged { VLAN_ETHERNET_LEN } else { ETHERNET_LEN };
        if frame.len() - l3 <= mtu {
            return None;
        }
        let next_hop_mtu = match self.icmp_reply {
            IcmpReply::Silent => return Some(Vec::new()),
            IcmpReply::WithoutMtu if frame[l3] >> 4 == 4 => 0,
            IcmpReply::WithMtu | IcmpReply::WithoutMtu => mtu,
        };
        let mut answers = vec![too_big(frame, l3, next_hop_mtu)];
        if self.forged {
            let mut forged = frame.to_vec();
            let l4 = l3 + if frame[l3] >> 4 == 4 { IPV4_LEN } else { IPV6_LEN };
            forged[l4 + SEQ_AT] ^= 0x80;
            answers.insert(0, too_big(&forged, l3, 1280.min(mtu - 1)));
        }
        Some(answers)
    }
}

fn too_big(frame: &[u8], l3: usize, mtu: usize) -> Vec<u8> {
    let kind = if frame[l3] >> 4 == 4 { (3, 4) } else { (2, 0) };
    icmp_error_for(frame, l3, kind, u32::try_from(mtu).expect("a packet is short"))
}

/// Builds the ICMP error about the packet at offset `l3` of `frame`, addressed to its sender.
/// `kind` is type and code, `word` the 32 bits after the checksum. Quotes as much as routers
/// usually do.
#[must_use]
pub fn icmp_error_for(frame: &[u8], l3: usize, kind: (u8, u8), word: u32) -> Vec<u8> {
    let (header, packet) = frame.split_at(l3);
    let is_v4 = packet[0] >> 4 == 4;
    let quoted = if is_v4 { IPV4_LEN + 8 } else { packet.len().min(QUOTED_MAX) };
    let mut icmp = vec![kind.0, kind.1, 0, 0];
    icmp.extend(word.to_be_bytes());
    icmp.extend(&packet[..quoted]);
    let icmp_len = u16::try_from(icmp.len()).expect("an error is short");

    let mut out = [&header[6..12], &header[..6], &header[12..]].concat();
    let mut pseudo = 0;
    if is_v4 {
        let mut ip = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, PROTOCOL_ICMP, 0, 0, 198, 18, 0, 99];
        ip.extend(&packet[12..16]);
        ip[2..4].copy_from_slice(&(icmp_len + 20).to_be_bytes());
        let sum = !checksum::sum(&ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        out.extend(ip);
    } else {
        let [high, low] = icmp_len.to_be_bytes();
        let mut ip = vec![0x60, 0, 0, 0, high, low, PROTOCOL_ICMPV6, 64];
        ip.extend([0x20, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x99]);
        ip.extend(&packet[8..24]);
        pseudo = checksum::add(checksum::sum(&ip[8..]), icmp_len);
        pseudo = checksum::add(pseudo, PROTOCOL_ICMPV6.into());
        out.extend(ip);
    }
    let sum = !checksum::add(pseudo, checksum::sum(&icmp));
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    out.extend(icmp);
    out
}
