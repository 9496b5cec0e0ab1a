//! Listeners, and the limits of passive connections in setup.
//!
//! There is one limit for each stage of a passive open.
//!
//! | stage                          | limit                             | beyond it             |
//! |--------------------------------|-----------------------------------|-----------------------|
//! | SYN                            | `cookies_per_second`              | dropped               |
//! | half open                      | `half_open_max`, and per listener | SYN cookies           |
//! | request incomplete             | `awaiting_request_max`            | one of them is reset  |
//! | request complete, not decided  | `backlog` of the listener         | see below             |
//!
//! While the backlog is full, SYNs are dropped, and so are the ACKs that would complete a
//! handshake: the peer retransmits. A request that completes meanwhile waits for a free slot. Only
//! a complete request takes a slot in the backlog, which the application has to free: a peer that
//! is silent after the handshake, stops within its request or sends it byte by byte does not block
//! others, and has `startup_timeout_ns` in total. See [`super::awaiting_request`] for the choice of
//! the one reset.

use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::engine::connect::new_connection;
use crate::engine::connection::Phase;
use crate::engine::next_hop::NextHop;
use crate::engine::rx_ooo::SegmentFrame;
use crate::engine::{Engine, cookie};
use crate::tcp::{IssAndTsOffset, State, Tcb};
use crate::time::Instant;
use crate::verbs::cm::CmError;
use crate::verbs::wc::Completions;
use crate::wire::tcp::{Flags, Segment};

/// Listening port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listener {
    backlog: usize,
    /// Connections whose request the application has not accepted or rejected yet.
    pending: usize,
    /// Connections whose handshake is not complete.
    half_open: usize,
    /// Time until which an ACK of no connection may carry a valid SYN cookie.
    cookies_until: Instant,
    /// Connections start without startup frames.
    unframed: bool,
}

