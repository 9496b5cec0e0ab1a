//! The bound of copy and CRC on this machine: what a stack with no protocol at all would reach.

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Parser;
use ferrowarp_bench::copy_crc_bound::{self, CopyCrcParams, Crc};

#[derive(Parser)]
#[command(about = "Bandwidth of copy and CRC at both ends, without any protocol, in Gb/s")]
struct Options {
    /// Bytes of a piece
    #[arg(long, value_delimiter = ',', default_values_t = [1460, 8960])]
    pieces: Vec<usize>,
    /// Bytes of the message that is sent over and over
    #[arg(long, default_value_t = 65_536)]
    message: usize,
    /// Seconds for each figure
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Cores of the two ends; with one, nothing is handed over
    #[arg(long, value_delimiter = ',')]
    cores: Vec<usize>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    ensure!(options.pieces.iter().all(|&len| len > 0), "a piece has at least one byte");
    let duration = Duration::try_from_secs_f64(options.seconds)?;
    let cores = if options.cores.is_empty() {
        core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect()
    } else {
        options.cores
    };
    let works = || {
        options.pieces.iter().flat_map(|&piece_len| {
            [Crc::Off, Crc::CrcFast, Crc::Crc32c].map(|crc| CopyCrcParams {
                segment_len: piece_len,
                message_len: options.message,
                crc,
            })
        })
    };
    println!("{:<10}{:<10}{:>12}{:>12}", "piece", "CRC", "one core", "two cores");
    let two = cores.first_chunk::<2>();
    for work in works() {
        let across = match two {
            Some(&cores) => format!("{:.2}", copy_crc_bound::two_cores(work, cores, duration)?),
            None => "-".to_owned(),
        };
        let one = match cores.first() {
            Some(&core) => copy_crc_bound::one_core_pinned(work, core, duration)?,
            None => copy_crc_bound::one_core(work, duration),
        };
        println!("{:<10}{:<10}{one:>12.2}{across:>12}", work.segment_len, work.crc.name());
    }
    if let Some(&cores) = two {
        println!(
            "a cache line there and back: {:.0} ns",
            copy_crc_bound::cache_line_round_trip_ns(cores, 1_000_000)?
        );
    }
    Ok(())
}
