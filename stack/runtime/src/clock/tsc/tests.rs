use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

/// Clocks that a test moves.
#[derive(Debug, Default)]
struct Fake {
    ticks: AtomicU64,
    /// `CLOCK_MONOTONIC`, in nanoseconds.
    monotonic: AtomicU64,
}

impl Clocks for &Fake {
    fn ticks(&self) -> u64 {
        self.ticks.load(Ordering::Relaxed)
    }

    fn monotonic_ns(&self) -> u64 {
        self.monotonic.load(Ordering::Relaxed)
    }
}

/// A machine with a clock.
struct Simulated<'a> {
    fake: &'a Fake,
    clock: TscClock<&'a Fake>,
    /// Rate of the TSC, in ticks per 1,000 ns.
    rate: u64,
    /// The last reading, monotonic as a shard keeps it.
    last: u64,
    /// Readings that went back.
    back: u64,
}

impl<'a> Simulated<'a> {
    /// Starts with a TSC of 3 GHz, which the calibration measured as `calibrated` ticks per
    /// 1,000 ns.
    fn start(fake: &'a Fake, calibrated: u64) -> Self {
        fake.ticks.store(1 << 40, Ordering::Relaxed);
        fake.monotonic.store(7 * SECOND, Ordering::Relaxed);
        let clock = TscClock::start(fake, (1000 << 32) / calibrated).unwrap();
        Self { fake, clock, rate: 3000, last: 0, back: 0 }
    }

    /// Both clocks advance.
    fn pass(&self, ns: u64) {
        self.fake.monotonic.fetch_add(ns, Ordering::Relaxed);
        let ticks = u128::from(ns) * u128::from(self.rate) / 1000;
        self.fake.ticks.fetch_add(u64::try_from(ticks).unwrap(), Ordering::Relaxed);
    }

    /// Reads the clock.
    fn now(&mut self) -> u64 {
        let now = self.clock.now_ns();
        self.back += u64::from(now < self.last);
        self.last = self.last.max(now);
        self.last
    }

    /// The TSC jumps by some nanoseconds.
    fn jump(&self, ns: i64) {
        let ticks = ns / 1000 * self.rate.cast_signed();
        self.fake.ticks.fetch_add(ticks.cast_unsigned(), Ordering::Relaxed);
    }

    /// `CLOCK_MONOTONIC` since the start.
    fn true_ns(&self) -> u64 {
        self.fake.monotonic.load(Ordering::Relaxed) - 7 * SECOND
    }

    /// Reads every millisecond for `ns`; returns the largest step and the largest difference from
    /// `CLOCK_MONOTONIC`.
    fn run(&mut self, ns: u64) -> (u64, u64) {
        let (mut step, mut difference) = (0, 0);
        for _ in 0..ns / MS {
            let before = self.last;
            self.pass(MS);
            let now = self.now();
            step = step.max(now - before);
            difference = difference.max(now.abs_diff(self.true_ns()));
        }
        (step, difference)
    }
}

#[test]
fn time_is_the_monotonic_clocks() {
    let fake = Fake::default();
    let mut machine = Simulated::start(&fake, 3000);
    let (step, difference) = machine.run(60 * SECOND);
    assert!(step < MS + 1000 && difference < 1000, "{step}, {difference}");
    assert_eq!(machine.clock.rebased(), 0);
}

#[test]
fn drift_is_followed_smoothly() {
    // The calibration was wrong by 0.03 %, later the TSC's rate changes by as much.
    let fake = Fake::default();
    let mut machine = Simulated::start(&fake, 2999);
    let (step, difference) = machine.run(10 * SECOND);
    assert!(step < MS + 2000 && difference < MS / 2, "{step}, {difference}");
    let (step, difference) = machine.run(60 * SECOND);
    assert!(step < MS + 2000 && difference < 1000, "{step}, {difference}: not caught up");
    machine.rate = 3001;
    let (step, difference) = machine.run(10 * SECOND);
    assert!(step < MS + 2000 && difference < MS / 2, "{step}, {difference}");
    let (_, difference) = machine.run(60 * SECOND);
    assert!(difference < 1000, "{difference}: not caught up");
    assert_eq!(machine.clock.rebased(), 0);
}

