//! A round: latency alone, the time of a segment, latency beside the traffic.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;

use super::load::{Load, PORT_QUEUE_LEN, Placed, Sink};
use super::traffic::Traffic;
use crate::cases::on_core;
use crate::runner::Figures;

/// Pause before a Write at most, in addition to a round: the Write comes at any time of a round.
const PAUSE_MAX: Duration = Duration::from_micros(20);
/// Time before each measurement, with the traffic of the measurement.
const WARM_UP: Duration = Duration::from_millis(50);
/// Time until nothing is outstanding.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);
/// Quantile of the latencies that is compared with the bound.
const QUANTILE: f64 = 0.99;
/// Shares of a round's time: alone, and for the quantum; the rest is latency beside the traffic.
const ALONE_SHARE: f64 = 0.2;
const QUANTUM_SHARE: f64 = 0.2;

/// Measured Writes.
struct Samples {
    latencies: Histogram<u64>,
    /// Most segments of others before one of them.
    segments_max: u64,
}

/// Figures of a round.
pub(crate) const P99: &str = "us, p99 beside the traffic";
pub(crate) const BOUND: &str = "bound";
pub(crate) const P50: &str = "us, p50 beside the traffic";
pub(crate) const ALONE: &str = "us, p99 alone";
pub(crate) const SEGMENT: &str = "ns per segment";
pub(crate) const BEFORE: &str = "segments before a Write, most";
pub(crate) const ALLOWED: &str = "allowed";

/// Measures one round on a thread of its own.
pub(crate) fn run(traffic: &Traffic, mtu: u16, core: usize, seconds: f64) -> Result<Figures> {
    on_core(core, || {
        let (load, sink) = Load::connect(traffic, mtu)?;
        Bench { load, sink }.round(traffic, mtu, seconds)
    })
}

/// The senders and the sink, polled by one thread.
struct Bench {
    load: Load,
    sink: Sink,
}

impl Bench {
    fn round(&mut self, traffic: &Traffic, mtu: u16, seconds: f64) -> Result<Figures> {
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
        // A quantum of each connection that competes, and the frames of one round that were handed
        // to the port before.
        let round_segments = traffic.qps * traffic.quantum(mtu);
        let allowed = round_segments + round_segments.min(PORT_QUEUE_LEN);
        let wait_ns = allowed as f64 * segment_ns;
        let bound_ns = wait_ns + alone_ns(&alone, wait_ns);
        let round_ns = round_segments as f64 * segment_ns;
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
        let us = |of: &Histogram<u64>, quantile| of.value_at_quantile(quantile) as f64 / 1e3;
        Ok(Figures::from([
            (P99, us(&beside.latencies, QUANTILE)),
            (BOUND, bound_ns / 1e3),
            (P50, us(&beside.latencies, 0.5)),
            (ALONE, us(&alone, QUANTILE)),
            (SEGMENT, segment_ns),
            (BEFORE, beside.segments_max as f64),
            (ALLOWED, allowed as f64),
        ]))
    }

    /// Polls for some time; returns the Writes that were placed.
    fn poll_for(&mut self, duration: Duration) -> Result<Samples> {
        let mut samples = Samples { latencies: Histogram::new(3)?, segments_max: 0 };
        let start = Instant::now();
        while start.elapsed() < duration {
            if let Some(Placed { latency, segments_before }) = self.poll()? {
                samples.latencies.record(u64::try_from(latency.as_nanos())?)?;
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
            self.sink.step()?;
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