impl Listener {
    /// True if the application has as many requests to decide on as the backlog allows.
    const fn is_full(&self) -> bool {
        self.pending >= self.backlog
    }
}

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Listens on `port`; at most `backlog` requests wait for a decision at a time.
    ///
    /// # Errors
    /// [`CmError::PortInUse`].
    pub fn listen(&mut self, port: u16, backlog: usize) -> Result<(), CmError> {
        self.add_listener(port, backlog, false)
    }

    /// As [`Engine::listen`], for connections without startup frames: each is offered as soon as
    /// TCP is established ([`Start::Immediate`], [`Start::Streaming`]).
    ///
    /// # Errors
    /// [`CmError::PortInUse`].
    ///
    /// [`Start::Immediate`]: crate::verbs::cm::Start::Immediate
    /// [`Start::Streaming`]: crate::verbs::cm::Start::Streaming
    // req: MPA-141
    pub fn listen_unframed(&mut self, port: u16, backlog: usize) -> Result<(), CmError> {
        self.add_listener(port, backlog, true)
    }

    fn add_listener(&mut self, port: u16, backlog: usize, unframed: bool) -> Result<(), CmError> {
        if self.listeners.contains_key(&port) {
            return Err(CmError::PortInUse(port));
        }
        let cookies_until = Instant::ZERO;
        let listener = Listener { backlog, pending: 0, half_open: 0, cookies_until, unframed };
        self.listeners.insert(port, listener);
        Ok(())
    }

    /// True if the connection came by a listener for connections without startup frames.
    pub(super) fn is_unframed(&self, index: u32) -> bool {
        let port = self.connections.get(index).and_then(|conn| conn.listener);
        let listener = port.and_then(|port| self.listeners.get(&port));
        listener.is_some_and(|listener| listener.unframed)
    }

    /// Stops listening on `port`. Connections not decided on are reset.
    pub fn unlisten(&mut self, port: u16) {
        let waiting: Vec<u32> = self
            .connections
            .indices()
            .filter(|&index| {
                self.connections.get(index).is_some_and(|conn| conn.listener == Some(port))
            })
            .collect();
        // Removed first: no other request is offered when one of these leaves the backlog.
        self.listeners.remove(&port);
        for index in waiting {
            self.abort(index);
        }
    }

    /// Processes a segment of no connection: true if a listener handled it (RFC 9293 section
    /// 3.10.7.2), false if it is to be answered with RST.
    pub(super) fn on_listener_segment<F: SegmentFrame<D>>(
        &mut self,
        now: Instant,
        segment: &Segment,
        remote_mac: [u8; 6],
        frame: F,
    ) -> bool {
        let Some(listener) = self.listeners.get(&segment.tuple.local.port()) else {
            return false;
        };
        if segment.flags.has(Flags::RST) {
            return true;
        }
        if segment.flags.has(Flags::ACK) {
            let may_be_cookie = now < listener.cookies_until && !segment.flags.has(Flags::SYN);
            return may_be_cookie && self.on_cookie_ack(now, segment, remote_mac, frame);
        }
        // A segment with neither RST, ACK nor SYN is dropped.
        if segment.flags.has(Flags::SYN) {
            self.on_syn(now, segment, remote_mac);
        }
        true
    }

    fn on_syn(&mut self, now: Instant, syn: &Segment, remote_mac: [u8; 6]) {
        let port = syn.tuple.local.port();
        let Some(listener) = self.listeners.get(&port) else { return };
        if listener.is_full() {
            self.verbs.counters.backlog_overflows += 1;
            return;
        }
        if listener.half_open >= self.config.half_open_per_listener_max
            || self.half_open >= self.config.half_open_max
        {
            self.send_syn_cookie(now, syn, remote_mac);
            return;
        }
        let mut origin = self.iss_and_ts_offset(now, &syn.tuple);
        if let Some((tuple, seq)) = self.recycled.take()
            && tuple == syn.tuple
        {
            origin.iss = origin.iss.max(seq);
        }
        let template = self.header_template(remote_mac, syn.tuple);
        let tcb = Tcb::accept(now, self.tcp_config(&syn.tuple), template, syn, origin);
        if let Some(index) = self.insert_half_open(now, tcb) {
            self.make_ready(index);
            self.arm_timer(index);
        }
    }

    /// Inserts a half-open passive connection. `None` if the table is full.
    fn insert_half_open(&mut self, now: Instant, tcb: Tcb<D::Rx, D::Retained>) -> Option<u32> {
        let tuple = tcb.tuple();
        let port = tuple.local.port();
        let phase = Phase::AwaitRequest { startup_rx: Vec::new() };
        let mut conn = new_connection(tcb, phase, now + self.config.startup_timeout_ns);
        conn.listener = Some(port);
        conn.next_hop = NextHop::via_syn_source();
        let index = self.insert_connection(tuple, conn)?;
        self.half_open += 1;
        if let Some(listener) = self.listeners.get_mut(&port) {
            listener.half_open += 1;
        }
        Some(index)
    }

    #[cold]
    fn send_syn_cookie(&mut self, now: Instant, syn: &Segment, remote_mac: [u8; 6]) {
        if !self.cookie_limit.admits(now) {
            self.verbs.counters.cookies_rate_limited += 1;
            return;
        }
        let Some(listener) = self.listeners.get_mut(&syn.tuple.local.port()) else { return };
        listener.cookies_until = now + cookie::LIFETIME_NS;
        let origin = self.iss_and_ts_offset(now, &syn.tuple);
        let fields = self.cookies.syn_ack(now, self.tcp_config(&syn.tuple), syn, origin);
        if self.send_stateless(remote_mac, syn.tuple, &fields) {
            self.verbs.counters.cookies_sent += 1;
        }
    }

    /// Processes an ACK of no connection that may carry a SYN cookie, and its data; false if it
    /// does not.
    #[cold]
    fn on_cookie_ack<F: SegmentFrame<D>>(
        &mut self,
        now: Instant,
        ack: &Segment,
        remote_mac: [u8; 6],
        frame: F,
    ) -> bool {
        let origin = self.iss_and_ts_offset(now, &ack.tuple);
        let recalled = self.cookies.verify(now, &self.config.tcp, ack, origin);
        let Some(cookie::VerifiedCookie { syn, cookie: iss, sent_at }) = recalled else {
            self.verbs.counters.cookies_invalid += 1;
            return false;
        };
        let port = ack.tuple.local.port();
        if self.listeners.get(&port).is_none_or(Listener::is_full) {
            self.verbs.counters.backlog_overflows += 1;
            return true;
        }
        let template = self.header_template(remote_mac, ack.tuple);
        let origin = IssAndTsOffset { iss, ..origin };
        let cfg = self.tcp_config(&ack.tuple);
        let tcb = Tcb::from_cookie(now, cfg, template, &syn, origin, sent_at);
        let Some(index) = self.insert_half_open(now, tcb) else { return true };
        self.on_segment(now, ack, frame);
        // The segment completed the handshake, or the connection is removed again.
        let is_half_open = |conn: &super::connection::Connection<_, _>| {
            conn.tcb.tuple() == ack.tuple && conn.tcb.state() == State::SynReceived
        };
        if self.connections.get(index).is_some_and(is_half_open) {
            self.remove_connection(index);
        } else {
            self.verbs.counters.cookies_accepted += 1;
        }
        true
    }

    /// Decides on a SYN for a connection, or a segment for one that is not established: true if TCP
    /// is to process it, false if it is dropped. If the connection was removed, the segment belongs
    /// to none.
    ///
    /// The connection is removed if the SYN may replace it by a new one between the same ends, or
    /// if the segment carries a valid cookie, sent before there was space for the state that the
    /// retransmitted SYN created. An ACK that would complete a handshake is dropped while the
    /// backlog is full.
    #[cold]
    pub(super) fn admit_segment(&mut self, now: Instant, index: u32, segment: &Segment) -> bool {
        let Some(conn) = self.connections.get(index) else { return false };
        if let Some(listener) = self.listeners.get(&segment.tuple.local.port())
            && conn.tcb.may_recycle(segment)
        {
            if listener.is_full() {
                // The new connection would be refused anyway.
                self.verbs.counters.backlog_overflows += 1;
                return false;
            }
            self.recycled = Some((segment.tuple, conn.tcb.successor_seq()));
            self.remove_connection(index);
            return false;
        }
        let completes =
            segment.flags.has(Flags::ACK) && !segment.flags.any(Flags::RST | Flags::SYN);
        let Some(port) = conn.listener.filter(|_| completes && !conn.tcp_established) else {
            return true;
        };
        let Some(listener) = self.listeners.get(&port) else { return true };
        if listener.is_full() {
            self.verbs.counters.backlog_overflows += 1;
            return false;
        }
        if now < listener.cookies_until && segment.ack != conn.tcb.snd_una() + 1 {
            let origin = self.iss_and_ts_offset(now, &segment.tuple);
            if self.cookies.verify(now, &self.config.tcp, segment, origin).is_some() {
                self.remove_connection(index);
                return false;
            }
        }
        true
    }

    /// Accounts for a completed handshake of a passive connection: it enters the backlog if its
    /// request was received already, or else awaits it.
    pub(super) fn on_handshake_complete(&mut self, index: u32) {
        let Some(conn) = self.connections.get_mut(index) else { return };
        conn.tcp_established = true;
        let Some(port) = conn.listener else { return };
        self.half_open = self.half_open.saturating_sub(1);
        let Some(listener) = self.listeners.get_mut(&port) else { return };
        listener.half_open = listener.half_open.saturating_sub(1);
        if listener.unframed || matches!(conn.phase, Phase::AwaitDecision(_)) {
            listener.pending += 1;
            return;
        }
        conn.arrival_order = self.awaiting_request.insert(conn.tcb.tuple().remote.ip(), index);
        if self.awaiting_request.incomplete_count() > self.config.awaiting_request_max
            && let Some(victim) = self.awaiting_request.victim()
        {
            self.verbs.counters.requests_evicted += 1;
            self.abort(victim);
        }
    }

    /// Accounts for a complete request. False if it has to wait for a free slot in the backlog.
    pub(super) fn enter_backlog(&mut self, index: u32) -> bool {
        let Some(conn) = self.connections.get_mut(index) else { return false };
        // Until the completed handshake is handled there was a free slot; it is counted then.
        let (Some(port), true) = (conn.listener, conn.arrival_order.is_some()) else { return true };
        let Some(listener) = self.listeners.get_mut(&port) else { return true };
        let remote = conn.tcb.tuple().remote.ip();
        if listener.is_full() {
            self.awaiting_request.mark_complete(conn.arrival_order, remote, port, index);
            return false;
        }
        self.awaiting_request.remove(conn.arrival_order.take(), remote, port, index);
        listener.pending += 1;
        true
    }

    /// Removes the connection from the accounting of its listener: it was decided on, or ends.
    pub(super) fn leave_backlog(&mut self, index: u32) {
        let Some(conn) = self.connections.get_mut(index) else { return };
        let Some(port) = conn.listener.take() else { return };
        if let Some(ticket) = conn.arrival_order.take() {
            self.awaiting_request.remove(Some(ticket), conn.tcb.tuple().remote.ip(), port, index);
            return;
        }
        let was_half_open = !conn.tcp_established;
        self.half_open = self.half_open.saturating_sub(usize::from(was_half_open));
        let Some(listener) = self.listeners.get_mut(&port) else { return };
        if was_half_open {
            listener.half_open = listener.half_open.saturating_sub(1);
            return;
        }
        listener.pending = listener.pending.saturating_sub(1);
        self.offer_pending_requests(port);
    }

    /// Offers requests that wait for the backlog, in the order in which their handshakes completed.
    fn offer_pending_requests(&mut self, port: u16) {
        while self.listeners.get(&port).is_some_and(|listener| !listener.is_full())
            && let Some(index) = self.awaiting_request.next_complete(port)
        {
            self.process_mpa_request(index);
            // It was offered or refused: it does not wait any longer.
            debug_assert!(
                self.awaiting_request.next_complete(port) != Some(index),
                "one at a time"
            );
        }
    }
}
