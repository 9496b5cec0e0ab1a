//! The scoreboard against a model that examines every record each time.

use proptest::prelude::*;

use super::{AckInfo, Scoreboard};
use crate::tcp::lazy::Lazy;
use crate::tcp::recovery::rack::{Rack, SampleGuard};
use crate::tcp::recovery::sent_frame::{COPY_OVERHEAD, CopyPool};
use crate::tcp::tests::HeapFrame;
use crate::time::Instant;
use crate::wire::seq::Seq;

const START: Seq = Seq(0xffff_f000);

#[derive(Clone, Debug, PartialEq, Eq)]
struct ModelRecord {
    seq: Seq,
    len: u32,
    sent_at: Instant,
    sacked: bool,
    /// Waits for retransmission.
    to_retransmit: bool,
    lost: bool,
    retransmitted: bool,
}

#[derive(Clone, Debug)]
enum Op {
    Push { lens: Vec<u32> },
    Ack { bytes: u32 },
    Sack { first: usize, count: usize },
    DetectLost { timeout_ns: u64 },
    Retransmit { count: usize },
    Tlp,
    Rto { timeout_ns: u64 },
    ClearLost,
    Split,
    Longer { len: u32 },
    Wait { ns: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => proptest::collection::vec(1u32..2000, 1..12).prop_map(|lens| Op::Push { lens }),
        3 => (0u32..6000).prop_map(|bytes| Op::Ack { bytes }),
        6 => (0usize..40, 1usize..8).prop_map(|(first, count)| Op::Sack { first, count }),
        6 => (0u64..3000).prop_map(|timeout_ns| Op::DetectLost { timeout_ns }),
        6 => (1usize..6).prop_map(|count| Op::Retransmit { count }),
        1 => Just(Op::Tlp),
        1 => (0u64..3000).prop_map(|timeout_ns| Op::Rto { timeout_ns }),
        1 => Just(Op::ClearLost),
        1 => Just(Op::Split),
        1 => (1u32..2000).prop_map(|len| Op::Longer { len }),
        6 => (1u64..2000).prop_map(|ns| Op::Wait { ns }),
    ]
}

struct Checked {
    scoreboard: Lazy<Scoreboard<()>>,
    model: Vec<ModelRecord>,
    rack: Rack,
    now: Instant,
    una: Seq,
    nxt: Seq,
}

impl Checked {
    fn new() -> Self {
        Self {
            scoreboard: Lazy::new(),
            model: Vec::new(),
            rack: Rack::new(),
            now: Instant::from_nanos(1_000_000),
            una: START,
            nxt: START,
        }
    }

    fn guard(&self) -> SampleGuard {
        SampleGuard { now: self.now, min_rtt: 0, echo: None, ts_offset: 0 }
    }

