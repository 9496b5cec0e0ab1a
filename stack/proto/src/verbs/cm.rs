//! Connection management: parameters, negotiated result, errors and events of connections.

mod conn_param;

use core::fmt;
use core::net::SocketAddr;
use core::time::Duration;

use crate::ended::Ended;
use crate::verbs::srq::SrqId;
use crate::verbs::wc::{CqId, QpId};
use crate::wire::terminate::{LAYER_MPA, LAYER_RDMAP};
use crate::wire::{EndNames, describe_terminate};

pub use crate::net::listen_addr::ListenAddr;
pub use crate::rdmap::fault::Abort;
pub use crate::wire::ddp::Version;
pub use crate::wire::mpa::{PRIVATE_DATA_LEN_MAX, PrivateData};
pub use crate::wire::mpa::{ReadDepths, Rtr, RtrKinds};
pub use crate::wire::terminate::Terminate;
pub use conn_param::{ConnParam, Start, TIME_MIN, dscp_of_tos};

/// Handle of a connection request that waits to be accepted or rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId {
    /// Slot index of the connection.
    pub index: u32,
    /// Generation of the slot.
    pub generation: u32,
}

/// Result of the negotiation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnInfo {
    /// Address of the peer.
    pub peer: SocketAddr,
    /// Local address.
    pub local: SocketAddr,
    /// IRD: RDMA Reads and atomic operations of the peer served at a time.
    pub ird: u16,
    /// ORD: local RDMA Reads and atomic operations outstanding at a time.
    pub ord: u16,
    /// CRCs are generated and verified.
    pub crc: bool,
    /// Markers in received data; always false in an offer.
    pub markers_in: bool,
    /// Markers in sent data.
    pub markers_out: bool,
    /// Either end may send first (the peer-to-peer model): both support it, or in an offer the
    /// initiator does. Otherwise the responder sends nothing before it has received a message.
    pub peer_to_peer: bool,
    /// MPA revision; 0 is that of the draft and of the RDMA Consortium.
    pub revision: u8,
    /// Atomic operations and Immediate Data (RFC 7306) are enabled locally. Startup frames do not
    /// show whether the peer supports them.
    pub extensions: bool,
    /// Private data of the peer.
    pub private_data: PrivateData,
}

/// Reason why a connection could not be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The peer reset the connection attempt: no listener on that address and port.
    #[error("connection refused: no listener on that address and port")]
    Refused,
    /// Not established until the timeout ([`ConnParam::connect_timeout`]): no response, or the
    /// peer's application has not accepted.
    #[error("no response in time: check that the peer is up and accepts, or give it more time")]
    TimedOut,
    /// No response, and the link of the device is down; or the process at the other end of the link
    /// has gone meanwhile.
    #[error("the link is down: start the peer, and check that no other program is connected to it")]
    LinkDown,
    /// Nobody answers ARP or neighbor discovery for the peer, or for the router to it, although the
    /// link is up (`EHOSTUNREACH` of sockets). Or an ICMP error of a router or the peer's host: no
    /// listener on the port, no TCP, no route, or a filter.
    #[error(
        "unreachable (no ARP or ND answer, or ICMP): check address, prefix, routes and filters"
    )]
    Unreachable,
    /// The peer's application rejected the request.
    #[error("rejected by the peer's application")]
    Rejected,
    /// The peer sent no valid MPA startup frame, or one with an unsupported revision or option.
    #[error("the peer offers no MPA revision or option that is supported")]
    Protocol,
    /// The connection was reset during setup.
    #[error("reset by the peer during set-up")]
    Reset,
    /// "Insufficient IRD Resources" (RFC 6581): the peer's ORD exceeds the local IRD limit. The
    /// peer was notified by a Terminate.
    #[error("the peer issues more RDMA Reads at a time than can be served")]
    TooManyReads,
    /// "No Matching RTR Option" (RFC 6581): the ends support no common RTR message. The peer was
    /// notified by a Terminate.
    #[error("no ready-to-receive message that both peers support: offer more kinds")]
    NoCommonRtr,
    /// The local application ended the attempt: it disconnected the queue pair, moved it to the
    /// error state, or closed the context.
    #[error("ended by the local application before it was connected")]
    Local,
    /// A completion queue of the queue pair has overrun meanwhile.
    #[error(
        "a completion queue of the queue pair has overrun: create a larger one, and a queue pair \
         that uses it"
    )]
    CqOverrun,
}

