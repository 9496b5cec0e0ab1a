//! Measures the results of `BASELINE.md`, and writes it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use ferrowarp_bench::baseline::measure::{measure_targets, run};
use ferrowarp_bench::baseline::plan::{Plan, Topology};
use ferrowarp_bench::baseline::result::{Target, targets};
use ferrowarp_bench::baseline::runner::Iwperf;
use ferrowarp_bench::baseline::{plot, report};
use ferrowarp_bench::bound::cores::cache_line_round_trip_ns;

#[derive(Parser)]
#[command(about = "Runs iwperf over ring and memif, and the frozen bound; writes the tables")]
struct Options {
    /// The iwperf to run [default: beside this program]
    #[arg(long)]
    iwperf: Option<PathBuf>,
    /// The file to write
    #[arg(long, default_value = "bench/BASELINE.md")]
    out: PathBuf,
    /// The plot to write beside it; none if empty
    #[arg(long, default_value = "baseline.svg")]
    svg: String,
    /// Seconds of each run for the tables
    #[arg(long, default_value_t = 0.7)]
    seconds: f64,
    /// Seconds of each run for the performance targets
    #[arg(long, default_value_t = 2.0)]
    promise_seconds: f64,
    /// Seconds of each measurement of the frozen bound
    #[arg(long, default_value_t = 0.2)]
    bare_seconds: f64,
    /// Rounds; the results are medians over them
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Bytes per message
    #[arg(long, value_delimiter = ',', default_values_t = [64, 4096, 65_536, 1_048_576])]
    sizes: Vec<u64>,
    /// Cores of the two ends; with one, the tables for two are left out
    #[arg(long, value_delimiter = ',')]
    cores: Vec<usize>,
    /// Which tables: one core, two cores, memif
    #[arg(long, value_delimiter = ',', default_values = ["one", "two", "memif"])]
    places: Vec<String>,
    /// No instruction counts
    #[arg(long)]
    no_instructions: bool,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let plan = plan(&options)?;
    let scratch = std::env::temp_dir().join(format!("ferrowarp-baseline-{}", std::process::id()));
    let iwperf = Iwperf::new(options.iwperf.as_deref(), &scratch)?;
    fs::create_dir_all(&scratch).with_context(|| format!("cannot make {}", scratch.display()))?;
    let mut failures = Vec::new();
    let mut measured_targets = measurable_targets(&plan);
    measure_targets(&mut measured_targets, &plan, options.promise_seconds, &iwperf, &mut failures);
    let measured = run(&plan, &iwperf, &mut failures);
    fs::remove_dir_all(&scratch)?;
    let tables = measured?;
    let mut text = header(&options, &plan)?;
    if !options.svg.is_empty() && plan.tables.iter().any(|t| matches!(t.0, Topology::OneCore(_))) {
        let path = options.out.with_file_name(&options.svg);
        plot::draw(&path, &plan, &tables)?;
        let _ = write!(text, "![RDMA Write bandwidth by size]({})\n\n", options.svg);
    }
    if !measured_targets.is_empty() {
        let _ = writeln!(text, "Runs of {} s:\n", options.promise_seconds);
        text.push_str(&report::target_table(&measured_targets));
    }
    text.push_str(&report::tables(&plan, &tables));
    if !options.no_instructions {
        let program = std::env::current_exe()?.with_file_name("instructions");
        text.push_str(&instructions(&program, &mut failures)?);
    }
    fs::write(&options.out, text)
        .with_context(|| format!("cannot write {}", options.out.display()))?;
    for failure in &failures {
        eprintln!("failed: {failure}");
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the performance targets of the measured topologies.
fn measurable_targets(plan: &Plan) -> Vec<Target> {
    let topologies = || plan.tables.iter().map(|(topology, _)| topology);
    let one = topologies().find_map(|topology| match topology {
        Topology::OneCore(core) => Some(*core),
        _ => None,
    });
    let two = topologies().find_map(|topology| match topology {
        Topology::TwoCores(cores) => Some(*cores),
        _ => None,
    });
    let mut targets = targets(one.unwrap_or_default(), two);
    targets.retain(|target| one.is_some() || !matches!(target.topology, Topology::OneCore(_)));
    targets
}

fn plan(options: &Options) -> Result<Plan> {
    let cores = if options.cores.is_empty() {
        let ours = core_affinity::get_core_ids().unwrap_or_default();
        ours.iter().map(|core| core.id).take(2).collect()
    } else {
        options.cores.clone()
    };
    let first = *cores.first().context("no core to run on")?;
    let mut tables = Vec::new();
    for place in &options.places {
        match (place.as_str(), cores.as_slice()) {
            ("one", _) => tables.extend([1500, 9000].map(|mtu| (Topology::OneCore(first), mtu))),
            ("two", &[a, b, ..]) => {
                tables.extend([1500, 9000].map(|mtu| (Topology::TwoCores([a, b]), mtu)));
            }
            // The device supports no larger MTU.
            ("memif", &[a, b, ..]) => tables.push((Topology::Memif([a, b]), 1500)),
            ("two" | "memif", _) => eprintln!("one core: no table for {place}"),
            _ => anyhow::bail!("--places {place}: one, two or memif"),
        }
    }
    ensure!(options.rounds > 0 && !options.sizes.is_empty(), "nothing to measure");
    Ok(Plan {
        tables,
        sizes: options.sizes.clone(),
        rounds: options.rounds,
        seconds: options.seconds,
        bound_seconds: options.bare_seconds,
    })
}

/// Formats the method and the machine.
fn header(options: &Options, plan: &Plan) -> Result<String> {
    let mut text = String::from("# First figures\n\n");
    let _ = writeln!(
        text,
        "Written by `bench/baseline`. Each figure is the median of {} runs, of {} s unless said \
         otherwise, CRC on, one \
         queue pair, 128 requests outstanding for bandwidth. Bandwidth counts bytes that the \
         sink has confirmed; in brackets its share of the frozen bound (copy and CRC at both ends \
         of the segments of 64 KiB messages with no protocol, measured on the same cores right \
         before each run), or the rate of small messages. \
         Latency is half a round trip, median and 99th percentile.\n",
        plan.rounds, options.seconds
    );
    let _ = writeln!(
        text,
        "One-core figures show what the code costs. Between two cores of a virtual machine the \
         bare hand-off itself varies widely from one moment to the next: read the shares there.\n"
    );
    text.push_str(
        "To repeat: `bench/baseline`; part of it: `bench/baseline --places one --rounds 5`.\n\n",
    );
    text.push_str(&report::host_table());
    if let Some((Topology::TwoCores(cores) | Topology::Memif(cores), _)) =
        plan.tables.iter().find(|table| !matches!(table.0, Topology::OneCore(_)))
    {
        let ns = cache_line_round_trip_ns(*cores, 200_000)?;
        let _ = writeln!(text, "| A cache line to the other core and back | {ns:.0} ns |");
    }
    text.push_str("\n## Bandwidth and latency\n\n");
    Ok(text)
}

/// Returns the table of instruction counts, if valgrind is installed.
fn instructions(program: &Path, failures: &mut Vec<String>) -> Result<String> {
    let out = Command::new(program).output().context("cannot start instructions")?;
    if !out.status.success() {
        failures.push(String::from_utf8_lossy(&out.stderr).trim().to_owned());
        return Ok(String::new());
    }
    let table = String::from_utf8_lossy(&out.stdout);
    Ok(format!(
        "## Instructions\n\n\
         Of two ends on one thread in virtual time over heap frames (`bench/instructions`), per \
         segment of the source or per RDMA Write: of the protocol core, two engines, and from post \
         to polled completion, two contexts of the runtime. Both are without copies, CRC, checksum \
         sums and the replacement of device and application (`harness`). Valgrind hides \
         AVX-512, so the CRC counts more here than it costs, and it counts a long `rep movsb` by \
         the byte. Lines of state are cache lines of 64 bytes that a train, a poll that sends or \
         receives a burst, reads or writes, from post to completion: neither frames, payload, \
         stack nor constants.\n\n\
         {table}"
    ))
}