#[test]
fn hour_without_a_reading_is_no_jump() {
    let fake = Fake::default();
    let mut machine = Simulated::start(&fake, 2999);
    machine.pass(3600 * SECOND);
    assert_eq!(machine.now(), 3600 * SECOND);
    let (_, difference) = machine.run(60 * SECOND);
    assert!(difference < MS / 2, "{difference}");
    assert_eq!(machine.clock.rebased(), 0);
}

#[test]
fn time_goes_on_when_the_tsc_jumps_back() {
    // After a suspension it begins at 0; a snapshot may be of some seconds ago.
    for jump_ms in [100, 1000, 4700, 360_000, 1 << 40] {
        let fake = Fake::default();
        let mut machine = Simulated::start(&fake, 3000);
        machine.run(5 * SECOND + 40 * MS);
        machine.jump(-(jump_ms * MS.cast_signed()));
        let (step, difference) = machine.run(10 * SECOND);
        assert!(step < 2 * MS && difference < MS / 2, "{jump_ms}: {step}, {difference}");
        assert_eq!((machine.clock.rebased(), machine.back), (1, 0), "{jump_ms}");
        assert!(machine.clock.is_used());
    }
}

#[test]
fn short_jump_back_lets_time_stand_for_a_moment() {
    let fake = Fake::default();
    let mut machine = Simulated::start(&fake, 3000);
    machine.run(5 * SECOND + 60 * MS);
    machine.jump(-30 * MS.cast_signed());
    let (_, difference) = machine.run(SECOND / 5);
    assert!(difference <= 31 * MS, "{difference}");
    let back = machine.back;
    let (step, difference) = machine.run(10 * SECOND);
    assert!(step < 2 * MS && difference < MS / 2, "{step}, {difference}");
    assert_eq!((machine.clock.rebased(), machine.back), (1, back));
}

#[test]
fn jump_ahead_is_not_time_that_has_passed() {
    for jump_ms in [101, 300, 10_000, 3_600_000, 1 << 40] {
        let fake = Fake::default();
        let mut machine = Simulated::start(&fake, 3000);
        machine.run(5 * SECOND + 40 * MS);
        machine.jump(jump_ms * MS.cast_signed());
        let (step, difference) = machine.run(10 * SECOND);
        assert!(step < 2 * MS && difference < MS / 2, "{jump_ms}: {step}, {difference}");
        assert_eq!((machine.clock.rebased(), machine.back), (1, 0), "{jump_ms}");
        assert!(machine.clock.is_used());
    }
}

#[test]
fn short_jump_ahead_gains_its_length_once() {
    let fake = Fake::default();
    let mut machine = Simulated::start(&fake, 3000);
    machine.run(5 * SECOND + 40 * MS);
    machine.jump(30 * MS.cast_signed());
    let (_, difference) = machine.run(2 * SECOND);
    assert!(difference <= 31 * MS, "{difference}");
    let (step, difference) = machine.run(10 * SECOND);
    assert!(step < 2 * MS && difference <= 31 * MS, "{step}, {difference}");
    assert_eq!((machine.clock.rebased(), machine.back), (1, 0));
}

#[test]
fn stopped_program_sees_the_time_that_has_passed() {
    let fake = Fake::default();
    let mut machine = Simulated::start(&fake, 3000);
    machine.run(5 * SECOND);
    machine.pass(10 * SECOND);
    let before = machine.last;
    let now = machine.now();
    assert!((now - before).abs_diff(10 * SECOND) < 1000, "{before} to {now}");
    assert_eq!(machine.clock.rebased(), 0);
}

#[test]
fn migration_to_another_rate_is_calibrated() {
    let fake = Fake::default();
    let mut machine = Simulated::start(&fake, 3000);
    machine.run(5 * SECOND);
    machine.jump(-5 * SECOND.cast_signed());
    machine.rate = 2400;
    machine.run(3 * SECOND);
    let (step, difference) = machine.run(60 * SECOND);
    assert!(step < 2 * MS && difference < MS, "{step}, {difference}");
    assert!(machine.clock.is_used());
    assert!(machine.clock.rebased() <= 2, "{}", machine.clock.rebased());
}

