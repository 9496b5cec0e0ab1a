//! State of a port's link as it was read last.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::PortLink;

/// State of the link as it was read last: up, unless somebody reads it.
#[derive(Clone, Debug)]
pub(crate) struct LinkState(Arc<Seen>);

#[derive(Debug)]
struct Seen {
    is_up: AtomicBool,
    /// A process was connected at some time, or has not served this one for long.
    had_process: AtomicBool,
}

impl LinkState {
    pub(crate) fn new() -> Self {
        let seen = Seen { is_up: AtomicBool::new(true), had_process: AtomicBool::new(false) };
        Self(Arc::new(seen))
    }

    /// One load.
    pub(crate) fn is_up(&self) -> bool {
        self.0.is_up.load(Ordering::Acquire)
    }

    /// True if a process was connected, or did not serve this one, and none is connected now.
    pub(crate) fn peer_is_gone(&self) -> bool {
        !self.is_up() && self.0.had_process.load(Ordering::Acquire)
    }

    /// Notes a reading.
    pub(crate) fn set(&self, link: &dyn PortLink, is_up: bool) {
        if is_up && link.is_to_process() {
            self.note_process();
        }
        self.0.is_up.store(is_up, Ordering::Release);
    }

    /// Notes that there is a process at the other end, whether it serves this one or not.
    pub(crate) fn note_process(&self) {
        self.0.had_process.store(true, Ordering::Release);
    }
}
