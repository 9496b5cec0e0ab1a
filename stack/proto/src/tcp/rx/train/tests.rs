//! Tests of trains of received segments: equal to the same segments one by one.

use super::TrainPayload;
use crate::device::RxFrame;
use crate::tcp::tests::{HeapFrame, Script};
use crate::tcp::{Config, Delivered};
use crate::wire::seq::Seq;
use crate::wire::tcp::{Flags, Options, PlainHeader, Segment};

/// Returns the next segments of the peer, with these payload lengths; the last has PSH.
fn segments(script: &Script, lens: &[u32]) -> Vec<Segment> {
    let fields = script.fields();
    let mut seq = fields.seq;
    let mut segments = Vec::new();
    for (index, &len) in lens.iter().enumerate() {
        let flags = if index + 1 == lens.len() { Flags::ACK | Flags::PSH } else { Flags::ACK };
        let payload = 66..66 + len as usize;
        segments.push(Segment {
            tuple: script.end.tcb.tuple(),
            seq,
            ack: fields.ack,
            flags,
            window: fields.window,
            ecn: fields.ecn,
            options: fields.options.clone(),
            payload,
        });
        seq += len;
    }
    segments
}

fn header(segment: &Segment) -> PlainHeader {
    segment.plain_header().expect("a segment without SACK blocks")
}

fn train(segments: &[Segment]) -> TrainPayload {
    let mut payload = TrainPayload::single(segments[0].payload_len());
    segments[1..].iter().for_each(|segment| payload.push(segment.payload_len()));
    payload
}

/// An established connection that has sent `in_flight` bytes, and whose peer acknowledges half.
fn established(options: &Options, in_flight: u64) -> Script {
    let mut script = Script::established(&Config::default(), options.clone());
    script.end.tcb.open_window();
    script.output();
    script.write(in_flight);
    script.ack += u32::try_from(in_flight / 2).unwrap();
    script.wait_us(50);
    script
}

#[test]
fn train_has_the_effect_of_its_segments() {
    let without_ts = Options { ts: None, ..Script::full_options() };
    for options in [Script::full_options(), without_ts] {
        for in_flight in [0, 2000] {
            for lens in [&[700, 700][..], &[1448; 16], &[1448, 1448, 1], &[9, 1448, 20, 300]] {
                let [mut one, mut other] = [(); 2].map(|()| established(&options, in_flight));
                let segments = segments(&one, lens);
                let sum = lens.iter().sum::<u32>();
                for segment in &segments {
                    let found = one.end.tcb.handle_segment(one.now, segment, ());
                    assert!(matches!(found, Delivered::InOrder { .. }));
                }
                let (tcb, end) = (&mut other.end.tcb, other.seq + sum);
                assert!(tcb.may_start_train(&header(&segments[0])));
                assert!(tcb.handle_plain(other.now, &header(&segments[0]), &train(&segments)));
                assert_eq!(tcb.rcv.nxt, end);
                // The ACK cancels the timer of the delayed ACK.
                assert_eq!(one.output(), other.output());
                let states = [one, other].map(|mut script| {
                    script.end.tcb.count_bytes();
                    format!("{:?}", script.end.tcb)
                });
                assert_eq!(states[0], states[1], "{lens:?}");
            }
        }
    }
}

#[test]
fn train_that_is_not_processed_changes_nothing() {
    let mut script = established(&Script::full_options(), 0);
    let good = segments(&script, &[1000, 1000]);
    let window = script.end.tcb.rcv.window();
    let state = format!("{:?}", script.end.tcb);
    let mut refuse = |first: &Segment, payload: &TrainPayload| {
        assert!(!script.end.tcb.handle_plain(script.now, &header(first), payload));
        assert_eq!(format!("{:?}", script.end.tcb), state);
    };
    refuse(&good[0], &TrainPayload { len: window + 1, ..train(&good) });
    refuse(&Segment { seq: Seq(4999), ..good[0].clone() }, &train(&good));
    let ack = good[0].ack + 1;
    refuse(&Segment { ack, ..good[0].clone() }, &train(&good));
    let flags = Flags::ACK | Flags::FIN;
    refuse(&Segment { flags, ..good[0].clone() }, &train(&good));
    assert!(script.end.tcb.handle_plain(script.now, &header(&good[0]), &train(&good)));
}

#[test]
fn train_starts_with_the_next_data_in_order() {
    let mut script = established(&Script::full_options(), 0);
    let good = segments(&script, &[1000])[0].clone();
    let tcb = &script.end.tcb;
    assert!(tcb.may_start_train(&header(&good)));
    let later = PlainHeader { seq: good.seq + 1, ..header(&good) };
    assert!(!tcb.may_start_train(&later));
    // A gap ends the fast path.
    let ahead = Segment { seq: good.seq + 2000, ..good.clone() };
    let frame = HeapFrame::new(&[0; 66 + 1000]);
    assert!(frame.len() >= ahead.payload.end);
    let _ = script.end.tcb.handle_segment(script.now, &ahead, frame);
    script.end.tcb.drop_ooo();
    assert!(!script.end.tcb.may_start_train(&header(&good)));
}
