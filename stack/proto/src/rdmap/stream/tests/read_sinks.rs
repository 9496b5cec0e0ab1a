//! RDMA Reads whose sink has several pieces.

use super::*;
use crate::rdmap::operation::SgList;

/// Posts a Read of what the peer has from `from` on, whose sink has pieces of these lengths.
fn post_read_to_pieces(left: &mut Fixture, right: &Fixture, from: u64, lens: &[u32]) -> Vec<Sge> {
    let sink =
        (0..).zip(lens).map(|(index, &len)| Sge { addr: 2000 + 100 * index, len, lkey: left.stag });
    let sink = sink.collect::<Vec<_>>();
    let list = SgList::try_from_iter(sink.iter().copied()).unwrap();
    left.post(1, Operation::Read { sink: list, rkey: right.stag, remote: from });
    sink
}

#[test]
fn read_to_several_pieces_has_a_request_for_each_that_is_not_empty() {
    let lists: [(&[u32], usize); 7] = [
        (&[10, 20], 2),
        (&[0, 10, 0, 0, 20, 0], 2),
        (&[60; 6], 6),
        (&[0, 5], 1),
        (&[5, 0], 1),
        (&[0, 0], 1),
        (&[], 1),
    ];
    for (lens, request_count) in lists {
        for mulpdu in [128, 1000] {
            let (mut left, mut right) = (fixture(), fixture());
            let bytes = (1..=360u32).map(|at| at as u8).collect::<Vec<_>>();
            right.arena.write(10, &bytes);
            let sink = post_read_to_pieces(&mut left, &right, 10, lens);
            left.post(2, left.write(&right, 0, 1000, 8));
            let seen = exchange(&mut left, &mut right, mulpdu);
            let count = |wanted| seen.iter().filter(|&seen| *seen == wanted).count();
            assert_eq!(count(Indication::ReadRequested), request_count, "{lens:?}");
            assert_eq!(count(Indication::ReadCompleted), request_count, "{lens:?}");
            let mut read = Vec::new();
            for sge in &sink {
                read.extend(left.arena.read(sge.addr as usize, sge.len as usize));
            }
            assert_eq!(read, bytes[..read.len()], "{lens:?}");
            assert_eq!(
                left.completions(),
                [(1, RequestOutcome::Success), (2, RequestOutcome::Success)]
            );
            assert!(left.stream.requester.is_done());
        }
    }
}

#[test]
fn requests_of_a_read_wait_for_credits_and_let_nothing_overtake_it() {
    let (mut left, mut right) = (fixture(), fixture());
    post_read_to_pieces(&mut left, &right, 0, &[4; 3]);
    let fenced = SendWr { fence: true, ..request(2, left.write(&right, 0, 0, 4)) };
    left.stream.requester.post_and_take(&fenced);
    assert!(!left.stream.has_sent());
    for _ in 0..2 {
        let ulpdu = left.build(1000);
        assert_eq!(right.on_ulpdu(&ulpdu), Ok(Indication::ReadRequested));
        assert!(left.stream.has_sent());
    }
    assert!(!left.stream.can_build(), "ORD is 2");
    assert_eq!(left.on_ulpdu(&right.build(1000)), Ok(Indication::ReadCompleted));
    assert_eq!(left.on_ulpdu(&right.build(1000)), Ok(Indication::ReadCompleted));
    // Between two of its requests nothing is outstanding; the Write waits all the same.
    assert_eq!(left.completions(), []);
    assert!(left.stream.requester.on_rx_closed(), "a response is to come");
    left.stream.requester.set_ord(2);
    assert_eq!(right.on_ulpdu(&left.build(1000)), Ok(Indication::ReadRequested));
    assert!(!left.stream.can_build(), "the fence");
    assert_eq!(left.on_ulpdu(&right.build(1000)), Ok(Indication::ReadCompleted));
    assert_eq!(left.completions(), [(1, RequestOutcome::Success)]);
    left.build(1000);
    assert_eq!(left.completions(), [(2, RequestOutcome::Success)]);
}

#[test]
fn response_to_a_later_piece_must_match_it() {
    let (mut left, right) = (fixture(), fixture());
    let sink = post_read_to_pieces(&mut left, &right, 0, &[4, 4]);
    left.build(1000);
    left.build(1000);
    let stag = left.stag;
    let response = |to, bytes| tagged(Opcode::ReadResponse, true, stag, to, bytes);
    let bounds = Err(Fault::Tagged(MemoryFault::Bounds));
    assert_eq!(left.on_ulpdu(&response(sink[1].addr, b"abcd")), bounds);
    let done = Ok(Indication::ReadCompleted);
    assert_eq!(left.on_ulpdu(&response(sink[0].addr, b"abcd")), done);
    assert_eq!(left.on_ulpdu(&response(sink[0].addr, b"abcd")), bounds);
    assert_eq!(left.on_ulpdu(&response(sink[1].addr, b"efgh")), done);
    assert_eq!(left.completions(), [(1, RequestOutcome::Success)]);
}

#[test]
fn piece_that_is_not_registered_fails_the_read() {
    let (mut left, right) = (fixture(), fixture());
    let mut sink = post_read_to_pieces(&mut left, &right, 0, &[4, 4]);
    sink[1].lkey ^= 1;
    let list = SgList::try_from_iter(sink).unwrap();
    left.post(2, Operation::Read { sink: list, rkey: right.stag, remote: 0 });
    left.stream.requester.set_ord(8);
    for _ in 0..3 {
        left.build(1000);
    }
    let failed = left.try_build(&mut [0; 256]);
    assert!(matches!(failed, Err(BuildError::Request)), "{failed:?}");
}
