//! Trains: segments that are built or processed together have the effect of each one alone.

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::device::ChecksumMode;
use ferrowarp_proto::time::{MICROSECOND, MILLISECOND};
use ferrowarp_proto::verbs::cm::{ConnParam, EndReason};
use ferrowarp_proto::verbs::wr::{Operation, Payload, SgList, Sge};
use ferrowarp_proto::wire::tcp::{Ecn, Fields, Flags, Segment};
use ferrowarp_tests::compliance::fixture::{FpduFixture, parse_fpdus};
use ferrowarp_tests::compliance::messages::{
    PEER_STAG, connected, read_request, send, send_as, write,
};
use ferrowarp_tests::frame::{Frame, parses};
use ferrowarp_tests::peer::fpdu;
use ferrowarp_tests::sim::heap_device::PortOffload;

/// MSS of the peer.
const MSS: u16 = 300;
/// Length of the messages in bytes: seven segments, the last of them short.
const LEN: u32 = 1900;

/// Elements that cover `LEN` bytes from 0 on; each but the first has `part` bytes.
fn elements(fx: &FpduFixture, part: u32) -> Payload {
    let first = LEN - (LEN - 1) / part * part;
    let starts = std::iter::once(0).chain((0..(LEN - 1) / part).map(|i| first + i * part));
    let sge = |addr| {
        let len = if addr == 0 { first } else { part };
        Sge { addr: u64::from(addr), len, lkey: fx.mem_stag }
    };
    Payload::Gather(SgList::try_from_iter(starts.map(sge)).unwrap())
}

/// A connection whose memory holds a pattern.
fn with_pattern() -> FpduFixture {
    let fx = FpduFixture::connected(MSS, 4, 4);
    let bytes: Vec<u8> = (0..LEN).map(|at| (at * 31 % 251) as u8).collect();
    fx.arena.write(0, &bytes);
    fx
}

fn operations(payload: &Payload) -> Vec<Operation> {
    let send = |solicited, invalidate| {
        let payload = payload.clone();
        Operation::Send { payload, solicited, invalidate }
    };
    vec![
        Operation::Write {
            payload: payload.clone(),
            rkey: PEER_STAG,
            remote: 0xffff_ffff_ffff_fc00,
        },
        send(false, None),
        send(true, Some(9)),
        Operation::WriteImmediate {
            payload: payload.clone(),
            rkey: PEER_STAG,
            remote: 0xffff_ff80,
            data: [7; 8],
            solicited: false,
        },
    ]
}

#[test]
fn message_is_segmented_alike_from_one_element_and_from_several() {
    // Elements shorter than two segments: each segment is built alone.
    let sent = [LEN, 400].map(|part| {
        let mut fx = with_pattern();
        let payload = elements(&fx, part);
        for (wr_id, operation) in (1..).zip(operations(&payload)) {
            fx.post_op(wr_id, operation);
        }
        let stream = fx.take_sent();
        let completions = fx.poll_cq();
        (stream, completions)
    });
    let ulpdus = parse_fpdus(&sent[0].0).0;
    assert!(ulpdus.len() > 4 * 6, "{}", ulpdus.len());
    assert_eq!(sent[0], sent[1]);
    assert_eq!(sent[0].1.len(), 4);
}

/// The port cuts seven segments at most, and a train of six is one frame for it.
#[test]
fn train_that_the_port_cuts_leaves_as_segments_built_one_by_one() {
    let sent = [PortOffload::Tcp, PortOffload::Segmentation].map(|offload| {
        let mut fx = FpduFixture::connected_with_offload(MSS, 4, 4, offload);
        let bytes: Vec<u8> = (0..LEN).map(|at| (at * 31 % 251) as u8).collect();
        fx.arena.write(0, &bytes);
        let before = fx.segments.len();
        let payload = elements(&fx, LEN);
        for (wr_id, operation) in (1..).zip(operations(&payload)) {
            fx.post_op(wr_id, operation);
        }
        fx.inject_ulpdu(&read_request(1, fx.mem_stag, 0, LEN, 0));
        fx.sent_ulpdus();
        let counters = fx.engine.counters();
        let counts = (counters.frames_out, counters.fpdus_out);
        (fx.engine.device().frames_cut, (fx.segments.split_off(before), fx.poll_cq(), counts))
    });
    let [(uncut, alone), (cut, together)] = sent;
    assert!(uncut == 0 && cut >= 5, "one for each message: {cut}");
    assert!(together.0.iter().all(|segment| parse_fpdus(segment).1.is_empty()), "whole FPDUs");
    assert_eq!(alone, together);
}

