//! Overrun of a completion queue that several shards feed.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use ferrowarp_proto::verbs::wc::CqId;

/// A shard, to another one in which a completion queue of both has overrun.
pub(crate) trait OverrunSink: Send + Sync {
    /// Has the shard end the queue's pairs in its next poll.
    fn end_cq(&self, cq: CqId, overrun: Arc<CqOverrun>);
}

/// State of a completion queue that is shared by the shards that feed it.
#[derive(Default)]
pub(crate) struct CqOverrun {
    has_overrun: AtomicBool,
    /// All these shards: each ends its own queue pairs.
    shards: Box<[Weak<dyn OverrunSink>]>,
}

impl CqOverrun {
    pub(crate) fn new(shards: Box<[Weak<dyn OverrunSink>]>) -> Self {
        Self { shards, ..Self::default() }
    }

    /// True if several shards feed the queue.
    pub(super) const fn is_shared(&self) -> bool {
        self.shards.len() > 1
    }

    /// True once a completion found the queue full, in any shard.
    pub(crate) fn has_overrun(&self) -> bool {
        self.has_overrun.load(Ordering::Acquire)
    }

    /// Records an overrun; the first one has every shard end its queue pairs. True if this was it:
    /// the shard that finds it counts and reports it.
    pub(super) fn set(this: &Arc<Self>, cq: CqId) -> bool {
        let is_first = !this.has_overrun.swap(true, Ordering::AcqRel);
        if is_first && this.is_shared() {
            for shard in this.shards.iter().filter_map(Weak::upgrade) {
                shard.end_cq(cq, Arc::clone(this));
            }
        }
        is_first
    }
}

impl fmt::Debug for CqOverrun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CqOverrun")
            .field("has_overrun", &self.has_overrun())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Queues that a shard was to end.
    #[derive(Default)]
    struct Ended(Mutex<Vec<CqId>>);

    impl OverrunSink for Ended {
        fn end_cq(&self, cq: CqId, _: Arc<CqOverrun>) {
            self.0.lock().unwrap().push(cq);
        }
    }

    #[test]
    fn overrun_is_told_to_each_shard_once() {
        let sinks = [(); 2].map(|()| Arc::new(Ended::default()));
        let shards = sinks.iter().map(|sink| {
            let sink: Weak<Ended> = Arc::downgrade(sink);
            sink as Weak<dyn OverrunSink>
        });
        let overrun = Arc::new(CqOverrun::new(shards.collect()));
        assert!(!overrun.has_overrun());
        assert!(CqOverrun::set(&overrun, CqId(1)));
        assert!(!CqOverrun::set(&overrun, CqId(1)));
        assert!(overrun.has_overrun());
        for sink in &sinks {
            assert_eq!(*sink.0.lock().unwrap(), [CqId(1)]);
        }
    }
}
