//! Pass epochs: when has every pass ended that may still use what was withdrawn?
//!
//! A thread that has invalidated an STag requests a new epoch of each shard and waits until the
//! shard has observed it: quiescent-state-based reclamation, with the beginning of a pass as the
//! quiescent state. The wait takes no part in the shard's lock, so it neither stops a driver nor
//! queues behind other callers; a shard in which nobody is (idle, closed, or left by a thread that
//! panicked) is entered for the instant that it takes to observe on its behalf.
//!
//! The order of memory: the request is a read-modify-write with release, and the pass loads it with
//! acquire before it resolves anything. Either the load sees this request or a later one (later
//! ones continue the release sequence), and the pass and all passes after it see what was
//! invalidated before; or it does not, and then the epoch that the shard shows stays older until
//! the next pass, which begins after this one has ended. No store has to become visible before a
//! later load, so no pass pays for a full fence: it costs one load of a line that only
//! deregistration writes, and a comparison.

use crossbeam::utils::CachePadded;

use crate::sync::{AtomicU64, Ordering, relax};

/// The epoch of one shard.
#[derive(Debug)]
pub(crate) struct QsbrEpoch {
    /// Counts requests; written by who waits.
    requested: CachePadded<AtomicU64>,
    /// The newest request that a pass has seen; written by who is inside the shard.
    observed: CachePadded<AtomicU64>,
}

/// What has a [`QsbrEpoch`]: a shard.
pub(crate) trait QsbrReader {
    fn epoch(&self) -> &QsbrEpoch;
    /// Enters if nobody is inside, observes and leaves. False if somebody is, or is about to be.
    fn report_quiescent_if_idle(&self) -> bool;
}

impl QsbrEpoch {
    pub(crate) fn new() -> Self {
        Self {
            requested: CachePadded::new(AtomicU64::new(0)),
            observed: CachePadded::new(AtomicU64::new(0)),
        }
    }

    /// Called with the shard's lock held, before anything is resolved: by each pass, and by each
    /// control call, as those resolve through the engine, too.
    #[inline]
    pub(crate) fn report_quiescent(&self) {
        let requested = self.requested.load(Ordering::Acquire);
        if requested != self.observed.load(Ordering::Relaxed) {
            // Release: whatever the passes before this one did is done for whoever sees it.
            self.observed.store(requested, Ordering::Release);
        }
    }

    fn request(&self) {
        self.requested.fetch_add(1, Ordering::AcqRel);
    }
}

/// Returns once every pass that runs in one of the shards now has ended; later passes see all that
/// the caller wrote before. Not to be called by who is inside one of them.
///
/// All shards are asked before the first is waited for, so the wait is that for the slowest: at
/// most one pass and the beginning of the next.
pub(crate) fn synchronize<'a, P: QsbrReader + 'a>(shards: impl Iterator<Item = &'a P> + Clone) {
    for shard in shards.clone() {
        shard.epoch().request();
    }
    for shard in shards {
        let epoch = shard.epoch();
        // This request or, if others have come since, one of theirs.
        let wanted = epoch.requested.load(Ordering::Relaxed);
        let mut attempts = 0;
        while epoch.observed.load(Ordering::Acquire) < wanted && !shard.report_quiescent_if_idle() {
            relax(&mut attempts);
        }
    }
}

/// What tests and proofs take for a shard.
#[cfg(test)]
pub(crate) mod testing {
    use super::{QsbrEpoch, QsbrReader};
    use crate::spin_lock::SpinLock;

    /// A lock and an epoch, and nothing to advance.
    pub(crate) struct Shard {
        pub(crate) lock: SpinLock<()>,
        pub(crate) epoch: QsbrEpoch,
    }

    impl Shard {
        pub(crate) fn new() -> Self {
            Self { lock: SpinLock::new(()), epoch: QsbrEpoch::new() }
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
            assert!(!returned.load(Ordering::SeqCst), "the pass has not ended");
            drop(pass);
            // Whoever got in: the next pass says that the one before has ended.
            let _next = shards[1].lock.lock();
            shards[1].epoch.report_quiescent();
            while !returned.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        });
    }
}
