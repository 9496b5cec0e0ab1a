//! Connection setup: active open, accept, reject, and the MPA startup exchange up to its result.

use core::net::SocketAddr;

use crate::connection::context::{Context, Env};
use crate::connection::phase::{AwaitDecision, AwaitReply, Phase};
use crate::connection::setup::mpa_start::{StartParams, mpa_offer};
use crate::connection::{Connection, StartupTx};
use crate::mpa::startup::{self, Negotiated, NegotiationError, StartupEvent};
use crate::rdmap::fault::Fault;
use crate::time::Instant;
use crate::verbs::cm::{
    CmError, ConnInfo, ConnParam, ConnectError, PRIVATE_DATA_LEN_MAX, ReadDepths, Start,
};
use crate::verbs::qp::{QpEvent, QpState};
use crate::verbs::wc::QpId;
use crate::wire::mpa::{ENHANCED_LEN, FrameKind, Startup};
use crate::wire::tcp::FourTuple;

/// Result of accepting a request.
pub(crate) struct Accepted {
    params: StartParams,
    /// The connection begins in streaming mode.
    is_streaming: bool,
    /// Bytes received after the request.
    buffered: Vec<u8>,
}

impl<E: Env> Context<E> {
    /// Creates a connection that opens actively to `remote`, to be inserted into the table.
    /// `is_taken`: true for four-tuples of other connections of this engine. The four-tuple is
    /// reserved among the shards.
    ///
    /// # Errors
    /// [`CmError`]; nothing was started. `TooManyConnections`: over all shards.
    pub(crate) fn open_active(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        param: &ConnParam,
        is_taken: impl Fn(&FourTuple) -> bool,
    ) -> Result<Connection<E>, CmError> {
        param.check()?;
        let revision = if param.start == Start::Frames { param.revision } else { 0 };
        check_private_data(&param.private_data, param.start == Start::Frames, revision >= 2)?;
        // As in received segments: without scope ID, and IPv4-mapped addresses as IPv4.
        let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
        let routing = self.net.routing();
        let hop = routing.next_hop(remote.ip()).ok_or(CmError::Unreachable)?;
        let source = match param.local_address {
            Some(ip) if !routing.is_local(ip) => return Err(CmError::NotLocal),
            Some(ip) if ip.is_ipv4() != remote.is_ipv4() => return Err(CmError::Unreachable),
            Some(ip) => ip,
            None => routing.select_source(remote.ip(), hop).ok_or(CmError::Unreachable)?,
        };
        let tcb = self.open_from_free_port(now, source, remote, is_taken)?;
        let offer = mpa_offer(param);
        let phase = Phase::AwaitReply(Box::new(AwaitReply {
            start: param.start,
            ooo_placement: param.ooo_placement,
            offer,
            revision,
            source_ports: 1,
            startup_rx: Vec::new(),
        }));
        let mut conn = Connection::new(tcb, phase, now + self.config.startup_timeout_ns);
        if param.start == Start::Frames {
            let request = startup::build_request(offer, revision, param.private_data.clone());
            conn.startup_tx = Some(StartupTx::new(&request));
        }
        conn.half_close = param.half_close;
        Ok(conn)
    }

    /// Returns the slot index of a queue pair without connection.
    ///
    /// # Errors
    /// [`CmError::Gone`], [`CmError::WrongState`].
    pub(crate) fn idle_qp(&self, qp: QpId) -> Result<u32, CmError> {
        let slot = self.qps.slot(qp).ok_or(CmError::Gone)?;
        match self.qps.get(slot).map(|qp| qp.state()) {
            Some(QpState::Idle) => Ok(slot),
            _ => Err(CmError::WrongState),
        }
    }
}

impl<E: Env> Connection<E> {
    /// Starts the active open of a connection that is now in the table: it waits for the hardware
    /// address of its next hop.
    pub(crate) fn start_open(&mut self, cx: &mut Context<E>, qp: u32) {
        self.qp = Some(qp);
        if let Some(qp) = cx.qps.get_mut(qp) {
            qp.transition(QpEvent::Setup);
            qp.conn = Some(self.id.index);
        }
        cx.schedule.unresolved.push_front(self.id);
        cx.schedule.unresolved_due += 1;
        self.arm_timer(&mut cx.schedule);
    }

