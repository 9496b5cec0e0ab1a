//! Connection management: what the two ends agree on, and what happens to connections.

use core::net::{IpAddr, SocketAddr};

use arrayvec::ArrayVec;

use crate::verbs::qp::SrqId;
use crate::verbs::wc::{CqId, QpId};
use crate::wire::terminate::{LAYER_MPA, LAYER_RDMAP};

use crate::mpa::startup::{Offer, READ_DEPTH_MAX};
pub use crate::mpa::startup::{ReadDepths, Rtr, RtrKinds};
pub use crate::rdmap::terminate::Abort;
pub use crate::wire::ddp::Version;
pub use crate::wire::mpa::PRIVATE_DATA_LEN_MAX;
pub use crate::wire::terminate::Terminate;

/// Private data of a start-up frame.
pub type PrivateData = ArrayVec<u8, PRIVATE_DATA_LEN_MAX>;

/// How a connection becomes one of FPDUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// A request frame of the initiator and a reply frame of the responder agree on it.
    #[default]
    Frames,
    /// With its first byte and without a word, in both directions, as in draft-02: markers and
    /// CRCs always, version 0 of DDP, and of RDMAP as [`ConnParam::rdmap_draft00`] says. Both
    /// applications know it beforehand.
    Immediate,
    /// As [`Start::Immediate`], but only after the applications have exchanged bytes of their own
    /// on the same connection: see `Engine::start_fpdus`.
    Streaming,
}

/// What an end brings to the set-up.
#[derive(Clone, Debug)]
pub struct ConnParam {
    /// RDMA Reads and atomic operations this end serves at a time; 0: none, whatever the peer
    /// would issue.
    pub ird: u16,
    /// What `ird` may be raised to for a peer that issues more (revision 2, RFC 6581 section 9.1),
    /// at most 128. With a value up to `ird` it is never raised.
    pub ird_max: u16,
    /// RDMA Reads and atomic operations this end issues at a time.
    pub ord: u16,
    /// Ask for CRCs. One vote is enough for both directions.
    pub crc: bool,
    /// Ask for markers in what the peer sends: FPDUs can then be found in segments that are ahead
    /// of their turn. What the peer asks for it gets.
    pub markers: bool,
    /// Place RDMA Writes as they come, in turn or not, as far as markers show where they are. Then
    /// the last byte of a message may be in memory before its first, and of Writes that overlap
    /// and are under way at the same time the older may win (RFC 5040 section 5.5).
    pub place_early: bool,
    /// Outlive the peer's half of the connection: when the peer has sent all it had to send,
    /// [`Event::PeerFinished`] says so, and requests can be posted until the application ends the
    /// connection itself. Without it the end follows of itself, once what was posted has left. An
    /// RDMA Read that is not answered by then never will be: it ends the connection either way.
    pub half_close: bool,
    /// MPA revision to offer: 1 (RFC 5044), 2 (RFC 6581, negotiates IRD and ORD), or 0 for a peer
    /// of the RDMA Consortium that understands start-up frames (RFC 5044 appendix C). With 0 come
    /// markers, CRCs, and the versions 0 of DDP and RDMAP (see [`ConnParam::rdmap_draft00`]).
    pub revision: u8,
    /// Where the versions are not those of the IETF (revision 0, [`Start::Immediate`],
    /// [`Start::Streaming`]): RDMAP is that of draft-ietf-rddp-rdmap-00, with 1 in its version
    /// field, over DDP with 0. Without it both are 0, as with the RDMA Consortium's. Nothing on the
    /// wire negotiates it: both applications know it beforehand.
    pub rdmap_draft00: bool,
    /// Ask that either end may speak first (revision 2): the stack of the initiator then sends a
    /// ready-to-receive message of its own.
    pub peer_to_peer: bool,
    /// The ready-to-receive messages to offer, or to accept.
    pub rtr: RtrKinds,
    /// How the connection becomes one of FPDUs; at a responder as its listener says.
    pub start: Start,
    /// Handed to the peer's application: at most 512 bytes, 508 with revision 2.
    pub private_data: PrivateData,
    /// Which of our addresses to connect from; `None`: the one that fits the way best.
    pub local_address: Option<IpAddr>,
}

impl ConnParam {
    /// What of it is for MPA.
    #[must_use]
    pub const fn mpa_offer(&self) -> Offer {
        Offer {
            ird: self.ird,
            ird_max: self.ird_max,
            ord: self.ord,
            crc: self.crc,
            markers: self.markers,
            peer_to_peer: self.peer_to_peer,
            rtr: self.rtr,
            rdmap_draft00: self.rdmap_draft00,
        }
    }
}

