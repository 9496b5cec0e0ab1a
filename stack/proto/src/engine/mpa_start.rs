//! Transition to full operation: by MPA startup frames, with the first byte of a connection, or
//! after streaming mode.

use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::engine::Engine;
use crate::engine::connect::mpa_offer;
use crate::engine::connection::{AwaitDecision, NEVER, Phase, StartupTx};
use crate::mpa::deframer::Deframer;
use crate::mpa::fpdu::{LENGTH_LEN, fpdu_len};
use crate::mpa::framing::Framing;
use crate::mpa::markers::{self, Markers};
use crate::mpa::startup::{Negotiated, Offer};
use crate::rdmap::stream::Stream;
use crate::rdmap::terminate::Fault;
use crate::time::Instant;
use crate::verbs::cm::{
    CmError, ConnInfo, ConnParam, ConnectError, Event, PrivateData, RequestId, Start,
};
use crate::verbs::qp::QpState;
use crate::verbs::wc::{Completions, QpId};
use crate::wire::mpa::Startup;
use crate::wire::rtr::Rtr;

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
    /// The local end need not wait for the peer's first FPDU.
    pub(super) tx_allowed: bool,
}

impl StartParams {
    /// Parameters without startup frames: each direction starts independently.
    pub(super) const fn unframed(negotiated: Negotiated, ooo_placement: bool) -> Self {
        let private_data = PrivateData::new_const();
        Self { negotiated, revision: 0, private_data, ooo_placement, tx_allowed: true }
    }
}

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Enters full operation. The last `buffered_len` bytes received belong to FPDUs already.
    pub(super) fn enter_full_operation(
        &mut self,
        index: u32,
        outcome: StartParams,
        buffered_len: usize,
    ) {
        let StartParams {
            negotiated: terms,
            revision,
            private_data,
            ooo_placement: place_early,
            tx_allowed,
        } = outcome;
        let Some(conn) = self.connections.get_mut(index) else { return };
        // The buffered FPDU bytes are the last ones before RCV.NXT, except for the FIN.
        let known = u32::try_from(buffered_len).unwrap_or(0) + u32::from(conn.tcb.peer_finished());
        let markers = terms.markers_in.then(|| Markers::starting_at(conn.tcb.rcv_nxt() - known));
        conn.phase = Phase::Rdma { deframer: Deframer::new(markers) };
        conn.tx_allowed = tx_allowed;
        conn.set_framing(&terms);
        conn.deadline = NEVER;
        conn.tcb.consume(std::mem::take(&mut conn.buffered_len));
        conn.tcb.open_window();
        let tuple = conn.tcb.tuple();
        let Some(qp_index) = conn.qp else { return };
        let id = self.verbs.id(qp_index);
        let Some(qp) = self.verbs.get_mut(qp_index) else { return };
        qp.stream.start(terms.version, terms.ird, terms.ord);
        if !self.config.extensions {
            qp.stream.disable_extensions();
        }
        let extensions = qp.stream.has_extensions();
        if terms.rtr_send_expected {
            qp.stream.expect_rtr_send();
        }
        qp.ooo_placement = place_early;
        qp.state = QpState::Rts;
        qp.conn = Some(index);
        if let Some(rtr) = terms.rtr {
            let fpdu = build_rtr_fpdu(&mut qp.stream, rtr, conn.framing);
            conn.startup_tx.get_or_insert_with(|| StartupTx::from_bytes(&[])).append(&fpdu);
            self.verbs.counters.fpdus_out += 1;
        }
        self.verbs.counters.connections_established += 1;
        self.verbs.events.push_back(Event::Established {
            qp: id,
            info: Box::new(ConnInfo {
                peer: tuple.remote,
                local: tuple.local,
                ird: terms.ird,
                ord: terms.ord,
                crc: terms.crc,
                markers_in: terms.markers_in,
                markers_out: terms.markers_out,
                revision,
                extensions,
                private_data,
            }),
        });
    }

    /// Ends the startup after an accepting reply with parameters that the local end cannot meet:
    /// sends a Terminate and closes the connection (RFC 6581 section 9).
    pub(super) fn terminate_startup(
        &mut self,
        now: Instant,
        index: u32,
        reply: &Startup,
        fault: Fault,
    ) {
        self.verbs.counters.startup_errors += 1;
        let Some(conn) = self.connections.get_mut(index) else { return };
        let Phase::AwaitReply(awaits) = &conn.phase else { return };
        let crc = reply.crc || awaits.offer.crc;
        let terms =
            Negotiated { crc, markers_out: reply.markers, ..Negotiated::rdmac(Offer::default()) };
        conn.set_framing(&terms);
        if let Some(qp) = conn.qp.and_then(|qp| self.verbs.get_mut(qp))
            && qp.stream.fail(fault, &[]).is_some()
        {
            self.verbs.counters.terminates_out += 1;
        }
        let error = match fault {
            Fault::NoMatchingRtr => ConnectError::NoCommonRtr,
            _ => ConnectError::TooManyReads,
        };
        self.fail_connect(index, error, Some(reply));
        self.begin_close(now, index);
    }

    /// Starts a connection without startup frames once TCP is established.
    pub(super) fn start_unframed(&mut self, now: Instant, index: u32) {
        let is_unframed = self.is_unframed(index);
        let generation = self.connections.generation(index);
        let Some(conn) = self.connections.get_mut(index) else { return };
        match &mut conn.phase {
            Phase::AwaitReply(awaits) if awaits.start != Start::Frames => {
                let early = std::mem::take(&mut awaits.startup_rx);
                if awaits.start == Start::Streaming {
                    self.enter_streaming(index, early);
                    return;
                }
                let outcome =
                    StartParams::unframed(Negotiated::rdmac(awaits.offer), awaits.ooo_placement);
                self.enter_full_operation(index, outcome, early.len());
                self.process_buffered(now, index, &early);
            }
            Phase::AwaitRequest { startup_rx } if is_unframed => {
                let early = std::mem::take(startup_rx);
                let tuple = conn.tcb.tuple();
                conn.deadline = NEVER;
                conn.phase = Phase::AwaitDecision(Box::new(AwaitDecision {
                    request: None,
                    buffered: early,
                }));
                let offer = ConnInfo {
                    peer: tuple.remote,
                    local: tuple.local,
                    ird: 0,
                    ord: 0,
                    crc: true,
                    markers_in: false,
                    markers_out: true,
                    revision: 0,
                    extensions: false,
                    private_data: PrivateData::new(),
                };
                self.sweep_events();
                self.verbs.events.push_back(Event::ConnectRequest {
                    port: tuple.local.port(),
                    request: RequestId { index, generation },
                    offer: Box::new(offer),
                });
            }
            _ => {}
        }
    }

    /// Enters streaming mode: application data in both directions until [`Engine::start_fpdus`].
    pub(super) fn enter_streaming(&mut self, index: u32, stream_rx: Vec<u8>) {
        let Some(conn) = self.connections.get_mut(index) else { return };
        conn.phase = Phase::Streaming { stream_rx };
        conn.deadline = NEVER;
        let Some(qp_index) = conn.qp else { return };
        let id = self.verbs.id(qp_index);
        if let Some(qp) = self.verbs.get_mut(qp_index) {
            qp.state = QpState::Connecting;
            qp.conn = Some(index);
        }
        self.verbs.events.push_back(Event::Streaming { qp: id });
    }

    /// Sends application data in streaming mode ([`Start::Streaming`]). Returns the number of bytes
    /// accepted: at most 64 KiB are queued at a time.
    ///
    /// # Errors
    /// [`CmError::Gone`]; [`CmError::WrongState`] if the connection is not in streaming mode.
    // req: MPA-017
    pub fn stream_send(&mut self, qp: QpId, bytes: &[u8]) -> Result<usize, CmError> {
        let index = self.streaming_connection(qp)?;
        let conn = self.connections.get_mut(index).ok_or(CmError::Gone)?;
        let startup_tx = conn.startup_tx.get_or_insert_with(|| StartupTx::from_bytes(&[]));
        let len = bytes.len().min(STREAM_TX_MAX - startup_tx.len().min(STREAM_TX_MAX));
        startup_tx.append(&bytes[..len]);
        if startup_tx.len() == 0 {
            conn.startup_tx = None;
        }
        self.make_ready(index);
        Ok(len)
    }

    /// Receives application data in streaming mode, in order; returns the number of bytes.
    ///
    /// # Errors
    /// As [`Engine::stream_send`].
    // req: MPA-036
    pub fn stream_receive(&mut self, qp: QpId, out: &mut [u8]) -> Result<usize, CmError> {
        let index = self.streaming_connection(qp)?;
        let conn = self.connections.get_mut(index).ok_or(CmError::Gone)?;
        let Phase::Streaming { stream_rx } = &mut conn.phase else {
            return Err(CmError::WrongState);
        };
        let len = stream_rx.len().min(out.len());
        out[..len].copy_from_slice(&stream_rx[..len]);
        stream_rx.drain(..len);
        let count = u32::try_from(len).unwrap_or(u32::MAX).min(conn.buffered_len);
        conn.buffered_len -= count;
        conn.tcb.consume(count);
        self.make_ready(index);
        Ok(len)
    }

    /// Switches from streaming mode to FPDUs. They follow the bytes passed to
    /// [`Engine::stream_send`], and begin with the received bytes not yet taken by
    /// [`Engine::stream_receive`]: the two applications have agreed on the position in each
    /// direction. [`Event::Established`] follows.
    ///
    /// # Errors
    /// As [`Engine::stream_send`].
    pub fn start_fpdus(
        &mut self,
        now: Instant,
        qp: QpId,
        param: &ConnParam,
    ) -> Result<(), CmError> {
        let index = self.streaming_connection(qp)?;
        let conn = self.connections.get_mut(index).ok_or(CmError::Gone)?;
        let Phase::Streaming { stream_rx } = &mut conn.phase else {
            return Err(CmError::WrongState);
        };
        let early = std::mem::take(stream_rx);
        if let Some(qp) = conn.qp.and_then(|qp| self.verbs.get_mut(qp)) {
            qp.half_close = param.half_close;
        }
        let outcome = StartParams::unframed(Negotiated::rdmac(mpa_offer(param)), param.place_early);
        // req: MPA-018, MPA-144
        self.enter_full_operation(index, outcome, early.len());
        self.process_buffered(now, index, &early);
        self.make_ready(index);
        Ok(())
    }

    /// Returns the connection of a queue pair in streaming mode.
    fn streaming_connection(&self, qp: QpId) -> Result<u32, CmError> {
        let qp =
            self.verbs.index(qp).and_then(|index| self.verbs.get(index)).ok_or(CmError::Gone)?;
        let index = qp.conn.ok_or(CmError::WrongState)?;
        match self.connections.get(index).map(|conn| &conn.phase) {
            Some(Phase::Streaming { .. }) => Ok(index),
            _ => Err(CmError::WrongState),
        }
    }

    /// Returns the current MULPDU of a queue pair's connection: the longest ULPDU whose FPDU fits
    /// one segment wherever markers fall; 128 to 64,768 bytes. `None` without a connection.
    // req: MPA-010, MPA-016, MPA-042, DDP-018
    #[must_use]
    pub fn mulpdu(&self, qp: QpId) -> Option<usize> {
        let index = self.verbs.get(self.verbs.index(qp)?)?.conn?;
        let conn = self.connections.get(index)?;
        Some(conn.framing.mulpdu(conn.tcb.emss()))
    }
}

/// Builds the RTR message as an FPDU: the first one of its direction, or anywhere in a direction
/// without markers.
pub(super) fn build_rtr_fpdu(stream: &mut Stream, rtr: Rtr, framing: Framing) -> Vec<u8> {
    let ulpdu = stream.build_rtr(rtr);
    let phase = framing.has_markers().then_some(0);
    let mut out = vec![0; fpdu_len(ulpdu.len()) + markers::MARKER_LEN];
    out[LENGTH_LEN..LENGTH_LEN + ulpdu.len()].copy_from_slice(&ulpdu);
    let len = framing.finalize(&mut out, ulpdu.len(), phase);
    out.truncate(len);
    out
}
