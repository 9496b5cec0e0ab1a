//! Speed of stock perftest on the stack next to `iwperf`, which uses the API of the runtime. Runs
//! come in pairs, alternately, with the same depth, length of lists and signaling. A pair during
//! which the distance between the cores changed tells nothing of the programs, and is repeated.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::interop::case::failure;
use crate::process::program;
use crate::verbs::core_distance::CoreDistances;
use crate::verbs::testbed::{End, Testbed, expect_success, one_line};

/// Pairs of runs.
const PAIRS: usize = 9;
/// Pairs that are repeated because the distance between the cores has changed, at most.
const REPEATS_MAX: usize = 18;
const RUN_TIMEOUT: Duration = Duration::from_secs(60);

/// A comparison. Both programs take the same options, except for the size of the lists: perftest
/// posts single requests unless told otherwise, `iwperf` fills its queue.
struct Comparison {
    name: &'static str,
    perftest: &'static str,
    iwperf: &'static str,
    figure: Figure,
    /// Ratio of the figures that is accepted: the largest of latencies, the least of rates.
    limit: f64,
}

/// The figure that is compared, and its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Figure {
    /// Typical latency, in microseconds.
    Latency,
    /// Messages per microsecond.
    Rate,
}

const COMPARISONS: [Comparison; 9] = [
    Comparison {
        name: "send latency, 64 B",
        perftest: "ib_send_lat -s 64 -n 20000 -I 64",
        iwperf: "send-lat -s 64 -n 20000 -I 64",
        figure: Figure::Latency,
        limit: 1.2,
    },
    small_singly(
        "write, 64 B, singly",
        "ib_write_bw -s 64 -n 2000000 -t 128 -Q 100",
        "write-bw -s 64 -n 2000000 -t 128 -Q 100 -l 1",
    ),
    bandwidth(
        "write, 64 B, lists of 32",
        "ib_write_bw -s 64 -n 4000000 -t 128 -l 32",
        "write-bw -s 64 -n 4000000 -t 128 -l 32",
    ),
    bandwidth(
        "write, 4 KiB",
        "ib_write_bw -s 4096 -n 200000 -t 128 -Q 100",
        "write-bw -s 4096 -n 200000 -t 128 -Q 100 -l 1",
    ),
    bandwidth(
        "write, 64 KiB",
        "ib_write_bw -s 65536 -n 20000 -t 128 -Q 100",
        "write-bw -s 65536 -n 20000 -t 128 -Q 100 -l 1",
    ),
    small_singly(
        "send, 64 B, singly",
        "ib_send_bw -s 64 -n 2000000 -t 128 -r 512 -Q 100",
        "send-bw -s 64 -n 2000000 -t 128 -r 512 -Q 100 -l 1",
    ),
    bandwidth(
        "send, 64 B, lists of 32",
        "ib_send_bw -s 64 -n 4000000 -t 128 -r 512 -l 32",
        "send-bw -s 64 -n 4000000 -t 128 -r 512 -l 32",
    ),
    bandwidth(
        "send, 4 KiB",
        "ib_send_bw -s 4096 -n 200000 -t 128 -r 512 -Q 100",
        "send-bw -s 4096 -n 200000 -t 128 -r 512 -Q 100 -l 1",
    ),
    bandwidth(
        "send, 64 KiB",
        "ib_send_bw -s 65536 -n 20000 -t 128 -r 512 -Q 100",
        "send-bw -s 65536 -n 20000 -t 128 -r 512 -Q 100 -l 1",
    ),
];

const fn bandwidth(name: &'static str, perftest: &'static str, iwperf: &'static str) -> Comparison {
    Comparison { name, perftest, iwperf, figure: Figure::Rate, limit: 0.9 }
}

/// A comparison in which each request of perftest is a call of its own for few bytes.
const fn small_singly(
    name: &'static str,
    perftest: &'static str,
    iwperf: &'static str,
) -> Comparison {
    Comparison { limit: 0.75, ..bandwidth(name, perftest, iwperf) }
}

/// Column of perftest's figures: its typical latency, or its rate of messages.
const COLUMN: usize = 4;

