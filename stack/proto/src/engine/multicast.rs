//! MLD listener: reports the solicited-node multicast groups of our addresses (RFC 3810).

use core::hash::{BuildHasher, Hasher};
use core::net::{IpAddr, Ipv6Addr};

use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::engine::Engine;
use crate::engine::connection::NEVER;
use crate::net::mld::{self, GROUPS_MAX, Query, RecordType};
use crate::net::ndp;
use crate::time::{Instant, MILLISECOND, SECOND};
use crate::verbs::wc::Completions;

/// Number of unsolicited reports, since one may be lost (RFC 3810 section 9.1), and the time within
/// which the next one follows (section 9.11).
const ROBUSTNESS: u8 = 2;
const UNSOLICITED_REPORT_INTERVAL_NS: u64 = SECOND;
/// Delay before a retry if there was no frame for a report.
const RETRY_NS: u64 = 10 * MILLISECOND;

/// State of the membership reports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memberships {
    /// Time of the next report, or [`NEVER`].
    report_at: Instant,
    /// Unsolicited reports still to be sent.
    unsolicited_left: u8,
    /// MLDv1 compatibility mode: the last query was of version 1.
    is_v1: bool,
}

impl Memberships {
    /// Creates the state; reports are due at once if there are groups.
    pub(super) const fn new(has_groups: bool) -> Self {
        let due = if has_groups { Instant::ZERO } else { NEVER };
        Self { report_at: due, unsolicited_left: ROBUSTNESS, is_v1: false }
    }

    #[inline]
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.report_at <= now
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        (self.report_at != NEVER).then_some(self.report_at)
    }
}

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Sends the reports that are due.
    #[cold]
    pub(super) fn send_mld_reports(&mut self, now: Instant) {
        let groups = self.mld_groups();
        let link_local = self.routing.addresses().find_map(|address| match address {
            IpAddr::V6(ours) if ours.is_unicast_link_local() => Some(ours),
            _ => None,
        });
        let (link, source) = (self.link, link_local.unwrap_or(Ipv6Addr::UNSPECIFIED));
        let Memberships { unsolicited_left: unsolicited, is_v1, .. } = self.memberships;
        let record =
            if unsolicited > 0 { RecordType::ChangeToExclude } else { RecordType::ModeIsExclude };
        let is_sent = if is_v1 {
            groups.iter().all(|&group| {
                self.send_control_frame(|out| mld::write_report_v1(link, source, group, out))
            })
        } else {
            groups.chunks(GROUPS_MAX).all(|groups| {
                self.send_control_frame(|out| mld::write_report(link, source, record, groups, out))
            })
        };
        let due = if !is_sent {
            now + RETRY_NS
        } else if unsolicited > 1 {
            now + self.random_delay(now, UNSOLICITED_REPORT_INTERVAL_NS)
        } else {
            NEVER
        };
        let unsolicited = unsolicited.saturating_sub(u8::from(is_sent));
        self.memberships = Memberships { report_at: due, unsolicited_left: unsolicited, is_v1 };
    }

    /// Processes an MLD query: schedules the report at a random time within the maximum response
    /// delay, so that not all hosts report at once. True if it concerns one of our groups.
    pub(super) fn on_mld_query(&mut self, now: Instant, query: &Query) -> bool {
        let groups = self.mld_groups();
        let is_ours = query.group.map_or(!groups.is_empty(), |group| groups.contains(&group));
        if is_ours {
            let due = now + self.random_delay(now, query.delay_max_ns);
            self.memberships.report_at = self.memberships.report_at.min(due);
            self.memberships.is_v1 = query.is_v1;
        }
        is_ours
    }

    /// Returns our groups, each once.
    fn mld_groups(&self) -> Vec<Ipv6Addr> {
        let mut groups: Vec<_> = self
            .routing
            .addresses()
            .filter_map(|address| match address {
                IpAddr::V6(ours) => Some(ndp::solicited_node(ours)),
                IpAddr::V4(_) => None,
            })
            .collect();
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    /// Returns a random delay below `max_ns`.
    fn random_delay(&self, now: Instant, max_ns: u64) -> u64 {
        let mut hasher = self.hash.build_hasher();
        hasher.write(&self.link.mac);
        hasher.write_u64(now.as_nanos());
        hasher.finish() % max_ns.max(1)
    }
}
