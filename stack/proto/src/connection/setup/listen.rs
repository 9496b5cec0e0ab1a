//! Passive open: segments to a listening port, SYN cookies, and the backlog.

use core::net::SocketAddr;

use crate::connection::Connection;
use crate::connection::context::{Context, Deferred, Env, Retained, Rx};
use crate::connection::phase::Phase;
use crate::connection::setup::listeners::ListenerRef;
use crate::connection::setup::syn_cookie::VerifiedCookie;
use crate::net::next_hop::NextHop;
use crate::tcp::{AckRateLimit, IssAndTsOffset, State, Tcb};
use crate::time::Instant;
use crate::wire::seq::Seq;
use crate::wire::tcp::{Flags, Segment};

/// Action of a listener for a segment without a connection.
#[must_use]
pub(crate) enum ListenerAction<E: Env> {
    /// There is no listener, or the segment is not acceptable: it is answered with RST.
    Reset,
    /// Nothing more is to be done.
    Done,
    /// It is of no use here. Another user of the port may have its connection.
    Ignore,
    /// The SYN opens this connection.
    Open(Connection<E>),
    /// The ACK carries a valid SYN cookie: it opens this connection, which then processes it.
    OpenByCookie(Connection<E>),
}

/// Action for a SYN to an existing connection, or a segment to one that is not established.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) enum SetupAction {
    /// TCP processes it.
    Process,
    /// The segment is dropped.
    Drop,
    /// The connection is removed, and the segment belongs to none.
    Replace(Replaced),
    /// The SYN-ACK arrived at another shard: the active open is repeated from another source port,
    /// or TCP processes the segment if there is none.
    TryOtherPort,
}

/// Connection removed in favor of the one that the same segment opens: its listener, and the
/// sequence numbers that it leaves to the new one, if that is opened by a SYN.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct Replaced {
    listener: ListenerRef,
    recycled: Option<Recycled>,
}

/// State that a connection leaves to a new one between the same ends.
#[derive(Clone, Copy, Debug)]
struct Recycled {
    /// Lower bound of the new ISS.
    iss_min: Seq,
    /// Limit on replies of a half-open connection, which the new one takes over.
    limit: Option<AckRateLimit>,
}

impl<E: Env> Context<E> {
    /// True if there is a listener for connections to `local`. A frame that the port has returned
    /// may be to an address that this host does not have.
    pub(crate) fn is_listening(&self, local: SocketAddr) -> bool {
        self.net.routing().is_local(local.ip()) && self.listeners.find(local).is_some()
    }

    /// Processes a segment of no connection (RFC 9293 section 3.10.7.2). `replaced`: the connection
    /// that was removed in favor of it.
    pub(crate) fn on_listener_segment(
        &mut self,
        now: Instant,
        segment: &Segment,
        remote_mac: [u8; 6],
        replaced: Option<Replaced>,
    ) -> ListenerAction<E> {
        let (found, recycled) = match replaced {
            Some(Replaced { listener, recycled }) => (Some(listener), recycled),
            None => (self.listeners.find(segment.tuple.local), None),
        };
        let Some(listener) = found else { return ListenerAction::Reset };
        // First: an RST is ignored.
        if segment.flags.has(Flags::RST) {
            return ListenerAction::Ignore;
        }
        // Second: an ACK is answered with RST, unless it returns a SYN cookie (RFC 4987 section
        // 3.6).
        if segment.flags.has(Flags::ACK) {
            return self.on_cookie_ack(now, segment, remote_mac, listener);
        }
        // Third and fourth: a SYN opens a connection, any other segment is dropped.
        if !segment.flags.has(Flags::SYN) {
            return ListenerAction::Ignore;
        }
        self.on_syn(now, segment, remote_mac, listener, recycled)
    }

