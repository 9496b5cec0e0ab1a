//! Rounds of a case: latency alone, the time of a quantum, latency beside the traffic.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use core_affinity::CoreId;
use ferrowarp::device::register_current_thread;
use hdrhistogram::Histogram;

use super::cases::Case;
use super::load::{Load, PORT_QUEUE_LEN, Sink};

/// Pause before a Write at most, in addition to the bound: the Write comes at any time of a pass.
const PAUSE_MAX: Duration = Duration::from_micros(20);
/// Time before each measurement, with the traffic of the measurement.
const WARM_UP: Duration = Duration::from_millis(50);
/// Time until nothing is outstanding.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);
/// Rounds of the connections that a Write waits for, at most: the one in which it is posted, and
/// that in which its connection has its turn.
pub const ROUNDS: usize = 2;
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
    /// Nanoseconds from segment to segment of the other traffic, over all connections.
    pub segment_ns: f64,
    /// What the rule promises, in nanoseconds: [`ROUNDS`] rounds of the connections that compete,
    /// and the latency alone.
    pub bound_ns: f64,
    /// The same with full queues of the port.
    pub queue_bound_ns: f64,
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
        let alone = self.poll_for(time(ALONE_SHARE))?;
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
        let round_ns = (qps * setup.case.quantum(setup.mtu)) as f64 * segment_ns;
        let bound_ns = bound_ns(&alone, round_ns);
        self.load.set_probing(Some(PAUSE_MAX + Duration::from_secs_f64(round_ns * 1e-9)));
        self.poll_for(WARM_UP)?;
        let beside = self.poll_for(time(1.0 - ALONE_SHARE - QUANTUM_SHARE))?;
        ensure!(!beside.is_empty(), "no Write was placed: more --seconds");
        self.load.set_probing(None);
        self.load.stop_competing();
        let start = Instant::now();
        while !self.load.is_idle() {
            ensure!(start.elapsed() < DRAIN_TIMEOUT, "the Writes do not complete");
            self.poll()?;
        }
        let queue_bound_ns = bound_ns + PORT_QUEUE_LEN as f64 * segment_ns;
        Ok(Round { alone, beside, segment_ns, bound_ns, queue_bound_ns })
    }

    /// Polls for some time; returns the latencies of Writes that were placed.
    fn poll_for(&mut self, duration: Duration) -> Result<Histogram<u64>> {
        let mut latencies = Histogram::new(3)?;
        let start = Instant::now();
        while start.elapsed() < duration {
            if let Some(latency) = self.poll()? {
                latencies.record(u64::try_from(latency.as_nanos())?)?;
            }
        }
        Ok(latencies)
    }

    /// Polls each sender once, and the sink after each.
    fn poll(&mut self) -> Result<Option<Duration>> {
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

/// Returns what the rule promises for a Write: [`ROUNDS`] rounds of the other connections, and its
/// latency without them.
///
/// The longer a Write waits, the more likely is an interruption that has nothing to do with the
/// other traffic, such as of the virtual machine. In proportion to the wait a rarer one has to be
/// taken from the latencies alone.
fn bound_ns(alone: &Histogram<u64>, round_ns: f64) -> f64 {
    let usual_ns = alone.value_at_quantile(0.5) as f64;
    let wait_ns = ROUNDS as f64 * round_ns;
    let missed = (1.0 - QUANTILE) * usual_ns / (usual_ns + wait_ns);
    wait_ns + alone.value_at_quantile(1.0 - missed) as f64
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
    fn bound_has_rarer_interruptions_for_longer_waits() {
        let mut alone = Histogram::new(3).unwrap();
        alone.record_n(1000, 998_000).unwrap();
        alone.record_n(10_000, 1900).unwrap();
        alone.record_n(30_000, 100).unwrap();
        let close_to = |found: f64, expected: f64| (found / expected - 1.0).abs() < 0.001;
        assert!(close_to(bound_ns(&alone, 0.0), 1000.0));
        // One in 2,100: among the rarest 2,000 of a million.
        assert!(close_to(bound_ns(&alone, 10_000.0), 30_000.0));
        // One in 201,000.
        assert!(close_to(bound_ns(&alone, 1_000_000.0), 2_030_000.0));
    }
}
