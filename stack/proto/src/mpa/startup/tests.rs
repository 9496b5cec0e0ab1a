//! What two ends make of each other's wishes.

use super::*;

const WISHES: Wishes = Wishes {
    ird: 8,
    ird_max: READ_DEPTH_MAX,
    ord: 8,
    crc: true,
    markers: false,
    peer_to_peer: false,
    rtr: RtrKinds::ALL,
    rdmap_draft00: false,
};
const NONE: RtrKinds = RtrKinds { send: false, write: false, read: false };

/// The reads that were agreed: served and issued.
const fn reads(terms: &Terms) -> (u16, u16) {
    (terms.ird, terms.ord)
}

#[test]
fn revision_2_agrees_on_reads_both_ways() {
    let asks = Wishes { ird: 4, ord: 20, crc: false, ..WISHES };
    let request = request(asks, 2, b"hello");
    let (reply, responder) = accept(&request, WISHES, b"");
    assert_eq!((reads(&responder), responder.crc), ((20, 4), true));
    let initiator = conclude(&reply, asks, 2).unwrap();
    assert_eq!((reads(&initiator), initiator.crc), ((4, 20), true));
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
fn each_end_gets_the_markers_it_asks_for_and_no_others() {
    for revision in [1, 2] {
        for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
            let asks = Wishes { markers: ours, ..WISHES };
            let request = request(asks, revision, b"");
            assert_eq!(request.markers, ours);
            let (reply, responder) = accept(&request, Wishes { markers: theirs, ..WISHES }, b"");
            assert_eq!(reply.markers, theirs);
            assert_eq!((responder.markers_in, responder.markers_out), (theirs, ours));
            let initiator = conclude(&reply, asks, revision).unwrap();
            assert_eq!((initiator.markers_in, initiator.markers_out), (ours, theirs));
        }
    }
}

#[test]
fn not_negotiated_is_answered_in_kind_and_leaves_local_values() {
    let mut request = request(WISHES, 2, b"");
    request.enhanced =
        Some(Enhanced { ird: NOT_NEGOTIATED, ord: NOT_NEGOTIATED, ..Enhanced::default() });
    let (reply, terms) = accept(&request, Wishes { ird: 3, ord: 5, ..WISHES }, b"");
    let answer = reply.enhanced.unwrap();
    assert_eq!((answer.ird, answer.ord), (NOT_NEGOTIATED, NOT_NEGOTIATED));
    assert_eq!(reads(&terms), (3, 5));
    // Each half by itself.
    request.enhanced = Some(Enhanced { ird: NOT_NEGOTIATED, ord: 6, ..Enhanced::default() });
    let (reply, terms) = accept(&request, Wishes { ird: 3, ord: 5, ..WISHES }, b"");
    let answer = reply.enhanced.unwrap();
    assert_eq!((answer.ird, answer.ord, reads(&terms)), (6, NOT_NEGOTIATED, (6, 5)));
    assert_eq!(reads(&conclude(&reply, WISHES, 2).unwrap()), (8, 6));
}