    fn on_syn(
        &mut self,
        now: Instant,
        syn: &Segment,
        remote_mac: [u8; 6],
        listener: ListenerRef,
        recycled: Option<Recycled>,
    ) -> ListenerAction<E> {
        let is_failing_fast = self.listeners.is_failing_fast(now);
        let found = self.listeners.get(listener);
        let is_unframed = found.unframed;
        if found.is_full() {
            self.verbs.counters.backlog_overflows += 1;
            return ListenerAction::Done;
        }
        if is_failing_fast || !self.listeners.may_be_half_open(found, &self.config) {
            self.send_syn_cookie(now, syn, remote_mac, listener);
            return ListenerAction::Done;
        }
        let mut iss_ts = self.secrets.iss_and_ts_offset(now, &syn.tuple);
        if let Some(old) = &recycled {
            iss_ts.iss = iss_ts.iss.max(old.iss_min);
        }
        let template = self.net.header_template(remote_mac, syn.tuple);
        let mut tcb = Tcb::accept(now, self.tcp_config(&syn.tuple), template, syn, iss_ts);
        if let Some(limit) = recycled.and_then(|old| old.limit) {
            tcb.inherit_limit(limit);
        }
        ListenerAction::Open(self.passive_connection(now, tcb, listener, is_unframed))
    }

    /// Creates a half-open passive connection.
    fn passive_connection(
        &self,
        now: Instant,
        tcb: Tcb<Rx<E>, Retained<E>>,
        listener: ListenerRef,
        is_unframed: bool,
    ) -> Connection<E> {
        let phase = Phase::AwaitRequest { startup_rx: Vec::new(), waiting: None, is_unframed };
        let mut conn = Connection::new(tcb, phase, now + self.config.startup_timeout_ns);
        conn.listener = Some(listener);
        conn.next_hop = NextHop::via_syn_source();
        conn
    }

    /// Answers a SYN with a cookie, as often as that is allowed: nothing is kept for it.
    #[cold]
    pub(crate) fn send_syn_cookie(
        &mut self,
        now: Instant,
        syn: &Segment,
        remote_mac: [u8; 6],
        listener: ListenerRef,
    ) {
        if !self.listeners.cookie_limit.admits(now) {
            self.verbs.counters.cookies_rate_limited += 1;
            return;
        }
        self.listeners.get(listener).on_cookie_sent(now);
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
        listener: ListenerRef,
    ) -> ListenerAction<E> {
        let found = self.listeners.get(listener);
        let is_unframed = found.unframed;
        let is_expected = self.listeners.expects_cookies(now, ack.tuple.local);
        if !is_expected || ack.flags.has(Flags::SYN) {
            return ListenerAction::Reset;
        }
        let iss_ts = self.secrets.iss_and_ts_offset(now, &ack.tuple);
        let verified = self.listeners.cookies.verify(now, &self.config.tcp, ack, iss_ts);
        let Some(VerifiedCookie { syn, cookie: iss, sent_at }) = verified else {
            self.verbs.counters.cookies_invalid += 1;
            return ListenerAction::Reset;
        };
        if found.is_full() {
            self.verbs.counters.backlog_overflows += 1;
            return ListenerAction::Done;
        }
        let template = self.net.header_template(remote_mac, ack.tuple);
        let iss_ts = IssAndTsOffset { iss, ..iss_ts };
        let cfg = self.tcp_config(&ack.tuple);
        let tcb = Tcb::from_cookie(now, cfg, template, &syn, iss_ts, sent_at);
        ListenerAction::OpenByCookie(self.passive_connection(now, tcb, listener, is_unframed))
    }
}

