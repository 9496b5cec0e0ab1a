//! Passive connections with a complete handshake and an incomplete MPA Request Frame, and the
//! choice of the one to reset when there are too many.
//!
//! Stochastic fair eviction: we count connections in hash buckets of peer addresses, and reset the
//! oldest connection in the fullest bucket. So one address evicts its own connections, and many
//! addresses share the limit evenly. A flood of handshakes must not evict a legitimate peer before
//! its request arrives, a round trip or two later. The counts take no memory per address. The hash
//! is keyed, so that a peer cannot choose its bucket. An IPv6 peer is hashed by its /64.

use core::net::IpAddr;
use core::num::NonZeroU64;
use std::collections::BTreeSet;

use crate::connection::setup::listeners::ListenerRef;
use crate::net::siphash_keys::SipBuildHasher;

/// Number of hash buckets of peer addresses.
const BUCKETS: usize = 1 << u8::BITS;

/// Position of a connection in order of arrival; later ones are larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ArrivalOrder(NonZeroU64);

/// See the [module's documentation](self).
///
/// Cost of each operation: logarithmic in the number of connections. The choice of a victim also
/// scans all buckets.
pub(crate) struct AwaitingRequest {
    hash: SipBuildHasher,
    /// Connections with an incomplete request, by bucket and age.
    incomplete: BTreeSet<(u8, ArrivalOrder, u32)>,
    /// Number of these in each bucket.
    counts: [u32; BUCKETS],
    /// Connections with a complete request that waits for a free slot in the backlog, by listener
    /// and age.
    complete: BTreeSet<(ListenerRef, ArrivalOrder, u32)>,
    last_order: ArrivalOrder,
}

impl AwaitingRequest {
    pub(crate) const fn new(hash: SipBuildHasher) -> Self {
        Self {
            hash,
            incomplete: BTreeSet::new(),
            counts: [0; BUCKETS],
            complete: BTreeSet::new(),
            last_order: ArrivalOrder(NonZeroU64::MIN),
        }
    }

    /// Returns the number of connections, those with a complete request included.
    pub(crate) fn len(&self) -> usize {
        self.incomplete.len() + self.complete.len()
    }

    /// Returns the number of connections with an incomplete request.
    pub(crate) fn incomplete_count(&self) -> usize {
        self.incomplete.len()
    }

    /// Adds a connection after its handshake.
    pub(crate) fn insert(&mut self, remote: IpAddr, index: u32) -> Option<ArrivalOrder> {
        self.last_order = ArrivalOrder(self.last_order.0.saturating_add(1));
        let group = self.hash.address_group(remote);
        self.incomplete.insert((group, self.last_order, index));
        self.counts[usize::from(group)] += 1;
        Some(self.last_order)
    }

    /// Marks the request of a connection as complete: it waits for the backlog of `listener`.
    pub(crate) fn mark_complete(
        &mut self,
        order: Option<ArrivalOrder>,
        remote: IpAddr,
        listener: ListenerRef,
        index: u32,
    ) {
        if let Some(ticket) = order
            && self.remove_incomplete(ticket, remote, index)
        {
            self.complete.insert((listener, ticket, index));
        }
    }

    /// Removes a connection.
    pub(crate) fn remove(
        &mut self,
        order: Option<ArrivalOrder>,
        remote: IpAddr,
        listener: ListenerRef,
        index: u32,
    ) {
        if let Some(ticket) = order
            && !self.remove_incomplete(ticket, remote, index)
        {
            self.complete.remove(&(listener, ticket, index));
        }
    }

    /// Returns the connection to reset when there are too many: see the module's documentation.
    pub(crate) fn victim(&self) -> Option<u32> {
        let (group, _) =
            self.counts.iter().zip(0..=u8::MAX).map(|(n, g)| (g, n)).max_by_key(|&(_, n)| n)?;
        self.incomplete
            .range((group, ArrivalOrder(NonZeroU64::MIN), 0)..)
            .next()
            .map(|&(_, _, index)| index)
    }

    /// Returns the oldest connection to `listener` with a complete request that waits for the
    /// backlog.
    pub(crate) fn next_complete(&self, listener: ListenerRef) -> Option<u32> {
        let &(of, _, index) =
            self.complete.range((listener, ArrivalOrder(NonZeroU64::MIN), 0)..).next()?;
        (of == listener).then_some(index)
    }

    /// Returns the next listener from `from` on with a complete request that waits for the backlog.
    pub(crate) fn next_listener(&self, from: ListenerRef) -> Option<ListenerRef> {
        let first = (from, ArrivalOrder(NonZeroU64::MIN), 0);
        self.complete.range(first..).next().map(|&(listener, ..)| listener)
    }

    fn remove_incomplete(&mut self, order: ArrivalOrder, remote: IpAddr, index: u32) -> bool {
        let group = self.hash.address_group(remote);
        let was_there = self.incomplete.remove(&(group, order, index));
        self.counts[usize::from(group)] -= u32::from(was_there);
        was_there
    }
}

#[cfg(test)]
mod tests {
    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use super::AwaitingRequest;
    use crate::connection::setup::listeners::ListenerRef;
    use crate::net::siphash_keys::SipBuildHasher;

    const LISTENER: ListenerRef = ListenerRef { index: 7 };

    fn v4(last: u8) -> IpAddr {
        Ipv4Addr::new(198, 18, 0, last).into()
    }

    #[test]
    fn victim_is_oldest_of_busiest_address() {
        let mut awaiting = AwaitingRequest::new(SipBuildHasher::new(1));
        awaiting.insert(v4(1), 100);
        let tickets: Vec<_> = (0..3).map(|index| awaiting.insert(v4(2), index)).collect();
        assert_eq!(awaiting.victim(), Some(0));
        awaiting.remove(tickets[0], v4(2), LISTENER, 0);
        assert_eq!((awaiting.victim(), awaiting.len()), (Some(1), 3));
    }

    #[test]
    fn ipv6_peers_are_counted_per_slash_64() {
        let mut awaiting = AwaitingRequest::new(SipBuildHasher::new(1));
        let host = |net: u16, host: u16| Ipv6Addr::new(0x2001, 2, 0, net, 0, 0, 0, host).into();
        awaiting.insert(host(1, 1), 100);
        awaiting.insert(host(2, 1), 0);
        awaiting.insert(host(2, 2), 1);
        assert_eq!(awaiting.victim(), Some(0));
    }

    #[test]
    fn complete_requests_are_not_evicted_and_leave_in_fifo_order() {
        let mut awaiting = AwaitingRequest::new(SipBuildHasher::new(1));
        let tickets = [5, 3].map(|index| awaiting.insert(v4(1), index));
        for (ticket, index) in tickets.into_iter().zip([5, 3]) {
            awaiting.mark_complete(ticket, v4(1), LISTENER, index);
        }
        assert_eq!((awaiting.victim(), awaiting.incomplete_count(), awaiting.len()), (None, 0, 2));
        assert_eq!(
            (awaiting.next_complete(LISTENER), awaiting.next_complete(ListenerRef { index: 6 })),
            (Some(5), None)
        );
        awaiting.remove(tickets[0], v4(1), LISTENER, 5);
        assert_eq!(awaiting.next_complete(LISTENER), Some(3));
    }
}
