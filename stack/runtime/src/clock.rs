//! Clock of a shard, read once per poll.
//!
//! A poll without work takes some 40 ns; reading the operating system's clock would double that.
//! Where the processor has an invariant TSC, that is read instead.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ferrowarp_proto::time::Instant;

/// Nanoseconds since the clock was created. Readings of threads on different cores may differ by
/// some nanoseconds: a caller that compares them has to keep time monotonic itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: std::time::Instant,
    tsc: Option<Tsc>,
    /// Nanoseconds by which each reading advances virtual time; `None` for real time.
    step_ns: Option<u64>,
}

/// Virtual time of the process, in nanoseconds.
static VIRTUAL_NS: AtomicU64 = AtomicU64::new(0);

/// TSC origin and calibration.
#[derive(Clone, Copy, Debug)]
struct Tsc {
    origin: u64,
    /// Nanoseconds per tick, times 2^32.
    scale: u64,
}

impl Clock {
    /// Starts a clock. Takes 10 ms the first time in a process, to calibrate the TSC.
    pub(crate) fn start() -> Self {
        static SCALE: OnceLock<Option<u64>> = OnceLock::new();
        let scale = *SCALE.get_or_init(|| read_invariant_tsc().and_then(|_| calibrate()));
        let counter = scale.zip(read_invariant_tsc()).map(|(scale, origin)| Tsc { origin, scale });
        Self { origin: std::time::Instant::now(), tsc: counter, step_ns: None }
    }

    /// Returns a clock that each reading advances by `step_ns` and nothing else does, together with
    /// all other clocks of this kind.
    pub(crate) fn virtual_time(step_ns: u64) -> Self {
        Self { origin: std::time::Instant::now(), tsc: None, step_ns: Some(step_ns) }
    }

    #[inline]
    pub(crate) fn now(&self) -> Instant {
        if let Some(counter) = self.tsc
            && let Some(ticks) = read_tsc()
        {
            return Instant::from_nanos(counter.to_ns(ticks));
        }
        Instant::from_nanos(match self.step_ns {
            Some(step) => VIRTUAL_NS.fetch_add(step, Ordering::Relaxed) + step,
            None => nanos(self.origin.elapsed()),
        })
    }
}

/// Returns a duration in nanoseconds; at most 2^64, which are 584 years.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Tsc {
    #[inline]
    fn to_ns(self, ticks: u64) -> u64 {
        let passed = u128::from(ticks.saturating_sub(self.origin));
        u64::try_from((passed * u128::from(self.scale)) >> 32).unwrap_or(u64::MAX)
    }
}

/// Calibrates the TSC against `CLOCK_MONOTONIC`, to about 10 ppm.
fn calibrate() -> Option<u64> {
    let (clock, start) = read_both_clocks()?;
    std::thread::sleep(Duration::from_millis(10));
    let (later, end) = read_both_clocks()?;
    let ns = later.duration_since(clock).as_nanos();
    let passed = u128::from(end.checked_sub(start)?);
    u64::try_from((ns << 32).checked_div(passed)?).ok().filter(|&scale| scale > 0)
}

/// Samples TSC and `CLOCK_MONOTONIC` together: the closest pair of several readings. A preemption
/// between the two would make the rate, and so every timeout, wrong from then on.
fn read_both_clocks() -> Option<(std::time::Instant, u64)> {
    let reading = |_| {
        let before = read_tsc()?;
        let clock = std::time::Instant::now();
        let apart = read_tsc()?.checked_sub(before)?;
        Some((apart, clock, before + apart / 2))
    };
    let (_, clock, counter) = (0..8).filter_map(reading).min_by_key(|&(apart, ..)| apart)?;
    Some((clock, counter))
}

/// Reads the TSC if it is invariant (Intel SDM, volume 3, section 18.17.1: CPUID leaf 0x80000007,
/// EDX bit 8).
fn read_invariant_tsc() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    {
        const LEAF: u32 = 0x8000_0007;
        let known = core::arch::x86_64::__cpuid(0x8000_0000).eax >= LEAF;
        if !known || core::arch::x86_64::__cpuid(LEAF).edx & (1 << 8) == 0 {
            return None;
        }
    }
    read_tsc()
}

/// Reads the TSC, invariant or not; `None` on other processors.
#[inline]
fn read_tsc() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction.
    return Some(unsafe { core::arch::x86_64::_rdtsc() });
    #[cfg(not(target_arch = "x86_64"))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tsc_agrees_with_the_monotonic_clock() {
        let clock = Clock::start();
        let (first, start) = (clock.now(), std::time::Instant::now());
        std::thread::sleep(Duration::from_millis(50));
        let (second, passed) = (clock.now(), start.elapsed());
        let reported = second.since(first);
        let true_ns = u64::try_from(passed.as_nanos()).unwrap();
        // The thread may be preempted between the two readings of one point in time.
        assert!(reported.abs_diff(true_ns) < 5_000_000, "{reported} against {true_ns}");
        assert!(second > first);
    }

    #[test]
    fn virtual_clocks_advance_together_by_their_readings() {
        let clocks = [Clock::virtual_time(1000), Clock::virtual_time(10)];
        let start = clocks[0].now();
        assert_eq!(clocks[1].now().since(start), 10);
        assert_eq!(clocks[0].now().since(start), 1010);
    }

    #[test]
    fn tick_of_one_gigahertz_is_one_nanosecond() {
        let counter = Tsc { origin: 5, scale: 1 << 32 };
        assert_eq!((counter.to_ns(5), counter.to_ns(1_005)), (0, 1_000));
        assert_eq!(counter.to_ns(0), 0, "never before the origin");
    }
}
