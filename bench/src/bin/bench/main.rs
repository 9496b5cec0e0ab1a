//! Measures the stack next to something else, case by case, and writes the results: a JSON file for
//! the newest run of each case, and one page for each machine.

mod bound;
mod cases;
mod cores;
mod interval;
mod iwperf;
mod launch;
mod machine;
mod model;
mod page;
mod plot;
mod ring;
mod runner;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, Parser, Subcommand};

use crate::cases::{Case, Setup};
use crate::model::Report;
use crate::runner::Group;

/// Measures the stack next to its bound, its peers, and itself under other conditions.
///
/// A case has rows. Each row compares contenders that run one after another, round by round, in an
/// order that is reversed from round to round. You get the median of the ratios with its interval,
/// and whether the whole interval keeps the limit of the row. Nine rounds give an interval of 96 %,
/// fewer than six less than 95 %: a limit is then "open".
///
/// Without --out, the results of this machine are replaced: bench/results/MACHINE/CASE.json, and
/// the page bench/results/MACHINE.md. bench/methods has what each case measures.
///
/// Figures need an idle machine and hugepages; bench/run reserves these.
#[derive(Parser)]
#[command(
    name = "bench/run",
    max_term_width = 100,
    after_help = "\
Examples:
  bench/run bound --list                            prints the names of the rows
  bench/run bound --rows write-bw-64K,read-lat      some rows only
  bench/run vhost --quick --out /tmp/vhost.md       a minute or so, written elsewhere
  bench/run bound --before ../old/target/release/iwperf --rows write-bw-64-
  bench/run page                                    writes the pages again from their JSON"
)]
struct Options {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct Common {
    /// Rounds [default: by case, often 9]
    #[arg(long, global = true, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
    /// Seconds of each measurement [default: by case]
    #[arg(long, global = true)]
    seconds: Option<f64>,
    /// Fewer rounds and shorter measurements; the figures say little
    #[arg(long, global = true)]
    quick: bool,
    /// Only rows whose names begin with one of these
    #[arg(long, global = true, value_delimiter = ',', value_name = "NAME,..")]
    rows: Vec<String>,
    /// Prints the names of the rows and exits
    #[arg(long, global = true)]
    list: bool,
    /// Cores of the two ends [default: the first two of this task]; with one, rows over two are
    /// left out
    #[arg(long, global = true, value_delimiter = ',', value_name = "A,B")]
    cores: Vec<usize>,
    /// Folder of iwperf and the other programs [default: beside this program]
    #[arg(long, global = true, value_name = "FOLDER")]
    bin: Option<PathBuf>,
    /// Markdown file to write, with JSON beside it, instead of the results of this machine
    #[arg(long, global = true, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// iwperf next to the bound of copy and CRC, or next to another iwperf
    Bound(cases::bound::Options),
    /// Time of source and sink, each by itself
    OneEnd,
    /// Goodput under loss, and recovery from single losses
    Loss(cases::loss::Options),
    /// Latency of short Writes beside other traffic, and the bound of the fairness rule
    Fairness(cases::fairness::Options),
    /// Cost of many connections: to a busy one, in memory, in set-up, to control calls
    Connections(cases::connections::Options),
    /// iwperf next to DPDK's testpmd, over memif and tap
    Testpmd,
    /// iwperf over vhost-user next to iwperf over memif
    Vhost,
    /// Two processes over memif next to the kernel's TCP, UCX, and other MTUs
    Processes,
    /// Our TCP next to the kernel's over emulated links
    TcpVsKernel(cases::tcp_vs_kernel::Options),
    /// UCX, libfabric, iperf3, sockperf, smoltcp and Linux's siw
    Peers(cases::peers::Options),
    /// Writes the page of each machine from the JSON in bench/results
    Page,
}

fn main() -> Result<ExitCode> {
    let Options { command, common } = Options::parse();
    let own = std::env::current_exe()?;
    let bin = common.bin.clone().or_else(|| own.parent().map(Path::to_owned));
    let setup = Setup {
        bin: bin.context("a program is in a folder")?,
        cores: cores::choose(&common.cores)?,
        scratch: ferrowarp_tests::process::temp_dir()?,
        quick: common.quick,
    };
    let mut notes = Vec::new();
    let (case, groups) = match &command {
        Command::Bound(own) => (&cases::bound::CASE, cases::bound::groups(&setup, own)?),
        Command::OneEnd => (&cases::one_end::CASE, cases::one_end::groups(&setup)),
        Command::Loss(own) => (&cases::loss::CASE, cases::loss::groups(&setup, *own)?),
        Command::Fairness(own) => (&cases::fairness::CASE, cases::fairness::groups(&setup, own)),
        Command::Connections(own) => {
            (&cases::connections::CASE, cases::connections::groups(&setup, own))
        }
        Command::Testpmd => (&cases::testpmd::CASE, cases::testpmd::groups(&setup)?),
        Command::Vhost => (&cases::vhost::CASE, cases::vhost::groups(&setup)?),
        Command::Processes => {
            let (groups, about) = cases::processes::groups(&setup)?;
            notes = about;
            (&cases::processes::CASE, groups)
        }
        Command::TcpVsKernel(own) => {
            (&cases::tcp_vs_kernel::CASE, cases::tcp_vs_kernel::groups(&setup, own)?)
        }
        Command::Peers(own) => {
            let (groups, about) = cases::peers::groups(&setup, own)?;
            notes = about;
            (&cases::peers::CASE, groups)
        }
        Command::Page => {
            write_pages(Path::new(RESULTS))?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    measure(case, groups, notes, &common)
}

const RESULTS: &str = "bench/results";
/// Time of a quick run: no round is begun that would probably end later.
const QUICK_LIMIT: Duration = Duration::from_secs(280);

fn measure(
    case: &Case,
    mut groups: Vec<Group>,
    mut notes: Vec<String>,
    common: &Common,
) -> Result<ExitCode> {
    runner::select(&mut groups, &common.rows)?;
    if common.list {
        groups.iter().for_each(|group| println!("{}", group.name));
        return Ok(ExitCode::SUCCESS);
    }
    let (rounds, seconds) = if common.quick { case.quick } else { (case.rounds, case.seconds) };
    let rounds = common.rounds.map_or(rounds, usize::from);
    let seconds = common.seconds.unwrap_or(seconds);
    let is_time = seconds > 0.0 && Duration::try_from_secs_f64(seconds).is_ok();
    ensure!(is_time, "--seconds {seconds}: give a positive number");
    let (machine, started) = (machine::properties(), Instant::now());
    let outcome = runner::run(&mut groups, rounds, seconds, common.quick.then_some(QUICK_LIMIT));
    notes.extend(outcome.notes);
    let report = Report {
        case: case.name.to_owned(),
        date: machine::today(),
        seconds,
        machine,
        notes,
        failures: outcome.failures,
        rows: outcome.rows,
    };
    print!("{}", page::tables(&report));
    eprintln!("{rounds} rounds in {} s", started.elapsed().as_secs());
    write(case, &report, common.out.as_deref())?;
    Ok(if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes a report to `out`, or else as the newest of this machine.
fn write(case: &Case, report: &Report, out: Option<&Path>) -> Result<()> {
    if let Some(out) = out {
        write_file(&out.with_extension("json"), &report.json()?)?;
        draw(report, &out.with_extension("svg"))?;
        return write_file(out, &page::alone(report, case.title));
    }
    let folder = Path::new(RESULTS).join(machine::slug(&report.machine));
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    write_file(&folder.join(format!("{}.json", case.name)), &report.json()?)?;
    write_pages(Path::new(RESULTS))
}

/// Plots a report that has panels.
fn draw(report: &Report, path: &Path) -> Result<()> {
    let panels = cases::peers::panels(report);
    if panels.is_empty() { Ok(()) } else { plot::draw(path, &panels) }
}

/// Writes the page and the plots of each machine.
fn write_pages(results: &Path) -> Result<()> {
    for entry in fs::read_dir(results).with_context(|| results.display().to_string())? {
        let folder = entry?.path();
        if let Some(name) = folder.file_name().filter(|_| folder.is_dir()) {
            let name = name.to_string_lossy();
            let reports = page::reports(&folder)?;
            for report in &reports {
                draw(report, &folder.join(format!("{}.svg", report.case)))?;
            }
            let text = page::of_machine(&folder, &name, &reports)?;
            write_file(&results.join(format!("{name}.md")), &text)?;
        }
    }
    Ok(())
}

fn write_file(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
