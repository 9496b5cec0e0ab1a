//! A connection: TCP below, and above it either the start-up exchange or MPA in full operation.

use crate::device::{Retained, RxFrame};
use crate::engine::awaiting_request::ArrivalOrder;
use crate::engine::next_hop::NextHop;
use crate::engine::slab::Slab;
use crate::engine::wheel::ArmedTimers;
use crate::mpa::deframer::Deframer;
use crate::mpa::fpdu_pool::FpduPool;
use crate::mpa::framing::Framing;
use crate::mpa::startup::{Negotiated, Offer};
use crate::tcp::Tcb;
use crate::time::Instant;
use crate::verbs::cm::Start;
use crate::wire::mpa::Startup;

/// No end of patience.
pub(super) const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// What the bytes of the peer mean at present.
///
/// Until both ends have agreed, everything that follows the start-up frame is held unparsed.
#[derive(Debug)]
pub(super) enum Phase {
    /// Responder: the request has not arrived whole.
    AwaitRequest { startup_rx: Vec<u8> },
    /// Responder: the application has not decided.
    AwaitDecision(Box<AwaitDecision>),
    /// Initiator: the reply has not arrived whole.
    AwaitReply(Box<AwaitReply>),
    /// Bytes of the applications, until they say that FPDUs follow.
    Streaming { stream_rx: Vec<u8> },
    /// FPDUs both ways.
    Rdma { deframer: Deframer },
    /// This end has ended the stream: what still arrives is discarded but for a Terminate.
    DrainTerminate { deframer: Box<Deframer> },
    /// Responder: the request was rejected, and FIN waits for the peer to see the reply, but not
    /// for longer than this.
    Rejected { deadline: Instant },
    /// The stream has ended: what still arrives is discarded.
    Closed,
}

/// Start-up bytes to be sent, in memory of their own while there are some.
#[derive(Debug)]
pub(super) struct StartupTx {
    bytes: Vec<u8>,
}

impl StartupTx {
    pub(super) fn new(frame: &Startup) -> Box<Self> {
        let mut bytes = vec![0; frame.wire_len()];
        frame.emit(&mut bytes);
        Box::new(Self { bytes })
    }

    pub(super) const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// An outbox of any bytes.
    pub(super) fn from_bytes(bytes: &[u8]) -> Box<Self> {
        Box::new(Self { bytes: bytes.to_vec() })
    }

    /// Appends bytes.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Moves what fits to `out`; returns how much.
    pub(super) fn take(&mut self, out: &mut [u8]) -> usize {
        let len = self.bytes.len().min(out.len());
        out[..len].copy_from_slice(&self.bytes[..len]);
        self.bytes.drain(..len);
        len
    }
}

/// What a responder keeps until the application has decided.
#[derive(Debug)]
pub(super) struct AwaitDecision {
    /// `None`: the connection has no start-up frames.
    pub(super) request: Option<Startup>,
    pub(super) buffered: Vec<u8>,
}

/// What an initiator keeps until the reply has arrived.
#[derive(Debug)]
pub(super) struct AwaitReply {
    /// How FPDUs begin: there is no reply to wait for unless by frames.
    pub(super) start: Start,
    pub(super) ooo_placement: bool,
    pub(super) offer: Offer,
    pub(super) revision: u8,
    pub(super) startup_rx: Vec<u8>,
}

