//! Goodput by loss and round trip.

use anyhow::Result;

use super::network;
use super::plan::{LinkParams, Pairing, Plan};
use super::rounds::{ATTEMPTS_MAX, visit_order};
use super::sample::Sample;
use crate::median::median;

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
