//! Completion time of requests and responses, beside the kernel's.

use std::fmt::Write as _;

use anyhow::Result;
use serde_json::{Value, json};

use super::network;
use super::plan::{LinkParams, Pairing, Plan};
use super::rounds::{ATTEMPTS_MAX, visit_order};
use super::sample::ExchangeSample;

/// Results of a link and a pairing.
#[derive(Clone, Debug)]
pub struct ExchangeResult {
    /// Link.
    pub link: LinkParams,
    /// Pairing.
    pub pairing: Pairing,
    /// One for each successful round.
    pub samples: Vec<ExchangeSample>,
}

impl ExchangeResult {
    /// Returns a percentile of the completion times of all exchanges, in microseconds.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Option<f64> {
        let mut all: Vec<f64> = self.samples.iter().flat_map(|run| run.us.clone()).collect();
        all.sort_by(f64::total_cmp);
        // Nearest rank: the smallest time that at least this share of all does not exceed.
        let is_within = |count: usize| count as f64 >= percent / 100.0 * all.len() as f64;
        (1..=all.len()).find(|&count| is_within(count)).map(|count| all[count - 1])
    }

    /// Returns the result as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let samples: Vec<Value> = self
            .samples
            .iter()
            .map(|run| {
                json!({
                    "us": run.us,
                    "late_share": run.late_fraction,
                    "latest_ms": run.latest_ms,
                    "wire_dropped": run.dropped,
                })
            })
            .collect();
        json!({
            "pairing": self.pairing.title(),
            "loss_percent": self.link.loss_percent,
            "rtt_ms": self.link.rtt_ms,
            "p50_us": self.percentile(50.0),
            "p99_us": self.percentile(99.0),
            "samples": samples,
        })
    }
}

/// Runs the exchanges of a plan, round by round, with the pairings of a link consecutively, so that
/// other load of the machine affects all of them. Failures are appended to `failures`, one line
/// each.
///
/// # Errors
/// If namespaces cannot be created.
pub fn run(plan: &Plan, failures: &mut Vec<String>) -> Result<Vec<ExchangeResult>> {
    if plan.exchanges == 0 {
        return Ok(vec![]);
    }
    let result = |&link: &LinkParams, pairing| ExchangeResult { link, pairing, samples: vec![] };
    let mut results: Vec<ExchangeResult> = plan
        .exchange_links
        .iter()
        .flat_map(|link| Pairing::BOTH_WAYS.map(|pairing| result(link, pairing)))
        .collect();
    let pairings = Pairing::BOTH_WAYS.len();
    for round in 0..plan.rounds {
        for (index, group) in results.chunks_mut(pairings).enumerate() {
            for step in 0..pairings {
                let result = &mut group[visit_order(step, round + index, pairings)];
                let seed = plan.seed + round as u64;
                let label = format!(
                    "{}, loss {} %, {} ms",
                    result.pairing.title(),
                    result.link.loss_percent,
                    result.link.rtt_ms
                );
                let mut sample = network::exchanges(plan, result.link, result.pairing, seed);
                for _ in 1..ATTEMPTS_MAX {
                    // A run in which the emulator dropped frames is invalid.
                    if !sample.as_ref().is_ok_and(|run| run.dropped > 0) {
                        break;
                    }
                    sample = network::exchanges(plan, result.link, result.pairing, seed);
                }
                match sample {
                    Ok(run) => {
                        result.samples.push(run);
                        let p99 = result.percentile(99.0).unwrap_or_default();
                        eprintln!(
                            "round {} of {}: {label}: p99 {p99:.0} us",
                            round + 1,
                            plan.rounds
                        );
                    }
                    Err(error) => failures.push(format!("exchanges {label}: {error:#}")),
                }
            }
        }
    }
    Ok(results)
}

