//! The results as Markdown and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::measure::{Run, Setup};
use crate::baseline::report::{host_json, host_table};
use crate::paired::interval::MedianInterval;

/// The runs of a setup.
#[derive(Debug)]
pub struct Row {
    /// What was measured.
    pub setup: Setup,
    /// Its runs.
    pub runs: Vec<Run>,
}

const METHOD: &str = "# One end alone\n\n\
    Written by `bench/one-end`. RDMA Writes over `ring`, CRC on, 128 outstanding, one queue pair. \
    The clock is read between the polls of the two ends. Polls in which the port of an end moved \
    frames are *busy* and count for the end; the rest are idle, and an end that always has work \
    has none of them. The cost of a reading of the clock is subtracted.\n\n\
    The **source**'s time has: polling completions, posting the next Writes, the look-up of the \
    region, copy to the frame, CRC, headers, processing of ACKs, release of acknowledged frames, \
    and the transmit side of `ring`. The **sink**'s: the receive side of `ring`, TCP, CRC, \
    placement, ACKs, release of received frames. Neither has: a NIC's descriptors, doorbells and \
    checksums, and interrupts; `ring` passes pointers and needs no checksums. The message is one \
    slot of memory at each end, which stays in the cache.\n\n\
    *On one core* both ends share its caches: the sink finds frames and payload where the source \
    left them, and each evicts code and state of the other. *On two cores* each end has a core, \
    and frames move between the caches of the two; the slower end sets the rate. A NIC that writes \
    to the last-level cache is between the two. Gb/s of an end are those of an end that is busy \
    all the time.\n";

/// Formats method, machine and results.
#[must_use]
pub fn markdown(rows: &[Row], seconds: f64, clock_ns: f64) -> String {
    let mut text = METHOD.to_owned();
    let _ = write!(
        text,
        "\nEach run takes {seconds} s; the rows are measured in turn, several times. Given are \
         the median and its interval by order statistics (95 % from 6 runs on). A reading of the \
         clock took {clock_ns:.1} ns.\n\nTo repeat: `bench/one-end`; in less than a minute: \
         `bench/one-end --quick`.\n\n"
    );
    text.push_str(&host_table());
    text.push('\n');
    text.push_str(&table(rows));
    text
}

/// Formats the table of results.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let mut text =
        "| MTU | bytes | cores | source, ns per segment | source alone, Gb/s | sink, ns \
                    per segment | sink alone, Gb/s | together, Gb/s | idle polls | runs |\n\
                    |---:|---:|---|---:|---:|---:|---:|---:|---:|---:|\n"
            .to_owned();
    for Row { setup, runs } in rows {
        let Setup { mtu, size, cores } = setup;
        let place = if cores.len() == 1 { "one" } else { "two" };
        let figure = |figure: &dyn Fn(&Run) -> f64, decimals| {
            let interval = MedianInterval::of(runs.iter().map(figure).collect());
            interval.map_or_else(|| "failed".to_owned(), |it| it.describe(decimals))
        };
        let _ = write!(text, "| {mtu} | {size} | {place} |");
        for end in 0..2 {
            let ns = figure(&|run| run.ns_per_segment(end), 1);
            let gbit_s = figure(&|run| run.gbit_s_alone(end), 1);
            let _ = write!(text, " {ns} | {gbit_s} |");
        }
        let idle = figure(&|run| 100.0 * run.idle_share(), 1);
        let _ = writeln!(text, " {} | {idle} % | {} |", figure(&Run::gbit_s, 1), runs.len());
    }
    text
}

/// Returns all runs as JSON.
#[must_use]
pub fn json(rows: &[Row], seconds: f64, clock_ns: f64, failures: &[String]) -> Value {
    let run = |run: &Run| {
        let end = |end: usize| {
            json!({ "ns_per_segment": run.ns_per_segment(end), "gbit_s": run.gbit_s_alone(end),
                "busy_ns": run.ends[end].busy_ns, "idle_ns": run.ends[end].idle_ns })
        };
        json!({ "gbit_s": run.gbit_s(), "elapsed_ns": run.elapsed_ns, "segments": run.segments,
            "bytes": run.bytes, "source": end(0), "sink": end(1) })
    };
    let row = |Row { setup, runs }: &Row| {
        json!({ "mtu": setup.mtu, "size_bytes": setup.size, "cores": setup.cores,
            "runs": runs.iter().map(run).collect::<Vec<_>>() })
    };
    json!({ "machine": host_json(), "seconds": seconds, "clock_ns": clock_ns,
        "rows": rows.iter().map(row).collect::<Vec<_>>(), "failures": failures })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::one_end::measure::PollTimes;

    #[test]
    fn busy_time_of_an_end_gives_its_bandwidth_alone() {
        let run = Run {
            elapsed_ns: 400.0,
            bytes: 2000,
            segments: 2,
            ends: [
                PollTimes { busy_ns: 200.0, idle_ns: 10.0 },
                PollTimes { busy_ns: 100.0, idle_ns: 30.0 },
            ],
        };
        assert_eq!((run.ns_per_segment(0), run.ns_per_segment(1)), (100.0, 50.0));
        assert_eq!((run.gbit_s(), run.gbit_s_alone(1)), (40.0, 160.0));
        let setup = Setup { mtu: 1500, size: 1000, cores: vec![0] };
        let text = table(&[Row { setup, runs: vec![run] }]);
        let row = "| 1500 | 1000 | one | 100.0 (100.0 to 100.0) | 80.0 (80.0 to 80.0) | 50.0 (50.0 \
                   to 50.0) | 160.0 (160.0 to 160.0) | 40.0 (40.0 to 40.0) | 10.0 (10.0 to 10.0) % \
                   | 1 |";
        assert!(text.contains(row), "{text}");
    }
}
