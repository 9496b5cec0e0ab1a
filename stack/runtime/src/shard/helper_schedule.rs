//! Schedule of the helper thread: when it polls, spins or sleeps, as a function of the time and of
//! the outcome of its polls.
//!
//! The first state whose condition holds applies:
//!
//! - Standby, while the application polls: spins for [`STANDBY_SPIN_NS`], or in mode `Hot` for the
//!   hot time after traffic; then sleeps for 1 / [`STANDBY_SHARE`] of the time for which it has
//!   polled. An application that falls silent waits for the helper no longer than that.
//! - Polling, for [`SPIN_NS`] after traffic or a new wait, for the hot time after traffic, and once
//!   after each sleep.
//! - If the port has a receive interrupt: a sleep until that, or the next timer. After an interrupt
//!   without a frame, one short sleep.
//!
//! Otherwise arrivals are found only by polling:
//!
//! - Short sleeps, one poll per [`POLL_INTERVAL_NS`]: for [`TRAFFIC_NS`] after traffic; with a
//!   waiter for [`TRAFFIC_WITH_WAITER_NS`] after traffic and [`NEW_WAITER_NS`] after the wait
//!   began.
//! - Long sleeps otherwise, of [`LONG_SLEEP_MIN`] that double up to [`LONG_SLEEP_MAX`].

use std::time::Duration;

use ferrowarp_lockfree::helper_wakeup::{HelperState, Waiters};
use ferrowarp_proto::time::nanos;

use crate::poller::HelperPolicy;

/// Time for which the helper spins on standby when the application begins to poll: one that polls
/// once, because it was woken, may post something and sleep again.
const STANDBY_SPIN_NS: u64 = 20_000;

/// Idle time before the helper sleeps: the response to what was sent may arrive soon.
const SPIN_NS: u64 = 50_000;
/// Interval between polls in short sleeps: from a packet's arrival to the wake-up of a waiting
/// thread less than 100 us are to pass. The sleep between two polls is shortened by the mean
/// oversleep of this machine: 3 us on most, 40 us on some virtual ones, where polling takes half a
/// core (`tests/api/wakeup.rs` prints how much).
const POLL_INTERVAL_NS: u64 = 50_000;
/// Lower bound of a short sleep: whatever the oversleep, the helper leaves its core for a moment.
const SHORT_SLEEP_MIN_NS: u64 = 5_000;
/// Gain of the moving average of the oversleep, as a shift: 1/16, over sleeps of all kinds, because
/// a single value can be arbitrarily large on a busy core.
const OVERSLEEP_SHIFT: u32 = 4;
/// Time after traffic with short sleeps, without a waiter.
const TRAFFIC_NS: u64 = 20_000_000;
/// Time after traffic with short sleeps, with a waiter.
const TRAFFIC_WITH_WAITER_NS: u64 = 2_000_000_000;
/// Time after the begin of a wait with short sleeps: other threads than the helper may have found
/// traffic, and more is likely.
const NEW_WAITER_NS: u64 = 100_000_000;
/// First long sleep; each further one is twice as long, up to the maximum.
const LONG_SLEEP_MIN: Duration = Duration::from_micros(100);
const LONG_SLEEP_MAX: Duration = Duration::from_millis(1);
/// A sleep in standby lasts for the time for which the application has polled, divided by this.
const STANDBY_SHARE: u32 = 16;
/// Bounds of such a sleep. Each look after one takes up to 20 us from the application where both
/// share a core. Peers that wait for an acknowledgment send again after 5 ms, or later.
const STANDBY_SLEEP_MIN: Duration = Duration::from_micros(20);
const STANDBY_SLEEP_MAX: Duration = Duration::from_millis(4);

/// Next action of the helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// One poll. The caller reports its outcome with [`HelperSchedule::on_polled`].
    Poll,
    /// Checks again without sleeping.
    Spin,
    /// Sleeps for at most this long.
    Sleep(HelperState, Duration),
    /// Sleeps until the receive interrupt, or the next timer. The caller reports an interrupt with
    /// [`HelperSchedule::on_interrupt`].
    AwaitInterrupt,
}

/// State of the schedule. All times are nanoseconds of one clock.
#[derive(Debug)]
pub(crate) struct HelperSchedule {
    policy: HelperPolicy,
    /// The port has a receive interrupt.
    has_interrupt: bool,
    /// The last sleep was ended by the interrupt, and no poll has found anything since.
    is_interrupted: bool,
    /// Time of the last poll that was busy, or up to which the application has polled.
    busy_at: u64,
    /// Time of the last poll, of the application as well, that was busy.
    hot_at: u64,
    /// Time at which the last wait began, and [`Waiters::wait_seq`] of that wait.
    wait_began_at: u64,
    wait_seq: u32,
    /// The last poll was idle, and no sleep followed.
    polled_idle: bool,
    /// Start of the standby state, if the application polls.
    standby_since: Option<u64>,
    /// The application had stopped polling at the last look.
    is_taking_over: bool,
    /// It will not poll before it wakes up.
    is_handed_over: bool,
    long_sleep: Duration,
    /// Moving average of the oversleep.
    oversleep_ns: u64,
}

impl HelperSchedule {
    pub(crate) const fn new(now: u64, policy: HelperPolicy, has_interrupt: bool) -> Self {
        Self {
            policy,
            has_interrupt,
            is_interrupted: false,
            busy_at: now,
            hot_at: now,
            wait_began_at: now,
            wait_seq: 0,
            polled_idle: false,
            standby_since: None,
            is_taking_over: false,
            is_handed_over: false,
            long_sleep: LONG_SLEEP_MIN,
            oversleep_ns: 0,
        }
    }

