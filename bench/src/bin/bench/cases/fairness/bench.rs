//! The senders and their sink, and a round of measurements: latency alone, the time of a segment,
//! latency beside the traffic.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use ferrowarp::Context;
use hdrhistogram::Histogram;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use super::Traffic;
use super::hub::HubPort;
use crate::ring::{End, Write, config, open_ring};
use crate::runner::{Figures, us};

/// Bytes of the Write whose latency is measured, the *probe*; the last ones are a number, by which
/// the sink recognizes it.
const PROBE_LEN: u32 = 64;
const NUMBER_LEN: usize = 8;
/// Frames that the port queues hold: slots of `ring`, and frames for a flush. They lie before
/// any that is sent later, whatever the turns of the connections.
const PORT_QUEUE_LEN: usize = 511 + 256;
/// Host number of the sink; the senders have the next ones.
const SINK: u8 = 1;
/// Pause before a probe at most, in addition to a round: the probe comes at any time of a round.
const PAUSE_MAX: Duration = Duration::from_micros(20);
/// Time before each measurement, with the traffic of the measurement.
const WARM_UP: Duration = Duration::from_millis(50);
/// Quantile of the latencies that is compared with the bound.
const QUANTILE: f64 = 0.99;
/// Shares of a round's time: alone, and for the quantum; the rest is latency beside the traffic.
const ALONE_SHARE: f64 = 0.2;
const QUANTUM_SHARE: f64 = 0.2;

/// Figures of a round.
pub(super) const P99: &str = "us, p99 beside the traffic";
pub(super) const BOUND: &str = "bound";
pub(super) const P50: &str = "us, p50 beside the traffic";
pub(super) const ALONE: &str = "us, p99 alone";
pub(super) const SEGMENT: &str = "ns per segment";
pub(super) const BEFORE: &str = "segments before a Write, most";
pub(super) const ALLOWED: &str = "allowed";

/// The senders and the sink, polled by one thread.
pub(super) struct Bench {
    senders: Vec<End>,
    sink: End,
    /// Queue pairs that compete, and the one of the probes: sender and index.
    competitors: Vec<(usize, usize)>,
    prober: (usize, usize),
    competing: Write,
    probe: Write,
    /// Number of the last probe, and the probe while it is on its way.
    number: u64,
    on_way: Option<Probe>,
    /// Longest pause before the next probe, and its time; none is posted without.
    pause_max: Option<Duration>,
    next_at: Instant,
    rng: SmallRng,
}

/// A probe on its way.
struct Probe {
    posted_at: Instant,
    /// Frames that all senders had sent before, and segments of its queue pair.
    sent_before: (u64, u32),
    /// Segments of the others that were handed to the port since it was posted, to the end of the
    /// pass in which its own was.
    segments_before: Option<u64>,
    /// Time until the sink saw it.
    latency: Option<Duration>,
}

/// Probes that were placed.
struct Samples {
    latencies: Histogram<u64>,
    /// Most segments of others before one of them.
    segments_max: u64,
}

impl Bench {
    /// Connects the senders of the traffic to a sink. The calling thread polls them from now on.
    pub(super) fn connect(traffic: &Traffic, mtu: u16) -> Result<Self> {
        let offset = (traffic.size as usize).next_multiple_of(64);
        let len = offset + PROBE_LEN as usize;
        let all = traffic.qps + 1;
        let (contexts, sink_context) = if traffic.is_incast {
            incast_contexts(all, mtu)?
        } else {
            let [sink, sender] = [SINK, SINK + 1].map(|host| config(host, mtu, all));
            let (sender, sink) = Context::ring_pair(sender, sink)?;
            (vec![sender], sink)
        };
        let qps = all / contexts.len();
        let end = |(host, context)| End::new(context, host, qps, traffic.depth, len);
        let mut senders = (SINK + 1..).zip(contexts).map(end).collect::<Result<Vec<_>>>()?;
        let mut sink = End::new(sink_context, SINK, all, 1, len)?;
        let mut competitors = Vec::new();
        for (sender, end) in senders.iter_mut().enumerate() {
            for index in 0..qps {
                end.connect(index, &mut sink, competitors.len())?;
                competitors.push((sender, index));
            }
        }
        let Some(prober) = competitors.pop() else { bail!("traffic has queue pairs") };
        Ok(Self {
            competitors,
            prober,
            competing: sink.write_to(0, traffic.size),
            probe: sink.write_to(offset, PROBE_LEN),
            senders,
            sink,
            number: 0,
            on_way: None,
            pause_max: None,
            next_at: Instant::now(),
            rng: SmallRng::seed_from_u64(1),
        })
    }

