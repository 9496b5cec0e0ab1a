//! The threads that drive shards.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use ferrowarp_proto::time::Instant;

use crate::config::DriveMode;
use crate::device::{PoolNeeds, adopt_thread};
use crate::helper_schedule::{HelperSchedule, Step};
use crate::shard::Shard;
use crate::timer_slack;

/// Threads of the application that get caches at a time. A cache keeps its frames while its thread
/// does something else: with one for each of many threads none would be left for the thread that
/// drives. The pools suffice for these and for the driving threads of both ends of a pair.
const CACHED_THREADS_MAX: usize = PoolNeeds::THREADS as usize - 2;

/// Makes DPDK give the calling thread caches of its own in every pool, once per thread, unless
/// too many have some (an allocation costs twice as much without). One thread-local load from
/// then on.
#[inline]
pub(crate) fn register_thread() {
    thread_local! {
        static KNOWN: Cell<bool> = const { Cell::new(false) };
    }
    if !KNOWN.get()
        && let Some(eal) = dpdk_sys::Eal::running()
    {
        KNOWN.set(true);
        // Without a slot it works all the same, more slowly.
        let _ = eal.adopt_thread_up_to(CACHED_THREADS_MAX);
    }
}

/// False if there is no such core, or the thread may not run there.
fn pin(core: usize) -> bool {
    // The set of cores is an array, and its user panics beyond the end.
    core < usize::try_from(libc::CPU_SETSIZE).unwrap_or(0)
        && core_affinity::set_for_current(core_affinity::CoreId { id: core })
}

/// A running driving thread. Stops it when dropped.
pub(crate) struct DriveThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl DriveThread {
    /// Starts the thread that `mode` asks for, if any.
    pub(crate) fn start(shard: &Arc<Shard>, mode: DriveMode) -> std::io::Result<Option<Self>> {
        let stop = Arc::new(AtomicBool::new(false));
        let (shard, seen) = (Arc::clone(shard), Arc::clone(&stop));
        let builder = std::thread::Builder::new();
        let thread = match mode {
            DriveMode::Inline => return Ok(None),
            DriveMode::Dedicated { core } => {
                builder.name(format!("ferrowarp-{core}")).spawn(move || {
                    adopt_thread();
                    if !pin(core) {
                        tracing::warn!(core, "could not pin the driving thread to its core");
                    }
                    while !seen.load(Ordering::Relaxed) && !shard.has_ended() {
                        shard.poll();
                    }
                })?
            }
            DriveMode::Helper => builder.name("ferrowarp-helper".into()).spawn(move || {
                adopt_thread();
                run_helper(&shard, &seen);
            })?,
        };
        Ok(Some(Self { stop, thread: Some(thread) }))
    }
}

impl Drop for DriveThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            if dpdk_sys::is_child() {
                // The thread is the parent's.
                std::mem::forget(thread);
                return;
            }
            thread.thread().unpark();
            // A panic of a pass does not get here, and there is nothing to undo after any other.
            let _ = thread.join();
        }
    }
}

/// Yields the helper's core between two looks: the sleeper that it has just woken may have been put
/// there, and would not run before the next nap. Beside a thread that computes, a yield costs a
/// time slice, and waking from a nap next to nothing: after one that took long it yields no more
/// for a while.
struct YieldBackoff {
    resume_at: Instant,
}

impl YieldBackoff {
    /// Whoever takes the core for longer, in nanoseconds, is no sleeper that was woken.
    const YIELD_NS_MAX: u64 = 500_000;
    /// For how long it does not yield then, in nanoseconds.
    const BACKOFF_NS: u64 = 100_000_000;

    /// True if it yielded.
    fn yield_now(&mut self, mut clock: impl FnMut() -> Instant) -> bool {
        let start = clock();
        if start < self.resume_at {
            return false;
        }
        std::thread::yield_now();
        let end = clock();
        if end.since(start) > Self::YIELD_NS_MAX {
            self.resume_at = end + Self::BACKOFF_NS;
        }
        true
    }
}

/// Drives while the application does not; naps while it does, and while there is nothing to do.
fn run_helper(shard: &Shard, stop: &AtomicBool) {
    if !timer_slack::minimize() {
        tracing::warn!("naps of the helper may last longer than they should");
    }
    shard.helper_wakeup().start_helper(std::thread::current());
    let mut schedule = HelperSchedule::new(shard.now().as_nanos());
    let mut yields = YieldBackoff { resume_at: shard.now() };
    while !stop.load(Ordering::Relaxed) && !shard.has_ended() {
        match shard.helper_step(&mut schedule) {
            Step::Poll => {
                let busy = shard.poll();
                schedule.on_polled(shard.now().as_nanos(), busy);
                if !busy {
                    yields.yield_now(|| shard.now());
                }
            }
            Step::Spin => drop(yields.yield_now(|| shard.now())),
            Step::Sleep(rest, limit) => {
                let start = shard.now();
                shard.helper_sleep(rest, limit, schedule.wait_seq());
                schedule.on_slept(limit, shard.now().since(start));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_yield_stops_yielding_for_a_while() {
        let mut yields = YieldBackoff { resume_at: Instant::ZERO };
        let mut now = Instant::ZERO;
        // Yields, each of which takes this long.
        let mut yielded = |step_ns: u64, now: &mut Instant| {
            let mut calls = 0;
            yields.yield_now(|| {
                calls += 1;
                if calls == 2 {
                    *now = *now + step_ns;
                }
                *now
            })
        };
        assert!(yielded(YieldBackoff::YIELD_NS_MAX, &mut now), "short enough");
        assert!(yielded(YieldBackoff::YIELD_NS_MAX + 1, &mut now));
        assert!(!yielded(0, &mut now));
        now = now + (YieldBackoff::BACKOFF_NS - 1);
        assert!(!yielded(0, &mut now));
        now = now + 1;
        assert!(yielded(0, &mut now));
    }
}