/// Error of a connection management call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// A listener uses the port: for a connection one that covers its local address, for a listener
    /// another one with the same port and the same addresses. Or a connection from the port would
    /// have this very port as its remote end.
    #[error("port {0} is in use by a listener, or the remote end itself; choose another")]
    PortInUse(u16),
    /// A connection between the same addresses and ports exists already, or has ended a short time
    /// ago (TIME-WAIT).
    #[error(
        "a connection from port {0} to that peer exists or has just ended: choose another local \
         port, or 0 for any"
    )]
    ConnectionExists(u16),
    /// The peer's port is 0, which no listener has.
    #[error("no peer listens on port 0: give the port of its listener")]
    RemotePort,
    /// There is no such connection or connection request, or no more: the queue pair is not
    /// connected, or the peer has given up.
    #[error(
        "there is no such connection or request, or no more: connect the queue pair first, or \
         take the next request"
    )]
    Gone,
    /// The context, or the shard of the connection, does nothing any more.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// The queue pair is already in use.
    #[error("the queue pair is already connected or in error")]
    WrongState,
    /// A number of the parameters is outside the range that works.
    #[error("{setting} of {value} is not possible: give {min} to {max}")]
    OutOfRange {
        /// The parameter.
        setting: &'static str,
        /// The value given.
        value: u16,
        /// Smallest value.
        min: u16,
        /// Largest value.
        max: u16,
    },
    /// A time of the parameters is too short to work.
    #[error("{setting} of {value:?} is not possible: give {min:?} or more")]
    TooShort {
        /// The parameter.
        setting: &'static str,
        /// The value given.
        value: Duration,
        /// Smallest value.
        min: Duration,
    },
    /// A type of service with ECN bits, which the stack sets itself.
    #[error("a type of service of {tos:#04x} is not possible: its two low bits must be 0")]
    EcnBits {
        /// The value given.
        tos: u8,
    },
    /// The private data does not fit into the startup frame.
    #[error("private data is too long for the MPA startup frame")]
    PrivateDataTooLong,
    /// The maximum number of queue pairs or listeners is reached, or no local port is free for that
    /// address.
    #[error("no resources for another queue pair, listener or connection")]
    NoResources,
    /// The maximum number of connections is reached, counting those that linger after their end.
    #[error(
        "the limit of connections is reached: raise `limits.connections_max` of the \
             configuration, or close some"
    )]
    TooManyConnections,
    /// No route to the address, no local address of its family, or it is not the address of a host;
    /// or it is a local address, and the device returns no frames.
    #[error("no route leads to that address from this device's addresses")]
    Unreachable,
    /// The address has the scope ID of another link. A device is one link.
    #[error("scope ID {0} is not that of the device's interface: give that, or 0")]
    OtherZone(u32),
    /// The address to listen on, or to connect from, is not a local address.
    #[error("the local address is not one of this device: give one of its configuration, or none")]
    NotLocal,
    /// To listen on all addresses of a family of which the device has none.
    #[error(
        "the device has no address of that family: give its configuration one, or listen on the \
         port alone"
    )]
    NoAddressOfFamily,
    /// The queue pair is of another context than the connection request.
    #[error("the queue pair is of another context than the connection request: create one there")]
    OtherContext,
    /// The event channel is of another context than the source of events.
    #[error("the event channel is of another context: create one with this context")]
    OtherChannel,
    /// The queue pair belongs to another shard than the connection request: it is bound by its
    /// options, its completion queue or its shared receive queue, or was bound before.
    #[error(
        "the queue pair belongs to another shard than the connection request: accept with one of \
         the request's shard, or one whose queues are of no single shard"
    )]
    WrongShard,
    /// A completion queue of the queue pair has overrun, so that the queue pair is in the error
    /// state.
    #[error(
        "a completion queue of the queue pair has overrun: create a larger one, and a queue pair \
         that uses it"
    )]
    CqOverrun,
}

