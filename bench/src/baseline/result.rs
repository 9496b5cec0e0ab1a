//! Results: tables, and the figures with a required minimum.

use super::plan::Topology;
use super::runner::Sample;
use crate::median::median;

/// Results of a topology and an MTU.
#[derive(Clone, Debug)]
pub struct Table {
    /// Topology.
    pub topology: Topology,
    /// MTU in bytes.
    pub mtu: u16,
    /// Results, one row per test, one cell per size.
    pub rows: Vec<(&'static str, Vec<CellResult>)>,
}

/// Results of one test at one size.
#[derive(Clone, Debug, Default)]
pub struct CellResult {
    /// One for each successful round.
    pub samples: Vec<Sample>,
    /// The frozen bound measured before each sample, in Gb/s; for bandwidth only.
    pub bound: Vec<f64>,
}

impl CellResult {
    /// Returns the median of `value` over the samples.
    #[must_use]
    pub fn median(&self, value: impl Fn(&Sample) -> f64) -> Option<f64> {
        median(self.samples.iter().map(value).collect())
    }
}

/// A performance target, measured in longer runs than the tables.
#[derive(Clone, Debug)]
pub struct Target {
    /// Test.
    pub test: &'static str,
    /// Topology.
    pub topology: Topology,
    /// MTU in bytes.
    pub mtu: u16,
    /// Message sizes in bytes.
    pub size: u64,
    /// Minimum bandwidth in Gb/s, or maximum median latency in microseconds.
    pub threshold: f64,
    /// Results.
    pub measured: CellResult,
}

/// Returns the performance targets on one core, and on two.
#[must_use]
pub fn targets(one: usize, two: Option<[usize; 2]>) -> Vec<Target> {
    let target = |test, topology, mtu, size, threshold| Target {
        test,
        topology,
        mtu,
        size,
        threshold,
        measured: CellResult::default(),
    };
    let mut targets = vec![
        target("write-bw", Topology::OneCore(one), 1500, 65_536, 12.0),
        target("write-bw", Topology::OneCore(one), 9000, 65_536, 30.0),
    ];
    targets.extend(two.map(|two| target("write-lat", Topology::TwoCores(two), 1500, 64, 2.5)));
    targets
}
