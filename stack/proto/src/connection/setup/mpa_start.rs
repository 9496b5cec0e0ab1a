//! MPA startup of both sides, and the transition to full operation: by startup frames, with the
//! first byte of a connection, or after streaming mode.

use crate::connection::context::{Context, Env};
use crate::connection::phase::{AwaitDecision, Phase, PhaseEvent};
use crate::connection::{Connection, StartupTx};
use crate::mpa::deframer::Deframer;
use crate::mpa::fpdu::{LENGTH_LEN, fpdu_len};
use crate::mpa::framing::Framing;
use crate::mpa::markers;
use crate::mpa::markers::Markers;
use crate::mpa::startup::{Negotiated, Offer, StartupEvent};
use crate::rdmap::fault::Fault;
use crate::rdmap::stream::Stream;
use crate::time::{Instant, NEVER};
use crate::verbs::cm::{
    CmError, ConnEvent, ConnInfo, ConnParam, ConnectError, PRIVATE_DATA_LEN_MAX, PrivateData,
    RequestId, Start,
};
use crate::verbs::qp::QpEvent;
use crate::wire::mpa::{ENHANCED_LEN, Rtr, Startup};

/// Streaming-mode bytes queued to be sent, at most.
const STREAM_TX_MAX: usize = 64 * 1024;

/// Parameters of full operation.
pub(super) struct StartParams {
    pub(super) negotiated: Negotiated,
    pub(super) revision: u8,
    /// Private data of the peer.
    pub(super) private_data: PrivateData,
    /// RDMA Writes are placed out of order.
    pub(super) ooo_placement: bool,
    /// Event of the MPA startup: decides whether the local end waits for the peer's first FPDU.
    pub(super) startup: StartupEvent,
}

impl StartParams {
    /// Parameters without startup frames: each direction starts independently.
    pub(super) const fn unframed(negotiated: Negotiated, ooo_placement: bool) -> Self {
        let private_data = PrivateData::new();
        Self { negotiated, revision: 0, private_data, ooo_placement, startup: StartupEvent::Reply }
    }
}

/// Returns those parameters of a connection that MPA negotiates.
pub(super) const fn mpa_offer(param: &ConnParam) -> Offer {
    Offer {
        ird: param.ird,
        ird_max: param.ird_max,
        ord: param.ord,
        crc: param.crc,
        markers: param.markers,
        peer_to_peer: param.peer_to_peer,
        rtr: param.rtr,
        rdmap_draft00: param.rdmap_draft00,
    }
}

/// Checks that private data fits the startup frame; without startup frames it must be empty.
pub(super) fn check_private_data(data: &[u8], framed: bool, enhanced: bool) -> Result<(), CmError> {
    let len_max = match (framed, enhanced) {
        (false, _) => 0,
        (true, false) => PRIVATE_DATA_LEN_MAX,
        (true, true) => PRIVATE_DATA_LEN_MAX - ENHANCED_LEN,
    };
    if data.len() > len_max { Err(CmError::PrivateDataTooLong) } else { Ok(()) }
}

