//! Observers of the end of a shard.

use std::sync::Weak;

/// Observer of the end of a shard.
pub(crate) trait EndObserver: Send + Sync {
    /// The shard is no longer polled: it was closed, or it failed. The effects on its queue pairs
    /// are done and published. Called without the shard's lock, by the thread that ended the shard,
    /// more than once; `is_last`: no shard of the context is polled any more.
    fn on_shard_end(&self, is_last: bool);
}

/// Observers of a shard, as many as there are completion queues with a channel.
#[derive(Default)]
pub(super) struct EndObservers {
    all: Vec<Weak<dyn EndObserver>>,
    /// Length at which those that are gone are removed next: adding an observer does not visit the
    /// others each time.
    sweep_at: usize,
}

impl EndObservers {
    /// Length at which observers are removed first.
    const SWEEP_AT_MIN: usize = 16;

    /// Adds an observer. Amortized, it costs the visit of two others; those that are gone are at
    /// most as many as the rest, but for a few.
    pub(super) fn add(&mut self, observer: Weak<dyn EndObserver>) {
        self.add_with(observer, |observer| observer.strong_count() > 0);
    }

    fn add_with(
        &mut self,
        observer: Weak<dyn EndObserver>,
        exists: impl FnMut(&Weak<dyn EndObserver>) -> bool,
    ) {
        if self.all.len() >= self.sweep_at.max(Self::SWEEP_AT_MIN) {
            self.all.retain(exists);
            self.sweep_at = 2 * self.all.len();
        }
        self.all.push(observer);
    }

    /// Returns those that exist, and maybe some that are gone.
    pub(super) fn all(&self) -> Vec<Weak<dyn EndObserver>> {
        self.all.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    struct Nothing;

    impl EndObserver for Nothing {
        fn on_shard_end(&self, _: bool) {}
    }

    #[test]
    fn adding_observers_visits_each_a_few_times_in_all() {
        const COUNT: usize = 4096;
        let (mut observers, mut visits) = (EndObservers::default(), 0);
        let mut add = |observer: &Arc<Nothing>| {
            let observer: Weak<Nothing> = Arc::downgrade(observer);
            observers.add_with(observer, |observer| {
                visits += 1;
                observer.strong_count() > 0
            });
            (observers.all.len(), visits)
        };
        let living: Vec<_> = (0..COUNT).map(|_| Arc::new(Nothing)).collect();
        for observer in &living {
            add(observer);
        }
        let (len, visits) = add(&living[0]);
        assert!(len == COUNT + 1 && visits <= 2 * COUNT, "{visits} visits");
        // One at a time, as of queues that are created and destroyed in turn.
        for _ in 0..4 * COUNT {
            let (len, _) = add(&Arc::new(Nothing));
            assert!(len <= 2 * (COUNT + 1) + EndObservers::SWEEP_AT_MIN, "{len} observers");
        }
        let (_, visits) = add(&living[0]);
        assert!(visits <= 2 * (5 * COUNT) + 4 * COUNT, "{visits} visits");
    }
}
