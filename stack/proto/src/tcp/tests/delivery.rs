//! Delivery of received data: out-of-order segments and the responses to them, limits, receive
//! window autotuning, and all of it against a map of bytes.

use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::sack::{only_ack, script, send_at};
use super::{
    Config, Contiguous, Delivered, Fields, Flags, HeapFrame, OooPolicy, OooPool, Options, Script,
};
use crate::device::{ChecksumMode, RxFrame};
use crate::wire::tcp::{MAX_HEADER_LEN, SackBlock};

// req-test: MPA-023
#[test]
fn dropped_ooo_segment_is_not_sacked() {
    let mut script = script(&Config::default());
    let base = script.seq;
    script.end.ooo_policy = OooPolicy::Drop;
    let out = send_at(&mut script, base, 500, 500);
    assert_eq!(only_ack(&out, base), (0, vec![]));
    script.end.ooo_policy = OooPolicy::Buffer;
    let out = send_at(&mut script, base, 1000, 500);
    assert_eq!(only_ack(&out, base), (0, vec![(1000, 1500)]));
    // Retransmitted, it is offered again.
    let out = send_at(&mut script, base, 500, 500);
    assert_eq!(only_ack(&out, base), (0, vec![(500, 1500)]));
    let out = send_at(&mut script, base, 0, 500);
    assert_eq!(only_ack(&out, base), (1500, vec![]));
    assert_eq!((script.end.read, script.end.tcb.stats().ooo_rejected), (1500, 1));
}

#[test]
fn unclaimed_ooo_segment_is_dropped() {
    let mut script = script(&Config::default());
    let base = script.seq;
    let mut buf = vec![0; MAX_HEADER_LEN + 500];
    let fields = Fields { seq: base + 500, ..script.fields() };
    let len = script.template.emit(&mut buf, &fields, 500, ChecksumMode::Software);
    let frame = HeapFrame::new(&buf[..len]);
    let (tcb, pool) = (&mut script.end.tcb, &mut script.end.pool);
    let delivered = tcb.handle_segment(script.now, &frame.parse(), frame.clone());
    assert!(matches!(delivered, Delivered::OutOfOrder { offer, .. } if offer.seq() == base + 500));
    let again = tcb.handle_segment(script.now, &frame.parse(), frame.clone());
    let Delivered::OutOfOrder { frame, offer } = again else { panic!("offered again") };
    assert_eq!(offer.bytes(), len - 500..len);
    assert!(tcb.buffer_ooo(pool, offer, frame));
    assert_eq!((tcb.ooo_segments(), pool.frames() + pool.bytes()), (1, 1024));
}

#[test]
fn ooo_fin_counts_only_if_its_data_is_kept() {
    let mut script = script(&Config::default());
    let base = script.seq;
    let fin = |script: &Script| Fields {
        seq: base + 100,
        flags: Flags::ACK | Flags::FIN,
        ..script.fields()
    };
    script.end.ooo_policy = OooPolicy::Drop;
    script.send_data(fin(&script), 100);
    script.end.ooo_policy = OooPolicy::Consume;
    assert_eq!(script.end.tcb.peer.fin_seq, None);
    script.send_data(fin(&script), 100);
    assert_eq!(script.end.tcb.peer.fin_seq, Some(base + 200));
    let out = send_at(&mut script, base, 0, 100);
    assert_eq!(only_ack(&out, base), (201, vec![]));
    assert!(script.end.tcb.peer_finished());
    assert_eq!((script.end.read, script.end.tcb.stats().ooo_consumed), (200, 1));
}

