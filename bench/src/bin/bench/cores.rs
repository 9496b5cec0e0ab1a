//! Cores of the measurements, and threads on given cores.

use std::sync::Barrier;
use std::thread;

use anyhow::{Context as _, Result, ensure};
use core_affinity::CoreId;

/// Bits of a CPU set.
const CPU_SETSIZE: usize = 1024;

/// Returns the cores to use: those given, or else the first two of this task.
pub(crate) fn choose(given: &[usize]) -> Result<Vec<usize>> {
    let mut cores = given.to_vec();
    if cores.is_empty() {
        let ours = core_affinity::get_core_ids().unwrap_or_default();
        cores.extend(ours.iter().map(|core| core.id).take(2));
    }
    cores.dedup();
    ensure!(cores.len() <= 2, "--cores takes one core for both ends, or two");
    cores.first().context("the cores of this task are unknown: use --cores")?;
    Ok(cores)
}

fn pin(core: usize) -> Result<()> {
    let is_pinned = core < CPU_SETSIZE && core_affinity::set_for_current(CoreId { id: core });
    ensure!(is_pinned, "cannot pin to core {core}: choose one of this task's with --cores");
    Ok(())
}

pub(crate) type Work<'a, T> = Box<dyn FnOnce() -> Result<T> + Send + 'a>;

/// Works on a thread of its own that is pinned to a core, so that this one keeps its affinity.
pub(crate) fn on_core<T: Send>(core: usize, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    Ok(on_each(&[core], vec![Box::new(work)])?.swap_remove(0))
}

/// Works concurrently on threads, each pinned to its core; returns the results in order.
pub(crate) fn on_each<'a, T: Send>(cores: &[usize], work: Vec<Work<'a, T>>) -> Result<Vec<T>> {
    let ready = &Barrier::new(work.len());
    thread::scope(|scope| {
        let start = |(&core, work): (&usize, Work<'a, T>)| {
            scope.spawn(move || {
                let pinned = pin(core);
                ready.wait();
                pinned.and_then(|()| work())
            })
        };
        let threads: Vec<_> = cores.iter().zip(work).map(start).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<T>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    })
}
