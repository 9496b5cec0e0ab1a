//! The connection states and the one table that moves between them (RFC 9293 section 3.3.2).

/// Connection state (RFC 9293 section 3.3.2). LISTEN has no connection and is not here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// No connection any more.
    Closed,
    /// Our SYN is out.
    SynSent,
    /// A SYN came in, our SYN-ACK is out.
    SynReceived,
    /// Both directions open.
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
    /// All done; stays to answer a repeated FIN.
    TimeWait,
}

/// What can move a connection to another state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateEvent {
    /// An acceptable SYN without an ACK of ours (simultaneous open).
    Syn,
    /// An acceptable SYN that acknowledges ours.
    SynAck,
    /// Our SYN was acknowledged by a segment without SYN.
    SynAcked,
    /// `close` was called. In SYN-RECEIVED it waits for the end of the handshake, so that a FIN
    /// never shares the flight with our SYN.
    Close,
    /// The peer's FIN, everything before it received.
    Fin,
    /// Our FIN was acknowledged.
    FinAcked,
    /// TIME-WAIT is over.
    TimeWaitOver,
    /// Reset by either side, timed out, or aborted.
    Kill,
}

impl State {
    /// The state after `event`, or `None` where the event means nothing.
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

    /// True once both SYNs are acknowledged and until the connection is gone.
    #[must_use]
    pub const fn is_synchronised(self) -> bool {
        !matches!(self, Self::Closed | Self::SynSent | Self::SynReceived)
    }

    /// True while the peer has not sent its FIN, as far as we know.
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
    /// The whole table; a change of it has to be made here, too.
    const TABLE: &str = "\
SynSent + Syn = SynReceived
SynSent + SynAck = Established
SynSent + Close = Closed
SynSent + Kill = Closed
SynReceived + SynAcked = Established
SynReceived + Kill = Closed
Established + Close = FinWait1
Established + Fin = CloseWait
Established + Kill = Closed
FinWait1 + Fin = Closing
FinWait1 + FinAcked = FinWait2
FinWait1 + Kill = Closed
FinWait2 + Fin = TimeWait
FinWait2 + Kill = Closed
CloseWait + Close = LastAck
CloseWait + Kill = Closed
Closing + FinAcked = TimeWait
Closing + Kill = Closed
LastAck + FinAcked = Closed
LastAck + Kill = Closed
TimeWait + TimeWaitOver = Closed
TimeWait + Kill = Closed
";

    #[test]
    fn transition_table_is_as_listed() {
        let mut table = String::new();
        for state in STATES {
            for event in EVENTS {
                if let Some(next) = state.after(event) {
                    table += &format!("{state:?} + {event:?} = {next:?}\n");
                }
            }
        }
        assert_eq!(table, TABLE);
    }
}
