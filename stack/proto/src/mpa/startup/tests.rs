//! Negotiation between an initiator and a responder.

use super::*;
use crate::state_machine::Machine;

const OFFER: Offer = Offer {
    ird: 8,
    ird_max: READ_DEPTH_MAX,
    ord: 8,
    crc: true,
    markers: false,
    peer_to_peer: false,
    rtr: RtrKinds::ALL,
    rdmap_draft00: false,
};
const NO_DATA: PrivateData = PrivateData::new();
const NONE: RtrKinds = RtrKinds { send: false, write: false, read: false };

/// IRD and ORD of the result.
const fn reads(negotiated: &Negotiated) -> (u16, u16) {
    (negotiated.ird, negotiated.ord)
}

#[test]
fn revision_2_negotiates_ird_and_ord_both_ways() {
    let asks = Offer { ird: 4, ord: 20, crc: false, ..OFFER };
    let request = build_request(asks, 2, (*b"hello").into());
    let (reply, responder) = accept(&request, OFFER, NO_DATA);
    assert_eq!((reads(&responder), responder.crc), ((20, 4), true));
    let initiator = process_reply(&reply, asks, 2).unwrap();
    assert_eq!((reads(&initiator), initiator.crc), ((4, 20), true));
    assert!(initiator.ord <= responder.ird && responder.ord <= initiator.ird);
}

#[test]
fn crc_is_used_if_either_peer_asks() {
    for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        let asks = Offer { crc: ours, ..OFFER };
        let (reply, responder) =
            accept(&build_request(asks, 1, NO_DATA), Offer { crc: theirs, ..OFFER }, NO_DATA);
        assert_eq!(responder.crc, ours || theirs);
        assert_eq!(process_reply(&reply, asks, 1).unwrap().crc, ours || theirs);
    }
}

#[test]
fn each_receiver_gets_markers_only_if_it_asks() {
    for revision in [1, 2] {
        for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
            let asks = Offer { markers: ours, ..OFFER };
            let request = build_request(asks, revision, NO_DATA);
            assert_eq!(request.markers, ours);
            let (reply, responder) = accept(&request, Offer { markers: theirs, ..OFFER }, NO_DATA);
            assert_eq!(reply.markers, theirs);
            assert_eq!((responder.markers_in, responder.markers_out), (theirs, ours));
            let initiator = process_reply(&reply, asks, revision).unwrap();
            assert_eq!((initiator.markers_in, initiator.markers_out), (ours, theirs));
        }
    }
}

#[test]
fn ird_ord_not_negotiated_is_echoed_and_keeps_local_values() {
    let mut request = build_request(OFFER, 2, NO_DATA);
    request.enhanced =
        Some(Enhanced { ird: NOT_NEGOTIATED, ord: NOT_NEGOTIATED, ..Enhanced::default() });
    let (reply, negotiated) = accept(&request, Offer { ird: 3, ord: 5, ..OFFER }, NO_DATA);
    let enhanced = reply.enhanced.unwrap();
    assert_eq!((enhanced.ird, enhanced.ord), (NOT_NEGOTIATED, NOT_NEGOTIATED));
    assert_eq!(reads(&negotiated), (3, 5));
    // IRD and ORD independently of each other.
    request.enhanced = Some(Enhanced { ird: NOT_NEGOTIATED, ord: 6, ..Enhanced::default() });
    let (reply, negotiated) = accept(&request, Offer { ird: 3, ord: 5, ..OFFER }, NO_DATA);
    let enhanced = reply.enhanced.unwrap();
    assert_eq!((enhanced.ird, enhanced.ord, reads(&negotiated)), (6, NOT_NEGOTIATED, (6, 5)));
    assert_eq!(reads(&process_reply(&reply, OFFER, 2).unwrap()), (8, 6));
}

