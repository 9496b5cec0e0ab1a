//! The fast path against the general one: the same effects, or none.

use std::slice;

use proptest::prelude::*;

use super::*;
use crate::rdmap::operation::SgList;
use crate::wire::rdmap::{QN_SEND, SegmentControl};

const LEN: u32 = 300;
const MULPDU: usize = 128;

/// A receiver with an outstanding Read of 300 bytes to address 1000, and a receive buffer of as
/// many at 2000, of one or two elements.
fn receiver(sge_count: u64) -> Fixture {
    let mut receiver = fixture();
    receiver.post(
        1,
        Operation::Read {
            sink: [Sge { addr: 1000, len: LEN, lkey: receiver.stag }].into(),
            rkey: receiver.stag,
            remote: 0,
        },
    );
    receiver.build(MULPDU);
    let len = LEN / sge_count as u32;
    let sge = |index| Sge { addr: 2000 + index * 500, len, lkey: receiver.stag };
    let sg_list = SgList::try_from_iter((0..sge_count).map(sge)).unwrap();
    receiver.stream.recv_queue.post(2, &sg_list).unwrap();
    receiver
}

/// ULPDUs of a message of 300 bytes for a [`receiver`].
fn message(opcode: Opcode, stag: u32) -> Vec<Vec<u8>> {
    let bytes: Vec<u8> = (0..LEN).map(|at| (at * 7) as u8 | 1).collect();
    let is_send = matches!(opcode, Opcode::Send { .. });
    let chunk_len = MULPDU - if is_send { UNTAGGED_LEN } else { TAGGED_LEN };
    let mut at = 0;
    let chunks = bytes.chunks(chunk_len).map(|chunk| {
        let last = at + chunk.len() == bytes.len();
        let ulpdu = if is_send {
            let mut ulpdu = untagged(opcode, QN_SEND, 1, at as u32, chunk);
            ulpdu[0] ^= u8::from(!last) * 0x40;
            ulpdu
        } else {
            tagged(opcode, last, stag, 1000 + at as u64, chunk)
        };
        at += chunk.len();
        ulpdu
    });
    chunks.collect()
}

/// Processes a ULPDU if the fast path takes it.
pub(super) fn place_fast(
    receiver: &mut Fixture,
    ulpdu: &[u8],
    sinks: &mut LastSinks,
) -> Option<Indication> {
    let Fixture { stream, arena, .. } = receiver;
    let placed = match SegmentControl::of(ulpdu, stream.version()) {
        SegmentControl::WRITE => {
            let (header, payload) = ulpdu.split_first_chunk()?;
            let is_placed = stream.place_write_in_run(arena, header, payload, sinks);
            return is_placed.then_some(Indication::Placed);
        }
        SegmentControl::SEND if stream.continue_send(arena, ulpdu, sinks) => Placement::Segment,
        SegmentControl::READ_RESPONSE if stream.continue_read_response(arena, ulpdu, sinks) => {
            Placement::Segment
        }
        SegmentControl::SEND => stream.place_send_in_run(arena, ulpdu, ulpdu.first_chunk()?, sinks),
        SegmentControl::READ_RESPONSE => {
            stream.place_read_response_in_run(arena, ulpdu, ulpdu.first_chunk()?, sinks)
        }
        SegmentControl::READ_REQUEST => {
            let (header, payload) = ulpdu.split_first_chunk()?;
            let queued = stream.queue_read_request(arena, header, payload);
            return queued.is_ok().then_some(Indication::ReadRequested);
        }
        _ => return None,
    };
    match placed {
        Placement::Segment => Some(Indication::Placed),
        Placement::Message(message) => {
            Some(Indication::Received { message, solicited: false, invalidated: None })
        }
        Placement::Refused(_) => None,
    }
}