impl<E: Env> Connection<E> {
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
    ) -> SetupAction {
        // RFC 9293 section 3.10.7.4, fourth: SYN in TIME-WAIT (RFC 6191 section 2) or SYN-RECEIVED.
        if self.tcb.may_recycle(segment)
            && let Some(listener) = self.listener.or_else(|| cx.listeners.find(segment.tuple.local))
        {
            if cx.listeners.get(listener).is_full() {
                // The new connection would be refused anyway.
                cx.verbs.counters.backlog_overflows += 1;
                return SetupAction::Drop;
            }
            let limit = if self.tcb.state() == State::SynReceived {
                let Some(limit) = self.tcb.limit_of_replacement(now) else {
                    return SetupAction::Drop;
                };
                Some(limit)
            } else {
                None
            };
            let recycled = Recycled { iss_min: self.tcb.successor_seq(), limit };
            return SetupAction::Replace(Replaced { listener, recycled: Some(recycled) });
        }
        // A SYN-ACK that another shard has forwarded.
        if self.wants_other_port(cx, segment) {
            return SetupAction::TryOtherPort;
        }
        // RFC 9293 section 3.10.7.4, fifth: the ACK of our SYN-ACK completes the handshake.
        let completes =
            segment.flags.has(Flags::ACK) && !segment.flags.any(Flags::RST | Flags::SYN);
        let Some(listener) = self.listener.filter(|_| completes && !self.tcp_established) else {
            return SetupAction::Process;
        };
        let found = cx.listeners.get(listener);
        if found.is_full() {
            cx.verbs.counters.backlog_overflows += 1;
            return SetupAction::Drop;
        }
        // RFC 4987 section 3.6: an ACK of a cookie sent earlier has another sequence number.
        let local = segment.tuple.local;
        if segment.ack != self.tcb.snd_una() + 1 && cx.listeners.expects_cookies(now, local) {
            let iss_ts = cx.secrets.iss_and_ts_offset(now, &segment.tuple);
            if cx.listeners.cookies.verify(now, &cx.config.tcp, segment, iss_ts).is_some() {
                return SetupAction::Replace(Replaced { listener, recycled: None });
            }
        }
        SetupAction::Process
    }

    /// Accounts for a completed handshake of a passive connection: it enters the backlog if its
    /// request was received already, or else awaits it.
    pub(crate) fn on_handshake_complete(&mut self, cx: &mut Context<E>) {
        self.tcp_established = true;
        let Some(listener) = self.listener else { return };
        let listeners = &mut cx.listeners;
        let found = listeners.remove_half_open(listener);
        if found.unframed || matches!(self.phase, Phase::AwaitDecision(_)) {
            found.force_slot();
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
        let (Some(listener), Some(order)) = (self.listener, self.arrival_order) else {
            return true;
        };
        let (remote, index) = (self.tcb.tuple().remote.ip(), self.id.index);
        if !cx.listeners.get(listener).take_slot() {
            cx.listeners.awaiting_request.mark_complete(Some(order), remote, listener, index);
            return false;
        }
        self.arrival_order = None;
        cx.listeners.awaiting_request.remove(Some(order), remote, listener, index);
        true
    }

    /// Handles the end of its listener: a request that the application has taken lives on, any
    /// other connection in setup is reset.
    pub(crate) fn on_listener_ended(&mut self, cx: &mut Context<E>) {
        match &self.phase {
            Phase::AwaitDecision(decision) if decision.is_taken => self.leave_backlog(cx),
            _ => self.abort(cx),
        }
    }

    /// Removes the connection from the accounting of its listener: it was decided on, or ends.
    pub(in crate::connection) fn leave_backlog(&mut self, cx: &mut Context<E>) {
        let Some(listener) = self.listener.take() else { return };
        cx.listeners.end_setup(listener, self.id.index);
        if let Some(order) = self.arrival_order.take() {
            let remote = self.tcb.tuple().remote.ip();
            let awaiting_request = &mut cx.listeners.awaiting_request;
            awaiting_request.remove(Some(order), remote, listener, self.id.index);
            return;
        }
        if !self.tcp_established {
            cx.listeners.on_half_open_failed(listener);
            return;
        }
        let found = cx.listeners.get(listener);
        found.free_slot();
        if !found.is_full() {
            cx.deferred.push(Deferred::OfferPendingRequests(listener));
        }
    }
}
