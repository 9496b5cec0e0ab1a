//! Measures what many connections cost, and writes `CONNECTIONS.md`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, ValueEnum};
use core_affinity::CoreId;
use ferrowarp::device::register_current_thread;
use ferrowarp_bench::connections::allocations::Allocated;
use ferrowarp_bench::connections::results::{Control, Results};
use ferrowarp_bench::connections::{
    control, idle, json, many, memory, plot, report, setup_rate, soak,
};
use ferrowarp_bench::program::{write, write_json};

/// Measures what many connections cost: to a busy one beside them, in memory, in set-up and end, to
/// control calls, and over hours.
///
/// Two contexts in one process, over ring; needs no NIC. All parts take about 75 minutes, of which
/// the soak takes 60; it fails (exit status 1) if memory grows, or anything is lost or left over.
/// The report has the method of each part, and whether its limit is kept.
///
/// For instance: `--only memory,many`; `--only soak --seconds 60`; `--quick --out /tmp/report.md`.
#[derive(Parser)]
#[command(max_term_width = 100)]
struct Options {
    /// Only these parts [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAME,..")]
    only: Vec<Part>,
    /// Fewer and shorter rounds, and a soak of a minute: some minutes in all
    #[arg(long, conflicts_with_all = ["rounds", "seconds", "run_seconds"])]
    quick: bool,
    /// Rounds of each paired figure; fewer than six give an interval of less than 95 %
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Seconds of the soak
    #[arg(long, default_value_t = 3600.0)]
    seconds: f64,
    /// Seconds of each run of a busy queue pair
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    run_seconds: f64,
    /// Open connections beside the measured ones, and of each step of `memory`
    #[arg(long, default_value_t = 10_000, value_parser = count_up_to(50_000))]
    idle: u32,
    /// Connections of `many`
    #[arg(long, default_value_t = 100_000, value_parser = count_up_to(1_000_000))]
    many: u32,
    /// Messages on each connection of `many`
    #[arg(long, default_value_t = 3)]
    messages: usize,
    /// Connections of `setup-rate` that are set up and ended
    #[arg(long, default_value_t = 4000, value_parser = count_up_to(50_000))]
    set_ups: u32,
    /// Shards of each context of `control-latency`, compared with one
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u8).range(1..=64))]
    shards: u8,
    /// Control calls of each kind in a round
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    calls: u32,
    /// Shards of each context of `soak`, each with a thread
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    soak_shards: u8,
    /// Threads of `soak` that make connections
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    workers: u8,
    /// Cores [default: those of this task]. The first one measures; of `control-latency` the last
    /// one calls, and the others drive the shards
    #[arg(long, value_delimiter = ',', value_name = "A,B,..")]
    cores: Vec<usize>,
    /// The Markdown file to write; JSON is written beside it
    #[arg(long, default_value = "bench/CONNECTIONS.md", value_name = "FILE")]
    out: PathBuf,
}

/// A part of the measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Memory of an idle connected queue pair
    Memory,
    /// Time of a busy queue pair's Writes, alone and beside idle connections
    IdleBesideBusy,
    /// Very many connections: set up, used, ended
    Many,
    /// Connections set up and ended per second, with none and with others open
    SetupRate,
    /// Latency of connecting and of deregistering a region, with many shards under load
    ControlLatency,
    /// Connections made, used, broken and ended for an hour
    Soak,
}

fn count_up_to(max: i64) -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=max)
}

