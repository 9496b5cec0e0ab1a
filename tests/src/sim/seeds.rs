//! Runs many seeds on all cores. A run depends on its seed alone, not on its thread.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Returns a number from the environment, or `default`.
#[must_use]
pub fn env_u64(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Returns the message of a panic.
#[must_use]
pub fn panic_message(cause: &(dyn Any + Send)) -> &str {
    let text = cause.downcast_ref::<&str>().copied();
    text.or_else(|| cause.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason given")
}

/// The results of `run` for all `items`, in order, computed on all cores.
///
/// # Panics
/// If `run` panics.
pub fn parallel_map<T: Sync, R: Send>(items: &[T], run: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    let work = || {
        while let index = next.fetch_add(1, Ordering::Relaxed)
            && let Some(item) = items.get(index)
        {
            let result = run(item);
            results.lock().expect("nobody panics with it").push((index, result));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let mut results = results.into_inner().expect("nobody panicked with it");
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Calls `run` with each of `default_count` seeds from 1 on, unless `FERROWARP_SEEDS` (count) and
/// `FERROWARP_SEED` (first) are set. The first seed that fails runs once more with the path of a
/// capture file in `folder`. Returns whether the seeds are at least `default_count`: fewer may not
/// bring about all that a test expects of them together.
///
/// # Panics
/// If a seed fails: names it, its reason and the capture.
pub fn for_each_seed(
    name: &str,
    folder: &str,
    default_count: u64,
    run: impl Fn(u64, Option<PathBuf>) + Sync,
) -> bool {
    let first = env_u64("FERROWARP_SEED", 1);
    let count = env_u64("FERROWARP_SEEDS", default_count);
    let seeds: Vec<u64> = (first..first + count).collect();
    let has_failed = AtomicBool::new(false);
    let outcomes = parallel_map(&seeds, |&seed| {
        // After a failure the other threads finish their present seed.
        if has_failed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| run(seed, None)));
        outcome.inspect_err(|_| has_failed.store(true, Ordering::Relaxed))
    });
    let mut failed = seeds.iter().zip(outcomes).filter_map(|(seed, it)| Some((seed, it.err()?)));
    let Some((seed, cause)) = failed.next() else { return count >= default_count };
    let file = PathBuf::from(folder).join(format!("{name}-{seed}.pcap"));
    let _ = catch_unwind(AssertUnwindSafe(|| run(*seed, Some(file.clone()))));
    // Not every run has frames to capture.
    let see = if file.exists() { format!("\nsee {}", file.display()) } else { String::new() };
    panic!(
        "{name}: seed {seed} failed: {}{see}\nagain with FERROWARP_SEED={seed} \
         FERROWARP_SEEDS=1",
        panic_message(cause.as_ref())
    );
}
