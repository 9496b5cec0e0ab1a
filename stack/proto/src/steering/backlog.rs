//! Passive connections in setup, counted over all shards of a port: the limits of listeners are
//! those of the host, whatever its number of queues.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::net::listen_addr::ListenAddr;
use crate::steering::owners::ShardId;
use crate::time::Instant;

/// Number of passive connections in one state: over all shards, and of each shard, so that those of
/// a shard that has died no longer count.
#[derive(Debug)]
pub(crate) struct SharedCount {
    total: AtomicUsize,
    by_shard: Box<[AtomicUsize]>,
}

impl SharedCount {
    fn new(shards: usize) -> Self {
        Self { total: AtomicUsize::new(0), by_shard: (0..shards).map(|_| 0.into()).collect() }
    }

    /// Returns the number over all shards.
    pub(crate) fn get(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }

    pub(crate) fn increment(&self, shard: ShardId) {
        self.total.fetch_add(1, Ordering::Relaxed);
        self.by_shard[shard.index()].fetch_add(1, Ordering::Relaxed);
    }

    /// Decrements. A stale decrement of a shard without any finds 0.
    pub(crate) fn decrement(&self, shard: ShardId) {
        let of_shard = &self.by_shard[shard.index()];
        let next = |count: usize| count.checked_sub(1);
        if of_shard.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok() {
            self.total.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Increments unless the number over all shards has reached `limit`. False if it has.
    pub(crate) fn try_increment(&self, shard: ShardId, limit: usize) -> bool {
        let next = |count: usize| (count < limit).then_some(count + 1);
        let is_below = self.total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok();
        if is_below {
            self.by_shard[shard.index()].fetch_add(1, Ordering::Relaxed);
        }
        is_below
    }

    /// Subtracts those of a shard that has died.
    fn release_all(&self, shard: ShardId) {
        if let Some(of_shard) = self.by_shard.get(shard.index()) {
            self.total.fetch_sub(of_shard.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

/// Counts of a listener that the shards share.
#[derive(Debug)]
pub(crate) struct ListenerCounts {
    /// Connections whose request the application has not accepted or rejected yet.
    pub(crate) pending: SharedCount,
    /// Connections whose handshake is not complete.
    pub(crate) half_open: SharedCount,
    /// Time until which an ACK of no connection may carry a valid SYN cookie, in nanoseconds.
    cookies_until: AtomicU64,
}

impl ListenerCounts {
    fn new(shards: usize) -> Self {
        Self {
            pending: SharedCount::new(shards),
            half_open: SharedCount::new(shards),
            cookies_until: AtomicU64::new(0),
        }
    }

    /// True if an ACK of no connection may carry a valid SYN cookie.
    pub(crate) fn expects_cookies(&self, now: Instant) -> bool {
        now.as_nanos() < self.cookies_until.load(Ordering::Relaxed)
    }

    /// Extends the time during which such ACKs are expected.
    pub(crate) fn expect_cookies_until(&self, end: Instant) {
        self.cookies_until.fetch_max(end.as_nanos(), Ordering::Relaxed);
    }
}

/// Counts of all listeners of a port.
#[derive(Debug)]
pub(crate) struct Backlogs {
    shards: usize,
    /// Passive connections whose handshake is not complete.
    pub(crate) half_open: SharedCount,
    by_addr: Mutex<HashMap<ListenAddr, Weak<ListenerCounts>>>,
}

impl Backlogs {
    /// Creates the counts of a port with so many shards.
    pub(crate) fn new(shards: usize) -> Self {
        Self { shards, half_open: SharedCount::new(shards), by_addr: Mutex::default() }
    }

    /// Releases what a shard that has died took of the limits.
    pub(crate) fn release_all(&self, shard: ShardId) {
        self.half_open.release_all(shard);
        let by_addr = self.by_addr.lock().unwrap_or_else(PoisonError::into_inner);
        for counts in by_addr.values().filter_map(Weak::upgrade) {
            counts.half_open.release_all(shard);
            counts.pending.release_all(shard);
        }
    }

    /// Returns the counts of the listener on `addr`: those that another shard has, or new ones.
    pub(crate) fn listener(&self, addr: ListenAddr) -> Arc<ListenerCounts> {
        let mut by_addr = self.by_addr.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(counts) = by_addr.get(&addr).and_then(Weak::upgrade) {
            return counts;
        }
        if by_addr.len() == by_addr.capacity() {
            by_addr.retain(|_, counts| counts.strong_count() > 0);
        }
        let counts = Arc::new(ListenerCounts::new(self.shards));
        by_addr.insert(addr, Arc::downgrade(&counts));
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARDS: [ShardId; 2] = [ShardId(0), ShardId(1)];

    #[test]
    fn shards_that_listen_on_a_port_share_its_counts() {
        let backlogs = Backlogs::new(2);
        let [first, second] = [4420, 4420].map(|port| backlogs.listener(port.into()));
        assert!(first.pending.try_increment(SHARDS[0], 2));
        assert!(second.pending.try_increment(SHARDS[1], 2));
        assert!(!first.pending.try_increment(SHARDS[0], 2));
        second.pending.decrement(SHARDS[1]);
        assert_eq!(first.pending.get(), 1);
        assert_eq!(backlogs.listener(4421.into()).pending.get(), 0);
        drop((first, second));
        let again = backlogs.listener(4420.into());
        assert_eq!(again.pending.get(), 0, "of another listener");
        again.pending.decrement(SHARDS[0]);
        assert_eq!(again.pending.get(), 0);
    }

    #[test]
    fn dead_shard_no_longer_counts() {
        let backlogs = Backlogs::new(2);
        let counts = backlogs.listener(4420.into());
        for count in [&counts.pending, &counts.half_open, &backlogs.half_open] {
            for shard in [SHARDS[0], SHARDS[0], SHARDS[1]] {
                count.increment(shard);
            }
        }
        backlogs.release_all(SHARDS[0]);
        for count in [&counts.pending, &counts.half_open, &backlogs.half_open] {
            assert_eq!(count.get(), 1);
            count.decrement(SHARDS[0]);
            assert_eq!(count.get(), 1, "a stale decrement");
            count.decrement(SHARDS[1]);
            assert_eq!(count.get(), 0);
        }
    }

    #[test]
    fn cookies_of_one_shard_are_expected_by_all() {
        let counts = ListenerCounts::new(2);
        let [early, late] = [5, 9].map(Instant::from_nanos);
        counts.expect_cookies_until(late);
        counts.expect_cookies_until(early);
        assert!(counts.expects_cookies(early) && !counts.expects_cookies(late));
    }
}
