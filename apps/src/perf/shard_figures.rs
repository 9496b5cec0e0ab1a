//! Figures of each shard in the result of a run over several.

use serde::Serialize;

use crate::perf::latency_stats::Summary;

/// Figures of one shard, as those of the whole run.
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
    /// Returns its line below that of the total.
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
