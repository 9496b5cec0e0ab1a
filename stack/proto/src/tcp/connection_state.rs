//! Connection states and their transition table (RFC 9293 section 3.3.2).

/// Connection state (RFC 9293 section 3.3.2). LISTEN is not included, as it has no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// No connection.
    Closed,
    /// Our SYN was sent.
    SynSent,
    /// A SYN was received, our SYN-ACK sent.
    SynReceived,
    /// Both directions are open.
    Established,
    /// We closed; our FIN is not acknowledged.
    FinWait1,
    /// We closed; our FIN is acknowledged, the peer may still send.
    FinWait2,
    /// The peer closed; we may still send.
    CloseWait,
    /// Both closed at once; our FIN is not acknowledged.
    Closing,
    /// The peer closed, then we did; our FIN is not acknowledged.
    LastAck,
    /// Both directions are closed; a retransmitted FIN of the peer is still acknowledged.
    TimeWait,
}

/// Event that may change the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateEvent {
    /// Acceptable SYN that does not acknowledge ours (simultaneous open).
    Syn,
    /// Acceptable SYN that acknowledges ours.
    SynAck,
    /// Our SYN was acknowledged by a segment without SYN.
    SynAcked,
    /// `close` was called. In SYN-RECEIVED it is delayed until the handshake is complete, so that a
    /// FIN is never in flight together with our SYN.
    Close,
    /// The peer's FIN, with everything before it received.
    Fin,
    /// Our FIN was acknowledged.
    FinAcked,
    /// TIME-WAIT is over.
    TimeWaitOver,
    /// Reset by either side, timed out, or aborted.
    Kill,
}

impl State {
    /// Returns the state after `event`, or `None` if the event does not apply.
    pub(super) const fn after(self, event: StateEvent) -> Option<Self> {
        use State::*;
        Some(match (self, event) {
            (Closed, _) => return None,
            (_, StateEvent::Kill) => Closed,
            (SynSent, StateEvent::Syn) => SynReceived,
            (SynSent, StateEvent::SynAck) => Established,
            (SynSent, StateEvent::Close) => Closed,
            (SynReceived, StateEvent::SynAcked) => Established,
            (Established, StateEvent::Close) => FinWait1,
            (Established, StateEvent::Fin) => CloseWait,
            (FinWait1, StateEvent::FinAcked) => FinWait2,
            (FinWait1, StateEvent::Fin) => Closing,
            (FinWait2, StateEvent::Fin) => TimeWait,
            (CloseWait, StateEvent::Close) => LastAck,
            (Closing, StateEvent::FinAcked) => TimeWait,
            (LastAck, StateEvent::FinAcked) => Closed,
            (TimeWait, StateEvent::TimeWaitOver) => Closed,
            _ => return None,
        })
    }

    /// True in the synchronized states: both SYNs are acknowledged, and the state is not CLOSED.
    #[must_use]
    pub const fn is_synchronized(self) -> bool {
        !matches!(self, Self::Closed | Self::SynSent | Self::SynReceived)
    }

    /// True in the synchronized states in which the peer's FIN was not received.
    pub(super) const fn can_receive(self) -> bool {
        matches!(self, Self::Established | Self::FinWait1 | Self::FinWait2)
    }

    /// True while bytes of ours may be outstanding or unsent.
    pub(super) const fn can_send(self) -> bool {
        matches!(
            self,
            Self::Established | Self::CloseWait | Self::FinWait1 | Self::Closing | Self::LastAck
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{State, StateEvent};
    use crate::state_machine::Machine;

    const STATES: [State; 10] = [
        State::Closed,
        State::SynSent,
        State::SynReceived,
        State::Established,
        State::FinWait1,
        State::FinWait2,
        State::CloseWait,
        State::Closing,
        State::LastAck,
        State::TimeWait,
    ];
    const EVENTS: [StateEvent; 8] = [
        StateEvent::Syn,
        StateEvent::SynAck,
        StateEvent::SynAcked,
        StateEvent::Close,
        StateEvent::Fin,
        StateEvent::FinAcked,
        StateEvent::TimeWaitOver,
        StateEvent::Kill,
    ];

    // The snapshot is `docs/state-machines.md`.
    #[test]
    fn transition_table_is_as_listed() {
        Machine {
            title: "TCP",
            initial: &[State::SynSent, State::SynReceived],
            states: &STATES,
            events: &EVENTS,
            after: State::after,
        }
        .check();
    }
}
