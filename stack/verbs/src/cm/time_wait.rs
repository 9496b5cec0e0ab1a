//! `RDMA_CM_EVENT_TIMEWAIT_EXIT`, which follows `RDMA_CM_EVENT_DISCONNECTED` after some time.
//!
//! Some programs free an ID only then. Others have destroyed it by then, and do not expect the
//! event: so it does not come at once.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::abi::RDMA_CM_EVENT_TIMEWAIT_EXIT;
use crate::cm::event::Param;
use crate::cm::id::Id;

/// That of the stack's TCP.
const TIME_WAIT: Duration = Duration::from_secs(1);

/// IDs that are to have the event, and when.
static WAITING: Mutex<VecDeque<(Instant, Weak<Id>)>> = Mutex::new(VecDeque::new());

fn lock() -> MutexGuard<'static, VecDeque<(Instant, Weak<Id>)>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The connection of an ID has ended. Only the dispatcher calls it, which waits for it afterwards.
pub(super) fn begin(id: &Arc<Id>) {
    lock().push_back((Instant::now() + TIME_WAIT, Arc::downgrade(id)));
}

/// Reports the events that are due. Returns the time until the next one.
pub(crate) fn report_timewait_exits() -> Duration {
    loop {
        let mut waiting = lock();
        let Some((at, id)) = waiting.front() else { return Duration::MAX };
        let left = at.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            return left;
        }
        let id = id.upgrade();
        waiting.pop_front();
        drop(waiting);
        if let Some(id) = id {
            id.report(&id.lock(), RDMA_CM_EVENT_TIMEWAIT_EXIT, 0, Param::default());
        }
    }
}
