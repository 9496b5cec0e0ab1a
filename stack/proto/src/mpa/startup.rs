//! What the two ends agree on in the start-up exchange, and what makes them fail to.

use crate::wire::mpa::{Enhanced, FrameKind, NOT_NEGOTIATED, Startup};

/// Reads that one connection serves or issues at a time, at most.
pub const READ_DEPTH_MAX: u16 = 128;

/// What an end is ready to do.
#[derive(Clone, Copy, Debug)]
pub struct Wishes {
    /// Reads it serves.
    pub ird: u16,
    /// Reads it issues.
    pub ord: u16,
    /// It asks for CRCs.
    pub crc: bool,
}

/// What was agreed, from one end's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Reads this end serves at a time.
    pub ird: u16,
    /// Reads this end issues at a time.
    pub ord: u16,
    /// CRCs are made and checked in both directions.
    pub crc: bool,
}

/// Why a well-formed frame leads to no agreement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disagreement {
    /// A revision that is not served. The connection is closed without a frame.
    Revision,
    /// The peer wants markers, which this end does not send.
    Markers,
    /// The reply's revision or S flag does not answer the request's.
    Mismatch,
}

/// The request of an initiator. `revision` 2 carries IRD and ORD.
#[must_use]
pub fn request(wishes: Wishes, revision: u8, private_data: &[u8]) -> Startup {
    Startup {
        kind: FrameKind::Request,
        markers: false,
        crc: wishes.crc,
        reject: false,
        revision,
        enhanced: (revision >= 2).then_some(Enhanced {
            ird: wishes.ird.min(READ_DEPTH_MAX),
            ord: wishes.ord.min(READ_DEPTH_MAX),
            ..Enhanced::default()
        }),
        private_data: private_data.iter().copied().collect(),
    }
}

/// A responder's look at a request, before its application is asked.
///
/// # Errors
/// [`Disagreement::Revision`] for anything but 1 and 2, [`Disagreement::Markers`].
pub const fn review(request: &Startup) -> Result<(), Disagreement> {
    if request.revision != 1 && request.revision != 2 {
        return Err(Disagreement::Revision);
    }
    if request.markers {
        return Err(Disagreement::Markers);
    }
    Ok(())
}

/// The reply that accepts `request`, and the terms for the responder.
///
/// The responder lowers its ORD to what the initiator serves and raises its IRD to what the
/// initiator issues, within [`READ_DEPTH_MAX`] (RFC 6581 section 9.1).
#[must_use]
pub fn accept(request: &Startup, wishes: Wishes, private_data: &[u8]) -> (Startup, Terms) {
    let crc = request.crc || wishes.crc;
    let mut terms =
        Terms { ird: wishes.ird.min(READ_DEPTH_MAX), ord: wishes.ord.min(READ_DEPTH_MAX), crc };
    let enhanced = request.enhanced.map(|asked| {
        let mut answer = Enhanced::default();
        if asked.peer_to_peer && asked.rtr_read {
            // The ready-to-receive Read takes a place, too (RFC 6581 section 9.1).
            terms.ird = terms.ird.max(1);
        }
        if asked.ird == NOT_NEGOTIATED {
            answer.ord = NOT_NEGOTIATED;
        } else {
            terms.ord = terms.ord.min(asked.ird);
            answer.ord = terms.ord;
        }
        if asked.ord == NOT_NEGOTIATED {
            answer.ird = NOT_NEGOTIATED;
        } else {
            terms.ird = terms.ird.max(asked.ord).min(READ_DEPTH_MAX);
            answer.ird = terms.ird;
        }
        if asked.peer_to_peer {
            // Both kinds of ready-to-receive message are served without a work request. With no
            // overlap the reply still names one (RFC 6581 section 9.2).
            answer.peer_to_peer = true;
            answer.rtr_read = asked.rtr_read;
            answer.rtr_write = asked.rtr_write || !asked.rtr_read;
        }
        answer
    });
    let reply = Startup {
        kind: FrameKind::Reply,
        markers: false,
        crc,
        reject: false,
        revision: request.revision,
        enhanced,
        private_data: private_data.iter().copied().collect(),
    };
    (reply, terms)
}

/// The reply that rejects `request`.
#[must_use]
pub fn reject(request: &Startup, private_data: &[u8]) -> Startup {
    Startup {
        kind: FrameKind::Reply,
        markers: false,
        crc: request.crc,
        reject: true,
        revision: request.revision.clamp(1, 2),
        enhanced: request.enhanced.map(|_| Enhanced::default()),
        private_data: private_data.iter().copied().collect(),
    }
}