    fn advance_rack(&mut self, info: AckInfo) {
        if let Some(newest) = info.newest {
            self.rack.advance(self.now, newest);
        }
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Push { lens } => {
                for len in lens {
                    self.scoreboard.push(self.now, self.nxt, len, 0, (), true);
                    self.model.push(ModelRecord {
                        seq: self.nxt,
                        len,
                        sent_at: self.now,
                        sacked: false,
                        to_retransmit: false,
                        lost: false,
                        retransmitted: false,
                    });
                    self.nxt += len;
                }
            }
            Op::Ack { bytes } => self.ack(bytes),
            Op::Sack { first, count } => {
                let Some(from) = self.model.get(first) else { return };
                let last = &self.model[(first + count - 1).min(self.model.len() - 1)];
                let block = (from.seq, last.seq + last.len);
                let (guard, mut info) = (self.guard(), AckInfo::default());
                self.scoreboard.update(|records| {
                    records.apply_sack(&[block], self.una, self.nxt, &guard, &mut info)
                });
                self.advance_rack(info);
                let mut bytes = 0;
                for plain in self.model.iter_mut().skip(first).take(count) {
                    bytes += if plain.sacked { 0 } else { plain.len };
                    (plain.sacked, plain.lost, plain.to_retransmit) = (true, false, false);
                }
                assert_eq!(info.delivered, bytes);
            }
            Op::DetectLost { timeout_ns } => {
                let update = self
                    .scoreboard
                    .update(|records| records.detect_lost(self.now, &self.rack, timeout_ns));
                let (mut bytes, mut next) = (0, None::<Instant>);
                for plain in &mut self.model {
                    if plain.sacked
                        || plain.to_retransmit
                        || !self.rack.delivered_after(plain.sent_at, plain.seq + plain.len)
                    {
                        continue;
                    }
                    let due = plain.sent_at + timeout_ns;
                    if due <= self.now {
                        bytes += plain.len;
                        (plain.lost, plain.to_retransmit) = (true, true);
                    } else {
                        next = Some(next.map_or(due, |next| next.min(due)));
                    }
                }
                assert_eq!((update.bytes, update.next_timeout), (bytes, next));
            }
            Op::Retransmit { count } => {
                for _ in 0..count {
                    let first = self.model.iter().position(|plain| plain.to_retransmit);
                    assert_eq!(self.scoreboard.update(|records| records.next_lost()), first);
                    let Some(index) = first else { break };
                    self.retransmit(index);
                }
            }
            Op::Tlp => {
                if let Some(index) = self.model.len().checked_sub(1)
                    && !self.model[index].sacked
                    && !self.model[index].lost
                {
                    self.retransmit(index);
                }
            }
            Op::Rto { timeout_ns } => {
                let reneged = self.model.first().is_some_and(|plain| plain.sacked);
                self.scoreboard.update(|records| records.mark_lost_on_rto(self.now, timeout_ns));
                for (index, plain) in self.model.iter_mut().enumerate() {
                    plain.sacked &= !reneged;
                    if !plain.sacked && (index == 0 || plain.sent_at + timeout_ns <= self.now) {
                        (plain.lost, plain.to_retransmit) = (true, true);
                    }
                }
            }
            Op::ClearLost => {
                self.scoreboard.update(|records| records.clear_lost(true));
                for plain in &mut self.model {
                    (plain.lost, plain.to_retransmit) = (false, false);
                }
            }
            Op::Split => {
                if let Some(index) = self.scoreboard.update(|records| records.next_lost())
                    && self.model[index].len > 1
                {
                    let len = self.model[index].len / 2;
                    self.scoreboard.update(|records| records.split(index, len));
                    let mut rest = self.model[index].clone();
                    (rest.seq, rest.len) = (rest.seq + len, rest.len - len);
                    self.model[index].len = len;
                    self.model.insert(index + 1, rest);
                }
            }
            Op::Longer { len } => {
                self.scoreboard.update(|records| records.mark_longer_lost(len));
                for plain in self.model.iter_mut().filter(|plain| plain.len > len) {
                    if !plain.sacked {
                        (plain.lost, plain.to_retransmit) = (true, true);
                    }
                }
            }
            Op::Wait { ns } => self.now = self.now + ns,
        }
    }

    fn retransmit(&mut self, index: usize) {
        self.now = self.now + 1;
        self.scoreboard.update(|records| records.mark_retransmitted(self.now, index, true));
        let plain = &mut self.model[index];
        (plain.sent_at, plain.retransmitted, plain.to_retransmit) = (self.now, true, false);
    }

    fn ack(&mut self, bytes: u32) {
        let ack = self.una + bytes.min(self.nxt - self.una);
        let (guard, mut info) = (self.guard(), AckInfo::default());
        self.scoreboard.update(|records| records.ack(ack, Some(&guard), &mut info));
        self.advance_rack(info);
        let sacked: u32 = self.model.iter().filter(|plain| plain.sacked).map(|p| p.len).sum();
        let before = (self.nxt - self.una) - sacked;
        self.una = ack;
        self.model.retain(|plain| plain.seq + plain.len > ack);
        if let Some(first) = self.model.first_mut().filter(|first| first.seq < ack) {
            first.len -= ack - first.seq;
            first.seq = ack;
        }
        let sacked: u32 = self.model.iter().filter(|plain| plain.sacked).map(|p| p.len).sum();
        assert_eq!(info.delivered, before - ((self.nxt - self.una) - sacked), "DeliveredData");
    }

    fn check(&self) {
        self.scoreboard.check(true);
        let sum = |of: fn(&ModelRecord) -> bool| -> u32 {
            self.model.iter().filter(|plain| of(plain)).map(|plain| plain.len).sum()
        };
        assert_eq!(self.scoreboard.len(), self.model.len());
        assert_eq!(self.scoreboard.sacked(), sum(|plain| plain.sacked));
        assert_eq!(
            self.scoreboard.needs_retransmit(),
            self.model.iter().any(|plain| plain.to_retransmit)
        );
        let longest = self.model.iter().filter(|plain| plain.sacked).map(|plain| plain.len).max();
        assert!(self.scoreboard.longest_sacked() >= longest.unwrap_or(0));
        let gone = sum(|plain| plain.sacked || plain.to_retransmit);
        assert_eq!(self.scoreboard.pipe(self.nxt - self.una), self.nxt - self.una - gone);
        assert!(self.scoreboard.retransmissions.len() <= 2 * self.model.len() + 64);
    }
}

