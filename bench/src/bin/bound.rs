//! Compares `iwperf` with the bound of this machine, pair by pair, and writes `BOUND.md`.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use ferrowarp_bench::baseline::runner::Iwperf;
use ferrowarp_bench::paired::measure::{Setup, run};
use ferrowarp_bench::paired::report;
use ferrowarp_bench::paired::rows::{self, Row};
use ferrowarp_bench::program::{check_pairs, finish, write, write_json};

/// Compares iwperf with the bound of this machine, pair by pair.
///
/// The frozen bound is copy, then CRC, at the Data Source and CRC, then copy, at the Data Sink, of
/// the same messages, segments, addresses and frames, on the same cores; beside it the best bound
/// known. Latency is compared with a bare ping-pong over the same port, reads and sends with
/// writes. Each row is measured in pairs: its contenders one after another, in reverse order every
/// other time. The result is the median of the ratios, with its interval by order statistics.
///
/// The ratios need an idle machine and hugepages; bench/bound reserves these.
#[derive(Parser)]
#[command(
    max_term_width = 100,
    after_help = "Examples:\n  \
    bound --list\n  \
    bound --rows write-bw-64K,write-bw-4K --pairs 9\n  \
    bound --before ../other/target/release/iwperf --rows write-bw-64-\n\n\
    Rows over two cores need two of them that share no execution units."
)]
struct Options {
    /// The iwperf to judge [default: beside this program]
    #[arg(long, value_name = "PATH")]
    iwperf: Option<PathBuf>,
    /// Another iwperf, such as one built from an earlier commit, measured in the same pairs with
    /// the same options
    #[arg(long, value_name = "PATH")]
    before: Option<PathBuf>,
    /// Pairs for each row; fewer than six give an interval of less than 95 %
    #[arg(long, default_value_t = 9)]
    pairs: usize,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Only rows whose names begin with one of these
    #[arg(long, visible_alias = "only", value_delimiter = ',', value_name = "NAME,..")]
    rows: Vec<String>,
    /// Prints the names of the rows and exits
    #[arg(long)]
    list: bool,
    /// Cores of the two ends [default: the first two of this task]; with one, rows over two cores
    /// are left out
    #[arg(long, value_delimiter = ',', value_name = "A,B")]
    cores: Vec<usize>,
    /// The Markdown file to write
    #[arg(long, default_value = "bench/BOUND.md", value_name = "FILE")]
    out: PathBuf,
    /// The JSON file to write, with all samples [default: beside --out]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let rows = selected_rows(&options)?;
    if options.list {
        rows.iter().for_each(|row| println!("{}", row.name));
        return Ok(ExitCode::SUCCESS);
    }
    check_pairs(options.pairs, options.seconds)?;
    let scratch = std::env::temp_dir().join(format!("ferrowarp-bound-{}", std::process::id()));
    let setup = Setup {
        iwperf: Iwperf::new(options.iwperf.as_deref(), &scratch)?,
        before: options.before.as_ref().map(|it| Iwperf::new(Some(it), &scratch)).transpose()?,
        pairs: options.pairs,
        seconds: options.seconds,
    };
    fs::create_dir_all(&scratch).with_context(|| format!("cannot make {}", scratch.display()))?;
    let mut failures = Vec::new();
    let results = run(rows, &setup, |line| eprintln!("{line}"), &mut failures);
    fs::remove_dir_all(&scratch)?;
    print!("{}", report::table(&results));
    let json = options.json.clone().unwrap_or_else(|| options.out.with_extension("json"));
    write_json(&json, &report::json(&results, options.seconds, &failures))?;
    write(&options.out, &report::markdown(&results, options.seconds))?;
    Ok(finish(&failures))
}

fn selected_rows(options: &Options) -> Result<Vec<Row>> {
    let cores = if options.cores.is_empty() {
        let ours = core_affinity::get_core_ids().unwrap_or_default();
        ours.iter().map(|core| core.id).take(2).collect()
    } else {
        options.cores.clone()
    };
    ensure!(cores.len() <= 2, "--cores takes one core for both ends, or two");
    let first = *cores.first().context("cannot tell the cores of this task: use --cores")?;
    let two = cores.first_chunk::<2>().copied().filter(|[a, b]| a != b);
    if two.is_none() {
        eprintln!("one core: no rows over two");
    }
    let mut rows = rows::all(first, two, options.before.is_some());
    for wanted in &options.rows {
        ensure!(
            rows.iter().any(|row| row.name.starts_with(wanted)),
            "--rows {wanted}: no such row here; --list prints their names, and those against \
             another iwperf need --before"
        );
    }
    if !options.rows.is_empty() {
        rows.retain(|row| options.rows.iter().any(|wanted| row.name.starts_with(wanted)));
    }
    Ok(rows)
}
