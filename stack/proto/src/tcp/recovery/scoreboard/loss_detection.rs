//! Loss detection: by time (RFC 8985 section 6), by duplicate ACKs without SACK (RFC 6582), and by
//! the RTO; and the undo of spurious loss.

use super::{LOST, RETRANS_IN_FLIGHT, RETRANSMITTED, Retransmission, SACKED, Scoreboard};
use crate::tcp::recovery::rack::Rack;
use crate::time::Instant;
use crate::wire::seq::Seq;

/// Result of loss detection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub(in crate::tcp) struct LossUpdate {
    /// Bytes newly marked lost, of first transmissions and of retransmissions.
    pub(in crate::tcp) bytes: u32,
    /// Number of retransmissions among them, in records.
    pub(in crate::tcp) lost_retransmits: u32,
    /// Time at which the next record would be marked lost.
    pub(in crate::tcp) next_timeout: Option<Instant>,
}

impl LossUpdate {
    fn wait_until(&mut self, due: Instant) {
        self.next_timeout = Some(self.next_timeout.map_or(due, |next| next.min(due)));
    }
}

impl<T: Clone> Scoreboard<T> {
    /// Marks lost what was sent before the latest transmission known to be delivered, and longer
    /// ago than `rack_timeout_ns` (RFC 8985 section 6.2, step 5). Cost: O(records passed), each
    /// once per transmission, and two searches.
    pub(in crate::tcp) fn detect_lost(
        &mut self,
        now: Instant,
        rack: &Rack,
        rack_timeout_ns: u64,
    ) -> LossUpdate {
        let mut update = LossUpdate::default();
        let sent = self.sent_count();
        let mut index = self.index_of(self.loss_cursor);
        // RFC 8985 section 6.2, step 5, for records sent once: in the order of transmission, so the
        // first that is not due ends it.
        while index < sent {
            self.note_step();
            let record = &self.records[index];
            let end = record.end();
            if !record.is(SACKED | LOST | RETRANSMITTED) {
                // Nothing sent later was delivered: no information about it.
                if !rack.delivered_after(record.sent_at, end) {
                    break;
                }
                // Reordering may still explain it until then.
                let due = record.sent_at + rack_timeout_ns;
                if due > now {
                    update.wait_until(due);
                    break;
                }
                update.bytes += self.mark_lost(index);
            }
            self.loss_cursor = end;
            index += 1;
        }
        // Step 5 again for retransmissions, which have an order of transmission of their own.
        while let Some(&entry) = self.retransmissions.front() {
            self.note_step();
            if let Some(index) = self.record_of(entry) {
                if !rack.delivered_after(entry.sent_at, self.records[index].end()) {
                    break;
                }
                let due = entry.sent_at + rack_timeout_ns;
                if due > now {
                    update.wait_until(due);
                    break;
                }
                update.bytes += self.mark_lost(index);
                update.lost_retransmits += 1;
            }
            self.retransmissions.pop_front();
        }
        update
    }

    /// Returns the index of the record of `entry`, while that transmission is outstanding.
    fn record_of(&self, entry: Retransmission) -> Option<usize> {
        // A record acknowledged in part now starts later.
        let seq = entry.seq.max(self.records.front()?.seq);
        let index = self.index_of(seq);
        let record = self.records.get(index)?;
        (record.is_retrans_outstanding() && record.sent_at == entry.sent_at).then_some(index)
    }

    /// Removes the entries of retransmissions that are no longer outstanding.
    pub(super) fn prune_retransmissions(&mut self) {
        let mut retransmissions = std::mem::take(&mut self.retransmissions);
        retransmissions.retain(|&entry| self.record_of(entry).is_some());
        self.retransmissions = retransmissions;
    }

    /// Marks the last transmission of the record lost. Returns its bytes.
    fn mark_lost(&mut self, index: usize) -> u32 {
        let record = &mut self.records[index];
        let len = record.len;
        if record.is(RETRANS_IN_FLIGHT) {
            self.retrans_out -= len;
        }
        if !record.is(LOST) {
            self.lost += len;
        }
        record.marks = (record.marks | LOST) & !RETRANS_IN_FLIGHT;
        let seq = record.seq;
        self.note_lost(seq);
        len
    }

    /// Marks the first record lost, even if it was retransmitted already (NewReno, RFC 6582).
    pub(in crate::tcp) fn mark_first_lost(&mut self) {
        if self.sent_count() > 0 && !self.records[0].is(SACKED) {
            self.mark_lost(0);
        }
    }

    /// Marks lost the records of more than `len` bytes that are not SACKed: the path does not carry
    /// their segments.
    pub(in crate::tcp) fn mark_longer_lost(&mut self, len: u32) {
        for index in 0..self.sent_count() {
            let record = &self.records[index];
            if record.len > len && !record.is(SACKED) {
                self.mark_lost(index);
            }
        }
    }

    /// Returns the bytes marked lost of the records in `from..to`.
    pub(in crate::tcp) fn lost_in_range(&self, from: Seq, to: Seq) -> u32 {
        let records = self.records.iter().skip(self.index_of(from));
        let records = records.take_while(|record| record.seq < to);
        records.filter(|record| record.is(LOST)).map(|record| record.len).sum()
    }

