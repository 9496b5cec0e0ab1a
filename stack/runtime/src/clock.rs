//! Clock of a context, read once per poll.
//!
//! A poll without work takes some 40 ns; reading the operating system's clock would double that. So
//! the TSC is read where the kernel itself uses it as its clocksource: the kernel knows the
//! processor's errata, compares the TSC with other clocks, and gives it up when it is wrong. Where
//! it uses another one (`kvm-clock`, `hyperv_clocksource_tsc_page`, `hpet`) or does not say,
//! `CLOCK_MONOTONIC` is read.

mod tsc;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use ferrowarp_proto::time::{Instant, nanos};

use tsc::{Clocks, Sample, TscClock};

/// Name of the kernel's clocksource.
const CLOCKSOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// Readings whose mean is the cost of one.
const COST_READINGS: u32 = 200;

/// Nanoseconds since the clock was created. Clones are the same clock. Readings of threads on
/// different cores may differ by some nanoseconds, and for 0.1 s after a jump of the TSC by as much
/// as that: a caller that compares them has to keep time monotonic itself.
#[derive(Clone, Debug)]
pub(crate) struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    Tsc(Arc<TscClock<Hardware>>),
    Monotonic(std::time::Instant, Reason),
    /// Nanoseconds by which each reading advances the time of the process.
    Virtual(u64),
}

/// Virtual time of the process, in nanoseconds.
static VIRTUAL_NS: AtomicU64 = AtomicU64::new(0);

/// Why `CLOCK_MONOTONIC` is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// There is no file with the name of the kernel's clocksource.
    ClocksourceUnknown,
    /// The kernel's clocksource is not the TSC.
    OtherClocksource(&'static str),
    /// The processor has no TSC, or one whose rate changes.
    NoInvariantTsc,
    /// The TSC went back while it was calibrated.
    TscGoesBack,
}

/// The clock that a context reads, for reports: [`Context::clock`](crate::Context::clock).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClockInfo {
    /// `TSC`, `CLOCK_MONOTONIC`, or `virtual` ([`Config::virtual_time`]).
    ///
    /// [`Config::virtual_time`]: crate::Config::virtual_time
    pub name: &'static str,
    /// Why `CLOCK_MONOTONIC` is read; otherwise empty.
    pub reason: String,
    /// Mean time of a reading in nanoseconds; 0 for virtual time.
    pub reading_ns: u64,
    /// Number of times the TSC and `CLOCK_MONOTONIC` disagreed: the machine was suspended, migrated
    /// or restored from a snapshot. Connections go on.
    pub rebased: u64,
}

impl fmt::Display for ClockInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} ns per reading", self.name, self.reading_ns)?;
        if !self.reason.is_empty() {
            write!(f, " ({})", self.reason)?;
        }
        if self.rebased > 0 {
            write!(f, ", rebased {} times", self.rebased)?;
        }
        Ok(())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClocksourceUnknown => write!(f, "{CLOCKSOURCE} cannot be read"),
            Self::OtherClocksource(name) => write!(f, "the kernel's clocksource is {name}"),
            Self::NoInvariantTsc => f.write_str("the processor has no invariant TSC"),
            Self::TscGoesBack => f.write_str("the TSC goes back"),
        }
    }
}

impl Clock {
    /// Starts a clock. Takes 10 ms the first time in a process, to calibrate the TSC.
    pub(crate) fn start() -> Self {
        static SCALE: OnceLock<Result<u64, Reason>> = OnceLock::new();
        let scale = *SCALE.get_or_init(|| {
            may_use_tsc(std::fs::read_to_string(CLOCKSOURCE).ok(), has_invariant_tsc())?;
            Sample::calibrate(&Hardware::new()).ok_or(Reason::TscGoesBack)
        });
        let tsc = |scale| TscClock::start(Hardware::new(), scale).ok_or(Reason::TscGoesBack);
        match scale.and_then(tsc) {
            Ok(clock) => Self(Source::Tsc(Arc::new(clock))),
            Err(reason) => {
                let clock = Self(Source::Monotonic(std::time::Instant::now(), reason));
                tracing::info!("clock: {}", clock.info());
                clock
            }
        }
    }

    /// Returns a clock that each reading advances by `step_ns` and nothing else does, together with
    /// all other clocks of this kind.
    pub(crate) fn virtual_time(step_ns: u64) -> Self {
        Self(Source::Virtual(step_ns))
    }

