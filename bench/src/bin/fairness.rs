//! Measures the latency of short Writes beside other traffic, and writes `FAIRNESS.md`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Parser;
use ferrowarp_bench::fairness::cases::{self, Case};
use ferrowarp_bench::fairness::measure::{Setup, run};
use ferrowarp_bench::fairness::report::{self, Row};
use ferrowarp_bench::program::{finish, select, write, write_json};
use ferrowarp_bench::ring_end::cores_of_ends;

/// Measures the latency of 64-byte RDMA Writes beside other traffic, and compares it with what the
/// fairness rule promises.
///
/// Traffic: a stream on another queue pair, 1,000 busy queue pairs, or an incast of 32 senders. The
/// report says what the bound is.
#[derive(Parser)]
#[command(max_term_width = 100)]
struct Options {
    /// Rounds of each row; fewer than six give an interval of less than 95 %
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Seconds of each round
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Six short rounds, less than a minute in all
    #[arg(long, conflicts_with_all = ["seconds", "rounds"])]
    quick: bool,
    /// Only cases whose names begin with one of these
    #[arg(long, value_delimiter = ',', value_name = "NAME,..")]
    cases: Vec<String>,
    /// Prints the names of the cases and exits
    #[arg(long)]
    list: bool,
    /// Competing queue pairs, in place of those of each case
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=200))]
    qps: Option<u8>,
    /// MTU in bytes
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u16).range(576..=9000))]
    mtu: u16,
    /// Cores of senders and sink [default: the first two of this task]; with one, they share it
    #[arg(long, value_delimiter = ',', value_name = "A,B")]
    cores: Vec<usize>,
    /// The Markdown file to write; JSON is written beside it
    #[arg(long, default_value = "bench/FAIRNESS.md", value_name = "FILE")]
    out: PathBuf,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let cases = selected_cases(&options)?;
    if options.list {
        cases.iter().for_each(|case| println!("{}: {}", case.name, case.title));
        return Ok(ExitCode::SUCCESS);
    }
    let (round_count, seconds) =
        if options.quick { (6, 0.4) } else { (options.rounds, options.seconds) };
    ensure!(round_count > 0, "--rounds 0 measures nothing: 9 give an interval of 96 %");
    ensure!(seconds.is_finite() && seconds > 0.0, "--seconds {seconds}: give a positive number");
    let cores = cores_of_ends(&options.cores)?;
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    for case in cases {
        for count in 1..=cores.len() {
            let setup =
                Setup { case: case.clone(), mtu: options.mtu, cores: cores[..count].to_vec() };
            let name = format!("{}, cores {:?}", case.name, setup.cores);
            let mut done = 0;
            let rounds = run(&setup, round_count, seconds, |round| {
                done += 1;
                eprintln!(
                    "round {done} of {round_count}, {name}: p99 {:.1} us beside, {:.1} alone, \
                     bound {:.1}; {} segments before, {} allowed",
                    round.beside.value_at_quantile(0.99) as f64 / 1e3,
                    round.alone.value_at_quantile(0.99) as f64 / 1e3,
                    round.bound_ns() / 1e3,
                    round.segments_max,
                    round.segments_allowed
                );
            });
            let rounds = rounds.unwrap_or_else(|error| {
                failures.push(format!("{name}: {error:#}"));
                Vec::new()
            });
            rows.push(Row { setup, rounds });
        }
    }
    print!("{}\n{}", report::segment_table(&rows)?, report::table(&rows)?);
    let json = report::json(&rows, seconds, &failures);
    write_json(&options.out.with_extension("json"), &json)?;
    write(&options.out, &report::markdown(&rows, seconds)?)?;
    Ok(finish(&failures))
}

fn selected_cases(options: &Options) -> Result<Vec<Case>> {
    let mut cases = cases::all();
    select(&mut cases, "--cases", &options.cases, |case| case.name)?;
    for case in &mut cases {
        case.qps = options.qps.map_or(case.qps, usize::from);
    }
    Ok(cases)
}
