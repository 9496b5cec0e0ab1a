//! Workload to profile the protocol core: two engines on one thread in virtual time, heap frames,
//! messages in one direction. `instructions` runs it under callgrind twice with different
//! counts: the difference is the cost of the messages without the set-up.

use anyhow::{Result, ensure};
use clap::Parser;
use ferrowarp_bench::engine_pair::EnginePair;
use ferrowarp_bench::workload::{Transfer, Workload};

#[derive(Parser)]
#[command(about = "Messages between two engines on one thread, in virtual time")]
struct Options {
    /// Number of messages
    #[arg(long, default_value_t = 20_000)]
    count: u64,
    /// Operation that moves them
    #[arg(long, value_enum, default_value_t = Transfer::Write)]
    transfer: Transfer,
    #[command(flatten)]
    workload: Workload,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let workload = options.workload;
    ensure!(workload.depth > 0, "--depth is at least 1");
    ensure!(workload.qps == 1, "--qps is for verbs-cost");
    let mut pair = EnginePair::connect(workload);
    let [segments, _] = pair.transfer(options.transfer, options.count);
    ensure!(pair.is_verified(), "the bytes at the sink differ from those of the source");
    println!("{segments} segments");
    Ok(())
}
