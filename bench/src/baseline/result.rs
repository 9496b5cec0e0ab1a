//! What came of it: tables, and figures of which something is promised.

use super::plan::Topology;
use super::runner::Sample;
use crate::median::median;

/// One table: a place and an MTU.
#[derive(Clone, Debug)]
pub struct Table {
    /// Where.
    pub topology: Topology,
    /// MTU in bytes.
    pub mtu: u16,
    /// Figures, one row per test, one cell per size.
    pub rows: Vec<(&'static str, Vec<CellResult>)>,
}

/// The figures of one test at one size.
#[derive(Clone, Debug, Default)]
pub struct CellResult {
    /// One for each round that went well.
    pub samples: Vec<Sample>,
    /// The bare bound measured before each, in Gb/s; for bandwidth only.
    pub bound: Vec<f64>,
}

impl CellResult {
    /// Median over the rounds of what `value` takes from a sample.
    #[must_use]
    pub fn median(&self, value: impl Fn(&Sample) -> f64) -> Option<f64> {
        median(self.samples.iter().map(value).collect())
    }
}

/// A figure that is measured longer than the tables, because something is promised of it.
#[derive(Clone, Debug)]
pub struct Target {
    /// The test.
    pub test: &'static str,
    /// Where.
    pub topology: Topology,
    /// MTU in bytes.
    pub mtu: u16,
    /// Bytes per message.
    pub size: u64,
    /// At least so many Gb/s, or for latency at most so many microseconds in the median.
    pub threshold: f64,
    /// The figures.
    pub measured: CellResult,
}

/// What is promised of runs on one core, and on two.
#[must_use]
pub fn targets(one: usize, two: Option<[usize; 2]>) -> Vec<Target> {
    let target = |test, place, mtu, size, wanted| Target {
        test,
        topology: place,
        mtu,
        size,
        threshold: wanted,
        measured: CellResult::default(),
    };
    let mut targets = vec![
        target("write-bw", Topology::OneCore(one), 1500, 65_536, 12.0),
        target("write-bw", Topology::OneCore(one), 9000, 65_536, 30.0),
    ];
    targets.extend(two.map(|two| target("write-lat", Topology::TwoCores(two), 1500, 64, 2.5)));
    targets
}
