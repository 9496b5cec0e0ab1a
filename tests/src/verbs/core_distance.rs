//! Distance between two cores. Under a hypervisor that moves virtual cores it changes within
//! seconds, and with it the rate of everything that passes data between them.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use core_affinity::CoreId;

/// Round trips of a measurement: some milliseconds.
const ROUND_TRIPS: u32 = 10_000;
/// Ratio of two distances up to which they count as the same.
const SAME: f64 = 1.5;

/// Distances that were measured while some programs ran.
#[derive(Debug, Default)]
pub struct CoreDistances(Vec<f64>);

impl CoreDistances {
    /// Measures the distance now; nothing on a machine with one core.
    pub fn measure(&mut self) {
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        if let [first, second, ..] = cores[..] {
            self.0.push(round_trip_ns(first, second));
        }
    }

    /// True if the distance has not changed between the measurements.
    #[must_use]
    pub fn are_same(&self) -> bool {
        let nearest = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        self.0.iter().all(|distance| distance / nearest <= SAME)
    }
}

/// Returns the mean time in which a cache line that one core writes reaches the other, and comes
/// back.
fn round_trip_ns(first: CoreId, second: CoreId) -> f64 {
    let line = AtomicU32::new(0);
    // Each end waits for the other's number, and writes the next one.
    let pass = |core: CoreId, begin: u32| {
        core_affinity::set_for_current(core);
        let start = Instant::now();
        for trip in 0..ROUND_TRIPS {
            while line.load(Ordering::Acquire) != 2 * trip + begin {
                std::hint::spin_loop();
            }
            line.store(2 * trip + begin + 1, Ordering::Release);
        }
        start.elapsed()
    };
    thread::scope(|scope| {
        let threads =
            [(first, 0), (second, 1)].map(|(core, begin)| scope.spawn(move || pass(core, begin)));
        let [_, of_second] = threads.map(|thread| thread.join().expect("it only waits"));
        of_second.as_secs_f64() * 1e9 / f64::from(ROUND_TRIPS)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_same_within_half() {
        assert!(CoreDistances::default().are_same());
        assert!(CoreDistances(vec![110.0, 150.0, 105.0]).are_same());
        assert!(!CoreDistances(vec![110.0, 440.0, 110.0]).are_same());
    }

    #[test]
    fn distance_is_measured() {
        let mut distances = CoreDistances::default();
        distances.measure();
        assert!(distances.0.iter().all(|&distance| distance > 0.0));
    }
}