proptest! {
    #[test]
    fn scoreboard_matches_the_model(
        ops in proptest::collection::vec(op(), 1..120),
    ) {
        let mut both = Checked::new();
        for op in ops {
            both.run(op);
            both.check();
        }
    }
}

/// Scoreboard of `count` records, of which the last is SACKed and all others but one are lost and
/// retransmitted.
fn with_one_lost(count: usize) -> Checked {
    let mut both = Checked::new();
    both.run(Op::Push { lens: vec![100; count] });
    both.run(Op::Wait { ns: 1000 });
    both.run(Op::Sack { first: count - 1, count: 1 });
    both.run(Op::DetectLost { timeout_ns: 0 });
    both.run(Op::Retransmit { count: count - 2 });
    both
}

/// A peer that reports every other retransmission, one at a time, has those before retransmitted
/// again. A loss at the end waits meanwhile: the windows do not admit it.
#[test]
fn cost_of_lost_retransmissions_is_independent_of_record_count() {
    const ACKS: usize = 20;
    let steps_per_ack = |count: usize| {
        let mut both = with_one_lost(count);
        let before = both.scoreboard.steps;
        for ack in 0..ACKS {
            both.run(Op::Wait { ns: 1000 });
            both.run(Op::Sack { first: 2 * ack + 1, count: 1 });
            both.run(Op::DetectLost { timeout_ns: 0 });
            both.run(Op::Retransmit { count: 1 });
            for _ in 0..16 {
                assert_eq!(both.scoreboard.update(|records| records.next_lost()), Some(count - 2));
            }
        }
        both.check();
        (both.scoreboard.steps - before) / ACKS
    };
    let (few, many) = (steps_per_ack(64), steps_per_ack(4096));
    println!("steps per ACK: {few} of 64 records, {many} of 4096");
    assert!(few <= 32 && many <= 32, "{few} {many}");
}

/// A peer may repeat SACK blocks in any order, each from another start: records known to be SACKed
/// are not examined one by one again.
#[test]
fn cost_of_repeated_sacks_is_independent_of_sacked_count() {
    let steps_per_block = |count: u32| {
        let mut scoreboard: Lazy<Scoreboard<()>> = Lazy::new();
        let now = Instant::from_nanos(1_000_000);
        let guard = SampleGuard { now, min_rtt: 0, echo: None, ts_offset: 0 };
        for at in 0..count {
            scoreboard.push(now, START + at * 100, 100, 0, (), true);
        }
        let end = START + count * 100;
        let block = |from: u32, to: u32| (START + from * 100, START + to * 100);
        let mut apply = |block| {
            scoreboard.update(|records| {
                records.apply_sack(&[block], START, end, &guard, &mut AckInfo::default())
            });
            scoreboard.steps
        };
        let first = apply(block(1, count));
        assert_eq!(first, count as usize - 1, "each is new");
        let mut last = first;
        for round in 0..1000 {
            apply(block(2, 3));
            apply(block(1 + round % (count - 2), count));
            last = apply(block(1, count - round % (count / 2)));
        }
        (last - first) / 3000
    };
    let (few, many) = (steps_per_block(64), steps_per_block(4096));
    println!("steps per block: {few} of 64 records, {many} of 4096");
    assert!(few <= 3 && many <= 3, "{few} {many}");
}

