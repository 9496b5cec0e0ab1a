//! Checks that a port spreads received segments as its hash key and redirection table say.
//!
//! A connection selects a source port by them, so that its segments arrive at its own shard. If the
//! port hashed otherwise, every segment would be forwarded by the shard on which it arrives: slow,
//! and visible only as a counter. So the first segments of each queue are compared.

use dpdk_sys::RssConfig;
use ferrowarp_proto::device::ChecksumMode;
use ferrowarp_proto::steering::toeplitz::RssTable;
use ferrowarp_proto::wire::tcp::{FourTuple, Segment};

use crate::device::frame::DpdkRx;

/// Segments of each queue that are compared. Each costs about 300 ns.
const CHECKED_MAX: u32 = 256;

/// Check of one receive queue.
#[derive(Debug)]
pub(super) struct RssCheck {
    table: RssTable,
    has_ipv6: bool,
    queue: u16,
    left: u32,
}

/// Result of a check of received frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Checked {
    /// Segments compared.
    pub(super) segments: u32,
    /// Segments with another hash, or on another queue, than predicted.
    pub(super) mismatches: u32,
}

impl RssCheck {
    /// `queue`: number of the queue in the table. `None` if the table cannot be computed with.
    pub(super) fn new(rss: &RssConfig, queue: u16) -> Option<Self> {
        let table = RssTable::new(&rss.key, &rss.table).ok().filter(|_| rss.tcp_ipv4)?;
        Some(Self { table, has_ipv6: rss.tcp_ipv6, queue, left: CHECKED_MAX })
    }

    /// True if it has seen enough.
    pub(super) const fn is_done(&self) -> bool {
        self.left == 0
    }

    /// Compares received frames.
    pub(super) fn check(&mut self, frames: &[DpdkRx]) -> Checked {
        let mut checked = Checked::default();
        for frame in frames {
            if self.is_done() {
                break;
            }
            let segment = Segment::parse(frame, ChecksumMode::NotNeeded);
            let segment = segment.or_else(|_| Segment::parse_vlan(frame, ChecksumMode::NotNeeded));
            if let Ok(segment) = segment
                && let Some(matches) = self.matches(&segment.tuple, frame.0.rss_hash())
            {
                self.left -= 1;
                checked.segments += 1;
                checked.mismatches += u32::from(!matches);
            }
        }
        checked
    }

    /// True if a segment of this connection has the predicted hash, if the port delivers it, and
    /// queue. `None` if the port does not hash it.
    fn matches(&self, tuple: &FourTuple, delivered: Option<u32>) -> Option<bool> {
        if tuple.remote.is_ipv6() && !self.has_ipv6 {
            return None;
        }
        let hash = self.table.hash(tuple);
        let is_same = delivered.is_none_or(|delivered| delivered == hash);
        Some(is_same && self.table.queue_of_hash(hash) == self.queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Key and hash of "Verifying the RSS hash calculation".
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];
    const HASH: u32 = 0x51cc_c178;

    fn tuple() -> FourTuple {
        let (local, remote) = ("161.142.100.80:1766", "66.9.149.187:2794");
        FourTuple { local: local.parse().unwrap(), remote: remote.parse().unwrap() }
    }

    fn check(queue: u16) -> RssCheck {
        let table = vec![0, 1];
        let rss = RssConfig { key: KEY.to_vec(), table, tcp_ipv4: true, tcp_ipv6: false };
        RssCheck::new(&rss, queue).unwrap()
    }

    #[test]
    fn segment_matches_by_hash_and_queue() {
        // The hash is even.
        assert_eq!(check(0).matches(&tuple(), Some(HASH)), Some(true));
        assert_eq!(check(0).matches(&tuple(), None), Some(true), "a port need not deliver it");
        assert_eq!(check(0).matches(&tuple(), Some(HASH + 2)), Some(false));
        assert_eq!(check(1).matches(&tuple(), Some(HASH)), Some(false));
        let (local, remote) = ("[fd00::1]:1", "[fd00::2]:2");
        let v6 = FourTuple { local: local.parse().unwrap(), remote: remote.parse().unwrap() };
        assert_eq!(check(0).matches(&v6, Some(7)), None, "not hashed over ports");
    }
}
