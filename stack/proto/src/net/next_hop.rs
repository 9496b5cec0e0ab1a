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

    /// Looks up the neighbor of a connection to `remote` that waits for address resolution. Once
    /// it is found, frames may be sent.
    pub(crate) fn resolve(
        &mut self,
        now: Instant,
        cache: &mut NeighborCache,
        routing: &RoutingTable,
        remote: IpAddr,
    ) -> Lookup {
        let found = self.look_up(now, cache, routing, remote);
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
        match self.look_up(now, cache, routing, traffic.remote) {
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
    fn look_up(
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
