//! Solicitations sent lately: where several engines share a port, each asks for the neighbors that
//! it needs, and one of them sends what they ask for, once.

use arrayvec::ArrayVec;

use crate::net::neighbor::Solicit;
use crate::time::Instant;

/// Solicitations that are remembered. An older one that is forgotten is sent again.
const COUNT_MAX: usize = 64;

/// See the [module's documentation](self).
pub(crate) struct RecentSolicits {
    sent: ArrayVec<(Instant, Solicit), COUNT_MAX>,
    interval_ns: u64,
}

impl RecentSolicits {
    /// A solicitation is not repeated within `interval_ns` nanoseconds.
    pub(crate) const fn new(interval_ns: u64) -> Self {
        Self { sent: ArrayVec::new_const(), interval_ns }
    }

    /// True if this solicitation was not sent lately; it is then remembered as sent now.
    pub(crate) fn insert(&mut self, now: Instant, solicit: Solicit) -> bool {
        self.sent.retain(|&mut (at, _)| now.since(at) < self.interval_ns);
        if self.sent.iter().any(|&(_, sent)| sent == solicit) {
            return false;
        }
        if self.sent.is_full() {
            self.sent.remove(0);
        }
        self.sent.push((now, solicit));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn solicitation_is_repeated_after_the_interval_only() {
        let mut recent = RecentSolicits::new(500);
        let solicit = |host| Solicit { ip: [198, 18, 0, host].into(), mac: None };
        let at = Instant::from_nanos;
        assert!(recent.insert(at(0), solicit(1)));
        assert!(!recent.insert(at(499), solicit(1)));
        assert!(recent.insert(at(499), solicit(2)), "another neighbor");
        let probe = Solicit { mac: Some([2; 6]), ..solicit(1) };
        assert!(recent.insert(at(499), probe), "unicast");
        assert!(recent.insert(at(500), solicit(1)));
        for host in 3..200 {
            assert!(recent.insert(at(501), solicit(host)));
        }
        assert!(recent.insert(at(502), solicit(3)), "forgotten");
        assert!(!recent.insert(at(502), solicit(199)));
    }
}
