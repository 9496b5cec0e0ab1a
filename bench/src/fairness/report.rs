//! The results as Markdown and as JSON.

use std::fmt::Write as _;

use anyhow::Result;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::cases::QUANTUM_SEGMENTS;
use super::load::PORT_QUEUE_LEN;
use super::measure::{QUANTILE, Round, Setup};
use crate::baseline::report::{host_json, host_table};
use crate::paired::interval::{COVERAGE_MIN, MedianInterval};

/// The rounds of a setup.
#[derive(Debug)]
pub struct Row {
    /// What was measured.
    pub setup: Setup,
    /// Its rounds.
    pub rounds: Vec<Round>,
}

/// Percentiles that are reported.
const QUANTILES: [f64; 3] = [0.5, 0.99, 0.999];

impl Row {
    /// Returns p99 beside the traffic as a share of the bound, with its interval over the rounds.
    #[must_use]
    pub fn share(&self) -> Option<MedianInterval> {
        self.share_of(Round::bound_ns)
    }

    /// Returns the same of the bound with full queues of the port.
    #[must_use]
    pub fn queue_share(&self) -> Option<MedianInterval> {
        self.share_of(Round::queue_bound_ns)
    }

    fn share_of(&self, bound: impl Fn(&Round) -> f64) -> Option<MedianInterval> {
        let share = |round: &Round| round.beside.value_at_quantile(QUANTILE) as f64 / bound(round);
        MedianInterval::of(self.rounds.iter().map(share).collect())
    }

    /// Returns the median share of the bound with plain p99 of the latency alone.
    fn plain_share(&self) -> Option<f64> {
        self.share_of(Round::plain_bound_ns).map(|share| share.median)
    }

    /// Returns the highest number of segments before a Write, and the number that the rule allows.
    #[must_use]
    pub fn segments(&self) -> Option<(u64, u64)> {
        let max = self.rounds.iter().map(|round| round.segments_max).max()?;
        Some((max, self.rounds.first()?.segments_allowed))
    }

    fn median(&self, figure: impl Fn(&Round) -> f64) -> f64 {
        let interval = MedianInterval::of(self.rounds.iter().map(figure).collect());
        interval.map_or(f64::NAN, |interval| interval.median)
    }
}

/// Returns whether the bound is kept: by the whole interval, by no part of it, or undecided.
const fn kept(share: &MedianInterval) -> &'static str {
    if share.coverage < COVERAGE_MIN || (share.low <= 1.0 && share.high > 1.0) {
        "open"
    } else if share.high <= 1.0 {
        "yes"
    } else {
        "no"
    }
}

/// Formats method, machine and results.
///
/// # Errors
/// If histograms cannot be added.
pub fn markdown(rows: &[Row], seconds: f64) -> Result<String> {
    let mut text = format!(
        "# Latency beside other traffic\n\n\
         Written by `bench/fairness`. RDMA Writes of 64 bytes over `ring`, one at a time on a \
         queue pair of its own, while other queue pairs always have Writes outstanding. Latency is \
         the time from posting to the moment when the sink sees the last bytes in its memory. \
         Between Writes there are pauses of random length, so that they are posted at any time of \
         a round. All Writes of one case go to the same memory of the sink.\n\n\
         *Fairness rule*: the connections that have something to send take turns, \
         {QUANTUM_SEGMENTS} segments each, and one that gets something to send comes last. A Write \
         therefore waits for one quantum of each competing connection at most: a **round**. Before \
         it are also the frames that were handed to the port already, of which as many are allowed \
         as a round has, but not more than the port holds ({PORT_QUEUE_LEN}).\n\n\
         *In segments*: for each Write those of the others are counted that were handed to the \
         port from its posting to the end of the pass in which its own was; a pass ends when the \
         port is full. The rule is kept if no Write of any round had more before it than allowed: \
         time is not in it.\n\n\
         *In time*: the **bound** is what the segments allowed take. The time from segment to \
         segment is measured with the traffic alone: elapsed time by segments sent, all work of \
         both ends included. A quantum has fewer segments if a \
         queue pair has less outstanding.\n\n\
         The latency without other traffic is added, but not its p99: the longer a Write waits, \
         the more often something else interrupts it, such as the host of a virtual machine. Of a \
         hundred Writes that take the time w one is interrupted, as of 100 * w / p50 that take p50 \
         alone; so the percentile of one in 100 * w / p50 is added, where w is the wait and p50 \
         (the highest latency, if there were fewer Writes). It is given, and the share of a bound \
         with plain p99 as well. The share with full port queues is that of a bound which allows \
         for {PORT_QUEUE_LEN} frames in any case: where the sink is the slower end, frames of many \
         rounds may wait there.\n\n\
         *One core*: a thread polls the sender and the sink in turn; in an incast each sender, and \
         the sink after each. *Two cores*: one thread polls all senders, the other the sink. In an \
         incast each sender has a context, an address and a port of its own; the ports share one \
         end of a `ring`, as hosts at a switch share the link to the sink. Frames wait where the \
         ring is full; none is lost.\n\n\
         Each round takes {seconds} s: a fifth without other traffic, a fifth for the time of a \
         segment, the rest beside the traffic. Percentiles are of all rounds, in us. The share of \
         the bound is p99 of each round by the bound of the same round: median, and interval by \
         order statistics (95 % from 6 rounds on). The bound is kept (yes) or not (no) if the \
         whole interval says so.\n\n\
         To repeat: `bench/fairness`; in less than a minute: `bench/fairness --quick`.\n\n"
    );
    text.push_str(&host_table());
    text.push('\n');
    text.push_str(&segment_table(rows)?);
    text.push('\n');
    text.push_str(&table(rows)?);
    text.push_str("\n| case | traffic |\n|---|---|\n");
    let mut cases: Vec<_> = rows.iter().map(|row| &row.setup.case).collect();
    cases.dedup();
    for case in cases {
        let _ =
            writeln!(text, "| {} | {}, {} outstanding each |", case.name, case.title, case.depth);
    }
    Ok(text)
}

