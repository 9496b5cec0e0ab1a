//! Measures our TCP beside the kernel's, and writes `TCP-VS-KERNEL.md`.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use ferrowarp_bench::baseline::report::host_info;
use ferrowarp_bench::tcp_vs_kernel::connect_rates::measure_connect_rates;
use ferrowarp_bench::tcp_vs_kernel::goodput::run;
use ferrowarp_bench::tcp_vs_kernel::plan::{LinkParams, Plan};
use ferrowarp_bench::tcp_vs_kernel::{exchange, network, plot, report};
use ferrowarp_tests::netns;

#[derive(Parser)]
#[command(
    about = "Measures our TCP and the kernel's over the same emulated links, and writes the tables"
)]
struct Options {
    /// The file to write; JSON and drawing go beside it
    #[arg(long, default_value = "bench/TCP-VS-KERNEL.md")]
    out: PathBuf,
    /// The folder of iwlink [default: that of this program]
    #[arg(long)]
    bin: Option<PathBuf>,
    /// Frames lost each way, in percent
    #[arg(long, value_delimiter = ',', default_values_t = [0.0, 0.01, 0.1, 1.0, 3.0])]
    loss: Vec<f64>,
    /// Round trips in milliseconds
    #[arg(long, value_delimiter = ',', default_values_t = [1.0, 20.0])]
    rtt: Vec<f64>,
    /// Rate of the wire
    #[arg(long, default_value = "1gbit")]
    rate: String,
    /// Bytes that may wait in front of it
    #[arg(long, default_value = "256K")]
    queue: String,
    /// Runs of each cell; the figures are their medians
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each connection before anything is measured, at least
    #[arg(long, default_value_t = 3.0)]
    warm_up: f64,
    /// Round trips of each connection before anything is measured, at least
    #[arg(long, default_value_t = 600.0)]
    warm_up_rounds: f64,
    /// Seconds that are measured
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Decides the faults
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Requests and responses of each connection; 0 leaves them out
    #[arg(long, default_value_t = 300)]
    exchanges: usize,
    /// Frames lost each way, in percent, for those
    #[arg(long, value_delimiter = ',', default_values_t = [0.1, 1.0])]
    exchange_loss: Vec<f64>,
    /// Connections set up to learn their rate; 0 leaves that out
    #[arg(long, default_value_t = 4000)]
    connections: usize,
    /// Requests and responses alone
    #[arg(long)]
    exchanges_only: bool,
    /// One cell, once and short: whether it works
    #[arg(long)]
    quick: bool,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    if let Some(reason) = netns::missing_prerequisite() {
        bail!("{reason}");
    }
    let plan = plan(&options)?;
    let mut failures = Vec::new();
    let figures = run(&plan, &mut failures)?;
    let exchanges = exchange::run(&plan, &mut failures)?;
    let set_ups = measure_connect_rates(&plan, &mut failures)?;
    let mut about: Vec<(String, String)> =
        host_info().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    about.extend(network::kernel_settings()?);
    let svg = options.out.with_extension("svg");
    if !figures.is_empty() {
        plot::draw(&svg, &plan, &figures)?;
    }
    let json = report::json(&plan, &figures, &exchanges, &set_ups, &about);
    let path = options.out.with_extension("json");
    fs::write(&path, serde_json::to_string_pretty(&json)? + "\n")
        .with_context(|| format!("cannot write {}", path.display()))?;
    let mut text =
        String::from("# Our TCP beside the kernel's\n\nWritten by `bench/tcp-vs-kernel`. ");
    text.push_str(&report::method(&plan));
    text.push_str("\n| machine | |\n|---|---|\n");
    for (name, value) in &about {
        let _ = writeln!(text, "| {name} | {value} |");
    }
    let drawing = svg.file_name().unwrap_or_default().to_string_lossy().into_owned();
    text.push('\n');
    if !figures.is_empty() {
        let _ = write!(text, "## Goodput\n\n![Goodput by loss]({drawing})\n\n");
        text.push_str(&report::tables(&plan, &figures));
        text.push_str(&report::emulator_summary(&figures));
    }
    if !exchanges.is_empty() {
        text.push_str("## Requests and responses\n\n");
        text.push_str(&exchange::method(&plan, &exchanges));
        text.push_str(&exchange::tables(&plan, &exchanges));
    }
    if !set_ups.is_empty() {
        let _ = write!(
            text,
            "## Connections set up per second\n\nTCP's handshake, the MPA start-up exchange \
             and a graceful close; {} connections a run, medians.\n\n",
            plan.connections
        );
        text.push_str(&report::connections(&set_ups));
    }
    fs::write(&options.out, text)
        .with_context(|| format!("cannot write {}", options.out.display()))?;
    for failure in &failures {
        eprintln!("failed: {failure}");
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn plan(options: &Options) -> Result<Plan> {
    let own = std::env::current_exe()?;
    let folder = own.parent().context("a program lies in a folder")?;
    let iwlink = options.bin.as_deref().unwrap_or(folder).join("iwlink");
    let tcp_end = folder.join("tcp-end");
    for program in [&iwlink, &tcp_end] {
        ensure!(program.exists(), "{} is absent: build it first", program.display());
    }
    let cells = |losses: &[f64]| -> Vec<LinkParams> {
        let of = |&rtt_ms: &f64| {
            losses.iter().map(move |&loss_percent| LinkParams { loss_percent, rtt_ms })
        };
        options.rtt.iter().flat_map(of).collect()
    };
    let mut plan = Plan {
        links: cells(&options.loss),
        exchange_links: cells(&options.exchange_loss),
        exchanges: options.exchanges,
        rounds: options.rounds,
        warm_up_s: options.warm_up,
        warm_up_rounds: options.warm_up_rounds,
        seconds: options.seconds,
        rate: options.rate.clone(),
        queue: options.queue.clone(),
        seed: options.seed,
        connections: options.connections,
        tcp_end,
        iwlink,
    };
    if options.quick {
        plan.links = vec![LinkParams { loss_percent: 0.1, rtt_ms: 1.0 }];
        plan.rate = "200mbit".to_owned();
        plan.exchange_links.clone_from(&plan.links);
        (plan.rounds, plan.seconds, plan.connections) = (1, 0.5, 100);
        plan.exchanges = 20;
        (plan.warm_up_s, plan.warm_up_rounds) = (0.2, 0.0);
    }
    if options.exchanges_only {
        plan.links.clear();
        plan.connections = 0;
    }
    let is_empty = plan.links.is_empty() && plan.exchanges == 0;
    ensure!(plan.rounds > 0 && !is_empty, "nothing to measure");
    Ok(plan)
}