impl Default for ConnParam {
    fn default() -> Self {
        Self {
            ird: 16,
            ird_max: READ_DEPTH_MAX,
            ord: 16,
            crc: true,
            markers: false,
            place_early: false,
            half_close: false,
            revision: 2,
            rdmap_draft00: false,
            peer_to_peer: false,
            rtr: RtrKinds::ALL,
            start: Start::Frames,
            private_data: PrivateData::new(),
            local_address: None,
        }
    }
}

/// Names a connection that waits for accept or reject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId {
    /// Slot of the connection.
    pub index: u32,
    /// Use of the slot.
    pub generation: u32,
}

/// What was agreed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnInfo {
    /// The peer's address.
    pub peer: SocketAddr,
    /// Our address.
    pub local: SocketAddr,
    /// RDMA Reads and atomic operations served at a time.
    pub ird: u16,
    /// RDMA Reads and atomic operations issued at a time.
    pub ord: u16,
    /// CRCs are made and checked.
    pub crc: bool,
    /// There are markers in what this end receives; never in an offer.
    pub markers_in: bool,
    /// There are markers in what this end sends.
    pub markers_out: bool,
    /// MPA revision; 0 is that of the draft and of the RDMA Consortium.
    pub revision: u8,
    /// This end has atomic operations and immediate data (RFC 7306) on the connection. Whether the
    /// peer has them, too, start-up frames do not say.
    pub extensions: bool,
    /// The peer's private data.
    pub private_data: PrivateData,
}

/// Why a connection could not be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Nobody listens there.
    #[error("connection refused: nobody listens on that address and port")]
    Refused,
    /// No answer.
    #[error("no answer: check the address and that both devices are on the same link")]
    TimedOut,
    /// A router or the peer's host said so: nobody at the port, no TCP, no route, or a filter.
    #[error("unreachable by word of a router or the host: check address, routes and filters")]
    Unreachable,
    /// The peer's application rejected the request.
    #[error("rejected by the peer's application")]
    Rejected,
    /// The peer does not speak MPA, or not a revision or option that we can meet.
    #[error("the peer does not speak a version or option of MPA that can be met")]
    Protocol,
    /// The connection was reset during set-up.
    #[error("reset by the peer during set-up")]
    Reset,
    /// The peer issues more RDMA Reads at a time than this end can serve; it was told so.
    #[error("the peer issues more RDMA Reads at a time than can be served")]
    TooManyReads,
    /// The ends know no common ready-to-receive message; the peer was told so.
    #[error("no ready-to-receive message that both ends know: offer more kinds")]
    NoCommonRtr,
    /// The local end gave up or ran out of resources.
    #[error("no resources for another connection")]
    NoResources,
}

/// Why a call of connection management failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// Another listener has the port.
    #[error("port {0} is in use by another listener; choose another")]
    PortInUse(u16),
    /// No such queue pair or request, or it ended meanwhile.
    #[error("no such queue pair or connection request (it may have ended meanwhile)")]
    Gone,
    /// The queue pair is already in use.
    #[error("the queue pair is already connected or in error")]
    WrongState,
    /// Private data longer than the frame can carry.
    #[error("private data is longer than the start-up frame can carry")]
    PrivateDataTooLong,
    /// As many queue pairs exist as may be, or no port is free towards that address.
    #[error("no resources for another queue pair or connection")]
    NoResources,
    /// As many connections exist as may be, those that linger after their end included.
    #[error(
        "as many connections exist as may be: raise `limits.connections_max` of the \
             configuration, or end some"
    )]
    TooManyConnections,
    /// No route leads there, we have no address of that family, or it is no other host's address.
    #[error("no route leads to that address from this device's addresses")]
    Unreachable,
    /// The address to connect from is none of ours.
    #[error("the address to connect from is none of this device's")]
    NotLocal,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndReason {
    /// We asked for it.
    Local,
    /// The peer closed in good order; also if it then refused what was still to be sent.
    PeerClosed,
    /// The peer reset the connection.
    Reset,
    /// The peer stopped answering.
    TimedOut,
    /// We found an error and sent this Terminate.
    TerminateSent(Terminate),
    /// We found an error and could not say so: the peer had not sent a valid FPDU yet, or this end
    /// had closed already. The connection was reset.
    TerminateUnsent(Terminate),
    /// The peer found an error and sent this Terminate.
    TerminateReceived(Terminate),
    /// The peer sent a Terminate that breaks the rules itself: cut short, in several segments, or
    /// not the first of its queue.
    BadTerminate,
    /// The peer sent bytes behind its FIN, which are an error (RFC 5041 section 6.2.1). The
    /// connection was reset.
    DataBehindFin,
    /// A local failure (memory of a request not registered, completion queue overrun). The peer
    /// was told, if it could be.
    LocalError,
}

