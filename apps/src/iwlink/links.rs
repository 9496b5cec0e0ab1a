//! Watches the links of both ports, and reports when one goes down, comes up or is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, bail};
use ferrowarp::device::{DpdkLink, RawPort};

/// Interval between two readings, as contexts have it.
const INTERVAL: Duration = Duration::from_millis(100);

/// Options that name the ports.
pub const SIDES: [&str; 2] = ["--left", "--right"];

/// A reading may take a millisecond, so a thread does it. The ports stay open until this is
/// dropped.
#[derive(Debug)]
pub struct LinkWatch {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct State {
    stop: AtomicBool,
    /// Index of a port whose device was removed; [`NONE`] before.
    gone: AtomicUsize,
}

const NONE: usize = usize::MAX;

impl LinkWatch {
    /// Starts the thread, if a link may change.
    ///
    /// # Errors
    /// If there can be no thread.
    pub fn start(ports: &[RawPort; 2]) -> anyhow::Result<Self> {
        let links = ports.iter().enumerate();
        let links = links.filter_map(|(index, port)| {
            let mut link = port.link()?;
            let is_up = link.is_up();
            link.log_start(is_up);
            Some((index, is_up, link))
        });
        let links: Vec<_> = links.collect();
        let state = State { stop: AtomicBool::new(false), gone: AtomicUsize::new(NONE) };
        let state = Arc::new(state);
        if links.is_empty() {
            return Ok(Self { state, thread: None });
        }
        let of_thread = Arc::clone(&state);
        let thread = thread::Builder::new().name("iwlink-links".to_owned());
        let thread = thread
            .spawn(move || watch(links, &of_thread))
            .context("cannot start a thread: raise ulimit -u")?;
        Ok(Self { state, thread: Some(thread) })
    }

    /// True if the device of a port is there no more.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.state.gone.load(Ordering::Relaxed) != NONE
    }

    /// Checks that both devices are there.
    ///
    /// # Errors
    /// The port whose device was removed.
    pub fn check(&self) -> anyhow::Result<()> {
        match SIDES.get(self.state.gone.load(Ordering::Relaxed)) {
            Some(side) => bail!("{side}: the device was removed"),
            None => Ok(()),
        }
    }
}

impl Drop for LinkWatch {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It has nothing to undo after a panic.
            let _ = thread.join();
        }
    }
}

fn watch(mut links: Vec<(usize, bool, DpdkLink)>, state: &State) {
    while !state.stop.load(Ordering::Relaxed) {
        for (index, was_up, link) in &mut links {
            let is_up = link.is_up();
            if is_up != *was_up {
                *was_up = is_up;
                link.log_change(is_up);
            }
            if link.is_gone() {
                state.gone.store(*index, Ordering::Relaxed);
            }
        }
        thread::park_timeout(INTERVAL);
    }
}