#[test]
fn revision_mismatch_is_an_error() {
    // The revision of the request, and the responder's check.
    for (revision, expected) in
        [(0, Ok(())), (1, Ok(())), (2, Ok(())), (3, Err(NegotiationError::UnsupportedRevision))]
    {
        let frame = Startup { revision, ..build_request(OFFER, revision.min(2), NO_DATA) };
        assert_eq!(check_request(&frame), expected, "revision {revision}");
    }
    // Revision 0 requires markers and CRCs.
    for (markers, crc) in [(false, true), (true, false)] {
        let frame = Startup { markers, crc, ..build_request(OFFER, 0, NO_DATA) };
        assert_eq!(check_request(&frame), Err(NegotiationError::UnsupportedRevision));
    }
    // The reply to each revision.
    for asked in [0, 1, 2] {
        let (reply, responder) = accept(&build_request(OFFER, asked, NO_DATA), OFFER, NO_DATA);
        assert_eq!(reply.revision, asked);
        let initiator = process_reply(&reply, OFFER, asked).unwrap();
        assert_eq!(initiator.version, responder.version);
        let old = asked == 0;
        assert_eq!(initiator.version, if old { Version::Rdmac } else { Version::Ietf });
        assert_eq!((initiator.markers_in, initiator.markers_out), (old, old));
        assert!(initiator.crc && responder.crc);
        for answered in (0..=3).filter(|answered| *answered != asked) {
            let reply = Startup { revision: answered, ..reply.clone() };
            let outcome = process_reply(&reply, OFFER, asked);
            assert_eq!(
                outcome.map(|_| ()),
                Err(NegotiationError::ReplyMismatch),
                "{asked} {answered}"
            );
        }
    }
    // A responder of the RDMA Consortium is identified by revision 0 and flag M. Without M its
    // reply is invalid, whatever the request: its streams always have markers.
    for asked in [0, 1] {
        let (reply, _) = accept(&build_request(OFFER, asked, NO_DATA), OFFER, NO_DATA);
        let reply = Startup { revision: 0, markers: false, ..reply };
        assert_eq!(
            process_reply(&reply, OFFER, asked),
            Err(NegotiationError::ReplyMismatch),
            "{asked}"
        );
    }
    let (reply, _) = accept(&build_request(OFFER, 1, NO_DATA), OFFER, NO_DATA);
    let reply = Startup { revision: 0, markers: true, ..reply };
    assert_eq!(process_reply(&reply, OFFER, 1), Ok(Negotiated::rdmac(OFFER)));
    // The revision in the reject of its request.
    assert_eq!(
        reject(&build_request(OFFER, 0, NO_DATA), ReadDepths::default(), NO_DATA).revision,
        1
    );
}

#[test]
fn reply_flag_s_must_match_request() {
    let (mut reply, _) = accept(&build_request(OFFER, 2, NO_DATA), OFFER, NO_DATA);
    assert_eq!(process_reply(&reply, OFFER, 1), Err(NegotiationError::ReplyMismatch));
    reply.enhanced = None;
    assert_eq!(process_reply(&reply, OFFER, 2), Err(NegotiationError::ReplyMismatch));
    let rejected = |revision| {
        reject(&build_request(OFFER, revision, NO_DATA), ReadDepths { ird: 3, ord: 200 }, NO_DATA)
            .enhanced
    };
    assert_eq!(rejected(2), Some(Enhanced { ird: 3, ord: 128, ..Enhanced::default() }));
    assert_eq!(rejected(1), None);
}

#[test]
fn responder_ord_above_ird_limit_is_refused() {
    let (mut reply, _) = accept(&build_request(OFFER, 2, NO_DATA), OFFER, NO_DATA);
    let block = reply.enhanced.as_mut().unwrap();
    block.ord = READ_DEPTH_MAX + 1;
    assert_eq!(process_reply(&reply, OFFER, 2), Err(NegotiationError::InsufficientIrd));
    reply.enhanced.as_mut().unwrap().ord = READ_DEPTH_MAX;
    assert_eq!(process_reply(&reply, OFFER, 2).unwrap().ird, READ_DEPTH_MAX);
}

// req-test: RDMAP-287
#[test]
fn ird_is_limited_by_application() {
    // `ird` and `ird_max`; the IRD of a responder for an ORD of 16; and whether an initiator
    // accepts a responder's ORD of 16.
    for (ird, ird_max, served, takes) in [
        (0, 0, 0, false),
        (0, READ_DEPTH_MAX, 0, false),
        (1, 0, 1, false),
        (4, 8, 8, false),
        (4, 16, 16, true),
        (32, 8, 32, true),
        (1, u16::MAX, 16, true),
    ] {
        let offer = Offer { ird, ird_max, ..OFFER };
        let asks = Offer { ord: 16, ..OFFER };
        let (reply, negotiated) = accept(&build_request(asks, 2, NO_DATA), offer, NO_DATA);
        assert_eq!(
            (negotiated.ird, reply.enhanced.unwrap().ird),
            (served, served),
            "{ird} {ird_max}"
        );
        let (mut reply, _) = accept(&build_request(offer, 2, NO_DATA), OFFER, NO_DATA);
        reply.enhanced.as_mut().unwrap().ord = 16;
        match process_reply(&reply, offer, 2) {
            Ok(negotiated) => assert!(takes && negotiated.ird == ird.max(16)),
            Err(error) => assert_eq!((error, takes), (NegotiationError::InsufficientIrd, false)),
        }
    }
}

