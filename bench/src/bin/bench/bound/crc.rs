//! CRC32C of the bound.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Measurements of each candidate; the fastest one counts, because disturbances only slow down.
const TRIALS: u32 = 5;
const TRIAL_TIME: Duration = Duration::from_millis(1);
/// Calls between two reads of the clock.
const CALLS_PER_CLOCK_READ: u32 = 64;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Crc {
    pub(crate) name: &'static str,
    pub(crate) of: fn(&[u8]) -> u32,
}

/// The implementations of the frozen bound: two crates, of which the faster one counts. Not to be
/// extended: faster ones belong to the best bound.
pub(crate) const FROZEN: [Crc; 2] =
    [Crc { name: "crc-fast", of: crc_fast }, Crc { name: "crc32c", of: crc32c::crc32c }];

pub(crate) const STACK: Crc = Crc { name: "ferrowarp-crc32c", of: ferrowarp_crc32c::crc32c };

/// Carry-less multiplication, with AVX-512 where available.
fn crc_fast(bytes: &[u8]) -> u32 {
    let wide = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes).to_le_bytes();
    u32::from_le_bytes([wide[0], wide[1], wide[2], wide[3]])
}

/// Returns the implementations of the frozen bound and of the best bound for `len` bytes: the
/// fastest ones on this machine, measured now, in some 20 ms.
pub(crate) fn frozen_and_best(len: usize) -> [Crc; 2] {
    let frozen = fastest(&FROZEN, len);
    [frozen, fastest(&[frozen, STACK], len)]
}

/// Returns the candidate that takes the least time for `len` bytes. The candidates take turns.
fn fastest(candidates: &[Crc], len: usize) -> Crc {
    let bytes: Vec<u8> = (0..len).map(|at| at.to_le_bytes()[0]).collect();
    let trials = (0..TRIALS).flat_map(|_| candidates).map(|crc| (time_ns(crc.of, &bytes), *crc));
    trials.min_by(|a, b| a.0.total_cmp(&b.0)).expect("there are candidates").1
}

/// Returns the time per call in nanoseconds.
fn time_ns(crc: fn(&[u8]) -> u32, bytes: &[u8]) -> f64 {
    let (start, mut calls) = (Instant::now(), 0);
    loop {
        for _ in 0..CALLS_PER_CLOCK_READ {
            black_box(crc(black_box(bytes)));
        }
        calls += CALLS_PER_CLOCK_READ;
        let elapsed = start.elapsed();
        if elapsed >= TRIAL_TIME {
            return elapsed.as_secs_f64() * 1e9 / f64::from(calls);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn implementations_agree_with_rfc3720_examples() {
        // RFC 3720 appendix B.4.
        for crc in FROZEN.into_iter().chain([STACK]) {
            assert_eq!((crc.of)(&[0; 32]), 0x8a91_36aa, "{}", crc.name);
            assert_eq!((crc.of)(&[0xff; 32]), 0x62a8_ab43, "{}", crc.name);
        }
    }
}