impl<E: Env> Connection<E> {
    /// Enters full operation, and processes the FPDUs in `buffered`, the last bytes received.
    pub(super) fn enter_full_operation(
        &mut self,
        cx: &mut Context<E>,
        now: Instant,
        params: StartParams,
        buffered: &[u8],
    ) {
        let StartParams { negotiated, revision, private_data, ooo_placement, startup } = params;
        // RFC 5044 section 4.3: markers count from the first byte of full operation. The buffered
        // FPDU bytes are the last ones before RCV.NXT, except for the FIN.
        let known =
            u32::try_from(buffered.len()).unwrap_or(0) + u32::from(self.tcb.peer_finished());
        let markers =
            negotiated.markers_in.then(|| Markers::starting_at(self.tcb.rcv_nxt() - known));
        let deframer = Deframer::new(markers);
        self.phase.enter(PhaseEvent::Start, Phase::Rdma { deframer });
        // RFC 5044 section 7.1.2: a responder waits for the initiator's first FPDU.
        let is_first = self.startup.transition(startup);
        debug_assert!(is_first, "{:?} + {startup:?}", self.startup);
        self.set_framing(&negotiated);
        // The startup timeout ends, and with it the small window that bounds the buffered bytes.
        self.deadline = NEVER;
        self.tcb.consume(std::mem::take(&mut self.buffered_len));
        self.tcb.open_window();
        let tuple = self.tcb.tuple();
        let Some(qp) = self.qp.and_then(|qp| cx.qps.get_mut(qp)) else { return };
        // RFC 5040 section 6: the read depths are fixed for the life of the stream.
        qp.stream.start(negotiated.version, negotiated.ird, negotiated.ord);
        // RFC 7306 is part of the IETF's version, unless the configuration excludes it.
        if !cx.config.extensions {
            qp.stream.disable_extensions();
        }
        qp.ooo_placement = ooo_placement;
        let is_setup = qp.transition(QpEvent::Start);
        debug_assert!(is_setup, "{:?}", qp.state());
        qp.conn = Some(self.id.index);
        // RFC 6581 section 9: the initiator's first FPDU is the RTR message agreed upon.
        if let Some(rtr) = negotiated.rtr {
            let fpdu = build_rtr_fpdu(&mut qp.stream, rtr, self.framing);
            self.startup_tx.get_or_insert_with(|| StartupTx::from_bytes(&[])).append(&fpdu);
            cx.verbs.counters.fpdus_out += 1;
        }
        // Before the FPDUs that were received with the startup frame: their completions follow.
        cx.verbs.counters.connections_established += 1;
        cx.verbs.events.push_back(ConnEvent::Established {
            qp: qp.id,
            info: Box::new(ConnInfo {
                peer: tuple.remote,
                local: tuple.local,
                ird: negotiated.ird,
                ord: negotiated.ord,
                crc: negotiated.crc,
                markers_in: negotiated.markers_in,
                markers_out: negotiated.markers_out,
                peer_to_peer: negotiated.peer_to_peer,
                revision,
                extensions: qp.stream.has_extensions(),
                private_data,
            }),
        });
        if qp.take_early_sends(&mut cx.verbs) {
            qp.execute_local_ops(&mut cx.verbs);
            self.make_ready(&mut cx.schedule);
        }
        // The FPDUs behind the startup frame of the peer, in the same segments.
        self.process_buffered_fpdus(cx, now, buffered);
    }

    /// Ends the startup after an accepting reply with parameters that the local end cannot meet:
    /// sends a Terminate and closes the connection (RFC 6581 section 9).
    pub(super) fn terminate_startup(
        &mut self,
        cx: &mut Context<E>,
        now: Instant,
        reply: &Startup,
        fault: Fault,
    ) {
        cx.verbs.counters.startup_errors += 1;
        let Phase::AwaitReply(await_reply) = &self.phase else { return };
        let crc = reply.crc || await_reply.offer.crc;
        let negotiated =
            Negotiated { crc, markers_out: reply.markers, ..Negotiated::rdmac(Offer::default()) };
        self.set_framing(&negotiated);
        if let Some(qp) = self.qp.and_then(|qp| cx.qps.get_mut(qp))
            && qp.stream.fail(fault, &[]).is_some()
        {
            cx.verbs.counters.terminates_out += 1;
        }
        let error = match fault {
            Fault::NoMatchingRtr => ConnectError::NoCommonRtr,
            _ => ConnectError::TooManyReads,
        };
        self.fail_connect(cx, error, Some(reply));
        self.begin_close(cx, now);
    }

    /// Aborts the connection over an invalid or unacceptable startup frame (RFC 5044 section 7.1,
    /// error 4).
    pub(super) fn abort_startup(&mut self, cx: &mut Context<E>) {
        cx.verbs.counters.startup_errors += 1;
        self.fail_connect(cx, ConnectError::Protocol, None);
        self.abort(cx);
    }

    /// Starts a connection without startup frames once TCP is established.
    pub(crate) fn start_unframed(&mut self, cx: &mut Context<E>, now: Instant) {
        match &mut self.phase {
            Phase::AwaitReply(await_reply) if await_reply.start != Start::Frames => {
                let buffered = std::mem::take(&mut await_reply.startup_rx);
                if await_reply.start == Start::Streaming {
                    return self.enter_streaming(cx, buffered);
                }
                let negotiated = Negotiated::rdmac(await_reply.offer);
                let params = StartParams::unframed(negotiated, await_reply.ooo_placement);
                self.enter_full_operation(cx, now, params, &buffered);
            }
            Phase::AwaitRequest { startup_rx, is_unframed: true, .. } => {
                let buffered = std::mem::take(startup_rx);
                let tuple = self.tcb.tuple();
                let offer = ConnInfo {
                    peer: tuple.remote,
                    local: tuple.local,
                    ird: 0,
                    ord: 0,
                    crc: true,
                    markers_in: false,
                    markers_out: true,
                    peer_to_peer: false,
                    revision: 0,
                    extensions: false,
                    private_data: PrivateData::new(),
                };
                self.offer(cx, None, buffered, offer);
            }
            _ => {}
        }
    }