/// The terms for the initiator, from an accepting reply.
///
/// # Errors
/// [`Disagreement`].
pub fn conclude(reply: &Startup, wishes: Wishes, revision: u8) -> Result<Terms, Disagreement> {
    if reply.revision != revision || reply.enhanced.is_some() != (revision >= 2) {
        return Err(Disagreement::Mismatch);
    }
    if reply.markers {
        return Err(Disagreement::Markers);
    }
    let mut terms = Terms {
        ird: wishes.ird.min(READ_DEPTH_MAX),
        ord: wishes.ord.min(READ_DEPTH_MAX),
        crc: reply.crc || wishes.crc,
    };
    if let Some(answer) = reply.enhanced {
        if answer.ird != NOT_NEGOTIATED {
            terms.ord = terms.ord.min(answer.ird);
        }
        if answer.ord != NOT_NEGOTIATED {
            terms.ird = terms.ird.max(answer.ord).min(READ_DEPTH_MAX);
        }
    }
    Ok(terms)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WISHES: Wishes = Wishes { ird: 8, ord: 8, crc: true };

    #[test]
    fn revision_2_agrees_on_reads_both_ways() {
        let asks = Wishes { ird: 4, ord: 20, crc: false };
        let request = request(asks, 2, b"hello");
        let (reply, responder) = accept(&request, WISHES, b"");
        assert_eq!(responder, Terms { ird: 20, ord: 4, crc: true });
        let initiator = conclude(&reply, asks, 2).unwrap();
        assert_eq!(initiator, Terms { ird: 4, ord: 20, crc: true });
        assert!(initiator.ord <= responder.ird && responder.ord <= initiator.ird);
    }

    #[test]
    fn one_vote_for_crc_is_enough() {
        for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
            let asks = Wishes { crc: ours, ..WISHES };
            let (reply, responder) =
                accept(&request(asks, 1, b""), Wishes { crc: theirs, ..WISHES }, b"");
            assert_eq!(responder.crc, ours || theirs);
            assert_eq!(conclude(&reply, asks, 1).unwrap().crc, ours || theirs);
        }
    }

    #[test]
    fn not_negotiated_is_answered_in_kind_and_leaves_local_values() {
        let mut request = request(WISHES, 2, b"");
        request.enhanced =
            Some(Enhanced { ird: NOT_NEGOTIATED, ord: NOT_NEGOTIATED, ..Enhanced::default() });
        let (reply, terms) = accept(&request, Wishes { ird: 3, ord: 5, crc: true }, b"");
        let answer = reply.enhanced.unwrap();
        assert_eq!((answer.ird, answer.ord), (NOT_NEGOTIATED, NOT_NEGOTIATED));
        assert_eq!((terms.ird, terms.ord), (3, 5));
    }

    #[test]
    fn what_cannot_be_met_is_named() {
        let mut frame = request(WISHES, 2, b"");
        assert_eq!(review(&frame), Ok(()));
        frame.markers = true;
        assert_eq!(review(&frame), Err(Disagreement::Markers));
        frame.revision = 3;
        assert_eq!(review(&frame), Err(Disagreement::Revision));
        let (mut reply, _) = accept(&request(WISHES, 2, b""), WISHES, b"");
        assert_eq!(conclude(&reply, WISHES, 1), Err(Disagreement::Mismatch));
        reply.enhanced = None;
        assert_eq!(conclude(&reply, WISHES, 2), Err(Disagreement::Mismatch));
    }

    #[test]
    fn a_read_that_says_ready_finds_a_place() {
        let none = Wishes { ird: 0, ord: 0, crc: true };
        let mut frame = request(none, 2, b"");
        for ord in [0, NOT_NEGOTIATED] {
            let p2p = Enhanced { peer_to_peer: true, rtr_read: true, ord, ..Enhanced::default() };
            frame.enhanced = Some(p2p);
            let (reply, terms) = accept(&frame, none, b"");
            assert!(reply.enhanced.unwrap().rtr_read);
            assert_eq!(terms.ird, 1);
        }
    }

    #[test]
    fn peer_to_peer_is_echoed_with_a_common_kind() {
        let mut frame = request(WISHES, 2, b"");
        frame.enhanced = Some(Enhanced {
            peer_to_peer: true,
            rtr_read: true,
            ird: 1,
            ord: 1,
            ..Enhanced::default()
        });
        let answer = accept(&frame, WISHES, b"").0.enhanced.unwrap();
        assert!(answer.peer_to_peer && answer.rtr_read && !answer.rtr_write);
        frame.enhanced =
            Some(Enhanced { peer_to_peer: true, rtr_send: true, ..Enhanced::default() });
        assert!(accept(&frame, WISHES, b"").0.enhanced.unwrap().rtr_write);
    }
}
