//! Connections set up per second.

use anyhow::Result;

use super::network;
use super::plan::Plan;

/// Rates of connection set-up.
#[derive(Clone, Debug)]
pub struct ConnectRates {
    /// Ends, in the syntax of `tcp-end connections`.
    pub between: &'static str,
    /// Connections set up concurrently.
    pub batch: usize,
    /// Connections per second, one value per round.
    pub rates: Vec<f64>,
}

/// Measures the rate of connection set-up, round by round.
///
/// # Errors
/// If a namespace cannot be created.
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
