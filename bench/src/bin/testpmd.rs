//! Measures the stack beside testpmd over `memif` and `tap`, and writes `TESTPMD.md`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser;
use ferrowarp_bench::baseline::plan::Topology;
use ferrowarp_bench::baseline::runner::Iwperf;
use ferrowarp_bench::paired::pairs::{both, run_pairs};
use ferrowarp_bench::program::{check_pairs, finish, select, write, write_json};
use ferrowarp_bench::ring_end::cores_of_ends;
use ferrowarp_bench::testpmd::report::{self, Pair, Row, rows};
use ferrowarp_bench::testpmd::{memif, program, tap};
use ferrowarp_tests::{netns, process};

/// Bytes per RDMA Write.
const SIZE: u64 = 65_536;
/// Names of the two in errors.
const CONTENDERS: [&str; 2] = ["the stack", "testpmd"];

/// Compares iwperf with DPDK's testpmd over the same device, pair by pair.
///
/// Bandwidth over memif between two processes, packets per second over tap. The report says what
/// is counted.
#[derive(Parser)]
#[command(max_term_width = 100)]
struct Options {
    /// The iwperf to judge [default: beside this program]
    #[arg(long, value_name = "PATH")]
    iwperf: Option<PathBuf>,
    /// Pairs for each row; fewer than six give an interval of less than 95 %
    #[arg(long, default_value_t = 9)]
    pairs: usize,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 1.5)]
    seconds: f64,
    /// Three short pairs, less than a minute in all
    #[arg(long, conflicts_with_all = ["seconds", "pairs"])]
    quick: bool,
    /// Only rows whose names begin with one of these: memif-1500, memif-9000, tap-1500
    #[arg(long, value_delimiter = ',', value_name = "NAME,..")]
    rows: Vec<String>,
    /// Cores of receiver and sender [default: the first two of this task]
    #[arg(long, value_delimiter = ',', value_name = "A,B")]
    cores: Vec<usize>,
    /// The Markdown file to write; JSON is written beside it
    #[arg(long, default_value = "bench/TESTPMD.md", value_name = "FILE")]
    out: PathBuf,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let (pairs, seconds) = if options.quick { (3, 0.5) } else { (options.pairs, options.seconds) };
    check_pairs(pairs, seconds)?;
    let mut rows = selected_rows(&options)?;
    let cores = cores_of_ends(&options.cores)?;
    let cores = [cores[0], *cores.last().context("a core at least")?];
    let scratch = process::temp_dir()?;
    let iwperf = Iwperf::new(options.iwperf.as_deref(), scratch.path())?;
    let missing = program::missing_prerequisite();
    let failures = if missing.is_some() {
        Vec::new()
    } else {
        run_pairs(
            &mut rows,
            pairs,
            |row| row.name,
            |row, ours_first| {
                let pair = measure(row, &iwperf, cores, seconds, ours_first)?;
                row.pairs.push(pair);
                let [ours, testpmd] = pair.figures();
                Ok(format!("stack {ours:.3}, testpmd {testpmd:.3} {}", row.unit))
            },
        )
    };
    print!("{}", report::table(&rows));
    write_json(&options.out.with_extension("json"), &report::json(&rows, seconds, &failures))?;
    write(&options.out, &report::markdown(&rows, seconds, missing.as_deref()))?;
    if let Some(reason) = missing {
        eprintln!("not measured: {reason}");
        return Ok(ExitCode::FAILURE);
    }
    Ok(finish(&failures))
}

fn measure(
    row: &Row,
    iwperf: &Iwperf,
    cores: [usize; 2],
    seconds: f64,
    ours_first: bool,
) -> Result<Pair> {
    let folder = iwperf.scratch.as_path();
    if row.name.starts_with("tap") {
        let ours = || tap::measure_iwperf(&iwperf.program, folder, cores, seconds);
        let theirs = || tap::measure_testpmd(folder, cores, seconds);
        let ((ours, payload_gbit_s), testpmd) = both(ours_first, CONTENDERS, ours, theirs)?;
        return Ok(Pair::Tap { ours, payload_gbit_s, testpmd });
    }
    let ours = || iwperf.run("write-bw", &Topology::Memif(cores), row.mtu, SIZE, seconds, &[]);
    let theirs = || memif::measure(folder, row.mtu, cores, seconds);
    let (ours, testpmd) = both(ours_first, CONTENDERS, ours, theirs)?;
    Ok(Pair::Memif { ours: ours.gbit_s, testpmd })
}

fn selected_rows(options: &Options) -> Result<Vec<Row>> {
    let mut rows = rows();
    select(&mut rows, "--rows", &options.rows, |row| row.name)?;
    let lacks_tap = netns::missing_prerequisite();
    let lacks_tap = lacks_tap.or((!Path::new("/dev/net/tun").exists()).then_some("no tap devices"));
    if let Some(reason) = lacks_tap {
        eprintln!("left out: tap: {reason}");
        rows.retain(|row| !row.name.starts_with("tap"));
    }
    Ok(rows)
}
