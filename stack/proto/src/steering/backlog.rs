//! Passive connections in setup, counted over all shards of a port: the limits of listeners are
//! those of the host, whatever its number of queues.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::time::Instant;

/// Number of passive connections in one state. A stale decrement finds 0.
#[derive(Debug, Default)]
pub(crate) struct SharedCount(AtomicUsize);

impl SharedCount {
    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn increment(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn decrement(&self) {
        let _ =
            self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1));
    }

    /// Increments unless the count has reached `limit`. False if it has.
    pub(crate) fn try_increment(&self, limit: usize) -> bool {
        let next = |count: usize| (count < limit).then_some(count + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }
}

/// What the shards share of a listener.
#[derive(Debug, Default)]
pub(crate) struct ListenerCounts {
    /// Connections whose request the application has not accepted or rejected yet.
    pub(crate) pending: SharedCount,
    /// Connections whose handshake is not complete.
    pub(crate) half_open: SharedCount,
    /// Time until which an ACK of no connection may carry a valid SYN cookie, in nanoseconds.
    cookies_until: AtomicU64,
}

impl ListenerCounts {
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
#[derive(Debug, Default)]
pub(crate) struct Backlogs {
    /// Passive connections whose handshake is not complete.
    pub(crate) half_open: SharedCount,
    by_port: Mutex<HashMap<u16, Weak<ListenerCounts>>>,
}

impl Backlogs {
    /// Returns the counts of the listener on `port`: those that another shard has, or new ones.
    pub(crate) fn listener(&self, port: u16) -> Arc<ListenerCounts> {
        let mut by_port = self.by_port.lock().unwrap_or_else(PoisonError::into_inner);
        by_port.retain(|_, counts| counts.strong_count() > 0);
        if let Some(counts) = by_port.get(&port).and_then(Weak::upgrade) {
            return counts;
        }
        let counts = Arc::default();
        by_port.insert(port, Arc::downgrade(&counts));
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_that_listen_on_a_port_share_its_counts() {
        let backlogs = Backlogs::default();
        let [first, second] = [4420, 4420].map(|port| backlogs.listener(port));
        assert!(first.pending.try_increment(2) && second.pending.try_increment(2));
        assert!(!first.pending.try_increment(2));
        second.pending.decrement();
        assert_eq!(first.pending.get(), 1);
        assert_eq!(backlogs.listener(4421).pending.get(), 0);
        drop((first, second));
        let again = backlogs.listener(4420);
        assert_eq!(again.pending.get(), 0, "of another listener");
        again.pending.decrement();
        assert_eq!(again.pending.get(), 0);
    }

    #[test]
    fn cookies_of_one_shard_are_expected_by_all() {
        let counts = ListenerCounts::default();
        let [early, late] = [5, 9].map(Instant::from_nanos);
        counts.expect_cookies_until(late);
        counts.expect_cookies_until(early);
        assert!(counts.expects_cookies(early) && !counts.expects_cookies(late));
    }
}
