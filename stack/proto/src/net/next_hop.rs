//! Next hop of a connection: the neighbor that receives its frames, and reachability confirmation.
//!
//! An active open waits for address resolution. A passive open replies to the source address of the
//! SYN's frame until the handshake is complete, so that no resolution starts for addresses spoofed
//! by an off-path attacker; then it follows the route like any other. From then on a connection
//! looks up the neighbor cache when that has changed, and otherwise once per second when it
//! transmits. Its progress then confirms reachability (RFC 4861 section 7.3.1), and the lack of it
//! makes the neighbor suspect.

use core::net::IpAddr;

use crate::net::neighbor::{Lookup, NeighborCache, NeighborId};
use crate::net::routing::RoutingTable;
use crate::time::{Instant, SECOND};

/// Interval of cache lookups, while the cache does not change.
pub(crate) const REFRESH_INTERVAL_NS: u64 = SECOND;

/// Next hop of a connection.
#[derive(Debug)]
pub(crate) struct NextHop {
    neighbor: Option<NeighborId>,
    /// Epoch of the cache at the last lookup.
    epoch: u32,
    /// Value of [`Traffic::progress`] at that time.
    progress: u32,
    /// Time of the next lookup.
    refresh_at: Instant,
    /// Frames may be sent: there is an address, and the neighbor is not unreachable.
    resolved: bool,
}

/// State of a connection, for [`NextHop::refresh`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    /// Address of the peer.
    pub(crate) remote: IpAddr,
    /// Hardware address that its frames go to.
    pub(crate) remote_mac: [u8; 6],
    /// The handshake is complete.
    pub(crate) is_established: bool,
    /// Value that changes with every byte acknowledged or received in order: both show that frames
    /// reach the peer (RFC 4861 section 7.3.1).
    pub(crate) progress: u32,
    /// No sent bytes are unacknowledged.
    pub(crate) all_acked: bool,
}

impl NextHop {
    /// Creates a next hop that waits for address resolution.
    #[must_use]
    pub(crate) const fn unresolved() -> Self {
        Self { neighbor: None, epoch: 0, progress: 0, refresh_at: Instant::ZERO, resolved: false }
    }

    /// Creates a next hop that replies to the source of the SYN.
    #[must_use]
    pub(crate) const fn via_syn_source() -> Self {
        Self { resolved: true, ..Self::unresolved() }
    }

    /// True if frames may be sent.
    #[inline]
    #[must_use]
    pub(crate) const fn is_resolved(&self) -> bool {
        self.resolved
    }

    /// Makes the next lookup due now: TCP gets no acknowledgments.
    pub(crate) const fn mark_suspect(&mut self, now: Instant) {
        self.refresh_at = now;
    }

    /// True if the cache has to be looked up before the next frame.
    #[inline]
    #[must_use]
    pub(crate) fn needs_refresh(&self, now: Instant, epoch: u32) -> bool {
        self.epoch != epoch || self.refresh_at <= now
    }

    /// Keeps the hardware address of the connection, which is not of a neighbor, until the next
    /// refresh is due.
    pub(crate) fn keep(&mut self, now: Instant, epoch: u32) {
        self.epoch = epoch;
        self.refresh_at = now + REFRESH_INTERVAL_NS;
        self.resolved = true;
    }

    /// Looks up the neighbor of a connection to `remote` that waits for address resolution. Once
    /// it is found, frames may be sent.
    pub(crate) fn resolve(
        &mut self,
        now: Instant,
        cache: &mut NeighborCache,
        routing: &RoutingTable,
        remote: IpAddr,
    ) -> Lookup {
        let found = self.lookup(now, cache, routing, remote);
        self.resolved |= matches!(found, Lookup::Found(_));
        found
    }

    /// Updates the next hop from the neighbor cache, and reports the progress of the connection to
    /// the cache. To be called when [`NextHop::needs_refresh`], before frames are sent.
    ///
    /// [`Lookup::Unreachable`]: no frame may be sent until [`NextHop::resolve`] finds the neighbor
    /// again. [`Lookup::Pending`]: frames to the last known address may arrive, or there is no
    /// better one.
    pub(crate) fn refresh(
        &mut self,
        now: Instant,
        cache: &mut NeighborCache,
        routing: &RoutingTable,
        traffic: &Traffic,
    ) -> Lookup {
        // Replies go to the source of the SYN until the handshake is complete.
        if !traffic.is_established && self.neighbor.is_none() {
            self.epoch = cache.epoch();
            self.refresh_at = now + REFRESH_INTERVAL_NS;
            return Lookup::Pending;
        }
        let has_progress = traffic.progress != self.progress;
        // A lookup ahead of time does not show a lack of progress.
        let is_suspect = !has_progress && self.refresh_at <= now && !traffic.all_acked;
        self.progress = traffic.progress;
        if let Some(neighbor) = self.neighbor {
            if has_progress {
                cache.confirm(now, neighbor, traffic.remote_mac);
            } else if is_suspect {
                cache.mark_suspect(now, neighbor);
            }
        }
        match self.lookup(now, cache, routing, traffic.remote) {
            Lookup::Unreachable if has_progress => Lookup::Pending,
            Lookup::Unreachable => {
                self.resolved = false;
                Lookup::Unreachable
            }
            found => found,
        }
    }

