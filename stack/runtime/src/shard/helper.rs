//! Helper of a shard: the thread that polls it while the application does not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ferrowarp_lockfree::helper_wakeup::HelperState;

use crate::device::RxInterrupt;
use crate::poller::HelperPolicy;
use crate::shard::bed::{Bed, InterruptSleep};
use crate::shard::helper_schedule::{HelperSchedule, Step};
use crate::shard::{Polled, Shard};
use crate::threads::{PreemptedThread, Spinner, YieldBackoff, thread_id, timer_slack};

/// Time between two looks of a helper on standby at the time of the application's last poll, in
/// nanoseconds. Each takes the cache line from the application.
const LOOK_INTERVAL_NS: u64 = 500;

/// Sleep instead of a yield, next to a thread that computes or polls: the wake-up interrupts it.
const NAP: Duration = Duration::from_micros(5);

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
    let mut schedule = HelperSchedule::new(shard.now().as_nanos(), policy, bed.has_interrupt());
    let mut yields = YieldBackoff::new(shard.now());
    let mut spinner = Spinner::new();
    let mut preempted = PreemptedThread::default();
    while !stop.load(Ordering::Relaxed) && !shard.has_ended() {
        match shard.helper_step(&mut schedule, &mut preempted) {
            Step::Poll => {
                let busy = shard.poll();
                let now = shard.now();
                schedule.on_polled(now.as_nanos(), busy);
                if schedule.is_hot(now.as_nanos()) {
                    spinner.on_poll(busy);
                } else if schedule.is_beside_application() {
                    shard.helper_leave(&bed, &mut yields);
                } else if !busy {
                    yields.yield_now(|| shard.now());
                }
            }
            Step::Spin if schedule.is_hot(shard.now().as_nanos()) => {
                spinner.on_poll(false);
                shard.pause();
            }
            Step::Spin => shard.helper_leave(&bed, &mut yields),
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
    /// Polls on behalf of the application, which is thereby in charge. True if the poll found
    /// anything to do.
    // Not inlined, so that `poll` is, in the other mode.
    #[inline(never)]
    pub(super) fn drive_beside_helper(&self) -> bool {
        let mut now = self.clock.now();
        self.helper_wakeup.on_app_poll(thread_id());
        let busy = self.try_poll(now) == Polled::Busy;
        if busy {
            // It may have lasted longer than the time after which a helper takes over.
            now = self.clock.now();
            self.helper_wakeup.on_app_busy(now.as_nanos());
        }
        self.helper_wakeup.on_app_polled(now.as_nanos());
        if busy || self.doorbells.has_hot() {
            // It knows none of the timers that run now, and no doorbell wakes it any more.
            self.helper_wakeup.on_app_change();
        }
        busy
    }

    /// Returns the next action of the helper.
    fn helper_step(&self, schedule: &mut HelperSchedule, preempted: &mut PreemptedThread) -> Step {
        let now = self.clock.now().as_nanos();
        let mut idle = self.helper_wakeup.app_idle_ns(now);
        // A preempted application polls on when it runs, and needs a core for that.
        if schedule.takes_over(now, idle) && preempted.is(self.helper_wakeup.app_thread()) {
            idle = 0;
        }
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

    /// Leaves the core to the application for a moment.
    fn helper_leave(&self, bed: &Bed, yields: &mut YieldBackoff) {
        if !yields.yield_now(|| self.clock.now()) {
            bed.sleep(NAP);
        }
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
        let reason = || match rest {
            HelperState::Awake => true,
            HelperState::Standby => self.helper_wakeup.is_handed_over(),
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
        match self.await_interrupt(bed, Duration::MAX, || false) {
            InterruptSleep::Interrupted => schedule.on_interrupt(),
            InterruptSleep::Busy => schedule.on_polled(self.clock.now().as_nanos(), true),
            InterruptSleep::Unsupported => schedule.on_interrupt_refused(),
            InterruptSleep::Woken | InterruptSleep::Slept | InterruptSleep::NotIdle => {}
        }
    }
}
