//! Tests of header prediction: the hot state; trains of received segments, which have the effect of
//! the same segments one by one.

use core::cell::Cell;
use core::mem::{align_of, offset_of, size_of};
use core::ops::Sub;

use super::TrainPayload;
use crate::device::RxFrame;
use crate::tcp::tests::{HeapFrame, Script, TestTcb};
use crate::tcp::{Config, Delivered, HOT_LEN};
use crate::wire::tcp::{Ecn, Flags, Options, PlainHeader, Segment};

/// Segments of this thread's connections that took the fast path.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::tcp) struct Counts {
    pub(in crate::tcp) received: u64,
    pub(in crate::tcp) sent: u64,
}

thread_local! {
    static COUNTS: Cell<Counts> = Cell::default();
}

impl Counts {
    pub(in crate::tcp) fn now() -> Self {
        COUNTS.get()
    }

    pub(super) fn received() {
        COUNTS.set(Self { received: COUNTS.get().received + 1, ..COUNTS.get() });
    }

    pub(super) fn sent() {
        COUNTS.set(Self { sent: COUNTS.get().sent + 1, ..COUNTS.get() });
    }
}

impl Sub for Counts {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self { received: self.received - before.received, sent: self.sent - before.sent }
    }
}

/// Offset and length of fields.
macro_rules! places {
    ($($field:ident $(. $part:ident)*),* $(,)?) => {{
        let length = |tcb: &TestTcb| [$(size_of_val(&tcb.$field $(.$part)*)),*];
        let names = [$(stringify!($field $(.$part)*)),*];
        (names, [$(offset_of!(TestTcb, $field $(.$part)*)),*], length)
    }};
}

/// Every field of [`super::HotState`], and what else the public functions of the fast path access.
#[test]
fn hot_state_fits_three_cache_lines() {
    let (names, offsets, length) = places![
        scoreboard,
        cfg,
        timers,
        last_rx_at,
        rcv,
        snd,
        ts,
        rtt_cache,
        segment_counts,
        rcv_round_end,
        progress_at,
        last_tx_at,
        pacing_credit,
        emss,
        ts_on,
        fast_path,
        cc.window,
        cc.cwnd_limited,
    ];
    let end =
        crate::tcp::tests::Endpoint::client(&Config::default(), 1, crate::time::Instant::ZERO);
    let mut sum = 0;
    for ((name, offset), len) in names.into_iter().zip(offsets).zip(length(&end.tcb)) {
        println!("{offset:4} {len:3} {name}");
        assert!(offset + len <= HOT_LEN, "{name} ends at {}", offset + len);
        sum += len;
    }
    println!("{sum} bytes of {HOT_LEN} are hot, {} in all", size_of::<TestTcb>());
    assert_eq!(HOT_LEN, 3 * 64);
    assert_eq!(align_of::<TestTcb>(), 8, "the slot has the alignment of a line");
}

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

/// Receives a train; true if it was processed. Its segments after the first are looked for only
/// then, and must fit the window.
fn receive_train(script: &mut Script, segments: &[Segment]) -> bool {
    let mut is_found = false;
    let len = segments[0].payload_len();
    let header = header(&segments[0]);
    let received = script.end.tcb.handle_plain(script.now, &header, len, |tcb, len_max| {
        assert_eq!(len_max, tcb.rcv.window());
        is_found = true;
        train(segments)
    });
    assert_eq!(is_found, received.is_some());
    received.is_some()
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
                let end = other.seq + sum;
                assert!(receive_train(&mut other, &segments));
                assert_eq!(other.end.tcb.rcv.nxt, end);
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
fn train_that_is_not_processed_is_not_looked_for_and_changes_nothing() {
    let mut script = established(&Script::full_options(), 0);
    let good = segments(&script, &[1000, 1000]);
    let state = format!("{:?}", script.end.tcb);
    let mut refuse = |first: Segment| {
        let with_first = [first, good[1].clone()];
        assert!(!receive_train(&mut script, &with_first));
        assert_eq!(format!("{:?}", script.end.tcb), state);
    };
    let first = good[0].clone();
    refuse(Segment { seq: first.seq - 1, ..first.clone() });
    refuse(Segment { seq: first.seq + 1, ..first.clone() });
    refuse(Segment { ack: first.ack + 1, ..first.clone() });
    refuse(Segment { ack: first.ack - 1, ..first.clone() });
    for flag in [Flags::FIN, Flags::URG, Flags::ECE, Flags::CWR, Flags::SYN, Flags::RST] {
        refuse(Segment { flags: Flags::ACK | flag, ..first.clone() });
    }
    refuse(Segment { flags: Flags::PSH, ..first.clone() });
    refuse(Segment { ecn: Ecn::Ce, ..first.clone() });
    let mut aged = first.clone();
    aged.options.ts = first.options.ts.map(|(val, echo)| (val.wrapping_sub(1 << 30), echo));
    refuse(aged);
    let mut bare = first;
    bare.options.ts = None;
    refuse(bare);
    assert!(receive_train(&mut script, &good));
}

#[test]
fn no_train_begins_beyond_a_gap() {
    let mut script = established(&Script::full_options(), 0);
    let good = segments(&script, &[1000]);
    let ahead = Segment { seq: good[0].seq + 2000, ..good[0].clone() };
    let frame = HeapFrame::new(&[0; 66 + 1000]);
    assert!(frame.len() >= ahead.payload.end);
    let delivered = script.end.tcb.handle_segment(script.now, &ahead, frame);
    let Delivered::OutOfOrder { offer, .. } = delivered else { panic!("offered") };
    script.end.tcb.drop_ooo(offer);
    assert!(!receive_train(&mut script, &good));
}
