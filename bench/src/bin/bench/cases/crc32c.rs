//! Time of CRC32C by message length: each kernel that this processor has, and two other crates.

use std::hint::black_box;
use std::time::Instant;

use anyhow::ensure;
use clap::Args;
use ferrowarp_crc32c::Kernel;

use super::{Case, Setup, pin};
use crate::bound::crc::FROZEN;
use crate::runner::{Figures, Group};

pub(crate) const CASE: Case = Case {
    name: "crc",
    title: "CRC32C by message length",
    rounds: 1,
    seconds: 0.02,
    quick: (1, 0.001),
    method: include_str!("../../../../methods/crc.md"),
};

#[derive(Args, Clone)]
pub(crate) struct Options {
    /// Bytes of a message
    #[arg(long, value_delimiter = ',',
          default_values_t = [64, 84, 128, 256, 512, 1024, 1444, 1460, 8956])]
    lens: Vec<usize>,
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
const FIGURE: &str = "ns, least of all samples";

/// An implementation and its name.
type Implementation = (String, fn(Kernel, &[u8]) -> u32, Kernel);

pub(crate) fn groups(setup: &Setup, options: &Options) -> Vec<Group> {
    let core = setup.cores[0];
    let mut implementations: Vec<Implementation> = Vec::new();
    for kernel in Kernel::available() {
        implementations.push((
            kernel.name().to_owned(),
            |kernel, bytes| kernel.crc32c(bytes),
            kernel,
        ));
    }
    let first = implementations.first().map(|(_, _, kernel)| *kernel);
    if let Some(kernel) = first {
        implementations.push(("crate crc-fast".into(), |_, bytes| (FROZEN[0].of)(bytes), kernel));
        implementations.push(("crate crc32c".into(), |_, bytes| (FROZEN[1].of)(bytes), kernel));
    }
    let group = |&len: &usize| {
        let offset = options.offset;
        let mut group = Group::new("", len.to_string()).contender("dispatched", move |seconds| {
            pin(core)?;
            measure(ferrowarp_crc32c::crc32c, len, offset, seconds)
        });
        for (name, crc32c, kernel) in &implementations {
            let (crc32c, kernel) = (*crc32c, *kernel);
            group = group
                .contender(name, move |seconds| {
                    measure(|bytes| crc32c(kernel, bytes), len, offset, seconds)
                })
                .compare("dispatched", name, FIGURE, None);
        }
        group
    };
    options.lens.iter().map(group).collect()
}

/// Returns the least of the mean times of a call; other programs and interrupts disturb some.
fn measure(
    crc32c: impl Fn(&[u8]) -> u32,
    len: usize,
    offset: usize,
    seconds: f64,
) -> anyhow::Result<Figures> {
    let buffer: Vec<u8> = (0..CACHE_LINE + offset + len)
        .map(|index| (index.wrapping_mul(0x9e37_79b9) >> 13).to_le_bytes()[0])
        .collect();
    let start = buffer.as_ptr().align_offset(CACHE_LINE) + offset;
    let message = &buffer[start..start + len];
    ensure!(crc32c(message) == (FROZEN[1].of)(message), "another CRC than the crate crc32c's");
    let calls = SAMPLE_LEN / (FIXED_LEN + len) + 1;
    let (began, mut least) = (Instant::now(), f64::INFINITY);
    while least.is_infinite() || began.elapsed().as_secs_f64() < seconds {
        let start = Instant::now();
        for _ in 0..calls {
            black_box(crc32c(black_box(message)));
        }
        least = least.min(start.elapsed().as_secs_f64() * 1e9 / calls as f64);
    }
    Ok(Figures::from([(FIGURE, least)]))
}
