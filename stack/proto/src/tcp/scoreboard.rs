//! The send side's records: what was sent and is not acknowledged, which of it the peer holds
//! (SACK, RFC 2018 and 6675), which is lost, and which was sent again.
//!
//! A record is the unit the upper layer wrote; its boundary survives retransmission. Octet
//! counters are kept beside the marks, so that `pipe` costs nothing.

use std::collections::VecDeque;

use arrayvec::ArrayVec;

use crate::time::Instant;
use crate::wire::seq::Seq;
use crate::wire::tcp::Block;

/// The peer holds it.
const SACKED: u8 = 1;
/// Judged lost: not in the network unless also `COPY`.
const LOST: u8 = 2;
/// A copy of it is in the network.
const COPY: u8 = 4;
/// Sent more than once: gives no round-trip sample (Karn).
const AGAIN: u8 = 8;
/// Sent again as a tail-loss probe.
const PROBE: u8 = 16;

/// Octets of one segment, and the frame they first left in.
#[derive(Debug)]
pub(super) struct Record<T> {
    pub(super) seq: Seq,
    pub(super) len: u32,
    /// Where the octets start in the frame.
    pub(super) offset: u32,
    marks: u8,
    sent_at: Instant,
    pub(super) frame: T,
}

impl<T> Record<T> {
    pub(super) fn end(&self) -> Seq {
        self.seq + self.len
    }

    fn is(&self, marks: u8) -> bool {
        self.marks & marks != 0
    }
}

/// What a cumulative acknowledgment freed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Acked {
    /// Send time of the oldest record freed, if none of them was ever sent again.
    pub(super) sent_at: Option<Instant>,
    /// Records freed.
    pub(super) records: u32,
}

/// What SACK blocks brought.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sacked {
    /// Octets newly reported.
    pub(super) octets: u32,
    /// End of a tail-loss probe among them.
    pub(super) probe: Option<Seq>,
}

/// The queue of records with its marks.
#[derive(Debug)]
pub(super) struct Scoreboard<T> {
    records: VecDeque<Record<T>>,
    /// The last record is written but not sent.
    unsent: bool,
    sacked: u32,
    lost: u32,
    copies: u32,
    /// End of the highest octet reported by SACK.
    high_sacked: Seq,
    /// Everything below has been judged by the current SACK information.
    loss_edge: Seq,
    /// No record below waits to be sent again.
    resend_from: Seq,
    /// Blocks applied before: reports repeat them, marking starts where it ended.
    seen: ArrayVec<Block, 4>,
}

