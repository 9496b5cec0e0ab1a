//! Runs the pairs.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::rows::{Contender, Figure, Row};
use crate::baseline::plan::Topology;
use crate::baseline::runner::{Iwperf, Sample};
use crate::bound::layout::Layout;
use crate::bound::transfer::{Target, Transfer};
use crate::bound::{ping_pong, rate};

/// What the measurements run with.
#[derive(Debug)]
pub struct Setup {
    /// The `iwperf` that is judged.
    pub iwperf: Iwperf,
    /// Another one to compare it with.
    pub before: Option<Iwperf>,
    /// Number of pairs.
    pub pairs: usize,
    /// Seconds of each measurement.
    pub seconds: f64,
}

/// Results of a row.
#[derive(Debug)]
pub struct RowResult {
    /// The row.
    pub row: Row,
    /// Names of the CRCs and fused passes of the frozen bound, and of the best one.
    pub kernels: Option<[String; 2]>,
    /// By pair, then by contender.
    pub pairs: Vec<Vec<Sample>>,
}

/// A row, and the transfers of its bounds.
struct Prepared {
    result: RowResult,
    frozen: Arc<Transfer>,
    best: Arc<Transfer>,
}

/// Measures all rows, pair by pair. A progress line for each goes to `progress`; a failure is
/// appended to `failures`, and its pair left out.
#[must_use]
pub fn run(
    rows: Vec<Row>,
    setup: &Setup,
    mut progress: impl FnMut(&str),
    failures: &mut Vec<String>,
) -> Vec<RowResult> {
    let mut prepared: Vec<Prepared> = rows.into_iter().map(prepare).collect();
    for pair in 0..setup.pairs {
        for row in &mut prepared {
            let name = &row.result.row.name;
            match measure_pair(row, setup, pair) {
                Ok(samples) => {
                    let figures = describe(&row.result.row, &samples);
                    progress(&format!("pair {} of {}, {name}: {figures}", pair + 1, setup.pairs));
                    row.result.pairs.push(samples);
                }
                Err(error) => failures.push(format!("{name}, pair {}: {error:#}", pair + 1)),
            }
        }
    }
    prepared.into_iter().map(|row| row.result).collect()
}

/// Chooses the CRCs once, so that all pairs of a row have the same bound.
fn prepare(row: Row) -> Prepared {
    let len = usize::try_from(row.size).expect("a message fits the memory");
    let is_ping_pong = row.contenders.contains(&Contender::PingPong);
    let layout = if is_ping_pong { Layout::alone(row.mtu, len) } else { Layout::new(row.mtu, len) };
    let [frozen, best] = Transfer::frozen_and_best(&layout, Target { stag: 1, to: 0 });
    let kernels = if row.contenders.contains(&Contender::Best) {
        Some([&frozen, &best].map(|transfer| transfer.kernel_names().to_owned()))
    } else {
        is_ping_pong.then(|| [frozen.kernel_names().to_owned(), "-".to_owned()])
    };
    Prepared { result: RowResult { row, kernels, pairs: Vec::new() }, frozen, best }
}

/// Measures the contenders of a row one after another, in reverse in every other pair.
fn measure_pair(prepared: &Prepared, setup: &Setup, pair: usize) -> Result<Vec<Sample>> {
    let contenders = &prepared.result.row.contenders;
    let mut samples = vec![Sample::default(); contenders.len()];
    let mut order: Vec<usize> = (0..contenders.len()).collect();
    if pair % 2 == 1 {
        order.reverse();
    }
    for index in order {
        let contender = contenders[index];
        samples[index] = measure(prepared, setup, contender).with_context(|| contender.name())?;
    }
    Ok(samples)
}

fn measure(prepared: &Prepared, setup: &Setup, contender: Contender) -> Result<Sample> {
    let Row { topology, mtu, size, load, .. } = &prepared.result.row;
    let duration = Duration::try_from_secs_f64(setup.seconds)?;
    let cores = topology.cores();
    let on_one = Topology::OneCore(*cores.first().context("a row has cores")?);
    let rate_of = |transfer, topology: &Topology| -> Result<Sample> {
        let cores = topology.cores();
        let gbit_s = if let Topology::Shards(_) = topology {
            rate::measure_each(transfer, load.working_set(cores.len()), *mtu, &cores, duration)?
        } else {
            rate::measure(transfer, load.working_set(1), *mtu, &cores, duration)?
        };
        Ok(Sample { gbit_s, rate_mops: gbit_s * 1e3 / 8.0 / *size as f64, ..Sample::default() })
    };
    let options = load.options();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let run = |iwperf: &Iwperf, test, topology: &Topology| {
        iwperf.run(test, topology, *mtu, *size, setup.seconds, &options)
    };
    match contender {
        Contender::Frozen => rate_of(&prepared.frozen, topology),
        Contender::FrozenOnOne => rate_of(&prepared.frozen, &on_one),
        Contender::Best => rate_of(&prepared.best, topology),
        Contender::PingPong => {
            let [first, second] = cores[..] else { bail!("it needs two cores") };
            let half = ping_pong::measure(&prepared.frozen, *mtu, [first, second], duration)?;
            Ok(Sample { p50_us: half.p50_us, p99_us: half.p99_us, ..Sample::default() })
        }
        Contender::Iwperf(test) => run(&setup.iwperf, test, topology),
        Contender::IwperfOnOne(test) => run(&setup.iwperf, test, &on_one),
        Contender::Before(test) => {
            let before = setup.before.as_ref().context("there is no other iwperf")?;
            run(before, test, topology)
        }
    }
}

/// Returns the figures of a pair for the progress line.
fn describe(row: &Row, samples: &[Sample]) -> String {
    let figure = row.comparisons.first().map_or(Figure::Bandwidth, |first| first.figure);
    let figures = row
        .contenders
        .iter()
        .zip(samples)
        .map(|(contender, sample)| format!("{} {:.2}", contender.name(), figure.of(sample)));
    format!("{} ({})", figures.collect::<Vec<_>>().join(", "), figure.unit())
}
