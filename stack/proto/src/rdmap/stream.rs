//! RDMAP stream: its state, and its end. `inbound` checks, places and delivers received
//! ULPDUs, `outbound` selects the next ULPDU to send from requests, responses and the Terminate.

use crate::ddp::memory::Memory;
use crate::ddp::regions::{AccessScope, Stag};
use crate::ddp::untagged::{BufferQueue, DeliveredMessage, UntaggedFault};
use crate::rdmap::fault::Fault;
use crate::rdmap::requester::Requester;
use crate::rdmap::responder::Responder;
use crate::wire::ddp::Version;
use crate::wire::rdmap_extensions::ImmediateData;
use crate::wire::terminate::Terminate;

mod inbound;
mod outbound;
pub mod rtr;
mod segment_run;

pub use inbound::LastSinks;
pub(crate) use inbound::{Placement, Segment};
pub use outbound::{LastOf, NextTx};

/// Result of a received ULPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indication {
    /// Payload was placed; nothing to report.
    Placed,
    /// A Send was delivered into a receive buffer.
    Received {
        /// `wr_id` of the buffer, and the length of the message.
        message: DeliveredMessage,
        /// Send with Solicited Event.
        solicited: bool,
        /// Send with Invalidate: this STag, already invalid.
        invalidated: Option<Stag>,
    },
    /// Immediate Data consumed a receive buffer.
    ImmediateReceived {
        /// `wr_id` of the buffer, and length 0.
        message: DeliveredMessage,
        /// The Immediate Data.
        data: ImmediateData,
        /// Immediate Data with Solicited Event.
        solicited: bool,
    },
    /// A Read Request or Atomic Request was queued.
    ReadRequested,
    /// The response to a local Read or atomic operation is complete.
    ReadCompleted,
    /// The peer ended the stream with this Terminate; `None` if the Terminate is invalid.
    Terminated(Option<Terminate>),
}

/// Protocol state of a stream, both directions.
///
/// State at the end of the stream:
///
/// | Event | `failed` | `rx_dead` | `terminate` |
/// |---|---|---|---|
/// | [`Stream::fail`] | true | true for a CRC or marker fault | `Some` until it is built |
/// | [`Stream::fail_without_terminate`] | true | true for a CRC or marker fault | `None` |
/// | [`Stream::stop`] | true | unchanged | unchanged |
/// | Terminate received | true | true | unchanged |
#[derive(Debug)]
pub struct Stream {
    scope: AccessScope,
    version: Version,
    /// Requester.
    pub requester: Requester,
    /// Receive queue: buffers for Sends of the peer.
    pub recv_queue: BufferQueue,
    responder: Responder,
    /// The response is next if a request and a response can both be built.
    prefers_responses: bool,
    /// RFC 7306 is enabled.
    extensions: bool,
    /// Pending Terminate: queued and not built.
    terminate: Option<Box<Terminate>>,
    /// The stream has ended; nothing is placed any more.
    failed: bool,
    /// Received data is not processed any more: the peer's Terminate was received, or FPDU
    /// boundaries are unknown.
    rx_dead: bool,
    /// The RTR message was built.
    rtr_sent: bool,
}

/// Reason why [`Stream::build_next`] built no segment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// The memory of a local request is not registered as it claims.
    Request,
    /// A Read or Atomic Request of the peer can no longer be answered; this Terminate is queued.
    Response(Box<Terminate>),
}

impl Stream {
    /// Creates a stream that is not started. If `scope` is a protection domain without a stream,
    /// only STags that are valid for all streams of the domain can be accessed.
    #[must_use]
    pub fn new(
        scope: impl Into<AccessScope>,
        requester: Requester,
        recv_queue: BufferQueue,
    ) -> Self {
        Self {
            scope: scope.into(),
            version: Version::Ietf,
            requester,
            recv_queue,
            responder: Responder::new(),
            prefers_responses: false,
            extensions: false,
            terminate: None,
            failed: false,
            rx_dead: false,
            rtr_sent: false,
        }
    }

    /// Returns the scope of its memory accesses.
    #[must_use]
    pub const fn access_scope(&self) -> AccessScope {
        self.scope
    }

    /// Sets the result of the startup negotiation. The IETF's version enables RFC 7306: see
    /// [`Stream::disable_extensions`].
    pub fn start(&mut self, version: Version, ird: u16, ord: u16) {
        self.version = version;
        self.extensions = version == Version::Ietf;
        self.requester.set_ord(ord);
        self.responder.set_ird(ird);
    }