/// Processes the ULPDUs with the fast path at one receiver and without it at another; returns how
/// many took the fast path.
fn compare(ulpdus: &[Vec<u8>], sge_count: u64) -> usize {
    let (mut fast, mut general) = (receiver(sge_count), receiver(sge_count));
    let (mut fast_count, mut sinks) = (0, LastSinks::NONE);
    for ulpdu in ulpdus {
        let placed = place_fast(&mut fast, ulpdu, &mut sinks);
        fast_count += usize::from(placed.is_some());
        let outcome = placed.map_or_else(
            || {
                sinks = LastSinks::NONE;
                fast.on_ulpdu(ulpdu)
            },
            Ok,
        );
        assert_eq!(outcome, general.on_ulpdu(ulpdu), "{ulpdu:02x?}");
        assert_eq!(fast.arena.read(0, 4096), general.arena.read(0, 4096), "{ulpdu:02x?}");
    }
    assert_eq!(fast.completions(), general.completions());
    fast_count
}

#[test]
fn segments_of_long_messages_take_the_fast_path() {
    let stag = fixture().stag;
    assert_eq!(compare(&message(Opcode::Write, stag), 1), 3);
    assert_eq!(compare(&message(SEND, stag), 1), 3);
    assert_eq!(compare(&message(Opcode::ReadResponse, stag), 1), 2, "not the last");
    assert_eq!(compare(&message(SEND, stag), 2), 0, "two elements");
    let solicited = Opcode::Send { invalidate: false, solicited: true };
    assert_eq!(compare(&message(solicited, stag), 1), 0);
}

#[test]
fn short_sends_take_the_fast_path() {
    let send = |msn, mo, len| untagged(SEND, QN_SEND, msn, mo, &vec![1; len]);
    assert_eq!(compare(&[send(1, 0, 1)], 1), 1);
    assert_eq!(compare(&[send(1, 0, LEN as usize)], 1), 1, "it fills the buffer");
    for ulpdu in [
        send(1, 0, 0),
        send(1, 0, LEN as usize + 1),
        send(1, 1, 1),
        send(0, 0, 1),
        send(2, 0, 1),
        untagged(SEND, 1, 1, 0, &[1]),
    ] {
        assert_eq!(compare(slice::from_ref(&ulpdu), 1), 0, "{ulpdu:02x?}");
    }
    assert_eq!(compare(&[send(1, 0, 1)], 2), 0, "two elements");
    // The second finds no buffer, if the first was delivered.
    assert_eq!(compare(&[send(1, 0, 1), send(2, 0, 1)], 1), 1);
    assert_eq!(compare(&[send(1, 0, 1), send(1, 1, 1)], 1), 1);
}

#[test]
fn valid_read_requests_take_the_fast_path() {
    let stag = fixture().stag;
    let read = |qn, msn, mo, source_stag| {
        let request = ReadRequest { sink_stag: 1, sink_to: 2, len: 8, source_stag, source_to: 0 };
        let mut bytes = [0; READ_REQUEST_LEN];
        request.emit(&mut bytes);
        untagged(Opcode::ReadRequest, qn, msn, mo, &bytes)
    };
    let next = |msn| read(QN_READ_REQUEST, msn, 0, stag);
    assert_eq!(compare(&[next(1), next(2)], 1), 2);
    assert_eq!(compare(&[next(1), next(2), next(3)], 1), 2, "IRD is 2");
    let mut reserved = next(1);
    reserved[0] |= 0x04;
    assert_eq!(compare(&[reserved, next(2)], 1), 1);
    for ulpdu in [
        next(2),
        read(QN_SEND, 1, 0, stag),
        read(QN_READ_REQUEST, 1, 1, stag),
        read(QN_READ_REQUEST, 1, 0, stag ^ 1),
        next(1)[..UNTAGGED_LEN - 1].to_vec(),
        next(1)[..UNTAGGED_LEN + READ_REQUEST_LEN - 1].to_vec(),
    ] {
        assert_eq!(compare(&[ulpdu.clone(), next(1)], 1), 1, "{ulpdu:02x?}");
    }
}

#[test]
fn invalid_segments_are_left_to_the_general_path() {
    let stag = fixture().stag;
    let send = |qn, msn, mo, len| {
        let mut ulpdu = untagged(SEND, qn, msn, mo, &vec![1; len]);
        ulpdu[0] ^= 0x40;
        ulpdu
    };
    let response = |stag, to, len| tagged(Opcode::ReadResponse, false, stag, to, &vec![1; len]);
    let write = |stag, to, len| tagged(Opcode::Write, true, stag, to, &vec![1; len]);
    for ulpdu in [
        send(1, 1, 0, 28),
        send(0, 0, 0, 1),
        send(0, 2, 0, 1),
        send(0, 1, 1, 1),
        send(0, 1, 0, 301),
        response(stag ^ 1, 1000, 1),
        response(stag, 1001, 1),
        response(stag, 1000, 301),
        response(stag, 1000, 0),
        write(stag ^ 1, 1000, 1),
        write(stag, 4095, 2),
    ] {
        assert_eq!(compare(slice::from_ref(&ulpdu), 1), 0, "{ulpdu:02x?}");
    }
}

