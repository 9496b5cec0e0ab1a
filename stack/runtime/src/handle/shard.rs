//! Handles of shards, for applications whose threads drive one each.

use std::fmt;
use std::sync::Arc;

use crate::context::{Context, ContextInner};
use crate::fork::ForkArc;
use crate::shard::Shard;
use crate::stats::{Counters, Usage};

/// A shard of a context: a queue of its port, with connections of its own. Clones refer to the same
/// one.
///
/// In mode [`DriveMode::Inline`] each of the application's threads drives one shard, and uses queue
/// pairs and completion queues of that one ([`QpOptions::shard`], [`CqOptions::shard`]): threads
/// then share nothing on the way of the data. Objects of another shard can be used as well; a call
/// on them takes its lock.
///
/// [`DriveMode::Inline`]: crate::DriveMode::Inline
/// [`QpOptions::shard`]: crate::QpOptions::shard
/// [`CqOptions::shard`]: crate::CqOptions::shard
#[derive(Clone)]
pub struct ShardHandle {
    context: ForkArc<ContextInner>,
    index: usize,
}

impl Context {
    /// Returns a shard by its number; `None` if there is none.
    #[must_use]
    pub fn shard(&self, index: usize) -> Option<ShardHandle> {
        let exists = index < self.shard_count();
        exists.then(|| ShardHandle { context: self.inner().clone(), index })
    }
}

impl ShardHandle {
    fn shard(&self) -> &Arc<Shard> {
        self.context.shards.get(self.index)
    }

    /// Number of the shard, which is that of its port queue.
    #[must_use]
    pub const fn index(&self) -> usize {
        self.index
    }

    /// False while the peer has no queue for this one (`memif`, `vhost`): nothing is received and
    /// nothing sent on it, and it is of no use for connections. A queue pair that belongs to no
    /// shard is connected on one that has a link. Locks the shard.
    #[must_use]
    pub fn has_link(&self) -> bool {
        self.shard().control(|engine, _| engine.has_wire()).unwrap_or(false)
    }

    /// Polls the shard once, if the drive mode leaves that to the application and no other thread
    /// is polling it. True if there was anything to do.
    #[inline]
    pub fn drive(&self) -> bool {
        self.shard().drive()
    }

    /// Counters since opening; zeros after closing, or a failure of the shard. Locks the shard: for
    /// reports, not for a loop.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shard().control(|engine, _| engine.counters()).unwrap_or_default()
    }

    /// Resources in use now, as [`Context::usage`](crate::Context::usage).
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.shard().control(|engine, _| engine.usage()).unwrap_or_default()
    }

    /// Number of connections, including those that only wait for acknowledgments.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.shard().control(|engine, _| engine.connection_count()).unwrap_or_default()
    }

    /// True once a panic inside the stack, or the removal of the device, has ended the shard: see
    /// [`Context::has_failed`](crate::Context::has_failed).
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.shard().has_failed()
    }
}

impl fmt::Debug for ShardHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardHandle").field("index", &self.index).finish_non_exhaustive()
    }
}