    /// Returns IRD: the peer's RDMA Reads and atomic operations served at a time.
    #[must_use]
    pub const fn ird(&self) -> u16 {
        self.responder.ird()
    }

    /// Disables RFC 7306, for peers that may not support it: its messages are then handled like any
    /// unknown message. Called once, when the stream starts.
    pub const fn disable_extensions(&mut self) {
        self.extensions = false;
    }

    /// True if the operations of RFC 7306 are enabled.
    #[must_use]
    pub const fn has_extensions(&self) -> bool {
        self.extensions
    }

    /// Returns the version of its DDP and RDMAP headers.
    pub(crate) const fn version(&self) -> Version {
        self.version
    }

    /// True if the RTR message or another was built, at least in part.
    pub fn has_sent(&self) -> bool {
        self.rtr_sent || self.requester.has_built()
    }

    /// True if the stream was ended locally and a Terminate of the peer may still arrive, sent
    /// before the peer learned of it.
    #[must_use]
    pub const fn awaits_terminate(&self) -> bool {
        self.failed && !self.rx_dead
    }

    /// Ends the stream because of `fault` in `segment` (empty if in none) and queues the Terminate.
    /// Only the first fault is reported: returns its Terminate, or `None` if the stream had already
    /// ended.
    #[cold]
    pub fn fail(&mut self, fault: Fault, segment: &[u8]) -> Option<Terminate> {
        // req: DDP-164, RDMAP-261
        if self.failed {
            return None;
        }
        // req: MPA-158, RDMAP-195, RDMAP-253, DDP-028
        self.failed = true;
        // FPDU boundaries are unknown after these faults.
        self.rx_dead = matches!(fault, Fault::Crc | Fault::Marker);
        let terminate = fault.to_terminate(self.version, segment);
        // req: DDP-140, DDP-165, RDMAP-245, RDMAP-334
        self.terminate = Some(Box::new(terminate));
        Some(terminate)
    }

    /// Ends the stream because of `fault` without sending a Terminate. Returns the unsent
    /// Terminate, or `None` if the stream had already ended.
    #[cold]
    pub fn fail_without_terminate(&mut self, fault: Fault) -> Option<Terminate> {
        let terminate = self.fail(fault, &[])?;
        self.terminate = None;
        Some(terminate)
    }

    /// Ends the stream without a Terminate.
    pub const fn stop(&mut self) {
        self.failed = true;
    }

    /// Returns the request to which a received Terminate refers: see
    /// [`Requester::terminated_request`].
    #[cold]
    #[must_use]
    pub fn terminated_request(&self, terminate: &Terminate) -> Option<u64> {
        self.requester.terminated_request(terminate, self.version)
    }

    /// Closes the receive direction: requests that need a response are not sent any more. True if a
    /// request still needs one, which will never arrive.
    #[cold]
    pub fn on_rx_closed(&mut self) -> bool {
        self.requester.on_rx_closed()
    }

    /// True if all posted requests are done, and all requests of the peer are answered.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.requester.is_done() && !self.responder.can_build()
    }

    /// Closes the transmit direction: Read Requests received from now on are not answered.
    #[cold]
    pub const fn on_tx_closed(&mut self) {
        self.responder.on_tx_closed();
    }

    /// True if the stream has ended: received data is discarded.
    #[must_use]
    pub const fn has_failed(&self) -> bool {
        self.failed
    }

    /// True if a Terminate is queued and not built.
    #[must_use]
    pub const fn is_terminate_pending(&self) -> bool {
        self.terminate.is_some()
    }

    /// Executes the local operations that are next in the queue, and passes rejected requests.
    pub fn execute_local_ops(&mut self, memory: &impl Memory) {
        if self.requester.has_local_ops() && !self.failed {
            self.requester.execute_local_ops(memory.regions(), self.scope);
        }
    }

    /// Returns the `wr_id` of the receive buffer that completes in error because of the fault, and
    /// whether the message was too long for it.
    #[must_use]
    pub const fn faulted_buffer(fault: Fault) -> Option<(u64, bool)> {
        match fault {
            Fault::Untagged(UntaggedFault::TooLong { wr_id }) => Some((wr_id, true)),
            Fault::Untagged(UntaggedFault::Local { wr_id, .. }) => Some((wr_id, false)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