fn main() -> Result<ExitCode> {
    let mut options = Options::parse();
    if options.quick {
        (options.rounds, options.seconds, options.run_seconds) = (6, 60.0, 0.3);
    }
    if options.cores.is_empty() {
        let ours = core_affinity::get_core_ids().unwrap_or_default();
        options.cores = ours.iter().map(|core| core.id).collect();
    }
    ensure!(options.rounds > 0, "--rounds 0 measures nothing: 9 give an interval of 96 %");
    let mut results = Results::default();
    // Memory first: later parts leave freed memory behind.
    for part in Part::value_variants() {
        if !options.only.is_empty() && !options.only.contains(part) {
            continue;
        }
        // On a thread of its own, so that this one keeps its affinity.
        let done = std::thread::scope(|scope| {
            let thread = scope.spawn(|| measure(*part, &options, &mut results));
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        if let Err(error) = done {
            let name = part.to_possible_value().map_or_else(String::new, |it| it.get_name().into());
            eprintln!("failed: {name}: {error:#}");
            results.failures.push(format!("{name}: {error:#}"));
        }
    }
    print!("{}", report::tables(&results));
    write_json(&options.out.with_extension("json"), &json::json(&results))?;
    let plot = options.out.with_extension("svg");
    let is_drawn = match &results.soak {
        Some(soak) => plot::draw(&plot, soak)?,
        None => false,
    };
    let plot = plot.file_name().and_then(|name| name.to_str()).filter(|_| is_drawn);
    write(&options.out, &report::markdown(&results, plot))?;
    Ok(if results.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn measure(part: Part, options: &Options, results: &mut Results) -> Result<()> {
    let Options { rounds, idle, set_ups, .. } = options;
    let (idle, set_ups) = (*idle as usize, *set_ups as usize);
    let progress = |line: &str| eprintln!("{line}");
    if !matches!(part, Part::ControlLatency | Part::Soak)
        && let Some(&core) = options.cores.first()
    {
        ensure!(core_affinity::set_for_current(CoreId { id: core }), "cannot pin to core {core}");
        register_current_thread();
    }
    match part {
        Part::Memory => results.memory = Some(memory::run(idle, count_allocations, progress)?),
        Part::IdleBesideBusy => {
            let duration = duration(options.run_seconds, "--run-seconds")?;
            results.idle = Some((idle, idle::run(idle, *rounds, duration, progress)?));
        }
        Part::Many => {
            results.many = Some(many::run(options.many as usize, options.messages, progress)?);
        }
        Part::SetupRate => {
            let rates = setup_rate::run(idle, set_ups, *rounds, progress)?;
            results.setup_rate = Some((set_ups, idle, rates));
        }
        Part::ControlLatency => results.control = Some(control_latency(options, progress)?),
        Part::Soak => {
            let setup = soak::Setup {
                duration: duration(options.seconds, "--seconds")?,
                shards: options.soak_shards.into(),
                workers: options.workers.into(),
            };
            let soak = soak::run(&setup, progress)?;
            let failures = soak.failures.join("; ");
            results.soak = Some(soak);
            ensure!(failures.is_empty(), failures);
        }
    }
    Ok(())
}

/// Measures with one shard and with many in turn.
fn control_latency(options: &Options, progress: impl Fn(&str)) -> Result<Control> {
    let setups = [1, options.shards.into()].map(|shards| control::Setup {
        shards,
        samples: options.calls as usize,
        cores: options.cores.clone(),
    });
    let mut rounds = Vec::new();
    for round in 0..options.rounds {
        let mut latencies = [None, None];
        for which in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
            let measured = control::run(&setups[which])?;
            progress(&format!(
                "control-latency, round {} of {}, {} shards on {} threads: p50 of connect {:.1} \
                 us, of deregister {:.1} us",
                round + 1,
                options.rounds,
                setups[which].shards,
                setups[which].driver_count(),
                measured.connect.value_at_quantile(0.5) as f64 / 1e3,
                measured.deregister.value_at_quantile(0.5) as f64 / 1e3
            ));
            latencies[which] = Some(measured);
        }
        let [Some(one), Some(many)] = latencies else { continue };
        rounds.push([one, many]);
    }
    let shards = setups.each_ref().map(|setup| setup.shards);
    let drivers = setups.each_ref().map(control::Setup::driver_count);
    Ok(Control { shards, drivers, rounds })
}

fn duration(seconds: f64, option: &str) -> Result<Duration> {
    ensure!(seconds > 0.0, "{option} {seconds}: give a positive number");
    Duration::try_from_secs_f64(seconds).with_context(|| option.to_owned())
}

fn count_allocations(act: &mut dyn FnMut()) -> Allocated {
    let info = allocation_counter::measure(act);
    Allocated { bytes: info.bytes_current, count: info.count_current }
}
