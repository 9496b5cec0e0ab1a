//! Goodput by loss and round trip.

use anyhow::Result;

use super::network;
use super::plan::{LinkParams, Pairing, Plan};
use super::rounds::{ATTEMPTS_MAX, visit_order};
use super::sample::Sample;
use crate::median::median;

/// Results of a link and a pairing.
#[derive(Clone, Debug)]
pub struct GoodputResult {
    /// Link.
    pub link: LinkParams,
    /// Pairing.
    pub pairing: Pairing,
    /// One for each successful round.
    pub samples: Vec<Sample>,
    /// Number of runs repeated because they were invalid.
    pub repeated: usize,
}

impl GoodputResult {
    /// Returns the median goodput in Gb/s.
    #[must_use]
    pub fn median(&self) -> Option<f64> {
        median(self.samples.iter().map(|sample| sample.gbit_s).collect())
    }
}

/// Runs the plan, round by round, each in another order, so that a disturbance of the machine
/// affects one sample of several results and not all samples of one. Failures are appended to
/// `failures`, one line each.
///
/// # Errors
/// If namespaces cannot be created.
pub fn run(plan: &Plan, failures: &mut Vec<String>) -> Result<Vec<GoodputResult>> {
    let result =
        |&link: &LinkParams, pairing| GoodputResult { link, pairing, samples: vec![], repeated: 0 };
    let mut results: Vec<GoodputResult> = plan
        .links
        .iter()
        .flat_map(|link| Pairing::ONE_WAY.map(|pairing| result(link, pairing)))
        .collect();
    let count = results.len();
    for round in 0..plan.rounds {
        for step in 0..count {
            // Consecutive runs use different links, and each round starts with another one.
            let result = &mut results[visit_order(step, round, count)];
            let (link, pairing) = (result.link, result.pairing);
            let seed = plan.seed + round as u64;
            for attempt in 1..=ATTEMPTS_MAX {
                match network::measure(plan, link, pairing, seed) {
                    Ok(sample) if sample.is_invalid() && attempt < ATTEMPTS_MAX => {
                        result.repeated += 1
                    }
                    Ok(sample) => {
                        eprintln!(
                            "round {} of {}: {}, loss {} %, {} ms: {:.3} Gb/s",
                            round + 1,
                            plan.rounds,
                            pairing.title(),
                            link.loss_percent,
                            link.rtt_ms,
                            sample.gbit_s
                        );
                        result.samples.push(sample);
                        break;
                    }
                    Err(error) => {
                        failures.push(format!(
                            "{}, loss {} %, {} ms: {error:#}",
                            pairing.title(),
                            link.loss_percent,
                            link.rtt_ms
                        ));
                        break;
                    }
                }
            }
        }
    }
    Ok(results)
}
