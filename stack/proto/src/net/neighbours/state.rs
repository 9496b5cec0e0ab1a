//! What is known of a neighbour, and the one table that changes it (RFC 4861 section 7.3 and
//! appendix C; ARP follows the same).

/// What is known of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its address is asked of everybody.
    Incomplete,
    /// Frames to its address arrived not long ago.
    Reachable,
    /// It has an address, of which nothing was heard for a while.
    Stale,
    /// The same, and frames go there: signs of arrival are waited for before anybody is asked.
    Delay,
    /// No sign came: it is asked at its address.
    Probe,
    /// Nobody answered. It is not asked again for a while.
    Failed,
}

/// Something that happens to a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A frame goes to it.
    Used,
    /// The state's time is up, and questions are left.
    TimeUp,
    /// The state's time is up, and no question is left.
    NoAnswer,
    /// What was sent to its address arrived (RFC 4861 section 7.3.1).
    Progress,
    /// What was sent to its address seems not to arrive.
    Doubt,
    /// It said where it is.
    Told(Told),
}

/// How a neighbour said where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told {
    /// In answer to a question of ours.
    pub(super) solicited: bool,
    /// Meant to replace what we know (the O flag; ARP always means that).
    pub(super) overrides: bool,
    /// What it says against what we know.
    pub(super) address: Address,
}

/// An address against the one that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// It is the one.
    Same,
    /// It is another.
    Other,
    /// None was said.
    Absent,
}

/// What becomes of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) state: State,
    /// The address that was told is believed.
    pub(super) takes_address: bool,
}

impl State {
    /// The table; `None`: the event means nothing in this state.
    pub(super) const fn after(self, event: Event) -> Option<Outcome> {
        use State::{Delay, Failed, Incomplete, Probe, Reachable, Stale};
        let state = match (self, event) {
            (Failed, Event::Used) => Incomplete,
            (Stale, Event::Used) => Delay,
            (Reachable, Event::TimeUp) => Stale,
            (Delay, Event::TimeUp) => Probe,
            (Incomplete | Probe, Event::TimeUp) => self,
            // Everybody is asked before it is given up (RFC 7048 section 3).
            (Probe, Event::NoAnswer) => Incomplete,
            (Incomplete, Event::NoAnswer) => Failed,
            (Reachable | Stale | Delay | Probe, Event::Progress) => Reachable,
            (Reachable, Event::Doubt) => Delay,
            (_, Event::Told(told)) => return self.told(told),
            _ => return None,
        };
        Some(Outcome { state, takes_address: false })
    }

    /// RFC 4861 section 7.2.5.
    const fn told(self, told: Told) -> Option<Outcome> {
        let takes_address = matches!(told.address, Address::Other);
        if matches!(self, Self::Incomplete | Self::Failed) {
            // Only what is said counts, and it must be said.
            let state = if told.solicited { Self::Reachable } else { Self::Stale };
            return if matches!(told.address, Address::Absent) {
                None
            } else {
                Some(Outcome { state, takes_address: true })
            };
        }
        if takes_address && !told.overrides {
            // Somebody else claims the address: find out before the next frame but five seconds.
            let doubts = matches!(self, Self::Reachable);
            return if doubts {
                Some(Outcome { state: Self::Stale, takes_address: false })
            } else {
                None
            };
        }
        if told.solicited {
            return Some(Outcome { state: Self::Reachable, takes_address });
        }
        if takes_address {
            return Some(Outcome { state: Self::Stale, takes_address });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [State; 6] = [
        State::Incomplete,
        State::Reachable,
        State::Stale,
        State::Delay,
        State::Probe,
        State::Failed,
    ];

    /// Every event with the name it has in the table.
    fn events() -> Vec<(String, Event)> {
        let mut events: Vec<(String, Event)> =
            [Event::Used, Event::TimeUp, Event::NoAnswer, Event::Progress, Event::Doubt]
                .map(|event| (format!("{event:?}"), event))
                .into();
        for solicited in [true, false] {
            for overrides in [true, false] {
                for address in [Address::Same, Address::Other, Address::Absent] {
                    let name = format!(
                        "{}{}{address:?}",
                        if solicited { "solicited " } else { "" },
                        if overrides { "override " } else { "" }
                    );
                    events.push((name, Event::Told(Told { solicited, overrides, address })));
                }
            }
        }
        events
    }

    /// The whole table, a star where the address is taken; a change of it has to be made here,
    /// too.
    const TABLE: &str = "\
Incomplete + TimeUp = Incomplete
Incomplete + NoAnswer = Failed
Incomplete + solicited override Same = Reachable *
Incomplete + solicited override Other = Reachable *
Incomplete + solicited Same = Reachable *
Incomplete + solicited Other = Reachable *
Incomplete + override Same = Stale *
Incomplete + override Other = Stale *
Incomplete + Same = Stale *
Incomplete + Other = Stale *
Reachable + TimeUp = Stale
Reachable + Progress = Reachable
Reachable + Doubt = Delay
Reachable + solicited override Same = Reachable
Reachable + solicited override Other = Reachable *
Reachable + solicited override Absent = Reachable
Reachable + solicited Same = Reachable
Reachable + solicited Other = Stale
Reachable + solicited Absent = Reachable
Reachable + override Other = Stale *
Reachable + Other = Stale
Stale + Used = Delay
Stale + Progress = Reachable
Stale + solicited override Same = Reachable
Stale + solicited override Other = Reachable *
Stale + solicited override Absent = Reachable
Stale + solicited Same = Reachable
Stale + solicited Absent = Reachable
Stale + override Other = Stale *
Delay + TimeUp = Probe
Delay + Progress = Reachable
Delay + solicited override Same = Reachable
Delay + solicited override Other = Reachable *
Delay + solicited override Absent = Reachable
Delay + solicited Same = Reachable
Delay + solicited Absent = Reachable
Delay + override Other = Stale *
Probe + TimeUp = Probe
Probe + NoAnswer = Incomplete
Probe + Progress = Reachable
Probe + solicited override Same = Reachable
Probe + solicited override Other = Reachable *
Probe + solicited override Absent = Reachable
Probe + solicited Same = Reachable
Probe + solicited Absent = Reachable
Probe + override Other = Stale *
Failed + Used = Incomplete
Failed + solicited override Same = Reachable *
Failed + solicited override Other = Reachable *
Failed + solicited Same = Reachable *
Failed + solicited Other = Reachable *
Failed + override Same = Stale *
Failed + override Other = Stale *
Failed + Same = Stale *
Failed + Other = Stale *
";

    #[test]
    fn the_table() {
        let mut table = String::new();
        for state in STATES {
            for (name, event) in events() {
                if let Some(Outcome { state: next, takes_address }) = state.after(event) {
                    let star = if takes_address { " *" } else { "" };
                    table += &format!("{state:?} + {name} = {next:?}{star}\n");
                }
            }
        }
        assert_eq!(table, TABLE);
    }
}