    /// Looks up the neighbor that receives the frames to `remote`. [`Lookup::Pending`] also
    /// without a route, and while the cache is full.
    fn lookup(
        &mut self,
        now: Instant,
        cache: &mut NeighborCache,
        routing: &RoutingTable,
        remote: IpAddr,
    ) -> Lookup {
        self.epoch = cache.epoch();
        self.refresh_at = now + REFRESH_INTERVAL_NS;
        let known = self.neighbor.and_then(|id| cache.lookup(now, id));
        let found = known.or_else(|| {
            let hop = routing.next_hop(remote)?;
            self.neighbor = cache.find_or_insert(now, hop);
            cache.lookup(now, self.neighbor?)
        });
        found.unwrap_or(Lookup::Pending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::neighbor::{Advert, NeighborConfig, Solicit};
    use crate::net::rate_limit::RateLimit;
    use crate::net::reply_limits::SOLICITS_PER_SECOND;
    use crate::net::routing::InterfaceAddress;

    const REMOTE: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(198, 18, 0, 2));
    const OURS: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(198, 18, 0, 1));
    const SYN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 8];
    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn fixture() -> (NeighborCache, RoutingTable) {
        let routing = RoutingTable::new(&[InterfaceAddress { ip: OURS, prefix_len: 24 }], &[]);
        let solicits = RateLimit::new(SOLICITS_PER_SECOND);
        (NeighborCache::new(NeighborConfig::default(), 1, solicits), routing)
    }

    fn traffic(is_established: bool, progress: u32) -> Traffic {
        Traffic { remote: REMOTE, remote_mac: SYN_MAC, is_established, progress, all_acked: false }
    }

    fn solicits(cache: &mut NeighborCache, now: Instant) -> Vec<Solicit> {
        core::iter::from_fn(|| cache.next_solicit(now)).collect()
    }

    #[test]
    fn active_open_waits_for_resolution() {
        let ((mut cache, routing), now) = (fixture(), Instant::ZERO);
        let mut hop = NextHop::unresolved();
        assert_eq!(hop.resolve(now, &mut cache, &routing, REMOTE), Lookup::Pending);
        assert_eq!(solicits(&mut cache, now), [Solicit { ip: REMOTE, mac: None }]);
        assert!(!hop.is_resolved());
        let advert = Advert { ip: REMOTE, mac: Some(MAC), solicited: true, overrides: true };
        let _ = cache.on_advert(now, &advert);
        assert!(hop.needs_refresh(now, cache.epoch()));
        assert_eq!(hop.resolve(now, &mut cache, &routing, REMOTE), Lookup::Found(MAC));
        assert!(hop.is_resolved() && !hop.needs_refresh(now, cache.epoch()));
        assert!(hop.needs_refresh(now + REFRESH_INTERVAL_NS, cache.epoch()));
    }

    #[test]
    fn passive_open_resolves_only_once_it_is_established() {
        let ((mut cache, routing), mut now) = (fixture(), Instant::ZERO);
        let mut hop = NextHop::via_syn_source();
        assert!(hop.is_resolved());
        let half_open = traffic(false, 1);
        assert_eq!(hop.refresh(now, &mut cache, &routing, &half_open), Lookup::Pending);
        assert!(solicits(&mut cache, now).is_empty(), "the source may be spoofed");
        now = now + REFRESH_INTERVAL_NS;
        assert_eq!(hop.refresh(now, &mut cache, &routing, &traffic(true, 2)), Lookup::Pending);
        assert_eq!(solicits(&mut cache, now), [Solicit { ip: REMOTE, mac: None }]);
        assert!(hop.is_resolved(), "frames still go to the source of the SYN");
    }

    #[test]
    fn progress_outweighs_a_neighbor_that_does_not_reply() {
        let ((mut cache, routing), mut now) = (fixture(), Instant::ZERO);
        let mut hop = NextHop::via_syn_source();
        let (mut progress, mut answers) = (0, Vec::new());
        for _ in 0..20 {
            let _ = solicits(&mut cache, now);
            progress += u32::from(answers.len() < 10);
            answers.push(hop.refresh(now, &mut cache, &routing, &traffic(true, progress)));
            if !hop.is_resolved() {
                break;
            }
            now = now + REFRESH_INTERVAL_NS;
        }
        assert!(answers.len() > 10, "{answers:?}");
        let (last, before) = answers.split_last().unwrap();
        assert_eq!(*last, Lookup::Unreachable);
        assert!(before.iter().all(|answer| *answer == Lookup::Pending), "{answers:?}");
    }

    #[test]
    fn destination_without_route_stays_unresolved() {
        let (mut cache, routing) = fixture();
        let mut hop = NextHop::unresolved();
        let remote = "203.0.113.1".parse().unwrap();
        let answer = hop.resolve(Instant::ZERO, &mut cache, &routing, remote);
        assert_eq!((answer, hop.is_resolved()), (Lookup::Pending, false));
    }
}
