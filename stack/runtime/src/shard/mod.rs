//! Shard: an engine with its port queue, its lock and the functions that poll it.
//!
//! The files of this folder are the shard's side of the queues. They name no handle: handles
//! use the shard.

mod backlog;
mod bed;
mod comp_events;
mod control;
mod cq_overrun;
mod cq_rings;
mod end_observer;
mod engine;
mod helper;
mod helper_schedule;
mod mailbox;
mod qp;
mod qp_events;
mod shard_qps;
mod srq;
mod unbound_qp;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crossbeam::atomic::AtomicCell;
use crossbeam::utils::CachePadded;
use ferrowarp_lockfree::doorbell::Doorbells;
use ferrowarp_lockfree::helper_wakeup::HelperWakeup;
use ferrowarp_lockfree::qsbr::{QsbrEpoch, QsbrReader};
use ferrowarp_lockfree::spin_lock::{LockGuard, SpinLock};
use ferrowarp_proto::ended::Ended;
use ferrowarp_proto::steering::mesh::MeshMonitor;
use ferrowarp_proto::steering::owners::ShardId;
use ferrowarp_proto::time::Instant;
use ferrowarp_proto::verbs::cm::EndReason;
use ferrowarp_proto::verbs::wc::{CqId, QpId};

use crate::clock::Clock;
use crate::device::register_application_thread;
use crate::fork::{check_process, is_child};
use crate::memory::page_faults;
use crate::poller::Poller;

pub(crate) use backlog::{Backlog, PendingRequest};
use bed::Bed;
pub(crate) use bed::InterruptSleep;
pub(crate) use comp_events::CompEventQueue;
pub(crate) use control::ShardControl;
pub(crate) use cq_overrun::{CqOverrun, OverrunSink};
pub(crate) use cq_rings::{CqNotify, CqProducer, CqRings};
pub(crate) use end_observer::EndObserver;
use end_observer::EndObservers;
pub(crate) use engine::ShardEngine;
pub(crate) use helper::run_helper;
use mailbox::{Mailbox, ShardRequest};
pub(crate) use qp::QpShared;
pub(crate) use qp_events::TakenEvents;
pub(crate) use shard_qps::ShardQp;
pub use srq::SrqLimit;
pub(crate) use srq::SrqShared;
pub(crate) use unbound_qp::{UnboundQp, UnboundQpTable, UnboundQueues};

/// No completion queue: none has this ID for long.
const NO_CQ: u32 = u32::MAX;

/// One engine with its port queue, polled by the thread that holds its lock.
///
/// Posting writes to rings, and rings a doorbell if the queue pair was idle; polling a CQ reads
/// rings. Everything else is a control call: it waits for the lock, for one poll of another thread
/// at most, and calls the engine directly.
pub(crate) struct Shard {
    /// Bed of threads of the application, if only these poll. Dropped before the port.
    bed: Mutex<Option<Bed>>,
    engine: CachePadded<SpinLock<EngineSlot>>,
    epoch: QsbrEpoch,
    doorbells: Doorbells,
    clock: Clock,
    poller: Poller,
    /// Completion queue whose poll drove the shard, and that no poll of another relied on since; or
    /// [`NO_CQ`].
    last_polled: AtomicU32,
    /// Hand-over between application and helper; where there is no helper it only counts waiters.
    helper_wakeup: Arc<HelperWakeup>,
    /// Requests of other shards.
    mailbox: Mailbox,
    siblings: Siblings,
    /// Why the shard has ended; `None` while it runs.
    ended: AtomicCell<Option<Ended>>,
    end_observers: Mutex<EndObservers>,
    /// An engine that panicked, or whose device is to be removed. It is not used again, only
    /// dropped when the shard is closed.
    failed_engine: Mutex<Option<Box<dyn ShardControl>>>,
}

/// Handle to the sibling shards, those of the same context.
pub(crate) struct Siblings {
    /// Number of shards that have not failed.
    pub(crate) running: Arc<AtomicUsize>,
    /// Number of shards that are polled.
    pub(crate) polled: Arc<AtomicUsize>,
    /// Held while one fails, so that the last one to fail is the last to publish events.
    pub(crate) failing: Arc<Mutex<()>>,
    /// Reports a death to them; `None`: there are no others.
    pub(crate) monitor: Option<(ShardId, MeshMonitor)>,
}