#[test]
fn revisions_meet_or_say_so() {
    // The request's revision, and what a responder thinks of it.
    for (revision, expected) in
        [(0, Ok(())), (1, Ok(())), (2, Ok(())), (3, Err(Disagreement::Revision))]
    {
        let frame = Startup { revision, ..request(WISHES, revision.min(2), b"") };
        assert_eq!(review(&frame), expected, "revision {revision}");
    }
    // Of the RDMA Consortium's there is none without markers or CRCs.
    for (markers, crc) in [(false, true), (true, false)] {
        let frame = Startup { markers, crc, ..request(WISHES, 0, b"") };
        assert_eq!(review(&frame), Err(Disagreement::Revision));
    }
    // The reply to each.
    for asked in [0, 1, 2] {
        let (reply, responder) = accept(&request(WISHES, asked, b""), WISHES, b"");
        assert_eq!(reply.revision, asked);
        let initiator = conclude(&reply, WISHES, asked).unwrap();
        assert_eq!(initiator.version, responder.version);
        let old = asked == 0;
        assert_eq!(initiator.version, if old { Version::Rdmac } else { Version::Ietf });
        assert_eq!((initiator.markers_in, initiator.markers_out), (old, old));
        assert!(initiator.crc && responder.crc);
        for answered in (0..=3).filter(|answered| *answered != asked) {
            let reply = Startup { revision: answered, ..reply.clone() };
            let outcome = conclude(&reply, WISHES, asked);
            assert_eq!(outcome.map(|_| ()), Err(Disagreement::Mismatch), "{asked} {answered}");
        }
    }
    // A responder of the RDMA Consortium shows itself by revision 0 and M; without M it is none,
    // whatever was asked: there would be no markers in a stream that has to have them.
    for asked in [0, 1] {
        let (reply, _) = accept(&request(WISHES, asked, b""), WISHES, b"");
        let reply = Startup { revision: 0, markers: false, ..reply };
        assert_eq!(conclude(&reply, WISHES, asked), Err(Disagreement::Mismatch), "{asked}");
    }
    let (reply, _) = accept(&request(WISHES, 1, b""), WISHES, b"");
    let reply = Startup { revision: 0, markers: true, ..reply };
    assert_eq!(conclude(&reply, WISHES, 1), Ok(Terms::rdmac(WISHES)));
    // What it learns from one that will not have it.
    assert_eq!(reject(&request(WISHES, 0, b""), ReadDepths::default(), b"").revision, 1);
}

#[test]
fn flag_s_is_answered_in_kind() {
    let (mut reply, _) = accept(&request(WISHES, 2, b""), WISHES, b"");
    assert_eq!(conclude(&reply, WISHES, 1), Err(Disagreement::Mismatch));
    reply.enhanced = None;
    assert_eq!(conclude(&reply, WISHES, 2), Err(Disagreement::Mismatch));
    let rejected = |revision| {
        reject(&request(WISHES, revision, b""), ReadDepths { ird: 3, ord: 200 }, b"").enhanced
    };
    assert_eq!(rejected(2), Some(Enhanced { ird: 3, ord: 128, ..Enhanced::default() }));
    assert_eq!(rejected(1), None);
}

#[test]
fn more_reads_than_can_be_served_are_refused() {
    let (mut reply, _) = accept(&request(WISHES, 2, b""), WISHES, b"");
    let block = reply.enhanced.as_mut().unwrap();
    block.ord = READ_DEPTH_MAX + 1;
    assert_eq!(conclude(&reply, WISHES, 2), Err(Disagreement::Reads));
    reply.enhanced.as_mut().unwrap().ord = READ_DEPTH_MAX;
    assert_eq!(conclude(&reply, WISHES, 2).unwrap().ird, READ_DEPTH_MAX);
}

// req-test: RDMAP-287
#[test]
fn an_end_serves_no_more_reads_than_its_application_said() {
    // Of `ird` and `ird_max`: what a responder serves of 16 that are asked for, and whether an
    // initiator takes a responder that would issue 16.
    for (ird, ird_max, served, takes) in [
        (0, 0, 0, false),
        (0, READ_DEPTH_MAX, 0, false),
        (1, 0, 1, false),
        (4, 8, 8, false),
        (4, 16, 16, true),
        (32, 8, 32, true),
        (1, u16::MAX, 16, true),
    ] {
        let wishes = Wishes { ird, ird_max, ..WISHES };
        let asks = Wishes { ord: 16, ..WISHES };
        let (reply, terms) = accept(&request(asks, 2, b""), wishes, b"");
        assert_eq!((terms.ird, reply.enhanced.unwrap().ird), (served, served), "{ird} {ird_max}");
        let (mut reply, _) = accept(&request(wishes, 2, b""), WISHES, b"");
        reply.enhanced.as_mut().unwrap().ord = 16;
        match conclude(&reply, wishes, 2) {
            Ok(terms) => assert!(takes && terms.ird == ird.max(16)),
            Err(error) => assert_eq!((error, takes), (Disagreement::Reads, false)),
        }
    }
}

