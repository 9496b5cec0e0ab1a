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
    about = "Measures ferrowarp's TCP and the kernel's over the same emulated links; writes tables"
)]
struct Options {
    /// The file to write; JSON and plot are written beside it
    #[arg(long, default_value = "bench/TCP-VS-KERNEL.md")]
    out: PathBuf,
    /// The folder of iwlink [default: that of this program]
    #[arg(long)]
    bin: Option<PathBuf>,
    /// Frame loss in each direction, in percent
    #[arg(long, value_delimiter = ',', default_values_t = [0.0, 0.01, 0.1, 1.0, 3.0])]
    loss: Vec<f64>,
    /// RTTs in milliseconds
    #[arg(long, value_delimiter = ',', default_values_t = [1.0, 20.0])]
    rtt: Vec<f64>,
    /// Link rate
    #[arg(long, default_value = "1gbit")]
    rate: String,
    /// Queue limit in bytes
    #[arg(long, default_value = "256K")]
    queue: String,
    /// Runs of each link and pairing; the results are their medians
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Minimum warm-up of each connection in seconds
    #[arg(long, default_value_t = 3.0)]
    warm_up: f64,
    /// Minimum warm-up of each connection in round trips
    #[arg(long, default_value_t = 600.0)]
    warm_up_rounds: f64,
    /// Measured time in seconds
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Seed of the faults
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Exchanges of a request and a response per connection; 0 omits them
    #[arg(long, default_value_t = 300)]
    exchanges: usize,
    /// Frame loss in each direction for exchanges, in percent
    #[arg(long, value_delimiter = ',', default_values_t = [0.1, 1.0])]
    exchange_loss: Vec<f64>,
    /// Connections set up to measure their rate; 0 omits that
    #[arg(long, default_value_t = 4000)]
    connections: usize,
    /// Only exchanges
    #[arg(long)]
    exchanges_only: bool,
    /// Only one link, once and short, as a test
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
    let results = run(&plan, &mut failures)?;
    let exchanges = exchange::run(&plan, &mut failures)?;
    let set_ups = measure_connect_rates(&plan, &mut failures)?;
    let mut about: Vec<(String, String)> =
        host_info().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    about.extend(network::kernel_settings()?);
    let svg = options.out.with_extension("svg");
    if !results.is_empty() {
        plot::draw(&svg, &plan, &results)?;
    }
    let json = report::json(&plan, &results, &exchanges, &set_ups, &about);
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
    let plot_file = svg.file_name().unwrap_or_default().to_string_lossy().into_owned();
    text.push('\n');
    if !results.is_empty() {
        let _ = write!(text, "## Goodput\n\n![Goodput by loss]({plot_file})\n\n");
        text.push_str(&report::tables(&plan, &results));
        text.push_str(&report::emulator_summary(&results));
    }
    if !exchanges.is_empty() {
        text.push_str("## Requests and responses\n\n");
        text.push_str(&exchange::method(&plan, &exchanges));
        text.push_str(&exchange::tables(&plan, &exchanges));
    }
    if !set_ups.is_empty() {
        let _ = write!(
            text,
            "## Connections set up per second\n\nTCP's handshake, the MPA startup exchange \
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
    let folder = own.parent().context("a program is in a folder")?;
    let iwlink = options.bin.as_deref().unwrap_or(folder).join("iwlink");
    let tcp_end = folder.join("tcp-end");
    for program in [&iwlink, &tcp_end] {
        ensure!(program.exists(), "{} is absent: build it first", program.display());
    }
    let links = |losses: &[f64]| -> Vec<LinkParams> {
        let of = |&rtt_ms: &f64| {
            losses.iter().map(move |&loss_percent| LinkParams { loss_percent, rtt_ms })
        };
        options.rtt.iter().flat_map(of).collect()
    };
    let mut plan = Plan {
        links: links(&options.loss),
        exchange_links: links(&options.exchange_loss),
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