    /// Accepts the connection request on the queue pair with slot index `qp`. The connection leaves
    /// the backlog, and is started by [`Connection::start_accepted`].
    ///
    /// # Errors
    /// [`CmError`]; the request can still be accepted or rejected.
    pub(crate) fn accept(
        &mut self,
        cx: &mut Context<E>,
        qp: u32,
        param: &ConnParam,
    ) -> Result<Accepted, CmError> {
        let Phase::AwaitDecision(decision) = &mut self.phase else { return Err(CmError::Gone) };
        param.check()?;
        let AwaitDecision { request, buffered } = &mut **decision;
        let is_enhanced = request.as_ref().is_some_and(|request| request.enhanced.is_some());
        check_private_data(&param.private_data, request.is_some(), is_enhanced)?;
        let offer = mpa_offer(param);
        let params = match request {
            Some(request) => {
                let (reply, negotiated) =
                    startup::accept(request, offer, param.private_data.clone());
                self.startup_tx = Some(StartupTx::new(&reply));
                StartParams {
                    negotiated,
                    revision: request.revision,
                    private_data: request.private_data.clone(),
                    ooo_placement: param.ooo_placement,
                    startup: if negotiated.rtr_send_expected {
                        StartupEvent::AcceptWithRtr
                    } else {
                        StartupEvent::Accept
                    },
                }
            }
            None => StartParams::unframed(Negotiated::rdmac(offer), param.ooo_placement),
        };
        let is_streaming = request.is_none() && param.start == Start::Streaming;
        let buffered = std::mem::take(buffered);
        self.qp = Some(qp);
        self.half_close = param.half_close;
        self.leave_backlog(cx);
        self.make_ready(&mut cx.schedule);
        Ok(Accepted { params, is_streaming, buffered })
    }

    /// Starts a connection that was accepted.
    pub(crate) fn start_accepted(&mut self, cx: &mut Context<E>, now: Instant, accepted: Accepted) {
        let Accepted { params, is_streaming, buffered } = accepted;
        if is_streaming {
            self.enter_streaming(cx, buffered);
        } else {
            self.enter_full_operation(cx, now, params, &buffered);
        }
    }

    /// Rejects the connection request. The initiator receives `private_data`, and with revision 2
    /// the local read depths.
    ///
    /// # Errors
    /// [`CmError::Gone`], [`CmError::OutOfRange`], [`CmError::PrivateDataTooLong`].
    pub(crate) fn reject(
        &mut self,
        cx: &mut Context<E>,
        now: Instant,
        reads: ReadDepths,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let Phase::AwaitDecision(decision) = &self.phase else { return Err(CmError::Gone) };
        reads.check()?;
        let request = decision.request.as_ref();
        let is_enhanced = request.is_some_and(|request| request.enhanced.is_some());
        check_private_data(private_data, request.is_some(), is_enhanced)?;
        let private_data = private_data.try_into().map_err(|_| CmError::PrivateDataTooLong)?;
        // Without startup frames only the end of the connection reports the reject.
        self.startup_tx =
            request.map(|request| StartupTx::new(&startup::reject(request, reads, private_data)));
        self.leave_backlog(cx);
        if !self.delay_fin(cx, now) {
            self.begin_close(cx, now);
        }
        Ok(())
    }

    /// Parses the startup frame in the received bytes, and acts on it.
    pub(crate) fn process_startup(&mut self, cx: &mut Context<E>, now: Instant) {
        match &mut self.phase {
            // Connections without startup frames are handled once TCP is established.
            Phase::AwaitReply(await_reply) if await_reply.start != Start::Frames => {}
            Phase::AwaitRequest { .. } => {
                if !self.is_unframed(cx) {
                    self.process_mpa_request(cx);
                }
            }
            Phase::AwaitReply(await_reply) => {
                match Startup::parse(&await_reply.startup_rx, FrameKind::Reply) {
                    Ok(None) => {}
                    Ok(Some((reply, used))) => {
                        let buffered = await_reply.startup_rx.split_off(used);
                        self.on_mpa_reply(cx, now, &reply, &buffered);
                    }
                    Err(_) => self.abort_startup(cx),
                }
            }
            Phase::AwaitDecision(_)
            | Phase::Streaming { .. }
            | Phase::Rdma { .. }
            | Phase::DrainTerminate { .. }
            | Phase::Rejected { .. }
            | Phase::Closed => {}
        }
    }

