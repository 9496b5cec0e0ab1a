//! Runs many seeds on all cores. A run depends on its seed alone, not on its thread.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// Calls `run` with each of `default_count` seeds from 1 on, unless `FERROWARP_SEEDS` (count) and
/// `FERROWARP_SEED` (first) are set. The first seed that fails runs once more with the path of a
/// capture file in `folder`.
///
/// # Panics
/// If a seed fails: names it, its reason and the capture.
pub fn for_each_seed(
    name: &str,
    folder: &str,
    default_count: u64,
    run: impl Fn(u64, Option<PathBuf>) + Sync,
) {
    let first = env_u64("FERROWARP_SEED", 1);
    let count = env_u64("FERROWARP_SEEDS", default_count);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicU64::new(first);
    let failed = Mutex::new(Vec::new());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + count {
                return;
            }
            let outcome = catch_unwind(AssertUnwindSafe(|| run(seed, None)));
            if let Err(cause) = outcome {
                failed.lock().expect("nobody panics with it").push((seed, cause));
                // The other threads finish their present seed.
                next.store(first + count, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let mut failed = failed.into_inner().expect("nobody panicked with it");
    failed.sort_by_key(|(seed, _)| *seed);
    let Some((seed, cause)) = failed.first() else { return };
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
