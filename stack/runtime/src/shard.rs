//! A shard: the machine that owns an engine, and the one way to advance it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam::utils::CachePadded;
use dpdk_sys::is_child;
use ferrowarp_proto::time::Instant;

use crate::clock::Clock;
use crate::config::DriveMode;
use crate::doorbell::Doorbells;
use crate::epoch::{self, PassEpoch, Passes};
use crate::gate::Gate;
use crate::machine::Machine;

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
    /// When the application last drove, in nanoseconds of the clock. Kept in mode `Helper`.
    driven: CachePadded<AtomicU64>,
    /// The helper naps and wants to be woken.
    napping: AtomicBool,
    helper: std::sync::OnceLock<std::thread::Thread>,
    /// Nothing advances it any more.
    ended: AtomicBool,
}

impl Shard {
    pub(crate) fn new(machine: Box<dyn Machine>, mode: DriveMode, qps_max: usize) -> Self {
        Self {
            gate: Gate::new(Some(machine)),
            epoch: PassEpoch::new(),
            bells: Doorbells::new(qps_max),
            clock: Clock::start(),
            mode,
            driven: CachePadded::new(AtomicU64::new(0)),
            napping: AtomicBool::new(false),
            helper: std::sync::OnceLock::new(),
            ended: AtomicBool::new(false),
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
                self.driven.store(self.clock.now().as_nanos(), Ordering::Relaxed);
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
        let Some(machine) = machine.as_mut() else {
            return false;
        };
        machine.pass(self.clock.now(), &self.bells)
    }

    /// Acts on the machine. `None` after closing, and in a child of the process.
    pub(crate) fn control<R>(&self, act: impl FnOnce(&mut dyn Machine, Instant) -> R) -> Option<R> {
        if is_child() {
            return None;
        }
        crate::thread::known_to_dpdk();
        let mut machine = self.gate.enter();
        self.epoch.observe();
        let machine = machine.as_mut()?;
        let result = act(machine.as_mut(), self.clock.now());
        machine.settle();
        Some(result)
    }

    /// Says that a queue pair has posted work.
    #[inline]
    pub(crate) fn ring(&self, index: u32) {
        self.bells.ring(index as usize);
        if self.mode == DriveMode::Helper && self.napping.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    /// Wakes the helper, unless the application is driving.
    #[cold]
    fn wake(&self) {
        let idle = self.application_idle_ns(self.clock.now());
        if idle > HANDOVER_NS
            && self.napping.swap(false, Ordering::AcqRel)
            && let Some(helper) = self.helper.get()
        {
            helper.unpark();
        }
    }

    /// Nanoseconds since the application last drove.
    pub(crate) fn application_idle_ns(&self, now: Instant) -> u64 {
        now.as_nanos().saturating_sub(self.driven.load(Ordering::Relaxed))
    }

    /// The helper sleeps for at most `limit`, or until work is posted.
    pub(crate) fn nap(&self, limit: std::time::Duration) {
        let _ = self.helper.set(std::thread::current());
        self.napping.store(true, Ordering::SeqCst);
        std::thread::park_timeout(limit);
        self.napping.store(false, Ordering::Relaxed);
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
        self.ended.store(true, Ordering::Release);
        drop(machine);
    }

    /// True once nothing advances it any more: it was closed.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
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

/// The helper takes over when the application has not driven for this long.
pub(crate) const HANDOVER_NS: u64 = 20_000;
