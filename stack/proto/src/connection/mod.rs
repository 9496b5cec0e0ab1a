//! Connection: a TCP connection, with the MPA startup exchange or MPA in full operation above it.
//!
//! A connection is looked up once per segment. From there its work is its methods, with the
//! [`Context`] that all connections share; it never reaches another connection. Effects on others
//! are left to the engine as [`Deferred`](context::Deferred).
//!
//! All methods of [`Connection`] are in this folder: its life in [`setup`] and [`close`], received
//! data in `rx`, `rx_plain` and `rx_ooo`, sent data in `tx` and its neighbors. The engine's table
//! of connections, its passes and its calls are in [`engine`](crate::engine).

mod close;
pub(crate) mod context;
pub(crate) mod phase;
mod quirks;
mod rx;
mod rx_ooo;
pub(crate) mod rx_plain;
pub(crate) mod schedule;
pub(crate) mod segment_frame;
pub(crate) mod setup;
mod short_rx;
mod short_tx;
pub(crate) mod tcp_configs;
pub(crate) mod tx;
mod tx_pack;
pub(crate) mod tx_reclaim;
mod tx_train;
mod tx_tso;

use crate::connection::close::Closing;
use crate::connection::context::{Context, Env, Retained, Rx};
use crate::connection::phase::{Phase, PhaseEvent};
use crate::connection::quirks::Quirks;
use crate::connection::schedule::{ConnId, Schedule};
use crate::connection::setup::awaiting_request::ArrivalOrder;
use crate::connection::setup::listeners::ListenerRef;
use crate::mpa::fpdu::{self, MULPDU_RANGE};
use crate::mpa::fpdu_pool::FpduPool;
use crate::mpa::framing::Framing;
use crate::mpa::startup::{Negotiated, StartupState};
use crate::net::next_hop::NextHop;
use crate::rdmap::stream::NextTx;
use crate::tcp::{self, Tcb, TxDemand};
use crate::time::{Instant, NEVER};
use crate::verbs::cm::EndReason;
use crate::verbs::queue_pair::Qp;
use crate::wheel::{ArmedTimers, Timer};
use crate::wire::mpa::Startup;

/// Startup or streaming-mode bytes to be sent; allocated only while there are some.
#[derive(Debug)]
pub(crate) struct StartupTx {
    bytes: Vec<u8>,
}

impl StartupTx {
    pub(crate) fn new(frame: &Startup) -> Box<Self> {
        let mut bytes = vec![0; frame.wire_len()];
        frame.emit(&mut bytes);
        Box::new(Self { bytes })
    }

    pub(crate) const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Creates a send buffer with arbitrary bytes.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Box<Self> {
        Box::new(Self { bytes: bytes.to_vec() })
    }

    /// Appends bytes.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Moves as many bytes to `out` as fit; returns their number.
    pub(crate) fn take(&mut self, out: &mut [u8]) -> usize {
        let len = self.bytes.len().min(out.len());
        out[..len].copy_from_slice(&self.bytes[..len]);
        self.bytes.drain(..len);
        len
    }
}

/// One TCP connection and the state above it.
///
/// The memory layout follows the order of the fields, so that TCP's hot state is three cache lines.
#[repr(C, align(64))]
pub(crate) struct Connection<E: Env> {
    pub(crate) tcb: Tcb<Rx<E>, Retained<E>>,
    pub(crate) phase: Phase,
    /// Startup or streaming-mode bytes to be sent, if any.
    pub(crate) startup_tx: Option<Box<StartupTx>>,
    /// Deadline of the startup exchange, of a workaround for the peer, or of lingering after the
    /// close; [`NEVER`] if none is set.
    pub(crate) deadline: Instant,
    /// State of the close, once nothing more can be posted: FIN follows the last byte.
    pub(crate) closing: Option<Box<Closing>>,
    /// Next hop of its frames.
    pub(crate) next_hop: NextHop,
    /// Handle of this connection.
    pub(crate) id: ConnId,
    /// Queue pair of the connection, if it has one.
    pub(crate) qp: Option<u32>,
    /// Position among the connections that await a request.
    pub(crate) arrival_order: Option<ArrivalOrder>,
    /// Timers armed in the wheel.
    pub(crate) armed_timers: ArmedTimers,
    /// State of the workarounds for the peer.
    quirks: Quirks,
    /// Received bytes buffered until startup is complete; TCP counts them as unconsumed.
    pub(crate) buffered_len: u32,
    /// Bytes by which the receive window has grown.
    pub(crate) window_growth: u32,
    /// Listener of a passive connection, until the application has decided.
    pub(crate) listener: Option<ListenerRef>,
    /// True if it is counted, and in the list, of connections in TIME-WAIT.
    pub(crate) in_time_wait: bool,
    /// Progress of the MPA startup: FPDUs may be sent once it is complete.
    pub(crate) startup: StartupState,
    /// MPA framing of sent FPDUs (markers, CRC), and whether received CRCs are checked.
    pub(crate) framing: Framing,
    /// A soft ICMP error was received during connection setup. The condition may be transient.
    pub(crate) unreachable: bool,
    /// The TCP handshake is complete.
    pub(crate) tcp_established: bool,
    /// The connection continues after the peer's FIN.
    pub(crate) half_close: bool,
    /// True if it is in the list of connections to be served in this pass or the next.
    in_ready_list: bool,
    /// True if it is in the list of connections that await a frame for new data.
    awaits_frame: bool,
}

