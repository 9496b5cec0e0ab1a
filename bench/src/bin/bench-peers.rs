//! Measures the stack beside other stacks, and writes `RESULTS.md`.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use ferrowarp_bench::baseline::report::host_info;
use ferrowarp_bench::baseline::runner;
use ferrowarp_bench::peers::guest::{self, InGuest, Stack};
use ferrowarp_bench::peers::iperf3::Iperf3;
use ferrowarp_bench::peers::iwperf::Iwperf;
use ferrowarp_bench::peers::launch::{self, Loopback};
use ferrowarp_bench::peers::results::Comparison;
use ferrowarp_bench::peers::smoltcp_loop::SmoltcpLoop;
use ferrowarp_bench::peers::sockperf::Sockperf;
use ferrowarp_bench::peers::ucx::{Kind, Ucx};
use ferrowarp_bench::peers::{Peer, Setting, Test, json, libfabric, plot, report, rounds};
use ferrowarp_tests::{netns, process};

/// Time of `--quick`: no round is begun that would probably end later.
const QUICK_LIMIT: Duration = Duration::from_secs(280);

/// Measures the stack beside UCX, libfabric, iperf3 and sockperf over the kernel's loopback, beside
/// smoltcp over the same ring, and beside Linux's siw in a guest. Writes tables, JSON and plots.
///
/// Peers that are not installed are left out, and the tables say which package they need.
#[derive(Parser)]
#[command(after_help = "\
Examples:
  scripts/bench-peers                               everything, half an hour on an idle machine
  scripts/bench-peers --quick --out /tmp/quick.md   at most 5 minutes
  scripts/bench-peers --peers ucx,libfabric --rounds 3 --out /tmp/two.md
  scripts/bench-peers --readme README.md            and replaces the results in README.md")]
struct Options {
    /// Peers to measure; ours is always beside them
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [
        Family::Ucx, Family::Libfabric, Family::Iperf3, Family::Sockperf, Family::Smoltcp,
        Family::Siw,
    ])]
    peers: Vec<Family>,
    /// Fewer sizes and connections, short runs, three rounds: at most 5 minutes
    #[arg(long)]
    quick: bool,
    /// Rounds; each runs every peer once, and the results are medians over them [default: 5]
    #[arg(long)]
    rounds: Option<usize>,
    /// Seconds of each run; iperf3 and sockperf round up to whole ones [default: 1, quick: 0.3]
    #[arg(long)]
    seconds: Option<f64>,
    /// Bytes per message, the shortest first [default: 64 to 1 MiB; quick: four of them]
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<u64>,
    /// Numbers of queue pairs or connections for the shortest message [default: 1,4,16,64; quick:
    /// 1,16]
    #[arg(long, value_delimiter = ',')]
    connections: Vec<u16>,
    /// Cores of server and client
    #[arg(long, value_delimiter = ',', num_args = 2, default_values_t = [0, 1])]
    cores: Vec<usize>,
    /// The file to write; JSON and plots are written beside it
    #[arg(long, default_value = "bench/RESULTS.md")]
    out: PathBuf,
    /// A document in which to replace the main plot and the ratios
    #[arg(long)]
    readme: Option<PathBuf>,
    /// The folder of iwperf and smoltcp-loop [default: that of this program]
    #[arg(long)]
    bin: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Family {
    /// ucx_perftest over TCP and shared memory
    Ucx,
    /// Provider tcp: RDMA Writes, fi_pingpong
    Libfabric,
    /// Streams of the kernel's TCP
    Iperf3,
    /// Messages and ping-pong over the kernel's TCP
    Sockperf,
    /// smoltcp's sockets over ring, on one core
    Smoltcp,
    /// Linux's software iWARP, in a guest
    Siw,
}

