//! Workload to profile the protocol core: two engines on one thread in virtual time, heap frames,
//! RDMA Writes in one direction. `instructions` runs it under callgrind twice with different
//! counts: the difference is the cost of the messages without the set-up.

use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Parser;
use ferrowarp_bench::engine_pair::EnginePair;
use ferrowarp_bench::workload::Workload;

#[derive(Parser)]
#[command(about = "RDMA Writes between two engines on one thread, in virtual time")]
struct Options {
    /// Number of RDMA Writes
    #[arg(long, default_value_t = 20_000)]
    count: u64,
    #[command(flatten)]
    workload: Workload,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let workload = options.workload;
    ensure!(workload.depth > 0, "--depth is at least 1");
    let mut pair = EnginePair::connect(workload);
    let start = Instant::now();
    let counts = pair.write(options.count);
    let elapsed = start.elapsed();
    let (digest, is_equal) = pair.digest();
    ensure!(is_equal, "the bytes at the sink differ from those of the source");
    let ns = elapsed.as_secs_f64() * 1e9;
    println!(
        "{} writes of {} bytes, {} segments, {} acks, digest {digest:08x}",
        counts.writes, workload.size, counts.segments, counts.acks
    );
    println!(
        "{:.1} ns per segment, {:.1} ns per write, {:.2} Gb/s (both ends on one core)",
        ns / counts.segments as f64,
        ns / counts.writes as f64,
        counts.writes as f64 * f64::from(workload.size) * 8.0 / ns
    );
    Ok(())
}
