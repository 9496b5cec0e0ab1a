//! Listeners, and the limits of passive connections in setup.
//!
//! There is one limit for each stage of a passive open.
//!
//! | stage                          | limit                             | beyond it             |
//! |--------------------------------|-----------------------------------|-----------------------|
//! | SYN                            | `cookies_per_second`              | dropped               |
//! | half open                      | `half_open_max`, and per listener | SYN cookies           |
//! | ended while half open          | 128 in 100 ms                     | SYN cookies           |
//! | request incomplete             | `awaiting_request_max`            | one of them is reset  |
//! | request complete, not decided  | `backlog` of the listener         | see below             |
//!
//! While the backlog is full we drop SYNs, and the ACKs that would complete a handshake: the peer
//! retransmits. A request that completes meanwhile waits for a free slot. Only a complete request
//! takes a slot, and the application frees it. So a peer that is silent after the handshake, stops
//! within its request or sends it byte by byte does not block others. It has `startup_timeout_ns`
//! in total. See [`awaiting_request`] for the choice of the connection to reset.
//!
//! [`awaiting_request`]: crate::connection::setup::awaiting_request

use core::net::SocketAddr;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use arrayvec::ArrayVec;

use crate::config::EngineConfig;
use crate::connection::setup::awaiting_request::AwaitingRequest;
use crate::connection::setup::syn_cookie::{self, SynCookies};
use crate::net::jittered_rate_limit::JitteredRateLimit;
use crate::net::siphash_keys::SipBuildHasher;
use crate::steering::backlog::{Backlogs, ListenerCounts};
use crate::steering::owners::ShardId;
use crate::time::{Instant, MILLISECOND};
use crate::verbs::cm::{CmError, ListenAddr};

/// Listeners with waiting requests that a pass visits, at most.
pub(crate) const WAITING_LISTENERS_MAX: usize = 16;
/// Half-open connections that may end in this time without a handshake: by a RST, a timeout, or in
/// favor of another. Beyond that number SYNs are answered with SYN cookies, which are limited.
const FAILED_MAX: u32 = 128;
const FAILED_PERIOD_NS: u64 = 100 * MILLISECOND;
/// The first of all handles.
const FIRST: ListenerRef = ListenerRef { index: 0 };

/// Handle of a listener: found once by address, then carried by the segment and by the connections
/// that it opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ListenerRef {
    pub(super) index: u16,
}

/// Listener on a port of one or several addresses.
#[derive(Clone, Debug)]
pub(super) struct Listener {
    pub(super) addr: ListenAddr,
    backlog: usize,
    /// Its connections in setup, over all shards.
    counts: Arc<ListenerCounts>,
    /// Shard of this engine.
    shard: ShardId,
    /// Connections start without startup frames.
    pub(super) unframed: bool,
}

impl ListenerRef {
    fn slot(self) -> usize {
        usize::from(self.index)
    }
}

impl Listener {
    /// True if the application has as many requests to decide on as the backlog allows.
    pub(super) fn is_full(&self) -> bool {
        self.counts.pending.get() >= self.backlog
    }

    /// Takes a slot of the backlog. False if there is none.
    pub(super) fn take_slot(&self) -> bool {
        self.counts.pending.try_increment(self.shard, self.backlog)
    }

    /// Takes a slot of the backlog, although there may be none.
    pub(super) fn force_slot(&self) {
        self.counts.pending.increment(self.shard);
    }

    /// Frees a slot of the backlog.
    pub(super) fn free_slot(&self) {
        self.counts.pending.decrement(self.shard);
    }

    /// Records that a SYN cookie was sent.
    pub(super) fn on_cookie_sent(&self, now: Instant) {
        self.counts.expect_cookies_until(now + syn_cookie::LIFETIME_NS);
    }
}

/// All listeners, and what limits the passive connections in setup.
pub(crate) struct Listeners {
    by_addr: HashMap<ListenAddr, ListenerRef, SipBuildHasher>,
    /// Listeners by index, and the indices not in use.
    slots: Vec<Option<Listener>>,
    free_slots: Vec<u16>,
    shard: ShardId,
    backlogs: Arc<Backlogs>,
    /// Number of half-open passive connections of this engine.
    half_open: usize,
    /// Period of the last SYN, and how many of them have ended, less those that the periods before
    /// it have allowed.
    failed_period: u64,
    failed: u32,
    /// Passive connections that the application has not decided on, in any of the stages, by
    /// listener.
    in_setup: BTreeSet<(ListenerRef, u32)>,
    /// Passive connections with an MPA Request Frame that is incomplete, or waits for the backlog.
    pub(crate) awaiting_request: AwaitingRequest,
    /// Listener from which the next pass looks for requests that wait for a backlog.
    waiting_from: ListenerRef,
    /// The last pass offered as many requests as it may, for slots that other shards freed.
    pub(crate) has_more_to_offer: bool,
    pub(super) cookies: SynCookies,
    pub(super) cookie_limit: JitteredRateLimit,
}

