//! Queue pairs that belong to no shard yet: they end with the context, or with its last shard.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ferrowarp_proto::verbs::wc::QpId;

use crate::shard::{EndObserver, QpShared};

/// Queue pairs of a context that belong to no shard yet.
pub(crate) struct UnboundQps {
    state: Mutex<State>,
    /// Number of shards that have not failed.
    running: Arc<AtomicUsize>,
}

#[derive(Default)]
struct State {
    /// By index of their numbers.
    qps: HashMap<u32, Weak<QpShared>>,
    /// The context is closed, or has failed.
    has_ended: bool,
}

impl UnboundQps {
    pub(crate) fn new(running: Arc<AtomicUsize>) -> Self {
        Self { state: Mutex::default(), running }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a queue pair; ends it if the context has ended.
    pub(crate) fn add(&self, id: QpId, qp: &Arc<QpShared>) {
        let mut state = self.lock();
        state.qps.insert(id.index, Arc::downgrade(qp));
        if state.has_ended {
            drop(state);
            self.end();
        }
    }

    /// Removes one that belongs to a shard now, or is gone.
    pub(crate) fn remove(&self, id: QpId) {
        let qps = &mut self.lock().qps;
        qps.remove(&id.index);
        // After an application has created many before it connects them.
        if qps.is_empty() {
            *qps = HashMap::new();
        }
    }

    /// Ends all: nothing can be posted any more, and waiting threads wake.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.has_ended = true;
        let qps = std::mem::take(&mut state.qps);
        drop(state);
        for qp in qps.into_values().filter_map(|qp| qp.upgrade()) {
            qp.close();
            qp.source().end();
        }
    }
}

/// The last shard that fails ends them.
impl EndObserver for UnboundQps {
    fn on_shard_end(&self) {
        if self.running.load(Ordering::Acquire) == 0 {
            self.end();
        }
    }
}