#[test]
fn a_read_that_says_ready_is_taken_only_where_reads_are_served() {
    for (ird, ord) in [(0, 0), (0, NOT_NEGOTIATED), (1, 0), (1, NOT_NEGOTIATED)] {
        let wishes = Wishes { ird, ord: 0, ..WISHES };
        let rtr = Enhanced { peer_to_peer: true, rtr_read: true, ord, ..Enhanced::default() };
        let frame = Startup { enhanced: Some(rtr), ..request(WISHES, 2, b"") };
        let (reply, terms) = accept(&frame, wishes, b"");
        let named = RtrKinds::of(&reply.enhanced.unwrap());
        assert_eq!((named.read, terms.ird), (ird > 0, ird));
        assert!(named.read || (named.send && named.write), "what it knows instead");
    }
}

/// All sets of kinds.
fn all_kinds() -> impl Iterator<Item = RtrKinds> {
    (0..8).map(|bits| RtrKinds { send: bits & 1 != 0, write: bits & 2 != 0, read: bits & 4 != 0 })
}

#[test]
fn peer_to_peer_settles_on_a_common_kind() {
    for ours in all_kinds().filter(|kinds| *kinds != NONE) {
        for theirs in all_kinds().filter(|kinds| *kinds != NONE) {
            let asks = Wishes { peer_to_peer: true, rtr: ours, ..WISHES };
            let request = request(asks, 2, b"");
            let block = request.enhanced.unwrap();
            assert!(block.peer_to_peer && RtrKinds::of(&block) == ours);
            let (reply, responder) = accept(&request, Wishes { rtr: theirs, ..WISHES }, b"");
            let answer = reply.enhanced.unwrap();
            assert!(answer.peer_to_peer, "flag A is echoed");
            let named = RtrKinds::of(&answer);
            assert_ne!(named, NONE);
            let common = ours.and(theirs);
            assert_eq!(named, if common == NONE { theirs } else { common });
            assert_eq!(responder.rtr_send_expected, common.send);
            match conclude(&reply, asks, 2) {
                Ok(terms) => {
                    let is_common = match terms.rtr.unwrap() {
                        Rtr::Send => common.send,
                        Rtr::Write => common.write,
                        Rtr::Read => common.read,
                    };
                    assert!(is_common, "{ours:?} {theirs:?}");
                }
                Err(error) => assert_eq!((error, common), (Disagreement::Rtr, NONE)),
            }
        }
    }
}

#[test]
fn a_responder_that_does_not_know_peer_to_peer_is_told() {
    let asks = Wishes { peer_to_peer: true, ..WISHES };
    let (mut reply, _) = accept(&request(asks, 2, b""), WISHES, b"");
    reply.enhanced.as_mut().unwrap().peer_to_peer = false;
    assert_eq!(conclude(&reply, asks, 2), Err(Disagreement::Rtr));
}

#[test]
fn without_flag_a_the_others_are_zero_and_mean_nothing() {
    let frame = request(WISHES, 2, b"");
    let block = frame.enhanced.unwrap();
    assert!(!block.peer_to_peer && RtrKinds::of(&block) == NONE);
    let stray = Enhanced { rtr_send: true, rtr_read: true, ird: 4, ord: 4, ..Enhanced::default() };
    let (reply, terms) = accept(&Startup { enhanced: Some(stray), ..frame }, WISHES, b"");
    let answer = reply.enhanced.unwrap();
    assert!(!answer.peer_to_peer && RtrKinds::of(&answer) == NONE && !terms.rtr_send_expected);
    let stray = Startup { enhanced: Some(Enhanced { ird: 8, ord: 8, ..stray }), ..reply };
    assert_eq!(conclude(&stray, WISHES, 2).unwrap().rtr, None);
}
