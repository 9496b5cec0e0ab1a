//! Connections set up per second.

use anyhow::Result;

use super::network;
use super::plan::Plan;

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