#[test]
fn segment_spanning_several_gaps_fills_the_first() {
    let mut script = script(&Config::default());
    let base = script.seq;
    for from in [1000, 2000, 3000] {
        send_at(&mut script, base, from, 500);
    }
    // 500..4000 covers 500..1000, 1500..2000, 2500..3000 and 3500..4000.
    let mut acks = Vec::new();
    for _ in 0..4 {
        let out = send_at(&mut script, base, 500, 3500);
        acks.push(only_ack(&out, base).1);
    }
    let expected_sack = [(1000, 1500), (500, 1500), (500, 2500), (500, 3500)];
    let grown = [(500, 1500), (500, 2500), (500, 3500), (500, 4000)];
    for ((ack, expected_sack), grown) in acks.iter().zip(expected_sack).zip(grown) {
        assert_eq!(ack[..2], [expected_sack, grown]);
    }
    assert_eq!(script.end.tcb.ooo_segments(), 7);
    send_at(&mut script, base, 0, 500);
    assert_eq!(script.end.read, 4000);
}

// Limits.

#[test]
fn full_ooo_pool_still_accepts_data_at_rcv_nxt() {
    let cfg = Config { recv_window: 1 << 20, ..Config::default() };
    let mut script = script(&cfg);
    script.end.pool = OooPool::new(4, 6 * 1472, 1460);
    let base = script.seq;
    for at in 1..=20 {
        send_at(&mut script, base, 1400 * at, 1400);
    }
    let segment = script.end.tcb.ooo_segments();
    let stats = script.end.tcb.stats();
    assert_eq!((segment, stats.ooo_buffered, stats.ooo_overflow), (7, 7, 13));
    // Dropped segments are not SACKed.
    let out = send_at(&mut script, base, 1400 * 30, 1400);
    let end = 1400 * (u32::try_from(segment).unwrap() + 1);
    assert_eq!(only_ack(&out, base), (0, vec![(1400, end)]));
    // Data at RCV.NXT is always accepted, and then the rest, as the peer retransmits it.
    let out = send_at(&mut script, base, 0, 1400);
    assert_eq!(only_ack(&out, base), (end, vec![]));
    for at in segment as u32 + 1..=20 {
        send_at(&mut script, base, 1400 * at, 1400);
    }
    assert_eq!(script.end.read, 1400 * 21);
    assert_eq!((script.end.pool.frames(), script.end.pool.bytes()), (0, 0));
}

#[test]
fn ooo_pool_holds_a_long_fat_pipe_during_loss_recovery() {
    // 1 Gb/s and 20 ms: 1,700 segments in flight, 3 % of which are lost; few frames may be held.
    let cfg = Config { recv_window: 4 << 20, ..Config::default() };
    let mut script = script(&cfg);
    script.end.pool = OooPool::new(256, 16 << 20, 1460);
    let base = script.seq;
    let count = 1700;
    for at in (0..count).filter(|at: &u32| !at.is_multiple_of(33)) {
        script.deliver(&Fields { seq: base + 1448 * at, ..script.fields() }, 1448);
        if at.is_multiple_of(16) {
            script.output();
        }
    }
    assert_eq!(script.end.tcb.stats().ooo_overflow, 0);
    assert_eq!(script.end.pool.frames(), 128);
    for at in (0..count).filter(|at: &u32| at.is_multiple_of(33)) {
        send_at(&mut script, base, 1448 * at, 1448);
    }
    assert_eq!(script.end.read, 1448 * u64::from(count));
    assert!(!script.end.tcb.assembler.holds_memory(), "an idle connection keeps no memory");
}

// Receive window.

/// A sender that doubles its flight in each round trip, up to `rate` bytes per round trip and the
/// window; returns the window limit and the bytes sent in the last round.
fn run_slow_start_sender(script: &mut Script, rounds: u32, rate: u32, with_ts: bool) -> (u32, u32) {
    let rtt_us = 20_000;
    let mut window = script.end.tcb.rcv.window();
    let (mut flight, mut sent) = (14_480, 0);
    let mut edge = script.end.tcb.rcv.adv;
    for _ in 0..rounds {
        // Segments that the peer sends now echo the timestamp it has received last.
        let echo = script.end.tcb.ts.tsval(script.now);
        script.wait_us(rtt_us);
        sent = 0;
        let budget = flight.min(window).min(rate);
        let mut offer = window;
        while sent + 1448 <= budget {
            if with_ts {
                script.ts = Some((script.ts.unwrap().0 + 1, echo));
            }
            let out = script.send_data(script.fields(), 1448);
            script.seq += 1448;
            sent += 1448;
            for seg in out {
                offer = u32::from(seg.window) << 7;
                let right = seg.ack + offer;
                assert!(right >= edge, "the window shrank");
                edge = right;
            }
        }
        window = offer;
        flight = flight.saturating_mul(2);
    }
    (script.end.tcb.window_limit(), sent)
}

