//! Received Terminates, and Terminates among other messages.

use std::collections::BTreeSet;

use super::rows::READ_1;
use super::{Fixture, fixture, for_each_version};
use crate::ddp::sgl::Sge;
use crate::rdmap::fault::Fault;
use crate::rdmap::operation::Operation;
use crate::rdmap::operation::SendWr;
use crate::rdmap::stream::Indication;
use crate::rdmap::stream::tests::try_build;
use crate::wire::ddp::Version;

/// Terminates, and the cause parsed from each.
// req-test: RDMAP-189, RDMAP-190, RDMAP-191, RDMAP-193, RDMAP-262
#[test]
fn terminate_is_never_answered() {
    const SOUND: &str = "41 47 00000000 00000002 00000001 00000000 11 02 00 00";
    for_each_version(|version| {
        for (text, cause) in [
            (SOUND, Some((1, 1, 2))),
            // Reserved bits, and an STag in the header: ignored.
            ("7d 77 open 00000002 00000001 00000000 11 02 1f ff", Some((1, 1, 2))),
            // Truncated, MSN 0, MSN 2, MO 4, not the last segment.
            ("41 47 00000000 00000002 00000001 00000000", None),
            ("41 47 00000000 00000002 00000001 00000000 11 02 00", None),
            ("41 47 00000000 00000002 00000000 00000000 11 02 00 00", None),
            ("41 47 00000000 00000002 00000002 00000000 11 02 00 00", None),
            ("41 47 00000000 00000002 00000001 00000004 11 02 00 00", None),
            ("01 47 00000000 00000002 00000001 00000000 11 02 00 00", None),
        ] {
            let mut fixture = fixture(version);
            // No receive buffer is posted.
            while fixture.stream.recv_queue.pop_front().is_some() {}
            let ulpdu = fixture.segment(text);
            let seen = fixture.stream.on_ulpdu(&fixture.arena, &ulpdu).unwrap();
            let Indication::Terminated(terminate) = seen else { panic!("{text}: {seen:?}") };
            assert_eq!(terminate.map(|terminate| terminate.cause()), cause, "{text}");
            assert!(fixture.stream.has_failed() && !fixture.stream.can_build(), "{text}");
            assert_eq!(fixture.stream.fail(Fault::Crc, &[]), None, "it is not reported");
            assert!(!fixture.stream.is_terminate_pending());
            assert!(!fixture.stream.awaits_terminate(), "{text}: there is one Terminate");
            assert_eq!(fixture.stream.drain_ulpdu(&fixture.segment(SOUND)), None, "{text}");
        }
    });
}

// req-test: RDMAP-192, DDP-164
#[test]
fn only_first_terminate_after_local_end_is_reported() {
    for_each_version(|version| {
        let terminate = "41 47 00000000 00000002 00000001 00000000 11 02 00 00";
        let late = |fixture: &mut Fixture, text: &str| {
            let ulpdu = fixture.segment(text);
            fixture.stream.drain_ulpdu(&ulpdu)
        };
        let mut fixture = fixture(version);
        assert_eq!(late(&mut fixture, terminate), None, "the stream continues");
        fixture.stream.fail(Fault::UnexpectedOpcode, &[]).unwrap();
        for other in [
            // A valid Write and Send, messages that are no valid Terminate, and a truncated header.
            "c1 40 open 0000000000000100 aa*4",
            "41 43 00000000 00000000 00000001 00000000 aa*4",
            "41 47 00000000 00000000 00000001 00000000 11 02 00 00",
            "41 43 00000000 00000002 00000001 00000000 11 02 00 00",
            "c1 47 open 0000000000000100 11 02 00 00",
            "43 47 00000000 00000002 00000001 00000000 11 02 00 00",
            "41 47",
        ] {
            assert_eq!(late(&mut fixture, other), None, "{other}");
        }
        assert_eq!(fixture.arena.read(0x100, 4), [0; 4]);
        let seen = late(&mut fixture, terminate);
        let Some(Indication::Terminated(Some(received))) = seen else { panic!("{seen:?}") };
        assert_eq!(received.cause(), (1, 1, 2));
        assert_eq!(late(&mut fixture, terminate), None, "only one is sent");
        for (fault, awaits) in
            [(Fault::Crc, false), (Fault::Marker, false), (Fault::LocalCatastrophic, true)]
        {
            let mut fixture = self::fixture(version);
            fixture.stream.fail(fault, &[]).unwrap();
            assert_eq!(fixture.stream.awaits_terminate(), awaits, "{fault:?}");
            assert_eq!(late(&mut fixture, terminate).is_some(), awaits, "{fault:?}");
        }
    });
}

// req-test: RDMAP-260, RDMAP-195
#[test]
fn terminate_is_sent_next_and_last() {
    let mut fixture = fixture(Version::Ietf);
    let (_, open) = fixture.stags[0];
    let sge = Sge { addr: 0x100, len: 0x100, lkey: open };
    for wr_id in 5..8 {
        let payload = crate::rdmap::operation::Payload::Gather([sge].into());
        let operation = Operation::Write { payload, rkey: 9, remote: 0 };
        let write = SendWr { wr_id, operation, signaled: true, fence: false };
        fixture.stream.requester.post_and_take(&write);
    }
    // A Write is built in part, and a Read Request is to be answered.
    assert_eq!(try_build(&mut fixture.stream, &fixture.arena, &mut [0; 128]), Ok(128));
    let ulpdu = fixture.segment(READ_1);
    fixture.stream.on_ulpdu(&fixture.arena, &ulpdu).unwrap();
    let bad = fixture.segment("c1 40 gone 0000000000000100 78");
    let fault = fixture.stream.on_ulpdu(&fixture.arena, &bad).unwrap_err();
    fixture.stream.fail(fault, &bad);
    assert_eq!(fixture.next_terminate()[..2], [0x41, 0x47]);
}

// req-test: DDP-046, DDP-047, RDMAP-054, RDMAP-055
#[test]
fn each_version_has_its_dv_and_rv() {
    for (version, dv, rv) in
        [(Version::Ietf, 1, 0x40), (Version::Rdmac, 0, 0x00), (Version::Draft00, 0, 0x40)]
    {
        let mut fixture = fixture(version);
        let (_, open) = fixture.stags[0];
        let payload = || crate::rdmap::operation::Payload::Inline([7; 3].into());
        let sink = Sge { addr: 0x100, len: 8, lkey: open };
        for (wr_id, operation) in [
            (5, Operation::Write { payload: payload(), rkey: 1, remote: 2 }),
            (6, Operation::Send { payload: payload(), solicited: false, invalidate: None }),
            (7, Operation::Read { sink: [sink].into(), rkey: 1, remote: 0 }),
        ] {
            let request = SendWr { wr_id, operation, signaled: true, fence: false };
            fixture.stream.requester.post_and_take(&request);
        }
        let ulpdu = fixture.segment(READ_1);
        fixture.stream.on_ulpdu(&fixture.arena, &ulpdu).unwrap();
        let mut seen = BTreeSet::new();
        while fixture.stream.can_build() {
            let mut out = [0; 128];
            try_build(&mut fixture.stream, &fixture.arena, &mut out).unwrap();
            seen.insert([out[0], out[1]]);
        }
        let (tagged, untagged) = (0xc0 | dv, 0x40 | dv);
        let expected = [[tagged, rv], [untagged, rv | 3], [untagged, rv | 1], [tagged, rv | 2]];
        assert_eq!(seen, BTreeSet::from(expected), "{version:?}");
    }
}
