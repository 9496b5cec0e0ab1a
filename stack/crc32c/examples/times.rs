//! Time of CRC32C by message length in nanoseconds: the dispatched function, each kernel that this
//! processor can execute, and two other crates.
//!
//! The messages lie in the L1 cache, two bytes after a cache line as an FPDU behind headers of 66
//! bytes. Each time is the least mean of many samples: interrupts and other programs disturb some.

use std::hint::black_box;
use std::time::{Duration, Instant};

use ferrowarp_crc32c::Kernel;

const LENS: [usize; 9] = [64, 84, 128, 256, 512, 1024, 1444, 1460, 8956];
const CACHE_LINE: usize = 64;
const OFFSET: usize = 2;
/// Bytes per sample, approximately: it takes a microsecond or two.
const SAMPLE_LEN: usize = 20_000;
/// Cost of a short message in bytes of a long one, approximately.
const FIXED_LEN: usize = 200;
const DURATION: Duration = Duration::from_millis(20);

type Implementation = Box<dyn Fn(&[u8]) -> u32>;

fn main() {
    let mut all: Vec<(&str, Implementation)> =
        vec![("dispatched", Box::new(ferrowarp_crc32c::crc32c))];
    for kernel in Kernel::available() {
        all.push((kernel.name(), Box::new(move |bytes| kernel.crc32c(bytes))));
    }
    let iscsi = crc_fast::CrcAlgorithm::Crc32Iscsi;
    let crc_fast = move |bytes: &[u8]| u32::try_from(crc_fast::checksum(iscsi, bytes));
    all.push(("crate crc-fast", Box::new(move |bytes| crc_fast(bytes).expect("32 bits"))));
    all.push(("crate crc32c", Box::new(crc32c::crc32c)));
    print!("{:24}", "bytes");
    LENS.iter().for_each(|len| print!("{len:7}"));
    println!();
    for (name, implementation) in &all {
        print!("{name:24}");
        LENS.iter().for_each(|&len| print!("{:7.1}", least_ns(implementation, len)));
        println!();
    }
}

fn least_ns(implementation: &Implementation, len: usize) -> f64 {
    let buffer: Vec<u8> = (0..CACHE_LINE + OFFSET + len)
        .map(|index| (index.wrapping_mul(0x9e37_79b9) >> 13).to_le_bytes()[0])
        .collect();
    let start = buffer.as_ptr().align_offset(CACHE_LINE) + OFFSET;
    let message = &buffer[start..start + len];
    assert_eq!(implementation(message), crc32c::crc32c(message), "another CRC than the crate's");
    let calls = SAMPLE_LEN / (FIXED_LEN + len) + 1;
    let (began, mut least) = (Instant::now(), f64::INFINITY);
    while began.elapsed() < DURATION {
        let start = Instant::now();
        for _ in 0..calls {
            black_box(implementation(black_box(message)));
        }
        least = least.min(start.elapsed().as_secs_f64() * 1e9 / calls as f64);
    }
    least
}
