//! Which records are lost: by time (RFC 8985 section 6), by duplicate ACKs without SACK
//! (RFC 6582), by the retransmission timer; and the taking back of such judgements.

use super::{AGAIN, Board, COPY, LOST, Resent, SACKED};
use crate::tcp::rack::Rack;
use crate::time::Instant;
use crate::wire::seq::Seq;

/// What a look at the records found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub(in crate::tcp) struct Verdict {
    /// Octets newly judged lost, first transmissions and copies.
    pub(in crate::tcp) octets: u32,
    /// Copies among them, in records.
    pub(in crate::tcp) copies: u32,
    /// When the next record would have to be judged lost.
    pub(in crate::tcp) next: Option<Instant>,
}

impl Verdict {
    fn wait_until(&mut self, due: Instant) {
        self.next = Some(self.next.map_or(due, |next| next.min(due)));
    }
}

impl<T: Clone> Board<T> {
    /// Judges lost what was sent before the latest transmission known to be delivered, and longer
    /// ago than `patience_ns` (RFC 8985 section 6.2, step 5). Cost: O(records passed), each once
    /// per transmission, and two searches.
    pub(in crate::tcp) fn detect_lost(
        &mut self,
        now: Instant,
        rack: &Rack,
        patience_ns: u64,
    ) -> Verdict {
        let mut verdict = Verdict::default();
        let sent = self.sent_len();
        let mut index = self.index_of(self.loss_edge);
        while index < sent {
            let record = &self.records[index];
            let end = record.end();
            if !record.is(SACKED | LOST | AGAIN) {
                if !rack.is_after(record.sent_at, end) {
                    break;
                }
                let due = record.sent_at + patience_ns;
                if due > now {
                    verdict.wait_until(due);
                    break;
                }
                verdict.octets += self.lose(index);
            }
            self.loss_edge = end;
            index += 1;
        }
        while let Some(&entry) = self.resent.front() {
            if let Some(index) = self.copy_of(entry) {
                if !rack.is_after(entry.at, self.records[index].end()) {
                    break;
                }
                let due = entry.at + patience_ns;
                if due > now {
                    verdict.wait_until(due);
                    break;
                }
                verdict.octets += self.lose(index);
                verdict.copies += 1;
            }
            self.resent.pop_front();
        }
        verdict
    }

    /// Index of the record that `entry` speaks of, while the fate of that transmission is unknown.
    fn copy_of(&self, entry: Resent) -> Option<usize> {
        // What was acknowledged in part starts later now.
        let seq = entry.seq.max(self.records.front()?.seq);
        let index = self.index_of(seq);
        let record = self.records.get(index)?;
        (record.is_copy_out() && record.sent_at == entry.at).then_some(index)
    }

    /// Drops the entries of retransmissions whose fate is known.
    pub(super) fn forget_known(&mut self) {
        let mut resent = std::mem::take(&mut self.resent);
        resent.retain(|&entry| self.copy_of(entry).is_some());
        self.resent = resent;
    }

    /// The last transmission of the record is lost. Returns its octets.
    fn lose(&mut self, index: usize) -> u32 {
        let record = &mut self.records[index];
        let len = record.len;
        if record.is(COPY) {
            self.copies -= len;
        }
        if !record.is(LOST) {
            self.lost += len;
        }
        record.marks = (record.marks | LOST) & !COPY;
        self.resend_from = self.resend_from.min(record.seq);
        len
    }

    /// Marks the first record lost, also if it was sent again already (NewReno, RFC 6582).
    pub(in crate::tcp) fn lose_first(&mut self) {
        if self.sent_len() > 0 && !self.records[0].is(SACKED) {
            self.lose(0);
        }
    }

    /// Judges lost what was last sent in segments of more than `len` octets and is not SACKed: the
    /// path does not take them.
    pub(in crate::tcp) fn lose_longer(&mut self, len: u32) {
        for index in 0..self.sent_len() {
            let record = &self.records[index];
            if record.len > len && !record.is(SACKED) {
                self.lose(index);
            }
        }
    }

    /// Octets of the longest record that the peer holds out of order; 0 if none.
    pub(in crate::tcp) fn sacked_max(&self) -> u32 {
        let held = self.records.iter().filter(|record| record.is(SACKED));
        held.map(|record| record.len).max().unwrap_or(0)
    }

    /// Octets judged lost of the records in `from..to`.
    pub(in crate::tcp) fn lost_within(&self, from: Seq, to: Seq) -> u32 {
        let records = self.records.iter().skip(self.index_of(from));
        let records = records.take_while(|record| record.seq < to);
        records.filter(|record| record.is(LOST)).map(|record| record.len).sum()
    }