/// Reason why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndReason {
    /// Ended by the local application.
    Local,
    /// Graceful close by the peer, even if it then reset the connection while data was still to be
    /// sent.
    PeerClosed,
    /// The peer reset the connection.
    Reset,
    /// The peer stopped responding.
    TimedOut,
    /// A local check found an error; this Terminate was sent.
    TerminateSent(Terminate),
    /// A local check found an error, but this Terminate could not be sent: the peer had not sent a
    /// valid FPDU yet, or the local end had closed already. The connection was reset.
    TerminateUnsent(Terminate),
    /// The peer found an error and sent this Terminate.
    TerminateReceived(Terminate),
    /// The peer sent an invalid Terminate: truncated, in several segments, or not the first message
    /// of its queue.
    BadTerminate,
    /// The peer sent data after its FIN, which is an error (RFC 5041 section 6.2.1). The connection
    /// was reset.
    DataAfterFin,
    /// Local error (memory of a request not registered, or not mapped any more; completion queue
    /// overrun). The peer was notified by a Terminate, if possible.
    LocalError,
    /// The device was removed. The peer was not notified.
    DeviceRemoved,
    /// The peer was the process at the other end of the link, which is gone.
    LinkDown,
}

impl EndReason {
    /// Returns layer, error type and code of the error that ended the connection, as in the tables
    /// of RFC 5040, RFC 5041 and RFC 5044; `None` if there was no error, or none with a code. A
    /// lost TCP connection is error 1 of MPA (RFC 5044 section 8).
    // req: DDP-138, DDP-143, DDP-168
    #[must_use]
    pub const fn error(&self) -> Option<(u8, u8, u8)> {
        match self {
            Self::TerminateSent(terminate)
            | Self::TerminateUnsent(terminate)
            | Self::TerminateReceived(terminate) => Some(terminate.cause()),
            Self::Reset | Self::TimedOut | Self::DataAfterFin | Self::LinkDown => {
                Some((LAYER_MPA, 0, 1))
            }
            Self::LocalError | Self::DeviceRemoved => Some((LAYER_RDMAP, 0, 0)),
            Self::Local | Self::PeerClosed | Self::BadTerminate => None,
        }
    }
}

/// Describes the reason in one line; [`EndReason::error`] has the code.
impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SENT: EndNames = EndNames { whose: "the peer's", reporter: "this end" };
        const RECEIVED: EndNames = EndNames { whose: "this end's", reporter: "it" };
        let text = match self {
            Self::Local => "the connection was closed locally",
            Self::PeerClosed => "the peer closed the connection",
            Self::Reset => "the peer reset the connection: was it killed?",
            Self::TimedOut => "the peer stopped answering: is it still running?",
            Self::TerminateSent(terminate) => {
                return describe_terminate(terminate, SENT, f);
            }
            Self::TerminateUnsent(terminate) => {
                describe_terminate(terminate, SENT, f)?;
                "; the peer was not told"
            }
            Self::TerminateReceived(terminate) => {
                f.write_str("the peer reports: ")?;
                return describe_terminate(terminate, RECEIVED, f);
            }
            Self::BadTerminate => "the peer sent a Terminate that cannot be read",
            Self::DataAfterFin => "the peer sent data after its FIN",
            Self::LocalError => {
                "a request failed locally: its memory is not registered so, or not mapped any \
                 more, or a completion queue overran"
            }
            Self::DeviceRemoved => "the device was removed",
            Self::LinkDown => {
                "the program at the other end of the link is gone: start it, and connect again"
            }
        };
        f.write_str(text)
    }
}