impl Listeners {
    /// Creates a set without listeners. `shard`: this engine among the sharers of `backlogs`.
    pub(crate) fn new(
        seed: u64,
        cookie_limit: JitteredRateLimit,
        shard: ShardId,
        backlogs: Arc<Backlogs>,
    ) -> Self {
        let hash = SipBuildHasher::new(seed);
        Self {
            shard,
            backlogs,
            by_addr: HashMap::with_hasher(hash),
            slots: Vec::new(),
            free_slots: Vec::new(),
            half_open: 0,
            failed_period: 0,
            failed: 0,
            in_setup: BTreeSet::new(),
            awaiting_request: AwaitingRequest::new(hash),
            waiting_from: FIRST,
            has_more_to_offer: false,
            cookies: SynCookies::new(seed),
            cookie_limit,
        }
    }

    /// Adds a listener: at most `backlog` requests wait for a decision at a time.
    ///
    /// # Errors
    /// [`CmError::PortInUse`]; [`CmError::NoResources`] beyond 65,536 listeners.
    pub(crate) fn add(
        &mut self,
        addr: ListenAddr,
        backlog: usize,
        unframed: bool,
    ) -> Result<(), CmError> {
        if self.by_addr.contains_key(&addr) {
            return Err(CmError::PortInUse(addr.port()));
        }
        let index = match self.free_slots.pop() {
            Some(index) => index,
            None => {
                let index = u16::try_from(self.slots.len()).map_err(|_| CmError::NoResources)?;
                self.slots.push(None);
                index
            }
        };
        let (counts, shard) = (self.backlogs.listener(addr), self.shard);
        self.slots[usize::from(index)] = Some(Listener { addr, backlog, counts, shard, unframed });
        self.by_addr.insert(addr, ListenerRef { index });
        Ok(())
    }

    /// Closes the backlog of a listener that is about to be removed. Its connections still leave
    /// the counts, which other shards share.
    pub(crate) fn close(&mut self, addr: ListenAddr) -> Option<ListenerRef> {
        let found = self.by_addr.get(&addr).copied()?;
        if let Some(listener) = &mut self.slots[found.slot()] {
            listener.backlog = 0;
        }
        Some(found)
    }

    /// Removes a listener, none of whose connections is in setup any longer.
    pub(crate) fn remove(&mut self, addr: ListenAddr) {
        if let Some(ListenerRef { index }) = self.by_addr.remove(&addr) {
            self.slots[usize::from(index)] = None;
            self.free_slots.push(index);
        }
    }

    /// Finds the listener for segments to `local`: on that address, or else on all of its family,
    /// or else on all.
    pub(crate) fn find(&self, local: SocketAddr) -> Option<ListenerRef> {
        self.covering(local).next()
    }

    /// Returns the listeners that segments to `local` may be meant for, the most specific first.
    fn covering(&self, local: SocketAddr) -> impl Iterator<Item = ListenerRef> {
        ListenAddr::covering(local).into_iter().filter_map(|addr| self.by_addr.get(&addr).copied())
    }

    /// True if an ACK of no connection may carry a valid SYN cookie: of this listener, or of one
    /// that was the most specific when the SYN arrived.
    pub(super) fn expects_cookies(&self, now: Instant, local: SocketAddr) -> bool {
        self.covering(local).any(|listener| self.get(listener).counts.expects_cookies(now))
    }

    /// Returns a listener. It is there as long as one of its connections is in setup.
    pub(super) fn get(&self, listener: ListenerRef) -> &Listener {
        occupied(&self.slots, listener)
    }

    /// Returns the number of half-open passive connections of this engine.
    pub(crate) const fn half_open(&self) -> usize {
        self.half_open
    }

