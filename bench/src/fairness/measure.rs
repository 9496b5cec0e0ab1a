//! Rounds of a case: latency alone, the time of a quantum, latency beside the traffic.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use core_affinity::CoreId;
use ferrowarp::device::register_current_thread;
use hdrhistogram::Histogram;

use super::cases::Case;
use super::load::{Load, PORT_QUEUE_LEN, Placed, Sink};

/// Pause before a Write at most, in addition to a round: the Write comes at any time of a round.
const PAUSE_MAX: Duration = Duration::from_micros(20);
/// Time before each measurement, with the traffic of the measurement.
const WARM_UP: Duration = Duration::from_millis(50);
/// Time until nothing is outstanding.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);
/// Quantile of the latencies that is compared with the bound.
pub const QUANTILE: f64 = 0.99;
/// Shares of a round's time: alone, and for the quantum; the rest is latency beside the traffic.
const ALONE_SHARE: f64 = 0.2;
const QUANTUM_SHARE: f64 = 0.2;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The traffic.
    pub case: Case,
    /// MTU in bytes.
    pub mtu: u16,
    /// Cores of senders and sink, one if they share it.
    pub cores: Vec<usize>,
}

/// Results of a round.
#[derive(Clone, Debug)]
pub struct Round {
    /// Latencies in nanoseconds without other traffic.
    pub alone: Histogram<u64>,
    /// Latencies in nanoseconds beside it.
    pub beside: Histogram<u64>,
    /// Segments of others before each Write beside the traffic.
    pub segments_before: Histogram<u64>,
    /// The highest of these numbers, exactly.
    pub segments_max: u64,
    /// Number of segments that the rule allows.
    pub segments_allowed: u64,
    /// Nanoseconds from segment to segment of the other traffic, over all connections.
    pub segment_ns: f64,
    /// Wait in nanoseconds that the rule allows: a quantum of each connection that competes, and
    /// the frames of one round that were handed to the port before.
    pub wait_ns: f64,
    /// The same with full queues of the port.
    pub queue_wait_ns: f64,
    /// Latency alone that is added, in nanoseconds: see `alone_ns`.
    pub alone_ns: f64,
}

impl Round {
    /// Returns the bound of the latency beside the traffic, in nanoseconds.
    #[must_use]
    pub fn bound_ns(&self) -> f64 {
        self.wait_ns + self.alone_ns
    }

    /// Returns the same with full queues of the port.
    #[must_use]
    pub fn queue_bound_ns(&self) -> f64 {
        self.queue_wait_ns + self.alone_ns
    }

    /// Returns the same with the plain percentile of the latency alone.
    #[must_use]
    pub fn plain_bound_ns(&self) -> f64 {
        self.wait_ns + self.alone.value_at_quantile(QUANTILE) as f64
    }
}

/// Measured Writes.
struct Samples {
    /// Latencies in nanoseconds.
    latencies: Histogram<u64>,
    /// Segments of others before each.
    segments: Histogram<u64>,
    segments_max: u64,
}

/// Measures `rounds` rounds on a connection each queue pair keeps, on threads of their own.
///
/// # Errors
/// Errors of the device and the verbs, and if nothing was measured.
pub fn run(
    setup: &Setup,
    rounds: usize,
    seconds: f64,
    mut progress: impl FnMut(&Round) + Send,
) -> Result<Vec<Round>> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            pin(setup.cores[0])?;
            let (load, sink) = Load::connect(&setup.case, setup.mtu)?;
            let mut run = |mut bench: Bench| {
                let round = |_| {
                    let round = bench.round(setup, seconds)?;
                    progress(&round);
                    Ok(round)
                };
                (0..rounds).map(round).collect::<Result<Vec<_>>>()
            };
            match setup.cores[..] {
                [_] => run(Bench { load, sink: Some(sink) }),
                [_, core] => beside_sink(sink, core, || run(Bench { load, sink: None })),
                _ => bail!("one core or two"),
            }
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs `work` while another thread, on `core`, polls the sink.
fn beside_sink<T>(mut sink: Sink, core: usize, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let stops = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            pin(core)?;
            register_current_thread();
            while !stops.load(Ordering::Relaxed) {
                sink.step()?;
            }
            // Dropped by the caller, when nobody sends any more.
            Ok::<_, anyhow::Error>(sink)
        });
        let result = work();
        stops.store(true, Ordering::Relaxed);
        let sink = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        sink.context("the sink")?;
        result
    })
}

/// The senders, and the sink if the same thread polls it.
struct Bench {
    load: Load,
    sink: Option<Sink>,
}

