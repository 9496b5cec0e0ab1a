//! Our TCP beside the kernel's over the same bad wire: goodput by loss and round trip, how long
//! requests and their responses take, and connections set up per second.
//!
//! [`network`] makes namespaces with `iwlink` between them and runs a sender and a receiver
//! (`tcp-end`) there; [`report`] and [`plot`] show what came of it.

pub mod exchange;
pub mod network;
pub mod plot;
pub mod report;

use std::path::PathBuf;

use anyhow::Result;
use serde_json::Value;

use crate::baseline::median;

/// Whose TCP sends, and whose receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// The kernel to the kernel.
    KernelToKernel,
    /// Ours to the kernel.
    OursToKernel,
    /// The kernel to ours.
    KernelToOurs,
    /// Ours to ours.
    OursToOurs,
}

impl Pairing {
    /// Those where one end sends and the other takes.
    pub const ONE_WAY: [Self; 3] = [Self::KernelToKernel, Self::OursToKernel, Self::KernelToOurs];
    /// Those where both send: ours beside the kernel's.
    pub const BOTH_WAYS: [Self; 3] = [Self::KernelToKernel, Self::OursToOurs, Self::OursToKernel];

    /// For headings.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::KernelToKernel => "kernel to kernel",
            Self::OursToKernel => "ours to kernel",
            Self::KernelToOurs => "kernel to ours",
            Self::OursToOurs => "ours to ours",
        }
    }

    /// Whether ours is the sender, and whether it is the receiver.
    const fn ours(self) -> [bool; 2] {
        match self {
            Self::KernelToKernel => [false, false],
            Self::OursToKernel => [true, false],
            Self::KernelToOurs => [false, true],
            Self::OursToOurs => [true, true],
        }
    }
}

/// A wire.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkParams {
    /// Frames lost, each way, in percent.
    pub loss_percent: f64,
    /// Round trip, in milliseconds.
    pub rtt_ms: f64,
}

/// What to measure, and with what.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The wires.
    pub links: Vec<LinkParams>,
    /// How often each is measured with each pairing.
    pub rounds: usize,
    /// Seconds of each connection before anything is measured, at least.
    pub warm_up_s: f64,
    /// Round trips of each connection before anything is measured, at least: congestion control
    /// that left slow start early takes hundreds of them to find the rate of a long wire.
    pub warm_up_rounds: f64,
    /// Seconds that are measured.
    pub seconds: f64,
    /// Rate of the wire, as `iwlink` takes it.
    pub rate: String,
    /// Bytes that may wait in front of it, as `iwlink` takes them.
    pub queue: String,
    /// Decides the faults; those of round n come from the n-th seed after it.
    pub seed: u64,
    /// The wires of exchanges, and how many exchanges each run measures; none: not measured.
    pub exchange_links: Vec<LinkParams>,
    /// See `exchange_links`.
    pub exchanges: usize,
    /// Connections set up to learn their rate; none: not measured.
    pub connections: usize,
    /// The program that is an end.
    pub tcp_end: PathBuf,
    /// The wire.
    pub iwlink: PathBuf,
}

impl Plan {
    /// Seconds of a connection over this wire before anything is measured.
    #[must_use]
    pub fn warm_up_s(&self, cell: LinkParams) -> f64 {
        self.warm_up_s.max(self.warm_up_rounds * cell.rtt_ms / 1000.0)
    }
}

/// What one run says.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Bytes of messages that arrived, in Gb/s.
    pub gbit_s: f64,
    /// Frames that the wire should have passed on and dropped.
    pub dropped: u64,
    /// The share of frames that left it late.
    pub late_fraction: f64,
    /// The latest, in milliseconds.
    pub latest_ms: f64,
    /// What the wire counted, as `iwlink --json` says it.
    pub wire: Value,
}

/// Frames that the wire may drop by itself, or deliver late, before a run is spoiled: as a share.
const LATE_FRACTION_MAX: f64 = 0.02;

impl Sample {
    /// The wire was not what it was meant to be.
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        self.dropped > 0 || self.late_fraction > LATE_FRACTION_MAX
    }
}

/// What a wire and a pairing gave, round by round.
#[derive(Clone, Debug)]
pub struct GoodputResult {
    /// The wire.
    pub link: LinkParams,
    /// Who sent to whom.
    pub pairing: Pairing,
    /// One for each round that went well.
    pub samples: Vec<Sample>,
    /// Runs that were done again because the wire was not what it was meant to be.
    pub repeated: usize,
}

impl GoodputResult {
    /// The median goodput in Gb/s.
    #[must_use]
    pub fn median(&self) -> Option<f64> {
        median(self.samples.iter().map(|sample| sample.gbit_s).collect())
    }
}

/// How often a spoiled run is done again.
const ATTEMPTS_MAX: usize = 3;

