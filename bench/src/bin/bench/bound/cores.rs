//! Threads on given cores.

use std::sync::Barrier;
use std::thread;

use anyhow::Result;

use crate::cases::pin;

pub(crate) type Work<'a, T> = Box<dyn FnOnce() -> T + Send + 'a>;

/// Runs closures concurrently, each pinned to its core; returns their results in order.
pub(crate) fn run_on_each<'a, T: Send>(cores: &[usize], work: Vec<Work<'a, T>>) -> Result<Vec<T>> {
    let ready = &Barrier::new(work.len());
    thread::scope(|scope| {
        let start = |(&core, work): (&usize, Work<'a, T>)| {
            scope.spawn(move || {
                let pinned = pin(core);
                ready.wait();
                (pinned, work())
            })
        };
        let threads: Vec<_> = cores.iter().zip(work).map(start).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, (Result<()>, T)>| {
            let joined = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            joined.0.map(|()| joined.1)
        };
        threads.into_iter().map(join).collect()
    })
}
