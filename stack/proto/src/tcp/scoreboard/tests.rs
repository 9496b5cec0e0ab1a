//! The scoreboard against a model that looks at every record each time.

use proptest::prelude::*;

use super::{News, Scoreboard};
use crate::tcp::kept::CopyPool;
use crate::tcp::rack::{Guard, Rack};
use crate::tcp::tests::Heap;
use crate::time::Instant;
use crate::wire::seq::Seq;

const START: Seq = Seq(0xffff_f000);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Plain {
    seq: Seq,
    len: u32,
    sent_at: Instant,
    sacked: bool,
    /// Waits to be sent again.
    waiting: bool,
    lost: bool,
    again: bool,
}

#[derive(Clone, Debug)]
enum Op {
    Push { lens: Vec<u32> },
    Ack { octets: u32 },
    Sack { first: usize, count: usize },
    Judge { patience: u64 },
    Resend { count: usize },
    Probe,
    Timeout { patience: u64 },
    Forgive,
    Cut,
    Wait { ns: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => proptest::collection::vec(1u32..2000, 1..12).prop_map(|lens| Op::Push { lens }),
        3 => (0u32..6000).prop_map(|octets| Op::Ack { octets }),
        6 => (0usize..40, 1usize..8).prop_map(|(first, count)| Op::Sack { first, count }),
        6 => (0u64..3000).prop_map(|patience| Op::Judge { patience }),
        6 => (1usize..6).prop_map(|count| Op::Resend { count }),
        1 => Just(Op::Probe),
        1 => (0u64..3000).prop_map(|patience| Op::Timeout { patience }),
        1 => Just(Op::Forgive),
        1 => Just(Op::Cut),
        6 => (1u64..2000).prop_map(|ns| Op::Wait { ns }),
    ]
}

struct Both {
    board: Scoreboard<()>,
    plain: Vec<Plain>,
    rack: Rack,
    now: Instant,
    una: Seq,
    nxt: Seq,
}

impl Both {
    fn new() -> Self {
        Self {
            board: Scoreboard::new(),
            plain: Vec::new(),
            rack: Rack::new(),
            now: Instant::from_nanos(1_000_000),
            una: START,
            nxt: START,
        }
    }

    fn guard(&self) -> Guard {
        Guard { now: self.now, min_rtt: 0, echo: None, ts_offset: 0 }
    }

