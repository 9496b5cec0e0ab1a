//! Time from the TSC, compared with `CLOCK_MONOTONIC` ten times a second.
//!
//! The TSC is the fastest clock, but nobody guarantees it for ever: a machine that is suspended,
//! migrated or restored from a snapshot may go on with another count or another rate. So a reading
//! extrapolates for 0.1 s at most. The reading after that compares the two clocks, which takes
//! about a microsecond, follows the rate, and begins another segment of 0.1 s. A count outside of
//! the segment, where most jumps lead, is compared before any time is made of it: a jump back costs
//! no time, and a jump ahead gains none. Inside the segment a jump is found at its end. Until then
//! readings may be 0.1 s behind, which callers take for standing still, or ahead, and that is kept:
//! time does not go back. A segment is shorter than the first retransmission timeout, so that
//! neither ends a connection.
//!
//! When the clocks disagree again and again, `CLOCK_MONOTONIC` is read from then on.

use std::sync::{Mutex, TryLockError};
use std::time::Duration;

use ferrowarp_lockfree::latch::Latch;

/// Time between two comparisons, in nanoseconds.
const INTERVAL_NS: u64 = 100_000_000;
/// The same after a disagreement: the rate is calibrated again.
const CALIBRATION_NS: u64 = 20_000_000;
/// The clocks agree if they differ by this much, and a thousandth of the time since the last
/// comparison: the kernel slews `CLOCK_MONOTONIC` by half of that at most.
const TOLERANCE_NS: i128 = 200_000;
/// A difference up to this is made up for by the rate of the next segment, a larger one at once.
const SLEW_MAX_NS: i128 = 300_000;
/// Disagreements after which the TSC is given up.
const DISAGREEMENTS_MAX: u32 = 3;
/// Comparisons in agreement after which earlier disagreements are forgotten.
const AGREEMENTS_TO_FORGET: u32 = 600;
/// Factor by which the rate may change at a disagreement.
const RATE_CHANGE_MAX: u64 = 16;

/// The two clocks.
pub(super) trait Clocks {
    /// Reads the TSC.
    fn ticks(&self) -> u64;
    /// Reads `CLOCK_MONOTONIC`, in nanoseconds since some point in time.
    fn monotonic_ns(&self) -> u64;
}

/// Readings of both clocks, taken together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    ticks: u64,
    monotonic_ns: u64,
    /// Ticks that taking it took: the bound of the error of `ticks`.
    apart: u64,
}

impl Sample {
    /// Takes the closest pair of several readings: a preemption between the two would make the
    /// rate, and so every timeout, wrong. `None` if the TSC went back each time.
    pub(super) fn take(clocks: &impl Clocks) -> Option<Self> {
        let read = |_| {
            let before = clocks.ticks();
            let monotonic_ns = clocks.monotonic_ns();
            let apart = clocks.ticks().checked_sub(before)?;
            Some(Self { ticks: before + apart / 2, monotonic_ns, apart })
        };
        (0..8).filter_map(read).min_by_key(|sample| sample.apart)
    }

    /// Calibrates the TSC over 10 ms, to about 10 ppm: nanoseconds per tick, times 2^32.
    pub(super) fn calibrate(clocks: &impl Clocks) -> Option<u64> {
        let first = Self::take(clocks)?;
        std::thread::sleep(Duration::from_millis(10));
        let second = Self::take(clocks)?;
        rate(
            second.ticks.checked_sub(first.ticks)?,
            second.monotonic_ns.checked_sub(first.monotonic_ns)?,
        )
    }
}

/// Returns nanoseconds per tick, times 2^32.
fn rate(ticks: u64, ns: u64) -> Option<u64> {
    let rate = (u128::from(ns) << 32).checked_div(u128::from(ticks))?;
    u64::try_from(rate).ok().filter(|&rate| rate > 0)
}

/// A stretch of time, which begins with a comparison of the clocks.
#[derive(Clone, Copy, Debug)]
struct Segment {
    /// Count at its begin.
    ticks: u64,
    /// Length in ticks; 0 if the TSC is not used.
    len: u64,
    /// Time at its begin.
    ns: u64,
    /// Nanoseconds per tick, times 2^32; 0 if the TSC is not used.
    scale: u64,
    /// `CLOCK_MONOTONIC` at its begin.
    monotonic_ns: u64,
    /// Time that there should be at its begin, by `CLOCK_MONOTONIC`.
    target_ns: u64,
}

