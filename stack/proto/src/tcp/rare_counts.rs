//! Counters of rare events, the last tail loss probe, and the state of the stall timer, in memory
//! allocated at the first such event.
//!
//! Most connections never see a loss, a reordering or a probe, and do not allocate these hundred
//! bytes.

use super::recovery::tlp::SentTlp;
use super::settings::Stats;
use crate::wire::seq::Seq;

/// Counters of [`Stats`] that count events; bytes and segments are counted elsewhere.
#[derive(Debug, Default)]
pub(super) struct RareCounts(Option<Box<Rare>>);

#[derive(Debug, Default)]
struct Rare {
    stats: Stats,
    tlp: SentTlp,
    stall: Stall,
}

/// State of the timer for a peer that takes nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stall {
    /// The peer has to acknowledge the bytes below before the timer expires.
    pub(super) until: Seq,
    /// The timer was restarted because of its overrun; the next expiry fires whatever the overrun.
    pub(super) rearmed: bool,
}

impl RareCounts {
    /// Returns the counters for an update. Allocates once in the life of a connection.
    #[inline]
    pub(super) fn record(&mut self) -> &mut Stats {
        &mut self.0.get_or_insert_default().stats
    }

    /// Returns the last tail loss probe, for an update; allocates as [`RareCounts::record`].
    pub(super) fn tlp_mut(&mut self) -> &mut SentTlp {
        &mut self.0.get_or_insert_default().tlp
    }

    /// Returns the last tail loss probe.
    pub(super) fn tlp(&self) -> SentTlp {
        self.0.as_ref().map_or_else(SentTlp::default, |rare| rare.tlp)
    }

    /// Returns the state of the stall timer; allocates as [`RareCounts::record`].
    pub(super) fn stall_mut(&mut self) -> &mut Stall {
        &mut self.0.get_or_insert_default().stall
    }

    /// Returns the counters.
    pub(super) fn get(&self) -> Stats {
        self.0.as_ref().map_or_else(Stats::default, |rare| rare.stats)
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