    fn take(&mut self, news: News) {
        if let Some(newest) = news.newest {
            self.rack.delivered(self.now, newest);
        }
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Push { lens } => {
                for len in lens {
                    self.board.push(self.now, self.nxt, len, 0, (), true);
                    self.plain.push(Plain {
                        seq: self.nxt,
                        len,
                        sent_at: self.now,
                        sacked: false,
                        waiting: false,
                        lost: false,
                        again: false,
                    });
                    self.nxt += len;
                }
            }
            Op::Ack { octets } => self.ack(octets),
            Op::Sack { first, count } => {
                let Some(from) = self.plain.get(first) else { return };
                let last = &self.plain[(first + count - 1).min(self.plain.len() - 1)];
                let block = (from.seq, last.seq + last.len);
                let (guard, mut news) = (self.guard(), News::default());
                self.board.apply_sack(&[block], self.una, self.nxt, &guard, &mut news);
                self.take(news);
                let mut octets = 0;
                for plain in self.plain.iter_mut().skip(first).take(count) {
                    octets += if plain.sacked { 0 } else { plain.len };
                    (plain.sacked, plain.lost, plain.waiting) = (true, false, false);
                }
                assert_eq!(news.octets, octets);
            }
            Op::Judge { patience } => {
                let verdict = self.board.detect_lost(self.now, &self.rack, patience);
                let (mut octets, mut next) = (0, None::<Instant>);
                for plain in &mut self.plain {
                    if plain.sacked
                        || plain.waiting
                        || !self.rack.is_after(plain.sent_at, plain.seq + plain.len)
                    {
                        continue;
                    }
                    let due = plain.sent_at + patience;
                    if due <= self.now {
                        octets += plain.len;
                        (plain.lost, plain.waiting) = (true, true);
                    } else {
                        next = Some(next.map_or(due, |next| next.min(due)));
                    }
                }
                assert_eq!((verdict.octets, verdict.next), (octets, next));
            }
            Op::Resend { count } => {
                for _ in 0..count {
                    let first = self.plain.iter().position(|plain| plain.waiting);
                    assert_eq!(self.board.next_lost(), first);
                    let Some(index) = first else { break };
                    self.resend(index);
                }
            }
            Op::Probe => {
                if let Some(index) = self.plain.len().checked_sub(1)
                    && !self.plain[index].sacked
                    && !self.plain[index].lost
                {
                    self.resend(index);
                }
            }
            Op::Timeout { patience } => {
                let reneged = self.plain.first().is_some_and(|plain| plain.sacked);
                self.board.lose_at_timeout(self.now, patience);
                for (index, plain) in self.plain.iter_mut().enumerate() {
                    plain.sacked &= !reneged;
                    if !plain.sacked && (index == 0 || plain.sent_at + patience <= self.now) {
                        (plain.lost, plain.waiting) = (true, true);
                    }
                }
            }
            Op::Forgive => {
                self.board.forgive(true);
                for plain in &mut self.plain {
                    (plain.lost, plain.waiting) = (false, false);
                }
            }
            Op::Cut => {
                if let Some(index) = self.board.next_lost()
                    && self.plain[index].len > 1
                {
                    let len = self.plain[index].len / 2;
                    self.board.cut(index, len);
                    let mut rest = self.plain[index].clone();
                    (rest.seq, rest.len) = (rest.seq + len, rest.len - len);
                    self.plain[index].len = len;
                    self.plain.insert(index + 1, rest);
                }
            }
            Op::Wait { ns } => self.now = self.now + ns,
        }
    }

    fn resend(&mut self, index: usize) {
        self.now = self.now + 1;
        self.board.resent(self.now, index, true);
        let plain = &mut self.plain[index];
        (plain.sent_at, plain.again, plain.waiting) = (self.now, true, false);
    }

    fn ack(&mut self, octets: u32) {
        let ack = self.una + octets.min(self.nxt - self.una);
        let (guard, mut news) = (self.guard(), News::default());
        self.board.ack(ack, Some(&guard), &mut news);
        self.take(news);
        let held: u32 = self.plain.iter().filter(|plain| plain.sacked).map(|p| p.len).sum();
        let before = (self.nxt - self.una) - held;
        self.una = ack;
        self.plain.retain(|plain| plain.seq + plain.len > ack);
        if let Some(first) = self.plain.first_mut().filter(|first| first.seq < ack) {
            first.len -= ack - first.seq;
            first.seq = ack;
        }
        let held: u32 = self.plain.iter().filter(|plain| plain.sacked).map(|p| p.len).sum();
        assert_eq!(news.octets, before - ((self.nxt - self.una) - held), "DeliveredData");
    }

    fn check(&self) {
        self.board.check(true);
        let sum = |of: fn(&Plain) -> bool| -> u32 {
            self.plain.iter().filter(|plain| of(plain)).map(|plain| plain.len).sum()
        };
        assert_eq!(self.board.len(), self.plain.len());
        assert_eq!(self.board.sacked(), sum(|plain| plain.sacked));
        assert_eq!(self.board.resend_waits(), self.plain.iter().any(|plain| plain.waiting));
        let gone = sum(|plain| plain.sacked || plain.waiting);
        assert_eq!(self.board.pipe(self.nxt - self.una), self.nxt - self.una - gone);
        assert!(self.board.resent.len() <= 2 * self.plain.len() + 64);
    }
}

proptest! {
    #[test]
    fn marks_counters_and_judgements_are_those_of_the_model(
        ops in proptest::collection::vec(op(), 1..120),
    ) {
        let mut both = Both::new();
        for op in ops {
            both.run(op);
            both.check();
        }
    }
}

