//! Measures what each end of a transfer takes by itself, and writes `ONE-END.md`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use ferrowarp_bench::one_end::measure::{Pair, Run, Setup, clock_ns};
use ferrowarp_bench::one_end::report::{self, Row};
use ferrowarp_bench::program::{finish, write, write_json};
use ferrowarp_bench::ring_end::cores_of_ends;

/// Measures the time per segment of source and sink of RDMA Writes, each by itself, over ring.
///
/// Both ends on one core, and on two if there are. The report has what is in each figure and what
/// is not.
#[derive(Parser)]
#[command(max_term_width = 100)]
struct Options {
    /// Runs of each row; fewer than six give an interval of less than 95 %
    #[arg(long, default_value_t = 9)]
    runs: usize,
    /// Seconds of each run
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Shorter runs, less than a minute in all
    #[arg(long, conflicts_with = "seconds")]
    quick: bool,
    /// MTUs in bytes
    #[arg(long, value_delimiter = ',', default_values_t = [1500, 9000])]
    mtus: Vec<u16>,
    /// Bytes per RDMA Write
    #[arg(long, default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..))]
    size: u32,
    /// Cores of the two ends [default: the first two of this task]; with one, both ends share it
    #[arg(long, value_delimiter = ',', value_name = "A,B")]
    cores: Vec<usize>,
    /// The Markdown file to write; JSON is written beside it
    #[arg(long, default_value = "bench/ONE-END.md", value_name = "FILE")]
    out: PathBuf,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let seconds = if options.quick { 0.3 } else { options.seconds };
    ensure!(options.runs > 0, "--runs 0 measures nothing: 9 give an interval of 96 %");
    let duration = Duration::try_from_secs_f64(seconds).context("--seconds: a positive number")?;
    let cores = cores_of_ends(&options.cores)?;
    let mut rows = Vec::new();
    for &mtu in &options.mtus {
        for count in 1..=cores.len() {
            let setup = Setup { mtu, size: options.size, cores: cores[..count].to_vec() };
            rows.push(Row { setup, runs: Vec::new() });
        }
    }
    let mut failures = Vec::new();
    let clock_ns = clock_ns();
    for number in 1..=options.runs {
        for Row { setup, runs } in &mut rows {
            let name = format!("MTU {}, cores {:?}", setup.mtu, setup.cores);
            match measure(setup, duration, clock_ns) {
                Ok(run) => {
                    eprintln!(
                        "run {number} of {}, {name}: source {:.1}, sink {:.1} ns per segment",
                        options.runs,
                        run.ns_per_segment(0),
                        run.ns_per_segment(1)
                    );
                    runs.push(run);
                }
                Err(error) => failures.push(format!("{name}: {error:#}")),
            }
        }
    }
    print!("{}", report::table(&rows));
    let json = report::json(&rows, seconds, clock_ns, &failures);
    write_json(&options.out.with_extension("json"), &json)?;
    write(&options.out, &report::markdown(&rows, seconds, clock_ns))?;
    Ok(finish(&failures))
}

/// Measures on a thread of its own, so that this one keeps its affinity.
fn measure(setup: &Setup, duration: Duration, clock_ns: f64) -> Result<Run> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| Pair::connect(setup)?.run(duration, clock_ns));
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
