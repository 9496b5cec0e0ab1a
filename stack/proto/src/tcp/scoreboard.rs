//! The send side's records: what was sent and is not acknowledged, which of it the peer holds
//! (SACK, RFC 2018 and 6675), which is lost, and which was sent again.
//!
//! A record is the unit the upper layer wrote; its boundary survives retransmission. Octet
//! counters are kept beside the marks, so that `pipe` costs nothing. What is lost is judged by
//! time of transmission (`rack`): of records sent once, sequence order is time order, and a cursor
//! remembers how far they were judged; those sent again stand in a queue in order of time.

mod judge;

use std::collections::VecDeque;

use arrayvec::ArrayVec;

use super::rack::{Guard, sent_after};
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

/// Octets of one segment, and the frame they first left in.
#[derive(Debug)]
pub(super) struct Record<T> {
    pub(super) seq: Seq,
    pub(super) len: u32,
    /// Where the octets start in the frame.
    pub(super) offset: u32,
    marks: u8,
    /// When it was last sent.
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

    /// The last transmission was not the first, and its fate is not known.
    fn is_copy_out(&self) -> bool {
        self.is(AGAIN) && !self.is(SACKED) && self.marks & (LOST | COPY) != LOST
    }
}

/// A retransmission whose fate is not known: when it left, and where its record started.
#[derive(Clone, Copy, Debug)]
struct Resent {
    at: Instant,
    seq: Seq,
}

/// What one ACK brought.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct News {
    /// Octets that the peer was not known to hold (`DeliveredData` of RFC 9937).
    pub(super) octets: u32,
    /// Records that the acknowledgment freed, in part or whole.
    pub(super) records: u32,
    /// When the oldest of them was sent, if none of them was ever sent again (Karn).
    pub(super) oldest: Option<Instant>,
    /// The transmission that was sent last among those delivered, and where it ended.
    pub(super) newest: Option<(Instant, Seq)>,
    /// Something sent once arrived after what was sent later.
    pub(super) reordered: bool,
    /// Lowest end of what was sent once and arrived.
    pub(super) original: Option<Seq>,
}

impl News {
    /// A record of these marks, not known to be held, was delivered whole. `fack` is the end of
    /// what was known to be held before (RFC 8985 section 6.2, steps 2 and 3).
    fn take(&mut self, marks: u8, sent_at: Instant, end: Seq, fack: Seq, guard: Option<&Guard>) {
        if marks & AGAIN == 0 {
            self.reordered |= end < fack;
            self.original = Some(self.original.map_or(end, |lowest| lowest.min(end)));
        } else if !guard.is_some_and(|guard| guard.trusts(sent_at)) {
            return;
        }
        if self.newest.is_none_or(|newest| sent_after((sent_at, end), newest)) {
            self.newest = Some((sent_at, end));
        }
    }
}

/// The queue of records with its marks.
#[derive(Debug)]
pub(super) struct Scoreboard<T> {
    records: VecDeque<Record<T>>,
    /// Retransmissions in the order they left; entries whose fate is known stay until they come
    /// to the front.
    resent: VecDeque<Resent>,
    /// The last record is written but not sent.
    unsent: bool,
    sacked: u32,
    lost: u32,
    copies: u32,
    /// Records reported by SACK.
    sacked_count: u32,
    /// End of the highest octet acknowledged or reported by SACK (`RACK.fack`).
    high_sacked: Seq,
    /// Of the records below, each is SACKed, lost, or was sent again.
    loss_edge: Seq,
    /// No record below waits to be sent again.
    resend_from: Seq,
    /// Blocks applied before: reports repeat them, marking starts where it ended.
    seen: ArrayVec<Block, 4>,
}