/// Runs the plan, round by round; in each the order is another, so that a bad moment of the
/// machine spoils one sample of several figures and not all of one. Failures go to `failures`,
/// one line each.
///
/// # Errors
/// If namespaces cannot be made.
pub fn run(plan: &Plan, failures: &mut Vec<String>) -> Result<Vec<GoodputResult>> {
    let figure = |&cell: &LinkParams, pairing| GoodputResult {
        link: cell,
        pairing,
        samples: vec![],
        repeated: 0,
    };
    let mut figures: Vec<GoodputResult> = plan
        .links
        .iter()
        .flat_map(|cell| Pairing::ONE_WAY.map(|pairing| figure(cell, pairing)))
        .collect();
    let count = figures.len();
    for round in 0..plan.rounds {
        for step in 0..count {
            // Neighbours differ in the wire, and each round starts elsewhere.
            let figure = &mut figures[visit_order(step, round, count)];
            let (cell, pairing) = (figure.link, figure.pairing);
            let seed = plan.seed + round as u64;
            for attempt in 1..=ATTEMPTS_MAX {
                match network::measure(plan, cell, pairing, seed) {
                    Ok(sample) if sample.is_invalid() && attempt < ATTEMPTS_MAX => {
                        figure.repeated += 1
                    }
                    Ok(sample) => {
                        eprintln!(
                            "round {} of {}: {}, loss {} %, {} ms: {:.3} Gb/s",
                            round + 1,
                            plan.rounds,
                            pairing.title(),
                            cell.loss_percent,
                            cell.rtt_ms,
                            sample.gbit_s
                        );
                        figure.samples.push(sample);
                        break;
                    }
                    Err(error) => {
                        failures.push(format!(
                            "{}, loss {} %, {} ms: {error:#}",
                            pairing.title(),
                            cell.loss_percent,
                            cell.rtt_ms
                        ));
                        break;
                    }
                }
            }
        }
    }
    Ok(figures)
}

/// The `step`-th of `count` in a round: a walk that comes to each once.
fn visit_order(step: usize, round: usize, count: usize) -> usize {
    // A stride that has no divisor in common with the count reaches all of them.
    let gcd = |mut a: usize, mut b: usize| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let stride = (7..).find(|stride| gcd(*stride, count) == 1).unwrap_or(1);
    (step * stride + round * 5) % count
}

/// Connections set up per second: what, how many at a time, and the rate of each round.
#[derive(Clone, Debug)]
pub struct ConnectRates {
    /// Between what, as `tcp-end connections` takes it.
    pub between: &'static str,
    /// At a time.
    pub batch: usize,
    /// Per second.
    pub rates: Vec<f64>,
}

/// Measures how fast connections are set up, round by round.
///
/// # Errors
/// If a namespace cannot be made.
pub fn measure_connect_rates(plan: &Plan, failures: &mut Vec<String>) -> Result<Vec<ConnectRates>> {
    let mut all: Vec<ConnectRates> = ["kernel", "ring", "ours-to-kernel", "kernel-to-ours"]
        .into_iter()
        .flat_map(|between| [1, 64].map(|batch| ConnectRates { between, batch, rates: vec![] }))
        .collect();
    if plan.connections == 0 {
        return Ok(vec![]);
    }
    for _ in 0..plan.rounds {
        for row in &mut all {
            match network::connections(plan, row.between, row.batch) {
                Ok(rate) => row.rates.push(rate),
                Err(error) => failures.push(format!(
                    "connections {}, {} at a time: {error:#}",
                    row.between, row.batch
                )),
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn plan() -> Plan {
        let cell = |loss_percent, rtt_ms| LinkParams { loss_percent, rtt_ms };
        Plan {
            links: vec![cell(0.0, 1.0), cell(1.0, 1.0), cell(0.0, 20.0)],
            rounds: 3,
            warm_up_s: 1.0,
            warm_up_rounds: 100.0,
            seconds: 2.0,
            rate: "1gbit".to_owned(),
            queue: "256K".to_owned(),
            seed: 1,
            exchange_links: vec![cell(0.1, 1.0)],
            exchanges: 100,
            connections: 10,
            tcp_end: PathBuf::new(),
            iwlink: PathBuf::new(),
        }
    }

    #[test]
    fn visit_order_is_a_permutation_per_round() {
        for count in [1, 2, 3, 7, 14, 30] {
            let walk =
                |round| (0..count).map(|step| visit_order(step, round, count)).collect::<Vec<_>>();
            for round in 0..5 {
                let mut sorted = walk(round);
                sorted.sort_unstable();
                assert!(sorted.into_iter().eq(0..count), "{count}");
            }
            assert!(count < 3 || walk(0) != walk(1));
        }
    }

    #[test]
    fn late_or_dropped_frames_invalidate_a_sample() {
        let good = Sample {
            gbit_s: 1.0,
            dropped: 0,
            late_fraction: 0.01,
            latest_ms: 0.3,
            wire: Value::Null,
        };
        assert!(!good.is_invalid());
        assert!(Sample { dropped: 1, ..good.clone() }.is_invalid());
        assert!(Sample { late_fraction: 0.03, ..good }.is_invalid());
    }
}