    /// Parses the MPA Request Frame of a passive connection, and offers the request to the
    /// application if the backlog has a free slot. False if it waits for one.
    pub(crate) fn process_mpa_request(&mut self, cx: &mut Context<E>) -> bool {
        let Phase::AwaitRequest { startup_rx } = &self.phase else { return true };
        let (request, used) = match Startup::parse(startup_rx, FrameKind::Request) {
            Ok(None) => return true,
            Ok(Some((request, used))) if startup::check_request(&request).is_ok() => {
                (request, used)
            }
            Ok(Some(_)) | Err(_) => {
                self.abort_startup(cx);
                return true;
            }
        };
        if !self.enter_backlog(cx) {
            return false;
        }
        let Phase::AwaitRequest { startup_rx } = &mut self.phase else { return true };
        let buffered = startup_rx.split_off(used);
        let tuple = self.tcb.tuple();
        let offer = ConnInfo {
            peer: tuple.remote,
            local: tuple.local,
            ird: request.enhanced.map_or(0, |offered| offered.ord),
            ord: request.enhanced.map_or(0, |offered| offered.ird),
            crc: request.crc,
            markers_in: false,
            markers_out: request.markers,
            revision: request.revision,
            extensions: cx.config.extensions && request.revision > 0,
            private_data: request.private_data.clone(),
        };
        self.offer(cx, Some(request), buffered, offer);
        true
    }

    /// Processes the MPA Reply Frame, after which `buffered` was received.
    fn on_mpa_reply(
        &mut self,
        cx: &mut Context<E>,
        now: Instant,
        reply: &Startup,
        buffered: &[u8],
    ) {
        let Phase::AwaitReply(await_reply) = &self.phase else { return };
        let AwaitReply { offer, revision, ooo_placement, .. } = **await_reply;
        if reply.reject {
            self.fail_connect(cx, ConnectError::Rejected, Some(reply));
            self.begin_close(cx, now);
            return;
        }
        match startup::process_reply(reply, offer, revision) {
            Ok(negotiated) => {
                let params = StartParams {
                    negotiated,
                    revision: reply.revision,
                    private_data: reply.private_data.clone(),
                    ooo_placement,
                    startup: StartupEvent::Reply,
                };
                self.enter_full_operation(cx, now, params, buffered);
                self.arm_wakeup(cx, now);
            }
            Err(NegotiationError::InsufficientIrd) => {
                self.terminate_startup(cx, now, reply, Fault::InsufficientIrd);
            }
            Err(NegotiationError::NoMatchingRtr) => {
                self.terminate_startup(cx, now, reply, Fault::NoMatchingRtr);
            }
            Err(NegotiationError::UnsupportedRevision | NegotiationError::ReplyMismatch) => {
                self.abort_startup(cx);
            }
        }
    }

    /// Aborts the connection over an invalid or unacceptable startup frame (RFC 5044 section 7.1,
    /// error 4).
    fn abort_startup(&mut self, cx: &mut Context<E>) {
        cx.verbs.counters.startup_errors += 1;
        self.fail_connect(cx, ConnectError::Protocol, None);
        self.abort(cx);
    }
}

/// Checks that private data fits the startup frame; without startup frames it must be empty.
fn check_private_data(data: &[u8], framed: bool, enhanced: bool) -> Result<(), CmError> {
    let len_max = match (framed, enhanced) {
        (false, _) => 0,
        (true, false) => PRIVATE_DATA_LEN_MAX,
        (true, true) => PRIVATE_DATA_LEN_MAX - ENHANCED_LEN,
    };
    if data.len() > len_max { Err(CmError::PrivateDataTooLong) } else { Ok(()) }
}