impl EndReason {
    /// Layer, error type and code of the error that ended the connection, as in the tables of the
    /// three protocols; `None` if none did, or none that they have. A connection that was lost
    /// below is error 1 of MPA (RFC 5044 section 8).
    // req: DDP-138, DDP-143, DDP-168
    #[must_use]
    pub const fn error(&self) -> Option<(u8, u8, u8)> {
        match self {
            Self::TerminateSent(terminate)
            | Self::TerminateUnsent(terminate)
            | Self::TerminateReceived(terminate) => Some(terminate.cause()),
            Self::Reset | Self::TimedOut | Self::DataBehindFin => Some((LAYER_MPA, 0, 1)),
            Self::LocalError => Some((LAYER_RDMAP, 0, 0)),
            Self::Local | Self::PeerClosed | Self::BadTerminate => None,
        }
    }
}

/// Something that happened, for the application.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A peer asks to connect to the listener on `port`.
    ConnectRequest {
        /// Port of the listener.
        port: u16,
        /// To accept or reject it with.
        request: RequestId,
        /// What the peer offers; `ird` and `ord` from our point of view.
        offer: Box<ConnInfo>,
    },
    /// The connection is up, and carries bytes of the applications until they have it carry FPDUs
    /// ([`Start::Streaming`]).
    Streaming {
        /// The queue pair.
        qp: QpId,
    },
    /// The connection is up.
    Established {
        /// The queue pair.
        qp: QpId,
        /// What was agreed.
        info: Box<ConnInfo>,
    },
    /// The peer has sent all that it had to send ([`ConnParam::half_close`]): nothing more is
    /// received, RDMA Reads and atomic operations are refused, everything else goes on.
    PeerFinished {
        /// The queue pair.
        qp: QpId,
    },
    /// The connection could not be set up.
    ConnectFailed {
        /// The queue pair.
        qp: QpId,
        /// Why.
        error: ConnectError,
        /// The peer's private data, when it rejected with some.
        private_data: Box<PrivateData>,
        /// The RDMA Reads that the peer would serve and issue at a time, from its point of view,
        /// when its reply of revision 2 says so: a hint what to ask for next time. A peer that
        /// rejects for other reasons says 0.
        reads: Option<ReadDepths>,
    },
    /// The connection ended; outstanding requests are flushed.
    Disconnected {
        /// The queue pair.
        qp: QpId,
        /// Why.
        reason: EndReason,
    },
    /// After this end had ended the stream itself, as [`Event::Disconnected`] has said, the peer's
    /// Terminate came: it had found an error, too, and not heard of our end. At most once, and
    /// never after [`EndReason::TerminateReceived`].
    TerminateReceived {
        /// The queue pair.
        qp: QpId,
        /// What the peer says, or `None` if its Terminate breaks the rules itself
        /// ([`EndReason::BadTerminate`]).
        terminate: Option<Terminate>,
    },
    /// Fewer buffers are left in a shared receive queue than its limit says; told once each time
    /// it is armed.
    SrqLimit {
        /// The queue.
        srq: SrqId,
        /// Buffers left.
        left: usize,
        /// The queue pair that took most since the limit was armed, and how many.
        most: Option<(QpId, u64)>,
    },
    /// A completion queue overran; its queue pairs are in error.
    CqOverrun {
        /// The queue.
        cq: CqId,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    // req-test: DDP-168
    #[test]
    fn error_has_4_bit_type_and_8_bit_code() {
        for (error_type, code) in (0..16).flat_map(|high| (0..=255).map(move |low| (high, low))) {
            let terminate = Terminate::new(1, error_type, code);
            for reason in [
                EndReason::TerminateSent(terminate),
                EndReason::TerminateUnsent(terminate),
                EndReason::TerminateReceived(terminate),
            ] {
                assert_eq!(reason.error(), Some((1, error_type, code)));
            }
            let mut out = [0xff; 4];
            terminate.emit(&mut out);
            assert_eq!(out, [0x10 | error_type, code, 0, 0]);
        }
    }
}