    /// Accounts for a half-open connection of a listener. Logarithmic in the number of
    /// connections in setup, as is its end.
    pub(crate) fn add_half_open(&mut self, listener: ListenerRef, index: u32) {
        self.half_open += 1;
        self.backlogs.half_open.increment(self.shard);
        self.get(listener).counts.half_open.increment(self.shard);
        self.in_setup.insert((listener, index));
    }

    /// Accounts for the end of a connection's setup: it was decided on, or ends.
    pub(super) fn end_setup(&mut self, listener: ListenerRef, index: u32) {
        self.in_setup.remove(&(listener, index));
    }

    /// Returns the connections to `listener` that the application has not decided on.
    pub(crate) fn in_setup(&self, listener: ListenerRef) -> Vec<u32> {
        let its = (listener, 0)..=(listener, u32::MAX);
        self.in_setup.range(its).map(|&(_, index)| index).collect()
    }

    /// Accounts for the end of a half-open connection, or of its handshake. Returns its listener.
    pub(super) fn remove_half_open(&mut self, listener: ListenerRef) -> &Listener {
        self.half_open = self.half_open.saturating_sub(1);
        self.backlogs.half_open.decrement(self.shard);
        let found = self.get(listener);
        found.counts.half_open.decrement(self.shard);
        found
    }

    /// Notes that a half-open connection ended before its handshake was complete.
    pub(super) fn on_half_open_failed(&mut self, listener: ListenerRef) {
        self.remove_half_open(listener);
        self.failed = self.failed.saturating_add(1);
    }

    /// True if half-open connections fail too fast for their SYN-ACKs not to be limited. A RST
    /// frees the place of a half-open connection: whoever sends one after each SYN, both from a
    /// forged source, would otherwise have as many SYN-ACKs sent as it likes.
    pub(super) fn is_failing_fast(&mut self, now: Instant) -> bool {
        let period = now.as_nanos() / FAILED_PERIOD_NS;
        let periods = period.saturating_sub(std::mem::replace(&mut self.failed_period, period));
        if periods > 0 {
            // Those that end between SYNs count too; but the limit does not outlast many for long.
            let allowed = u32::try_from(periods).unwrap_or(u32::MAX).saturating_mul(FAILED_MAX);
            self.failed = self.failed.min(2 * FAILED_MAX).saturating_sub(allowed);
        }
        self.failed >= FAILED_MAX
    }

    /// True if one more connection to this listener may be half open.
    pub(super) fn may_be_half_open(&self, listener: &Listener, config: &EngineConfig) -> bool {
        listener.counts.half_open.get() < config.half_open_per_listener_max
            && self.backlogs.half_open.get() < config.half_open_max
    }

    /// True if requests are complete and wait for a backlog: another shard may free a slot in it.
    #[inline]
    pub(crate) fn has_waiting_requests(&self) -> bool {
        self.awaiting_request.incomplete_count() < self.awaiting_request.len()
    }

    /// Returns the next listeners with such requests, in round-robin order: the share of this pass.
    pub(crate) fn waiting_listeners(&mut self) -> ArrayVec<ListenerRef, WAITING_LISTENERS_MAX> {
        let mut listeners = ArrayVec::new();
        while !listeners.is_full() {
            let next = self.awaiting_request.next_listener(self.waiting_from);
            let next = next.or_else(|| self.awaiting_request.next_listener(FIRST));
            let Some(listener) = next.filter(|next| !listeners.contains(next)) else { break };
            listeners.push(listener);
            self.waiting_from = ListenerRef { index: listener.index.wrapping_add(1) };
        }
        listeners
    }

    /// Returns the connection whose complete request is to be offered next, if the backlog of the
    /// listener has a free slot.
    pub(crate) fn next_pending(&self, listener: ListenerRef) -> Option<u32> {
        let is_full = self.get(listener).is_full();
        if is_full { None } else { self.awaiting_request.next_complete(listener) }
    }
}

/// Returns a listener by its handle.
fn occupied(slots: &[Option<Listener>], listener: ListenerRef) -> &Listener {
    slots[listener.slot()].as_ref().expect("removed after its last connection in setup")
}

#[cfg(test)]
mod tests {
    use core::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::net::reply_limits::ReplyLimits;

    fn listeners() -> Listeners {
        let limit = ReplyLimits::new(1, 1000).cookies;
        Listeners::new(1, limit, ShardId(0), Arc::new(Backlogs::new(1)))
    }

