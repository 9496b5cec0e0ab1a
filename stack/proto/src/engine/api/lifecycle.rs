//! Calls of the application: listeners and connections.

use core::net::SocketAddr;

use crate::connection::Connection;
use crate::connection::phase::Phase;
use crate::connection::schedule::ConnId;
use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::engine::{At, Engine};
use crate::steering::owners::ShardId;
use crate::time::{Instant, NEVER};
use crate::verbs::cm::{Abort, CmError, ConnParam, ListenAddr, ReadDepths, RequestId};
use crate::verbs::wc::{Completions, QpId};

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Listens on a port of one, several or all addresses; at most `backlog` requests wait for a
    /// decision at a time. Of several listeners on a port the most specific gets a request. A scope
    /// ID is ignored.
    ///
    /// # Errors
    /// [`CmError::PortInUse`] if there is a listener on the same port and addresses;
    /// [`CmError::NotLocal`]; [`CmError::NoAddressOfFamily`]; [`CmError::NoResources`] beyond
    /// 65,536 listeners.
    pub fn listen(&mut self, addr: impl Into<ListenAddr>, backlog: usize) -> Result<(), CmError> {
        self.add_listener(addr.into(), backlog, false)
    }

    /// Listens for connections without startup frames: each is offered as soon as TCP is
    /// established ([`Start::Immediate`], [`Start::Streaming`]).
    ///
    /// # Errors
    /// As [`Engine::listen`].
    ///
    /// [`Start::Immediate`]: crate::verbs::cm::Start::Immediate
    /// [`Start::Streaming`]: crate::verbs::cm::Start::Streaming
    // req: MPA-141
    pub fn listen_unframed(
        &mut self,
        addr: impl Into<ListenAddr>,
        backlog: usize,
    ) -> Result<(), CmError> {
        self.add_listener(addr.into(), backlog, true)
    }

    fn add_listener(
        &mut self,
        addr: ListenAddr,
        backlog: usize,
        unframed: bool,
    ) -> Result<(), CmError> {
        let routing = self.cx.net.routing();
        match addr.ip() {
            Some(ip) if ip.is_unspecified() && !routing.has_family_of(ip) => {
                return Err(CmError::NoAddressOfFamily);
            }
            Some(ip) if !ip.is_unspecified() && !routing.is_local(ip) => {
                return Err(CmError::NotLocal);
            }
            _ => {}
        }
        self.cx.listeners.add(addr.without_scope_id(), backlog, unframed)
    }

    /// Ends the listener on these addresses. Requests that [`Engine::next_event`] has returned can
    /// still be accepted or rejected. Other connections in setup are reset; none else is visited.
    /// No effect without such a listener.
    pub fn unlisten(&mut self, addr: impl Into<ListenAddr>) {
        let addr = addr.into().without_scope_id();
        // No other request is offered when one of these leaves the backlog.
        let Some(listener) = self.cx.listeners.close(addr) else { return };
        for index in self.cx.listeners.in_setup(listener) {
            if let Some((conn, cx)) = self.at(index) {
                conn.on_listener_ended(cx);
            }
        }
        self.cx.listeners.remove(addr);
    }

    /// Resets all connections with a request that waits for a decision: the application is about to
    /// end. Visits every connection.
    pub fn abort_requests(&mut self) {
        let awaits_decision = |conn: &&Connection<_>| matches!(conn.phase, Phase::AwaitDecision(_));
        let waiting = self.connections.iter().filter(awaits_decision).map(|conn| conn.id.index);
        for index in waiting.collect::<Vec<_>>() {
            if let Some((conn, cx)) = self.at(index) {
                conn.abort(cx);
            }
        }
    }

    /// Connects a queue pair; [`ConnEvent::Established`] or [`ConnEvent::ConnectFailed`] follows.
    ///
    /// # Errors
    /// [`CmError`]; nothing was started.
    ///
    /// [`ConnEvent::Established`]: crate::verbs::cm::ConnEvent::Established
    /// [`ConnEvent::ConnectFailed`]: crate::verbs::cm::ConnEvent::ConnectFailed
    pub fn connect(
        &mut self,
        now: Instant,
        qp: QpId,
        remote: SocketAddr,
        param: &ConnParam,
    ) -> Result<(), CmError> {
        let qp = self.cx.qps.idle(qp)?;
        let open = |engine: &mut Self| {
            let Self { connections, cx, .. } = engine;
            let is_taken = |tuple: &_| connections.find_by_hash(tuple).is_some();
            cx.open_active(now, remote, param, is_taken)
        };
        let conn = match open(self) {
            Err(CmError::TooManyConnections) if self.recycle_any_time_wait() => open(self)?,
            opened => opened?,
        };
        self.make_room_by_force();
        let (conn, cx) = self.insert_connection(conn).ok_or(CmError::TooManyConnections)?;
        conn.start_open(cx, qp);
        Ok(())
    }

    /// Returns the shard at which the replies to [`Engine::connect`] with these arguments arrive,
    /// if that follows from a chosen local port: the best one to connect from.
    #[must_use]
    pub fn shard_of_replies(&self, remote: SocketAddr, param: &ConnParam) -> Option<usize> {
        self.cx.shard_of_replies(remote, param).map(ShardId::index)
    }

    /// Accepts a connection request on a queue pair; [`ConnEvent::Established`] follows.
    ///
    /// # Errors
    /// [`CmError`]; the request can still be accepted or rejected.
    ///
    /// [`ConnEvent::Established`]: crate::verbs::cm::ConnEvent::Established
    pub fn accept(
        &mut self,
        now: Instant,
        request: RequestId,
        qp: QpId,
        param: &ConnParam,
    ) -> Result<(), CmError> {
        let qp = self.cx.qps.idle(qp)?;
        let (conn, cx) = self.requested(request)?;
        let accepted = conn.accept(cx, qp, param)?;
        // The next request is offered before this one is established. That may change any
        // connection, so this one is looked up again.
        self.run_deferred(now);
        let (conn, cx) = self.requested(request)?;
        conn.start_accepted(cx, now, accepted);
        self.run_deferred(now);
        Ok(())
    }

    /// Rejects a connection request. The initiator receives `private_data`, and with revision 2 the
    /// local read depths: 0 if they are not the reason.
    ///
    /// # Errors
    /// [`CmError::Gone`], [`CmError::PrivateDataTooLong`].
    pub fn reject(
        &mut self,
        now: Instant,
        request: RequestId,
        reads: ReadDepths,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let (conn, cx) = self.requested(request)?;
        conn.reject(cx, now, reads, private_data)?;
        self.run_deferred(now);
        Ok(())
    }

    /// Closes a queue pair's connection gracefully. No more requests are accepted; those posted
    /// complete, the peer's RDMA Reads are answered, then FIN is sent. Data from the peer is
    /// received until it closes, too: [`ConnEvent::Disconnected`] with [`EndReason::Local`] reports
    /// that both ends have. If nothing was acknowledged or received for the linger time the
    /// connection is reset. The reason is then `Local` too if everything sent was acknowledged,
    /// else `TimedOut`.
    ///
    /// A connection still being set up is aborted.
    ///
    /// # Errors
    /// [`CmError::Gone`] if there is no such queue pair or it has no connection.
    ///
    /// [`ConnEvent::Disconnected`]: crate::verbs::cm::ConnEvent::Disconnected
    /// [`EndReason::Local`]: crate::verbs::cm::EndReason::Local
    // req: DDP-126, RDMAP-239
    pub fn close(&mut self, now: Instant, qp: QpId) -> Result<(), CmError> {
        if !self.qp_state(qp).is_connected() {
            return self.disconnect(now, qp);
        }
        let deadline = now + self.cx.config.linger_ns;
        let (conn, cx) = self.connection_of(qp)?;
        conn.close_gracefully(cx, now, deadline);
        Ok(())
    }

    /// Closes one direction (half-close): as [`Engine::close`], but data from the peer is received
    /// without a deadline, until the peer closes or the application ends the connection by another
    /// call. Meanwhile TCP resets the connection if the peer is silent for too long
    /// (`tcp::Config::fin_wait_ns`).
    ///
    /// # Errors
    /// [`CmError::Gone`]; [`CmError::WrongState`] if the connection does not carry FPDUs.
    // req: DDP-133
    pub fn half_close(&mut self, now: Instant, qp: QpId) -> Result<(), CmError> {
        let state = self.cx.qps.by_id(qp).ok_or(CmError::Gone)?.state();
        if !state.is_connected() {
            return Err(CmError::WrongState);
        }
        let (conn, cx) = self.connection_of(qp)?;
        conn.close_gracefully(cx, now, NEVER);
        Ok(())
    }

    /// Ends a queue pair's connection now: data of completed requests is still delivered,
    /// outstanding requests are flushed, and FIN follows. [`Engine::close`] completes them first.
    ///
    /// # Errors
    /// [`CmError::Gone`] if there is no such queue pair or it has no connection.
    pub fn disconnect(&mut self, now: Instant, qp: QpId) -> Result<(), CmError> {
        let (conn, cx) = self.connection_of(qp)?;
        let index = conn.id.index;
        conn.disconnect(cx, now);
        // A connection without a resolved next hop does not transmit, and so is not removed there.
        self.handle_tcp_events_and_arm(now, index);
        Ok(())
    }

    /// Ends a queue pair's connection abortively: queued data is not sent, a Terminate reports the
    /// cause to the peer, and outstanding requests are flushed (RFC 5040 section 6.2.1). A
    /// responder that may not send yet resets the connection instead.
    ///
    /// # Errors
    /// [`CmError::Gone`] if there is no such queue pair or it has no connection.
    pub fn terminate(&mut self, now: Instant, qp: QpId, cause: Abort) -> Result<(), CmError> {
        if !self.qp_state(qp).is_connected() {
            // Without a stream there is nothing to terminate.
            return self.disconnect(now, qp);
        }
        let (conn, cx) = self.connection_of(qp)?;
        conn.terminate(cx, now, cause);
        Ok(())
    }

    /// Ends every connection with [`EndReason::LinkDown`], and every attempt to connect with
    /// [`ConnectError::LinkDown`]: the link is to one other process, which is gone, and TCP would
    /// wait for it. Nothing is sent. Listeners stay, and so do connections to local addresses, and
    /// those that began after the link went down for the last time ([`Device::link_down_count`]):
    /// their peer is the next process.
    ///
    /// [`ConnectError::LinkDown`]: crate::verbs::cm::ConnectError::LinkDown
    /// [`EndReason::LinkDown`]: crate::verbs::cm::EndReason::LinkDown
    pub fn on_link_lost(&mut self, now: Instant) {
        let lost = self.connections.older_than_link(self.cx.device.link_down_count());
        for &index in &lost {
            if let Some((conn, cx)) = self.at(index)
                && !cx.hairpins_to(conn.tcb.tuple().remote.ip())
            {
                conn.on_link_lost(cx);
            }
        }
        // Requests that wait for the backlog of a listener are gone as well when it is their turn.
        lost.into_iter().for_each(|index| self.handle_tcp_events(now, index));
    }

    /// Sends application data in streaming mode ([`Start::Streaming`]). Returns the number of bytes
    /// accepted: at most 64 KiB are queued at a time.
    ///
    /// # Errors
    /// [`CmError::Gone`]; [`CmError::WrongState`] if the connection is not in streaming mode.
    ///
    /// [`Start::Streaming`]: crate::verbs::cm::Start::Streaming
    // req: MPA-017
    pub fn stream_send(&mut self, qp: QpId, bytes: &[u8]) -> Result<usize, CmError> {
        let (conn, cx) = self.streaming_connection(qp)?;
        conn.stream_send(cx, bytes)
    }

    /// Receives application data in streaming mode, in order; returns the number of bytes.
    ///
    /// # Errors
    /// As [`Engine::stream_send`].
    // req: MPA-036
    pub fn stream_receive(&mut self, qp: QpId, out: &mut [u8]) -> Result<usize, CmError> {
        let (conn, cx) = self.streaming_connection(qp)?;
        conn.stream_receive(cx, out)
    }

    /// Switches from streaming mode to FPDUs. They follow the bytes passed to
    /// [`Engine::stream_send`], and begin with the received bytes not yet taken by
    /// [`Engine::stream_receive`]: the two applications have agreed on the position in each
    /// direction. [`ConnEvent::Established`] follows.
    ///
    /// # Errors
    /// As [`Engine::stream_send`].
    ///
    /// [`ConnEvent::Established`]: crate::verbs::cm::ConnEvent::Established
    pub fn start_fpdus(
        &mut self,
        now: Instant,
        qp: QpId,
        param: &ConnParam,
    ) -> Result<(), CmError> {
        let (conn, cx) = self.streaming_connection(qp)?;
        conn.start_fpdus(cx, now, param)?;
        self.run_deferred(now);
        Ok(())
    }

    /// Returns the current MULPDU of a queue pair's connection: the longest ULPDU with an FPDU that
    /// fits one segment wherever markers fall; 128 to 64,768 bytes. `None` without a connection.
    // req: MPA-010, MPA-016, MPA-042, DDP-018
    #[must_use]
    pub fn mulpdu(&self, qp: QpId) -> Option<usize> {
        let conn = self.connections.get(self.cx.qps.by_id(qp)?.conn?)?;
        Some(conn.framing.mulpdu(conn.tcb.emss()))
    }

    /// Returns the EMSS of a queue pair's connection: payload bytes of a full segment. It changes
    /// with the path MTU; an FPDU is sized for its value when it is built. `None` without a
    /// connection.
    #[must_use]
    pub fn emss(&self, qp: QpId) -> Option<usize> {
        Some(self.connections.get(self.cx.qps.by_id(qp)?.conn?)?.tcb.emss())
    }

    /// Returns the connection of a queue pair.
    pub(super) fn connection_of(&mut self, qp: QpId) -> Result<At<'_, D, M, C>, CmError> {
        let conn = self.cx.qps.by_id(qp).and_then(|qp| qp.conn).ok_or(CmError::Gone)?;
        self.at(conn).ok_or(CmError::Gone)
    }

    /// Returns the connection of a request.
    fn requested(&mut self, request: RequestId) -> Result<At<'_, D, M, C>, CmError> {
        let RequestId { index, generation } = request;
        self.by_id(ConnId { index, generation }).ok_or(CmError::Gone)
    }

    /// Returns the connection of a queue pair in streaming mode.
    fn streaming_connection(&mut self, qp: QpId) -> Result<At<'_, D, M, C>, CmError> {
        let conn = self.cx.qps.by_id(qp).ok_or(CmError::Gone)?.conn.ok_or(CmError::WrongState)?;
        match self.at(conn) {
            Some((conn, cx)) if matches!(conn.phase, Phase::Streaming { .. }) => Ok((conn, cx)),
            _ => Err(CmError::WrongState),
        }
    }
}