// req-test: DDP-242
#[test]
fn receive_window_grows_ahead_of_slow_start() {
    let mut script = script(&Config::default());
    assert_eq!(script.end.tcb.window_limit(), 256 * 1024);
    // 2.5 MB in 20 ms; nine doublings from ten segments reach it, and no window limits them.
    let (limit, sent) = run_slow_start_sender(&mut script, 10, 2_500_000, true);
    assert!(sent > 2_490_000, "{sent}");
    assert!((5_000_000..=6 << 20).contains(&limit), "{limit}");
}

#[test]
fn receive_window_does_not_grow_without_demand() {
    let mut script = script(&Config::default());
    let (limit, _) = run_slow_start_sender(&mut script, 30, 100_000, true);
    assert!(limit <= 370_000, "{limit}");
    // Nor beyond its limit.
    let cfg = Config { recv_window_max: 1 << 20, ..Config::default() };
    let mut script = self::script(&cfg);
    let (limit, sent) = run_slow_start_sender(&mut script, 20, 5_000_000, true);
    assert_eq!(limit, 1 << 20);
    assert!(sent > 900_000);
}

#[test]
fn startup_window_does_not_grow() {
    let mut script = Script::established(&Config::default(), Script::full_options());
    let (limit, _) = run_slow_start_sender(&mut script, 20, 1_000_000, true);
    assert_eq!(limit, Config::default().startup_window);
}

#[test]
fn receive_window_grows_without_timestamps() {
    let options = Options { ts: None, ..Script::full_options() };
    let mut script = Script::established(&Config::default(), options);
    script.end.tcb.open_window();
    script.output();
    let (limit, sent) = run_slow_start_sender(&mut script, 20, 2_500_000, false);
    assert!(limit >= 5_000_000 && sent > 2_490_000, "{limit} {sent}");
}

#[test]
fn unscaled_receive_window_stays_below_64_kib() {
    let options = Options { wscale: None, ..Script::full_options() };
    let mut script = Script::established(&Config::default(), options);
    script.end.tcb.open_window();
    script.end.tcb.grow_window(1 << 20);
    assert_eq!(script.end.tcb.window_limit(), 0xffff);
    script.output();
    // A small change of the unconsumed bytes causes no window update.
    script.end.tcb.add_unconsumed(1000);
    script.end.tcb.consume(1000);
    assert!(script.output().is_empty());
}

// Against a map of bytes.

/// Model of an upper layer: out-of-order data that it accepted, and data delivered in order.
#[derive(Default)]
struct Model {
    /// The segment that brought each accepted byte.
    owner: Vec<Option<u8>>,
    /// Bytes consumed out of order.
    consumed_ooo: Vec<bool>,
    /// Offset of the next in-order byte.
    next: usize,
}

impl Model {
    fn accept(&mut self, from: usize, bytes: &[u8]) {
        for (cell, id) in (from..).zip(bytes) {
            assert_eq!(self.owner[cell].replace(*id), None, "byte {cell} was accepted twice");
        }
    }

    /// Delivers `bytes` in order.
    fn advance(&mut self, bytes: &[u8]) {
        for id in bytes {
            assert_eq!(self.owner[self.next], Some(*id), "byte {}", self.next);
            assert!(!self.consumed_ooo[self.next], "byte {} was taken before", self.next);
            self.next += 1;
        }
    }
}

fn bytes_of(frame: &impl RxFrame, bytes: &core::ops::Range<usize>) -> Vec<u8> {
    let mut out = vec![0; bytes.len()];
    frame.copy_out(bytes.start, &mut out);
    out
}

