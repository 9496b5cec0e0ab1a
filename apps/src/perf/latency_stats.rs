//! Latencies of one run: recorded in nanoseconds, reported in microseconds.

use hdrhistogram::Histogram;
use serde::Serialize;

/// Largest latency that the histogram resolves: a minute.
const LATENCY_MAX_NS: u64 = 60_000_000_000;
const SIGNIFICANT_DIGITS: u8 = 3;

/// The latencies of one run. Recording costs some nanoseconds and never allocates.
#[derive(Clone, Debug)]
pub struct Latencies {
    histogram: Histogram<u64>,
    /// Exact extremes: the histogram rounds to three digits.
    min_ns: u64,
    max_ns: u64,
}

/// Summary statistics, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Shortest.
    pub min: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Longest.
    pub max: f64,
    /// Mean (not in the JSON).
    #[serde(skip)]
    pub mean: f64,
    /// Standard deviation (not in the JSON).
    #[serde(skip)]
    pub stdev: f64,
}

impl Latencies {
    /// Creates an empty record.
    #[must_use]
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LATENCY_MAX_NS, SIGNIFICANT_DIGITS)
            .expect("constant bounds that the crate allows");
        Self { histogram, min_ns: u64::MAX, max_ns: 0 }
    }

    /// Records a latency.
    pub fn record(&mut self, ns: u64) {
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
        self.histogram.saturating_record(ns.max(1));
    }

    /// Adds the latencies of another shard's run.
    pub fn add(&mut self, other: &Self) {
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        self.histogram += &other.histogram;
    }

    /// Returns the histogram, for a log.
    #[must_use]
    pub const fn histogram(&self) -> &Histogram<u64> {
        &self.histogram
    }

    /// Returns the summary; `None` if nothing was recorded.
    #[must_use]
    pub fn summary(&self) -> Option<Summary> {
        if self.histogram.is_empty() {
            return None;
        }
        // The histogram returns the upper edge of a bucket, which may be above the maximum.
        let at = |quantile| {
            usec(self.histogram.value_at_quantile(quantile).clamp(self.min_ns, self.max_ns))
        };
        Some(Summary {
            min: usec(self.min_ns),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: usec(self.max_ns),
            mean: self.histogram.mean() / 1e3,
            stdev: self.histogram.stdev() / 1e3,
        })
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

#[expect(clippy::cast_precision_loss, reason = "a double is exact for 104 days of nanoseconds")]
fn usec(ns: u64) -> f64 {
    ns as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_match_recorded_values() {
        let mut latencies = Latencies::new();
        assert_eq!(latencies.summary(), None);
        for ns in 1..=1000 {
            latencies.record(ns * 1000);
        }
        let summary = latencies.summary().unwrap();
        assert_eq!((summary.min, summary.max), (1.0, 1000.0));
        for (value, expected) in [
            (summary.p50, 500.0),
            (summary.p90, 900.0),
            (summary.p99, 990.0),
            (summary.p999, 999.0),
        ] {
            assert!((value - expected).abs() < expected * 0.002, "{value} is not {expected}");
        }
        assert!((summary.mean - 500.5).abs() < 1.0);
        assert!((summary.stdev - 288.7).abs() < 1.0);
    }

    #[test]
    fn percentiles_lie_between_minimum_and_maximum() {
        for values in [&[0][..], &[10_097_360], &[8_191, 10_097_361], &[u64::MAX / 2, 70]] {
            let mut latencies = Latencies::new();
            values.iter().for_each(|&ns| latencies.record(ns));
            let Summary { min, p50, p90, p99, p999, max, .. } = latencies.summary().unwrap();
            let ascending = [min, p50, p90, p99, p999, max];
            assert!(ascending.is_sorted(), "{values:?}: {ascending:?}");
        }
    }

    #[test]
    fn out_of_range_latencies_are_clamped() {
        let mut latencies = Latencies::new();
        latencies.record(0);
        latencies.record(u64::MAX / 2);
        let summary = latencies.summary().unwrap();
        assert_eq!(summary.min, 0.0);
        assert!(summary.max > 60e6);
    }
}