impl Bench {
    fn round(&mut self, setup: &Setup, seconds: f64) -> Result<Round> {
        let time = |share| Duration::from_secs_f64(seconds * share);
        self.load.set_probing(Some(PAUSE_MAX));
        self.poll_for(WARM_UP)?;
        let alone = self.poll_for(time(ALONE_SHARE))?.latencies;
        self.load.set_probing(None);
        self.load.start_competing()?;
        self.poll_for(WARM_UP)?;
        let before = self.load.segments()?;
        let start = Instant::now();
        self.poll_for(time(QUANTUM_SHARE))?;
        let elapsed = start.elapsed();
        let sent = self.load.segments()?.into_iter().zip(before);
        let segments: u64 = sent.map(|(now, then)| u64::from(now.wrapping_sub(then))).sum();
        ensure!(segments > 0 && !alone.is_empty(), "nothing was sent: more --seconds");
        let segment_ns = elapsed.as_nanos() as f64 / segments as f64;
        let Case { qps, .. } = setup.case;
        let round_segments = qps * setup.case.quantum(setup.mtu);
        let round_ns = round_segments as f64 * segment_ns;
        let segments_allowed = round_segments + round_segments.min(PORT_QUEUE_LEN);
        let wait_ns = segments_allowed as f64 * segment_ns;
        let queue_wait_ns = round_ns + PORT_QUEUE_LEN as f64 * segment_ns;
        let alone_ns = alone_ns(&alone, wait_ns);
        self.load.set_probing(Some(PAUSE_MAX + Duration::from_secs_f64(round_ns * 1e-9)));
        self.poll_for(WARM_UP)?;
        let beside = self.poll_for(time(1.0 - ALONE_SHARE - QUANTUM_SHARE))?;
        ensure!(!beside.latencies.is_empty(), "no Write was placed: more --seconds");
        self.load.set_probing(None);
        self.load.stop_competing();
        let start = Instant::now();
        while !self.load.is_idle() {
            ensure!(start.elapsed() < DRAIN_TIMEOUT, "the Writes do not complete");
            self.poll()?;
        }
        Ok(Round {
            alone,
            beside: beside.latencies,
            segments_before: beside.segments,
            segments_max: beside.segments_max,
            segments_allowed: segments_allowed as u64,
            segment_ns,
            wait_ns,
            queue_wait_ns,
            alone_ns,
        })
    }

    /// Polls for some time; returns the Writes that were placed.
    fn poll_for(&mut self, duration: Duration) -> Result<Samples> {
        let (latencies, segments) = (Histogram::new(3)?, Histogram::new(3)?);
        let mut samples = Samples { latencies, segments, segments_max: 0 };
        let start = Instant::now();
        while start.elapsed() < duration {
            if let Some(Placed { latency, segments_before }) = self.poll()? {
                samples.latencies.record(u64::try_from(latency.as_nanos())?)?;
                samples.segments.record(segments_before)?;
                samples.segments_max = samples.segments_max.max(segments_before);
            }
        }
        Ok(samples)
    }

    /// Polls each sender once, and the sink after each.
    fn poll(&mut self) -> Result<Option<Placed>> {
        let mut found = None;
        for context in 0..self.load.context_count() {
            found = found.or(self.load.step(context)?);
            if let Some(sink) = &mut self.sink {
                sink.step()?;
            }
        }
        Ok(found)
    }
}

/// Returns the latency without other traffic, in nanoseconds, to be added to a wait of `wait_ns`.
///
/// The longer a Write waits, the more likely is an interruption that has nothing to do with the
/// other traffic, such as of the virtual machine. So a rarer one is taken, in proportion to the
/// wait: the highest, where there are too few samples for that.
fn alone_ns(alone: &Histogram<u64>, wait_ns: f64) -> f64 {
    let usual_ns = alone.value_at_quantile(0.5) as f64;
    let missed = (1.0 - QUANTILE) * usual_ns / (usual_ns + wait_ns);
    alone.value_at_quantile(1.0 - missed) as f64
}

/// Pins the calling thread.
fn pin(core: usize) -> Result<()> {
    ensure!(core_affinity::set_for_current(CoreId { id: core }), "cannot pin to core {core}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rarer_interruptions_are_added_to_longer_waits() {
        let mut alone = Histogram::new(3).unwrap();
        alone.record_n(1000, 998_000).unwrap();
        alone.record_n(10_000, 1900).unwrap();
        alone.record_n(30_000, 100).unwrap();
        // One in 100, in 2,100 and in 201,000.
        for (wait_ns, expected) in [(0.0, 1e3), (2e4, 1e4), (2e6, 3e4)] {
            let found = alone_ns(&alone, wait_ns);
            assert!((found / expected - 1.0).abs() < 0.001, "{found} for {wait_ns}");
        }
    }
}
