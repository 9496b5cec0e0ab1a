//! Phases of a connection and their transition table: how received stream bytes are interpreted.

use crate::mpa::deframer::Deframer;
use crate::mpa::startup::Offer;
use crate::time::Instant;
use crate::verbs::cm::Start;
use crate::wire::mpa::Startup;

/// Phase of a connection: determines how received stream bytes are interpreted.
///
/// Until startup is complete, bytes after the startup frame are buffered unparsed.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Responder: the MPA Request Frame is incomplete, or waits for the backlog. It is then in
    /// `waiting`, and `startup_rx` has the bytes behind it. `is_unframed`: no such frame comes, and
    /// the connection waits for its handshake alone.
    AwaitRequest { startup_rx: Vec<u8>, waiting: Option<Box<Startup>>, is_unframed: bool },
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

/// State of a responder until the application decides.
#[derive(Debug)]
pub(crate) struct AwaitDecision {
    /// `None`: the connection has no startup frames.
    pub(crate) request: Option<Startup>,
    pub(crate) buffered: Vec<u8>,
    /// The application has taken the request: its decision does not depend on the listener.
    pub(crate) is_taken: bool,
}

/// State of an initiator until the MPA Reply Frame is complete.
#[derive(Debug)]
pub(crate) struct AwaitReply {
    /// Start mode: only with startup frames is there a reply to wait for.
    pub(crate) start: Start,
    pub(crate) ooo_placement: bool,
    pub(crate) offer: Offer,
    pub(crate) revision: u8,
    /// Source ports tried so far, this one included; `u16::MAX` if no other is to be tried.
    pub(crate) source_ports: u16,
    pub(crate) startup_rx: Vec<u8>,
}

/// Event that changes the phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PhaseEvent {
    /// The request is complete, or there is none to wait for: the application decides.
    Offer,
    /// Application data first: accepted, or established, in streaming mode.
    Stream,
    /// FPDUs from now on: accepted, the reply received, or the applications have switched to them.
    Start,
    /// The application rejects the request, and FIN is held back.
    Reject,
    /// The local end has ended the stream, and the peer's Terminate may still come.
    Drain,
    /// The stream has ended.
    End,
}

/// Phase without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PhaseKind {
    AwaitRequest,
    AwaitDecision,
    AwaitReply,
    Streaming,
    Rdma,
    DrainTerminate,
    Rejected,
    Closed,
}

impl PhaseKind {
    /// Returns the phase after `event`, or `None` if the event does not apply.
    const fn after(self, event: PhaseEvent) -> Option<Self> {
        use PhaseKind::*;
        Some(match (self, event) {
            (AwaitRequest, PhaseEvent::Offer) => AwaitDecision,
            (AwaitDecision | AwaitReply, PhaseEvent::Stream) => Streaming,
            (AwaitDecision | AwaitReply | Streaming, PhaseEvent::Start) => Rdma,
            (AwaitDecision, PhaseEvent::Reject) => Rejected,
            (Rdma, PhaseEvent::Drain) => DrainTerminate,
            (_, PhaseEvent::End) => Closed,
            _ => return None,
        })
    }
}

impl Phase {
    const fn kind(&self) -> PhaseKind {
        match self {
            Self::AwaitRequest { .. } => PhaseKind::AwaitRequest,
            Self::AwaitDecision(_) => PhaseKind::AwaitDecision,
            Self::AwaitReply(_) => PhaseKind::AwaitReply,
            Self::Streaming { .. } => PhaseKind::Streaming,
            Self::Rdma { .. } => PhaseKind::Rdma,
            Self::DrainTerminate { .. } => PhaseKind::DrainTerminate,
            Self::Rejected { .. } => PhaseKind::Rejected,
            Self::Closed => PhaseKind::Closed,
        }
    }

    /// Enters `next`, the phase that follows this one after `event`. If the transition table has
    /// another, or none, the phase stays as it is.
    pub(crate) fn enter(&mut self, event: PhaseEvent, next: Self) {
        let is_next = self.kind().after(event) == Some(next.kind());
        debug_assert!(is_next, "{self:?} + {event:?}");
        if is_next {
            *self = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PhaseKind::*;
    use super::{PhaseEvent, PhaseKind};
    use crate::state_machine::Machine;

    const PHASES: [PhaseKind; 8] = [
        AwaitRequest,
        AwaitDecision,
        AwaitReply,
        Streaming,
        Rdma,
        DrainTerminate,
        Rejected,
        Closed,
    ];
    const EVENTS: [PhaseEvent; 6] = [
        PhaseEvent::Offer,
        PhaseEvent::Stream,
        PhaseEvent::Start,
        PhaseEvent::Reject,
        PhaseEvent::Drain,
        PhaseEvent::End,
    ];

    // The snapshot is `docs/state-machines.md`.
    #[test]
    fn transition_table_is_as_listed() {
        Machine {
            title: "Connection",
            initial: &[AwaitRequest, AwaitReply],
            states: &PHASES,
            events: &EVENTS,
            after: PhaseKind::after,
        }
        .check();
    }
}
