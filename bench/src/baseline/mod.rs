//! End-to-end figures: `iwperf` over several devices, tests and sizes, each beside the bare bound
//! measured on the same cores a moment before; medians of several rounds.

pub mod plot;
pub mod report;
pub mod runner;

use std::time::Duration;

use anyhow::Result;

use crate::copy_crc_bound::{self, CopyCrcParams, Crc};
use runner::{Iwperf, Sample};

/// The tests, bandwidth first.
pub const TESTS: [&str; 6] =
    ["write-bw", "read-bw", "send-bw", "write-lat", "read-lat", "send-lat"];

/// Where both ends run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One process over `ring`, both ends on one core.
    OneCore(usize),
    /// One process over `ring`, an end on each core.
    TwoCores([usize; 2]),
    /// Two processes over `memif`, an end on each core; both on one if there is only one.
    Memif([usize; 2]),
}

impl Topology {
    /// For headings.
    #[must_use]
    pub fn title(&self) -> &'static str {
        match self {
            Self::OneCore(_) => "`ring`, one core",
            Self::TwoCores(_) => "`ring`, two cores",
            Self::Memif(_) => "`memif`, two processes on two cores",
        }
    }
}

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

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where, with which MTU.
    pub tables: Vec<(Topology, u16)>,
    /// Bytes per message.
    pub sizes: Vec<u64>,
    /// How often everything is done.
    pub rounds: usize,
    /// Seconds of each run of `iwperf`.
    pub seconds: f64,
    /// Seconds of each measurement of the bound.
    pub bound_seconds: f64,
}

/// Runs the plan, round by round, so that a bad moment of the machine spoils one sample of each
/// figure and not all of one. Failures go to `failures`, one line each; their cells stay short.
///
/// # Errors
/// If the bound cannot be measured.
pub fn run(plan: &Plan, iwperf: &Iwperf, failures: &mut Vec<String>) -> Result<Vec<Table>> {
    let empty = |(place, mtu): &(Topology, u16)| Table {
        topology: place.clone(),
        mtu: *mtu,
        rows: TESTS.map(|test| (test, vec![CellResult::default(); plan.sizes.len()])).to_vec(),
    };
    let mut tables: Vec<Table> = plan.tables.iter().map(empty).collect();
    for round in 0..plan.rounds {
        for table in &mut tables {
            let (place, mtu) = (&table.topology, table.mtu);
            eprintln!("round {} of {}: {}, MTU {mtu}", round + 1, plan.rounds, place.title());
            for (test, cells) in &mut table.rows {
                for (cell, &size) in cells.iter_mut().zip(&plan.sizes) {
                    let bound = if test.ends_with("-bw") {
                        Some(bound(place, mtu, plan.bound_seconds)?)
                    } else {
                        None
                    };
                    match iwperf.run(test, place, mtu, size, plan.seconds) {
                        Ok(sample) => {
                            cell.samples.push(sample);
                            cell.bound.extend(bound);
                        }
                        Err(error) => failures.push(format!(
                            "{test}, {size} octets, {}, MTU {mtu}: {error:#}",
                            place.title()
                        )),
                    }
                }
            }
        }
    }
    Ok(tables)
}

/// Measures what is promised, in runs of `seconds`; failures as in [`run`].
pub fn measure_targets(
    targets: &mut [Target],
    plan: &Plan,
    seconds: f64,
    iwperf: &Iwperf,
    failures: &mut Vec<String>,
) {
    for _ in 0..plan.rounds {
        for target in &mut *targets {
            let Target { test, topology: place, mtu, size, measured: cell, .. } = target;
            match iwperf.run(test, place, *mtu, *size, seconds) {
                Ok(sample) => cell.samples.push(sample),
                Err(error) => failures.push(format!("{test}, {}: {error:#}", place.title())),
            }
        }
    }
}

/// The bare bound at a place: full segments, messages of 64 KiB.
fn bound(place: &Topology, mtu: u16, seconds: f64) -> Result<f64> {
    let work = CopyCrcParams {
        segment_len: usize::from(mtu) - 40,
        message_len: 65_536,
        crc: Crc::CrcFast,
    };
    let duration = Duration::from_secs_f64(seconds);
    match *place {
        Topology::TwoCores(cores) | Topology::Memif(cores) if cores[0] != cores[1] => {
            copy_crc_bound::two_cores(work, cores, duration)
        }
        Topology::OneCore(core) | Topology::TwoCores([core, _]) | Topology::Memif([core, _]) => {
            copy_crc_bound::one_core_pinned(work, core, duration)
        }
    }
}

/// The middle one, or the mean of the two in the middle.
#[must_use]
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    let upper = *values.get(half)?;
    Some(if values.len() % 2 == 1 { upper } else { f64::midpoint(values[half - 1], upper) })
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn median_of_odd_and_even_counts() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }
}
