//! Time of CRC32C by message length: each kernel that this processor has, and two other crates.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Parser;
use ferrowarp_crc32c::Kernel;

#[derive(Parser)]
#[command(about = "Minimum time of a CRC32C over a buffer in the L1 cache, in ns")]
struct Options {
    /// Bytes of a message
    #[arg(long, value_delimiter = ',',
          default_values_t = [64, 84, 128, 256, 512, 1024, 1444, 1460, 8956])]
    lens: Vec<usize>,
    /// Samples, of which the shortest counts: other programs and interrupts disturb some of them
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,
    /// Offset of the message from a cache line; 2 is that of an FPDU behind headers of 66 bytes
    #[arg(long, default_value_t = 2)]
    offset: usize,
}

/// Bytes of a cache line.
const CACHE_LINE: usize = 64;
/// Bytes that a sample computes the CRC of, approximately: it takes a microsecond or two.
const SAMPLE_LEN: usize = 20_000;
/// What a short message costs, in bytes of a long one, approximately.
const FIXED_LEN: usize = 200;

fn main() -> Result<()> {
    let options = Options::parse();
    let len_max = options.lens.iter().copied().max().unwrap_or(0);
    let buffer: Vec<u8> = (0..CACHE_LINE + options.offset + len_max)
        .map(|index| (index.wrapping_mul(0x9e37_79b9) >> 13).to_le_bytes()[0])
        .collect();
    let start = buffer.as_ptr().align_offset(CACHE_LINE) + options.offset;

    let title = |name: &str| print!("{name:<18}");
    title("bytes");
    options.lens.iter().for_each(|len| print!("{len:>8}"));
    println!();
    let mut digest = None;
    let mut measure = |name: &str, crc32c: &dyn Fn(&[u8]) -> u32| -> Result<()> {
        title(name);
        let mut crcs = 0;
        for &len in &options.lens {
            let message = &buffer[start..start + len];
            crcs ^= crc32c(message);
            print!("{:>8.1}", min_ns(crc32c, message, options.samples));
        }
        println!();
        ensure!(*digest.get_or_insert(crcs) == crcs, "{name} computes other CRCs");
        Ok(())
    };
    measure("dispatched", &ferrowarp_crc32c::crc32c)?;
    for kernel in Kernel::available() {
        measure(kernel.name(), &|bytes| kernel.crc32c(bytes))?;
    }
    measure("crate crc-fast", &|bytes| {
        let wide = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes).to_le_bytes();
        u32::from_le_bytes([wide[0], wide[1], wide[2], wide[3]])
    })?;
    measure("crate crc32c", &crc32c::crc32c)?;
    println!("digest {:08x}", digest.unwrap_or(0));
    Ok(())
}

/// Returns the minimum over `samples` of the mean time of a call.
fn min_ns(crc32c: impl Fn(&[u8]) -> u32, message: &[u8], samples: u32) -> f64 {
    let calls = SAMPLE_LEN / (FIXED_LEN + message.len()) + 1;
    let sample = |_| {
        let start = Instant::now();
        for _ in 0..calls {
            black_box(crc32c(black_box(message)));
        }
        start.elapsed().as_secs_f64() * 1e9 / calls as f64
    };
    (0..samples).map(sample).fold(f64::INFINITY, f64::min)
}
