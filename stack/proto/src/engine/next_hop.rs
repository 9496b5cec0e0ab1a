//! Next hop of a connection: the neighbor that receives its frames, and reachability confirmation.
//!
//! An active open waits for address resolution. A passive open replies to the source address of the
//! SYN's frame until the handshake is complete, so that no resolution starts for addresses spoofed
//! by an off-path attacker; then it follows the route like any other. From then on a connection
//! looks up the neighbor cache when that has changed, and otherwise once per second when it
//! transmits. Its progress then confirms reachability (RFC 4861 section 7.3.1), and the lack of it
//! makes the neighbor suspect.

use core::net::IpAddr;

use crate::ddp::memory::Memory;
use crate::device::{Device, Retained, RxFrame};
use crate::engine::Engine;
use crate::net::neighbor::{Lookup, NeighborId, Solicit};
use crate::net::{arp, ndp};
use crate::tcp::Tcb;
use crate::time::{Instant, SECOND};
use crate::verbs::cm::ConnectError;
use crate::verbs::wc::Completions;

/// Interval of cache lookups, while the cache does not change.
const REFRESH_INTERVAL_NS: u64 = SECOND;
/// Unresolved connections checked in one pass: a bound on the work, however many wait. The rest is
/// checked in the next passes.
const RESOLVES_PER_PASS: usize = 64;

/// Next hop of a connection.
#[derive(Debug)]
pub(super) struct NextHop {
    neighbor: Option<NeighborId>,
    /// Epoch of the cache at the last lookup.
    epoch: u32,
    /// Sum of acknowledged and received bytes at that time; see [`tcp_progress`].
    progress: u32,
    /// Time of the next lookup.
    refresh_at: Instant,
    /// Frames may be sent: there is an address, and the neighbor is not unreachable.
    pub(super) resolved: bool,
}

impl NextHop {
    /// Creates a next hop that waits for address resolution.
    pub(super) const fn unresolved() -> Self {
        Self { neighbor: None, epoch: 0, progress: 0, refresh_at: Instant::ZERO, resolved: false }
    }

    /// Creates a next hop that replies to the source of the SYN.
    pub(super) const fn via_syn_source() -> Self {
        Self { resolved: true, ..Self::unresolved() }
    }

    /// Makes the next lookup due now: TCP gets no acknowledgments.
    pub(super) const fn mark_suspect(&mut self, now: Instant) {
        self.refresh_at = now;
    }

