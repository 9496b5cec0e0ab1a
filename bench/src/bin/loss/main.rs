//! Goodput under loss over `ring` at full speed, of the lossless run, and how soon header
//! prediction processes segments again after a recovery.

mod pair;
mod port;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use ferrowarp::TcpStats;
use ferrowarp::device::register_current_thread;
use ferrowarp_bench::paired::interval::MedianInterval;

use crate::pair::Pair;

/// Time in which a loss has to be repaired.
const REPAIR_TIME_MAX: Duration = Duration::from_secs(10);
/// Time before the measurements of a connection: slow start, and growth of the window.
const WARM_UP: Duration = Duration::from_millis(100);

/// Measures RDMA Writes over ring while frames of the source are lost, both ends on one core.
///
/// Goodput: pairs of runs without and with random loss, each on a connection of its own, in reverse
/// order every other time; the median of the ratios, with its interval.
///
/// Recovery: single frames are lost. After each repair the segments that either end receives are
/// counted, and those that take the slow path of TCP among them.
#[derive(Parser)]
#[command(max_term_width = 100)]
struct Options {
    /// Probability that a frame of the source is lost
    #[arg(long, default_value_t = 1e-4)]
    rate: f64,
    /// Pairs of runs; fewer than six give an interval of less than 95 %
    #[arg(long, default_value_t = 9)]
    pairs: usize,
    /// Seconds of each run
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Single losses
    #[arg(long, default_value_t = 100)]
    single: u64,
    /// Segments to count after the repair of each single loss
    #[arg(long, default_value_t = 10_000)]
    segments: u32,
    /// Bytes per RDMA Write
    #[arg(long, default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..))]
    size: u32,
    /// MTU in bytes
    #[arg(long, default_value_t = 1500)]
    mtu: u16,
    /// Core of both ends [default: the first of this task]
    #[arg(long)]
    core: Option<usize>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    ensure!((0.0..1.0).contains(&options.rate), "--rate {}: from 0 to below 1", options.rate);
    ensure!(options.pairs > 0, "--pairs 0 measures nothing: 9 give an interval of 96 %");
    ensure!(options.seconds > 0.0 && options.seconds.is_finite(), "--seconds: a positive number");
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let core = match options.core {
        Some(id) => cores.iter().find(|core| core.id == id),
        None => cores.first(),
    };
    let core = *core.context("--core: this task may not run there, or its cores are unknown")?;
    ensure!(core_affinity::set_for_current(core), "cannot pin to core {}", core.id);
    register_current_thread();
    goodput(&options)?;
    recovery(&options)
}

fn goodput(options: &Options) -> Result<()> {
    let duration = Duration::from_secs_f64(options.seconds);
    let mut ratios = Vec::new();
    let mut lost_total = 0;
    println!("| Gb/s without loss | with | ratio | frames lost | retransmitted | recoveries |");
    println!("|---:|---:|---:|---:|---:|---:|");
    for number in 0..options.pairs {
        let mut gbits = [0.0; 2];
        let mut line = String::new();
        let order = if number % 2 == 0 { [0, 1] } else { [1, 0] };
        for is_lossy in order {
            let rate = if is_lossy == 1 { options.rate } else { 0.0 };
            let mut pair = Pair::connect(options.mtu, options.size, rate, number as u64)?;
            pair.bandwidth(WARM_UP)?;
            let ([before, _], lost) =
                (pair.tcp_stats()?, pair.losses.count.load(Ordering::Relaxed));
            gbits[is_lossy] = pair.bandwidth(duration)?;
            if is_lossy == 1 {
                let [now, _] = pair.tcp_stats()?;
                let lost = pair.losses.count.load(Ordering::Relaxed) - lost;
                let retransmits = now.retransmits.wrapping_sub(before.retransmits);
                let recoveries = now.fast_recoveries.wrapping_sub(before.fast_recoveries);
                line = format!("{lost} | {retransmits} | {recoveries}");
                lost_total += lost;
            }
        }
        let [without, with] = gbits;
        ratios.push(with / without);
        println!("| {without:.2} | {with:.2} | {:.3} | {line} |", with / without);
    }
    ensure!(options.rate == 0.0 || lost_total > 0, "no frame was lost: more --seconds");
    let ratio = MedianInterval::of(ratios).context("no pair")?;
    println!(
        "\nGoodput with loss {}: {:.3} of that without ({:.3} to {:.3}).",
        options.rate, ratio.median, ratio.low, ratio.high
    );
    Ok(())
}

fn recovery(options: &Options) -> Result<()> {
    if options.single == 0 {
        return Ok(());
    }
    let mut pair = Pair::connect(options.mtu, options.size, 0.0, 1)?;
    pair.bandwidth(WARM_UP)?;
    let mut repair_time = Duration::ZERO;
    let [mut during, mut after] = [[Received::default(); 2]; 2];
    for _ in 0..options.single {
        let before = pair.tcp_stats()?;
        pair.losses.due.store(1, Ordering::Relaxed);
        let start = Instant::now();
        while !is_repaired(&pair, &before[0])? {
            ensure!(start.elapsed() < REPAIR_TIME_MAX, "a loss was not repaired");
            pair.poll()?;
        }
        repair_time += start.elapsed();
        let repaired = pair.tcp_stats()?;
        let mut now = repaired;
        while now[1].segments_in.wrapping_sub(repaired[1].segments_in) < options.segments {
            for _ in 0..32 {
                pair.poll()?;
            }
            now = pair.tcp_stats()?;
        }
        for end in 0..2 {
            during[end].add(&before[end], &repaired[end]);
            after[end].add(&repaired[end], &now[end]);
        }
    }
    let losses = options.single as f64;
    println!(
        "\n{losses} single losses, repaired after {:.0} us on average. Meanwhile {:.1} segments at \
         the sink and {:.1} ACKs at the source took the slow path of TCP. Of the next {} segments \
         header prediction processed {:.5}, and of their ACKs {:.5}.",
        repair_time.as_secs_f64() * 1e6 / losses,
        during[1].slow as f64 / losses,
        during[0].slow as f64 / losses,
        options.segments,
        after[1].fast_share(),
        after[0].fast_share(),
    );
    Ok(())
}

/// Segments that an end received.
#[derive(Clone, Copy, Default)]
struct Received {
    all: u64,
    /// Those that took the slow path.
    slow: u64,
}

impl Received {
    fn add(&mut self, before: &TcpStats, now: &TcpStats) {
        self.all += u64::from(now.segments_in.wrapping_sub(before.segments_in));
        self.slow += u64::from(now.slow_path_in.wrapping_sub(before.slow_path_in));
    }

    fn fast_share(&self) -> f64 {
        1.0 - self.slow as f64 / self.all as f64
    }
}

/// True if a recovery has ended since.
fn is_repaired(pair: &Pair, before: &TcpStats) -> Result<bool> {
    let [now, _] = pair.tcp_stats()?;
    Ok(now.recoveries_ended != before.recoveries_ended)
}
