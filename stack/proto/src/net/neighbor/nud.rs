//! Neighbor unreachability detection: the states and their transition table (RFC 4861 section 7.3
//! and appendix C; the same for ARP).

/// State of a neighbor cache entry (RFC 4861 section 7.3.2; `Failed` as in Linux).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NudState {
    /// Address resolution is in progress: solicitations are sent by multicast or broadcast.
    Incomplete,
    /// The neighbor is known to have been reachable recently.
    Reachable,
    /// The neighbor is no longer known to be reachable; verified only once packets are sent to it.
    Stale,
    /// As `Stale`, and packets are sent: waits for an upper-layer confirmation before probing.
    Delay,
    /// No confirmation arrived: unicast solicitations are sent.
    Probe,
    /// No solicitation was answered. Resolution is not repeated during the hold-down time.
    Failed,
}

/// Event of the state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A packet is about to be sent to the neighbor.
    PacketToSend,
    /// The timer of the state expired, and solicitations are left.
    Timeout,
    /// The timer of the state expired after the last solicitation.
    SolicitsExhausted,
    /// Reachability confirmation by the upper layer (RFC 4861 section 7.3.1).
    Confirmed,
    /// Packets sent to the neighbor are not acknowledged.
    Suspect,
    /// An advertisement arrived.
    Advert(AdvertInfo),
}

/// Advertisement, as far as the transition table needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AdvertInfo {
    /// Answer to an outstanding solicitation.
    pub(super) solicited: bool,
    /// Override flag: replaces a known link-layer address; always set for ARP.
    pub(super) overrides: bool,
    /// Advertised link-layer address compared with the cached one.
    pub(super) lladdr: Lladdr,
}

/// Advertised link-layer address compared with the cached one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lladdr {
    /// The same.
    Same,
    /// Another one.
    Other,
    /// The advertisement has no link-layer address.
    Absent,
}

/// Result of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transition {
    pub(super) state: NudState,
    /// The advertised link-layer address is stored.
    pub(super) updates_lladdr: bool,
}

impl NudState {
    /// Transition table; `None`: the event is ignored in this state.
    pub(super) const fn on_event(self, event: Event) -> Option<Transition> {
        use NudState::{Delay, Failed, Incomplete, Probe, Reachable, Stale};
        let state = match (self, event) {
            (Failed, Event::PacketToSend) => Incomplete,
            (Stale, Event::PacketToSend) => Delay,
            (Reachable, Event::Timeout) => Stale,
            (Delay, Event::Timeout) => Probe,
            (Incomplete | Probe, Event::Timeout) => self,
            // Multicast solicitations before the entry fails (RFC 7048 section 3).
            (Probe, Event::SolicitsExhausted) => Incomplete,
            (Incomplete, Event::SolicitsExhausted) => Failed,
            (Reachable | Stale | Delay | Probe, Event::Confirmed) => Reachable,
            (Reachable, Event::Suspect) => Delay,
            (_, Event::Advert(advert)) => return self.on_advert(advert),
            _ => return None,
        };
        Some(Transition { state, updates_lladdr: false })
    }

    /// Transitions on an advertisement (RFC 4861 section 7.2.5).
    const fn on_advert(self, advert: AdvertInfo) -> Option<Transition> {
        let updates_lladdr = matches!(advert.lladdr, Lladdr::Other);
        if matches!(self, Self::Incomplete | Self::Failed) {
            // No address is cached: without one in the advertisement that is ignored.
            let state = if advert.solicited { Self::Reachable } else { Self::Stale };
            return if matches!(advert.lladdr, Lladdr::Absent) {
                None
            } else {
                Some(Transition { state, updates_lladdr: true })
            };
        }
        if updates_lladdr && !advert.overrides {
            // Another address without the O flag: the cached one is kept, and is probed
            // DELAY_FIRST_PROBE_TIME after the next packet.
            let is_reachable = matches!(self, Self::Reachable);
            return if is_reachable {
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

    /// All events, with their names in `TABLE`.
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

    /// Expected transitions; `*`: the advertised address is stored.
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