    /// True if the cache has to be looked up before the next frame.
    #[inline]
    pub(super) fn needs_refresh(&self, now: Instant, epoch: u32) -> bool {
        self.epoch != epoch || self.refresh_at <= now
    }
}

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Checks connections that wait for address resolution, and sends the solicitations that are
    /// due.
    pub(super) fn resolve_next_hops(&mut self, now: Instant) {
        let epoch = self.neighbors.epoch();
        if !self.unresolved.is_empty() && (self.resolve_at <= now || self.resolve_epoch != epoch) {
            self.resolve_at = now + REFRESH_INTERVAL_NS;
            self.resolve_epoch = epoch;
            self.unresolved_due = self.unresolved.len();
        }
        for _ in 0..self.unresolved_due.min(RESOLVES_PER_PASS) {
            self.unresolved_due -= 1;
            if let Some(index) = self.unresolved.pop_front()
                && self.recheck_unresolved(now, index)
            {
                self.unresolved.push_back(index);
            }
        }
        while let Some(question) = self.neighbors.next_solicit(now) {
            self.send_solicit(question);
        }
    }

    /// Checks a connection that waits for address resolution; true if it still waits.
    fn recheck_unresolved(&mut self, now: Instant, index: u32) -> bool {
        let is_unresolved = |conn: &super::connection::Connection<_, _>| !conn.next_hop.resolved;
        if !self.connections.get(index).is_some_and(is_unresolved) {
            return false;
        }
        let answer = self.lookup_next_hop(now, index);
        let Some(conn) = self.connections.get_mut(index) else { return false };
        match answer {
            Some(Lookup::Found(mac)) => {
                conn.next_hop.resolved = true;
                conn.tcb.set_remote_mac(mac);
                self.make_ready(index);
                false
            }
            // An established connection stays, and continues if its neighbor replies in time.
            Some(Lookup::Unreachable) if !conn.tcp_established => {
                self.verbs.counters.neighbors_unreachable += 1;
                self.fail_connect(index, ConnectError::TimedOut, None);
                self.remove_connection(index);
                false
            }
            _ => true,
        }
    }

    /// Updates the next hop from the neighbor cache, and reports the progress of the connection to
    /// the cache. To be called when [`NextHop::needs_refresh`], before frames are sent.
    #[cold]
    pub(super) fn refresh_next_hop(&mut self, now: Instant, index: u32) {
        let epoch = self.neighbors.epoch();
        let Some(conn) = self.connections.get_mut(index) else { return };
        // Replies go to the source of the SYN until the handshake is complete.
        if !conn.tcp_established && conn.next_hop.neighbor.is_none() {
            conn.next_hop.epoch = epoch;
            conn.next_hop.refresh_at = now + REFRESH_INTERVAL_NS;
            return;
        }
        let mark = tcp_progress(&conn.tcb);
        let progress = mark != conn.next_hop.progress;
        // A lookup ahead of time does not show a lack of progress.
        let doubts = !progress && conn.next_hop.refresh_at <= now && !conn.tcb.all_acked();
        conn.next_hop.progress = mark;
        let mac = conn.tcb.remote_mac();
        if let Some(neighbour) = conn.next_hop.neighbor {
            if progress {
                self.neighbors.confirm(now, neighbour, mac);
            } else if doubts {
                self.neighbors.mark_suspect(now, neighbour);
            }
        }
        let answer = self.lookup_next_hop(now, index);
        let Some(conn) = self.connections.get_mut(index) else { return };
        match answer {
            Some(Lookup::Found(mac)) => conn.tcb.set_remote_mac(mac),
            Some(Lookup::Unreachable) if !progress => {
                self.verbs.counters.neighbors_unreachable += 1;
                conn.next_hop.resolved = false;
                self.unresolved.push_back(index);
            }
            // Frames to the last known address may arrive, or there is no better one.
            _ => {}
        }
    }

    /// Looks up the neighbor that receives a connection's frames.
    fn lookup_next_hop(&mut self, now: Instant, index: u32) -> Option<Lookup> {
        let conn = self.connections.get_mut(index)?;
        conn.next_hop.epoch = self.neighbors.epoch();
        conn.next_hop.refresh_at = now + REFRESH_INTERVAL_NS;
        let known = conn.next_hop.neighbor.and_then(|id| self.neighbors.lookup(now, id));
        if known.is_some() {
            return known;
        }
        let hop = self.routing.next_hop(conn.tcb.tuple().remote.ip())?;
        conn.next_hop.neighbor = self.neighbors.find_or_insert(now, hop);
        self.neighbors.lookup(now, conn.next_hop.neighbor?)
    }

    fn send_solicit(&mut self, question: Solicit) {
        let Solicit { ip, mac } = question;
        let (Some(source), link) = (self.routing.select_source(ip, ip), self.link) else { return };
        self.verbs.counters.neighbor_solicits_out += 1;
        self.send_control_frame(|out| match (source, ip) {
            (IpAddr::V4(source), IpAddr::V4(ip)) => arp::write_request(link, source, ip, mac, out),
            (IpAddr::V6(source), IpAddr::V6(ip)) => {
                ndp::write_solicitation(link, source, ip, mac, out)
            }
            _ => 0,
        });
    }
}

/// Returns a value that advances with every byte acknowledged or received in order: both show that
/// frames reach the peer (RFC 4861 section 7.3.1).
fn tcp_progress<R: RxFrame, T: Retained>(tcb: &Tcb<R, T>) -> u32 {
    tcb.snd_una().0.wrapping_add(tcb.rcv_nxt().0)
}