/// Processes segments `(from, len, response)`, each with distinct bytes.
fn check_against_model(segments: &[(u32, u32, u8)]) {
    let mut script = script(&Config::default());
    let base = script.seq;
    let mut model = Model { owner: vec![None; 400], consumed_ooo: vec![false; 400], next: 0 };
    let mut pool = OooPool::new(6, 1 << 20, 1460);
    // At the end every byte is sent once more, so that all are delivered.
    let all = segments.iter().copied().chain((0..400).map(|at| (at, 1, 0)));
    for ((from, len, action), id) in all.zip((0..250u8).cycle()) {
        let mut buf = vec![id; MAX_HEADER_LEN + len as usize];
        let fields = Fields { seq: base + from, ..script.fields() };
        let start = script.template.base_len() + fields.options.wire_len();
        let total = script.template.emit(
            &mut buf[..start + len as usize],
            &fields,
            len as usize,
            ChecksumMode::Software,
        );
        let frame = HeapFrame::new(&buf[..total]);
        let seg = frame.parse();
        let tcb = &mut script.end.tcb;
        match tcb.handle_segment(script.now, &seg, frame) {
            Delivered::Nothing => {}
            Delivered::InOrder { frame, bytes } => {
                model.accept(model.next, &bytes_of(&frame, &bytes));
                model.advance(&bytes_of(&frame, &bytes));
            }
            Delivered::OutOfOrder { frame, offer } => {
                let first = (offer.seq() - base) as usize;
                let found = bytes_of(&frame, &offer.bytes());
                assert!(first > model.next && !found.is_empty());
                match action {
                    0 => {
                        if tcb.buffer_ooo(&mut pool, offer, frame) {
                            model.accept(first, &found);
                        }
                    }
                    1 => {
                        tcb.consumed_ooo(&mut pool, offer);
                        model.accept(first, &found);
                        model.consumed_ooo[first..first + found.len()].fill(true);
                    }
                    _ => tcb.drop_ooo(offer),
                }
            }
        }
        while let Some(next) = tcb.next_contiguous() {
            match next {
                Contiguous::Buffered { segment, bytes } => {
                    model.advance(&bytes_of(&segment, &bytes));
                    pool.release(segment);
                }
                Contiguous::Consumed { seq, len } => {
                    assert_eq!((seq - base) as usize, model.next);
                    let range = model.next..model.next + len as usize;
                    assert!(model.consumed_ooo[range.clone()].iter().all(|taken| *taken));
                    model.next = range.end;
                }
            }
        }
        assert_eq!((tcb.rcv_nxt() - base) as usize, model.next);
        // The SACK blocks are exactly the accepted bytes.
        let mut runs: Vec<SackBlock> = Vec::new();
        for (at, _) in (0..).zip(&model.owner).skip(model.next).filter(|(_, id)| id.is_some()) {
            match runs.last_mut().filter(|run| run.1 == base + at) {
                Some(run) => run.1 = base + at + 1,
                None => runs.push((base + at, base + at + 1)),
            }
        }
        assert_eq!(tcb.assembler.ranges(), runs);
        tcb.release_ooo(&mut pool);
    }
    assert_eq!((model.next, pool.frames(), pool.bytes()), (400, 0, 0));
}

proptest! {
    // req-test: MPA-003, MPA-032, MPA-033, MPA-052
    #[test]
    fn each_byte_is_delivered_once_under_any_ooo_policy(
        segments in prop::collection::vec((0u32..340, 1u32..60, 0u8..4), 1..60)
    ) {
        check_against_model(&segments);
    }
}

#[test]
fn random_ooo_policy_loses_no_data() {
    for seed in 0..20 {
        let mut script = script(&Config::default());
        let base = script.seq;
        script.end.ooo_policy = OooPolicy::Random(SmallRng::seed_from_u64(seed));
        for round in 0..20 {
            for at in (round..20).rev() {
                send_at(&mut script, base, 700 * at, 700);
            }
        }
        assert_eq!(script.end.read, 14_000);
    }
}