impl<E: Env> Connection<E> {
    /// Creates a connection at the beginning of its setup.
    pub(crate) fn new(tcb: Tcb<Rx<E>, Retained<E>>, phase: Phase, deadline: Instant) -> Self {
        Self {
            tcb,
            phase,
            startup_tx: None,
            deadline,
            next_hop: NextHop::unresolved(),
            id: ConnId { index: 0, generation: 0 },
            qp: None,
            armed_timers: ArmedTimers::default(),
            buffered_len: 0,
            window_growth: 0,
            arrival_order: None,
            closing: None,
            quirks: Quirks::default(),
            listener: None,
            in_time_wait: false,
            startup: StartupState::Frames,
            framing: Framing::without_markers(true),
            unreachable: false,
            tcp_established: false,
            half_close: false,
            in_ready_list: false,
            awaits_frame: false,
        }
    }

    /// Puts the connection on the list of those to be served.
    #[inline]
    pub(crate) fn make_ready(&mut self, schedule: &mut Schedule) {
        if !self.in_ready_list {
            self.in_ready_list = true;
            schedule.ready.push_back(self.id);
        }
    }

    /// Puts the connection on that list if received data or an ACK has given it anything to send;
    /// otherwise arms its timer.
    #[inline]
    pub(crate) fn schedule_service(&mut self, cx: &mut Context<E>) {
        if self.in_ready_list {
            return;
        }
        let qp = self.qp.and_then(|qp| cx.qps.get(qp));
        let is_drained = self.startup_tx.is_none() && qp.is_some_and(|qp| qp.stream.is_drained());
        debug_assert!(!is_drained || self.tx_demand(qp) == TxDemand::Nothing);
        let is_quiet = self.tcb.has_nothing_to_send()
            && self.closing.is_none()
            && (is_drained || self.tx_demand(qp) == TxDemand::Nothing);
        if is_quiet {
            self.arm_timer(&mut cx.schedule);
        } else {
            self.make_ready(&mut cx.schedule);
        }
    }

    /// Records that the connection was taken off that list.
    #[inline]
    pub(crate) const fn on_served(&mut self) {
        self.in_ready_list = false;
    }

    /// Puts the connection at the end of those that await a frame for new data.
    #[cold]
    pub(crate) fn await_frame(&mut self, schedule: &mut Schedule) {
        if !self.awaits_frame {
            self.awaits_frame = true;
            schedule.awaiting_frame.push_back(self.id);
        }
    }

    /// Records that the connection was taken off that list.
    pub(crate) const fn on_frame_awaited(&mut self) {
        self.awaits_frame = false;
    }

    /// Arms a timer if the next timeout is earlier than what is armed.
    #[inline]
    pub(crate) fn arm_timer(&mut self, schedule: &mut Schedule) {
        let Some(deadline) = self.next_timeout() else { return };
        let tick = schedule.wheel.tick_for(deadline);
        if self.armed_timers.try_arm(tick) {
            let ConnId { index: owner, generation } = self.id;
            schedule.wheel.arm(Timer { owner, generation, tick });
        }
    }

    /// Returns the earliest time at which something must be done without input.
    fn next_timeout(&self) -> Option<Instant> {
        let earliest = self.tcb.deadline().map_or(self.deadline, |tcb| tcb.min(self.deadline));
        (earliest != NEVER).then_some(earliest)
    }

