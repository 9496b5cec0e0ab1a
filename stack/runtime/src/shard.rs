//! A shard: the machine that owns an engine, and the one way to advance it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use dpdk_sys::is_child;
use ferrowarp_proto::time::Instant;

use crate::clock::Clock;
use crate::config::DriveMode;
use crate::doorbell::Doorbells;
use crate::helper_schedule::{HelperSchedule, Step};
use crate::helper_wakeup::{HelperState, HelperWakeup, TAKEOVER_NS};
use crate::machine::Machine;
use crate::qsbr::{self, QsbrEpoch, QsbrReader};
use crate::spin_lock::{LockGuard, SpinLock};

/// One engine with its port queue, advanced by whoever is inside the gate.
///
/// Posting writes to rings and rings a bell; polling reads rings. Everything else is a control
/// call: it waits for the gate, for one pass of another thread at most, and acts on the machine
/// itself.
pub(crate) struct Shard {
    engine: SpinLock<Option<Box<dyn Machine>>>,
    epoch: QsbrEpoch,
    doorbells: Doorbells,
    clock: Clock,
    mode: DriveMode,
    /// Between application and helper, in mode `Helper`; in the others it only counts sleepers.
    helper_wakeup: Arc<HelperWakeup>,
    /// Whether anything still advances it: [`RUNNING`], [`CLOSED`] or [`FAILED`].
    state: AtomicU8,
    end_observers: Mutex<Vec<Weak<dyn EndObserver>>>,
    /// A machine that panicked. Nothing is done with it until it is dropped, when the shard is
    /// closed.
    failed_engine: Mutex<Option<Box<dyn Machine>>>,
}

const RUNNING: u8 = 0;
const CLOSED: u8 = 1;
const FAILED: u8 = 2;

/// Whoever has to know when a shard ends.
pub(crate) trait EndObserver: Send + Sync {
    /// Nothing advances the shard any more: it was closed, or it failed. What that means for its
    /// queue pairs has been done and shown. Called outside the gate, by the thread that ended it,
    /// more than once.
    fn on_shard_end(&self);
}

impl Shard {
    pub(crate) fn new(machine: Box<dyn Machine>, mode: DriveMode, qps_max: usize) -> Self {
        Self {
            engine: SpinLock::new(Some(machine)),
            epoch: QsbrEpoch::new(),
            doorbells: Doorbells::new(qps_max),
            clock: Clock::start(),
            mode,
            helper_wakeup: Arc::new(HelperWakeup::new()),
            state: AtomicU8::new(RUNNING),
            end_observers: Mutex::default(),
            failed_engine: Mutex::default(),
        }
    }

    /// The application's way to advance the shard: one pass, unless a thread of its own does
    /// that or somebody is at it. True if the pass found anything to do.
    #[inline]
    pub(crate) fn drive(&self) -> bool {
        match self.mode {
            DriveMode::Inline => self.poll(),
            DriveMode::Dedicated { .. } => false,
            DriveMode::Helper => {
                self.helper_wakeup.on_app_poll(self.clock.now().as_nanos());
                self.poll()
            }
        }
    }

    /// One pass, unless somebody is inside. True if it found anything to do.
    #[inline]
    pub(crate) fn poll(&self) -> bool {
        if is_child() {
            return false;
        }
        crate::thread::register_thread();
        let Some(mut machine) = self.engine.try_lock() else {
            return false;
        };
        self.epoch.report_quiescent();
        let Some(running) = machine.as_mut() else {
            return false;
        };
        let now = self.clock.now();
        // No thread of the application's is unwound for a defect of the stack, and none that
        // drives ends in silence.
        match catch_unwind(AssertUnwindSafe(|| running.pass(now, &self.doorbells))) {
            Ok(busy) => busy,
            Err(_) => {
                self.fail(machine);
                true
            }
        }
    }

    /// Acts on the machine. `None` after closing, after a failure (also one of `act`), and in a
    /// child of the process.
    pub(crate) fn control<R>(&self, act: impl FnOnce(&mut dyn Machine, Instant) -> R) -> Option<R> {
        if is_child() {
            return None;
        }
        crate::thread::register_thread();
        let mut machine = self.engine.lock();
        self.epoch.report_quiescent();
        let running = machine.as_mut()?;
        let now = self.clock.now();
        let done = catch_unwind(AssertUnwindSafe(|| {
            let result = act(running.as_mut(), now);
            running.settle();
            result
        }));
        done.map_err(|_| self.fail(machine)).ok()
    }

