//! Workload to profile the stack from post to polled completion: two contexts of the runtime on one
//! thread over heap ports, RDMA Writes in one direction. `instructions` runs it under callgrind, as
//! `core-cost`, and under lackey for the memory that it touches.

use anyhow::{Result, ensure};
use clap::Parser;
use ferrowarp_bench::verbs_pair::VerbsPair;
use ferrowarp_bench::workload::Workload;

#[derive(Parser)]
#[command(about = "RDMA Writes between two contexts on one thread, over heap ports")]
struct Options {
    /// Number of RDMA Writes
    #[arg(long, default_value_t = 20_000)]
    count: u64,
    #[command(flatten)]
    workload: Workload,
    /// Polls of the source that find nothing to do, in place of Writes
    #[arg(long)]
    idle: bool,
    /// Before, other queues of the source: 10,000 idle queue pairs, 1,000 shared receive queues,
    /// and 10,000 queue pairs whose requests wait for a full completion queue
    #[arg(long, requires = "idle")]
    crowded: bool,
    /// Further RDMA Writes, with marks for a memory trace
    #[arg(long, value_name = "COUNT")]
    marked: Option<u64>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let workload = options.workload;
    ensure!(workload.depth > 0 && workload.qps > 0, "--depth and --qps are at least 1");
    let mut pair = VerbsPair::connect(workload, options.idle)?;
    let crowd = options.crowded.then(|| pair.add_crowd()).transpose()?;
    let segments = if options.idle {
        pair.poll_idle(options.count);
        0
    } else {
        pair.write(options.count)
    };
    if let Some(count) = options.marked {
        pair.write_marked(count)?;
    }
    pair.drain();
    ensure!(pair.is_verified(), "the bytes at the sink differ from those of the source");
    println!("{segments} segments");
    // Closing would take time, and much of a short trace.
    std::mem::forget((pair, crowd));
    Ok(())
}