/// Words of a segment in the latch. Readings need the first four.
const WORDS: usize = 6;

impl Segment {
    const fn words(self) -> [u64; WORDS] {
        [self.ticks, self.len, self.ns, self.scale, self.monotonic_ns, self.target_ns]
    }

    const fn from_words(words: [u64; WORDS]) -> Self {
        let [ticks, len, ns, scale, monotonic_ns, target_ns] = words;
        Self { ticks, len, ns, scale, monotonic_ns, target_ns }
    }

    /// Time at a count, which may lie outside the segment.
    fn extrapolate(&self, ticks: u64) -> i128 {
        let passed = i128::from(ticks.wrapping_sub(self.ticks).cast_signed());
        i128::from(self.ns) + ((passed * i128::from(self.scale)) >> 32)
    }

    /// Time that there should be, by `CLOCK_MONOTONIC`.
    const fn target(&self, monotonic_ns: u64) -> u64 {
        self.target_ns + monotonic_ns.saturating_sub(self.monotonic_ns)
    }

    /// The latest time that a reading of this segment may have reported, if the count is at `ticks`
    /// now and `error` too far ahead.
    fn reported(&self, ticks: u64, error: i128) -> i128 {
        if error >= i128::from(INTERVAL_NS) {
            // Counts since the jump lie outside the segment.
            return i128::from(self.ns);
        }
        let passed = ticks.wrapping_sub(self.ticks).cast_signed().max(0).cast_unsigned();
        self.extrapolate(self.ticks.wrapping_add(passed.min(self.len)))
    }
}

/// History of the comparisons.
#[derive(Debug, Default)]
struct History {
    /// The rate of the current segment is being calibrated.
    calibrates: bool,
    /// Disagreements that are not forgotten.
    disagreements: u32,
    /// Agreements since the last one.
    agreements: u32,
    /// All disagreements.
    rebased: u64,
}

/// Clock that reads the TSC. Time is nanoseconds since its start.
#[derive(Debug)]
pub(super) struct TscClock<C> {
    segment: Latch<WORDS>,
    clocks: C,
    /// Held while the clocks are compared.
    history: Mutex<History>,
}

impl<C: Clocks> TscClock<C> {
    /// `scale` is from [`Sample::calibrate`]. `None` if the TSC goes back.
    pub(super) fn start(clocks: C, scale: u64) -> Option<Self> {
        let sample = Sample::take(&clocks)?;
        let segment = Segment {
            ticks: sample.ticks,
            len: ticks_of(INTERVAL_NS, scale),
            ns: 0,
            scale,
            monotonic_ns: sample.monotonic_ns,
            target_ns: 0,
        };
        Some(Self { segment: Latch::new(segment.words()), clocks, history: Mutex::default() })
    }

    #[inline]
    pub(super) fn now_ns(&self) -> u64 {
        let [ticks, len, ns, scale] = self.segment.read();
        let passed = self.clocks.ticks().wrapping_sub(ticks);
        if passed >= len {
            return self.compare();
        }
        // At most 0.1 s, times 2^32.
        ns + ((passed * scale) >> 32)
    }

    /// True if the TSC is used; otherwise it was given up.
    pub(super) fn is_used(&self) -> bool {
        Segment::from_words(self.segment.read()).scale != 0
    }

    /// Number of times that the clocks disagreed.
    pub(super) fn rebased(&self) -> u64 {
        match self.history.try_lock() {
            Ok(history) => history.rebased,
            Err(TryLockError::Poisoned(history)) => history.into_inner().rebased,
            Err(TryLockError::WouldBlock) => 0,
        }
    }

