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
    let bytes: Vec<u8> = (0..len).map(|at| at.to_le_bytes()[0]).collect();
    let work = |crc: &Crc| {
        black_box((crc.of)(black_box(&bytes)));
    };
    let frozen = FROZEN[fastest(&FROZEN, work)];
    let candidates = [frozen, STACK];
    [frozen, candidates[fastest(&candidates, work)]]
}

/// Returns the index of the candidate whose call of `work` takes the least time. The candidates
/// take turns.
pub(crate) fn fastest<T>(candidates: &[T], mut work: impl FnMut(&T)) -> usize {
    let mut least_ns = vec![f64::INFINITY; candidates.len()];
    for _ in 0..TRIALS {
        for (candidate, least_ns) in candidates.iter().zip(&mut least_ns) {
            *least_ns = least_ns.min(time_ns(|| work(candidate)));
        }
    }
    let least = (0..candidates.len()).min_by(|&a, &b| least_ns[a].total_cmp(&least_ns[b]));
    least.expect("there are candidates")
}

/// Returns the time per call of `work` in nanoseconds.
fn time_ns(mut work: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut calls = 0;
    loop {
        for _ in 0..CALLS_PER_CLOCK_READ {
            work();
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
