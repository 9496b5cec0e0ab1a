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
use crate::epoch::{self, PassEpoch, Passes};
use crate::gate::{Gate, Inside};
use crate::handover::{HANDOVER_NS, Handover, Rest};
use crate::machine::Machine;
use crate::schedule::{Schedule, Step};

/// One engine with its port queue, advanced by whoever is inside the gate.
///
/// Posting writes to rings and rings a bell; polling reads rings. Everything else is a control
/// call: it waits for the gate, for one pass of another thread at most, and acts on the machine
/// itself.
pub(crate) struct Shard {
    gate: Gate<Option<Box<dyn Machine>>>,
    epoch: PassEpoch,
    bells: Doorbells,
    clock: Clock,
    mode: DriveMode,
    /// Between application and helper, in mode `Helper`; in the others it only counts sleepers.
    handover: Arc<Handover>,
    /// Whether anything still advances it: [`RUNS`], [`CLOSED`] or [`FAILED`].
    state: AtomicU8,
    watchers: Mutex<Vec<Weak<dyn Watcher>>>,
    /// A machine that panicked. Nothing is done with it until it is dropped, when the shard is
    /// closed.
    wreck: Mutex<Option<Box<dyn Machine>>>,
}

const RUNS: u8 = 0;
const CLOSED: u8 = 1;
const FAILED: u8 = 2;

/// Whoever has to know when a shard ends.
pub(crate) trait Watcher: Send + Sync {
    /// Nothing advances the shard any more: it was closed, or it failed. What that means for its
    /// queue pairs has been done and shown. Called outside the gate, by the thread that ended it,
    /// more than once.
    fn shard_ended(&self);
}

impl Shard {
    pub(crate) fn new(machine: Box<dyn Machine>, mode: DriveMode, qps_max: usize) -> Self {
        Self {
            gate: Gate::new(Some(machine)),
            epoch: PassEpoch::new(),
            bells: Doorbells::new(qps_max),
            clock: Clock::start(),
            mode,
            handover: Arc::new(Handover::new()),
            state: AtomicU8::new(RUNS),
            watchers: Mutex::default(),
            wreck: Mutex::default(),
        }
    }

    /// The application's way to advance the shard: one pass, unless a thread of its own does
    /// that or somebody is at it. True if the pass found anything to do.
    #[inline]
    pub(crate) fn drive(&self) -> bool {
        match self.mode {
            DriveMode::Inline => self.advance(),
            DriveMode::Dedicated { .. } => false,
            DriveMode::Helper => {
                self.handover.drives(self.clock.now().as_nanos());
                self.advance()
            }
        }
    }