    /// Sets the negotiated framing for FPDUs sent from the next byte on, after those in
    /// `startup_tx`.
    pub(crate) fn set_framing(&mut self, negotiated: &Negotiated) {
        let waiting = self.startup_tx.as_ref().map_or(0, |startup_tx| startup_tx.len());
        let start = self.tcb.write_seq() + u32::try_from(waiting).unwrap_or(0);
        self.framing = if negotiated.markers_out {
            Framing::with_markers(negotiated.crc, start)
        } else {
            Framing::without_markers(negotiated.crc)
        };
    }

    /// Returns the length of the next new record to be sent, if any. `qp` is the connection's.
    #[inline]
    pub(crate) fn tx_demand(&self, qp: Option<&Qp>) -> TxDemand {
        if let Some(startup_tx) = &self.startup_tx {
            return TxDemand::Record(u32::try_from(startup_tx.len()).unwrap_or(u32::MAX));
        }
        let Some(qp) = qp else { return TxDemand::Nothing };
        let may_send = match self.phase {
            Phase::Rdma { .. } => self.startup.may_send(),
            // A pending Terminate is still sent.
            Phase::DrainTerminate { .. } | Phase::Closed => qp.stream.is_terminate_pending(),
            _ => false,
        };
        let next = if may_send { qp.stream.next_tx() } else { None };
        let Some(next) = next else { return TxDemand::Nothing };
        if self.framing.has_markers() {
            let ulpdu_len = next.ulpdu_len.min(MULPDU_RANGE.end as u64 - 1);
            return TxDemand::Record(self.marked_len(ulpdu_len));
        }
        unmarked_demand(next)
    }

    /// Returns the length of an FPDU with the markers that fall into it.
    #[cold]
    fn marked_len(&self, ulpdu_len: u64) -> u32 {
        let ulpdu_len = usize::try_from(ulpdu_len).unwrap_or(MULPDU_RANGE.end);
        let len = self.framing.wire_len(ulpdu_len, self.tcb.write_seq());
        u32::try_from(len).unwrap_or(u32::MAX)
    }

    /// Handles an event of TCP, as the layers above do.
    pub(crate) fn on_tcp_event(&mut self, cx: &mut Context<E>, now: Instant, event: tcp::Event) {
        match event {
            tcp::Event::Established => {
                self.on_handshake_complete(cx);
                self.start_unframed(cx, now);
            }
            tcp::Event::DataAfterFin => self.on_data_after_fin(cx),
            tcp::Event::PeerClosed => {
                self.tcb.release_ooo(&mut cx.pools.ooo);
                // req: MPA-054, MPA-147, MPA-152
                self.on_fin(cx, now);
            }
            // The next FPDU is built for the new EMSS.
            tcp::Event::EmssChanged => cx.verbs.counters.emss_changes += 1,
            tcp::Event::Reset => self.on_tcp_lost(cx, EndReason::Reset),
            tcp::Event::TimedOut => self.on_tcp_lost(cx, EndReason::TimedOut),
            tcp::Event::TimeWait => self.on_time_wait(cx),
            tcp::Event::R1Exceeded => self.next_hop.mark_suspect(now),
            // The engine's: it concerns the windows of others.
            tcp::Event::RcvWndLimited => {}
            tcp::Event::Closed => {}
        }
    }

    /// Ends the stream: received data is discarded from now on.
    pub(crate) fn end_stream(&mut self, fpdu_pool: &mut FpduPool) {
        match &mut self.phase {
            Phase::Rdma { deframer } => deframer.reset(fpdu_pool, self.tcb.peer_group()),
            Phase::DrainTerminate { deframer } => deframer.reset(fpdu_pool, self.tcb.peer_group()),
            _ => {}
        }
        self.phase.enter(PhaseEvent::End, Phase::Closed);
    }
}

/// Returns the demand for an FPDU with this ULPDU, without markers.
#[expect(clippy::cast_possible_truncation, reason = "a ULPDU is below 64 KiB")]
#[inline]
pub(crate) fn unmarked_demand(next: NextTx) -> TxDemand {
    let ulpdu_len = next.ulpdu_len.min(MULPDU_RANGE.end as u64 - 1);
    TxDemand::Record(fpdu::fpdu_len(ulpdu_len as usize) as u32)
}

#[cfg(test)]
mod tests;