    /// Returns the next step, given the time since the application last polled and the threads that
    /// wait for the shard.
    pub(crate) fn next(&mut self, now: u64, application_idle_ns: u64, waiters: Waiters) -> Step {
        if self.wait_seq != waiters.wait_seq {
            (self.wait_seq, self.wait_began_at) = (waiters.wait_seq, now);
            self.long_sleep = LONG_SLEEP_MIN;
        }
        if application_idle_ns <= self.policy.takeover_ns {
            self.is_taking_over = false;
            return self.standby(now);
        }
        self.is_handed_over = application_idle_ns == u64::MAX;
        // It may have been preempted by this thread: then it polls on after a yield.
        if !self.is_taking_over && self.takes_over(now, application_idle_ns) {
            self.is_taking_over = true;
            return Step::Spin;
        }
        self.standby_since = None;
        let quiet = now.saturating_sub(self.busy_at);
        let waited = now.saturating_sub(self.wait_began_at);
        if !self.polled_idle || quiet.min(waited) < SPIN_NS || self.is_hot(now) {
            return Step::Poll;
        }
        // One poll after each sleep.
        self.polled_idle = false;
        if self.has_interrupt {
            // A descriptor that is readable for another reason than frames takes no whole core.
            let is_false = std::mem::take(&mut self.is_interrupted);
            return if is_false {
                Step::Sleep(HelperState::ShortSleep, self.short_sleep())
            } else {
                Step::AwaitInterrupt
            };
        }
        let awaited = waiters.any() && (quiet < TRAFFIC_WITH_WAITER_NS || waited < NEW_WAITER_NS);
        if quiet < TRAFFIC_NS || awaited {
            return Step::Sleep(HelperState::ShortSleep, self.short_sleep());
        }
        let sleep = self.long_sleep;
        self.long_sleep = (sleep * 2).min(LONG_SLEEP_MAX);
        Step::Sleep(HelperState::LongSleep, sleep)
    }

    /// Reports the outcome of a poll; `busy` if it found anything to do.
    pub(crate) fn on_polled(&mut self, now: u64, busy: bool) {
        self.polled_idle = !busy;
        if busy {
            self.on_traffic(now);
            (self.hot_at, self.is_interrupted) = (now, false);
        }
    }

    /// Reports the time of the application's last poll that was busy.
    pub(crate) fn on_app_busy(&mut self, at: u64) {
        self.hot_at = self.hot_at.max(at);
    }

    /// The interrupt has ended a sleep.
    pub(crate) const fn on_interrupt(&mut self) {
        self.is_interrupted = true;
    }

    /// The driver refuses to enable the interrupt.
    pub(crate) const fn on_interrupt_refused(&mut self) {
        self.has_interrupt = false;
    }

    /// True for the hot time after traffic.
    pub(crate) const fn is_hot(&self, now: u64) -> bool {
        now.saturating_sub(self.hot_at) < self.policy.hot_ns
    }

    /// True if the application has stopped polling, by itself or because it was preempted.
    pub(crate) const fn takes_over(&self, now: u64, application_idle_ns: u64) -> bool {
        self.standby_since.is_some()
            && application_idle_ns > self.policy.takeover_ns
            && application_idle_ns < u64::MAX
            && !self.is_hot(now)
    }

    /// True if the application may poll at any time.
    pub(crate) const fn is_beside_application(&self) -> bool {
        !self.is_handed_over
    }

    /// [`Waiters::wait_seq`] at the time of the last step.
    pub(crate) const fn wait_seq(&self) -> u32 {
        self.wait_seq
    }

    /// Records traffic.
    const fn on_traffic(&mut self, now: u64) {
        self.busy_at = now;
        self.long_sleep = LONG_SLEEP_MIN;
    }

    /// Reports the length of a sleep. One that was ended by a wake-up does not count for the
    /// oversleep.
    pub(crate) fn on_slept(&mut self, limit: Duration, lasted_ns: u64) {
        let limit = nanos(limit);
        if let Some(late) = lasted_ns.checked_sub(limit) {
            // If the thread was preempted, it counts no more than the interval between two polls.
            let late = late.min(POLL_INTERVAL_NS);
            self.oversleep_ns = self.oversleep_ns - (self.oversleep_ns >> OVERSLEEP_SHIFT)
                + (late >> OVERSLEEP_SHIFT);
        }
    }

    fn short_sleep(&self) -> Duration {
        Duration::from_nanos(
            POLL_INTERVAL_NS.saturating_sub(self.oversleep_ns).max(SHORT_SLEEP_MIN_NS),
        )
    }

    fn standby(&mut self, now: u64) -> Step {
        let since = *self.standby_since.get_or_insert(now);
        let polled = Duration::from_nanos(now.saturating_sub(since));
        if polled <= Duration::from_nanos(STANDBY_SPIN_NS) || self.is_hot(now) {
            return Step::Spin;
        }
        // The application's polls count as traffic.
        self.on_traffic(now);
        let sleep = (polled / STANDBY_SHARE).clamp(STANDBY_SLEEP_MIN, STANDBY_SLEEP_MAX);
        Step::Sleep(HelperState::Standby, sleep)
    }
}

#[cfg(test)]
mod tests;