    /// One pass, unless somebody is inside. True if it found anything to do.
    #[inline]
    pub(crate) fn advance(&self) -> bool {
        if is_child() {
            return false;
        }
        crate::thread::known_to_dpdk();
        let Some(mut machine) = self.gate.try_enter() else {
            return false;
        };
        self.epoch.observe();
        let Some(running) = machine.as_mut() else {
            return false;
        };
        let now = self.clock.now();
        // No thread of the application's is unwound for a defect of the stack, and none that
        // drives ends in silence.
        match catch_unwind(AssertUnwindSafe(|| running.pass(now, &self.bells))) {
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
        crate::thread::known_to_dpdk();
        let mut machine = self.gate.enter();
        self.epoch.observe();
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
    fn fail(&self, mut machine: Inside<'_, Option<Box<dyn Machine>>>) {
        tracing::error!("a panic has ended a shard, and all its connections with it");
        if let Some(mut wreck) = machine.take() {
            if catch_unwind(AssertUnwindSafe(|| wreck.abandon())).is_err() {
                tracing::error!("some of its queue pairs could not be ended");
            }
            *self.wreck.lock().unwrap_or_else(PoisonError::into_inner) = Some(wreck);
        }
        drop(machine);
        self.end(FAILED);
    }

    /// Nothing advances it from now on. Whoever finds it ended finds the last events, and whoever
    /// armed a queue just before is notified, too: watchers are told on both sides of it.
    fn end(&self, state: u8) {
        self.tell_watchers();
        self.state.store(state, Ordering::SeqCst);
        self.tell_watchers();
    }

    /// Has `watcher` told when the shard ends; at once if it has ended already.
    pub(crate) fn watch(&self, watcher: Weak<dyn Watcher>) {
        let mut watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|watcher| watcher.strong_count() > 0);
        watchers.push(watcher);
        drop(watchers);
        if self.has_ended() {
            self.tell_watchers();
        }
    }

    fn tell_watchers(&self) {
        let watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for watcher in watchers.iter().filter_map(Weak::upgrade) {
            watcher.shard_ended();
        }
    }

    /// Says that a queue pair has posted work.
    #[inline]
    pub(crate) fn ring(&self, index: u32) {
        self.bells.ring(index as usize);
        self.handover.posted();
    }

    /// Between the application and the helper.
    pub(crate) const fn handover(&self) -> &Arc<Handover> {
        &self.handover
    }

    /// The caller is about to sleep until the shard has something for it, and drives no more: a
    /// helper takes over at once, and looks often for a while.
    pub(crate) fn await_news(&self) -> Awaiting<'_> {
        self.handover.expect();
        if self.mode == DriveMode::Helper {
            self.handover.hand_over();
        }
        Awaiting { handover: &self.handover }
    }

    /// What the helper does next.
    pub(crate) fn next_step(&self, schedule: &mut Schedule) -> Step {
        let now = self.clock.now().as_nanos();
        let idle = self.handover.idle_ns(now);
        schedule.next(now, idle, self.handover.waiters())
    }

    /// The helper sleeps for at most `limit`, or until it is to drive. `wait_seq`: see
    /// [`Waiters`], as it was when the nap was planned.
    pub(crate) fn nap(&self, rest: Rest, limit: Duration, wait_seq: u32) {
        self.handover.nap(rest, limit, || match rest {
            Rest::Awake => true,
            Rest::Aside => self.handover.idle_ns(self.clock.now().as_nanos()) > HANDOVER_NS,
            Rest::Brief => self.bells.any(),
            Rest::Long => self.bells.any() || self.handover.waiters().wait_seq != wait_seq,
        });
    }

    /// Returns once every pass that runs now has ended; later passes see what the caller wrote.
    pub(crate) fn wait_for_passes(&self) {
        if is_child() {
            // No pass runs here, and the gate may have been taken at the fork.
            return;
        }
        epoch::wait_for_passes(std::iter::once(self));
    }

    /// Queue pairs that have a bell.
    pub(crate) fn qps_max(&self) -> usize {
        self.bells.capacity()
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Takes the machine out, so that nothing runs any more and the device is closed with it.
    pub(crate) fn stop(&self) {
        let machine = self.gate.enter().take();
        if !self.has_ended() {
            self.end(CLOSED);
        }
        drop(machine);
        let wreck = self.wreck.lock().unwrap_or_else(PoisonError::into_inner).take();
        if catch_unwind(AssertUnwindSafe(|| drop(wreck))).is_err() {
            tracing::error!("what a failed shard had could not be freed");
        }
    }

    /// True once nothing advances it any more: it was closed, or it failed.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.state.load(Ordering::Acquire) != RUNS
    }

    /// True once it has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.state.load(Ordering::Acquire) == FAILED
    }
}

impl Passes for Shard {
    fn epoch(&self) -> &PassEpoch {
        &self.epoch
    }

    fn observe_if_idle(&self) -> bool {
        self.gate.try_enter().map(|_inside| self.epoch.observe()).is_some()
    }
}

/// Somebody sleeps until the shard has something.
pub(crate) struct Awaiting<'a> {
    handover: &'a Handover,
}

impl Drop for Awaiting<'_> {
    fn drop(&mut self) {
        self.handover.forget();
    }
}