    /// The machine has panicked. What is left of it ends its queue pairs; nothing advances it any
    /// more.
    #[cold]
    fn fail(&self, mut machine: LockGuard<'_, Option<Box<dyn Machine>>>) {
        tracing::error!("a panic has ended a shard, and all its connections with it");
        if let Some(mut failed) = machine.take() {
            if catch_unwind(AssertUnwindSafe(|| failed.abandon())).is_err() {
                tracing::error!("some of its queue pairs could not be ended");
            }
            *self.failed_engine.lock().unwrap_or_else(PoisonError::into_inner) = Some(failed);
        }
        drop(machine);
        self.end(FAILED);
    }

    /// Nothing advances it from now on. Whoever finds it ended finds the last events, and whoever
    /// armed a queue just before is notified, too: watchers are told on both sides of it.
    fn end(&self, state: u8) {
        self.notify_end_observers();
        self.state.store(state, Ordering::SeqCst);
        self.notify_end_observers();
    }

    /// Has `watcher` told when the shard ends; at once if it has ended already.
    pub(crate) fn observe_end(&self, watcher: Weak<dyn EndObserver>) {
        let mut watchers = self.end_observers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|watcher| watcher.strong_count() > 0);
        watchers.push(watcher);
        drop(watchers);
        if self.has_ended() {
            self.notify_end_observers();
        }
    }

    fn notify_end_observers(&self) {
        let watchers = self.end_observers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for watcher in watchers.iter().filter_map(Weak::upgrade) {
            watcher.on_shard_end();
        }
    }

    /// Says that a queue pair has posted work.
    #[inline]
    pub(crate) fn ring_doorbell(&self, index: u32) {
        self.doorbells.ring(index as usize);
        self.helper_wakeup.on_post();
    }

    /// Between the application and the helper.
    pub(crate) const fn helper_wakeup(&self) -> &Arc<HelperWakeup> {
        &self.helper_wakeup
    }

    /// The caller is about to sleep until the shard has something for it, and drives no more: a
    /// helper takes over at once, and looks often for a while.
    pub(crate) fn add_waiter(&self) -> WaiterGuard<'_> {
        self.helper_wakeup.add_waiter();
        if self.mode == DriveMode::Helper {
            self.helper_wakeup.on_app_sleep();
        }
        WaiterGuard { helper_wakeup: &self.helper_wakeup }
    }

    /// What the helper does next.
    pub(crate) fn helper_step(&self, schedule: &mut HelperSchedule) -> Step {
        let now = self.clock.now().as_nanos();
        let idle = self.helper_wakeup.app_idle_ns(now);
        schedule.next(now, idle, self.helper_wakeup.waiters())
    }

    /// The helper sleeps for at most `limit`, or until it is to drive. `wait_seq`: see
    /// [`crate::helper_wakeup::Waiters`], as it was when the nap was planned.
    pub(crate) fn helper_sleep(&self, rest: HelperState, limit: Duration, wait_seq: u32) {
        self.helper_wakeup.sleep(rest, limit, || match rest {
            HelperState::Awake => true,
            HelperState::Standby => {
                self.helper_wakeup.app_idle_ns(self.clock.now().as_nanos()) > TAKEOVER_NS
            }
            HelperState::ShortSleep => self.doorbells.is_pending(),
            HelperState::LongSleep => {
                self.doorbells.is_pending() || self.helper_wakeup.waiters().wait_seq != wait_seq
            }
        });
    }

    /// Returns once every pass that runs now has ended; later passes see what the caller wrote.
    pub(crate) fn synchronize(&self) {
        if is_child() {
            // No pass runs here, and the gate may have been taken at the fork.
            return;
        }
        qsbr::synchronize(std::iter::once(self));
    }

    /// Queue pairs that have a bell.
    pub(crate) fn qps_max(&self) -> usize {
        self.doorbells.capacity()
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Takes the machine out, so that nothing runs any more and the device is closed with it.
    pub(crate) fn stop(&self) {
        let machine = self.engine.lock().take();
        if !self.has_ended() {
            self.end(CLOSED);
        }
        drop(machine);
        let failed = self.failed_engine.lock().unwrap_or_else(PoisonError::into_inner).take();
        if catch_unwind(AssertUnwindSafe(|| drop(failed))).is_err() {
            tracing::error!("what a failed shard had could not be freed");
        }
    }

    /// True once nothing advances it any more: it was closed, or it failed.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.state.load(Ordering::Acquire) != RUNNING
    }

    /// True once it has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.state.load(Ordering::Acquire) == FAILED
    }
}

impl QsbrReader for Shard {
    fn epoch(&self) -> &QsbrEpoch {
        &self.epoch
    }

    fn report_quiescent_if_idle(&self) -> bool {
        self.engine.try_lock().map(|_inside| self.epoch.report_quiescent()).is_some()
    }
}

/// Somebody sleeps until the shard has something.
pub(crate) struct WaiterGuard<'a> {
    helper_wakeup: &'a HelperWakeup,
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        self.helper_wakeup.remove_waiter();
    }
}