    /// After a retransmission timeout: the first record is lost, and so is what was sent longer
    /// ago than `patience_ns` (RFC 8985 section 6.3). If the peer holds the first record by its
    /// own report and does not acknowledge it, it has reneged, and the reports are void (RFC 2018
    /// section 8). Cost: O(records).
    pub(in crate::tcp) fn lose_at_timeout(&mut self, now: Instant, patience_ns: u64) {
        let reneged = self.records.front().is_some_and(|first| first.is(SACKED));
        let sent = self.sent_len();
        (self.sacked, self.lost, self.copies, self.sacked_count) = (0, 0, 0, 0);
        for (index, record) in self.records.iter_mut().take(sent).enumerate() {
            if reneged {
                record.marks &= !SACKED;
                record.sacked_run = 0;
            }
            if record.is(SACKED) {
                self.sacked += record.len;
                self.sacked_count += 1;
                continue;
            }
            if index == 0 || record.sent_at + patience_ns <= now {
                record.marks = (record.marks | LOST) & !COPY;
            }
            self.lost += if record.is(LOST) { record.len } else { 0 };
            self.copies += if record.is(COPY) { record.len } else { 0 };
        }
        if let Some(first) = self.records.front() {
            self.resend_from = first.seq;
            self.loss_edge = first.seq;
            if reneged {
                self.high_sacked = first.seq;
            }
        }
        self.find_copies();
    }

    /// Takes back every judgement of loss: the originals were in the network after all. With
    /// `judged`, the fate of what was sent again will be judged by time.
    pub(in crate::tcp) fn forgive(&mut self, judged: bool) {
        for record in &mut self.records {
            record.marks &= !(LOST | COPY);
        }
        (self.lost, self.copies) = (0, 0);
        if let Some(first) = self.records.front() {
            self.loss_edge = first.seq;
        }
        if judged {
            self.find_copies();
        }
    }

    /// Makes the queue of retransmissions anew.
    fn find_copies(&mut self) {
        self.resent.clear();
        let copies = self.records.iter().filter(|record| record.is_copy_out());
        self.resent.extend(copies.map(|record| Resent { at: record.sent_at, seq: record.seq }));
        self.resent.make_contiguous().sort_by_key(|entry| entry.at);
    }

    /// Sums the counters anew; for assertions in tests. `judged`: SACK is in use, so that every
    /// retransmission whose fate is unknown stands in the queue.
    #[cfg(test)]
    pub(in crate::tcp) fn check(&self, judged: bool) {
        let sum = |mark| -> u32 { self.records.iter().filter(|r| r.is(mark)).map(|r| r.len).sum() };
        assert_eq!(sum(SACKED), self.sacked);
        assert_eq!(sum(LOST), self.lost);
        assert_eq!(sum(COPY), self.copies);
        let sacked = self.records.iter().filter(|r| r.is(SACKED)).count();
        assert_eq!(sacked, self.sacked_count as usize);
        let marked = |record: &super::Record<T>, marks| record.marks & marks == marks;
        assert!(self.records.iter().all(|r| !marked(r, SACKED | LOST)));
        assert!(self.records.iter().all(|r| !r.is(COPY) || marked(r, LOST | AGAIN)));
        assert!(self.records.iter().all(|r| r.len > 0));
        for (index, record) in self.records.iter().enumerate() {
            let mut run = self.records.range(index..).take(record.sacked_run.into());
            assert!(run.all(|r| r.is(SACKED)), "stepped over and not SACKed");
        }
        let ends = self.records.iter().zip(self.records.iter().skip(1));
        assert!(ends.into_iter().all(|(a, b)| a.end() == b.seq));
        let mut below = self.records.iter().take_while(|r| r.end() <= self.loss_edge);
        assert!(below.all(|r| r.is(SACKED | LOST | AGAIN)), "passed over by the cursor");
        let mut below = self.records.iter().take_while(|r| r.end() <= self.resend_from);
        assert!(below.all(|r| r.marks & (LOST | COPY) != LOST), "lost and passed over");
        let times = self.resent.iter().zip(self.resent.iter().skip(1));
        assert!(times.into_iter().all(|(a, b)| a.at <= b.at));
        if judged {
            let live: Vec<usize> = self.resent.iter().filter_map(|&e| self.copy_of(e)).collect();
            let copies = self.records.iter().enumerate().filter(|(_, r)| r.is_copy_out());
            for (index, record) in copies {
                assert!(live.contains(&index), "{:?} is not watched", record.seq);
            }
        }
    }
}
