//! Measures the stack over vhost-user beside `memif`, and writes `VHOST.md`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser;
use ferrowarp_bench::baseline::runner::Iwperf;
use ferrowarp_bench::paired::pairs::run_pairs;
use ferrowarp_bench::program::{check_pairs, finish, select, write, write_json};
use ferrowarp_bench::ring_end::cores_of_ends;
use ferrowarp_bench::vhost::report;
use ferrowarp_bench::vhost::rows::{Row, rows};
use ferrowarp_tests::process;

/// Compares iwperf over vhost-user with iwperf over memif, pair by pair.
///
/// Each run has two processes: a server on vhost:SOCKET, the back end, and a client on
/// virtio-user:SOCKET, the virtio driver; or both on memif. Bandwidth and message rate of RDMA
/// Writes, and the median latency of Writes and Reads, whose ratio is below 1 where vhost is
/// faster. The report says which end copies what.
#[derive(Parser)]
#[command(max_term_width = 100)]
struct Options {
    /// The iwperf to run [default: beside this program]
    #[arg(long, value_name = "PATH")]
    iwperf: Option<PathBuf>,
    /// Pairs for each row; fewer than six give an interval of less than 95 %
    #[arg(long, default_value_t = 21)]
    pairs: usize,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 0.8)]
    seconds: f64,
    /// Three short pairs, less than a minute in all
    #[arg(long, conflicts_with_all = ["seconds", "pairs"])]
    quick: bool,
    /// Only rows whose names begin with one of these: write-bw-64K-1500, write-bw-64K-9000,
    /// write-bw-4K-1500, write-bw-64-1500, write-lat-64-1500, read-lat-64-1500
    #[arg(long, value_delimiter = ',', value_name = "NAME,..")]
    rows: Vec<String>,
    /// Cores of server and client [default: the first two of this task]; with one core they take
    /// turns, and the figures are those of the scheduler
    #[arg(long, value_delimiter = ',', value_name = "A,B")]
    cores: Vec<usize>,
    /// The Markdown file to write; JSON is written beside it
    #[arg(long, default_value = "bench/VHOST.md", value_name = "FILE")]
    out: PathBuf,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let (pairs, seconds) = if options.quick { (3, 0.3) } else { (options.pairs, options.seconds) };
    check_pairs(pairs, seconds)?;
    let mut rows = rows();
    select(&mut rows, "--rows", &options.rows, |row| &row.name)?;
    let cores = cores_of_ends(&options.cores)?;
    let cores = [cores[0], *cores.last().context("a core at least")?];
    let scratch = process::temp_dir()?;
    let iwperf = Iwperf::new(options.iwperf.as_deref(), scratch.path())?;
    let measure = |row: &mut Row, vhost_first| row.measure(&iwperf, cores, seconds, vhost_first);
    let failures = run_pairs(&mut rows, pairs, |row| &row.name, measure);
    print!("{}", report::table(&rows));
    write_json(&options.out.with_extension("json"), &report::json(&rows, seconds, &failures))?;
    write(&options.out, &report::markdown(&rows, seconds))?;
    Ok(finish(&failures))
}