    /// Offers a connection request to the application.
    pub(super) fn offer(
        &mut self,
        cx: &mut Context<E>,
        request: Option<Startup>,
        buffered: Vec<u8>,
        offer: ConnInfo,
    ) {
        let Some(listener) = self.listener else { return };
        self.deadline = NEVER;
        let decision = Box::new(AwaitDecision { request, buffered, is_taken: false });
        self.phase.enter(PhaseEvent::Offer, Phase::AwaitDecision(decision));
        cx.verbs.events.push_back(ConnEvent::ConnectRequest {
            listener: cx.listeners.get(listener).addr,
            request: RequestId { index: self.id.index, generation: self.id.generation },
            offer: Box::new(offer),
        });
    }

    /// Enters streaming mode: application data in both directions until
    /// [`Connection::start_fpdus`].
    pub(super) fn enter_streaming(&mut self, cx: &mut Context<E>, stream_rx: Vec<u8>) {
        self.phase.enter(PhaseEvent::Stream, Phase::Streaming { stream_rx });
        self.deadline = NEVER;
        let Some(qp) = self.qp.and_then(|qp| cx.qps.get_mut(qp)) else { return };
        let is_setup = qp.transition(QpEvent::Setup);
        debug_assert!(is_setup, "{:?}", qp.state());
        qp.conn = Some(self.id.index);
        cx.verbs.events.push_back(ConnEvent::Streaming { qp: qp.id });
    }

    /// Queues application data in streaming mode; returns the number of bytes accepted.
    ///
    /// # Errors
    /// [`CmError::WrongState`] if the connection is not in streaming mode.
    pub(crate) fn stream_send(
        &mut self,
        cx: &mut Context<E>,
        bytes: &[u8],
    ) -> Result<usize, CmError> {
        let Phase::Streaming { .. } = self.phase else { return Err(CmError::WrongState) };
        let startup_tx = self.startup_tx.get_or_insert_with(|| StartupTx::from_bytes(&[]));
        let len = bytes.len().min(STREAM_TX_MAX - startup_tx.len().min(STREAM_TX_MAX));
        startup_tx.append(&bytes[..len]);
        if startup_tx.len() == 0 {
            self.startup_tx = None;
        }
        self.make_ready(&mut cx.schedule);
        Ok(len)
    }

    /// Moves application data received in streaming mode to `out`; returns the number of bytes.
    ///
    /// # Errors
    /// As [`Connection::stream_send`].
    pub(crate) fn stream_receive(
        &mut self,
        cx: &mut Context<E>,
        out: &mut [u8],
    ) -> Result<usize, CmError> {
        let Phase::Streaming { stream_rx } = &mut self.phase else {
            return Err(CmError::WrongState);
        };
        let len = stream_rx.len().min(out.len());
        out[..len].copy_from_slice(&stream_rx[..len]);
        stream_rx.drain(..len);
        let count = u32::try_from(len).unwrap_or(u32::MAX).min(self.buffered_len);
        self.buffered_len -= count;
        self.tcb.consume(count);
        self.make_ready(&mut cx.schedule);
        Ok(len)
    }

    /// Switches from streaming mode to FPDUs, from the received bytes on that the application has
    /// not taken.
    ///
    /// # Errors
    /// As [`Connection::stream_send`].
    // req: MPA-018, MPA-144
    pub(crate) fn start_fpdus(
        &mut self,
        cx: &mut Context<E>,
        now: Instant,
        param: &ConnParam,
    ) -> Result<(), CmError> {
        let Phase::Streaming { stream_rx } = &mut self.phase else {
            return Err(CmError::WrongState);
        };
        param.check()?;
        let buffered = std::mem::take(stream_rx);
        self.half_close = param.half_close;
        let params =
            StartParams::unframed(Negotiated::rdmac(mpa_offer(param)), param.ooo_placement);
        self.make_ready(&mut cx.schedule);
        self.enter_full_operation(cx, now, params, &buffered);
        Ok(())
    }
}

/// Builds the RTR message as an FPDU: the first one of its direction, or anywhere in a direction
/// without markers.
pub(in crate::connection) fn build_rtr_fpdu(
    stream: &mut Stream,
    rtr: Rtr,
    framing: Framing,
) -> Vec<u8> {
    let ulpdu = stream.build_rtr(rtr);
    let phase = framing.has_markers().then_some(0);
    let mut out = vec![0; fpdu_len(ulpdu.len()) + markers::MARKER_LEN];
    out[LENGTH_LEN..LENGTH_LEN + ulpdu.len()].copy_from_slice(&ulpdu);
    let len = framing.finalize(&mut out, ulpdu.len(), phase);
    out.truncate(len);
    out
}
