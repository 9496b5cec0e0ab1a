//! Events that the program has got and not acknowledged: an object is destroyed only when it has
//! acknowledged all of its events.

use std::sync::{Condvar, Mutex, PoisonError};

/// Events of an object in the hands of the program.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    outstanding: Mutex<u64>,
    acknowledged: Condvar,
}

impl Acks {
    /// The program gets an event.
    pub(crate) fn report(&self) {
        *self.outstanding.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    /// The program acknowledges events.
    pub(crate) fn acknowledge(&self, count: u64) {
        let mut outstanding = self.outstanding.lock().unwrap_or_else(PoisonError::into_inner);
        *outstanding = outstanding.saturating_sub(count);
        if *outstanding == 0 {
            self.acknowledged.notify_all();
        }
    }

    /// Waits until all are acknowledged, for ever if need be: the manual pages say so.
    pub(crate) fn wait(&self) {
        let outstanding = self.outstanding.lock().unwrap_or_else(PoisonError::into_inner);
        let all = self.acknowledged.wait_while(outstanding, |outstanding| *outstanding > 0);
        drop(all);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn waits_for_all_acknowledgments() {
        let acks = Arc::new(Acks::default());
        acks.wait();
        acks.report();
        acks.report();
        let waiting = thread::spawn({
            let acks = Arc::clone(&acks);
            move || acks.wait()
        });
        acks.acknowledge(1);
        assert!(!waiting.is_finished());
        acks.acknowledge(1);
        waiting.join().unwrap();
    }

    #[test]
    fn too_many_acknowledgments_do_no_harm() {
        let acks = Acks::default();
        acks.report();
        acks.acknowledge(7);
        acks.report();
        acks.acknowledge(1);
        acks.wait();
    }
}