#[test]
fn rtr_read_is_accepted_only_with_nonzero_ird() {
    for (ird, ord) in [(0, 0), (0, NOT_NEGOTIATED), (1, 0), (1, NOT_NEGOTIATED)] {
        let offer = Offer { ird, ord: 0, ..OFFER };
        let rtr = Enhanced { peer_to_peer: true, rtr_read: true, ord, ..Enhanced::default() };
        let frame = Startup { enhanced: Some(rtr), ..build_request(OFFER, 2, NO_DATA) };
        let (reply, negotiated) = accept(&frame, offer, NO_DATA);
        let named = RtrKinds::from_enhanced(&reply.enhanced.unwrap());
        assert_eq!((named.read, negotiated.ird), (ird > 0, ird));
        assert!(named.read || (named.send && named.write), "the revision it supports");
    }
}

/// All sets of RTR types.
fn all_rtr_kinds() -> impl Iterator<Item = RtrKinds> {
    (0..8).map(|bits| RtrKinds { send: bits & 1 != 0, write: bits & 2 != 0, read: bits & 4 != 0 })
}

#[test]
fn peer_to_peer_selects_a_common_rtr() {
    for ours in all_rtr_kinds().filter(|kinds| *kinds != NONE) {
        for theirs in all_rtr_kinds().filter(|kinds| *kinds != NONE) {
            let asks = Offer { peer_to_peer: true, rtr: ours, ..OFFER };
            let request = build_request(asks, 2, NO_DATA);
            let block = request.enhanced.unwrap();
            assert!(block.peer_to_peer && RtrKinds::from_enhanced(&block) == ours);
            let (reply, responder) = accept(&request, Offer { rtr: theirs, ..OFFER }, NO_DATA);
            let enhanced = reply.enhanced.unwrap();
            assert!(enhanced.peer_to_peer, "flag A is echoed");
            let named = RtrKinds::from_enhanced(&enhanced);
            assert_ne!(named, NONE);
            let common = ours.intersection(theirs);
            assert_eq!(named, if common == NONE { theirs } else { common });
            assert_eq!(responder.rtr_send_expected, common.send);
            match process_reply(&reply, asks, 2) {
                Ok(negotiated) => {
                    let is_common = match negotiated.rtr.unwrap() {
                        Rtr::Send => common.send,
                        Rtr::Write => common.write,
                        Rtr::Read => common.read,
                    };
                    assert!(is_common, "{ours:?} {theirs:?}");
                }
                Err(error) => assert_eq!((error, common), (NegotiationError::NoMatchingRtr, NONE)),
            }
        }
    }
}

#[test]
fn reply_without_flag_a_is_the_client_server_model() {
    let asks = Offer { peer_to_peer: true, ..OFFER };
    let (mut reply, _) = accept(&build_request(asks, 2, NO_DATA), OFFER, NO_DATA);
    reply.enhanced.as_mut().unwrap().peer_to_peer = false;
    assert_eq!(process_reply(&reply, asks, 2).unwrap().rtr, None);
}

#[test]
fn rtr_flags_are_ignored_without_flag_a() {
    let frame = build_request(OFFER, 2, NO_DATA);
    let block = frame.enhanced.unwrap();
    assert!(!block.peer_to_peer && RtrKinds::from_enhanced(&block) == NONE);
    let stray = Enhanced { rtr_send: true, rtr_read: true, ird: 4, ord: 4, ..Enhanced::default() };
    let (reply, negotiated) = accept(&Startup { enhanced: Some(stray), ..frame }, OFFER, NO_DATA);
    let enhanced = reply.enhanced.unwrap();
    assert!(
        !enhanced.peer_to_peer
            && RtrKinds::from_enhanced(&enhanced) == NONE
            && !negotiated.rtr_send_expected
    );
    let stray = Startup { enhanced: Some(Enhanced { ird: 8, ord: 8, ..stray }), ..reply };
    assert_eq!(process_reply(&stray, OFFER, 2).unwrap().rtr, None);
}

// The snapshot is `docs/state-machines.md`.
#[test]
fn transition_table_is_as_listed() {
    Machine {
        title: "MPA startup",
        initial: &[StartupState::Frames],
        states: &[
            StartupState::Frames,
            StartupState::AwaitFirstFpdu,
            StartupState::AwaitRtr,
            StartupState::Complete,
        ],
        events: &[
            StartupEvent::Reply,
            StartupEvent::Accept,
            StartupEvent::AcceptWithRtr,
            StartupEvent::Fpdu,
        ],
        after: StartupState::after,
    }
    .check();
}
