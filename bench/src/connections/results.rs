//! What was measured, and the limits.

use hdrhistogram::Histogram;

use super::control::Latencies;
use super::many::Many;
use super::memory::Memory;
use super::setup_rate::Rates;
use super::soak::Soak;
use crate::paired::interval::{COVERAGE_MIN, MedianInterval};
use crate::paired::pairs::Paired;
use crate::paired::rows::Wanted;

/// Time of a Write beside idle connections, as a multiple of that alone.
pub const IDLE_LIMIT: Wanted = Wanted::AtMost(1.03);
/// Bytes of an idle connected queue pair beside its slots.
pub const BYTES_LIMIT: f64 = 2048.0;
/// Rate of set-ups and ends beside other connections, as a share of that without.
pub const RATE_LIMIT: Wanted = Wanted::AtLeast(0.9);

/// Latencies of control calls in rounds.
#[derive(Clone, Debug)]
pub struct Control {
    /// Shards of the two kinds of contexts.
    pub shards: [usize; 2],
    /// Threads that drive them.
    pub drivers: [usize; 2],
    /// Rounds, of each kind.
    pub rounds: Vec<[Latencies; 2]>,
}

/// What was measured.
#[derive(Debug, Default)]
pub struct Results {
    /// Idle connections of the part, and for each kind of Writes the nanoseconds per Write.
    pub idle: Option<(usize, Vec<(&'static str, Paired)>)>,
    /// Memory of a queue pair.
    pub memory: Option<Memory>,
    /// Very many connections.
    pub many: Option<Many>,
    /// Connections that are set up, others that are open, and the rates.
    pub setup_rate: Option<(usize, usize, Rates)>,
    /// Latencies of control calls.
    pub control: Option<Control>,
    /// Soak.
    pub soak: Option<Soak>,
    /// Parts that failed, and why.
    pub failures: Vec<String>,
}

/// Returns whether a limit is kept: by the whole interval, by no part of it, or undecided.
#[must_use]
pub fn kept(interval: &MedianInterval, limit: Wanted) -> &'static str {
    let MedianInterval { low, high, coverage, .. } = *interval;
    let (is_kept, is_broken) = match limit {
        Wanted::AtLeast(limit) => (low >= limit, high < limit),
        Wanted::AtMost(limit) => (high <= limit, low > limit),
    };
    match (is_kept, is_broken) {
        _ if coverage < COVERAGE_MIN => "open",
        (true, _) => "yes",
        (_, true) => "no",
        _ => "open",
    }
}

/// Returns a quantile of latencies, in microseconds.
#[must_use]
pub fn us(latencies: &Histogram<u64>, quantile: f64) -> f64 {
    latencies.value_at_quantile(quantile) as f64 / 1e3
}