/// A driver may refuse what its port offers: the stack cuts the train then, and those that follow.
#[test]
fn train_that_the_driver_refuses_is_cut_by_the_stack() {
    let mut fx = FpduFixture::connected_over(MSS, 4, 4, |device| {
        device.set_offload(PortOffload::Segmentation);
        device.refuse_to_cut();
    });
    let bytes: Vec<u8> = (0..LEN).map(|at| (at * 31 % 251) as u8).collect();
    fx.arena.write(0, &bytes);
    for wr_id in 1..=2 {
        let payload = elements(&fx, LEN);
        fx.post_op(wr_id, Operation::Write { payload, rkey: PEER_STAG, remote: 0 });
        let payloads: Vec<u8> =
            fx.sent_ulpdus().iter().flat_map(|ulpdu| &ulpdu[14..]).copied().collect();
        assert_eq!(payloads, bytes, "Write {wr_id}");
        assert_eq!(fx.poll_cq().len(), 1);
    }
    assert_eq!(fx.engine.device().frames_cut, 0);
    assert_eq!(fx.engine.device().frames_in_use(), 0);
}

#[test]
fn segments_of_a_cut_frame_are_retransmitted_one_by_one() {
    let mut fx = FpduFixture::connected_with_offload(MSS, 4, 4, PortOffload::Segmentation);
    let bytes: Vec<u8> = (0..LEN).map(|at| (at * 31 % 251) as u8).collect();
    fx.arena.write(0, &bytes);
    fx.drop_tx = true;
    let payload = elements(&fx, LEN);
    fx.post_op(1, Operation::Write { payload, rkey: PEER_STAG, remote: 0 });
    fx.take_sent();
    assert_eq!(fx.engine.device().frames_cut, 1);
    fx.drop_tx = false;
    let mut stream = Vec::new();
    for _ in 0..200 {
        fx.now = fx.now + 10 * MILLISECOND;
        stream.extend(fx.take_sent());
    }
    let payloads: Vec<u8> =
        parse_fpdus(&stream).0.iter().flat_map(|ulpdu| &ulpdu[14..]).copied().collect();
    assert_eq!(payloads, bytes);
    assert_eq!(fx.poll_cq().len(), 1);
    assert_eq!(fx.engine.device().frames_in_use(), 0);
}

#[test]
fn read_response_carries_its_source_in_order() {
    let mut fx = with_pattern();
    let to = 0xffff_fffe_u64;
    fx.inject_ulpdu(&read_request(1, fx.mem_stag, 0, LEN, to));
    let ulpdus = fx.sent_ulpdus();
    assert_eq!(ulpdus.len(), 7);
    let mut at = 0;
    for (index, ulpdu) in ulpdus.iter().enumerate() {
        let last = index + 1 == ulpdus.len();
        assert_eq!(ulpdu[..2], [if last { 0xc1 } else { 0x81 }, 0x42]);
        assert_eq!(ulpdu[6..14], (to + at as u64).to_be_bytes());
        let payload = &ulpdu[14..];
        assert_eq!(payload, fx.arena.read(at, payload.len()), "segment {index}");
        at += payload.len();
    }
    assert_eq!(at, LEN as usize);
}

#[test]
fn message_whose_memory_ends_early_is_sent_up_to_there() {
    for len in [LEN, 700] {
        let mut fx = with_pattern();
        let lkey = fx.register(0, 700, Access::ALL, false);
        let payload = Payload::Gather([Sge { addr: 0, len, lkey }].into());
        fx.post_op(1, Operation::Write { payload, rkey: PEER_STAG, remote: 0 });
        let ulpdus = fx.sent_ulpdus();
        let payloads = ulpdus.iter().filter(|ulpdu| ulpdu[1] & 0x0f == 0);
        let sent: usize = payloads.map(|ulpdu| ulpdu.len() - 14).sum();
        if len == LEN {
            assert_eq!(sent, 560, "two whole segments");
            assert_eq!(fx.end_reason(), Some(EndReason::LocalError));
        } else {
            assert_eq!((sent, fx.end_reason()), (700, None));
        }
    }
}

