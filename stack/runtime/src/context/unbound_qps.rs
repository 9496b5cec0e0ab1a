//! Queue pairs that belong to no shard yet: they end with the context, or with its last shard.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ferrowarp_proto::ended::Ended;
use ferrowarp_proto::verbs::qp_attrs::QpAttrs;
use ferrowarp_proto::verbs::wc::{CqId, QpId};

use crate::events::{AsyncEvent, AsyncEventQueue};
use crate::shard::{EndObserver, QpShared, UnboundQp, UnboundQpTable, UnboundQueues};

/// Queue pairs of which as many are given to shards at a time.
const BIND_LOCK_COUNT: usize = 16;

/// Queue pairs of a context that belong to no shard yet.
pub(crate) struct UnboundQps {
    state: Mutex<State>,
    /// Number of shards that have not failed.
    running: Arc<AtomicUsize>,
    events: Arc<AsyncEventQueue>,
    /// Each for a part of the queue pairs.
    bind_locks: [Mutex<()>; BIND_LOCK_COUNT],
}

#[derive(Default)]
struct State {
    /// By index of their numbers. Ordered: a shard that looks at all of them does so in parts.
    qps: BTreeMap<u32, Entry>,
    /// The context closes, or has failed.
    ended: Option<Ended>,
}

struct Entry {
    id: QpId,
    shared: Weak<QpShared>,
    queues: UnboundQueues,
}

impl UnboundQps {
    pub(crate) fn new(running: Arc<AtomicUsize>, events: Arc<AsyncEventQueue>) -> Self {
        Self { state: Mutex::default(), running, events, bind_locks: Default::default() }
    }

    /// Returns the lock of the thread that gives this queue pair to a shard. Others may have the
    /// same one: a lock of its own would be in the memory of every queue pair for its whole life.
    pub(crate) fn bind_lock(&self, qp: QpId) -> &Mutex<()> {
        &self.bind_locks[qp.slot() % BIND_LOCK_COUNT]
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a queue pair.
    ///
    /// # Errors
    /// Why the context has ended: it has ended the queue pair as well.
    pub(crate) fn add(
        &self,
        id: QpId,
        qp: &Arc<QpShared>,
        queues: UnboundQueues,
    ) -> Result<(), Ended> {
        let mut state = self.lock();
        state.qps.insert(id.index, Entry { id, shared: Arc::downgrade(qp), queues });
        let ended = state.ended;
        drop(state);
        match ended {
            None => Ok(()),
            Some(cause) => {
                self.end(cause);
                Err(cause)
            }
        }
    }

    /// Removes one that is to belong to a shard, or is gone. `None` if another thread has.
    pub(crate) fn remove(&self, id: QpId) -> Option<UnboundQueues> {
        let entry = self.lock().qps.remove(&id.index);
        entry.map(|entry| entry.queues)
    }

    /// Returns the attributes of one; `None` if it is not here.
    pub(crate) fn attrs(&self, id: QpId) -> Option<QpAttrs> {
        let state = self.lock();
        let UnboundQueues { requester, recv_queue, .. } = &state.qps.get(&id.index)?.queues;
        Some(QpAttrs::of_queues(requester, recv_queue))
    }

    /// Why no more can be added; `None` while they can.
    pub(crate) fn ended(&self) -> Option<Ended> {
        self.lock().ended
    }

    /// The context closes: no more can be added.
    pub(crate) fn refuse_new(&self) {
        self.lock().ended.get_or_insert(Ended::Closed);
    }

    /// Ends all, for this cause: nothing can be posted any more, and waiting threads wake.
    pub(crate) fn end(&self, cause: Ended) {
        let mut state = self.lock();
        let cause = *state.ended.get_or_insert(cause);
        let qps = std::mem::take(&mut state.qps);
        drop(state);
        for Entry { id, shared, .. } in qps.into_values() {
            if let Some(qp) = shared.upgrade() {
                qp.close(cause);
                self.events.end_source(AsyncEvent::Connection { qp: id }, qp.source());
            }
        }
    }
}

/// The last shard that fails ends them.
impl EndObserver for UnboundQps {
    fn on_shard_end(&self, _: bool) {
        if self.running.load(Ordering::Acquire) == 0 {
            self.end(Ended::Failed);
        }
    }
}

impl UnboundQpTable for UnboundQps {
    fn adopt(
        &self,
        of: Option<CqId>,
        from: u32,
        count: usize,
        adopt: &mut dyn FnMut(UnboundQp),
    ) -> Option<u32> {
        // Held meanwhile: a thread that destroys a queue pair finds it here, or at its shard.
        let mut state = self.lock();
        let is_wanted = |entry: &Entry| {
            let cqs = [entry.queues.init.send_cq, entry.queues.init.recv_cq];
            of.is_none_or(|cq| cqs.contains(&cq))
        };
        let part: Vec<(u32, bool)> = state
            .qps
            .range(from..)
            .map(|(&number, entry)| (number, is_wanted(entry)))
            .take(count)
            .collect();
        for &(number, _) in part.iter().filter(|(_, is_wanted)| *is_wanted) {
            if let Some(Entry { id, shared, queues }) = state.qps.remove(&number)
                && let Some(shared) = shared.upgrade()
            {
                adopt(UnboundQp { id, shared, queues });
            }
        }
        (part.len() == count).then(|| part[count - 1].0 + 1)
    }
}
