//! Helper of a shard: the thread that polls it while the application does not.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dpdk_sys::fd::{EventFd, wait_readable};
use ferrowarp_lockfree::helper_wakeup::HelperState;
use ferrowarp_proto::time::Instant;

use crate::device::RxInterrupt;
use crate::poller::HelperPolicy;
use crate::shard::helper_schedule::{HelperSchedule, Step};
use crate::shard::{Polled, Shard};
use crate::threads::{Spinner, YieldBackoff, timer_slack};

/// Longest sleep until an interrupt.
const AWAIT_MAX: Duration = Duration::from_secs(1);
/// The same where other shards may have frames for this one: they do not wake its helper.
const AWAIT_MAX_IN_MESH: Duration = Duration::from_millis(1);
/// Time between two looks of a helper on standby at the time of the application's last poll, in
/// nanoseconds. Each takes the cache line from the application.
const LOOK_INTERVAL_NS: u64 = 500;

/// Way in which a helper sleeps.
enum Bed {
    /// Until it is unparked.
    Park,
    /// Until its eventfd is set, or the port has an interrupt.
    Descriptors(Arc<EventFd>, Box<dyn RxInterrupt>),
}

impl Bed {
    fn new(interrupt: Option<Box<dyn RxInterrupt>>) -> Self {
        match interrupt.map(|interrupt| (EventFd::new(), interrupt)) {
            Some((Ok(wake), interrupt)) => Self::Descriptors(Arc::new(wake), interrupt),
            Some((Err(error), _)) => {
                tracing::warn!("the helper polls for frames, as it has no descriptor: {error}");
                Self::Park
            }
            None => Self::Park,
        }
    }

    /// Registers what ends a sleep.
    fn register(&self, shard: &Shard) {
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

    /// Sleeps for at most `limit`, or until another thread ends that.
    fn sleep(&self, limit: Duration) {
        match self {
            Self::Park => std::thread::park_timeout(limit),
            Self::Descriptors(wake, _) => {
                if wait_readable([wake.as_fd()], limit) == [true] {
                    wake.clear();
                }
            }
        }
    }

    /// As [`Bed::sleep`], or until the interrupt. True if it was that.
    fn await_interrupt(&self, limit: Duration) -> bool {
        let Self::Descriptors(wake, interrupt) = self else { return false };
        let [woken, interrupted] = wait_readable([wake.as_fd(), interrupt.as_fd()], limit);
        if woken {
            wake.clear();
        }
        interrupted
    }
}

/// Polls while the application does not; sleeps while it does, and while there is nothing to do.
/// `interrupt`: of the shard's queue, if it has one.
pub(crate) fn run_helper(
    shard: &Shard,
    interrupt: Option<Box<dyn RxInterrupt>>,
    policy: HelperPolicy,
    stop: &AtomicBool,
) {
    if !timer_slack::minimize() {
        tracing::warn!("the helper's sleeps may last longer than requested");
    }
    let bed = Bed::new(interrupt);
    bed.register(shard);
    let has_interrupt = matches!(bed, Bed::Descriptors(..));
    let mut schedule = HelperSchedule::new(shard.now().as_nanos(), policy, has_interrupt);
    let mut yields = YieldBackoff::new(shard.now());
    let mut spinner = Spinner::new();
    while !stop.load(Ordering::Relaxed) && !shard.has_ended() {
        match shard.helper_step(&mut schedule) {
            Step::Poll => {
                let busy = shard.poll();
                let now = shard.now();
                schedule.on_polled(now.as_nanos(), busy);
                if schedule.is_hot(now.as_nanos()) {
                    spinner.on_poll(busy);
                } else if !busy {
                    yields.yield_now(|| shard.now());
                }
            }
            Step::Spin if schedule.is_hot(shard.now().as_nanos()) => {
                spinner.on_poll(false);
                shard.pause();
            }
            Step::Spin => drop(yields.yield_now(|| shard.now())),
            Step::Sleep(rest, limit) => {
                let start = shard.now();
                shard.helper_sleep(&bed, rest, limit, &schedule);
                schedule.on_slept(limit, shard.now().since(start));
            }
            Step::AwaitInterrupt => shard.helper_await_interrupt(&bed, &mut schedule),
        }
    }
}

impl Shard {
    /// Returns the next action of the helper.
    fn helper_step(&self, schedule: &mut HelperSchedule) -> Step {
        let now = self.clock.now().as_nanos();
        let idle = self.helper_wakeup.app_idle_ns(now);
        schedule.on_app_busy(self.helper_wakeup.app_busy_at());
        schedule.next(now, idle, self.helper_wakeup.waiters())
    }