impl<T: Clone> Scoreboard<T> {
    /// An empty board; the first record will start at `seq`.
    pub(super) fn new(seq: Seq, capacity: usize) -> Self {
        Self {
            records: VecDeque::with_capacity(capacity),
            unsent: false,
            sacked: 0,
            lost: 0,
            copies: 0,
            high_sacked: seq,
            loss_edge: seq,
            resend_from: seq,
            seen: ArrayVec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Records sent and not acknowledged.
    pub(super) fn sent_len(&self) -> usize {
        self.records.len() - usize::from(self.unsent)
    }

    pub(super) fn get(&self, index: usize) -> Option<&Record<T>> {
        self.records.get(index)
    }

    pub(super) fn front_len(&self) -> u32 {
        self.records.front().map_or(0, |record| record.len)
    }

    /// End of everything written.
    pub(super) fn end(&self) -> Option<Seq> {
        self.records.back().map(Record::end)
    }

    /// Octets of `flight` that are thought to be in the network (RFC 6675 `pipe`).
    #[inline]
    pub(super) fn pipe(&self, flight: u32) -> u32 {
        (flight + self.copies).saturating_sub(self.sacked + self.lost)
    }

    /// True if something lost has no copy in the network: it goes before anything new.
    #[inline]
    pub(super) fn resend_waits(&self) -> bool {
        self.lost > self.copies
    }

    #[inline]
    pub(super) fn push(
        &mut self,
        now: Instant,
        seq: Seq,
        len: u32,
        offset: u32,
        frame: T,
        sent: bool,
    ) {
        debug_assert!(!self.unsent, "an unsent record goes out before another is written");
        self.records.push_back(Record { seq, len, offset, marks: 0, sent_at: now, frame });
        self.unsent = !sent;
    }

    /// Frees what `ack` covers. Cost: O(records freed).
    #[inline]
    pub(super) fn ack(&mut self, ack: Seq) -> Acked {
        let mut acked = Acked::default();
        let mut clean = true;
        while let Some(front) = self.records.front_mut() {
            if front.seq >= ack {
                break;
            }
            if acked.records == 0 {
                acked.sent_at = Some(front.sent_at);
            }
            clean &= front.marks & AGAIN == 0;
            acked.records += 1;
            let whole = front.end() <= ack;
            let octets = if whole { front.len } else { ack - front.seq };
            let marks = front.marks;
            if !whole {
                front.seq = ack;
                front.len -= octets;
                front.offset += octets;
            }
            if marks != 0 {
                self.uncount(marks, octets);
            }
            if !whole {
                break;
            }
            self.records.pop_front();
        }
        if !clean {
            acked.sent_at = None;
        }
        acked
    }

    fn uncount(&mut self, marks: u8, octets: u32) {
        if marks & SACKED != 0 {
            self.sacked -= octets;
        }
        if marks & LOST != 0 {
            self.lost -= octets;
        }
        if marks & COPY != 0 {
            self.copies -= octets;
        }
    }

    /// Index of the first record that ends beyond `seq`.
    fn index_of(&self, seq: Seq) -> usize {
        self.records.partition_point(|record| record.end() <= seq)
    }

    /// Marks the records that lie whole in one of the blocks. `una..nxt` is what was sent and not
    /// acknowledged; blocks outside are ignored, as hostile or as reports of duplicates.
    pub(super) fn apply_sack(&mut self, blocks: &[Block], una: Seq, nxt: Seq) -> Sacked {
        let mut news = Sacked::default();
        for &(start, end) in blocks {
            if start >= end || start < una || end > nxt {
                continue;
            }
            let known = self.seen.iter().filter(|seen| seen.0 <= start && start < seen.1);
            let from = known.map(|seen| seen.1).fold(start, Seq::max);
            if from >= end {
                continue;
            }
            let mut index = self.index_of(from);
            // A record cut by the known part was not marked whole: look at it again.
            while let Some(record) = self.records.get_mut(index) {
                if record.end() > end {
                    break;
                }
                if record.seq >= start && record.marks & SACKED == 0 {
                    let (marks, len) = (record.marks, record.len);
                    record.marks = (marks | SACKED) & !(LOST | COPY | PROBE);
                    news.octets += len;
                    if marks & PROBE != 0 {
                        news.probe = Some(record.end());
                    }
                    self.high_sacked = self.high_sacked.max(record.end());
                    self.uncount(marks & (LOST | COPY), len);
                    self.sacked += len;
                }
                index += 1;
            }
        }
        self.seen.clear();
        self.seen.extend(blocks.iter().copied().filter(|b| b.0 < b.1 && b.0 >= una && b.1 <= nxt));
        news
    }

    /// Judges lost what lies below `records` SACKed records, or below more than `octets` SACKed
    /// octets (RFC 6675 `IsLost`, counting records as it counts runs). Returns octets newly lost.
    pub(super) fn detect_lost(&mut self, records: u32, octets: u32) -> u32 {
        if self.sacked == 0 || self.records.is_empty() {
            return 0;
        }
        let mut index = self.index_of(self.high_sacked - 1).min(self.records.len() - 1);
        let (mut record_count, mut octet_count) = (0, 0);
        let edge = loop {
            let record = &self.records[index];
            if record.seq < self.loss_edge {
                return 0;
            }
            if record.is(SACKED) {
                record_count += 1;
                octet_count += record.len;
                if record_count >= records || octet_count > octets {
                    break record.seq;
                }
            }
            if index == 0 {
                return 0;
            }
            index -= 1;
        };
        self.lose_below(edge)
    }

    /// Marks lost everything below `edge` that is neither SACKed nor marked already.
    pub(super) fn lose_below(&mut self, edge: Seq) -> u32 {
        let mut lost = 0;
        let mut index = self.index_of(self.loss_edge);
        while let Some(record) = self.records.get_mut(index) {
            if record.seq >= edge {
                break;
            }
            if !record.is(SACKED | LOST) {
                record.marks |= LOST;
                lost += record.len;
                self.resend_from = self.resend_from.min(record.seq);
            }
            index += 1;
        }
        self.lost += lost;
        self.loss_edge = self.loss_edge.max(edge);
        lost
    }

    /// Marks the first record lost, also if it was sent again already (NewReno, RFC 6582).
    pub(super) fn lose_first(&mut self) {
        let Some(first) = self.records.front_mut().filter(|first| !first.is(SACKED)) else {
            return;
        };
        let (marks, len, seq) = (first.marks, first.len, first.seq);
        first.marks = (marks | LOST) & !COPY;
        self.uncount(marks & COPY, len);
        if marks & LOST == 0 {
            self.lost += len;
        }
        self.resend_from = seq;
    }

    /// After a retransmission timeout: everything sent and not SACKed is lost. If the peer holds
    /// the first record by its own report and does not acknowledge it, it has reneged, and the
    /// reports are void (RFC 2018 section 8).
    pub(super) fn lose_all(&mut self) {
        let reneged = self.records.front().is_some_and(|first| first.is(SACKED));
        let sent = self.sent_len();
        (self.sacked, self.lost, self.copies) = (0, 0, 0);
        for record in self.records.iter_mut().take(sent) {
            record.marks &= !(COPY | PROBE);
            if reneged {
                record.marks &= !SACKED;
            }
            if record.is(SACKED) {
                self.sacked += record.len;
            } else {
                record.marks |= LOST;
                self.lost += record.len;
            }
        }
        if reneged {
            self.seen.clear();
        }
        if let Some(first) = self.records.front() {
            self.resend_from = first.seq;
            self.loss_edge = first.seq;
            if reneged {
                self.high_sacked = first.seq;
            }
        }
    }

    /// Takes back every judgement of loss: the originals were in the network after all.
    pub(super) fn forgive(&mut self) {
        for record in &mut self.records {
            record.marks &= !(LOST | COPY);
        }
        (self.lost, self.copies) = (0, 0);
        if let Some(first) = self.records.front() {
            self.loss_edge = first.seq;
        }
    }

    /// Moves the marks' origins up to `una`, so that modular comparison never sees them from
    /// afar.
    #[inline]
    pub(super) fn advance(&mut self, una: Seq) {
        self.high_sacked = self.high_sacked.max(una);
        self.loss_edge = self.loss_edge.max(una);
        self.resend_from = self.resend_from.max(una);
    }

    /// Where the first record starts that is lost and has no copy in the network.
    pub(super) fn first_lost(&mut self) -> Option<Seq> {
        let index = self.next_lost()?;
        Some(self.records[index].seq)
    }

    /// Index of the first record that is lost and has no copy in the network.
    pub(super) fn next_lost(&mut self) -> Option<usize> {
        if !self.resend_waits() {
            return None;
        }
        let mut index = self.index_of(self.resend_from);
        while let Some(record) = self.records.get(index) {
            if record.marks & (LOST | COPY) == LOST {
                self.resend_from = record.seq;
                return Some(index);
            }
            index += 1;
        }
        None
    }

    /// Index of the record that was written and not sent.
    pub(super) fn unsent(&self) -> Option<usize> {
        self.unsent.then(|| self.records.len() - 1)
    }

    /// Cuts the record at `index` after `len` octets; the pieces share the frame. An unsent
    /// record's second piece stays unsent, and the first counts as sent from now on.
    pub(super) fn cut(&mut self, index: usize, len: u32) {
        let record = &mut self.records[index];
        debug_assert!(0 < len && len < record.len);
        let rest = Record {
            seq: record.seq + len,
            len: record.len - len,
            offset: record.offset + len,
            marks: record.marks,
            sent_at: record.sent_at,
            frame: record.frame.clone(),
        };
        record.len = len;
        self.records.insert(index + 1, rest);
    }

    /// Notes that the record at `index` was sent once more.
    pub(super) fn resent(&mut self, index: usize, probe: bool) {
        let record = &mut self.records[index];
        record.marks |= AGAIN;
        if probe {
            record.marks |= PROBE;
        } else if record.marks & (LOST | COPY) == LOST {
            record.marks |= COPY;
            self.copies += record.len;
        }
    }

    /// Notes that the unsent record at `index`, the first of what is unsent, was sent.
    pub(super) fn sent(&mut self, now: Instant, index: usize) {
        self.records[index].sent_at = now;
        self.unsent = index + 1 < self.records.len();
    }

    /// Drops all records.
    pub(super) fn clear(&mut self) {
        self.records.clear();
        self.seen.clear();
        self.unsent = false;
        (self.sacked, self.lost, self.copies) = (0, 0, 0);
    }

    /// Sums the counters anew; for assertions in tests.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let sum = |mark| -> u32 { self.records.iter().filter(|r| r.is(mark)).map(|r| r.len).sum() };
        assert_eq!(sum(SACKED), self.sacked);
        assert_eq!(sum(LOST), self.lost);
        assert_eq!(sum(COPY), self.copies);
        assert!(self.records.iter().all(|r| r.marks & (SACKED | LOST) != SACKED | LOST));
        assert!(self.records.iter().all(|r| r.len > 0));
        let ends = self.records.iter().zip(self.records.iter().skip(1));
        assert!(ends.into_iter().all(|(a, b)| a.end() == b.seq));
    }
}
