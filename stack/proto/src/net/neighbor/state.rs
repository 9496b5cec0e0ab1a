//! What is known of a neighbour, and the one table that changes it (RFC 4861 section 7.3 and
//! appendix C; ARP follows the same).

/// What is known of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NudState {
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
    PacketToSend,
    /// The state's time is up, and questions are left.
    Timeout,
    /// The state's time is up, and no question is left.
    SolicitsExhausted,
    /// What was sent to its address arrived (RFC 4861 section 7.3.1).
    Confirmed,
    /// What was sent to its address seems not to arrive.
    Suspect,
    /// It said where it is.
    Advert(AdvertInfo),
}

/// How a neighbour said where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AdvertInfo {
    /// In answer to a question of ours.
    pub(super) solicited: bool,
    /// Meant to replace what we know (the O flag; ARP always means that).
    pub(super) overrides: bool,
    /// What it says against what we know.
    pub(super) lladdr: Lladdr,
}

/// An address against the one that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lladdr {
    /// It is the one.
    Same,
    /// It is another.
    Other,
    /// None was said.
    Absent,
}

/// What becomes of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transition {
    pub(super) state: NudState,
    /// The address that was told is believed.
    pub(super) updates_lladdr: bool,
}

impl NudState {
    /// The table; `None`: the event means nothing in this state.
    pub(super) const fn on_event(self, event: Event) -> Option<Transition> {
        use NudState::{Delay, Failed, Incomplete, Probe, Reachable, Stale};
        let state = match (self, event) {
            (Failed, Event::PacketToSend) => Incomplete,
            (Stale, Event::PacketToSend) => Delay,
            (Reachable, Event::Timeout) => Stale,
            (Delay, Event::Timeout) => Probe,
            (Incomplete | Probe, Event::Timeout) => self,
            // Everybody is asked before it is given up (RFC 7048 section 3).
            (Probe, Event::SolicitsExhausted) => Incomplete,
            (Incomplete, Event::SolicitsExhausted) => Failed,
            (Reachable | Stale | Delay | Probe, Event::Confirmed) => Reachable,
            (Reachable, Event::Suspect) => Delay,
            (_, Event::Advert(advert)) => return self.on_advert(advert),
            _ => return None,
        };
        Some(Transition { state, updates_lladdr: false })
    }

    /// RFC 4861 section 7.2.5.
    const fn on_advert(self, advert: AdvertInfo) -> Option<Transition> {
        let updates_lladdr = matches!(advert.lladdr, Lladdr::Other);
        if matches!(self, Self::Incomplete | Self::Failed) {
            // Only what is said counts, and it must be said.
            let state = if advert.solicited { Self::Reachable } else { Self::Stale };
            return if matches!(advert.lladdr, Lladdr::Absent) {
                None
            } else {
                Some(Transition { state, updates_lladdr: true })
            };
        }
        if updates_lladdr && !advert.overrides {
            // Somebody else claims the address: find out before the next frame but five seconds.
            let doubts = matches!(self, Self::Reachable);
            return if doubts {
                Some(Transition { state: Self::Stale, updates_lladdr: false })
            } else {
                None
            };
        }
        if advert.solicited {
            return Some(Transition { state: Self::Reachable, updates_lladdr });
        }
        if updates_lladdr {
            return Some(Transition { state: Self::Stale, updates_lladdr });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [NudState; 6] = [
        NudState::Incomplete,
        NudState::Reachable,
        NudState::Stale,
        NudState::Delay,
        NudState::Probe,
        NudState::Failed,
    ];

    /// Every event with the name it has in the table.
    fn events() -> Vec<(String, Event)> {
        let mut events: Vec<(String, Event)> = [
            Event::PacketToSend,
            Event::Timeout,
            Event::SolicitsExhausted,
            Event::Confirmed,
            Event::Suspect,
        ]
        .map(|event| (format!("{event:?}"), event))
        .into();
        for solicited in [true, false] {
            for overrides in [true, false] {
                for address in [Lladdr::Same, Lladdr::Other, Lladdr::Absent] {
                    let name = format!(
                        "{}{}{address:?}",
                        if solicited { "solicited " } else { "" },
                        if overrides { "override " } else { "" }
                    );
                    events.push((
                        name,
                        Event::Advert(AdvertInfo { solicited, overrides, lladdr: address }),
                    ));
                }
            }
        }
        events
    }

    /// The whole table, a star where the address is taken; a change of it has to be made here,
    /// too.
    const TABLE: &str = "\
Incomplete + Timeout = Incomplete
Incomplete + SolicitsExhausted = Failed
Incomplete + solicited override Same = Reachable *
Incomplete + solicited override Other = Reachable *
Incomplete + solicited Same = Reachable *
Incomplete + solicited Other = Reachable *
Incomplete + override Same = Stale *
Incomplete + override Other = Stale *
Incomplete + Same = Stale *
Incomplete + Other = Stale *
Reachable + Timeout = Stale
Reachable + Confirmed = Reachable
Reachable + Suspect = Delay
Reachable + solicited override Same = Reachable
Reachable + solicited override Other = Reachable *
Reachable + solicited override Absent = Reachable
Reachable + solicited Same = Reachable
Reachable + solicited Other = Stale
Reachable + solicited Absent = Reachable
Reachable + override Other = Stale *
Reachable + Other = Stale
Stale + PacketToSend = Delay
Stale + Confirmed = Reachable
Stale + solicited override Same = Reachable
Stale + solicited override Other = Reachable *
Stale + solicited override Absent = Reachable
Stale + solicited Same = Reachable
Stale + solicited Absent = Reachable
Stale + override Other = Stale *
Delay + Timeout = Probe
Delay + Confirmed = Reachable
Delay + solicited override Same = Reachable
Delay + solicited override Other = Reachable *
Delay + solicited override Absent = Reachable
Delay + solicited Same = Reachable
Delay + solicited Absent = Reachable
Delay + override Other = Stale *
Probe + Timeout = Probe
Probe + SolicitsExhausted = Incomplete
Probe + Confirmed = Reachable
Probe + solicited override Same = Reachable
Probe + solicited override Other = Reachable *
Probe + solicited override Absent = Reachable
Probe + solicited Same = Reachable
Probe + solicited Absent = Reachable
Probe + override Other = Stale *
Failed + PacketToSend = Incomplete
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
    fn transition_table_matches_rfc_4861() {
        let mut table = String::new();
        for state in STATES {
            for (name, event) in events() {
                if let Some(Transition { state: next, updates_lladdr: takes_address }) =
                    state.on_event(event)
                {
                    let star = if takes_address { " *" } else { "" };
                    table += &format!("{state:?} + {name} = {next:?}{star}\n");
                }
            }
        }
        assert_eq!(table, TABLE);
    }
}
