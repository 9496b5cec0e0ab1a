//! Measures the bound of copy and CRC on this machine: the bandwidth without any protocol.

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Parser;
use ferrowarp_bench::copy_crc_bound::{self, CopyCrcParams, Crc};

#[derive(Parser)]
#[command(about = "Bandwidth of copy and CRC at both ends, without any protocol, in Gb/s")]
struct Options {
    /// Bytes per segment
    #[arg(long, value_delimiter = ',', default_values_t = [1460, 8960])]
    pieces: Vec<usize>,
    /// Bytes of the message, which is sent repeatedly
    #[arg(long, default_value_t = 65_536)]
    message: usize,
    /// Seconds per measurement
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Cores of the two ends; with one, only one core is measured
    #[arg(long, value_delimiter = ',')]
    cores: Vec<usize>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    ensure!(options.pieces.iter().all(|&len| len > 0), "a segment has at least one byte");
    let duration = Duration::try_from_secs_f64(options.seconds)?;
    let cores = if options.cores.is_empty() {
        core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect()
    } else {
        options.cores
    };
    let all_params = || {
        options.pieces.iter().flat_map(|&segment_len| {
            [Crc::Off, Crc::CrcFast, Crc::Crc32c].map(|crc| CopyCrcParams {
                segment_len,
                message_len: options.message,
                crc,
            })
        })
    };
    println!("{:<10}{:<10}{:>12}{:>12}", "segment", "CRC", "one core", "two cores");
    let two = cores.first_chunk::<2>();
    for params in all_params() {
        let two_core_rate = match two {
            Some(&cores) => format!("{:.2}", copy_crc_bound::two_cores(params, cores, duration)?),
            None => "-".to_owned(),
        };
        let one = match cores.first() {
            Some(&core) => copy_crc_bound::one_core_pinned(params, core, duration)?,
            None => copy_crc_bound::one_core(params, duration),
        };
        println!(
            "{:<10}{:<10}{one:>12.2}{two_core_rate:>12}",
            params.segment_len,
            params.crc.name()
        );
    }
    if let Some(&cores) = two {
        println!(
            "a cache line there and back: {:.0} ns",
            copy_crc_bound::cache_line_round_trip_ns(cores, 1_000_000)?
        );
    }
    Ok(())
}