    /// Marks lost, after a retransmission timeout, the first record and those sent longer ago than
    /// `rack_timeout_ns` (RFC 8985 section 6.3). If the first record is SACKed but not
    /// acknowledged, the peer has reneged, and all SACK information is discarded (RFC 2018
    /// section 8). Cost: O(records).
    pub(in crate::tcp) fn mark_lost_on_rto(&mut self, now: Instant, rack_timeout_ns: u64) {
        let reneged = self.records.front().is_some_and(|first| first.is(SACKED));
        let sent = self.sent_count();
        (self.sacked, self.lost, self.retrans_out, self.sacked_count) = (0, 0, 0, 0);
        self.longest_sacked = 0;
        for (index, record) in self.records.iter_mut().take(sent).enumerate() {
            if reneged {
                record.marks &= !SACKED;
                record.sacked_run = 0;
            }
            if record.is(SACKED) {
                self.sacked += record.len;
                self.sacked_count += 1;
                self.longest_sacked = self.longest_sacked.max(record.len);
                continue;
            }
            if index == 0 || record.sent_at + rack_timeout_ns <= now {
                record.marks = (record.marks | LOST) & !RETRANS_IN_FLIGHT;
            }
            self.lost += if record.is(LOST) { record.len } else { 0 };
            self.retrans_out += if record.is(RETRANS_IN_FLIGHT) { record.len } else { 0 };
        }
        if let Some(first) = self.records.front() {
            self.retransmit_cursor = first.seq;
            self.lost_again.clear();
            self.loss_cursor = first.seq;
            if reneged {
                self.fack = first.seq;
            }
        }
        self.rebuild_retransmissions();
    }

    /// Undoes every loss mark: the originals were in the network after all. With `by_rack`, the
    /// loss of outstanding retransmissions is detected by time.
    pub(in crate::tcp) fn clear_lost(&mut self, by_rack: bool) {
        for record in &mut self.records {
            record.marks &= !(LOST | RETRANS_IN_FLIGHT);
        }
        (self.lost, self.retrans_out) = (0, 0);
        self.lost_again.clear();
        if let Some(first) = self.records.front() {
            self.loss_cursor = first.seq;
        }
        if by_rack {
            self.rebuild_retransmissions();
        }
    }

    /// Rebuilds the queue of retransmissions.
    fn rebuild_retransmissions(&mut self) {
        self.retransmissions.clear();
        let retransmissions = self.records.iter().filter(|record| record.is_retrans_outstanding());
        self.retransmissions.extend(
            retransmissions
                .map(|record| Retransmission { sent_at: record.sent_at, seq: record.seq }),
        );
        self.retransmissions.make_contiguous().sort_by_key(|entry| entry.sent_at);
    }

    /// Recomputes the counters and checks the invariants, for tests. `by_rack`: SACK is in use, so
    /// that every outstanding retransmission is in the queue.
    #[cfg(test)]
    pub(in crate::tcp) fn check(&self, by_rack: bool) {
        let live: std::collections::BTreeSet<usize> =
            self.retransmissions.iter().filter_map(|&entry| self.record_of(entry)).collect();
        let (mut sacked, mut lost, mut retrans_out, mut sacked_count) = (0, 0, 0, 0);
        let mut end = None;
        // Index behind the records that a run of SACKed ones steps over.
        let mut run_end = 0;
        for (index, record) in self.records.iter().enumerate() {
            let seq = record.seq;
            let marked = |marks| record.marks & marks == marks;
            let counted = |mark| if record.is(mark) { record.len } else { 0 };
            sacked += counted(SACKED);
            lost += counted(LOST);
            retrans_out += counted(RETRANS_IN_FLIGHT);
            sacked_count += u32::from(record.is(SACKED));
            assert!(record.len > 0);
            assert!(end.is_none_or(|end| end == seq), "a gap before {seq:?}");
            end = Some(record.end());
            assert!(!marked(SACKED | LOST));
            assert!(!record.is(RETRANS_IN_FLIGHT) || marked(LOST | RETRANSMITTED));
            run_end = run_end.max(index + usize::from(record.sacked_run));
            assert!(index >= run_end || record.is(SACKED), "{seq:?} stepped over and not SACKed");
            assert!(
                record.end() > self.loss_cursor || record.is(SACKED | LOST | RETRANSMITTED),
                "{seq:?} passed over by the cursor"
            );
            assert!(
                record.end() > self.retransmit_cursor
                    || !record.awaits_retransmit()
                    || self.lost_again.contains(&seq),
                "{seq:?} lost and passed over"
            );
            assert!(
                !by_rack || !record.is_retrans_outstanding() || live.contains(&index),
                "{seq:?} is not tracked"
            );
        }
        let counters = (self.sacked, self.lost, self.retrans_out, self.sacked_count);
        assert_eq!((sacked, lost, retrans_out, sacked_count), counters);
        assert!(self.lost_again.iter().zip(self.lost_again.iter().skip(1)).all(|(a, b)| a < b));
        assert!(self.lost_again.len() <= self.records.len());
        let times = self.retransmissions.iter().zip(self.retransmissions.iter().skip(1));
        assert!(times.into_iter().all(|(a, b)| a.sent_at <= b.sent_at));
    }
}