    pub(super) fn round(&mut self, traffic: &Traffic, mtu: u16, seconds: f64) -> Result<Figures> {
        let time = |share| Duration::from_secs_f64(seconds * share);
        self.pause_max = Some(PAUSE_MAX);
        self.poll_for(WARM_UP)?;
        let alone = self.poll_for(time(ALONE_SHARE))?.latencies;
        self.pause_max = None;
        for &(sender, index) in &self.competitors {
            self.senders[sender].write(index, traffic.depth, &self.competing)?;
        }
        self.poll_for(WARM_UP)?;
        let (before, start) = (self.frames_sent(), Instant::now());
        self.poll_for(time(QUANTUM_SHARE))?;
        let (segments, elapsed) = (self.frames_sent() - before, start.elapsed());
        ensure!(segments > 0 && !alone.is_empty(), "nothing was sent: more --seconds");
        let segment_ns = elapsed.as_nanos() as f64 / segments as f64;
        // A quantum of each connection that competes, and the frames of one round that were handed
        // to the port before.
        let round_segments = traffic.qps * traffic.quantum(mtu);
        let allowed = round_segments + round_segments.min(PORT_QUEUE_LEN);
        let wait_ns = allowed as f64 * segment_ns;
        let bound_ns = wait_ns + alone_ns(&alone, wait_ns);
        let round_ns = round_segments as f64 * segment_ns;
        self.pause_max = Some(PAUSE_MAX + Duration::from_secs_f64(round_ns * 1e-9));
        self.poll_for(WARM_UP)?;
        let beside = self.poll_for(time(1.0 - ALONE_SHARE - QUANTUM_SHARE))?;
        ensure!(!beside.latencies.is_empty(), "no Write was placed: more --seconds");
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

    /// Polls for some time; returns the probes that were placed.
    fn poll_for(&mut self, duration: Duration) -> Result<Samples> {
        let mut samples = Samples { latencies: Histogram::new(3)?, segments_max: 0 };
        let start = Instant::now();
        while start.elapsed() < duration {
            self.poll(&mut samples)?;
        }
        Ok(samples)
    }

    /// Polls each sender once, and the sink after each. Competing Writes are posted again as they
    /// complete.
    fn poll(&mut self, samples: &mut Samples) -> Result<()> {
        for sender in 0..self.senders.len() {
            let (prober, competing) = (self.prober, &self.competing);
            self.senders[sender].poll(|end, index, count| match (sender, index) == prober {
                true => Ok(()),
                false => end.write(index, count, competing),
            })?;
            if sender == prober.0 {
                self.step_probe(samples)?;
            }
            self.sink.poll(|_, _, _| Ok(()))?;
            let number_at = self.number_at();
            if let Some(Probe { posted_at, latency, .. }) = &mut self.on_way
                && latency.is_none()
                && self.sink.mr().load_word(number_at) == self.number
            {
                *latency = Some(posted_at.elapsed());
            }
        }
        Ok(())
    }

    /// Counts the segments before the probe, takes its sample, or posts the next one in its time.
    fn step_probe(&mut self, samples: &mut Samples) -> Result<()> {
        let Some(mut probe) = self.on_way.take() else {
            let is_due = self.pause_max.is_some() && Instant::now() >= self.next_at;
            return if is_due { self.post_probe() } else { Ok(()) };
        };
        if probe.segments_before.is_none() {
            let (frames, segments) = self.sent()?;
            let (frames_before, segments_before) = probe.sent_before;
            let own = segments.wrapping_sub(segments_before);
            let others = || frames - frames_before - u64::from(own);
            probe.segments_before = (own > 0).then(others);
        }
        match (probe.latency, probe.segments_before) {
            (None, _) => self.on_way = Some(probe),
            (Some(_), None) => bail!("a Write was placed that was not sent"),
            (Some(latency), Some(segments)) => {
                samples.latencies.record(u64::try_from(latency.as_nanos())?)?;
                samples.segments_max = samples.segments_max.max(segments);
                let pause_max = self.pause_max.unwrap_or_default();
                self.next_at = Instant::now() + pause_max.mul_f64(self.rng.random::<f64>());
            }
        }
        Ok(())
    }

    fn post_probe(&mut self) -> Result<()> {
        let (sender, index) = self.prober;
        let sent_before = self.sent()?;
        self.number += 1;
        self.senders[sender].mr().write(self.number_at(), &self.number.to_ne_bytes());
        let posted_at = Instant::now();
        let (segments_before, latency) = (None, None);
        self.on_way = Some(Probe { posted_at, sent_before, segments_before, latency });
        self.senders[sender].write(index, 1, &self.probe)
    }

    /// Returns the place of the number in the regions.
    const fn number_at(&self) -> usize {
        self.probe.offset + PROBE_LEN as usize - NUMBER_LEN
    }

    /// Returns the frames that all senders have sent, and the segments of the probes' queue pair,
    /// modulo 2^32.
    fn sent(&self) -> Result<(u64, u32)> {
        let (sender, index) = self.prober;
        Ok((self.frames_sent(), self.senders[sender].tcp_stats(index)?.segments_out))
    }

    fn frames_sent(&self) -> u64 {
        self.senders.iter().map(|end| end.frames()[1]).sum()
    }
}

/// Opens `count` contexts that share one end of a `ring`, and that of the sink at the other end.
/// DPDK has 32 ports at most: too few for a ring each.
fn incast_contexts(count: usize, mtu: u16) -> Result<(Vec<Context>, Context)> {
    let (left, right) = open_ring(mtu, count)?;
    let ports = (SINK + 1..).zip(HubPort::share(left, count));
    let contexts = ports.map(|(host, port)| Context::over(port, config(host, mtu, 1)));
    Ok((contexts.collect::<Result<_, _>>()?, Context::over(right, config(SINK, mtu, count))?))
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