/// Outcome of an attempt to poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Polled {
    /// There was nothing to do.
    Idle,
    Busy,
    /// Another thread has the lock, or there is no engine.
    Not,
}

/// Engine of a shard, or why it has none any more.
type EngineSlot = Result<Box<dyn ShardControl>, Ended>;

/// Takes the engine, for this cause; `None`, and the cause stays, if it was taken before.
fn take_engine(slot: &mut EngineSlot, cause: Ended) -> Option<Box<dyn ShardControl>> {
    let cause = slot.as_ref().err().copied().unwrap_or(cause);
    std::mem::replace(slot, Err(cause)).ok()
}

impl Shard {
    pub(crate) fn new(
        engine: Box<dyn ShardControl>,
        clock: Clock,
        poller: Poller,
        qps_max: usize,
        siblings: Siblings,
    ) -> Self {
        Self {
            engine: CachePadded::new(SpinLock::new(Ok(engine))),
            epoch: QsbrEpoch::default(),
            mailbox: Mailbox::default(),
            doorbells: Doorbells::new(qps_max),
            clock,
            poller,
            last_polled: AtomicU32::new(NO_CQ),
            helper_wakeup: Arc::new(HelperWakeup::default()),
            siblings,
            ended: AtomicCell::new(None),
            end_observers: Mutex::default(),
            failed_engine: Mutex::default(),
            bed: Mutex::default(),
        }
    }

    /// Polls the shard on behalf of the application, unless a dedicated thread does that or the
    /// lock is held. True if the poll found anything to do.
    #[inline]
    pub(crate) fn drive(&self) -> bool {
        match self.poller {
            Poller::Application => self.poll(),
            Poller::Pinned => false,
            Poller::Helper(_) => self.drive_beside_helper(),
        }
    }

    /// As [`Shard::drive`], for a poll of this completion queue; `None` if another one has just
    /// done so. For a thread that comes back soon: what it has posted since waits until then.
    #[inline]
    pub(crate) fn drive_for(&self, cq: CqId) -> Option<bool> {
        let last = self.last_polled.load(Ordering::Relaxed);
        if last != cq.0 {
            let is_other = last != NO_CQ;
            self.last_polled.store(if is_other { NO_CQ } else { cq.0 }, Ordering::Relaxed);
            if is_other {
                return None;
            }
        }
        Some(self.drive())
    }

    /// One poll, unless the lock is held. True if it found anything to do.
    #[inline]
    pub(crate) fn poll(&self) -> bool {
        self.try_poll(self.clock.now()) == Polled::Busy
    }

