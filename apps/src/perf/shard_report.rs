//! Results of a run over several shards: the total over their workers, and the figures of each
//! shard.

use std::collections::VecDeque;

use serde::Serialize;

use crate::perf::hdr::Interval;
use crate::perf::latency_stats::Summary;
use crate::perf::report::{Measurement, OnResult, TestParams};

/// Figures of one shard.
#[derive(Clone, Debug, Serialize)]
pub struct ShardFigures {
    /// Number of the shard.
    pub shard: usize,
    /// Its queue pairs.
    pub qps: u32,
    /// Its messages.
    pub iterations: u64,
    /// Seconds from its first request to the confirmation of its last byte.
    pub duration_s: f64,
    /// Its bandwidth, in gigabits (10^9) per second.
    pub bw_gbit_s: f64,
    /// Its message rate, in millions per second.
    pub msg_rate_mops: f64,
    /// Its latencies in microseconds; `null` for bandwidth.
    pub lat_us: Option<Summary>,
    /// Frames that arrived at it and were passed on to the shard of their connection.
    pub frames_forwarded: u64,
}

impl ShardFigures {
    fn of(result: &Measurement) -> Self {
        Self {
            shard: result.shard,
            qps: result.qps,
            iterations: result.iterations,
            duration_s: result.duration_s,
            bw_gbit_s: result.bw_gbit_s,
            msg_rate_mops: result.msg_rate_mops,
            lat_us: result.lat_us,
            frames_forwarded: result.frames_forwarded,
        }
    }

    /// Returns its line below the total.
    #[must_use]
    pub fn line(&self) -> String {
        let Self { shard, qps, frames_forwarded, .. } = self;
        let figures = match self.lat_us {
            Some(lat) => format!("{:.2} usec typical, {:.2} at 99%", lat.p50, lat.p99),
            None => format!("{:.2} Gb/sec, {:.6} Mpps", self.bw_gbit_s, self.msg_rate_mops),
        };
        format!("   shard {shard}: {qps} qps, {figures}, {frames_forwarded} frames forwarded")
    }
}

/// Merges the workers' results into the result of a run. The workers began at the same time, so
/// the rate is their sum over the longest duration. The peak is the sum of their peaks.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn merge(results: &[Measurement], qps: u32) -> Measurement {
    let mut total = results.first().expect("there is a worker").clone();
    let sum = |of: fn(&Measurement) -> u64| results.iter().map(of).sum::<u64>();
    let longest = results.iter().max_by_key(|result| result.duration_ns);
    let duration_ns = longest.map_or(0, |result| result.duration_ns);
    total.set_rates(sum(|r| r.iterations), sum(|r| r.bytes), duration_ns);
    total.qps = qps;
    total.bytes_verified = sum(|r| r.bytes_verified);
    total.errors = sum(|r| r.errors);
    total.peak_gbit_s = results.iter().map(|result| result.peak_gbit_s).sum();
    for other in &results[1..] {
        if let (Some(latencies), Some(more)) = (&mut total.latencies, &other.latencies) {
            latencies.add(more);
        }
    }
    total.lat_us = total.latencies.as_ref().and_then(|latencies| latencies.summary());
    total.shards = results.iter().map(ShardFigures::of).collect();
    total
}

/// Results of the workers of a client as they come in, and of the runs that all have finished.
pub struct Merger {
    on_result: OnResult,
    /// Workers that have reported the parameters of the test.
    ready: usize,
    /// Results, by worker, of runs that others have not finished.
    pending: Vec<VecDeque<Measurement>>,
    /// Results of the runs.
    pub results: Vec<Measurement>,
}

impl Merger {
    /// Merges the results of as many workers; `on_result` receives them as a client's.
    #[must_use]
    pub fn new(workers: usize, on_result: OnResult) -> Self {
        let pending = (0..workers).map(|_| VecDeque::new()).collect();
        Self { on_result, ready: 0, pending, results: Vec::new() }
    }

    /// Handles what a worker reports.
    pub fn on_result(&mut self, worker: usize, setting: &TestParams, result: Option<&Measurement>) {
        let Some(result) = result else {
            self.ready += 1;
            if self.ready == 1 {
                (self.on_result)(setting, None);
            }
            return;
        };
        self.pending[worker].push_back(result.clone());
        if self.pending.iter().all(|pending| !pending.is_empty()) {
            let results: Vec<_> = self.pending.iter_mut().filter_map(VecDeque::pop_front).collect();
            let total = merge(&results, setting.qps);
            (self.on_result)(setting, Some(&total));
            self.results.push(total);
        }
    }
}

/// Returns the intervals of the runs that all workers have finished, with the latencies of all.
#[must_use]
pub fn merge_intervals(workers: Vec<Vec<Interval>>) -> Vec<Interval> {
    let mut workers = workers.into_iter();
    let Some(mut total) = workers.next() else { return Vec::new() };
    for intervals in workers {
        total.truncate(intervals.len());
        for (sum, other) in total.iter_mut().zip(intervals) {
            sum.histogram += other.histogram;
        }
    }
    total
}