#[test]
fn retransmission_queue_is_bounded() {
    let mut both = Checked::new();
    both.run(Op::Push { lens: vec![1000; 4] });
    for _ in 0..10_000 {
        both.run(Op::Rto { timeout_ns: 0 });
        both.run(Op::Retransmit { count: 4 });
        both.run(Op::Tlp);
        both.check();
    }
    assert!(both.scoreboard.retransmissions.capacity() <= 64);
}

#[test]
fn memory_is_allocated_on_push_and_released_when_empty() {
    let mut both = Checked::new();
    assert!(!both.scoreboard.holds_memory());
    both.run(Op::Push { lens: vec![1000; 100] });
    both.scoreboard.release_memory();
    assert!(both.scoreboard.holds_memory(), "not the records in use");
    both.run(Op::Ack { bytes: u32::MAX });
    assert!(both.scoreboard.holds_memory());
    both.scoreboard.release_memory();
    assert!(!both.scoreboard.holds_memory());
}

#[test]
fn copy_out_copies_the_oldest_frames() {
    let mut scoreboard = Lazy::<Scoreboard<_>>::new();
    let now = Instant::from_nanos(1_000_000);
    for at in 0..6 {
        let bytes: Vec<u8> = (0..100).map(|byte| byte + 100 * u8::from(at % 2 == 1)).collect();
        scoreboard.push(now, START + at * 100, 100, 0, HeapFrame::new(&bytes), true);
    }
    let pool = CopyPool::new(5 * (100 + COPY_OVERHEAD), 100);
    assert_eq!(
        (
            scoreboard.update(|records| records.copy_out(&pool, 1)),
            scoreboard.update(|records| records.copy_out(&pool, 1))
        ),
        (1, 1)
    );
    // Both parts of a split record share its copy; an acknowledgment releases it.
    scoreboard.update(|records| records.split(1, 40));
    scoreboard.update(|records| records.ack(START + 140, None, &mut AckInfo::default()));
    assert_eq!((pool.count(), scoreboard.len()), (1, 5));
    assert_eq!(scoreboard.get(0).unwrap().frame.bytes()[40], 140);
    // One of them is a copy already; of five copies one connection gets three.
    assert_eq!((scoreboard.update(|records| records.copy_out(&pool, 100)), pool.count()), (2, 3));
    let is_copy: Vec<bool> = (0..5).map(|at| scoreboard.get(at).unwrap().frame.is_copy()).collect();
    assert_eq!(is_copy, [true, true, true, false, false]);
    scoreboard.update(|records| records.ack(START + 600, None, &mut AckInfo::default()));
    assert_eq!((pool.count(), scoreboard.update(|records| records.copy_out(&pool, 100))), (0, 0));
}

#[test]
fn record_size_is_bounded() {
    assert!(size_of::<super::Record<usize>>() <= 40);
}

/// Sequence numbers wrap after 4 GiB, and earlier SACK information is void then.
#[test]
fn sacked_runs_do_not_outlive_their_records() {
    let mut scoreboard: Lazy<Scoreboard<()>> = Lazy::new();
    let now = Instant::from_nanos(1_000_000);
    let guard = SampleGuard { now, min_rtt: 0, echo: None, ts_offset: 0 };
    let end = START + 4000;
    for block in [(START + 1000, START + 3000), (START + 2000, end)] {
        for at in 0..4 {
            scoreboard.push(now, START + at * 1000, 1000, 0, (), true);
        }
        scoreboard.update(|records| {
            records.apply_sack(&[block], START, end, &guard, &mut AckInfo::default())
        });
        assert_eq!(scoreboard.sacked(), 2000);
        scoreboard.update(|records| records.ack(end, None, &mut AckInfo::default()));
        assert_eq!(scoreboard.sacked(), 0);
    }
}
