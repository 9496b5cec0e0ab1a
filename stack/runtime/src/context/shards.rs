//! All shards of a context.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ferrowarp_lockfree::qsbr;
use ferrowarp_proto::ended::Ended;
use ferrowarp_proto::time::Instant;

use crate::shard::{Shard, ShardControl, WaiterGuard, all_ended};

/// The shards of a context, by the number of their port queue.
pub(crate) struct Shards {
    all: Box<[Arc<Shard>]>,
    /// Number from which on the next connection looks for a shard.
    next: AtomicUsize,
}

impl Shards {
    pub(crate) fn new(all: Vec<Arc<Shard>>) -> Self {
        Self { all: all.into(), next: AtomicUsize::new(0) }
    }

    pub(crate) const fn len(&self) -> usize {
        self.all.len()
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> &Arc<Shard> {
        &self.all[index]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Shard>> {
        self.all.iter()
    }

    /// Polls each shard that the application has to poll ([`Shard::drive`]). True if there was
    /// anything to do.
    // Not inlined, so that the poll of a queue of one shard inlines that shard's.
    #[inline(never)]
    pub(crate) fn drive(&self) -> bool {
        self.all.iter().fold(false, |busy, shard| busy | shard.drive())
    }

    /// Polls each shard, whatever the mode.
    #[inline(never)]
    pub(crate) fn poll(&self) -> bool {
        self.all.iter().fold(false, |busy, shard| busy | shard.poll())
    }

    /// Calls `act` with the engine of each shard that has not ended, and returns the results.
    pub(crate) fn control<R>(
        &self,
        mut act: impl FnMut(&mut dyn ShardControl, Instant) -> R,
    ) -> Vec<R> {
        self.all.iter().filter_map(|shard| shard.control(&mut act).ok()).collect()
    }

    /// Returns once every poll now running has ended; later polls see what the caller wrote. All
    /// shards are waited for at the same time, and none is locked for it; one that has ended counts
    /// as passed.
    pub(crate) fn synchronize(&self) {
        qsbr::synchronize(self.all.iter().map(|shard| &**shard));
    }

    /// Returns the shard for a new connection: the next one in turn that runs and has a link.
    pub(crate) fn select(&self) -> Option<usize> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let order = (0..self.len()).map(|step| first.wrapping_add(step) % self.len());
        let mut running = order.filter(|&index| !self.all[index].has_ended()).peekable();
        let fallback = running.peek().copied();
        if self.len() == 1 {
            return fallback;
        }
        let has_wire = |&index: &usize| {
            self.all[index].control(|engine, _| engine.has_wire()).unwrap_or(false)
        };
        running.find(has_wire).or(fallback)
    }

    /// Why no shard is polled any more; `None` while one is.
    pub(crate) fn ended(&self) -> Option<Ended> {
        all_ended(&self.all)
    }

    /// True once no shard is polled any more.
    pub(crate) fn have_ended(&self) -> bool {
        self.ended().is_some()
    }

    /// True once all shards have failed.
    pub(crate) fn have_failed(&self) -> bool {
        self.all.iter().all(|shard| shard.has_failed())
    }

    /// See [`Shard::add_waiter`].
    pub(crate) fn add_waiters(&self) -> Vec<WaiterGuard<'_>> {
        self.all.iter().map(|shard| shard.add_waiter()).collect()
    }
}
