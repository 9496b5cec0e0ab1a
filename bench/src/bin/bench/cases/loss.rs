//! Goodput under loss over `ring` at full speed, and how soon header prediction processes segments
//! again after a recovery.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use ferrowarp::Context;

use super::lossy_port::{Losses, LossyPort};
use super::{Case, Setup};
use crate::cores::on_core;
use crate::ring::{Pair, STREAM_WARM_UP, config, open_ring};
use crate::runner::{Figures, Group};

pub(crate) const CASE: Case =
    Case { name: "loss", title: "Goodput under loss", rounds: 9, seconds: 1.0, quick: (6, 0.3) };

const MTU: u16 = 1500;
/// Time in which a loss has to be repaired.
const REPAIR_TIME_MAX: Duration = Duration::from_secs(10);

#[derive(Args, Clone, Copy)]
pub(crate) struct Options {
    /// Probability that a frame of the source is lost
    #[arg(long, default_value_t = 1e-4)]
    rate: f64,
    /// Single losses
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    single: u32,
    /// Segments to count after the repair of each single loss
    #[arg(long, default_value_t = 10_000)]
    segments: u32,
}

/// Figures of the single losses.
const REPAIR: [&str; 3] = [
    "us to the repair of a loss",
    "segments meanwhile, slow path at the sink",
    "predicted share of the segments after it",
];
const RETRANSMITTED: &str = "frames retransmitted";
const LOST: &str = "frames lost";

pub(crate) fn groups(setup: &Setup, options: Options) -> Result<Vec<Group>> {
    ensure!((0.0..1.0).contains(&options.rate), "--rate {}: from 0 to below 1", options.rate);
    let core = setup.cores[0];
    let mut seed = 0;
    let name = format!("goodput at a loss of {}", options.rate);
    let goodput = Group::new("Goodput", name)
        .contender("with loss", move |seconds| {
            seed += 1;
            on_core(core, move || goodput(options.rate, seed, seconds))
        })
        .contender("without", move |seconds| on_core(core, move || goodput(0.0, 0, seconds)))
        .compare("with loss", "without", "Gb/s", None)
        .show("with loss", &[LOST, RETRANSMITTED], None);
    let recovery = Group::new("Recovery from single losses", "single losses")
        .contender("ours", move |_| on_core(core, move || recovery(options)))
        .show("ours", &REPAIR, None)
        .once();
    Ok(vec![goodput, recovery])
}

/// Connects two ends at full speed; frames of the source are lost, but no ACKs: the next one
/// reports the same.
fn connect(rate: f64, seed: u64) -> Result<(Pair, Arc<Losses>)> {
    let (left, right) = open_ring(MTU, 1)?;
    let losses = Arc::<Losses>::default();
    let left = Context::over(LossyPort::new(left, rate, seed, &losses), config(1, MTU, 1))?;
    let mut pair = Pair::connect(left, Context::over(right, config(2, MTU, 1))?)?;
    pair.run(STREAM_WARM_UP)?;
    Ok((pair, losses))
}

fn goodput(rate: f64, seed: u64, seconds: f64) -> Result<Figures> {
    let (mut pair, losses) = connect(rate, seed)?;
    let counts = |pair: &Pair| -> Result<_> {
        Ok((pair.tcp_stats()?[0], losses.count.load(Ordering::Relaxed)))
    };
    let (before, lost_before) = counts(&pair)?;
    let gbit_s = pair.run(Duration::from_secs_f64(seconds))?;
    let (now, lost) = counts(&pair)?;
    ensure!(rate == 0.0 || lost > 0, "no frame was lost: more --seconds");
    let retransmits = now.retransmits.wrapping_sub(before.retransmits);
    Ok(Figures::from([
        ("Gb/s", gbit_s),
        (LOST, (lost - lost_before) as f64),
        (RETRANSMITTED, retransmits.into()),
    ]))
}

/// Loses single frames. After each repair the segments that the sink receives are counted, and
/// those among them that take the slow path of TCP.
fn recovery(options: Options) -> Result<Figures> {
    let (mut pair, losses) = connect(0.0, 0)?;
    let mut repair_time = Duration::ZERO;
    let (mut slow_during, mut slow_after, mut received) = (0.0, 0.0, 0.0);
    let grown = |from: u32, to: u32| f64::from(to.wrapping_sub(from));
    for _ in 0..options.single {
        let [source, before] = pair.tcp_stats()?;
        losses.is_due.store(true, Ordering::Relaxed);
        let start = Instant::now();
        while pair.tcp_stats()?[0].recoveries_ended == source.recoveries_ended {
            ensure!(start.elapsed() < REPAIR_TIME_MAX, "a loss was not repaired");
            pair.poll()?;
        }
        repair_time += start.elapsed();
        let [_, repaired] = pair.tcp_stats()?;
        let mut now = repaired;
        while now.segments_in.wrapping_sub(repaired.segments_in) < options.segments {
            for _ in 0..32 {
                pair.poll()?;
            }
            now = pair.tcp_stats()?[1];
        }
        slow_during += grown(before.slow_path_in, repaired.slow_path_in);
        slow_after += grown(repaired.slow_path_in, now.slow_path_in);
        received += grown(repaired.segments_in, now.segments_in);
    }
    let count = f64::from(options.single);
    let repair_us = repair_time.as_secs_f64() * 1e6 / count;
    let values = [repair_us, slow_during / count, 1.0 - slow_after / received];
    Ok(REPAIR.into_iter().zip(values).collect())
}