    /// Passes a moment without access to anything that the application writes.
    fn pause(&self) {
        let start = self.clock.now();
        while self.clock.now().since(start) < LOOK_INTERVAL_NS {
            std::hint::spin_loop();
        }
    }

    /// True if work was posted that no poll has seen.
    fn has_posted_work(&self) -> bool {
        self.doorbells.has_hot() || self.doorbells.is_pending() || self.doorbells.has_requests()
    }

    /// Puts the helper to sleep for at most `limit`, or until it has to poll.
    fn helper_sleep(
        &self,
        bed: &Bed,
        rest: HelperState,
        limit: Duration,
        schedule: &HelperSchedule,
    ) {
        if matches!(rest, HelperState::ShortSleep | HelperState::LongSleep)
            && self.doorbells.has_hot()
            && let Some(mut engine) = self.engine.try_lock()
            && let Ok(running) = engine.as_mut()
        {
            running.demote_all(&self.doorbells);
        }
        let takeover_ns = schedule.policy().takeover_ns;
        let reason = || match rest {
            HelperState::Awake => true,
            HelperState::Standby => {
                self.helper_wakeup.app_idle_ns(self.clock.now().as_nanos()) > takeover_ns
            }
            HelperState::ShortSleep => self.has_posted_work(),
            HelperState::LongSleep => {
                self.has_posted_work()
                    || self.helper_wakeup.waiters().wait_seq != schedule.wait_seq()
            }
        };
        self.helper_wakeup.sleep(rest, reason, || bed.sleep(limit));
    }

    /// Puts the helper to sleep until the receive interrupt, the next timer, or until it has to
    /// poll.
    fn helper_await_interrupt(&self, bed: &Bed, schedule: &mut HelperSchedule) {
        let Bed::Descriptors(_, interrupt) = bed else { return };
        if !interrupt.enable() {
            return schedule.on_interrupt_refused();
        }
        let mut is_interrupted = false;
        let look = || self.look_before_await(schedule);
        self.helper_wakeup.sleep_after(HelperState::ShortSleep, look, |limit| {
            is_interrupted = bed.await_interrupt(limit);
        });
        if is_interrupted {
            schedule.on_interrupt();
        }
        interrupt.disable();
    }

    /// Polls once more: a frame that arrived before raises no interrupt. Returns the time for which
    /// the helper may sleep; `None` if it has to poll, or another thread has the lock.
    fn look_before_await(&self, schedule: &mut HelperSchedule) -> Option<Duration> {
        match self.try_poll() {
            Polled::Idle => {}
            Polled::Busy => {
                schedule.on_polled(self.clock.now().as_nanos(), true);
                return None;
            }
            // Its poll may have begun before the interrupt was enabled.
            Polled::Not => return None,
        }
        let mut engine = self.engine.try_lock()?;
        let running = engine.as_mut().ok()?;
        running.demote_all(&self.doorbells);
        let now = self.clock.now();
        let left = |deadline: Instant| Duration::from_nanos(deadline.since(now));
        let max = if self.siblings.monitor.is_some() { AWAIT_MAX_IN_MESH } else { AWAIT_MAX };
        let limit = running.deadline(now).map_or(max, left).min(max);
        drop(engine);
        (!self.has_posted_work()).then_some(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Context};

    #[test]
    fn helper_stays_awake_if_another_thread_polls_or_work_is_left() {
        let config = |host| Config::new("ring".parse().unwrap(), [198, 18, 0, host].into(), 24);
        let (context, _peer) = Context::ring_pair(config(1), config(2)).unwrap();
        let shard = context.inner().shards.get(0);
        let mut schedule = HelperSchedule::new(0, HelperPolicy::PARKING, true);
        while shard.poll() {}
        assert!(shard.look_before_await(&mut schedule).is_some());
        let held = shard.engine.lock();
        assert_eq!(shard.look_before_await(&mut schedule), None);
        drop(held);
        assert!(!shard.has_posted_work());
        shard.doorbells.announce_request();
        assert!(shard.has_posted_work());
        assert!(shard.look_before_await(&mut schedule).is_some(), "the look serves it");
        assert!(!shard.has_posted_work());
    }
}
