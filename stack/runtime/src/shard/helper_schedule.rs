//! Schedule of the helper thread: when it polls, spins or sleeps, as a function of the time and of
//! the outcome of its polls.
//!
//! The first state whose condition holds applies:
//!
//! - Standby, while the application polls: spins for [`STANDBY_SPIN_NS`], or in mode `Hot` for the
//!   hot time after traffic; then sleeps of [`STANDBY_SLEEP_MIN`] that double, to at most
//!   [`STANDBY_SLEEP_MAX`]. So an application that falls silent waits for the helper no longer than
//!   it has polled before.
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
/// First sleep in standby; each further one is twice as long, up to the maximum: each takes some
/// microseconds from the application where both share a core.
const STANDBY_SLEEP_MIN: Duration = Duration::from_micros(20);
const STANDBY_SLEEP_MAX: Duration = Duration::from_millis(1);

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
    standby_sleep: Duration,
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
            standby_sleep: STANDBY_SLEEP_MIN,
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
        // It may have been preempted, also by this thread: then it polls on after a yield.
        let is_first_look = self.standby_since.is_some() && !self.is_taking_over;
        self.is_handed_over = application_idle_ns == u64::MAX;
        if is_first_look && !self.is_handed_over && !self.is_hot(now) {
            self.is_taking_over = true;
            return Step::Spin;
        }
        self.standby_since = None;
        self.standby_sleep = STANDBY_SLEEP_MIN;
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

    /// The policy by which the helper takes over.
    pub(crate) const fn policy(&self) -> HelperPolicy {
        self.policy
    }

    /// True for the hot time after traffic.
    pub(crate) const fn is_hot(&self, now: u64) -> bool {
        now.saturating_sub(self.hot_at) < self.policy.hot_ns
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
        if now.saturating_sub(since) <= STANDBY_SPIN_NS || self.is_hot(now) {
            return Step::Spin;
        }
        // The application's polls count as traffic.
        self.on_traffic(now);
        let sleep = self.standby_sleep;
        self.standby_sleep = (sleep * 2).min(STANDBY_SLEEP_MAX);
        Step::Sleep(HelperState::Standby, sleep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG_AGO: u64 = u64::MAX;
    const TAKEOVER_NS: u64 = HelperPolicy::PARKING.takeover_ns;

    /// The schedule of mode `Helper` on a port without interrupt.
    fn schedule() -> HelperSchedule {
        HelperSchedule::new(0, HelperPolicy::PARKING, false)
    }

    /// Runs idle polls for `time`; sleeps last for their limit. Returns the number of polls, and
    /// the sleeps.
    fn idle(
        schedule: &mut HelperSchedule,
        now: &mut u64,
        time: Duration,
        waiters: Waiters,
    ) -> (u32, Vec<(HelperState, Duration)>) {
        let end = *now + u64::try_from(time.as_nanos()).unwrap();
        let (mut passes, mut sleeps) = (0, Vec::new());
        while *now < end {
            match schedule.next(*now, LONG_AGO, waiters) {
                Step::Poll => {
                    *now += 100;
                    schedule.on_polled(*now, false);
                    passes += 1;
                }
                Step::Spin => panic!("no other thread polls"),
                Step::AwaitInterrupt => panic!("there is no interrupt"),
                Step::Sleep(rest, limit) => {
                    *now += u64::try_from(limit.as_nanos()).unwrap();
                    sleeps.push((rest, limit));
                }
            }
        }
        (passes, sleeps)
    }

    const SHORT: (HelperState, Duration) =
        (HelperState::ShortSleep, Duration::from_nanos(POLL_INTERVAL_NS));
    const NO_WAITER: Waiters = Waiters { sleeping: false, fd_exported: false, wait_seq: 0 };
    const ONE_WAITER: Waiters = Waiters { sleeping: true, wait_seq: 1, ..NO_WAITER };

    #[test]
    fn sleeps_stay_short_for_two_seconds_with_a_waiter() {
        for waiters in [ONE_WAITER, Waiters { fd_exported: true, wait_seq: 1, ..NO_WAITER }] {
            let (mut schedule, mut now) = (schedule(), 0);
            let recent = Duration::from_nanos(TRAFFIC_WITH_WAITER_NS - SPIN_NS);
            let (passes, sleeps) = idle(&mut schedule, &mut now, recent, waiters);
            assert!(sleeps.iter().all(|&sleep| sleep == SHORT));
            // One poll after each sleep, besides those before the first.
            let spinning = u32::try_from(SPIN_NS / 100).unwrap();
            assert!(u32::try_from(sleeps.len()).unwrap() + spinning >= passes);
            let (_, sleeps) = idle(&mut schedule, &mut now, Duration::from_secs(1), waiters);
            assert!(
                sleeps
                    .iter()
                    .skip(10)
                    .all(|&sleep| sleep == (HelperState::LongSleep, LONG_SLEEP_MAX))
            );
            schedule.on_polled(now, true);
            let (_, sleeps) = idle(&mut schedule, &mut now, Duration::from_secs(1), waiters);
            assert!(sleeps.iter().all(|&sleep| sleep == SHORT));
        }
    }

    /// Also if another thread has waited for long.
    #[test]
    fn new_waiter_shortens_sleeps_for_a_while() {
        for before in [NO_WAITER, ONE_WAITER] {
            let (mut schedule, mut now) = (schedule(), 0);
            idle(&mut schedule, &mut now, Duration::from_secs(5), before);
            let waiters = Waiters { wait_seq: 2, ..ONE_WAITER };
            assert_eq!(
                schedule.next(now, LONG_AGO, waiters),
                Step::Poll,
                "a response may arrive soon"
            );
            let while_brief = Duration::from_nanos(NEW_WAITER_NS - SPIN_NS);
            let (_, sleeps) = idle(&mut schedule, &mut now, while_brief, waiters);
            assert!(sleeps.iter().all(|&sleep| sleep == SHORT));
            let (_, sleeps) = idle(&mut schedule, &mut now, Duration::from_secs(1), waiters);
            assert!(
                sleeps
                    .iter()
                    .skip(10)
                    .all(|&sleep| sleep == (HelperState::LongSleep, LONG_SLEEP_MAX))
            );
        }
    }

    #[test]
    fn short_sleep_compensates_for_oversleep() {
        let after = |late: &[u64]| {
            let mut schedule = schedule();
            for &late in late {
                schedule.on_slept(Duration::from_micros(20), 20_000 + late);
            }
            schedule.short_sleep().as_nanos()
        };
        let interval = u128::from(POLL_INTERVAL_NS);
        assert!((interval - 40_000..interval - 35_000).contains(&after(&[40_000; 100])));
        assert_eq!(after(&[1_000_000; 200]), u128::from(SHORT_SLEEP_MIN_NS));
        // The thread was preempted.
        assert!(after(&[1_000_000]) > interval * 9 / 10);
        // Ended by a wake-up.
        let mut schedule = schedule();
        schedule.on_slept(LONG_SLEEP_MAX, 3_000);
        assert_eq!(schedule.short_sleep().as_nanos(), interval);
    }

    #[test]
    fn sleeps_grow_while_idle_without_waiters() {
        let (mut schedule, mut now) = (schedule(), 0);
        let recent = Duration::from_nanos(TRAFFIC_NS - SPIN_NS);
        let (_, sleeps) = idle(&mut schedule, &mut now, recent, NO_WAITER);
        assert!(
            sleeps.iter().all(|&(rest, _)| rest == HelperState::ShortSleep),
            "there was recent traffic"
        );
        let (passes, sleeps) = idle(&mut schedule, &mut now, Duration::from_secs(1), NO_WAITER);
        assert!(
            sleeps.iter().skip(10).all(|&sleep| sleep == (HelperState::LongSleep, LONG_SLEEP_MAX))
        );
        assert!(passes < 1_020, "{passes} polls per second");
        // A thread sleeps, or a packet arrives: short sleeps again immediately.
        let (_, sleeps) = idle(&mut schedule, &mut now, Duration::from_millis(1), ONE_WAITER);
        assert!(sleeps.iter().all(|&(rest, _)| rest == HelperState::ShortSleep));
        schedule.on_polled(now, true);
        let (_, sleeps) = idle(&mut schedule, &mut now, Duration::from_millis(1), NO_WAITER);
        assert!(sleeps.iter().all(|&(rest, _)| rest == HelperState::ShortSleep));
    }

    #[test]
    fn helper_polls_at_once_when_the_application_sleeps() {
        let mut schedule = schedule();
        for now in (0..100_000_000).step_by(10_000) {
            assert_ne!(schedule.next(now, 1_000, ONE_WAITER), Step::Poll, "at {now}");
        }
        assert_eq!(schedule.next(100_000_000, LONG_AGO, ONE_WAITER), Step::Poll);
    }

    #[test]
    fn helper_takes_over_when_the_application_stops_polling() {
        // The longer the application has polled, the later.
        for polled in [0, 30_000, 1_000_000, 1_000_000_000] {
            let (mut schedule, mut now) = (schedule(), 0);
            while now < polled {
                match schedule.next(now, 1_000, NO_WAITER) {
                    Step::Sleep(_, limit) => now += u64::try_from(limit.as_nanos()).unwrap(),
                    _ => now += 1_000,
                }
            }
            let silent_since = now;
            loop {
                match schedule.next(now, now - silent_since, NO_WAITER) {
                    Step::Poll => break,
                    Step::AwaitInterrupt => panic!("there is no interrupt"),
                    Step::Spin => now += 1_000,
                    Step::Sleep(_, limit) => now += u64::try_from(limit.as_nanos()).unwrap(),
                }
            }
            let latest = (TAKEOVER_NS + polled).min(nanos(STANDBY_SLEEP_MAX)) + 2_000;
            assert!(now - silent_since <= latest, "{polled}: {} ns", now - silent_since);
        }
    }

    /// The helper looks twice, and goes on as before if the application polls in between.
    #[test]
    fn preempted_application_stays_in_charge() {
        let mut schedule = schedule();
        let mut now = 0;
        while schedule.next(now, 0, NO_WAITER)
            != Step::Sleep(HelperState::Standby, STANDBY_SLEEP_MAX)
        {
            now += 1_000_000;
        }
        for _ in 0..3 {
            assert_eq!(schedule.next(now, TAKEOVER_NS + 1, NO_WAITER), Step::Spin);
            let step = schedule.next(now, 0, NO_WAITER);
            assert_eq!(step, Step::Sleep(HelperState::Standby, STANDBY_SLEEP_MAX));
        }
    }

    #[test]
    fn single_application_poll_leaves_the_helper_spinning() {
        let mut schedule = schedule();
        for since in (0..=STANDBY_SPIN_NS.min(TAKEOVER_NS)).step_by(1_000) {
            assert_eq!(schedule.next(since, since, ONE_WAITER), Step::Spin);
        }
        let steps = [(); 2].map(|()| schedule.next(TAKEOVER_NS + 1, TAKEOVER_NS + 1, ONE_WAITER));
        assert_eq!(steps, [Step::Spin, Step::Poll], "it may have been preempted");
    }

    const HOT: HelperPolicy = HelperPolicy { takeover_ns: 1_500, hot_ns: 50_000_000 };

    #[test]
    fn hot_helper_polls_for_the_hot_time_and_then_parks() {
        let mut schedule = HelperSchedule::new(0, HOT, true);
        for now in (1..HOT.hot_ns).step_by(100_000) {
            assert_eq!(schedule.next(now, LONG_AGO, NO_WAITER), Step::Poll);
            schedule.on_polled(now, false);
        }
        assert_eq!(schedule.next(HOT.hot_ns, LONG_AGO, NO_WAITER), Step::AwaitInterrupt);
        assert_eq!(schedule.next(HOT.hot_ns, LONG_AGO, NO_WAITER), Step::Poll);
        schedule.on_polled(HOT.hot_ns, true);
        schedule.on_polled(HOT.hot_ns, false);
        let later = HOT.hot_ns + HOT.hot_ns / 2;
        assert_eq!(schedule.next(later, LONG_AGO, NO_WAITER), Step::Poll);
    }

    #[test]
    fn hot_helper_spins_while_the_application_has_traffic() {
        let mut schedule = HelperSchedule::new(0, HOT, false);
        for now in (0..1_000_000_000).step_by(1_000_000) {
            schedule.on_app_busy(now);
            assert_eq!(schedule.next(now, HOT.takeover_ns, NO_WAITER), Step::Spin);
            assert_eq!(schedule.next(now, HOT.takeover_ns + 1, NO_WAITER), Step::Poll);
        }
        // Polls without traffic.
        let later = 1_000_000_000 + HOT.hot_ns;
        assert_eq!(schedule.next(later, 0, NO_WAITER), Step::Spin);
        let steps = [STANDBY_SPIN_NS + 1, 200_000].map(|after| {
            let step = schedule.next(later + after, 0, NO_WAITER);
            matches!(step, Step::Sleep(HelperState::Standby, _))
        });
        assert_eq!(steps, [true; 2]);
    }

    #[test]
    fn interrupt_ends_the_sleep_until_it() {
        let mut schedule = HelperSchedule::new(0, HelperPolicy::PARKING, true);
        let mut now = SPIN_NS;
        let mut idle = |schedule: &mut HelperSchedule| {
            assert_eq!(schedule.next(now, LONG_AGO, ONE_WAITER), Step::Poll);
            now += SPIN_NS;
            schedule.on_polled(now, false);
            schedule.next(now, LONG_AGO, ONE_WAITER)
        };
        assert_eq!(idle(&mut schedule), Step::AwaitInterrupt);
        assert_eq!(idle(&mut schedule), Step::AwaitInterrupt, "ended by a timer, or a post");
        // Not by a frame: no faster than where there is no interrupt.
        schedule.on_interrupt();
        assert_eq!(idle(&mut schedule), Step::Sleep(SHORT.0, SHORT.1));
        assert_eq!(idle(&mut schedule), Step::AwaitInterrupt);
        schedule.on_interrupt_refused();
        assert!(matches!(idle(&mut schedule), Step::Sleep(..)));
    }
}