    #[test]
    fn listeners_with_waiting_requests_are_visited_in_turn() {
        const COUNT: u16 = 40;
        let mut listeners = listeners();
        assert!(listeners.waiting_listeners().is_empty());
        let peer: IpAddr = Ipv4Addr::new(198, 18, 0, 9).into();
        for index in (0..COUNT).rev() {
            let order = listeners.awaiting_request.insert(peer, index.into());
            let listener = ListenerRef { index };
            listeners.awaiting_request.mark_complete(order, peer, listener, index.into());
        }
        let visited = (0..5).flat_map(|_| listeners.waiting_listeners());
        let mut seen: Vec<u16> = visited.map(|listener| listener.index).collect();
        assert_eq!(seen.len(), 5 * WAITING_LISTENERS_MAX);
        seen.truncate(2 * usize::from(COUNT));
        assert!(seen.iter().copied().eq((0..COUNT).chain(0..COUNT)));
    }

    #[test]
    fn most_specific_listener_is_found_in_whatever_order_they_were_added() {
        const ADDRS: [&str; 4] = ["7", "0.0.0.0:7", "198.18.0.1:7", "[2001:2::1]:7"];
        let parsed = ADDRS.map(|addr| addr.parse::<ListenAddr>().unwrap());
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
            let mut listeners = listeners();
            order.iter().for_each(|&at| listeners.add(parsed[at], 1, false).unwrap());
            let again = listeners.add(parsed[order[0]], 1, false);
            assert_eq!(again, Err(CmError::PortInUse(7)));
            let find = |listeners: &Listeners, local: &str| {
                let found = listeners.find(local.parse().unwrap())?;
                Some(listeners.get(found).addr.to_string())
            };
            for (local, addr) in [
                ("198.18.0.1:7", Some("198.18.0.1:7")),
                ("198.18.0.2:7", Some("0.0.0.0:7")),
                ("[2001:2::1]:7", Some("[2001:2::1]:7")),
                ("[2001:2::2]:7", Some("*:7")),
                ("198.18.0.1:8", None),
            ] {
                assert_eq!(find(&listeners, local).as_deref(), addr, "{local}");
            }
            // The next one takes over.
            listeners.remove(parsed[2]);
            assert_eq!(find(&listeners, "198.18.0.1:7").as_deref(), Some("0.0.0.0:7"));
            listeners.remove(parsed[0]);
            assert_eq!(find(&listeners, "[2001:2::2]:7"), None);
            listeners.remove(parsed[0]);
        }
    }

    #[test]
    fn listeners_beyond_the_limit_are_refused() {
        let mut listeners = listeners();
        let one = ListenAddr::from((Ipv4Addr::new(198, 18, 0, 1), 7));
        for port in 0..=u16::MAX {
            listeners.add(port.into(), 1, false).unwrap();
        }
        assert_eq!(listeners.add(one, 1, false), Err(CmError::NoResources));
        listeners.remove(9.into());
        assert_eq!(listeners.add(one, 1, false), Ok(()));
    }

    /// Half-open connections end while no SYN arrives, as when a burst of RSTs follows one of SYNs.
    #[test]
    fn half_open_connections_that_end_between_syns_count_against_the_next() {
        let mut listeners = listeners();
        let at = |period: u64| Instant::from_nanos(period * FAILED_PERIOD_NS + 1);
        listeners.add(1.into(), 1, false).unwrap();
        let listener = listeners.find("198.18.0.1:1".parse().unwrap()).unwrap();
        let fail = |listeners: &mut Listeners, count: u32| {
            (0..count).for_each(|_| listeners.on_half_open_failed(listener));
        };
        assert!(!listeners.is_failing_fast(at(10)));
        fail(&mut listeners, FAILED_MAX - 1);
        assert!(!listeners.is_failing_fast(at(10)));
        fail(&mut listeners, 1);
        assert!(listeners.is_failing_fast(at(10)), "no more than the limit");
        assert!(!listeners.is_failing_fast(at(11)));
        // In the tenth of a second in which the next SYN arrives.
        fail(&mut listeners, 2 * FAILED_MAX);
        assert!(listeners.is_failing_fast(at(12)));
        // However many they were, that is soon over.
        fail(&mut listeners, 1_000_000);
        assert!(listeners.is_failing_fast(at(13)));
        assert!(!listeners.is_failing_fast(at(15)));
        fail(&mut listeners, 1);
        assert!(!listeners.is_failing_fast(at(1000)));
    }
}
