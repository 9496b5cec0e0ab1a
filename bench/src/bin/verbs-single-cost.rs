//! As `verbs-cost`, with one message at a time: RDMA Reads, or Sends that answer each other.

use anyhow::{Result, ensure};
use clap::Parser;
use ferrowarp_bench::verbs_pair::single::SinglePair;
use ferrowarp_bench::workload::{Transfer, Workload};

#[derive(Parser)]
#[command(about = "Messages between two contexts on one thread, one at a time, over heap ports")]
struct Options {
    /// Number of messages
    #[arg(long, default_value_t = 20_000)]
    count: u64,
    /// Operation that moves them
    #[arg(long, value_enum, default_value_t = Transfer::PingPong)]
    transfer: Transfer,
    #[command(flatten)]
    workload: Workload,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let mut pair = SinglePair::connect(options.workload)?;
    let segments = pair.transfer(options.transfer, options.count)?;
    ensure!(pair.is_verified(), "the bytes at the sink differ from those of the source");
    println!("{segments} segments");
    std::mem::forget(pair);
    Ok(())
}
