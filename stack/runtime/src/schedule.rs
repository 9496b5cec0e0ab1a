//! When the helper drives, and for how long it naps: a function of the time and of what it finds.
//!
//! A port has no interrupt, so what arrives is found by looking. For a while after traffic, longer
//! if somebody sleeps on the shard, the helper looks once in [`LOOK_NS`]; then its naps grow to
//! [`NAP_LONG_MAX`]. Next to the application that drives it only watches whether it still does.

use std::time::Duration;

use crate::handover::{HANDOVER_NS, Rest, Waiters};

/// Time without anything to do before the helper naps: the answer to what was sent may be near.
const SPIN_NS: u64 = 50_000;
/// Time from one look to the next while naps are brief: less than 100 us are to pass from a
/// packet's arrival until a sleeper goes on. The nap between two looks is shorter by as much as
/// naps last too long on this machine: 3 us on most, 40 us on some virtual ones, where looking
/// takes half a core (`tests/wakeup.rs` prints how much).
const LOOK_NS: u64 = 50_000;
/// However late naps end, the helper leaves its core for a moment.
const NAP_BRIEF_MIN_NS: u64 = 5_000;
/// The mean lateness, of naps of all kinds, follows that of a single one by 1 / 16: it may be
/// anything on a busy core.
const LATE_SHIFT: u32 = 4;
/// Traffic keeps naps brief for this long while nobody waits.
const TRAFFIC_NS: u64 = 20_000_000;
/// Traffic keeps naps brief for this long while somebody waits.
const TRAFFIC_AWAITED_NS: u64 = 2_000_000_000;
/// So does somebody who begins to wait, for this long: there may have been traffic that others than
/// the helper found, and there will be more.
const NEW_WAITER_NS: u64 = 100_000_000;
/// First nap after that; each further one is twice as long, up to the longest.
const NAP_LONG_MIN: Duration = Duration::from_micros(100);
const NAP_LONG_MAX: Duration = Duration::from_millis(1);
/// First nap next to an application that drives; likewise.
const NAP_ASIDE_MIN: Duration = Duration::from_micros(20);
const NAP_ASIDE_MAX: Duration = Duration::from_micros(100);

/// What the helper does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// One pass. Its outcome is told to [`Schedule::drove`].
    Drive,
    /// Looks at the clock again.
    Spin,
    /// Naps for as long at most.
    Nap(Rest, Duration),
}

/// The helper's plan. All times are nanoseconds of one clock.
#[derive(Debug)]
pub(crate) struct Schedule {
    /// When a pass last found something to do.
    busy_at: u64,
    /// When the last wait began, and its number.
    wait_began_at: u64,
    wait_seq: u32,
    /// The last pass found nothing, and there was none since.
    looked: bool,
    /// Since when the application drives, if it does.
    aside_since: Option<u64>,
    nap_aside: Duration,
    nap_long: Duration,
    /// How much longer than they should naps last, on average.
    late_ns: u64,
}

impl Schedule {
    pub(crate) const fn new(now: u64) -> Self {
        Self {
            busy_at: now,
            wait_began_at: now,
            wait_seq: 0,
            looked: false,
            aside_since: None,
            nap_aside: NAP_ASIDE_MIN,
            nap_long: NAP_LONG_MIN,
            late_ns: 0,
        }
    }

    /// What to do, given how long ago the application last drove, and who waits until the shard has
    /// something.
    pub(crate) fn next(&mut self, now: u64, application_idle_ns: u64, waiters: Waiters) -> Step {
        if self.wait_seq != waiters.wait_seq {
            (self.wait_seq, self.wait_began_at) = (waiters.wait_seq, now);
            self.nap_long = NAP_LONG_MIN;
        }
        if application_idle_ns <= HANDOVER_NS {
            return self.stand_aside(now, waiters.sleeping);
        }
        self.aside_since = None;
        self.nap_aside = NAP_ASIDE_MIN;
        let quiet = now.saturating_sub(self.busy_at);
        let waited = now.saturating_sub(self.wait_began_at);
        if !self.looked || quiet.min(waited) < SPIN_NS {
            return Step::Drive;
        }
        // After each nap one look.
        self.looked = false;
        let awaited = waiters.any() && (quiet < TRAFFIC_AWAITED_NS || waited < NEW_WAITER_NS);
        if quiet < TRAFFIC_NS || awaited {
            return Step::Nap(Rest::Brief, self.nap_brief());
        }
        let nap = self.nap_long;
        self.nap_long = (nap * 2).min(NAP_LONG_MAX);
        Step::Nap(Rest::Long, nap)
    }

