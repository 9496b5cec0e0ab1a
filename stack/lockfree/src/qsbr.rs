//! Quiescent-state-based reclamation (as in librte_rcu's qsbr): waits until no poll can still use
//! an invalidated STag.
//!
//! A thread that has invalidated an STag requests a new epoch (librte_rcu: token) of each shard and
//! waits until the shard has observed it. The quiescent state of a shard is the beginning of a
//! poll. The waiting thread does not queue for the shard's lock, so it neither stops a polling
//! thread nor waits behind other callers. If the shard's lock is free (idle, closed, or abandoned
//! by a panic), the waiting thread takes it just long enough to observe on the shard's behalf.
//!
//! Memory order: the request is a read-modify-write with release, and the poll loads it with
//! acquire before it resolves any STag. If the load sees this request or a later one (later ones
//! continue the release sequence), this poll and all after it see what was invalidated before. If
//! it does not, the epoch that the shard has observed stays older until the next poll, which begins
//! after this one has ended. No store has to become visible before a later load, so no poll pays
//! for a full fence: the cost is one load of a cache line that only deregistration writes, and a
//! comparison.

use crossbeam::utils::CachePadded;

use crate::sync::{AtomicU64, Backoff, Ordering};

/// Epoch of one shard.
#[derive(Debug, Default)]
pub struct QsbrEpoch {
    /// Number of requests; written by waiting threads.
    requested: CachePadded<AtomicU64>,
    /// Latest request that a poll has seen; written by the holder of the shard's lock.
    observed: CachePadded<AtomicU64>,
}

/// A shard: it has a [`QsbrEpoch`] and reports its quiescent states.
pub trait QsbrReader {
    /// Epoch of the shard.
    fn epoch(&self) -> &QsbrEpoch;
    /// Locks the shard if it is free, observes and unlocks. False if the lock is held or has
    /// waiters.
    fn report_quiescent_if_idle(&self) -> bool;
}

impl QsbrEpoch {
    /// Reports that the shard holds no resolved STag: by each poll and each control call, with the
    /// shard's lock held, before the first STag is resolved. True if a thread had requested that.
    #[inline]
    pub fn report_quiescent(&self) -> bool {
        let requested = self.requested.load(Ordering::Acquire);
        let is_requested = requested != self.observed.load(Ordering::Relaxed);
        if is_requested {
            // Release: a thread that sees this store sees everything that earlier polls did.
            self.observed.store(requested, Ordering::Release);
        }
        is_requested
    }

    /// Has the next [`QsbrEpoch::report_quiescent`] return true.
    pub fn request(&self) {
        self.requested.fetch_add(1, Ordering::AcqRel);
    }
}

/// Returns once every poll now running in one of the shards has ended; later polls see all that the
/// caller wrote before. Not to be called with the lock of one of the shards held.
///
/// The epoch is requested of all shards before the first is waited for, so the wait is that for the
/// slowest: at most one poll and the beginning of the next.
pub fn synchronize<'a, P: QsbrReader + 'a>(shards: impl Iterator<Item = &'a P> + Clone) {
    for shard in shards.clone() {
        shard.epoch().request();
    }
    for shard in shards {
        let epoch = shard.epoch();
        // This request, or a later one of another thread.
        let wanted = epoch.requested.load(Ordering::Relaxed);
        let mut backoff = Backoff::default();
        while epoch.observed.load(Ordering::Acquire) < wanted && !shard.report_quiescent_if_idle() {
            backoff.wait();
        }
    }
}

/// Shard for tests and proofs.
#[cfg(test)]
pub(crate) mod testing {
    use super::{QsbrEpoch, QsbrReader};
    use crate::spin_lock::SpinLock;

    /// A lock and an epoch, without an engine.
    pub(crate) struct Shard {
        pub(crate) lock: SpinLock<()>,
        pub(crate) epoch: QsbrEpoch,
    }

    impl Shard {
        pub(crate) fn new() -> Self {
            Self { lock: SpinLock::new(()), epoch: QsbrEpoch::default() }
        }
    }

    impl QsbrReader for Shard {
        fn epoch(&self) -> &QsbrEpoch {
            &self.epoch
        }

        fn report_quiescent_if_idle(&self) -> bool {
            self.lock.try_lock().map(|_inside| self.epoch.report_quiescent()).is_some()
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use super::testing::Shard;
    use super::*;

    fn shards() -> [Shard; 3] {
        [(); 3].map(|()| Shard::new())
    }

    #[test]
    fn synchronize_does_not_wait_for_idle_shards() {
        let shards = shards();
        for _ in 0..3 {
            synchronize(shards.iter());
        }
    }

    #[test]
    fn synchronize_waits_for_the_poll_in_progress_only() {
        let shards = shards();
        let returned = AtomicBool::new(false);
        let pass = shards[1].lock.try_lock().unwrap();
        shards[1].epoch.report_quiescent();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                synchronize(shards.iter());
                returned.store(true, Ordering::SeqCst);
            });
            while shards[1].epoch.requested.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(20));
            assert!(!returned.load(Ordering::SeqCst), "the polling pass has not ended");
            drop(pass);
            // Whichever thread has the lock: the next poll reports that the one before has ended.
            let _next = shards[1].lock.lock();
            shards[1].epoch.report_quiescent();
            while !returned.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        });
    }
}