#[test]
fn tsc_that_jumps_again_and_again_is_given_up() {
    let fake = Fake::default();
    let mut machine = Simulated::start(&fake, 3000);
    for jump in [5, -7, 9] {
        machine.run(5 * SECOND);
        assert!(machine.clock.is_used());
        machine.jump(jump * SECOND.cast_signed());
    }
    machine.run(SECOND);
    assert!(!machine.clock.is_used());
    machine.jump(1 << 50);
    let (step, difference) = machine.run(10 * SECOND);
    assert!(step < 2 * MS && difference < MS, "{step}, {difference}");
    assert_eq!(machine.clock.rebased(), 3);
}

#[test]
fn jump_of_last_week_is_forgotten() {
    let fake = Fake::default();
    let mut machine = Simulated::start(&fake, 3000);
    for _ in 0..6 {
        machine.jump(-60 * SECOND.cast_signed());
        machine.run((u64::from(AGREEMENTS_TO_FORGET) + 20) * INTERVAL_NS);
    }
    assert!(machine.clock.is_used());
}

#[test]
fn reading_during_a_comparison_neither_waits_nor_goes_back() {
    for jump in [0, 40_000_000, -60_000_000_000, 60_000_000_000] {
        let fake = Fake::default();
        let mut machine = Simulated::start(&fake, 2999);
        machine.run(SECOND + SECOND / 20);
        machine.jump(jump);
        // The thread that compares is preempted.
        let history = machine.clock.history.lock().unwrap();
        for _ in 0..300 {
            let (before, now) = (machine.last, machine.clock.now_ns());
            assert!(now >= before, "{jump}: back from {before} to {now}");
            machine.last = now;
            machine.pass(MS);
        }
        drop(history);
        machine.run(10 * SECOND);
        assert!(machine.clock.rebased() <= 1, "{jump}");
    }
}

#[test]
fn core_some_ticks_behind_is_no_jump() {
    let fake = Fake::default();
    let mut machine = Simulated::start(&fake, 3000);
    machine.run(SECOND + MS);
    let segment = Segment::from_words(machine.clock.segment.read());
    fake.ticks.store(segment.ticks - 100, Ordering::Relaxed);
    fake.monotonic.store(segment.monotonic_ns, Ordering::Relaxed);
    assert_eq!(machine.clock.now_ns(), segment.ns);
    assert_eq!(machine.clock.rebased(), 0);
}

/// Clocks that move together, also for a thread that reads one of them while they move.
#[derive(Debug, Default)]
struct Together {
    /// Time since the start, in nanoseconds.
    ns: AtomicU64,
}

impl Clocks for &Together {
    fn ticks(&self) -> u64 {
        (1 << 40) + 3 * self.ns.load(Ordering::Acquire)
    }

    fn monotonic_ns(&self) -> u64 {
        7 * SECOND + self.ns.load(Ordering::Acquire)
    }
}

#[test]
fn threads_see_one_time() {
    // Each reads, over several comparisons, and looks at what others have read before.
    let clocks = Together::default();
    let clock = TscClock::start(&clocks, (1000 << 32) / 2999).unwrap();
    let has_passed = || clocks.ns.load(Ordering::Relaxed) >= 20 * SECOND;
    let latest = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !has_passed() {
                    let before = latest.load(Ordering::Acquire);
                    let now = clock.now_ns();
                    // A thread that finds another one comparing reads the other clock.
                    assert!(now + MS >= before, "back from {before} to {now}");
                    latest.fetch_max(now, Ordering::AcqRel);
                }
            });
        }
        while !has_passed() {
            clocks.ns.fetch_add(MS / 2, Ordering::AcqRel);
            std::hint::spin_loop();
        }
    });
    assert_eq!(clock.rebased(), 0);
}
