//! A connection: TCP below, and above it either the start-up exchange or MPA in full operation.

use crate::device::{Retained, RxFrame};
use crate::engine::resolve::Hop;
use crate::engine::slab::Slab;
use crate::engine::wheel::Armed;
use crate::mpa::receive::{AssemblyPool, Receiver};
use crate::mpa::startup::Wishes;
use crate::tcp::Tcb;
use crate::time::Instant;
use crate::wire::mpa::Startup;

/// What the octets of the peer mean at present.
///
/// Until both ends have agreed, everything that follows the start-up frame is held unparsed.
#[derive(Debug)]
pub(super) enum Phase {
    /// Responder: the request has not arrived whole.
    AwaitRequest { inbox: Vec<u8> },
    /// Responder: the application has not decided.
    AwaitDecision { request: Box<Startup>, early: Vec<u8> },
    /// Initiator: the reply has not arrived whole.
    AwaitReply { wishes: Wishes, revision: u8, inbox: Vec<u8> },
    /// FPDUs both ways.
    Rdma {
        receiver: Receiver,
        /// Closed at the responder until the initiator's first FPDU was validated
        /// (RFC 5044 section 7.1.2).
        gate_open: bool,
    },
    /// The stream has ended: what still arrives is discarded.
    Over,
}

/// One TCP connection and what it carries.
#[derive(Debug)]
pub(super) struct Connection<R: RxFrame, T: Retained> {
    pub(super) tcb: Tcb<R, T>,
    pub(super) phase: Phase,
    /// The queue pair it serves, once there is one.
    pub(super) qp: Option<u32>,
    /// The listener that it came in by.
    pub(super) listener: Option<u16>,
    /// The neighbour that takes its frames.
    pub(super) hop: Hop,
    /// In the list of those in TIME-WAIT.
    pub(super) in_time_wait: bool,
    /// CRCs are made and checked.
    pub(super) crc: bool,
    /// A router or the host said during set-up that it cannot be reached, perhaps only now.
    pub(super) unreachable: bool,
    /// The handshake of TCP is complete.
    pub(super) established: bool,
    /// Nothing is posted any more: FIN follows the last octet.
    pub(super) closing: bool,
    /// Octets taken from TCP and held until both ends have agreed.
    pub(super) held_len: u32,
    /// Octets by which its receive window has grown.
    pub(super) window_growth: u32,
    /// Start-up octets to be sent.
    pub(super) outbox: Vec<u8>,
    /// End of patience: with start-up, or with lingering after the end.
    pub(super) patience: Option<Instant>,
    /// In the list of connections to be served in this pass or the next.
    pub(super) queued: bool,
    /// Its timers in the wheel.
    pub(super) armed: Armed,
}

impl<R: RxFrame, T: Retained> Connection<R, T> {
    /// The earliest moment at which something must be done without input.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match (self.tcb.deadline(), self.patience) {
            (Some(tcb), Some(patience)) => Some(tcb.min(patience)),
            (tcb, patience) => tcb.or(patience),
        }
    }

    /// Ends the stream: what still arrives is discarded.
    pub(super) fn end_stream(&mut self, assembly: &mut AssemblyPool) {
        if let Phase::Rdma { receiver, .. } = &mut self.phase {
            receiver.finish(assembly);
        }
        self.phase = Phase::Over;
    }
}

/// All connections of an engine.
pub(super) type Connections<R, T> = Slab<Connection<R, T>>;
