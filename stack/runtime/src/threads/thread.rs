//! Threads of a context: those that poll shards, and what ends any of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use ferrowarp_proto::time::Instant;

use crate::config::DriveMode;
use crate::cores;
use crate::device::register_current_thread;
use crate::shard::{HelperSchedule, Shard, Step};
use crate::threads::timer_slack;

/// Running thread of a context; stops it when dropped.
pub(crate) struct ContextThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ContextThread {
    /// Starts a thread. `run` returns once its argument is true, and what it has captured is
    /// dropped then; the thread is unparked when that is set.
    pub(crate) fn start(
        name: String,
        run: impl FnOnce(&AtomicBool) + Send + 'static,
    ) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name(name).spawn(move || run(&seen))?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Starts the thread that `mode` requires to poll a shard, if any; `core`: of a dedicated one.
    pub(crate) fn drive(
        shard: &Arc<Shard>,
        mode: DriveMode,
        core: usize,
    ) -> std::io::Result<Option<Self>> {
        let shard = Arc::clone(shard);
        let thread = match mode {
            DriveMode::Inline => return Ok(None),
            DriveMode::Dedicated => Self::start(format!("ferrowarp-{core}"), move |stop| {
                register_current_thread();
                if !cores::pin(core) {
                    tracing::warn!(core, "could not pin the driving thread to its core");
                }
                while !stop.load(Ordering::Relaxed) && !shard.has_ended() {
                    shard.poll();
                }
            })?,
            DriveMode::Helper => Self::start("ferrowarp-helper".into(), move |stop| {
                register_current_thread();
                run_helper(&shard, stop);
            })?,
        };
        Ok(Some(thread))
    }
}

impl Drop for ContextThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic of a poll is caught there, and after any other there is nothing to undo.
            let _ = thread.join();
        }
    }
}

/// Yields the helper's core between two polls: the scheduler may have put the thread that the
/// helper has just woken on this CPU, where it would not run before the next sleep. Next to a
/// thread that computes, a yield costs a time slice, while a wake-up from a sleep costs next to
/// nothing: after a long yield the helper stops yielding for a while.
struct YieldBackoff {
    resume_at: Instant,
}

impl YieldBackoff {
    /// A yield longer than this, in nanoseconds, did not go to a woken thread.
    const YIELD_NS_MAX: u64 = 500_000;
    /// Time without yields after that, in nanoseconds.
    const BACKOFF_NS: u64 = 100_000_000;

    /// Yields unless backing off. True if it yielded.
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

/// Polls while the application does not; sleeps while it does, and while there is nothing to do.
fn run_helper(shard: &Shard, stop: &AtomicBool) {
    if !timer_slack::minimize() {
        tracing::warn!("the helper's sleeps may last longer than requested");
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
        // Yields for `step_ns`.
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
