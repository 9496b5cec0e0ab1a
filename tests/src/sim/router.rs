//! A link with a smaller MTU that changes over time, and the ICMP errors of its router.

use ferrowarp_proto::time::Instant;
use ferrowarp_proto::wire::ethernet::{ETHERNET_LEN, ETHERTYPE_VLAN, VLAN_ETHERNET_LEN};
use ferrowarp_proto::wire::ip::{IPV4_LEN, IPV6_LEN};

use crate::ip;

/// Offset of a byte of the sequence number in the TCP header.
const SEQ_AT: usize = 5;

/// ICMP behavior for packets above the MTU.
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
    /// ICMP behavior for packets above the MTU.
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
    ip::icmp_error(frame, l3, kind, u32::try_from(mtu).expect("a packet is short"))
}
