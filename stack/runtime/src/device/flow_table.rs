//! Flow table: the queues on which the two ends of a TCP connection have sent last.
//!
//! It has a fixed size, and a connection takes the place of another one with the same hash. So it
//! is a hint only, without locks.

use core::hash::BuildHasher;
use core::sync::atomic::{AtomicU64, Ordering};
use std::hash::RandomState;

use ferrowarp_proto::wire::tcp::FourTuple;

/// Places, a power of two.
const FLOW_COUNT: usize = 4096;

/// See the [module's documentation](self).
pub(super) struct FlowTable {
    /// From the highest bit: 32 of the hash, and for the higher and the lower end 16 with the
    /// number of its queue, from 1.
    flows: Box<[AtomicU64]>,
    hash: RandomState,
}

impl FlowTable {
    pub(super) fn new() -> Self {
        let flows = (0..FLOW_COUNT).map(|_| AtomicU64::new(0)).collect();
        Self { flows, hash: RandomState::new() }
    }

    /// Notes that the remote end of a received segment has sent it on this queue, in this VLAN.
    /// Returns the queue on which the local end has sent, if that is known.
    #[expect(clippy::cast_possible_truncation, reason = "parts of the entry")]
    pub(super) fn learn(&self, vlan: Option<u16>, tuple: &FourTuple, queue: u16) -> Option<u16> {
        let FourTuple { local, remote } = *tuple;
        let is_remote_higher = remote > local;
        let hash = self.hash.hash_one((vlan, local.min(remote), local.max(remote)));
        let flow = &self.flows[hash as usize % FLOW_COUNT];
        let (tag, known) = (hash >> 32 << 32, flow.load(Ordering::Relaxed));
        let old = if known >> 32 << 32 == tag { known } else { tag };
        let (of_remote, of_local) = if is_remote_higher { (16, 0) } else { (0, 16) };
        let new = old & !(0xffff << of_remote) | u64::from(queue.wrapping_add(1)) << of_remote;
        if new != known {
            // If another thread was faster, the next segment changes it.
            let _ = flow.compare_exchange(known, new, Ordering::Relaxed, Ordering::Relaxed);
        }
        ((new >> of_local) as u16).checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(port: u16) -> FourTuple {
        let [local, remote] = [("198.18.0.1", port), ("198.18.0.2", 4791)]
            .map(|(ip, port)| (ip.parse::<core::net::IpAddr>().unwrap(), port).into());
        FourTuple { local, remote }
    }

    fn reverse(tuple: FourTuple) -> FourTuple {
        FourTuple { local: tuple.remote, remote: tuple.local }
    }

    #[test]
    fn each_end_finds_the_queue_of_the_other() {
        let (table, tuple) = (FlowTable::new(), tuple(50_000));
        assert_eq!(table.learn(None, &tuple, 3), None, "the local end has sent nothing");
        assert_eq!(table.learn(None, &reverse(tuple), 0), Some(3));
        assert_eq!(table.learn(None, &tuple, 3), Some(0));
        assert_eq!(table.learn(None, &tuple, 4), Some(0), "it has moved");
        assert_eq!(table.learn(None, &reverse(tuple), 0), Some(4));
        assert_eq!(table.learn(Some(7), &reverse(tuple), 0), None, "another VLAN");
    }

    #[test]
    fn connection_is_never_taken_for_another() {
        let table = FlowTable::new();
        for port in 1..=20_000 {
            assert_eq!(table.learn(None, &tuple(port), 7), None, "{port}");
        }
        let is_known = |&port: &u16| table.learn(None, &reverse(tuple(port)), 8) == Some(7);
        // The last one of each place is looked up first.
        let known = (1..=20_000).rev().filter(is_known).count();
        assert!((FLOW_COUNT / 2..=FLOW_COUNT).contains(&known), "{known}");
    }
}
