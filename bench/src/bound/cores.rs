//! Threads on given cores, and the distance between two cores.

use std::hint::spin_loop;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Result, bail, ensure};

/// Bits of a CPU set.
const CPU_SETSIZE: usize = 1024;

/// Pins the calling thread. False if the core does not exist or is not allowed.
#[must_use]
pub fn pin(core: usize) -> bool {
    core < CPU_SETSIZE && core_affinity::set_for_current(core_affinity::CoreId { id: core })
}

/// Runs `work` on a thread pinned to `core`.
///
/// # Errors
/// If the thread cannot be pinned.
///
/// # Panics
/// If `work` panics.
pub fn run_on_core<T: Send>(core: usize, work: impl FnOnce() -> T + Send) -> Result<T> {
    let (is_pinned, result) = thread::scope(|scope| {
        let thread = scope.spawn(|| (pin(core), work()));
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    ensure!(is_pinned, "cannot pin to core {core}: choose one of this task's with --cores");
    Ok(result)
}

/// Runs two closures concurrently, each pinned to its core.
///
/// # Errors
/// If a thread cannot be pinned.
///
/// # Panics
/// If a closure panics.
pub fn run_on_cores<A: Send, B: Send>(
    cores: [usize; 2],
    first: impl FnOnce() -> A + Send,
    second: impl FnOnce() -> B + Send,
) -> Result<(A, B)> {
    let ready = Barrier::new(2);
    let begin = |core| {
        let is_pinned = pin(core);
        ready.wait();
        is_pinned
    };
    let begin = &begin;
    let (first, second) = thread::scope(|scope| {
        let first = scope.spawn(move || (begin(cores[0]), first()));
        let second = scope.spawn(move || (begin(cores[1]), second()));
        (first.join(), second.join())
    });
    let (is_first_pinned, first) = first.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let (is_second_pinned, second) =
        second.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    ensure!(
        is_first_pinned && is_second_pinned,
        "cannot pin to cores {} and {}: choose two of this task's with --cores",
        cores[0],
        cores[1]
    );
    Ok((first, second))
}

/// Runs closures concurrently, each pinned to its core; returns their results in order.
///
/// # Errors
/// If a thread cannot be pinned.
///
/// # Panics
/// If a closure panics.
pub fn run_on_each<T: Send>(
    cores: &[usize],
    work: Vec<impl FnOnce() -> T + Send>,
) -> Result<Vec<T>> {
    let ready = Barrier::new(work.len());
    let begin = |core| {
        let is_pinned = pin(core);
        ready.wait();
        is_pinned
    };
    let begin = &begin;
    let results: Vec<(bool, T)> = thread::scope(|scope| {
        let threads: Vec<_> = cores
            .iter()
            .zip(work)
            .map(|(&core, work)| scope.spawn(move || (begin(core), work())))
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    let refused = cores.iter().zip(&results).find(|(_, (is_pinned, _))| !is_pinned);
    if let Some((core, _)) = refused {
        bail!("cannot pin to core {core}: choose one of this task's with --cores");
    }
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

/// Measures the round trip of a cache line between two cores in nanoseconds.
///
/// # Errors
/// If a thread cannot be pinned.
pub fn cache_line_round_trip_ns(cores: [usize; 2], count: u64) -> Result<f64> {
    let (ping, pong) = (AtomicU64::new(0), AtomicU64::new(0));
    let (ping, pong) = (&ping, &pong);
    let wait_for = |line: &AtomicU64, value| {
        while line.load(Ordering::Acquire) != value {
            spin_loop();
        }
    };
    let (elapsed, ()) = run_on_cores(
        cores,
        move || {
            let start = Instant::now();
            for round in 1..=count {
                ping.store(round, Ordering::Release);
                wait_for(pong, round);
            }
            start.elapsed()
        },
        move || {
            for round in 1..=count {
                wait_for(ping, round);
                pong.store(round, Ordering::Release);
            }
        },
    )?;
    Ok(elapsed.as_secs_f64() * 1e9 / count as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_runs_on_the_cores_asked_for() {
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        let [first, .., last] = cores.as_slice() else { return };
        assert_eq!(run_on_core(last.id, || 7).unwrap(), 7);
        assert_eq!(run_on_cores([first.id, last.id], || 1, || 2).unwrap(), (1, 2));
        let works = [first.id, last.id].map(|core| move || core).into();
        assert_eq!(run_on_each(&[first.id, last.id], works).unwrap(), [first.id, last.id]);
        assert!(cache_line_round_trip_ns([first.id, last.id], 1000).unwrap() > 0.0);
        assert!(run_on_core(usize::MAX, || ()).is_err());
    }
}