/// Formats a table for each RTT: median and 99th percentile, in milliseconds.
#[must_use]
pub fn tables(plan: &Plan, results: &[ExchangeResult]) -> String {
    let mut text = String::new();
    let mut rtts: Vec<f64> = plan.exchange_links.iter().map(|link| link.rtt_ms).collect();
    rtts.dedup();
    for rtt_ms in rtts {
        let _ = writeln!(text, "### Round trip {rtt_ms} ms\n");
        let titles = Pairing::BOTH_WAYS.map(Pairing::title).join(" | ");
        let _ = writeln!(text, "| loss each way | {titles} |\n|---:|---:|---:|---:|");
        for link in plan.exchange_links.iter().filter(|link| link.rtt_ms == rtt_ms) {
            let _ = write!(text, "| {} % |", link.loss_percent);
            for pairing in Pairing::BOTH_WAYS {
                let found =
                    results.iter().find(|result| result.link == *link && result.pairing == pairing);
                let at = |percent| found.and_then(|result| result.percentile(percent));
                let _ = match (at(50.0), at(99.0)) {
                    (Some(p50), Some(p99)) => {
                        write!(text, " {:.2} / **{:.2}** |", p50 / 1000.0, p99 / 1000.0)
                    }
                    _ => write!(text, " failed |"),
                };
            }
            text.push('\n');
        }
        text.push('\n');
    }
    text
}

/// Formats the method, and the lateness of the emulator.
#[must_use]
pub fn method(plan: &Plan, results: &[ExchangeResult]) -> String {
    let runs = || results.iter().flat_map(|result| &result.samples);
    let late = runs().map(|run| run.late_fraction).fold(0.0, f64::max);
    let latest = runs().map(|run| run.latest_ms).fold(0.0, f64::max);
    format!(
        "A request of 65,504 bytes, a response of as many, and the next request at once: median / \
         **99th percentile** of the time from a request to the end of its response, in \
         milliseconds, over {} exchanges of each of {} connections. Both ends of an exchange send, \
         so that ours to ours stands beside kernel to kernel. Ends and link as above; the pairings \
         of a link alternate within each round. At most {:.2} % of a run's frames left the \
         emulator more than 0.5 ms late, the latest {latest:.1} ms.\n\n",
        plan.exchanges,
        plan.rounds,
        late * 100.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(pairing: Pairing, us: impl Iterator<Item = f64>) -> ExchangeResult {
        let link = LinkParams { loss_percent: 1.0, rtt_ms: 1.0 };
        let run =
            ExchangeSample { us: us.collect(), late_fraction: 0.01, latest_ms: 2.5, dropped: 0 };
        ExchangeResult { link, pairing, samples: vec![run] }
    }

    #[test]
    fn percentile_covers_all_rounds() {
        let mut result = result(Pairing::OursToOurs, (1..=50).map(f64::from));
        result.samples.push(ExchangeSample {
            us: (51..=100).rev().map(f64::from).collect(),
            ..result.samples[0].clone()
        });
        assert_eq!(result.percentile(50.0), Some(50.0));
        assert_eq!(result.percentile(99.0), Some(99.0));
        assert_eq!(result.percentile(100.0), Some(100.0));
        result.samples.clear();
        assert_eq!(result.percentile(99.0), None);
    }

    #[test]
    fn table_shows_p50_and_p99() {
        let results = [
            result(Pairing::KernelToKernel, (1..=100).map(|n| f64::from(n) * 100.0)),
            result(Pairing::OursToOurs, (1..=100).map(|n| f64::from(n) * 10.0)),
        ];
        let plan = Plan {
            exchange_links: vec![results[0].link],
            ..crate::tcp_vs_kernel::plan::tests::plan()
        };
        let text = tables(&plan, &results);
        let expected = "| 1 % | 5.00 / **9.90** | 0.50 / **0.99** | failed |";
        assert!(text.contains(expected), "{text}");
        assert!(method(&plan, &results).contains("1.00 % of a run's frames"));
    }
}
