//! Counters of rare events, in memory allocated at the first such event.
//!
//! Most connections never see a loss, a reordering or a probe, and do not allocate these hundred
//! bytes.

use super::config::Stats;

/// Counters of [`Stats`] that count events; bytes and segments are counted elsewhere.
#[derive(Debug, Default)]
pub(super) struct RareCounts(Option<Box<Stats>>);

impl RareCounts {
    /// Returns the counters for an update. Allocates once in the life of a connection.
    #[inline]
    pub(super) fn record(&mut self) -> &mut Stats {
        self.0.get_or_insert_default()
    }

    /// Returns the counters.
    pub(super) fn get(&self) -> Stats {
        self.0.as_deref().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::RareCounts;

    #[test]
    fn counters_are_allocated_on_the_first_event() {
        let mut counts = RareCounts::default();
        assert_eq!((counts.get().timeouts, counts.0.is_none()), (0, true));
        counts.record().timeouts += 1;
        assert_eq!(counts.get().timeouts, 1);
        assert_eq!(size_of::<RareCounts>(), size_of::<usize>());
    }
}