    /// One poll at the time `now`.
    #[inline(always)]
    fn try_poll(&self, now: Instant) -> Polled {
        if is_child() {
            return Polled::Not;
        }
        register_thread();
        let Some(mut engine) = self.engine.try_lock() else {
            return Polled::Not;
        };
        self.report_quiescent();
        let Ok(running) = engine.as_mut() else {
            return Polled::Not;
        };
        // A defect of the stack unwinds no thread of the application, and ends no polling thread
        // silently.
        let poll = || {
            if self.doorbells.has_requests() {
                self.mailbox.drain(&self.doorbells, |request| running.execute(request));
            }
            running.poll(now, &self.doorbells)
        };
        match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(true) => Polled::Busy,
            Ok(false) => Polled::Idle,
            Err(_) => {
                self.on_panic(engine);
                Polled::Busy
            }
        }
    }

    /// Calls `act` with the engine.
    ///
    /// # Errors
    /// Why there is none: after closing, after a failure (also a panic of `act`), and in a child
    /// made by `fork`.
    pub(crate) fn control<R>(
        &self,
        act: impl FnOnce(&mut dyn ShardControl, Instant) -> R,
    ) -> Result<R, Ended> {
        check_process()?;
        register_thread();
        let mut engine = self.engine.lock();
        self.report_quiescent();
        let running = engine.as_mut().map_err(|cause| *cause)?;
        let now = self.clock.now();
        let done = catch_unwind(AssertUnwindSafe(|| {
            let result = act(running.as_mut(), now);
            running.publish();
            result
        }));
        let Ok(result) = done else {
            self.on_panic(engine);
            return Err(Ended::Failed);
        };
        drop(engine);
        if self.poller.may_sleep() {
            self.helper_wakeup.on_control();
        }
        Ok(result)
    }

    /// The engine has panicked.
    #[cold]
    fn on_panic(&self, engine: LockGuard<'_, EngineSlot>) {
        tracing::error!("a panic ended a shard and all its connections");
        self.fail(engine, EndReason::LocalError);
    }

    /// Has the shard fail when the port's device is to be removed, and its helper wake when other
    /// users of the port have sent frames to it.
    pub(crate) fn watch_device(self: &Arc<Self>) {
        let shard = Arc::downgrade(self);
        let on_removal = Box::new(move || {
            let fail = move || shard.upgrade().iter().for_each(|shard| shard.on_removal());
            // The caller must not wait for the lock.
            let thread = std::thread::Builder::new().name("device-removal".to_owned());
            if let Err(error) = thread.spawn(fail) {
                tracing::error!(
                    "the device is to be removed, and there is no thread for that: {error}"
                );
            }
        });
        let wakeup = Arc::clone(&self.helper_wakeup);
        let _ = self.control(|engine, _| {
            engine.observe_removal(on_removal);
            engine.wake_by(Box::new(move || wakeup.on_post()));
        });
    }

    fn on_removal(&self) {
        register_thread();
        let engine = self.engine.lock();
        if engine.is_ok() {
            tracing::info!("the device is to be removed, which ends all connections of a shard");
            self.fail(engine, EndReason::DeviceRemoved);
        }
    }

    /// Ends the queue pairs of the engine as far as possible and keeps it from being polled again.
    #[cold]
    fn fail(&self, mut engine: LockGuard<'_, EngineSlot>, reason: EndReason) {
        let failing = self.siblings.failing.lock().unwrap_or_else(PoisonError::into_inner);
        let is_last = self.siblings.running.fetch_sub(1, Ordering::AcqRel) == 1;
        if let Some((id, monitor)) = &self.siblings.monitor {
            monitor.on_shard_death(*id);
        }
        if let Some(mut failed) = take_engine(&mut engine, Ended::Failed) {
            // From now on a thread that posts rings a doorbell, and finds it closed.
            attempt(|| failed.demote_all(&self.doorbells));
            self.doorbells.close();
            attempt(|| failed.abandon(is_last, reason));
            attempt(|| failed.publish_failure(is_last));
            failed.leave();
            *self.failed_engine.lock().unwrap_or_else(PoisonError::into_inner) = Some(failed);
        }
        drop(failing);
        drop(engine);
        self.end(Ended::Failed);
    }

    /// Notes the cause of the end. Observers are notified before and after that: a thread that sees
    /// the shard ended finds the last events, and one that armed a queue just before is notified,
    /// too.
    fn end(&self, cause: Ended) {
        self.notify_end_observers(false);
        // Release. Between this and the load of an arm word lies the fence of `ArmWord::claim`.
        let is_end = self.ended.swap(Some(cause)).is_none();
        if is_end {
            self.siblings.polled.fetch_sub(1, Ordering::AcqRel);
        }
        self.notify_end_observers(self.is_last_ended());
        // No poll finds this.
        self.helper_wakeup.interrupt_sleep();
    }

    /// Registers `observer` to be notified when the shard ends; at once if it has ended already.
    pub(crate) fn observe_end(&self, observer: Weak<dyn EndObserver>) {
        self.end_observers.lock().unwrap_or_else(PoisonError::into_inner).add(observer);
        if self.has_ended() {
            self.notify_end_observers(self.is_last_ended());
        }
    }

    /// True once no shard of the context is polled any more.
    fn is_last_ended(&self) -> bool {
        self.siblings.polled.load(Ordering::Acquire) == 0
    }

    fn notify_end_observers(&self, is_last: bool) {
        let observers = self.end_observers.lock().unwrap_or_else(PoisonError::into_inner).all();
        for observer in observers.iter().filter_map(Weak::upgrade) {
            observer.on_shard_end(is_last);
        }
    }

    /// Rings the doorbell of a queue pair that has posted work.
    #[inline]
    pub(crate) fn ring_doorbell(&self, qp: QpId) {
        self.doorbells.ring(qp.slot());
        self.helper_wakeup.on_post();
        if self.doorbells.is_closed() {
            self.flush_late(qp);
        }
    }

    /// Flushes what a thread has posted to a queue pair while the shard failed: the thread had
    /// found the queue pair in order before, and was maybe preempted.
    #[cold]
    fn flush_late(&self, qp: QpId) {
        if is_child() {
            return;
        }
        // Held while the shard fails.
        drop(self.engine.lock());
        let mut failed = self.failed_engine.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(engine) = failed.as_mut()
            && catch_unwind(AssertUnwindSafe(|| engine.flush_posted(qp))).is_err()
        {
            tracing::error!(qp = qp.index, "the requests of a queue pair are lost");
        }
    }

    /// Hand-over between the application and the helper.
    pub(crate) const fn helper_wakeup(&self) -> &Arc<HelperWakeup> {
        &self.helper_wakeup
    }

    /// The caller is about to sleep until the shard has something for it, and stops polling: a
    /// helper takes over immediately, and polls often for a while.
    pub(crate) fn add_waiter(&self) -> WaiterGuard<'_> {
        self.helper_wakeup.add_waiter();
        if matches!(self.poller, Poller::Helper(_)) {
            self.helper_wakeup.on_app_sleep();
        }
        WaiterGuard { helper_wakeup: &self.helper_wakeup }
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(crate) const fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Drops the engine, which closes the device with it. The shard is not polled after this.
    pub(crate) fn stop(&self) {
        self.drop_interrupt();
        // Not with the lock held, for which a thread that is posting may wait.
        let mut engine = take_engine(&mut self.engine.lock(), Ended::Closed);
        if let Some(engine) = &mut engine
            && catch_unwind(AssertUnwindSafe(|| engine.close_queues())).is_err()
        {
            tracing::error!("the last requests of the shard are lost");
        }
        if !self.has_ended() {
            self.end(Ended::Closed);
        }
        drop(engine);
        let failed = self.failed_engine.lock().unwrap_or_else(PoisonError::into_inner).take();
        if catch_unwind(AssertUnwindSafe(|| drop(failed))).is_err() {
            tracing::error!("the resources of the failed shard could not be freed");
        }
    }

    /// Why the shard is no longer polled; `None` while it is.
    #[inline]
    pub(crate) fn ended(&self) -> Option<Ended> {
        if is_child() { Some(Ended::Forked) } else { self.ended.load() }
    }

    /// True once the shard is no longer polled.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.ended().is_some()
    }

    /// True once the shard has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.ended.load() == Some(Ended::Failed)
    }
}