#[test]
fn ack_is_sent_although_no_frame_is_left_for_a_train() {
    let mut fx = with_pattern();
    fx.engine.device().set_uncounted();
    fx.engine.device().set_exhausted([true, false]);
    let payload = elements(&fx, LEN);
    fx.post_op(1, Operation::Write { payload, rkey: PEER_STAG, remote: 0 });
    // Two full segments: the ACK is due at once.
    let payloads = [0, 600].map(|to| fpdu(&write(fx.mem_stag, to, &[1; 600]), true));
    let mut end = None;
    let len = u32::try_from(payloads.concat().len()).unwrap();
    drop(fx.build_frame(|fields| end = Some(fields.seq + len), &[]));
    fx.engine.device().outbound.borrow_mut().clear();
    inject_segments(&mut fx, &payloads, true);
    fx.drive();
    let sent: Vec<_> =
        fx.engine.device().outbound.borrow_mut().drain(..).map(Frame::from).collect();
    let parse = |frame| Segment::parse(frame, ChecksumMode::Software).unwrap();
    let segments: Vec<_> = sent.iter().map(parse).collect();
    assert!(segments.iter().any(|segment| Some(segment.ack) == end), "{segments:?}");
    assert!(segments.iter().all(|segment| segment.payload.is_empty()));
}

/// Sends these payloads in one segment each: all at once, or each after the engine was driven.
fn inject_segments(fx: &mut FpduFixture, payloads: &[Vec<u8>], at_once: bool) {
    let mut offset = 0;
    for payload in payloads {
        let frame = fx.build_frame(|fields| fields.seq += offset, payload);
        fx.engine.device().inbound.borrow_mut().push_back(frame);
        offset += u32::try_from(payload.len()).unwrap();
        if !at_once {
            fx.drive();
            fx.now = fx.now + MICROSECOND;
        }
    }
}

/// Payloads of the segments of a case.
type Payloads = dyn Fn(&FpduFixture) -> Vec<Vec<u8>>;

/// Memory, completions, end of the stream, and ULPDUs sent after these segments were received.
fn effects(payloads: &Payloads) -> [String; 2] {
    [true, false].map(|at_once| {
        let mut fx = connected();
        for wr_id in 1..=3 {
            fx.post_recv(wr_id, 2000 + 100 * wr_id, 100);
        }
        let payloads = payloads(&fx);
        inject_segments(&mut fx, &payloads, at_once);
        let sent = fx.sent_ulpdus();
        let (memory, completions) = (fx.arena.read(0, 4000), fx.poll_cq());
        let counters = fx.engine.counters();
        let counts = (counters.fpdus_in, counters.crc_errors, counters.frames_in);
        let end = fx.end_reason();
        format!("{memory:02x?} {completions:?} {end:?} {sent:02x?} {counts:?}")
    })
}

/// Eight Writes to different places, an FPDU each.
fn writes(fx: &FpduFixture) -> Vec<Vec<u8>> {
    let at = |i: u8| write(fx.mem_stag, u64::from(i) * 50, &[i + 1; 50]);
    (0..8).map(|i| fpdu(&at(i), true)).collect()
}

/// Eight Writes to one region, which a Send after the fourth invalidates.
fn invalidation(fx: &FpduFixture) -> Vec<Vec<u8>> {
    const SEND_INVALIDATE: u8 = 4;
    let stag = fx.register_for_stream(0, 1000, Access::ALL);
    let at = |i: u8| fpdu(&write(stag, u64::from(i) * 50, &[i + 1; 50]), true);
    let mut all: Vec<_> = (0..8).map(at).collect();
    all.insert(4, fpdu(&send_as(SEND_INVALIDATE, 1, stag, b"done"), true));
    all
}