/// Compares the programs, and prints a table. Returns true if all ratios are accepted.
///
/// # Errors
/// If a run fails.
pub fn run(folder: &Path, is_chosen: impl Fn(&str) -> bool) -> io::Result<bool> {
    let mut testbed = Testbed::new(folder, folder)?;
    println!("| Test | perftest | `iwperf` | Ratio (quartiles) | Repeated |");
    println!("|---|---:|---:|---:|---:|");
    let mut all_accepted = true;
    for comparison in COMPARISONS.iter().filter(|comparison| is_chosen(comparison.name)) {
        let mut pairs = Vec::new();
        let mut repeats = 0;
        while pairs.len() < PAIRS {
            let number = pairs.len() + repeats;
            let own = format!("{}-{number}", comparison.name.replace([' ', ','], "-"));
            testbed.begin(folder.join(own))?;
            let (pair, distances) = run_pair(&mut testbed, comparison, number)?;
            if distances.are_same() || repeats == REPEATS_MAX {
                pairs.push(pair);
            } else {
                repeats += 1;
            }
        }
        let ratios = Quartiles::of(pairs.iter().map(|(first, second)| first / second).collect());
        let [of_perftest, of_iwperf] = [
            Quartiles::of(pairs.iter().map(|pair| pair.0).collect()),
            Quartiles::of(pairs.iter().map(|pair| pair.1).collect()),
        ];
        let (unit, is_accepted) = match comparison.figure {
            Figure::Latency => ("us", ratios.median <= comparison.limit),
            Figure::Rate => ("M/s", ratios.median >= comparison.limit),
        };
        all_accepted &= is_accepted;
        println!(
            "| {} | {:.3} {unit} | {:.3} {unit} | {:.2} ({:.2} to {:.2}) | {repeats} |",
            comparison.name,
            of_perftest.median,
            of_iwperf.median,
            ratios.median,
            ratios.lower,
            ratios.upper,
        );
    }
    Ok(all_accepted)
}

/// Runs perftest and `iwperf`, each first in every other pair. Returns their figures, and the
/// distances of the cores before, between and after the runs.
fn run_pair(
    testbed: &mut Testbed,
    comparison: &Comparison,
    number: usize,
) -> io::Result<((f64, f64), CoreDistances)> {
    let mut distances = CoreDistances::default();
    let mut figures = [0.0; 2];
    distances.measure();
    for turn in [number % 2, (number + 1) % 2] {
        let run = [perftest, iwperf][turn];
        figures[turn] = run(testbed, comparison)?;
        distances.measure();
    }
    Ok(((figures[0], figures[1]), distances))
}

/// Runs perftest at both ends, and returns its figure.
fn perftest(testbed: &mut Testbed, comparison: &Comparison) -> io::Result<f64> {
    let server_line = format!("{} -R -F", comparison.perftest);
    let [_, client] =
        testbed.run_pair_ok(&server_line, &format!("{server_line} {{server}}"), RUN_TIMEOUT)?;
    let numbers = client.lines().rev().find_map(|line| {
        let numbers: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
        numbers.ok().filter(|numbers| numbers.len() > COLUMN)
    });
    let numbers = numbers.ok_or_else(|| failure(format!("no figures: {}", one_line(&client))))?;
    Ok(numbers[COLUMN])
}

/// Runs `iwperf` at both ends, and returns its figure.
fn iwperf(testbed: &mut Testbed, comparison: &Comparison) -> io::Result<f64> {
    let path = program("iwperf").ok_or_else(|| failure("iwperf was not built"))?;
    testbed.begin(testbed.folder().to_path_buf())?;
    let report = testbed.folder().join("iwperf.json");
    let mut server = Command::new(&path);
    server.args(["server", "--once", "--timeout", "60"]);
    server.args(testbed.device_options(End::Server));
    let mut client = Command::new(&path);
    let mut words = comparison.iwperf.split_whitespace();
    client.arg(words.next().unwrap_or_default()).args(testbed.words("{server}")).args(words);
    client.args(["--timeout", "60", "--json"]).arg(&report);
    client.args(testbed.device_options(End::Client));
    let server = testbed.serve_command(&mut server)?;
    let client = testbed.start_command(End::Client, &mut client)?.finish(RUN_TIMEOUT)?;
    expect_success("iwperf", client)?;
    expect_success("iwperf", server.finish(RUN_TIMEOUT)?)?;
    let report: Value = serde_json::from_str(&fs::read_to_string(&report)?)?;
    let figure = match comparison.figure {
        Figure::Latency => report.pointer("/results/0/lat_us/p50"),
        Figure::Rate => report.pointer("/results/0/msg_rate_mops"),
    };
    figure.and_then(Value::as_f64).ok_or_else(|| failure(format!("no figure in {report}")))
}

/// Median and quartiles of some figures.
struct Quartiles {
    lower: f64,
    median: f64,
    upper: f64,
}

impl Quartiles {
    fn of(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        let at = |quarter: usize| figures[quarter * (figures.len() - 1) / 4];
        Self { lower: at(1), median: at(2), upper: at(3) }
    }
}