/// Why none of these shards is polled any more; `None` while one is.
#[inline]
pub(crate) fn all_ended<'a>(shards: impl IntoIterator<Item = &'a Arc<Shard>>) -> Option<Ended> {
    let mut cause = Ended::Failed;
    for shard in shards {
        match shard.ended()? {
            Ended::Failed => {}
            // Closed after others had failed.
            other => cause = other,
        }
    }
    Some(cause)
}

impl OverrunSink for Shard {
    fn end_cq(&self, cq: CqId, overrun: Arc<CqOverrun>) {
        self.mailbox.push(&self.doorbells, ShardRequest::EndCq { cq, overrun });
        self.helper_wakeup.on_post();
    }
}

impl QsbrReader for Shard {
    fn epoch(&self) -> &QsbrEpoch {
        &self.epoch
    }

    fn report_quiescent_if_idle(&self) -> bool {
        self.engine.try_lock().map(|_guard| self.report_quiescent()).is_some()
    }
}

/// A thread that waits for the shard, counted until this is dropped.
pub(crate) struct WaiterGuard<'a> {
    helper_wakeup: &'a HelperWakeup,
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        self.helper_wakeup.remove_waiter();
    }
}

/// Runs a step of the end of an engine that may panic once more.
fn attempt(step: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(step)).is_err() {
        tracing::error!("not all queue pairs of the failed shard could be ended");
    }
}

/// Prepares the calling thread, the first time, to work on a shard.
#[inline]
fn register_thread() {
    register_application_thread();
    page_faults::prepare_thread();
}