/// One TCP connection and what it carries.
///
/// In this order in memory, so that TCP's hot state is three cache lines.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Connection<R: RxFrame, T: Retained> {
    pub(super) tcb: Tcb<R, T>,
    pub(super) phase: Phase,
    /// Start-up bytes to be sent, if any.
    pub(super) startup_tx: Option<Box<StartupTx>>,
    /// End of patience: with start-up, with a peer that may have overlooked our first bytes, or
    /// with lingering after the end; or [`NEVER`].
    pub(super) deadline: Instant,
    /// The neighbour that takes its frames.
    pub(super) next_hop: NextHop,
    /// The queue pair it serves, once there is one.
    pub(super) qp: Option<u32>,
    /// Its timers in the wheel.
    pub(super) armed_timers: ArmedTimers,
    /// Bytes taken from TCP and held until both ends have agreed.
    pub(super) buffered_len: u32,
    /// Bytes by which its receive window has grown.
    pub(super) window_growth: u32,
    /// The listener that it came in by, until it is decided on.
    pub(super) listener: Option<u16>,
    /// Its place among those that await a request.
    pub(super) arrival_order: Option<ArrivalOrder>,
    /// In the list of those in TIME-WAIT.
    pub(super) in_time_wait: bool,
    /// FPDUs may be sent: not at the responder until the initiator's first one was validated
    /// (RFC 5044 section 7.1.2).
    pub(super) tx_allowed: bool,
    /// How FPDUs look that are sent, and whether CRCs are checked.
    pub(super) framing: Framing,
    /// A router or the host said during set-up that it cannot be reached, perhaps only now.
    pub(super) unreachable: bool,
    /// The handshake of TCP is complete.
    pub(super) tcp_established: bool,
    /// Nothing is posted any more: FIN follows the last byte.
    pub(super) closing: bool,
    /// In the list of connections to be served in this pass or the next.
    pub(super) in_ready_list: bool,
}

impl<R: RxFrame, T: Retained> Connection<R, T> {
    /// The earliest moment at which something must be done without input.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let earliest = self.tcb.deadline().map_or(self.deadline, |tcb| tcb.min(self.deadline));
        (earliest != NEVER).then_some(earliest)
    }

    /// From the next byte on, behind what waits in the outbox, FPDUs are sent as agreed.
    pub(super) fn set_framing(&mut self, negotiated: &Negotiated) {
        let waiting = self.startup_tx.as_ref().map_or(0, |startup_tx| startup_tx.len());
        let start = self.tcb.write_seq() + u32::try_from(waiting).unwrap_or(0);
        self.framing = if negotiated.markers_out {
            Framing::with_markers(negotiated.crc, start)
        } else {
            Framing::without_markers(negotiated.crc)
        };
    }

    /// Ends the stream: what still arrives is discarded.
    pub(super) fn end_stream(&mut self, assembly: &mut FpduPool) {
        match &mut self.phase {
            Phase::Rdma { deframer: receiver } => receiver.reset(assembly),
            Phase::DrainTerminate { deframer: receiver } => receiver.reset(assembly),
            _ => {}
        }
        self.phase = Phase::Closed;
    }
}

/// All connections of an engine.
pub(super) type Connections<R, T> = Slab<Connection<R, T>>;

#[cfg(test)]
mod tests {
    use super::{Connection, Connections};
    use crate::tcp::tests::HeapFrame;

    /// Bytes of an idle connection that are not of its queue pair.
    const BUDGET: usize = 1024;
    /// An entry of the table of four-tuples, a byte of control beside it, at the least load.
    const TABLE_ENTRY: usize = (size_of::<u32>() + 1) * 16 / 7;
    /// An entry of the list of those to be served, which does not shrink.
    const READY_ENTRY: usize = 2 * size_of::<u32>();

    #[test]
    fn idle_connection_fits_one_kib() {
        // It has no timer and no memory besides: records, what is held, and what belongs to the
        // start-up exchange are gone.
        let slot = Connections::<HeapFrame, HeapFrame>::SLOT_LEN;
        let each = slot + TABLE_ENTRY + READY_ENTRY;
        println!("{each} octets: {slot} in its slot, {TABLE_ENTRY} by four-tuple, {READY_ENTRY}");
        assert!(each <= BUDGET, "{each} octets");
    }

    #[test]
    fn tcb_is_cache_line_aligned() {
        type Both = Connection<HeapFrame, HeapFrame>;
        assert_eq!((align_of::<Both>(), core::mem::offset_of!(Both, tcb)), (64, 0));
        assert_eq!(size_of::<Option<Both>>(), size_of::<Both>(), "no octet says that it is there");
    }
}
