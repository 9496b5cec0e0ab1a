//! Measurements, round by round.

use std::time::Duration;

use anyhow::Result;

use super::plan::{Plan, TESTS, Topology};
use super::result::{CellResult, Table, Target};
use super::runner::Iwperf;
use crate::copy_crc_bound::{self, CopyCrcParams, Crc};

/// Runs the plan, round by round, so that a disturbance of the machine affects one sample of
/// several cells and not all samples of one. Failures are appended to `failures`, one line each;
/// their cells have fewer samples.
///
/// # Errors
/// If the bound cannot be measured.
pub fn run(plan: &Plan, iwperf: &Iwperf, failures: &mut Vec<String>) -> Result<Vec<Table>> {
    let empty = |(topology, mtu): &(Topology, u16)| Table {
        topology: topology.clone(),
        mtu: *mtu,
        rows: TESTS.map(|test| (test, vec![CellResult::default(); plan.sizes.len()])).to_vec(),
    };
    let mut tables: Vec<Table> = plan.tables.iter().map(empty).collect();
    for round in 0..plan.rounds {
        for table in &mut tables {
            let (topology, mtu) = (&table.topology, table.mtu);
            eprintln!("round {} of {}: {}, MTU {mtu}", round + 1, plan.rounds, topology.title());
            for (test, cells) in &mut table.rows {
                for (cell, &size) in cells.iter_mut().zip(&plan.sizes) {
                    let bound = if test.ends_with("-bw") {
                        Some(bound(topology, mtu, plan.bound_seconds)?)
                    } else {
                        None
                    };
                    match iwperf.run(test, topology, mtu, size, plan.seconds) {
                        Ok(sample) => {
                            cell.samples.push(sample);
                            cell.bound.extend(bound);
                        }
                        Err(error) => failures.push(format!(
                            "{test}, {size} bytes, {}, MTU {mtu}: {error:#}",
                            topology.title()
                        )),
                    }
                }
            }
        }
    }
    Ok(tables)
}

/// Measures the performance targets in runs of `seconds`; failures as in [`run`].
pub fn measure_targets(
    targets: &mut [Target],
    plan: &Plan,
    seconds: f64,
    iwperf: &Iwperf,
    failures: &mut Vec<String>,
) {
    for _ in 0..plan.rounds {
        for target in &mut *targets {
            let Target { test, topology, mtu, size, measured: cell, .. } = target;
            match iwperf.run(test, topology, *mtu, *size, seconds) {
                Ok(sample) => cell.samples.push(sample),
                Err(error) => failures.push(format!("{test}, {}: {error:#}", topology.title())),
            }
        }
    }
}

/// Measures the copy-and-CRC bound of a topology: full segments, messages of 64 KiB.
fn bound(topology: &Topology, mtu: u16, seconds: f64) -> Result<f64> {
    let work = CopyCrcParams {
        segment_len: usize::from(mtu) - 40,
        message_len: 65_536,
        crc: Crc::CrcFast,
    };
    let duration = Duration::from_secs_f64(seconds);
    match *topology {
        Topology::TwoCores(cores) | Topology::Memif(cores) if cores[0] != cores[1] => {
            copy_crc_bound::two_cores(work, cores, duration)
        }
        Topology::OneCore(core) | Topology::TwoCores([core, _]) | Topology::Memif([core, _]) => {
            copy_crc_bound::one_core_pinned(work, core, duration)
        }
    }
}