/// Formats the table of segments before Writes.
///
/// # Errors
/// If histograms cannot be added.
pub fn segment_table(rows: &[Row]) -> Result<String> {
    let mut text = "| case | MTU | cores | competing | quantum, segments | segments before: p50, \
                    p99, max | allowed | kept | Writes |\n\
                    |---|---:|---|---:|---:|---|---:|---|---:|\n"
        .to_owned();
    for row in rows {
        text.push_str(&setup_cells(&row.setup));
        let Some((max, allowed)) = row.segments() else {
            text.push_str(" failed | | | 0 |\n");
            continue;
        };
        let before = sum(row, |round| &round.segments_before)?;
        let [p50, p99] = [0.5, 0.99].map(|it| before.value_at_quantile(it).min(max));
        let kept = if max <= allowed { "yes" } else { "no" };
        let count = before.len();
        let _ = writeln!(text, " {p50}, {p99}, {max} | {allowed} | {kept} | {count} |");
    }
    Ok(text)
}

fn setup_cells(setup: &Setup) -> String {
    let Setup { case, mtu, cores } = setup;
    let place = if cores.len() == 1 { "one" } else { "two" };
    format!("| {} | {mtu} | {place} | {} | {} |", case.name, case.qps, case.quantum(*mtu))
}

/// Formats the table of results in time.
///
/// # Errors
/// If histograms cannot be added.
pub fn table(rows: &[Row]) -> Result<String> {
    let mut text =
        "| case | MTU | cores | competing | quantum, segments | ns per segment | bound, \
                    us | in it alone | alone: p50, p99, p99.9 | beside: p50, p99, p99.9 | p99 of \
                    the bound | kept | with plain p99 | with full port queues | kept | Writes |\n\
                    |---|---:|---|---:|---:|---:|---:|---:|---|---|---|---|---:|---|---|---:|\n"
            .to_owned();
    for row in rows {
        text.push_str(&setup_cells(&row.setup));
        let (Some(share), Some(plain), Some(queue_share)) =
            (row.share(), row.plain_share(), row.queue_share())
        else {
            text.push_str(" failed | | | | | | | | | | 0 |\n");
            continue;
        };
        let (alone, beside) = (sum(row, |round| &round.alone)?, sum(row, |round| &round.beside)?);
        let _ = writeln!(
            text,
            " {:.0} | {:.1} | {:.1} | {} | {} | {} | {} | {plain:.2} | {} | {} | {} |",
            row.median(|round| round.segment_ns),
            row.median(Round::bound_ns) / 1e3,
            row.median(|round| round.alone_ns) / 1e3,
            percentiles(&alone),
            percentiles(&beside),
            share.describe(2),
            kept(&share),
            queue_share.describe(2),
            kept(&queue_share),
            beside.len()
        );
    }
    Ok(text)
}