    #[inline]
    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(match &self.0 {
            Source::Tsc(clock) => clock.now_ns(),
            Source::Monotonic(origin, _) => nanos(origin.elapsed()),
            Source::Virtual(step) => VIRTUAL_NS.fetch_add(*step, Ordering::Relaxed) + *step,
        })
    }

    /// Describes the clock. Measures the cost of a reading, for some microseconds.
    pub(crate) fn info(&self) -> ClockInfo {
        let (name, reason, rebased) = match &self.0 {
            Source::Tsc(clock) if clock.is_used() => ("TSC", String::new(), clock.rebased()),
            Source::Tsc(clock) => ("CLOCK_MONOTONIC", "the TSC jumped".to_owned(), clock.rebased()),
            Source::Monotonic(_, reason) => ("CLOCK_MONOTONIC", reason.to_string(), 0),
            Source::Virtual(_) => ("virtual", String::new(), 0),
        };
        let reading_ns = if matches!(self.0, Source::Virtual(_)) { 0 } else { self.cost_ns() };
        ClockInfo { name, reason, reading_ns, rebased }
    }

    /// Measures a reading.
    fn cost_ns(&self) -> u64 {
        let start = std::time::Instant::now();
        for _ in 0..COST_READINGS {
            std::hint::black_box(self.now());
        }
        nanos(start.elapsed() / COST_READINGS)
    }
}

/// Decides between the TSC and `CLOCK_MONOTONIC`, by the kernel's clocksource.
fn may_use_tsc(clocksource: Option<String>, is_invariant: bool) -> Result<(), Reason> {
    let clocksource = clocksource.ok_or(Reason::ClocksourceUnknown)?;
    match clocksource.trim() {
        "tsc" if is_invariant => Ok(()),
        "tsc" => Err(Reason::NoInvariantTsc),
        // Once in a process.
        name => Err(Reason::OtherClocksource(name.to_owned().leak())),
    }
}

/// The clocks of this machine.
#[derive(Debug)]
struct Hardware {
    origin: std::time::Instant,
}

impl Hardware {
    fn new() -> Self {
        Self { origin: std::time::Instant::now() }
    }
}

impl Clocks for Hardware {
    #[inline]
    fn ticks(&self) -> u64 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 processor has the instruction.
        return unsafe { core::arch::x86_64::_rdtsc() };
        // There is no invariant one then.
        #[cfg(not(target_arch = "x86_64"))]
        0
    }

    fn monotonic_ns(&self) -> u64 {
        nanos(self.origin.elapsed())
    }
}

/// True if the TSC is invariant (Intel SDM, volume 3, section 18.17.1: CPUID leaf 0x80000007, EDX
/// bit 8).
fn has_invariant_tsc() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        const LEAF: u32 = 0x8000_0007;
        let known = core::arch::x86_64::__cpuid(0x8000_0000).eax >= LEAF;
        known && core::arch::x86_64::__cpuid(LEAF).edx & (1 << 8) != 0
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn clock_agrees_with_the_monotonic_clock() {
        let clock = Clock::start();
        let (first, start) = (clock.now(), std::time::Instant::now());
        // Over a comparison.
        std::thread::sleep(Duration::from_millis(150));
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
        assert_eq!(clocks[0].info().to_string(), "virtual, 0 ns per reading");
    }

    #[test]
    fn tsc_is_read_where_the_kernel_uses_it_and_it_is_invariant() {
        let with = |name: &str, is_invariant| may_use_tsc(Some(name.to_owned()), is_invariant);
        assert_eq!(with("tsc\n", true), Ok(()));
        assert_eq!(with("tsc\n", false), Err(Reason::NoInvariantTsc));
        assert_eq!(with("kvm-clock\n", true), Err(Reason::OtherClocksource("kvm-clock")));
        assert_eq!(with("", true), Err(Reason::OtherClocksource("")));
        assert_eq!(may_use_tsc(None, true), Err(Reason::ClocksourceUnknown));
    }

    #[test]
    fn monotonic_clock_advances_and_its_cost_is_reported() {
        let reason = Reason::OtherClocksource("kvm-clock");
        let clock = Clock(Source::Monotonic(std::time::Instant::now(), reason));
        let first = clock.now();
        std::thread::sleep(Duration::from_millis(10));
        assert!(clock.now().since(first) >= 10_000_000);
        let info = clock.info();
        assert_eq!((info.name, info.rebased), ("CLOCK_MONOTONIC", 0));
        assert!(info.reading_ns > 0);
        let text = info.to_string();
        assert!(
            text.ends_with(" ns per reading (the kernel's clocksource is kvm-clock)"),
            "{text}"
        );
    }
}
