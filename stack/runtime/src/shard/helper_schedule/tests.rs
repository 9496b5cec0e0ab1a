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
            sleeps.iter().skip(10).all(|&sleep| sleep == (HelperState::LongSleep, LONG_SLEEP_MAX))
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
        assert_eq!(schedule.next(now, LONG_AGO, waiters), Step::Poll, "a response may arrive soon");
        let while_brief = Duration::from_nanos(NEW_WAITER_NS - SPIN_NS);
        let (_, sleeps) = idle(&mut schedule, &mut now, while_brief, waiters);
        assert!(sleeps.iter().all(|&sleep| sleep == SHORT));
        let (_, sleeps) = idle(&mut schedule, &mut now, Duration::from_secs(1), waiters);
        assert!(
            sleeps.iter().skip(10).all(|&sleep| sleep == (HelperState::LongSleep, LONG_SLEEP_MAX))
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
    assert!(sleeps.iter().skip(10).all(|&sleep| sleep == (HelperState::LongSleep, LONG_SLEEP_MAX)));
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
        let share = nanos(STANDBY_SLEEP_MIN) + now / u64::from(STANDBY_SHARE);
        let latest = TAKEOVER_NS + share.min(nanos(STANDBY_SLEEP_MAX)) + 2_000;
        assert!(now - silent_since <= latest, "{polled}: {} ns", now - silent_since);
    }
}

/// The helper looks twice, and goes on as before if the application polls in between.
#[test]
fn preempted_application_stays_in_charge() {
    let mut schedule = schedule();
    let mut now = 0;
    while schedule.next(now, 0, NO_WAITER) != Step::Sleep(HelperState::Standby, STANDBY_SLEEP_MAX) {
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
