//! A Terminate of the peer that crosses ours: reported once, besides the local reason.

use super::*;

/// Ends the stream at this end, receives `pieces`, and expects the peer's Terminate to be reported
/// once, besides this end's own error; data after the end has no other effect.
fn expect_crossing_terminate_reported(
    mut live: Connection,
    end: EndCause,
    pieces: &[&[u8]],
    what: &str,
) {
    let terminate = live.end_stream(end, pieces);
    let reason = live.disconnect_reason_then(|event| {
        let Some(ConnEvent::TerminateReceived { qp: _, terminate: Some(terminate) }) = event else {
            panic!("{what}: {event:?}")
        };
        assert_eq!((terminate.cause(), terminate.segment_len), ((1, 1, 1), Some(15)), "{what}");
        assert_eq!(terminate.ddp_header(), &PEER_TERMINATE[6..], "{what}");
    });
    match terminate {
        Some(terminate) if end != EndCause::Forced => {
            assert_eq!(reason, EndReason::TerminateSent(terminate), "{what}");
        }
        _ => assert_eq!(reason, EndReason::Local, "{what}"),
    }
    assert_eq!(live.completions(), ALL_FLUSHED, "{what}");
    assert_eq!(live.shared(), [0; 8], "{what}");
    let counters = live.fx.engine.counters();
    assert_eq!(
        (counters.terminates_out, counters.terminates_in),
        (end.terminates_sent(), 1),
        "{what}"
    );
    live.expect_graceful_close();
}

// req-test: RDMAP-192, RDMAP-044
#[test]
fn crossing_terminate_of_the_peer_is_reported() {
    for end in [EndCause::Placement, EndCause::Opcode, EndCause::Forced, EndCause::Disconnected] {
        let live = Connection::with_work();
        let bad = live.write_to(UNKNOWN, b"x");
        let good = [live.write_to(live.stag, b"late"), untagged_fpdu(SEND, 0, 1, b"late")].concat();
        let last = peer_terminate_fpdu();
        let both = [&good[..], &bad, &last].concat();
        // A second one is not reported, and nothing that follows matters.
        let twice = [&last[..], &last, &good, &[0xff; 9]].concat();
        expect_crossing_terminate_reported(live, end, &[&last], "alone");
        expect_crossing_terminate_reported(
            Connection::with_work(),
            end,
            &[&twice, &last, &bad],
            "twice",
        );
        expect_crossing_terminate_reported(
            connected_with_work_and_buffers(64),
            end,
            &[&both],
            "behind what would be placed, and what is wrong",
        );
        let bytes: Vec<_> = both.chunks(1).collect();
        expect_crossing_terminate_reported(
            connected_with_work_and_buffers(64),
            end,
            &bytes,
            "byte by byte",
        );
    }
}

#[test]
fn crossing_terminate_with_fin_or_out_of_order_is_reported() {
    let mut live = Connection::with_work();
    live.end_stream(EndCause::Placement, &[]);
    let (first, seq) = (empty_write_fpdu(), live.peer.tcp.snd_nxt);
    let next = seq + u32::try_from(first.len()).unwrap();
    live.peer.send_segment(&live.fx, Flags::ACK | Flags::FIN, next, &peer_terminate_fpdu());
    live.peer.settle(&mut live.fx);
    live.disconnect_reason();
    live.inject(&first);
    live.peer.settle(&mut live.fx);
    let event = live.fx.engine.next_event();
    assert!(
        matches!(event, Some(ConnEvent::TerminateReceived { terminate: Some(_), .. })),
        "{event:?}"
    );
    assert_eq!(live.fx.engine.unfinished_count(), 0);
}

#[test]
fn malformed_crossing_terminate_is_reported() {
    for (msn, bytes) in [(1, &PEER_TERMINATE[..3]), (2, &PEER_TERMINATE)] {
        let mut live = Connection::with_work();
        live.end_stream(EndCause::Placement, &[&untagged_fpdu(Opcode::Terminate, 2, msn, bytes)]);
        live.disconnect_reason_then(|event| {
            let Some(ConnEvent::TerminateReceived { terminate: None, .. }) = event else {
                panic!("{event:?}")
            };
        });
        assert_eq!(live.completions(), ALL_FLUSHED);
        live.expect_graceful_close();
    }
}

/// After a bad CRC or garbage a Terminate cannot be recognized, and none is reported.
#[test]
fn bad_crc_after_our_terminate_stops_the_drain() {
    let last = peer_terminate_fpdu();
    let mut bad = last.clone();
    *bad.last_mut().unwrap() ^= 1;
    let behind = [&bad[..], &last].concat();
    let with_garbage = [&PEER_TERMINATE[..], &last].concat();
    for (end, bytes) in [
        (EndCause::Placement, &behind),
        (EndCause::Forced, &with_garbage),
        // This end's error was one of MPA: no further FPDU is delineated (RFC 5044 section 8).
        (EndCause::Crc, &last),
    ] {
        let mut live = Connection::with_work();
        let terminate = live.end_stream(end, &[bytes, &last]);
        assert!(terminate.is_some());
        live.disconnect_reason();
        assert_eq!(live.completions(), ALL_FLUSHED);
        assert_eq!(live.fx.engine.counters().terminates_in, 0);
        live.expect_graceful_close();
    }
}