    /// Compares the clocks, begins a segment, and returns the time.
    #[cold]
    #[inline(never)]
    fn compare(&self) -> u64 {
        // All readings get here once the TSC was given up. It is never used again.
        let segment = Segment::from_words(self.segment.read());
        if segment.scale == 0 {
            return segment.target(self.clocks.monotonic_ns());
        }
        let history = match self.history.try_lock() {
            Ok(history) => Some(history),
            Err(TryLockError::Poisoned(history)) => Some(history.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        // Later than the segment that another thread may have begun meanwhile.
        let segment = Segment::from_words(self.segment.read());
        if segment.scale == 0 {
            return segment.target(self.clocks.monotonic_ns());
        }
        let Some(sample) = Sample::take(&self.clocks) else {
            return to_ns(segment.reported(segment.ticks, 0));
        };
        let target = i128::from(segment.target(sample.monotonic_ns));
        let extrapolated = segment.extrapolate(sample.ticks);
        let error = extrapolated - target;
        if sample.ticks.wrapping_sub(segment.ticks) < segment.len {
            return to_ns(extrapolated);
        }
        let reported = segment.reported(sample.ticks, error);
        let is_before = sample.ticks.wrapping_sub(segment.ticks).cast_signed() < 0;
        if is_before && error.abs() <= TOLERANCE_NS {
            // Another core began the segment, and is some ticks ahead of this one.
            return to_ns(reported);
        }
        let Some(mut history) = history else {
            // Another thread compares, and may have been preempted. It does not end up below this.
            let is_jump = error.abs() > SLEW_MAX_NS;
            let time = if is_jump { target } else { extrapolated.min(target) };
            return to_ns(time.max(reported));
        };
        let next = history.next(&segment, &sample, error, reported);
        self.segment.write(next.words());
        next.ns
    }
}

impl History {
    /// Returns the segment that begins with a comparison.
    fn next(&mut self, segment: &Segment, sample: &Sample, error: i128, reported: i128) -> Segment {
        let passed_ns = sample.monotonic_ns.saturating_sub(segment.monotonic_ns);
        let passed = sample.ticks.wrapping_sub(segment.ticks);
        let scale = rate(passed, passed_ns).unwrap_or(0);
        let target = segment.target(sample.monotonic_ns);
        let begin = |ns: i128, target_ns, scale, interval_ns| Segment {
            ticks: sample.ticks,
            len: ticks_of(interval_ns, scale),
            ns: to_ns(ns),
            scale,
            monotonic_ns: sample.monotonic_ns,
            target_ns,
        };
        let agrees = if self.calibrates {
            // Whatever the rate was before the disagreement.
            let plausible = segment.scale / RATE_CHANGE_MAX..segment.scale * RATE_CHANGE_MAX;
            plausible.contains(&scale)
        } else {
            let apart_ns = (u128::from(sample.apart) * u128::from(segment.scale)) >> 32;
            let apart_ns = i128::try_from(apart_ns).unwrap_or(i128::MAX >> 1);
            error.abs() <= TOLERANCE_NS + apart_ns + i128::from(passed_ns / 1000)
        };
        if agrees && scale != 0 {
            self.calibrates = false;
            self.agreements += 1;
            if self.agreements >= AGREEMENTS_TO_FORGET {
                (self.agreements, self.disagreements) = (0, 0);
            }
            if error.abs() > SLEW_MAX_NS {
                let ns = reported.max(i128::from(target));
                return begin(ns, target, scale, INTERVAL_NS);
            }
            let excess = i128::from(scale) * error / i128::from(INTERVAL_NS);
            let slewed = to_ns(i128::from(scale) - excess);
            return begin(reported.max(i128::from(target) + error), target, slewed, INTERVAL_NS);
        }
        (self.agreements, self.calibrates) = (0, true);
        self.disagreements += 1;
        self.rebased += 1;
        // Readings before the jump may have been ahead by what was to be made up for.
        let ahead = segment.ns.saturating_sub(segment.target_ns);
        let ns = reported.max(i128::from(target) + i128::from(ahead));
        let (scale, interval) = if self.disagreements < DISAGREEMENTS_MAX {
            tracing::info!("the TSC differs from CLOCK_MONOTONIC by {error} ns: time goes on");
            (segment.scale, CALIBRATION_NS)
        } else {
            tracing::warn!(
                "the TSC jumps: CLOCK_MONOTONIC is read from now on, which takes longer"
            );
            (0, 0)
        };
        begin(ns, to_ns(ns), scale, interval)
    }
}

/// Returns the ticks of some time; none if the TSC is not used.
fn ticks_of(ns: u64, scale: u64) -> u64 {
    let ticks = (u128::from(ns) << 32).checked_div(u128::from(scale)).unwrap_or(0);
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

/// Returns a time, at least 0.
fn to_ns(time: i128) -> u64 {
    u64::try_from(time.max(0)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
