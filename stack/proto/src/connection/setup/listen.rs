//! Passive open: segments to a listening port, SYN cookies, and the backlog.

use crate::connection::context::{Context, Deferred, Env, Retained, Rx};
use crate::connection::setup::cookie::VerifiedCookie;
use crate::connection::setup::listeners::{Listener, Recycled};
use crate::connection::{Connection, Phase};
use crate::net::next_hop::NextHop;
use crate::tcp::{IssAndTsOffset, State, Tcb};
use crate::time::Instant;
use crate::wire::tcp::{Flags, Segment};

/// Action of a listener for a segment without a connection.
pub(crate) enum ListenerAction<E: Env> {
    /// There is no listener, or the segment is not acceptable: it is answered with RST.
    Reset,
    /// Nothing more is to be done.
    Done,
    /// The SYN opens this connection.
    Open(Connection<E>),
    /// The ACK carries a valid SYN cookie: it opens this connection, which then processes it.
    OpenByCookie(Connection<E>),
}

/// Action for a SYN to an existing connection, or a segment to one that is not established.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// TCP processes it.
    Process,
    /// It is dropped.
    Drop,
    /// The connection is removed, and the segment belongs to none.
    Replace,
    /// The SYN-ACK arrived at another shard: the active open is repeated from another source port,
    /// or TCP processes the segment if there is none.
    TryOtherPort,
}

impl<E: Env> Context<E> {
    /// Processes a segment of no connection (RFC 9293 section 3.10.7.2).
    pub(crate) fn on_listener_segment(
        &mut self,
        now: Instant,
        segment: &Segment,
        remote_mac: [u8; 6],
    ) -> ListenerAction<E> {
        let Some(listener) = self.listeners.get(segment.tuple.local.port()) else {
            return ListenerAction::Reset;
        };
        if segment.flags.has(Flags::RST) {
            return ListenerAction::Done;
        }
        if segment.flags.has(Flags::ACK) {
            if !listener.expects_cookies(now) || segment.flags.has(Flags::SYN) {
                return ListenerAction::Reset;
            }
            return self.on_cookie_ack(now, segment, remote_mac);
        }
        // A segment with neither RST, ACK nor SYN is dropped.
        if !segment.flags.has(Flags::SYN) {
            return ListenerAction::Done;
        }
        self.on_syn(now, segment, remote_mac)
    }

    fn on_syn(&mut self, now: Instant, syn: &Segment, remote_mac: [u8; 6]) -> ListenerAction<E> {
        let is_failing_fast = self.listeners.is_failing_fast(now);
        let Some(listener) = self.listeners.get(syn.tuple.local.port()) else {
            return ListenerAction::Done;
        };
        if listener.is_full() {
            self.verbs.counters.backlog_overflows += 1;
            return ListenerAction::Done;
        }
        if is_failing_fast || !self.listeners.may_be_half_open(listener, &self.config) {
            self.send_syn_cookie(now, syn, remote_mac);
            return ListenerAction::Done;
        }
        let mut iss_ts = self.secrets.iss_and_ts_offset(now, &syn.tuple);
        let recycled = self.listeners.recycled.take().filter(|old| old.tuple == syn.tuple);
        if let Some(old) = &recycled {
            iss_ts.iss = iss_ts.iss.max(old.iss_min);
        }
        let template = self.net.header_template(remote_mac, syn.tuple);
        let mut tcb = Tcb::accept(now, self.tcp_config(&syn.tuple), template, syn, iss_ts);
        if let Some(limit) = recycled.and_then(|old| old.limit) {
            tcb.inherit_limit(limit);
        }
        ListenerAction::Open(self.passive_connection(now, tcb))
    }

    /// Creates a half-open passive connection.
    fn passive_connection(&self, now: Instant, tcb: Tcb<Rx<E>, Retained<E>>) -> Connection<E> {
        let port = tcb.tuple().local.port();
        let phase = Phase::AwaitRequest { startup_rx: Vec::new() };
        let mut conn = Connection::new(tcb, phase, now + self.config.startup_timeout_ns);
        conn.listener = Some(port);
        conn.next_hop = NextHop::via_syn_source();
        conn
    }

    /// Answers a SYN with a cookie, as often as that is allowed: nothing is kept for it.
    #[cold]
    pub(crate) fn send_syn_cookie(&mut self, now: Instant, syn: &Segment, remote_mac: [u8; 6]) {
        if !self.listeners.cookie_limit.admits(now) {
            self.verbs.counters.cookies_rate_limited += 1;
            return;
        }
        let Some(listener) = self.listeners.get(syn.tuple.local.port()) else { return };
        listener.on_cookie_sent(now);
        let iss_ts = self.secrets.iss_and_ts_offset(now, &syn.tuple);
        let cfg = self.tcp_config(&syn.tuple);
        let fields = self.listeners.cookies.syn_ack(now, cfg, syn, iss_ts);
        if self.send_stateless(remote_mac, syn.tuple, &fields) {
            self.verbs.counters.cookies_sent += 1;
        }
    }

    /// Processes an ACK of no connection that may carry a SYN cookie.
    #[cold]
    fn on_cookie_ack(
        &mut self,
        now: Instant,
        ack: &Segment,
        remote_mac: [u8; 6],
    ) -> ListenerAction<E> {
        let iss_ts = self.secrets.iss_and_ts_offset(now, &ack.tuple);
        let verified = self.listeners.cookies.verify(now, &self.config.tcp, ack, iss_ts);
        let Some(VerifiedCookie { syn, cookie: iss, sent_at }) = verified else {
            self.verbs.counters.cookies_invalid += 1;
            return ListenerAction::Reset;
        };
        if self.listeners.get(ack.tuple.local.port()).is_none_or(Listener::is_full) {
            self.verbs.counters.backlog_overflows += 1;
            return ListenerAction::Done;
        }
        let template = self.net.header_template(remote_mac, ack.tuple);
        let iss_ts = IssAndTsOffset { iss, ..iss_ts };
        let cfg = self.tcp_config(&ack.tuple);
        let tcb = Tcb::from_cookie(now, cfg, template, &syn, iss_ts, sent_at);
        ListenerAction::OpenByCookie(self.passive_connection(now, tcb))
    }
}

