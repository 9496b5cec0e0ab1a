//! Observers of the end of a shard.

/// Observer of the end of a shard.
pub(crate) trait EndObserver: Send + Sync {
    /// The shard is no longer polled: it was closed, or it failed. The effects on its queue pairs
    /// are done and published. Called without the shard's lock, by the thread that ended the shard,
    /// more than once.
    fn on_shard_end(&self);
}