#[test]
fn segments_received_together_act_as_one_by_one() {
    let cases: [(&str, &Payloads); 9] = [
        ("Writes", &writes),
        ("Writes and Sends", &|fx| {
            let mut all = writes(fx);
            all.insert(3, fpdu(&send(1, b"first"), true));
            all.insert(6, fpdu(&send(2, b"second"), true));
            all
        }),
        ("an FPDU across segments", &|fx| {
            let mut all = writes(fx);
            let tail = all[2].split_off(20);
            all[3].splice(0..0, tail);
            let tail = all[5].split_off(1);
            all.insert(6, tail);
            all
        }),
        ("several FPDUs in a segment", &|fx| {
            let all = writes(fx);
            all.chunks(3).map(<[_]>::concat).collect()
        }),
        ("a wrong CRC", &|fx| {
            let mut all = writes(fx);
            all[4][30] ^= 1;
            all
        }),
        ("an invalid STag", &|fx| {
            let mut all = writes(fx);
            all[4] = fpdu(&write(fx.mem_stag ^ 0x100, 0, b"x"), true);
            all
        }),
        ("an STag invalidated between Writes", &invalidation),
        ("an STag invalidated within a segment", &|fx| {
            invalidation(fx).chunks(3).map(<[_]>::concat).collect()
        }),
        ("a Send without a buffer", &|fx| {
            let mut all = writes(fx);
            for msn in 1..=4 {
                all.insert(msn as usize, fpdu(&send(msn, b"message"), true));
            }
            all
        }),
    ];
    for (name, payloads) in cases {
        let [together, alone] = effects(payloads);
        assert_eq!(together, alone, "{name}");
    }
}

/// Change of the segment with this number.
type Change = dyn Fn(&mut Fields, u32);

/// A burst that the fast path does not take, or not as one train, costs a few parses for each
/// frame.
#[test]
fn burst_is_not_parsed_again_for_each_frame() {
    const BURST: u32 = 32;
    const FAR: u32 = 1 << 30;
    let cases: [(&str, &Change); 10] = [
        ("a train", &|_, _| ()),
        ("URG", &|fields, _| fields.flags = Flags::ACK | Flags::URG),
        ("ECE", &|fields, _| fields.flags = Flags::ACK | Flags::ECE),
        ("CWR", &|fields, _| fields.flags = Flags::ACK | Flags::CWR),
        ("CE", &|fields, _| fields.ecn = Ecn::Ce),
        ("an old ACK", &|fields, _| fields.ack = fields.ack - 1),
        ("an ACK of unsent data", &|fields, _| fields.ack += FAR),
        ("beyond the window", &|fields, _| fields.seq += FAR),
        ("windows that differ", &|fields, at| fields.window ^= u16::from(at % 2 == 0)),
        ("PSH and URG in turn", &|fields, at| {
            fields.flags = Flags::ACK | if at % 2 == 0 { Flags::PSH } else { Flags::URG };
        }),
    ];
    for (name, change) in cases {
        let mut fx = connected();
        fx.inject_ulpdu(&write(fx.mem_stag, 0, b"first"));
        let payload = fpdu(&write(fx.mem_stag, 100, &[7; 1000]), true);
        let len = u32::try_from(payload.len()).unwrap();
        for at in 0..BURST {
            let frame = fx.build_frame(
                |fields| {
                    fields.seq += at * len;
                    change(fields, at);
                },
                &payload,
            );
            fx.engine.device().inbound.borrow_mut().push_back(frame);
        }
        let before = parses();
        fx.drive();
        let count = parses() - before;
        println!("{name}: {count} parses of {BURST} frames");
        assert!(count <= 3 * u64::from(BURST), "{name}: {count}");
        assert!(fx.engine.device().inbound.borrow().is_empty());
    }
}

/// A train ends where the window does.
#[test]
fn train_beyond_the_window_is_taken_up_to_it() {
    const WINDOW: u32 = 20_000;
    let mut fx = FpduFixture::with_config(1500, |config| {
        (config.tcp.recv_window, config.tcp.recv_window_max) = (WINDOW, WINDOW);
    });
    fx.inject(b"MPA ID Req Frame\x40\x01\0\0");
    fx.accept(&ConnParam::default());
    fx.inject_ulpdu(&write(0, 0, b""));
    let payload = fpdu(&write(fx.mem_stag, 100, &[7; 1000]), true);
    let len = u32::try_from(payload.len()).unwrap();
    let before = (parses(), fx.engine.counters().fpdus_in);
    for at in 0..32 {
        let frame = fx.build_frame(|fields| fields.seq += at * len, &payload);
        fx.engine.device().inbound.borrow_mut().push_back(frame);
    }
    fx.drive();
    assert_eq!(fx.engine.counters().fpdus_in - before.1, u64::from(WINDOW / len));
    assert!(parses() - before.0 <= 3 * 32, "{}", parses() - before.0);
}
