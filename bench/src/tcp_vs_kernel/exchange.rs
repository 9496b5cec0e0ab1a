//! Requests and responses: how long an exchange of two messages takes, beside the kernel's.

use std::fmt::Write as _;

use anyhow::Result;
use serde_json::{Value, json};

use super::network;
use super::plan::{LinkParams, Pairing, Plan};
use super::rounds::{ATTEMPTS_MAX, visit_order};
use super::sample::ExchangeSample;

/// What a wire and a pairing gave, round by round.
#[derive(Clone, Debug)]
pub struct ExchangeResult {
    /// The wire.
    pub link: LinkParams,
    /// Who sent to whom.
    pub pairing: Pairing,
    /// One for each round that went well.
    pub samples: Vec<ExchangeSample>,
}

impl ExchangeResult {
    /// The completion time, in microseconds, that so many percent of all exchanges did not exceed.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Option<f64> {
        let mut all: Vec<f64> = self.samples.iter().flat_map(|run| run.us.clone()).collect();
        all.sort_by(f64::total_cmp);
        // The smallest time that no smaller share of all stays within.
        let is_within = |count: usize| count as f64 >= percent / 100.0 * all.len() as f64;
        (1..=all.len()).find(|&count| is_within(count)).map(|count| all[count - 1])
    }

    /// For programs.
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

/// Runs the exchanges of a plan, round by round, the pairings of a wire one right after the other:
/// what else the machine does meets all of them. Failures go to `failures`, one line each.
///
/// # Errors
/// If namespaces cannot be made.
pub fn run(plan: &Plan, failures: &mut Vec<String>) -> Result<Vec<ExchangeResult>> {
    if plan.exchanges == 0 {
        return Ok(vec![]);
    }
    let figure =
        |&cell: &LinkParams, pairing| ExchangeResult { link: cell, pairing, samples: vec![] };
    let mut figures: Vec<ExchangeResult> = plan
        .exchange_links
        .iter()
        .flat_map(|cell| Pairing::BOTH_WAYS.map(|pairing| figure(cell, pairing)))
        .collect();
    let pairings = Pairing::BOTH_WAYS.len();
    for round in 0..plan.rounds {
        for (wire, group) in figures.chunks_mut(pairings).enumerate() {
            for step in 0..pairings {
                let figure = &mut group[visit_order(step, round + wire, pairings)];
                let seed = plan.seed + round as u64;
                let label = format!(
                    "{}, loss {} %, {} ms",
                    figure.pairing.title(),
                    figure.link.loss_percent,
                    figure.link.rtt_ms
                );
                let mut result = network::exchanges(plan, figure.link, figure.pairing, seed);
                for _ in 1..ATTEMPTS_MAX {
                    // A wire that dropped what it was to carry measured something else.
                    if !result.as_ref().is_ok_and(|run| run.dropped > 0) {
                        break;
                    }
                    result = network::exchanges(plan, figure.link, figure.pairing, seed);
                }
                match result {
                    Ok(run) => {
                        figure.samples.push(run);
                        let p99 = figure.percentile(99.0).unwrap_or_default();
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
    Ok(figures)
}

/// A table for each round trip: median and 99th percentile, in milliseconds.
#[must_use]
pub fn tables(plan: &Plan, figures: &[ExchangeResult]) -> String {
    let mut text = String::new();
    let mut rtts: Vec<f64> = plan.exchange_links.iter().map(|cell| cell.rtt_ms).collect();
    rtts.dedup();
    for rtt_ms in rtts {
        let _ = writeln!(text, "### Round trip {rtt_ms} ms\n");
        let titles = Pairing::BOTH_WAYS.map(Pairing::title).join(" | ");
        let _ = writeln!(text, "| loss each way | {titles} |\n|---:|---:|---:|---:|");
        for cell in plan.exchange_links.iter().filter(|cell| cell.rtt_ms == rtt_ms) {
            let _ = write!(text, "| {} % |", cell.loss_percent);
            for pairing in Pairing::BOTH_WAYS {
                let found =
                    figures.iter().find(|figure| figure.link == *cell && figure.pairing == pairing);
                let at = |percent| found.and_then(|figure| figure.percentile(percent));
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

/// How it was measured, and how the wire behaved.
#[must_use]
pub fn method(plan: &Plan, figures: &[ExchangeResult]) -> String {
    let runs = || figures.iter().flat_map(|figure| &figure.samples);
    let late = runs().map(|run| run.late_fraction).fold(0.0, f64::max);
    let latest = runs().map(|run| run.latest_ms).fold(0.0, f64::max);
    format!(
        "A request of 65,504 bytes, a response of as many, and the next request at once: median / \
         **99th percentile** of the time from a request to the end of its response, in \
         milliseconds, over {} exchanges of each of {} connections. Both ends of an exchange send, \
         so that ours to ours stands beside kernel to kernel. Ends and wire as above; the pairings \
         of a wire take turns within each round. At most {:.2} % of a run's frames left the wire \
         more than 0.5 ms late, the latest {latest:.1} ms.\n\n",
        plan.exchanges,
        plan.rounds,
        late * 100.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(pairing: Pairing, us: impl Iterator<Item = f64>) -> ExchangeResult {
        let cell = LinkParams { loss_percent: 1.0, rtt_ms: 1.0 };
        let run =
            ExchangeSample { us: us.collect(), late_fraction: 0.01, latest_ms: 2.5, dropped: 0 };
        ExchangeResult { link: cell, pairing, samples: vec![run] }
    }

    #[test]
    fn percentile_covers_all_rounds() {
        let mut figure = figure(Pairing::OursToOurs, (1..=50).map(f64::from));
        figure.samples.push(ExchangeSample {
            us: (51..=100).rev().map(f64::from).collect(),
            ..figure.samples[0].clone()
        });
        assert_eq!(figure.percentile(50.0), Some(50.0));
        assert_eq!(figure.percentile(99.0), Some(99.0));
        assert_eq!(figure.percentile(100.0), Some(100.0));
        figure.samples.clear();
        assert_eq!(figure.percentile(99.0), None);
    }

    #[test]
    fn table_shows_p50_and_p99() {
        let figures = [
            figure(Pairing::KernelToKernel, (1..=100).map(|n| f64::from(n) * 100.0)),
            figure(Pairing::OursToOurs, (1..=100).map(|n| f64::from(n) * 10.0)),
        ];
        let plan = Plan {
            exchange_links: vec![figures[0].link],
            ..crate::tcp_vs_kernel::plan::tests::plan()
        };
        let text = tables(&plan, &figures);
        let expected = "| 1 % | 5.00 / **9.90** | 0.50 / **0.99** | failed |";
        assert!(text.contains(expected), "{text}");
        assert!(method(&plan, &figures).contains("1.00 % of a run's frames"));
    }
}