/// A peer may report the same in any order, each time from another place on: what it holds is not
/// looked at record by record again.
#[test]
fn work_of_repeated_reports_does_not_grow_with_what_is_held() {
    let steps_per_block = |count: u32| {
        let mut board: Scoreboard<()> = Scoreboard::new();
        let now = Instant::from_nanos(1_000_000);
        let guard = Guard { now, min_rtt: 0, echo: None, ts_offset: 0 };
        for at in 0..count {
            board.push(now, START + at * 100, 100, 0, (), true);
        }
        let end = START + count * 100;
        let block = |from: u32, to: u32| (START + from * 100, START + to * 100);
        let mut apply = |block| {
            board.apply_sack(&[block], START, end, &guard, &mut News::default());
            board.sack_steps
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
fn the_queue_of_retransmissions_is_bounded() {
    let mut both = Both::new();
    both.run(Op::Push { lens: vec![1000; 4] });
    for _ in 0..10_000 {
        both.run(Op::Timeout { patience: 0 });
        both.run(Op::Resend { count: 4 });
        both.run(Op::Probe);
        both.check();
    }
    assert!(both.board.resent.capacity() <= 64);
}

#[test]
fn memory_is_taken_when_needed_and_given_back() {
    let mut both = Both::new();
    assert!(!both.board.holds_memory());
    both.run(Op::Push { lens: vec![1000; 100] });
    both.board.release_memory();
    assert!(both.board.holds_memory(), "not what is in use");
    both.run(Op::Ack { octets: u32::MAX });
    assert!(both.board.holds_memory());
    both.board.release_memory();
    assert!(!both.board.holds_memory());
}

#[test]
fn copies_are_of_the_first_records_that_have_frames() {
    let mut board = Scoreboard::new();
    let now = Instant::from_nanos(1_000_000);
    for at in 0..6 {
        let octets: Vec<u8> = (0..100).map(|octet| octet + 100 * u8::from(at % 2 == 1)).collect();
        board.push(now, START + at * 100, 100, 0, Heap::new(&octets), true);
    }
    let pool = CopyPool::new(5, 1);
    assert_eq!((board.copy_out(&pool, 1), board.copy_out(&pool, 1)), (1, 1));
    // The pieces of a record share its copy, and what is acknowledged gives it back.
    board.cut(1, 40);
    board.ack(START + 140, None, &mut News::default());
    assert_eq!((pool.count(), board.len()), (1, 5));
    assert_eq!(board.get(0).unwrap().frame.octets()[40], 140);
    // One of them is there already; of five places one connection gets three.
    assert_eq!((board.copy_out(&pool, 100), pool.count()), (2, 3));
    let is_copy: Vec<bool> = (0..5).map(|at| board.get(at).unwrap().frame.is_copy()).collect();
    assert_eq!(is_copy, [true, true, true, false, false]);
    board.ack(START + 600, None, &mut News::default());
    assert_eq!((pool.count(), board.copy_out(&pool, 100)), (0, 0));
}

#[test]
fn a_record_is_small() {
    assert!(size_of::<super::Record<usize>>() <= 40);
}

/// The numbers come round after 4 GiB, and what was reported long ago means nothing then.
#[test]
fn reports_do_not_outlive_what_they_are_of() {
    let mut board: Scoreboard<()> = Scoreboard::new();
    let now = Instant::from_nanos(1_000_000);
    let guard = Guard { now, min_rtt: 0, echo: None, ts_offset: 0 };
    let end = START + 4000;
    for block in [(START + 1000, START + 3000), (START + 2000, end)] {
        for at in 0..4 {
            board.push(now, START + at * 1000, 1000, 0, (), true);
        }
        board.apply_sack(&[block], START, end, &guard, &mut News::default());
        assert_eq!(board.sacked(), 2000);
        board.ack(end, None, &mut News::default());
        assert_eq!(board.sacked(), 0);
    }
}
