//! The results as Markdown and as JSON.

use std::fmt::Write as _;
use std::ops::{Div, Sub};

use serde_json::{Value, json};

use super::interval::{COVERAGE_MIN, MedianInterval};
use super::measure::RowResult;
use super::rows::{Comparison, Contender, Kind, Row, Wanted};
use crate::baseline::report::{host_json, host_table};
use crate::baseline::runner::Sample;
use crate::median::median;

/// A comparison over all pairs of a row.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// What was compared.
    pub comparison: Comparison,
    /// Median of the subject's figure.
    pub subject: f64,
    /// Median of the reference's figure.
    pub reference: f64,
    /// Ratio or difference of each pair: its median and interval.
    pub interval: MedianInterval,
}

/// Whether a limit is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// By the whole interval.
    Yes,
    /// By no part of the interval.
    No,
    /// The limit is within the interval, or the pairs are too few for one of 95 %.
    Open,
}

impl Kept {
    const fn name(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::Open => "open",
        }
    }
}

impl Outcome {
    /// Returns whether the limit is kept; `None` without a limit.
    #[must_use]
    pub fn kept(&self) -> Option<Kept> {
        let MedianInterval { low, high, coverage, .. } = self.interval;
        let (is_kept, is_broken) = match self.comparison.wanted? {
            Wanted::AtLeast(limit) => (low >= limit, high < limit),
            Wanted::AtMost(limit) => (high <= limit, low > limit),
        };
        Some(match (is_kept, is_broken) {
            _ if coverage < COVERAGE_MIN => Kept::Open,
            (true, _) => Kept::Yes,
            (_, true) => Kept::No,
            _ => Kept::Open,
        })
    }
}

impl RowResult {
    /// Returns the comparisons of the row; none if no pair was measured.
    #[must_use]
    pub fn outcomes(&self) -> Vec<Outcome> {
        let Self { row, pairs, .. } = self;
        let outcome = |&comparison: &Comparison| {
            let values = |contender| figures(row, pairs, contender, &comparison);
            let (subject, reference) = (values(comparison.subject)?, values(comparison.reference)?);
            let of = |f: fn(f64, f64) -> f64, a: &[f64], b: &[f64]| -> Vec<f64> {
                a.iter().zip(b).map(|(&a, &b)| f(a, b)).collect()
            };
            let compared = match comparison.kind {
                Kind::Ratio => of(f64::div, &subject, &reference),
                Kind::Difference => of(f64::sub, &subject, &reference),
                Kind::Gain => {
                    let subject_gain =
                        of(f64::div, &subject, &values(comparison.subject.on_one()?)?);
                    let on_one = values(comparison.reference.on_one()?)?;
                    of(f64::div, &subject_gain, &of(f64::div, &reference, &on_one))
                }
            };
            Some(Outcome {
                comparison,
                interval: MedianInterval::of(compared)?,
                subject: median(subject)?,
                reference: median(reference)?,
            })
        };
        row.comparisons.iter().filter_map(outcome).collect()
    }
}

/// Returns a contender's figure in each pair.
fn figures(
    row: &Row,
    pairs: &[Vec<Sample>],
    contender: Contender,
    comparison: &Comparison,
) -> Option<Vec<f64>> {
    let index = row.contenders.iter().position(|&found| found == contender)?;
    Some(pairs.iter().map(|samples| comparison.figure.of(&samples[index])).collect())
}

/// Formats the results as a Markdown file.
#[must_use]
pub fn markdown(results: &[RowResult], seconds: f64) -> String {
    let mut text = format!(
        "# The bound\n\n\
         Written by `bench/bound`. The *frozen bound* is the work on the bytes alone, in two \
         passes at each end: copy, then CRC, at the Data Source; CRC, then copy, at the Data Sink. \
         Messages, segments, addresses, frames, their order and the cores are those of the run of \
         `iwperf` beside it: one slot of the message of each queue pair in hugepages at each \
         end, which take turns as the queue pairs do; mbufs of a `ring` \
         port, 16 at a time in flight on one core and a receive window of 256 KiB on two, where \
         they are handed off over a single-producer single-consumer ring and come back over \
         another. The CRC is, for each length, the faster of the crates crc-fast and crc32c. The \
         *best bound* may use one pass on transmit where it is faster. The *bare ping-pong* passes \
         the same bytes back and forth over DPDK's `ring`, the port of the run, with the passes of \
         the frozen bound; its latency is half a round trip. *Shards*: a bound, or a \
         shard of both ends, on each core; compared is what it gains over one on the first core \
         alone.\n\n\
         In each pair all are measured one after another for {seconds} s each, in reverse order in \
         every other pair. Of the ratios (or differences) of the pairs the median is given, and \
         its interval by order statistics: from the k-th lowest to the k-th highest, with the \
         coverage that the binomial distribution gives. A limit is kept (yes) or not (no) if the \
         whole interval says so; otherwise, or with a coverage below 95 %, the answer is open.\n\n\
         To repeat: `bench/bound`; part of it: `bench/bound --rows write-bw-64K`.\n\n"
    );
    text.push_str(&host_table());
    text.push('\n');
    text.push_str(&table(results));
    let kernels = results.iter().filter_map(|result| Some((result, result.kernels.as_ref()?)));
    let mut kernels = kernels.peekable();
    if kernels.peek().is_some() {
        text.push_str("\n| row | CRC of the frozen bound | passes of the best bound |\n");
        text.push_str("|---|---|---|\n");
    }
    for (result, [frozen, best]) in kernels {
        line(&mut text, &format!("| {} | {frozen} | {best} |", result.row.name));
    }
    text
}

