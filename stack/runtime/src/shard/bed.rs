//! Sleeps of a thread that polls a shard while there is nothing to do.

use std::os::fd::AsFd as _;
use std::sync::{Arc, PoisonError, TryLockError};
use std::time::Duration;

use dpdk_sys::fd::{EventFd, wait_readable};
use ferrowarp_lockfree::helper_wakeup::HelperState;
use ferrowarp_proto::time::Instant;

use crate::device::RxInterrupt;
use crate::poller::Poller;
use crate::shard::{Polled, Shard};

/// Longest sleep until an interrupt.
const AWAIT_MAX: Duration = Duration::from_secs(1);
/// The same where other shards may have frames for this one: they wake no thread.
const AWAIT_MAX_IN_MESH: Duration = Duration::from_millis(1);

/// Way in which a thread sleeps.
pub(super) enum Bed {
    /// Until it is unparked.
    Park,
    /// Until its eventfd is set, or the port has an interrupt.
    Descriptors(Arc<EventFd>, Box<dyn RxInterrupt>),
}

impl Bed {
    pub(super) fn new(interrupt: Option<Box<dyn RxInterrupt>>) -> Self {
        match interrupt.map(|interrupt| (EventFd::new(), interrupt)) {
            Some((Ok(wake), interrupt)) => Self::Descriptors(Arc::new(wake), interrupt),
            Some((Err(error), _)) => {
                tracing::warn!("threads poll for frames, as there is no descriptor: {error}");
                Self::Park
            }
            None => Self::Park,
        }
    }

    /// Registers what ends a sleep.
    pub(super) fn register(&self, shard: &Shard) {
        let wakeup = shard.helper_wakeup();
        match self {
            Self::Park => {
                let own = std::thread::current();
                wakeup.start_helper(move || own.unpark());
            }
            Self::Descriptors(wake, _) => {
                let wake = Arc::clone(wake);
                wakeup.start_helper(move || wake.set());
            }
        }
    }

    /// True if it sleeps until the port has an interrupt.
    pub(super) const fn has_interrupt(&self) -> bool {
        matches!(self, Self::Descriptors(..))
    }

    /// Sleeps for at most `limit`, or until another thread ends that.
    pub(super) fn sleep(&self, limit: Duration) {
        match self {
            Self::Park => std::thread::park_timeout(limit),
            Self::Descriptors(wake, _) => {
                if wait_readable([wake.as_fd()], limit) == [true] {
                    wake.clear();
                }
            }
        }
    }
}

/// Outcome of a sleep until the receive interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InterruptSleep {
    /// The interrupt ended it.
    Interrupted,
    /// Another thread ended it.
    Woken,
    /// Its time is over.
    Slept,
    /// The last poll before it found something to do, or there is a result.
    Busy,
    /// Another thread polls the shard, or there is work.
    NotIdle,
    /// The port has no interrupt, or none any more.
    Unsupported,
}

/// Last look at a shard before a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastLook {
    /// There is nothing to do for this time.
    Idle(Duration),
    Busy,
    /// Another thread has the lock, or there is work.
    NotIdle,
}

impl Shard {
    /// Sleeps until the receive interrupt, the next timer, or until another thread has work for the
    /// caller, for `limit` at most. Not if `has_result`, called just before, returns true.
    pub(super) fn await_interrupt(
        &self,
        bed: &Bed,
        limit: Duration,
        has_result: impl FnOnce() -> bool,
    ) -> InterruptSleep {
        let Bed::Descriptors(wake, interrupt) = bed else { return InterruptSleep::Unsupported };
        if !interrupt.enable() {
            return InterruptSleep::Unsupported;
        }
        let mut outcome = InterruptSleep::Slept;
        let look = || {
            outcome = match self.look_before_sleep(has_result) {
                LastLook::Idle(time) => return Some(time.min(limit)),
                LastLook::Busy => InterruptSleep::Busy,
                LastLook::NotIdle => InterruptSleep::NotIdle,
            };
            None
        };
        let mut ended_by = [false; 2];
        self.helper_wakeup.sleep_after(HelperState::ShortSleep, look, |limit| {
            ended_by = wait_readable([wake.as_fd(), interrupt.as_fd()], limit);
        });
        interrupt.disable();
        let [is_woken, is_interrupted] = ended_by;
        if is_woken {
            wake.clear();
        }
        match (is_woken, is_interrupted) {
            (_, true) => InterruptSleep::Interrupted,
            (true, false) => InterruptSleep::Woken,
            (false, false) => outcome,
        }
    }

