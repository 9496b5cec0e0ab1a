//! Measurements, round by round.

use std::time::Duration;

use anyhow::Result;

use super::plan::{Plan, TESTS, Topology};
use super::result::{CellResult, Table, Target};
use super::runner::Iwperf;
use crate::bound::layout::Layout;
use crate::bound::rate;
use crate::bound::transfer::{Target as BoundTarget, Transfer, WorkingSet};

/// Bytes per message of the bound, for all sizes.
pub const BOUND_MESSAGE_LEN: usize = 65_536;

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
    let transfers = plan.tables.iter().map(|&(_, mtu)| {
        let layout = Layout::new(mtu, BOUND_MESSAGE_LEN);
        let [frozen, _] = Transfer::frozen_and_best(&layout, BoundTarget { stag: 1, to: 0 });
        frozen
    });
    let transfers: Vec<_> = transfers.collect();
    let bound_duration = Duration::from_secs_f64(plan.bound_seconds);
    for round in 0..plan.rounds {
        for (table, transfer) in tables.iter_mut().zip(&transfers) {
            let (topology, mtu) = (&table.topology, table.mtu);
            eprintln!("round {} of {}: {}, MTU {mtu}", round + 1, plan.rounds, topology.title());
            for (test, cells) in &mut table.rows {
                for (cell, &size) in cells.iter_mut().zip(&plan.sizes) {
                    let bound = if test.ends_with("-bw") {
                        let set = WorkingSet::SINGLE;
                        let cores = topology.cores();
                        Some(rate::measure(transfer, set, mtu, &cores, bound_duration)?)
                    } else {
                        None
                    };
                    match iwperf.run(test, topology, mtu, size, plan.seconds, &[]) {
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
            match iwperf.run(test, topology, *mtu, *size, seconds, &[]) {
                Ok(sample) => cell.samples.push(sample),
                Err(error) => failures.push(format!("{test}, {}: {error:#}", topology.title())),
            }
        }
    }
}