#[test]
fn a_run_ends_with_a_segment_that_does_not_follow() {
    let stag = fixture().stag;
    let (sends, responses) = (message(SEND, stag), message(Opcode::ReadResponse, stag));
    // Of two messages in turn, each segment begins a run.
    let alternating = [&sends[0], &responses[0], &sends[1], &responses[1]].map(Clone::clone);
    assert_eq!(compare(&alternating, 1), 4);
    let send = |qn, msn, mo, len| {
        let mut ulpdu = untagged(SEND, qn, msn, mo, &vec![1; len]);
        ulpdu[0] ^= 0x40;
        ulpdu
    };
    let response = |stag, to, len| tagged(Opcode::ReadResponse, false, stag, to, &vec![1; len]);
    let (mo, to) = ((MULPDU - UNTAGGED_LEN) as u32, 1000 + (MULPDU - TAGGED_LEN) as u64);
    let (buffer_rest, sink_rest) = (LEN as usize - mo as usize, 1300 - to as usize);
    let last = |msn, mo, len| untagged(SEND, 0, msn, mo, &vec![1; len]);
    // After the last segment none continues the message, though its MO did.
    let ended = [sends[0].clone(), last(1, mo, 1), send(0, 1, mo + 1, 1)];
    assert_eq!(compare(&ended, 1), 2);
    // A last segment that fills the buffer is taken.
    assert_eq!(compare(&[sends[0].clone(), last(1, mo, buffer_rest)], 1), 2);
    for (first, next) in [
        (&sends[0], last(1, mo, buffer_rest + 1)),
        (&sends[0], last(1, mo, 0)),
        (&sends[0], last(1, mo + 1, 1)),
        (&sends[0], last(2, mo, 1)),
        (&sends[0], send(0, 1, mo, buffer_rest + 1)),
        (&sends[0], send(0, 1, mo, buffer_rest)),
        (&sends[0], send(0, 1, mo - 1, 1)),
        (&sends[0], send(0, 2, mo, 1)),
        (&sends[0], send(1 << 16, 1, mo, 1)),
        (&sends[0], send(1, 1, mo, 1)),
        (&responses[0], response(stag, to, sink_rest + 1)),
        (&responses[0], response(stag, to, sink_rest)),
        (&responses[0], response(stag, to + 1, 1)),
        (&responses[0], response(stag, to | 1 << 56, 1)),
        (&responses[0], response(stag ^ 1, to, 1)),
        (&responses[0], response(stag, to, 0)),
    ] {
        assert_eq!(compare(&[first.clone(), next.clone()], 1), 1, "{next:02x?}");
    }
}

proptest! {
    #[test]
    fn changed_segments_have_the_same_effect(
        opcode in 0u8..12,
        sge_count in 1u64..3,
        order in proptest::collection::vec(0usize..3, 1..5),
        (at, mask, count) in (0usize..18, any::<u8>(), 0usize..3),
        len in 0usize..=MULPDU,
    ) {
        let opcode = Opcode::parse(0x40 | opcode, Version::Ietf).unwrap();
        let message = message(opcode, fixture().stag);
        let mut ulpdus: Vec<Vec<u8>> = message.clone();
        // Some segments skipped, repeated, out of order; one changed; one cut.
        ulpdus.extend(order.iter().map(|&index| message[index].clone()));
        ulpdus.rotate_left(count);
        let changed = count % ulpdus.len();
        let at = at.min(ulpdus[changed].len() - 1);
        ulpdus[changed][at] ^= mask;
        let cut = order[0];
        let keep = len.min(ulpdus[cut].len());
        ulpdus[cut].truncate(keep);
        compare(&ulpdus, sge_count);
    }
}
