//! Ports that take connections, and how many may be on their way in.
//!
//! Four bounds, one for each stage of a connection on its way in.
//!
//! | stage                          | bound                             | beyond it          |
//! |--------------------------------|-----------------------------------|--------------------|
//! | SYN                            | `cookies_per_second`              | dropped            |
//! | half open                      | `half_open_max`, and per listener | SYN cookies        |
//! | request not complete           | `awaiting_request_max`            | one of them reset  |
//! | request complete, not decided  | `backlog` of the listener         | see below          |
//!
//! With the backlog full, SYNs are dropped, and so are the ACKs that would complete a handshake,
//! since the peer sends again; a request that completes meanwhile waits for room. Only a peer that
//! has said what it wants takes a place that the application has to free: a peer that is silent
//! after the handshake, stops within its request or sends it byte by byte holds nobody up, and has
//! `startup_timeout_ns` in all. See [`super::awaiting_request`] for who is reset.

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

/// A port that takes connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listener {
    backlog: usize,
    /// Connections whose request was offered to the application, and not accepted or rejected yet.
    pending: usize,
    /// Connections whose handshake is not complete.
    half_open: usize,
    /// Until when an ACK of no connection may bring a cookie back.
    cookies_until: Instant,
    /// What comes begins without start-up frames.
    unframed: bool,
}

impl Listener {
    /// The application has as many requests to decide on as it asked for.
    const fn is_full(&self) -> bool {
        self.pending >= self.backlog
    }
}

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Takes connections on `port`; at most `backlog` wait for a decision at a time.
    ///
    /// # Errors
    /// [`CmError::PortInUse`].
    pub fn listen(&mut self, port: u16, backlog: usize) -> Result<(), CmError> {
        self.add_listener(port, backlog, false)
    }

    /// As [`Engine::listen`], for connections without start-up frames: each is offered as soon as
    /// it is up ([`Start::Immediate`], [`Start::Streaming`]).
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

    /// The connection came in by a listener for those without start-up frames.
    pub(super) fn is_unframed(&self, index: u32) -> bool {
        let port = self.connections.get(index).and_then(|conn| conn.listener);
        let listener = port.and_then(|port| self.listeners.get(&port));
        listener.is_some_and(|listener| listener.unframed)
    }

    /// Takes no more connections on `port`. Those that wait for a decision are reset.
    pub fn unlisten(&mut self, port: u16) {
        let waiting: Vec<u32> = self
            .connections
            .indices()
            .filter(|&index| {
                self.connections.get(index).is_some_and(|conn| conn.listener == Some(port))
            })
            .collect();
        // Before they leave: nothing more is offered in the place of one that goes.
        self.listeners.remove(&port);
        for index in waiting {
            self.abort(index);
        }
    }

    /// A segment of no connection: true if a listener saw to it (RFC 9293 section 3.10.7.2), false
    /// if it is to be answered with RST.
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
        // Anything else without an ACK never made sense.
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

    /// A connection that a peer began, half open. `None`: there is no place for it.
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

    /// An ACK of no connection that may bring a cookie back, with all it carries; false if it does
    /// not.
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
        // Whatever the segment had besides the cookie, it made a connection or nothing.
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

    /// A SYN for a connection, or a segment for one that is not established: is it TCP's? If not,
    /// the segment is to be dropped; or, if the connection is gone then, it is of none.
    ///
    /// The connection goes if it gives way to a new one between the same ends, or if the segment
    /// brings back a cookie, sent before there was room for the state that the repeated SYN made.
    /// An ACK that would complete a handshake is dropped while the backlog is full.
    #[cold]
    pub(super) fn admit_segment(&mut self, now: Instant, index: u32, segment: &Segment) -> bool {
        let Some(conn) = self.connections.get(index) else { return false };
        if let Some(listener) = self.listeners.get(&segment.tuple.local.port())
            && conn.tcb.may_recycle(segment)
        {
            if listener.is_full() {
                // The new one would be dropped, and nothing be won.
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

    /// A handshake is complete: what a listener began has to be decided on if its request is here
    /// already, or else awaits that.
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

    /// A request is complete. False if it has to wait until the backlog has room for it.
    pub(super) fn enter_backlog(&mut self, index: u32) -> bool {
        let Some(conn) = self.connections.get_mut(index) else { return false };
        // Before the end of the handshake is seen to there was room, and it is counted then.
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

    /// The connection is no longer counted at its listener: it was decided on, or ends.
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

    /// Offers requests that wait for room in the backlog, in the order in which their connections
    /// were established.
    fn offer_pending_requests(&mut self, port: u16) {
        while self.listeners.get(&port).is_some_and(|listener| !listener.is_full())
            && let Some(index) = self.awaiting_request.next_complete(port)
        {
            self.process_mpa_request(index);
            // Offered, or refused: in neither case it still waits.
            debug_assert!(
                self.awaiting_request.next_complete(port) != Some(index),
                "one at a time"
            );
        }
    }
}
