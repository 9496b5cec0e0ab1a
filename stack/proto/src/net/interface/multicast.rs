//! MLD listener: reports the solicited-node multicast groups of our addresses (RFC 3810).

use core::hash::{BuildHasher, Hasher};
use core::net::{IpAddr, Ipv6Addr};

use super::{Interface, Port};
use crate::device::Device;
use crate::net::mld::{self, GROUPS_MAX, Query};
use crate::net::ndp;
use crate::time::{Instant, SECOND};

/// Time within which the second unsolicited report follows (RFC 3810 section 9.11).
const UNSOLICITED_REPORT_INTERVAL_NS: u64 = SECOND;

impl Interface {
    /// Sends the reports that are due.
    #[cold]
    pub(super) fn send_mld_reports<D: Device>(&mut self, now: Instant, port: &mut Port<'_, D>) {
        let groups = self.mld_groups();
        let link_local = self.routing.addresses().find_map(|address| match address {
            IpAddr::V6(ours) if ours.is_unicast_link_local() => Some(ours),
            _ => None,
        });
        let (link, source) = (self.link, link_local.unwrap_or(Ipv6Addr::UNSPECIFIED));
        let is_sent = if self.memberships.is_v1() {
            groups.iter().all(|&group| {
                port.send_control_frame(|out| mld::write_report_v1(link, source, group, out))
            })
        } else {
            let record = self.memberships.record_type();
            groups.chunks(GROUPS_MAX).all(|groups| {
                port.send_control_frame(|out| mld::write_report(link, source, record, groups, out))
            })
        };
        if is_sent {
            let delay = self.random_delay(now, UNSOLICITED_REPORT_INTERVAL_NS);
            self.memberships.on_sent(now, delay);
        } else {
            self.memberships.on_starved(now);
        }
    }

    /// Processes an MLD query: schedules the report at a random time within the maximum response
    /// delay, so that not all hosts report at once. True if it concerns one of our groups.
    pub(super) fn on_mld_query(&mut self, now: Instant, query: &Query) -> bool {
        let groups = self.mld_groups();
        let is_ours = query.group.map_or(!groups.is_empty(), |group| groups.contains(&group));
        if is_ours {
            let delay = self.random_delay(now, query.delay_max_ns);
            self.memberships.on_query(now, query, delay);
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
