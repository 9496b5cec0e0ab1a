//! State of an MLD listener: when its membership reports are due, and of which kind (RFC 3810).

use crate::net::mld::{Query, RecordType};
use crate::time::{Instant, MILLISECOND, NEVER};

/// Number of unsolicited reports, since one may be lost (RFC 3810 section 9.1).
const ROBUSTNESS: u8 = 2;
/// Delay before a retry if there was no frame for a report.
const RETRY_NS: u64 = 10 * MILLISECOND;

/// State of the membership reports of all groups.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memberships {
    /// Time of the next report, or [`NEVER`].
    report_at: Instant,
    /// Unsolicited reports still to be sent.
    unsolicited_left: u8,
    /// MLDv1 compatibility mode: the last query was of version 1.
    is_v1: bool,
}

impl Memberships {
    /// Creates the state; reports are due at once if there are groups.
    #[must_use]
    pub(crate) const fn new(has_groups: bool) -> Self {
        let due = if has_groups { Instant::ZERO } else { NEVER };
        Self { report_at: due, unsolicited_left: ROBUSTNESS, is_v1: false }
    }

    /// True if reports are to be sent now.
    #[inline]
    #[must_use]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.report_at <= now
    }

    /// Time of the next reports, if any.
    #[must_use]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        (self.report_at != NEVER).then_some(self.report_at)
    }

    /// True if reports are of MLDv1 (RFC 3810 section 8.2.1).
    #[must_use]
    pub(crate) const fn is_v1(&self) -> bool {
        self.is_v1
    }

    /// Record type of MLDv2 reports sent now: of a join at the start, of the current state
    /// afterwards.
    #[must_use]
    pub(crate) const fn record_type(&self) -> RecordType {
        if self.unsolicited_left > 0 {
            RecordType::ChangeToExclude
        } else {
            RecordType::ModeIsExclude
        }
    }

    /// Notes that all reports were sent. Another unsolicited one, if it is still to be sent,
    /// follows after `delay_ns`.
    pub(crate) fn on_sent(&mut self, now: Instant, delay_ns: u64) {
        self.report_at = if self.unsolicited_left > 1 { now + delay_ns } else { NEVER };
        self.unsolicited_left = self.unsolicited_left.saturating_sub(1);
    }

    /// Notes that a report could not be sent for lack of a frame: all are repeated.
    pub(crate) fn on_starved(&mut self, now: Instant) {
        self.report_at = now + RETRY_NS;
    }

    /// Notes a query about our groups: the report follows after `delay_ns`, or at the time already
    /// scheduled if that is earlier (RFC 3810 section 6.2).
    pub(crate) fn on_query(&mut self, now: Instant, query: &Query, delay_ns: u64) {
        self.report_at = self.report_at.min(now + delay_ns);
        self.is_v1 = query.is_v1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::SECOND;

    #[test]
    fn two_unsolicited_reports_then_answers_to_queries() {
        let now = Instant::from_nanos(SECOND);
        let mut state = Memberships::new(true);
        assert!(state.is_due(Instant::ZERO));
        state.on_starved(now);
        assert_eq!(state.deadline(), Some(now + RETRY_NS));
        for expected in [Some(now + 7), None] {
            assert_eq!(state.record_type(), RecordType::ChangeToExclude);
            state.on_sent(now, 7);
            assert_eq!(state.deadline(), expected);
        }
        assert_eq!(state.record_type(), RecordType::ModeIsExclude);
        for (delay, expected) in [(9, 9), (12, 9), (4, 4)] {
            state.on_query(now, &Query { group: None, delay_max_ns: 20, is_v1: true }, delay);
            assert_eq!(state.deadline(), Some(now + expected));
        }
        assert!(state.is_v1());
        assert_eq!(Memberships::new(false).deadline(), None);
    }
}
