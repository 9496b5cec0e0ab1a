//! Threads of a context: those that poll shards, and what ends any of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::cores;
use crate::device::{RxInterrupt, register_current_thread};
use crate::poller::{Poller, SpinningThread};
use crate::shard::{Shard, run_helper};
use crate::threads::Spinner;

/// Running thread of a context; stops it when dropped.
pub(crate) struct ContextThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// Shard that it polls.
    shard: Option<Arc<Shard>>,
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
        Ok(Self { stop, thread: Some(thread), shard: None })
    }

    /// Starts the thread that `poller` requires to poll a shard, if any; `core`: the one
    /// that it is pinned to, `interrupt`: of the shard's queue.
    pub(crate) fn drive(
        shard: &Arc<Shard>,
        poller: Poller,
        core: Option<usize>,
        interrupt: Option<Box<dyn RxInterrupt>>,
    ) -> std::io::Result<Option<Self>> {
        let polled = Arc::clone(shard);
        let shard = Arc::clone(shard);
        let spinning = SpinningThread::new(poller);
        let mut thread = match poller {
            Poller::Application => {
                interrupt.into_iter().for_each(|interrupt| polled.set_interrupt(interrupt));
                return Ok(None);
            }
            Poller::Pinned => Self::start(thread_name(core), move |stop| {
                let _spinning = spinning;
                register_current_thread();
                pin(core);
                let mut spinner = Spinner::new();
                while !stop.load(Ordering::Relaxed) && !shard.has_ended() {
                    spinner.on_poll(shard.poll());
                }
            })?,
            Poller::Helper(policy) => Self::start("ferrowarp-helper".into(), move |stop| {
                let _spinning = spinning;
                register_current_thread();
                pin(core);
                run_helper(&shard, interrupt, policy, stop);
            })?,
        };
        thread.shard = Some(polled);
        Ok(Some(thread))
    }
}

/// Name of a thread that only polls.
fn thread_name(core: Option<usize>) -> String {
    core.map_or_else(|| "ferrowarp".to_owned(), |core| format!("ferrowarp-{core}"))
}

/// Pins the calling thread.
fn pin(core: Option<usize>) {
    if let Some(core) = core
        && !cores::pin(core)
    {
        tracing::warn!(core, "could not pin a thread that polls to its core");
    }
}

impl Drop for ContextThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            self.shard.iter().for_each(|shard| shard.helper_wakeup().interrupt_sleep());
            // A panic of a poll is caught there, and after any other there is nothing to undo.
            let _ = thread.join();
        }
    }
}
