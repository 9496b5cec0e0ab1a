//! The way to the next hop: which neighbour a connection's frames go to, and whether they arrive.
//!
//! A connection that is about to begin waits for its neighbour's address. One that was taken up
//! answers to where its SYN came from until the handshake is complete, so that nobody has to be
//! asked for an address that a stranger made up; then it follows the route like any other. From
//! then on it looks at the cache when that has changed, and once a second when it has its turn:
//! then its own progress confirms the neighbour, or the lack of it raises doubt.

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

/// Between two looks at the cache, while it does not change.
const REFRESH_INTERVAL_NS: u64 = SECOND;
/// Connections without an address that look at it in one pass: however many wait, the others' work
/// goes on. The rest of them follow in the next passes.
const RESOLVES_PER_PASS: usize = 64;

/// Where a connection's frames go.
#[derive(Debug)]
pub(super) struct NextHop {
    neighbor: Option<NeighborId>,
    /// The cache's when it was last looked at.
    epoch: u32,
    /// Acknowledged and received bytes then.
    progress: u32,
    /// When to look again.
    refresh_at: Instant,
    /// Frames may go: there is an address, and it was not given up.
    pub(super) resolved: bool,
}

impl NextHop {
    /// Waits for an address.
    pub(super) const fn unresolved() -> Self {
        Self { neighbor: None, epoch: 0, progress: 0, refresh_at: Instant::ZERO, resolved: false }
    }

    /// Back to where the SYN came from.
    pub(super) const fn via_syn_source() -> Self {
        Self { resolved: true, ..Self::unresolved() }
    }

    /// TCP hears nothing of what it sends: the look at the cache comes before its time.
    pub(super) const fn mark_suspect(&mut self, now: Instant) {
        self.refresh_at = now;
    }

    /// The cache is to be looked at before the next frame.
    #[inline]
    pub(super) fn needs_refresh(&self, now: Instant, epoch: u32) -> bool {
        self.epoch != epoch || self.refresh_at <= now
    }
}

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Looks after connections that wait for hardware addresses, and asks the questions that are
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

    /// Whether a connection still waits for an address after another look.
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
            // One that lives stays, and goes on when its neighbour comes back in time.
            Some(Lookup::Unreachable) if !conn.tcp_established => {
                self.verbs.counters.neighbors_unreachable += 1;
                self.fail_connect(index, ConnectError::TimedOut, None);
                self.remove_connection(index);
                false
            }
            _ => true,
        }
    }

    /// Takes up what the cache says of a connection's neighbour, and tells it how the connection
    /// fares. To be called when [`NextHop::needs_refresh`], before frames go.
    #[cold]
    pub(super) fn refresh_next_hop(&mut self, now: Instant, index: u32) {
        let epoch = self.neighbors.epoch();
        let Some(conn) = self.connections.get_mut(index) else { return };
        // Back to where the SYN came from, until the handshake is complete.
        if !conn.tcp_established && conn.next_hop.neighbor.is_none() {
            conn.next_hop.epoch = epoch;
            conn.next_hop.refresh_at = now + REFRESH_INTERVAL_NS;
            return;
        }
        let mark = tcp_progress(&conn.tcb);
        let progress = mark != conn.next_hop.progress;
        // A look before its time says nothing of a lack of progress.
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
            // What goes to the address known so far may arrive; or there is no better one.
            _ => {}
        }
    }

    /// Looks up the neighbour that takes a connection's frames.
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

/// Moves on with every byte that is acknowledged or arrives in order: both show that frames
/// reach the peer (RFC 4861 section 7.3.1).
fn tcp_progress<R: RxFrame, T: Retained>(tcb: &Tcb<R, T>) -> u32 {
    tcb.snd_una().0.wrapping_add(tcb.rcv_nxt().0)
}