/// What follows from the options.
struct Plan {
    rounds: usize,
    seconds: f64,
    sizes: Vec<u64>,
    connections: Vec<u16>,
    cores: [usize; 2],
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let plan = plan(&options)?;
    let own = std::env::current_exe()?;
    let folder = options.bin.clone().or_else(|| own.parent().map(Path::to_path_buf));
    let folder = folder.context("a program is in a folder")?;
    for program in ["iwperf", "smoltcp-loop"].map(|name| folder.join(name)) {
        ensure!(program.exists(), "{} is absent: build it first", program.display());
    }
    let scratch = process::temp_dir()?;
    let program =
        runner::Iwperf { program: folder.join("iwperf"), scratch: scratch.path().to_owned() };
    let (program, started) = (Rc::new(program), Instant::now());
    let mut comparisons = Vec::new();
    comparisons.extend(two_processes(&options, &plan, &program)?);
    if options.peers.contains(&Family::Smoltcp) {
        comparisons.extend([1500, 9000].map(|mtu| one_core(&plan, &program, &folder, mtu)));
    }
    if options.peers.contains(&Family::Siw) {
        comparisons.extend(in_guest(&options, &program, scratch.path()));
    }
    for comparison in &comparisons {
        for (name, reason) in &comparison.missing {
            eprintln!("left out: {name}: {reason}");
        }
    }
    let mut about: Vec<(String, String)> =
        host_info().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    about.push(("Congestion control of the kernel".into(), launch::CONGESTION_CONTROL.into()));
    let limit = options.quick.then(|| QUICK_LIMIT.saturating_sub(started.elapsed()));
    let mut failures = Vec::new();
    let done = rounds::run(&mut comparisons, plan.rounds, plan.seconds, limit, &mut failures);
    write(&options, &plan, &comparisons, &about, done, &failures)?;
    for failure in &failures {
        eprintln!("failed: {failure}");
    }
    let text = if done < plan.rounds { ": no time for more" } else { "" };
    eprintln!("{done} of {} rounds in {} s{text}", plan.rounds, started.elapsed().as_secs());
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn plan(options: &Options) -> Result<Plan> {
    let quick = options.quick;
    let or = |given: &[u64], full: &[u64], short: &[u64]| {
        if !given.is_empty() { given.to_vec() } else { (if quick { short } else { full }).to_vec() }
    };
    let full = [64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576];
    let sizes = or(&options.sizes, &full, &[64, 4096, 65_536, 1_048_576]);
    let connections = if !options.connections.is_empty() {
        options.connections.clone()
    } else if quick {
        vec![1, 16]
    } else {
        vec![1, 4, 16, 64]
    };
    let rounds = options.rounds.unwrap_or(if quick { 3 } else { 5 });
    let seconds = options.seconds.unwrap_or(if quick { 0.3 } else { 1.0 });
    ensure!(rounds > 0 && seconds > 0.0, "nothing to measure");
    ensure!(sizes.iter().all(|&size| size > 0), "--sizes: a message has a byte at least");
    ensure!(connections.iter().all(|&count| count > 0), "--connections: 1 at least");
    let cores = [options.cores[0], options.cores[1]];
    Ok(Plan { rounds, seconds, sizes, connections, cores })
}

/// Ours over `memif` and the peers over the kernel's loopback; none if no such peer is wanted.
fn two_processes(
    options: &Options,
    plan: &Plan,
    program: &Rc<runner::Iwperf>,
) -> Result<Option<Comparison>> {
    let has = |family| options.peers.contains(&family);
    let families = [Family::Ucx, Family::Libfabric, Family::Iperf3, Family::Sockperf];
    if !families.into_iter().any(has) {
        return Ok(None);
    }
    let mut tests: Vec<Test> =
        plan.sizes.iter().map(|&size| Test::Stream { size, connections: 1 }).collect();
    let size = plan.sizes.first().copied().unwrap_or(64);
    let counts = plan.connections.iter().filter(|&&count| count > 1);
    tests.extend(counts.map(|&connections| Test::Stream { size, connections }));
    tests.push(Test::PingPong { size: 64 });
    let mut peers: Vec<Box<dyn Peer>> = vec![
        Box::new(Iwperf::memif(Rc::clone(program), plan.cores)),
        Box::new(Iwperf::memif_jumbo(Rc::clone(program), plan.cores)),
    ];
    if let Some(reason) = netns::missing_prerequisite() {
        let mut comparison = Comparison::new(Setting::TwoProcesses, tests, peers);
        comparison.missing.push(("all others".to_owned(), reason.to_owned()));
        return Ok(Some(comparison));
    }
    let loopback = Rc::new(Loopback::new(plan.cores)?);
    let shared = || Rc::clone(&loopback);
    if has(Family::Ucx) {
        for kind in [Kind::TcpPut, Kind::TcpTag, Kind::ShmPut] {
            peers.push(Box::new(Ucx::new(kind, shared())));
        }
    }
    if has(Family::Libfabric) {
        peers.push(Box::new(libfabric::Writes::new(shared())));
        peers.push(Box::new(libfabric::PingPong::new(shared())));
    }
    if has(Family::Iperf3) {
        peers.push(Box::new(Iperf3::new(shared())));
    }
    if has(Family::Sockperf) {
        peers.push(Box::new(Sockperf::new(shared())));
    }
    Ok(Some(Comparison::new(Setting::TwoProcesses, tests, peers)))
}

/// Ours and smoltcp over `ring`.
fn one_core(plan: &Plan, program: &Rc<runner::Iwperf>, folder: &Path, mtu: u16) -> Comparison {
    let core = plan.cores[0];
    let mut tests: Vec<Test> =
        plan.sizes.iter().map(|&size| Test::Stream { size, connections: 1 }).collect();
    tests.push(Test::PingPong { size: 64 });
    let smoltcp = SmoltcpLoop::new(folder.join("smoltcp-loop"), core, mtu);
    let peers: Vec<Box<dyn Peer>> =
        vec![Box::new(Iwperf::ring(Rc::clone(program), core, mtu)), Box::new(smoltcp)];
    Comparison::new(Setting::OneCore { mtu }, tests, peers)
}

/// Ours and siw in the guest, which is booted once.
fn in_guest(options: &Options, program: &Rc<runner::Iwperf>, scratch: &Path) -> Vec<Comparison> {
    let mut tests = [64, 4096, 65_536].map(|size| Test::Stream { size, connections: 1 }).to_vec();
    if !options.quick {
        tests.extend([4, 16].map(|connections| Test::Stream { size: 64, connections }));
    }
    tests.push(Test::PingPong { size: 64 });
    let missing = |reason: String| {
        let mut comparison = Comparison::new(Setting::Guest { mtu: 1500 }, tests.clone(), vec![]);
        comparison.missing.push(("siw".to_owned(), reason));
        vec![comparison]
    };
    if let Some(reason) = netns::missing_prerequisite() {
        return missing(reason.to_owned());
    }
    let guest = match guest::boot(&program.program, &scratch.join("guest.log")) {
        Ok(guest) => Rc::new(guest),
        Err(error) => return missing(format!("{error:#}")),
    };
    let in_guest = |mtu| {
        let peer =
            |stack| -> Box<dyn Peer> { Box::new(InGuest::new(stack, Rc::clone(&guest), mtu)) };
        let peers = [Stack::Ours, Stack::OursWithCrc, Stack::Siw].map(peer);
        Comparison::new(Setting::Guest { mtu }, tests.clone(), peers.into())
    };
    [1500, 9000].map(in_guest).into()
}

/// Writes tables, JSON and plots.
fn write(
    options: &Options,
    plan: &Plan,
    comparisons: &[Comparison],
    about: &[(String, String)],
    rounds: usize,
    failures: &[String],
) -> Result<()> {
    let results = json::json(comparisons, about, rounds, plan.seconds, failures);
    write_file(
        &options.out.with_extension("json"),
        &(serde_json::to_string_pretty(&results)? + "\n"),
    )?;
    let mut text = header(plan, about, rounds);
    let mut main_plot = None;
    for comparison in comparisons {
        let mut section = report::section(comparison);
        if comparison.entries.iter().any(|entry| !entry.cells.iter().all(|c| c.rounds.is_empty())) {
            let stem = options.out.file_stem().unwrap_or_default().to_string_lossy();
            let name = format!("{stem}{}.svg", comparison.setting.suffix());
            let path = options.out.with_file_name(&name);
            plot::draw(&path, comparison)?;
            let image = format!("![{}]({name})\n\n", comparison.setting.title());
            section = section.replacen("### Ratios\n\n", &format!("{image}### Ratios\n\n"), 1);
            main_plot.get_or_insert(path);
        }
        text.push_str(&section);
    }
    if !failures.is_empty() {
        text.push_str("## Failed runs\n\n");
        for failure in failures {
            let _ = writeln!(text, "- {failure}");
        }
    }
    write_file(&options.out, &(text.trim_end().to_owned() + "\n"))?;
    let Some(readme) = &options.readme else { return Ok(()) };
    let mut main = String::new();
    if let Some(plot) = main_plot {
        let _ = write!(main, "![Ours beside other stacks]({})\n\n", plot.display());
    }
    for comparison in comparisons.iter().filter(|comparison| comparison.entries.len() > 1) {
        let _ = write!(main, "**{}**\n\n", comparison.setting.title());
        main.push_str(&report::ratios(comparison, false));
    }
    let document =
        fs::read_to_string(readme).with_context(|| format!("cannot read {}", readme.display()))?;
    let document = report::replace_marked(&document, &format!("\n{main}"))
        .with_context(|| readme.display().to_string())?;
    write_file(readme, &document)
}

fn write_file(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Formats the method and the machine.
fn header(plan: &Plan, about: &[(String, String)], rounds: usize) -> String {
    let mut text = String::from("# Beside other stacks\n\n");
    let [server, client] = plan.cores;
    let _ = writeln!(
        text,
        "Written by `scripts/bench-peers`. Rounds: {rounds}; each figure is their **median**, then \
         the lowest and the highest; runs of {} s (iperf3 and sockperf: whole seconds). In a round \
         the peers run a test one after the other, each round beginning with another one. Servers \
         are pinned to core {server}, clients to core {client}. A ratio is ours to the peer's, of \
         the runs of the same round, and the median of the rounds: above 1 for bandwidth and rate, \
         below 1 for latency, ours is ahead. Gb are 10^9 bits of payload.\n",
        plan.seconds
    );
    text.push_str(
        "To repeat: `scripts/bench-peers`; in 5 minutes: `scripts/bench-peers --quick`. \
         All samples are in the JSON file beside this one.\n\n| machine | |\n|---|---|\n",
    );
    for (name, value) in about {
        let _ = writeln!(text, "| {name} | {value} |");
    }
    text.push('\n');
    text
}