/// Connection event for the application (compare `rdma_cm_event` of librdmacm, `ibv_async_event`).
#[doc(alias = "rdma_cm_event")]
#[doc(alias = "rdma_cm_event_type")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnEvent {
    /// Connection request to a listener (`RDMA_CM_EVENT_CONNECT_REQUEST`).
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_REQUEST")]
    ConnectRequest {
        /// The listener: of those that cover the local address, the most specific.
        listener: ListenAddr,
        /// Handle to accept or reject it.
        request: RequestId,
        /// The peer's offer; `ird` and `ord` from the local point of view.
        offer: Box<ConnInfo>,
    },
    /// The TCP connection is established and in streaming mode: it carries data of the applications
    /// until they switch it to FPDUs ([`Start::Streaming`]).
    Streaming {
        /// The queue pair.
        qp: QpId,
    },
    /// The connection is in full operation (`RDMA_CM_EVENT_ESTABLISHED`).
    #[doc(alias = "RDMA_CM_EVENT_ESTABLISHED")]
    Established {
        /// The queue pair.
        qp: QpId,
        /// Result of the negotiation.
        info: Box<ConnInfo>,
    },
    /// The peer sent FIN ([`ConnParam::half_close`]): nothing more is received, RDMA Reads and
    /// atomic operations are refused, everything else continues.
    PeerFinished {
        /// The queue pair.
        qp: QpId,
    },
    /// The connection could not be set up (`RDMA_CM_EVENT_CONNECT_ERROR`,
    /// `RDMA_CM_EVENT_UNREACHABLE`, `RDMA_CM_EVENT_REJECTED`).
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_ERROR")]
    #[doc(alias = "RDMA_CM_EVENT_UNREACHABLE")]
    #[doc(alias = "RDMA_CM_EVENT_REJECTED")]
    ConnectFailed {
        /// The queue pair.
        qp: QpId,
        /// The reason.
        error: ConnectError,
        /// Private data of the peer's reply; may be empty.
        private_data: Box<PrivateData>,
        /// IRD and ORD of the peer, from its point of view, if it sent a reply of revision 2:
        /// values to request next time. Both are 0 if the peer rejects for other reasons.
        reads: Option<ReadDepths>,
    },
    /// The connection ended; outstanding requests are flushed (`RDMA_CM_EVENT_DISCONNECTED`).
    #[doc(alias = "RDMA_CM_EVENT_DISCONNECTED")]
    Disconnected {
        /// The queue pair.
        qp: QpId,
        /// The reason.
        reason: EndReason,
    },
    /// The peer's Terminate was received after the local end of the stream, which
    /// [`ConnEvent::Disconnected`] reported: the peer found an error before it learned of that end.
    /// At most once, and never after [`EndReason::TerminateReceived`].
    TerminateReceived {
        /// The queue pair.
        qp: QpId,
        /// The Terminate, or `None` if it is invalid ([`EndReason::BadTerminate`]).
        terminate: Option<Terminate>,
    },
    /// Fewer buffers than the limit are left in a shared receive queue
    /// (`IBV_EVENT_SRQ_LIMIT_REACHED`). Reported once each time the limit is armed.
    #[doc(alias = "IBV_EVENT_SRQ_LIMIT_REACHED")]
    SrqLimit {
        /// The shared receive queue.
        srq: SrqId,
        /// Number of buffers left.
        left: usize,
        /// The queue pair that took the most buffers since the limit was armed, and their number.
        most: Option<(QpId, u64)>,
    },
    /// A completion queue overran; its queue pairs, connected or not, are in the error state
    /// (`IBV_EVENT_CQ_ERR`).
    #[doc(alias = "IBV_EVENT_CQ_ERR")]
    CqOverrun {
        /// The completion queue.
        cq: CqId,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_reason_names_the_end_at_fault() {
        let terminate = Terminate::new(1, 2, 2);
        let text = |reason: EndReason| reason.to_string();
        let words = "no receive was posted for the peer's Send (DDP untagged, 2)";
        assert_eq!(text(EndReason::TerminateSent(terminate)), words);
        let unsent = format!("{words}; the peer was not told");
        assert_eq!(text(EndReason::TerminateUnsent(terminate)), unsent);
        assert_eq!(
            text(EndReason::TerminateReceived(terminate)),
            "the peer reports: no receive was posted for this end's Send (DDP untagged, 2)"
        );
        assert_eq!(text(EndReason::PeerClosed), "the peer closed the connection");
        let failed = "failed in itself: see its log and its completions (RDMAP local, 0)";
        let local = Terminate::new(0, 0, 0);
        assert_eq!(text(EndReason::TerminateSent(local)), format!("this end {failed}"));
        let received = text(EndReason::TerminateReceived(local));
        assert_eq!(received, format!("the peer reports: it {failed}"));
    }

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