    /// Has threads of the application that wait sleep on this interrupt. For a shard that only they
    /// poll.
    pub(crate) fn set_interrupt(&self, interrupt: Box<dyn RxInterrupt>) {
        let bed = Bed::new(Some(interrupt));
        if bed.has_interrupt() {
            bed.register(self);
            self.helper_wakeup.stand_by();
            *self.bed.lock().unwrap_or_else(PoisonError::into_inner) = Some(bed);
        }
    }

    /// As [`Shard::await_interrupt`], for a thread of the application that waits. A poll of another
    /// thread may find what this one waits for. So the first poll that begins after the last look
    /// ends the sleep, and all others have ended when `has_result` is called.
    pub(crate) fn sleep_on_port(
        &self,
        limit: Duration,
        has_result: impl FnOnce() -> bool,
    ) -> InterruptSleep {
        // One thread sleeps there; it does not serve the others.
        let Ok(bed) = self.bed.try_lock() else { return InterruptSleep::NotIdle };
        let Some(bed) = &*bed else { return InterruptSleep::Unsupported };
        let outcome = self.await_interrupt(bed, limit, has_result);
        self.helper_wakeup.stand_by();
        outcome
    }

    /// Reports that the shard holds no resolved STag, to threads that wait for that. One that
    /// sleeps on the port waits for any poll. With the shard's lock held.
    #[inline]
    pub(super) fn report_quiescent(&self) {
        if self.epoch.report_quiescent() && self.poller == Poller::Application {
            self.on_quiescent();
        }
    }

    #[cold]
    fn on_quiescent(&self) {
        self.helper_wakeup.on_app_change();
    }

    /// Ends the sleeps of threads of the application, and drops the port's interrupt.
    pub(super) fn drop_interrupt(&self) {
        loop {
            // Another thread may begin to sleep when the first one wakes up.
            self.helper_wakeup.interrupt_sleep();
            match self.bed.try_lock() {
                Ok(mut bed) => return drop(bed.take()),
                Err(TryLockError::Poisoned(bed)) => return drop(bed.into_inner().take()),
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
    }

    /// Polls once more: a frame that arrived before raises no interrupt. Then calls `has_result`.
    pub(super) fn look_before_sleep(&self, has_result: impl FnOnce() -> bool) -> LastLook {
        match self.try_poll(self.clock.now()) {
            Polled::Idle => {}
            Polled::Busy => return LastLook::Busy,
            // Its poll may have begun before the interrupt was enabled.
            Polled::Not => return LastLook::NotIdle,
        }
        let Some(mut engine) = self.engine.try_lock() else { return LastLook::NotIdle };
        let Ok(running) = engine.as_mut() else { return LastLook::NotIdle };
        running.demote_all(&self.doorbells);
        let now = self.clock.now();
        let left = |deadline: Instant| Duration::from_nanos(deadline.since(now));
        let max = if self.siblings.monitor.is_some() { AWAIT_MAX_IN_MESH } else { AWAIT_MAX };
        let limit = running.deadline(now).map_or(max, left).min(max);
        if self.poller == Poller::Application {
            self.epoch.request();
        }
        drop(engine);
        if has_result() {
            return LastLook::Busy;
        }
        if self.has_posted_work() { LastLook::NotIdle } else { LastLook::Idle(limit) }
    }

    /// True if work was posted that no poll has seen.
    pub(super) fn has_posted_work(&self) -> bool {
        self.doorbells.has_hot() || self.doorbells.is_pending() || self.doorbells.has_requests()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Context};

    #[test]
    fn thread_stays_awake_if_another_polls_or_work_is_left() {
        let config = |host| Config::new("ring".parse().unwrap(), [198, 18, 0, host].into(), 24);
        let (context, _peer) = Context::ring_pair(config(1), config(2)).unwrap();
        let shard = context.inner().shards.get(0);
        let look = |shard: &Shard| shard.look_before_sleep(|| false);
        let is_idle = |look| matches!(look, LastLook::Idle(_));
        while shard.poll() {}
        assert!(is_idle(look(shard)));
        let held = shard.engine.lock();
        assert_eq!(look(shard), LastLook::NotIdle);
        drop(held);
        assert!(!shard.has_posted_work());
        shard.doorbells.announce_request();
        assert!(shard.has_posted_work());
        assert!(is_idle(look(shard)), "the look serves it");
        assert!(!shard.has_posted_work());
    }
}