fn sum(row: &Row, of: impl Fn(&Round) -> &Histogram<u64>) -> Result<Histogram<u64>> {
    let mut sum = Histogram::new(3)?;
    for round in &row.rounds {
        sum.add(of(round))?;
    }
    Ok(sum)
}

fn percentiles(latencies: &Histogram<u64>) -> String {
    let us = QUANTILES.map(|it| format!("{:.2}", latencies.value_at_quantile(it) as f64 / 1e3));
    us.join(", ")
}

/// Returns all rounds as JSON.
#[must_use]
pub fn json(rows: &[Row], seconds: f64, failures: &[String]) -> Value {
    let latency = |latencies: &Histogram<u64>| {
        let us = QUANTILES.map(|it| latencies.value_at_quantile(it) as f64 / 1e3);
        json!({ "p50_us": us[0], "p99_us": us[1], "p999_us": us[2],
            "max_us": latencies.max() as f64 / 1e3, "count": latencies.len() })
    };
    let round = |round: &Round| {
        json!({ "alone": latency(&round.alone), "beside": latency(&round.beside),
            "segments_before_max": round.segments_max, "segments_allowed": round.segments_allowed,
            "segment_ns": round.segment_ns, "alone_in_bound_us": round.alone_ns / 1e3,
            "bound_us": round.bound_ns() / 1e3, "queue_bound_us": round.queue_bound_ns() / 1e3 })
    };
    let row = |row: &Row| {
        let Setup { case, mtu, cores } = &row.setup;
        let share = row.share().map(|it| {
            json!({ "median": it.median, "interval": [it.low, it.high], "coverage": it.coverage,
                "kept": kept(&it) })
        });
        json!({ "case": case.name, "traffic": case.title, "mtu": mtu, "cores": cores,
            "competing": case.qps, "quantum_segments": case.quantum(*mtu),
            "size_bytes": case.size, "depth": case.depth, "p99_of_bound": share,
            "rounds": row.rounds.iter().map(round).collect::<Vec<_>>() })
    };
    json!({ "machine": host_json(), "seconds": seconds,
        "rows": rows.iter().map(row).collect::<Vec<_>>(), "failures": failures })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fairness::cases;

    fn row(p99_us: u64) -> Row {
        let latencies = |us: u64| {
            let mut latencies = Histogram::new(3).unwrap();
            latencies.record_n(us * 1000, 100).unwrap();
            latencies
        };
        let round = Round {
            alone: latencies(1),
            beside: latencies(p99_us),
            segments_before: latencies(0),
            segments_max: p99_us * 10,
            segments_allowed: 32,
            segment_ns: 200.0,
            wait_ns: 3200.0,
            queue_wait_ns: 7000.0,
            alone_ns: 1000.0,
        };
        let case = cases::all().remove(0);
        let setup = Setup { case, mtu: 1500, cores: vec![0] };
        Row { setup, rounds: vec![round; 6] }
    }

    #[test]
    fn bound_is_kept_by_the_whole_interval() {
        let kept_by = |us| kept(&row(us).share().unwrap());
        assert_eq!((kept_by(4), kept_by(5)), ("yes", "no"));
        let mut few = row(4);
        few.rounds.truncate(1);
        assert_eq!(kept(&few.share().unwrap()), "open");
    }

    #[test]
    fn tables_have_percentiles_and_bound() {
        let mut failed = row(4);
        failed.rounds.clear();
        let text = table(&[row(2), failed]).unwrap();
        let first = "| stream | 1500 | one | 1 | 16 | 200 | 4.2 | 1.0 | 1.00, 1.00, 1.00 | 2.00, \
                     2.00, 2.00 | 0.48 (0.48 to 0.48) | yes | 0.48 | 0.25 (0.25 to 0.25) | yes | \
                     600 |";
        assert!(text.contains(first), "{text}");
        assert!(text.contains("| stream | 1500 | one | 1 | 16 | failed |"), "{text}");
    }

    #[test]
    fn rule_is_kept_if_no_write_had_more_segments_before_it() {
        for (us, expected) in
            [(3, "0, 0, 30 | 32 | yes | 600 |"), (4, "0, 0, 40 | 32 | no | 600 |")]
        {
            let text = segment_table(&[row(us)]).unwrap();
            let expected = format!("| stream | 1500 | one | 1 | 16 | {expected}");
            assert!(text.contains(&expected), "{text}");
        }
    }
}