impl<T: Clone> Scoreboard<T> {
    /// An empty board; the first record will start at `seq`. Takes no memory yet.
    pub(super) fn new(seq: Seq) -> Self {
        Self {
            records: VecDeque::new(),
            resent: VecDeque::new(),
            unsent: false,
            sacked: 0,
            lost: 0,
            copies: 0,
            sacked_count: 0,
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

    /// Nothing is SACKed and no retransmission is under way: an ACK of new data brings nothing to
    /// be judged.
    #[inline]
    pub(super) fn is_calm(&self) -> bool {
        self.sacked == 0 && self.resent.is_empty()
    }

    /// Records sent and not acknowledged.
    #[inline]
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

    /// Octets reported by SACK.
    #[inline]
    pub(super) fn sacked(&self) -> u32 {
        self.sacked
    }

    /// Records reported by SACK.
    pub(super) fn sacked_count(&self) -> u32 {
        self.sacked_count
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
    pub(super) fn ack(&mut self, ack: Seq, guard: Option<&Guard>, news: &mut News) {
        let mut clean = true;
        while let Some(front) = self.records.front_mut() {
            if front.seq >= ack {
                break;
            }
            if news.records == 0 {
                news.oldest = Some(front.sent_at);
            }
            news.records += 1;
            let (marks, end) = (front.marks, front.end());
            let whole = end <= ack;
            let octets = if whole { front.len } else { ack - front.seq };
            if !whole {
                front.seq = ack;
                front.len -= octets;
                front.offset += octets;
            }
            let sent_at = front.sent_at;
            if marks & (SACKED | AGAIN) == 0 {
                news.octets += octets;
                if whole {
                    news.reordered |= end < self.high_sacked;
                    news.original.get_or_insert(end);
                    news.newest = Some((sent_at, end));
                }
            } else {
                clean &= marks & AGAIN == 0;
                if marks & SACKED == 0 {
                    news.octets += octets;
                    if whole {
                        let guard =
                            guard.map(
                                |&guard| {
                                    if news.records == 1 { guard } else { guard.without_echo() }
                                },
                            );
                        news.take(marks, sent_at, end, self.high_sacked, guard.as_ref());
                    }
                }
            }
            if marks != 0 {
                self.uncount(marks, octets, whole);
            }
            if !whole {
                break;
            }
            self.records.pop_front();
        }
        if !clean {
            news.oldest = None;
        }
        self.high_sacked = self.high_sacked.max(ack);
        self.loss_edge = self.loss_edge.max(ack);
        self.resend_from = self.resend_from.max(ack);
    }

    /// `octets` of a record with these marks leave the counters, `whole` of it or its head.
    fn uncount(&mut self, marks: u8, octets: u32, whole: bool) {
        if marks & SACKED != 0 {
            self.sacked -= octets;
            self.sacked_count -= u32::from(whole);
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
    /// Cost: O(records newly reported), and a search for each block.
    pub(super) fn apply_sack(
        &mut self,
        blocks: &[Block],
        una: Seq,
        nxt: Seq,
        guard: &Guard,
        news: &mut News,
    ) {
        let fack = self.high_sacked;
        let guard = guard.without_echo();
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
                let record_end = record.end();
                if record_end > end {
                    break;
                }
                if record.seq >= start && record.marks & SACKED == 0 {
                    let (marks, len) = (record.marks, record.len);
                    record.marks = (marks | SACKED) & !(LOST | COPY);
                    news.octets += len;
                    news.take(marks, record.sent_at, record_end, fack, Some(&guard));
                    self.high_sacked = self.high_sacked.max(record_end);
                    self.uncount(marks, len, true);
                    self.sacked += len;
                    self.sacked_count += 1;
                }
                index += 1;
            }
        }
        self.seen.clear();
        self.seen.extend(blocks.iter().copied().filter(|b| b.0 < b.1 && b.0 >= una && b.1 <= nxt));
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

    /// Notes that the record at `index` was sent once more. With `judged`, its fate will be judged
    /// by [`Scoreboard::detect_lost`].
    pub(super) fn resent(&mut self, now: Instant, index: usize, judged: bool) {
        if judged && self.resent.len() >= 2 * self.records.len() + 16 {
            self.forget_known();
        }
        let record = &mut self.records[index];
        record.marks |= AGAIN;
        record.sent_at = now;
        if record.marks & (LOST | COPY) == LOST {
            record.marks |= COPY;
            self.copies += record.len;
        }
        if judged {
            self.resent.push_back(Resent { at: now, seq: record.seq });
        }
    }

    /// Notes that the unsent record at `index`, the first of what is unsent, was sent.
    pub(super) fn sent(&mut self, now: Instant, index: usize) {
        self.records[index].sent_at = now;
        self.unsent = index + 1 < self.records.len();
    }

    /// True if memory is held for records to come.
    #[inline]
    pub(super) fn holds_memory(&self) -> bool {
        self.records.capacity() > 0 || self.resent.capacity() > 0
    }

    /// Gives back the memory of what is empty.
    pub(super) fn release_memory(&mut self) {
        if self.records.is_empty() {
            self.records = VecDeque::new();
            self.resent = VecDeque::new();
        }
    }

    /// Drops all records, and their memory.
    pub(super) fn clear(&mut self) {
        self.records.clear();
        self.release_memory();
        self.seen.clear();
        self.unsent = false;
        (self.sacked, self.lost, self.copies, self.sacked_count) = (0, 0, 0, 0);
    }
}

#[cfg(test)]
mod tests;