impl<E: Env> Connection<E> {
    /// Accounts for a half-open passive connection, now in the table.
    pub(crate) fn enter_half_open(&self, cx: &mut Context<E>) {
        cx.listeners.add_half_open(self.listener, self.id.index);
    }

    /// True if the connection came by a listener for connections without startup frames.
    pub(super) fn is_unframed(&self, cx: &Context<E>) -> bool {
        let listener = self.listener.and_then(|port| cx.listeners.get(port));
        listener.is_some_and(|listener| listener.unframed)
    }

    /// Decides on a SYN for the connection, or a segment while it is not established.
    ///
    /// The connection is replaced if the SYN may open a new one between the same ends, or if the
    /// segment carries a valid cookie, sent before there was space for the state that the
    /// retransmitted SYN created. An ACK that would complete a handshake is dropped while the
    /// backlog is full.
    #[cold]
    pub(crate) fn admit_segment(
        &mut self,
        cx: &mut Context<E>,
        now: Instant,
        segment: &Segment,
    ) -> Admission {
        if let Some(listener) = cx.listeners.get(segment.tuple.local.port())
            && self.tcb.may_recycle(segment)
        {
            if listener.is_full() {
                // The new connection would be refused anyway.
                cx.verbs.counters.backlog_overflows += 1;
                return Admission::Drop;
            }
            let limit = if self.tcb.state() == State::SynReceived {
                let Some(limit) = self.tcb.limit_of_replacement(now) else {
                    return Admission::Drop;
                };
                Some(limit)
            } else {
                None
            };
            let (tuple, iss_min) = (segment.tuple, self.tcb.successor_seq());
            cx.listeners.recycled = Some(Recycled { tuple, iss_min, limit });
            return Admission::Replace;
        }
        if self.wants_other_port(cx, segment) {
            return Admission::TryOtherPort;
        }
        let completes =
            segment.flags.has(Flags::ACK) && !segment.flags.any(Flags::RST | Flags::SYN);
        let Some(port) = self.listener.filter(|_| completes && !self.tcp_established) else {
            return Admission::Process;
        };
        let Some(listener) = cx.listeners.get(port) else { return Admission::Process };
        if listener.is_full() {
            cx.verbs.counters.backlog_overflows += 1;
            return Admission::Drop;
        }
        if listener.expects_cookies(now) && segment.ack != self.tcb.snd_una() + 1 {
            let iss_ts = cx.secrets.iss_and_ts_offset(now, &segment.tuple);
            if cx.listeners.cookies.verify(now, &cx.config.tcp, segment, iss_ts).is_some() {
                return Admission::Replace;
            }
        }
        Admission::Process
    }

    /// Accounts for a completed handshake of a passive connection: it enters the backlog if its
    /// request was received already, or else awaits it.
    pub(crate) fn on_handshake_complete(&mut self, cx: &mut Context<E>) {
        self.tcp_established = true;
        let Some(port) = self.listener else { return };
        let listeners = &mut cx.listeners;
        listeners.remove_half_open(port);
        let Some(listener) = listeners.get(port) else { return };
        if listener.unframed || matches!(self.phase, Phase::AwaitDecision(_)) {
            listener.force_slot();
            return;
        }
        let remote = self.tcb.tuple().remote.ip();
        self.arrival_order = listeners.awaiting_request.insert(remote, self.id.index);
        if listeners.awaiting_request.incomplete_count() > cx.config.awaiting_request_max
            && let Some(victim) = listeners.awaiting_request.victim()
        {
            cx.verbs.counters.requests_evicted += 1;
            cx.deferred.push(Deferred::Evict(victim));
        }
    }

    /// Accounts for a complete request. False if it has to wait for a free slot in the backlog.
    pub(super) fn enter_backlog(&mut self, cx: &mut Context<E>) -> bool {
        // Until the completed handshake is handled there was a free slot; it is counted then.
        let (Some(port), Some(order)) = (self.listener, self.arrival_order) else { return true };
        let Some(listener) = cx.listeners.get(port) else { return true };
        let (remote, index) = (self.tcb.tuple().remote.ip(), self.id.index);
        if !listener.take_slot() {
            cx.listeners.awaiting_request.mark_complete(Some(order), remote, port, index);
            return false;
        }
        self.arrival_order = None;
        cx.listeners.awaiting_request.remove(Some(order), remote, port, index);
        true
    }

    /// Removes the connection from the accounting of its listener: it was decided on, or ends.
    pub(in crate::connection) fn leave_backlog(&mut self, cx: &mut Context<E>) {
        let Some(port) = self.listener.take() else { return };
        cx.listeners.end_setup(port, self.id.index);
        if let Some(order) = self.arrival_order.take() {
            let remote = self.tcb.tuple().remote.ip();
            let awaiting_request = &mut cx.listeners.awaiting_request;
            awaiting_request.remove(Some(order), remote, port, self.id.index);
            return;
        }
        if !self.tcp_established {
            cx.listeners.on_half_open_failed(port);
            return;
        }
        let Some(listener) = cx.listeners.get(port) else { return };
        listener.free_slot();
        if !listener.is_full() {
            cx.deferred.push(Deferred::OfferPendingRequests(port));
        }
    }
}
