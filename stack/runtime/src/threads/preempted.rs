//! Threads that are preempted: they want to run, and do not.

use std::cell::Cell;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use nix::unistd::gettid;

/// Returns the kernel's ID of the calling thread. One load, but for the first call.
#[inline]
pub(crate) fn thread_id() -> u32 {
    thread_local! {
        static ID: Cell<u32> = const { Cell::new(0) };
    }
    ID.with(|id| {
        if id.get() == 0 {
            id.set(gettid().as_raw().cast_unsigned());
        }
        id.get()
    })
}

/// Finds out whether another thread of this process is preempted.
#[derive(Debug, Default)]
pub(crate) struct PreemptedThread {
    /// The thread of the last look, and the processor time that it had got by then.
    last: Option<(u32, Duration)>,
}

impl PreemptedThread {
    /// True if the thread has not run since the last look at it, and wants to run. A system call,
    /// and a file of `/proc` if it has not run.
    pub(crate) fn is(&mut self, thread: u32) -> bool {
        let look = processor_time(thread).map(|time| (thread, time));
        let has_run = std::mem::replace(&mut self.last, look) != look;
        look.is_some() && !has_run && wants_to_run(thread)
    }
}

/// Processor time that a thread of this process has got.
fn processor_time(thread: u32) -> Option<Duration> {
    // As `pthread_getcpuclockid` makes it: precise also while the thread runs.
    const OF_A_THREAD: i32 = 0b110;
    let clock = ClockId::from_raw(!thread.cast_signed() << 3 | OF_A_THREAD);
    clock_gettime(clock).ok().map(Duration::from)
}

/// True if a thread of this process is not blocked in a system call.
fn wants_to_run(thread: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
    // The name before it may contain anything.
    stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|state| state.starts_with('R')))
}

#[cfg(test)]
mod tests {
    use std::hint::spin_loop;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::thread;
    use std::time::Instant;

    use super::*;

    #[test]
    fn sleeping_thread_is_not_preempted() {
        let (send_id, id) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let sleeper = thread::spawn(move || {
            send_id.send(thread_id()).unwrap();
            let _ = ended.recv();
        });
        let id = id.recv().unwrap();
        let mut preempted = PreemptedThread::default();
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(1));
            assert!(!preempted.is(id));
        }
        drop(end);
        sleeper.join().unwrap();
        assert!(!preempted.is(id), "it has ended");
    }

    /// Two threads on one core.
    #[test]
    fn thread_that_waits_for_a_core_is_preempted() {
        let core = core_affinity::get_core_ids().unwrap()[0];
        let (send_id, id) = mpsc::channel();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                assert!(core_affinity::set_for_current(core));
                send_id.send(thread_id()).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    spin_loop();
                }
            });
            let id = id.recv().unwrap();
            let observer = scope.spawn(move || {
                assert!(core_affinity::set_for_current(core));
                let mut preempted = PreemptedThread::default();
                let end = Instant::now() + Duration::from_secs(20);
                // It runs in between only if this thread is preempted.
                let mut looks = std::iter::repeat_with(|| preempted.is(id));
                looks.by_ref().take_while(|_| Instant::now() < end).any(|found| found)
            });
            let found = observer.join();
            stop.store(true, Ordering::Relaxed);
            assert!(found.unwrap());
        });
    }

    /// One that has run in between is not, although others may compete with it.
    #[test]
    fn running_thread_is_not_preempted() {
        let (send_id, id) = mpsc::channel();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                send_id.send(thread_id()).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    spin_loop();
                }
            });
            let id = id.recv().unwrap();
            let mut preempted = PreemptedThread::default();
            let end = Instant::now() + Duration::from_secs(20);
            let mut has_run = false;
            while !has_run && Instant::now() < end {
                thread::sleep(Duration::from_millis(10));
                has_run = !preempted.is(id);
            }
            stop.store(true, Ordering::Relaxed);
            assert!(has_run);
        });
    }
}