/// Formats the table of comparisons.
#[must_use]
pub fn table(results: &[RowResult]) -> String {
    let mut text = "| row | subject | of | ratio or difference | interval (coverage) | wanted | \
                    kept | pairs |\n|---|---|---|---:|---|---|---|---:|\n"
        .to_owned();
    for result in results {
        let outcomes = result.outcomes();
        if outcomes.is_empty() {
            line(&mut text, &format!("| {} | failed | | | | | | 0 |", result.row.name));
        }
        for outcome in outcomes {
            let Outcome { comparison, subject, reference, interval, .. } = outcome;
            let MedianInterval { median, low, high, coverage } = interval;
            let unit = match comparison.kind {
                Kind::Ratio | Kind::Gain => "",
                Kind::Difference => " us",
            };
            let gains = if comparison.kind == Kind::Gain { "gain of " } else { "" };
            let wanted = comparison.wanted.map_or(String::new(), |wanted| match wanted {
                Wanted::AtLeast(limit) => format!("at least {limit:.2}{unit}"),
                Wanted::AtMost(limit) => format!("at most {limit:.2}{unit}"),
            });
            line(
                &mut text,
                &format!(
                    "| {} | {gains}{} {subject:.2} {} | {gains}{} {reference:.2} | \
                     {median:.3}{unit} | {low:.3} to {high:.3} ({:.1} %) | {wanted} | {} | {} |",
                    result.row.name,
                    comparison.subject.name(),
                    comparison.figure.unit(),
                    comparison.reference.name(),
                    100.0 * coverage,
                    outcome.kept().map_or("", Kept::name),
                    result.pairs.len()
                ),
            );
        }
    }
    text
}

fn line(text: &mut String, line: &str) {
    let _ = writeln!(text, "{line}");
}

/// Returns the results with all samples as JSON.
#[must_use]
pub fn json(results: &[RowResult], seconds: f64, failures: &[String]) -> Value {
    json!({
        "machine": host_json(),
        "seconds": seconds,
        "rows": results.iter().map(row_json).collect::<Vec<_>>(),
        "failures": failures,
    })
}

fn row_json(result: &RowResult) -> Value {
    let Row { name, topology, mtu, size, load, contenders, .. } = &result.row;
    let pair = |samples: &Vec<Sample>| {
        let of_contender =
            |(contender, sample): (&Contender, &Sample)| (contender.name(), sample.figures());
        Value::Object(contenders.iter().zip(samples).map(of_contender).collect())
    };
    json!({
        "row": name,
        "cores": topology.cores(),
        "mtu": mtu,
        "size_bytes": size,
        "qps": load.qps,
        "depth": load.depth,
        "shared_buffer": load.is_buffer_shared,
        "frozen_bound_crc": result.kernels.as_ref().map(|[frozen, _]| frozen),
        "best_bound_passes": result.kernels.as_ref().map(|[_, best]| best),
        "pairs": result.pairs.iter().map(pair).collect::<Vec<_>>(),
        "comparisons": result.outcomes().iter().map(outcome_json).collect::<Vec<_>>(),
    })
}

fn outcome_json(outcome: &Outcome) -> Value {
    let Outcome { comparison, subject, reference, interval } = outcome;
    let (limit, value) = match comparison.wanted {
        None => (None, None),
        Some(Wanted::AtLeast(value)) => (Some("at least"), Some(value)),
        Some(Wanted::AtMost(value)) => (Some("at most"), Some(value)),
    };
    json!({
        "subject": comparison.subject.name(),
        "reference": comparison.reference.name(),
        "unit": comparison.figure.unit(),
        "kind": match comparison.kind { Kind::Ratio => "ratio", Kind::Difference => "difference",
            Kind::Gain => "ratio of gains" },
        "subject_median": subject,
        "reference_median": reference,
        "median": interval.median,
        "interval": [interval.low, interval.high],
        "interval_method": "order statistics (binomial)",
        "coverage": interval.coverage,
        "wanted": limit,
        "limit": value,
        "kept": outcome.kept().map(Kept::name),
    })
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
