//! Connection: a TCP connection, with the MPA startup exchange or MPA in full operation above it.

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

/// Value of a deadline that is not set.
pub(super) const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// Phase of a connection: determines how received stream bytes are interpreted.
///
/// Until startup is complete, bytes behind the startup frame are buffered unparsed.
#[derive(Debug)]
pub(super) enum Phase {
    /// Responder: the MPA Request Frame is incomplete.
    AwaitRequest { startup_rx: Vec<u8> },
    /// Responder: the application has not accepted or rejected yet.
    AwaitDecision(Box<AwaitDecision>),
    /// Initiator: the MPA Reply Frame is incomplete.
    AwaitReply(Box<AwaitReply>),
    /// Streaming mode: application data, until the applications switch to FPDUs.
    Streaming { stream_rx: Vec<u8> },
    /// Full operation: FPDUs in both directions.
    Rdma { deframer: Deframer },
    /// The local end has ended the stream: received data is discarded except for a Terminate.
    DrainTerminate { deframer: Box<Deframer> },
    /// Responder: the request was rejected. FIN is held back until the peer has seen the reply, at
    /// most until `deadline`.
    Rejected { deadline: Instant },
    /// The stream has ended: received data is discarded.
    Closed,
}

/// Startup or streaming-mode bytes to be sent; allocated only while there are some.
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

    /// Creates a send buffer with arbitrary bytes.
    pub(super) fn from_bytes(bytes: &[u8]) -> Box<Self> {
        Box::new(Self { bytes: bytes.to_vec() })
    }

    /// Appends bytes.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Moves as many bytes to `out` as fit; returns their number.
    pub(super) fn take(&mut self, out: &mut [u8]) -> usize {
        let len = self.bytes.len().min(out.len());
        out[..len].copy_from_slice(&self.bytes[..len]);
        self.bytes.drain(..len);
        len
    }
}

/// State of a responder until the application decides.
#[derive(Debug)]
pub(super) struct AwaitDecision {
    /// `None`: the connection has no startup frames.
    pub(super) request: Option<Startup>,
    pub(super) buffered: Vec<u8>,
}

/// State of an initiator until the MPA Reply Frame is complete.
#[derive(Debug)]
pub(super) struct AwaitReply {
    /// Start mode: only with startup frames is there a reply to wait for.
    pub(super) start: Start,
    pub(super) ooo_placement: bool,
    pub(super) offer: Offer,
    pub(super) revision: u8,
    pub(super) startup_rx: Vec<u8>,
}

/// One TCP connection and the state above it.
///
/// The memory layout follows the order of the fields, so that TCP's hot state is three cache lines.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Connection<R: RxFrame, T: Retained> {
    pub(super) tcb: Tcb<R, T>,
    pub(super) phase: Phase,
    /// Startup or streaming-mode bytes to be sent, if any.
    pub(super) startup_tx: Option<Box<StartupTx>>,
    /// Deadline of the startup exchange, of the next siw wake-up, or of lingering after the close;
    /// [`NEVER`] if none is set.
    pub(super) deadline: Instant,
    /// Next hop of its frames.
    pub(super) next_hop: NextHop,
    /// Queue pair of the connection, if it has one.
    pub(super) qp: Option<u32>,
    /// Timers armed in the wheel.
    pub(super) armed_timers: ArmedTimers,
    /// Received bytes buffered until startup is complete; TCP counts them as unconsumed.
    pub(super) buffered_len: u32,
    /// Bytes by which the receive window has grown.
    pub(super) window_growth: u32,
    /// Port of the listener, until the application has decided.
    pub(super) listener: Option<u16>,
    /// Position among the connections that await a request.
    pub(super) arrival_order: Option<ArrivalOrder>,
    /// True if it is in the list of connections in TIME-WAIT.
    pub(super) in_time_wait: bool,
    /// FPDUs may be sent: at a responder only once the initiator's first FPDU was validated (RFC
    /// 5044 section 7.1.2).
    pub(super) tx_allowed: bool,
    /// MPA framing of sent FPDUs (markers, CRC), and whether received CRCs are checked.
    pub(super) framing: Framing,
    /// A soft ICMP error was received during connection setup. The condition may be transient.
    pub(super) unreachable: bool,
    /// The TCP handshake is complete.
    pub(super) tcp_established: bool,
    /// Nothing more can be posted: FIN follows the last byte.
    pub(super) closing: bool,
    /// True if it is in the list of connections to be served in this pass or the next.
    pub(super) in_ready_list: bool,
}

impl<R: RxFrame, T: Retained> Connection<R, T> {
    /// Returns the earliest time at which something must be done without input.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let earliest = self.tcb.deadline().map_or(self.deadline, |tcb| tcb.min(self.deadline));
        (earliest != NEVER).then_some(earliest)
    }

    /// Sets the negotiated framing for FPDUs sent from the next byte on, behind those in
    /// `startup_tx`.
    pub(super) fn set_framing(&mut self, negotiated: &Negotiated) {
        let waiting = self.startup_tx.as_ref().map_or(0, |startup_tx| startup_tx.len());
        let start = self.tcb.write_seq() + u32::try_from(waiting).unwrap_or(0);
        self.framing = if negotiated.markers_out {
            Framing::with_markers(negotiated.crc, start)
        } else {
            Framing::without_markers(negotiated.crc)
        };
    }

    /// Ends the stream: received data is discarded from now on.
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

    /// Bytes of an idle connection, its queue pair not included.
    const BUDGET: usize = 1024;
    /// An entry of the four-tuple table, with one byte of control, at the minimum load.
    const TABLE_ENTRY: usize = (size_of::<u32>() + 1) * 16 / 7;
    /// An entry of the ready list, which does not shrink.
    const READY_ENTRY: usize = 2 * size_of::<u32>();

    #[test]
    fn idle_connection_fits_one_kib() {
        // It has no timer and no other memory: records, out-of-order segments and startup state are
        // freed.
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