    /// A pass was made; it found something to do, or nothing.
    pub(crate) fn drove(&mut self, now: u64, busy: bool) {
        self.looked = !busy;
        if busy {
            self.found(now);
        }
    }

    /// [`Waiters::wait_seq`] when the last step was planned.
    pub(crate) const fn wait_seq(&self) -> u32 {
        self.wait_seq
    }

    /// There was something.
    const fn found(&mut self, now: u64) {
        self.busy_at = now;
        self.nap_long = NAP_LONG_MIN;
    }

    /// A nap has lasted this long. One that somebody ended says nothing of how late naps end.
    pub(crate) fn napped(&mut self, limit: Duration, lasted_ns: u64) {
        let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        if let Some(late) = lasted_ns.checked_sub(limit) {
            // One that lost its core counts no more than the time between two looks.
            let late = late.min(LOOK_NS);
            self.late_ns = self.late_ns - (self.late_ns >> LATE_SHIFT) + (late >> LATE_SHIFT);
        }
    }

    fn nap_brief(&self) -> Duration {
        Duration::from_nanos(LOOK_NS.saturating_sub(self.late_ns).max(NAP_BRIEF_MIN_NS))
    }

    /// An application that polled once, because it was woken, may post something and sleep again:
    /// the first time is waited out awake.
    fn stand_aside(&mut self, now: u64, awaited: bool) -> Step {
        let since = *self.aside_since.get_or_insert(now);
        if now.saturating_sub(since) <= HANDOVER_NS {
            return Step::Spin;
        }
        // What was done meanwhile counts as traffic.
        self.found(now);
        let max = if awaited { self.nap_brief() } else { NAP_ASIDE_MAX };
        let nap = self.nap_aside.min(max);
        self.nap_aside = nap * 2;
        Step::Nap(Rest::Aside, nap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG_AGO: u64 = u64::MAX;

    /// Runs idle passes for `time`; naps last as long as they may. Returns passes made, and the
    /// naps.
    fn idle(
        schedule: &mut Schedule,
        now: &mut u64,
        time: Duration,
        waiters: Waiters,
    ) -> (u32, Vec<(Rest, Duration)>) {
        let end = *now + u64::try_from(time.as_nanos()).unwrap();
        let (mut passes, mut naps) = (0, Vec::new());
        while *now < end {
            match schedule.next(*now, LONG_AGO, waiters) {
                Step::Drive => {
                    *now += 100;
                    schedule.drove(*now, false);
                    passes += 1;
                }
                Step::Spin => panic!("nobody else drives"),
                Step::Nap(rest, limit) => {
                    *now += u64::try_from(limit.as_nanos()).unwrap();
                    naps.push((rest, limit));
                }
            }
        }
        (passes, naps)
    }

    const BRIEF: (Rest, Duration) = (Rest::Brief, Duration::from_nanos(LOOK_NS));
    const NOBODY: Waiters = Waiters { sleeping: false, fd_exported: false, wait_seq: 0 };
    const SLEEPER: Waiters = Waiters { sleeping: true, wait_seq: 1, ..NOBODY };

    #[test]
    fn naps_stay_brief_for_two_seconds_while_somebody_waits() {
        for waiters in [SLEEPER, Waiters { fd_exported: true, wait_seq: 1, ..NOBODY }] {
            let (mut schedule, mut now) = (Schedule::new(0), 0);
            let recent = Duration::from_nanos(TRAFFIC_AWAITED_NS - SPIN_NS);
            let (passes, naps) = idle(&mut schedule, &mut now, recent, waiters);
            assert!(naps.iter().all(|&nap| nap == BRIEF));
            // One look after each nap, besides those made awake.
            let awake = u32::try_from(SPIN_NS / 100).unwrap();
            assert!(u32::try_from(naps.len()).unwrap() + awake >= passes);
            let (_, naps) = idle(&mut schedule, &mut now, Duration::from_secs(1), waiters);
            assert!(naps.iter().skip(10).all(|&nap| nap == (Rest::Long, NAP_LONG_MAX)));
            schedule.drove(now, true);
            let (_, naps) = idle(&mut schedule, &mut now, Duration::from_secs(1), waiters);
            assert!(naps.iter().all(|&nap| nap == BRIEF));
        }
    }

    /// Also beside somebody who has waited for long.
    #[test]
    fn new_waiter_shortens_naps_for_a_while() {
        for before in [NOBODY, SLEEPER] {
            let (mut schedule, mut now) = (Schedule::new(0), 0);
            idle(&mut schedule, &mut now, Duration::from_secs(5), before);
            let waiters = Waiters { wait_seq: 2, ..SLEEPER };
            assert_eq!(schedule.next(now, LONG_AGO, waiters), Step::Drive, "an answer may be near");
            let while_brief = Duration::from_nanos(NEW_WAITER_NS - SPIN_NS);
            let (_, naps) = idle(&mut schedule, &mut now, while_brief, waiters);
            assert!(naps.iter().all(|&nap| nap == BRIEF));
            let (_, naps) = idle(&mut schedule, &mut now, Duration::from_secs(1), waiters);
            assert!(naps.iter().skip(10).all(|&nap| nap == (Rest::Long, NAP_LONG_MAX)));
        }
    }

    #[test]
    fn brief_naps_are_shorter_where_naps_end_late() {
        let after = |late: &[u64]| {
            let mut schedule = Schedule::new(0);
            for &late in late {
                schedule.napped(Duration::from_micros(20), 20_000 + late);
            }
            schedule.nap_brief().as_nanos()
        };
        let look = u128::from(LOOK_NS);
        assert!((look - 40_000..look - 35_000).contains(&after(&[40_000; 100])));
        assert_eq!(after(&[1_000_000; 200]), u128::from(NAP_BRIEF_MIN_NS));
        // One that lost its core.
        assert!(after(&[1_000_000]) > look * 9 / 10);
        // Ended by somebody.
        let mut schedule = Schedule::new(0);
        schedule.napped(NAP_LONG_MAX, 3_000);
        assert_eq!(schedule.nap_brief().as_nanos(), look);
    }

    #[test]
    fn naps_grow_when_nobody_waits_and_nothing_happens() {
        let (mut schedule, mut now) = (Schedule::new(0), 0);
        let recent = Duration::from_nanos(TRAFFIC_NS - SPIN_NS);
        let (_, naps) = idle(&mut schedule, &mut now, recent, NOBODY);
        assert!(naps.iter().all(|&(rest, _)| rest == Rest::Brief), "there was traffic lately");
        let (passes, naps) = idle(&mut schedule, &mut now, Duration::from_secs(1), NOBODY);
        assert!(naps.iter().skip(10).all(|&nap| nap == (Rest::Long, NAP_LONG_MAX)));
        assert!(passes < 1_020, "{passes} looks in a second");
        // Somebody sleeps, or something arrives: brief again at once.
        let (_, naps) = idle(&mut schedule, &mut now, Duration::from_millis(1), SLEEPER);
        assert!(naps.iter().all(|&(rest, _)| rest == Rest::Brief));
        schedule.drove(now, true);
        let (_, naps) = idle(&mut schedule, &mut now, Duration::from_millis(1), NOBODY);
        assert!(naps.iter().all(|&(rest, _)| rest == Rest::Brief));
    }

    #[test]
    fn application_that_hands_over_is_succeeded_at_once() {
        let mut schedule = Schedule::new(0);
        for now in (0..100_000_000).step_by(10_000) {
            assert_ne!(schedule.next(now, 1_000, SLEEPER), Step::Drive, "at {now}");
        }
        assert_eq!(schedule.next(100_000_000, LONG_AGO, SLEEPER), Step::Drive);
    }

    #[test]
    fn helper_takes_over_from_an_application_that_falls_silent() {
        // However long it has polled, the helper looks again soon.
        for polled in [0, 30_000, 1_000_000, 1_000_000_000] {
            let (mut schedule, mut now) = (Schedule::new(0), 0);
            while now < polled {
                match schedule.next(now, 1_000, NOBODY) {
                    Step::Nap(_, limit) => now += u64::try_from(limit.as_nanos()).unwrap(),
                    _ => now += 1_000,
                }
            }
            let silent_since = now;
            loop {
                match schedule.next(now, now - silent_since, NOBODY) {
                    Step::Drive => break,
                    Step::Spin => now += 1_000,
                    Step::Nap(_, limit) => now += u64::try_from(limit.as_nanos()).unwrap(),
                }
            }
            assert!(now - silent_since <= 150_000, "{polled}: {} ns", now - silent_since);
        }
    }

    #[test]
    fn single_poll_does_not_send_the_helper_to_sleep() {
        let mut schedule = Schedule::new(0);
        for since in (0..=HANDOVER_NS).step_by(1_000) {
            assert_eq!(schedule.next(since, since, SLEEPER), Step::Spin);
        }
        assert_eq!(schedule.next(HANDOVER_NS + 1, HANDOVER_NS + 1, SLEEPER), Step::Drive);
    }
}
