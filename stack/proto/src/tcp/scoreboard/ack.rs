//! What an ACK brings: records freed, records that the peer reports to hold.

use super::{LOST, RETRANS_IN_FLIGHT, RETRANSMITTED, SACKED, Scoreboard};
use crate::tcp::rack::{SampleGuard, sent_after};
use crate::time::Instant;
use crate::wire::seq::Seq;
use crate::wire::tcp::SackBlock;

/// What one ACK brought.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::tcp) struct AckInfo {
    /// Bytes that the peer was not known to hold (`DeliveredData` of RFC 9937).
    pub(in crate::tcp) delivered: u32,
    /// Records that the acknowledgment freed, in part or whole.
    pub(in crate::tcp) records: u32,
    /// When the oldest of them was sent, if none of them was ever sent again (Karn).
    pub(in crate::tcp) oldest: Option<Instant>,
    /// The transmission that was sent last among those delivered, and where it ended.
    pub(in crate::tcp) newest: Option<(Instant, Seq)>,
    /// Something sent once arrived after what was sent later.
    pub(in crate::tcp) reordered: bool,
    /// Lowest end of what was sent once and arrived.
    pub(in crate::tcp) lowest_original: Option<Seq>,
}

impl AckInfo {
    /// A record of these marks, not known to be held, was delivered whole. `fack` is the end of
    /// what was known to be held before (RFC 8985 section 6.2, steps 2 and 3).
    fn on_delivered(
        &mut self,
        marks: u8,
        sent_at: Instant,
        end: Seq,
        fack: Seq,
        guard: Option<&SampleGuard>,
    ) {
        if marks & RETRANSMITTED == 0 {
            self.reordered |= end < fack;
            self.lowest_original = Some(self.lowest_original.map_or(end, |lowest| lowest.min(end)));
        } else if !guard.is_some_and(|guard| guard.is_valid_sample(sent_at)) {
            return;
        }
        if self.newest.is_none_or(|newest| sent_after((sent_at, end), newest)) {
            self.newest = Some((sent_at, end));
        }
    }
}

/// What a calm ACK freed.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::tcp) struct Acked {
    /// Records, in part or whole.
    pub(in crate::tcp) records: u32,
    /// When the oldest was sent, if none of them was ever sent again (Karn).
    pub(in crate::tcp) oldest: Option<Instant>,
    /// When the newest that is freed whole was sent, and where it ended.
    pub(in crate::tcp) newest: Option<(Instant, Seq)>,
}

impl<T: Clone> Scoreboard<T> {
    /// As [`Scoreboard::ack`] where nothing is SACKED or lost, and no retransmission is under way.
    #[inline]
    pub(in crate::tcp) fn ack_in_order(&mut self, ack: Seq) -> Acked {
        let mut acked = Acked::default();
        let mut marks = 0;
        while let Some(front) = self.records.front_mut() {
            let distance = ack.distance(front.seq);
            if distance <= 0 {
                break;
            }
            if acked.records == 0 {
                acked.oldest = Some(front.sent_at);
            }
            acked.records += 1;
            marks |= front.marks;
            let bytes = distance.cast_unsigned();
            if bytes < front.len {
                front.seq = ack;
                front.len -= bytes;
                front.offset += bytes;
                break;
            }
            acked.newest = Some((front.sent_at, front.end()));
            self.records.pop_front();
        }
        if marks != 0 {
            acked.oldest = None;
        }
        self.fack = self.fack.max(ack);
        self.loss_cursor = self.loss_cursor.max(ack);
        self.retransmit_cursor = self.retransmit_cursor.max(ack);
        acked
    }

    /// Frees what `ack` covers. Cost: O(records freed).
    #[inline]
    pub(in crate::tcp) fn ack(
        &mut self,
        ack: Seq,
        guard: Option<&SampleGuard>,
        info: &mut AckInfo,
    ) {
        let mut clean = true;
        while let Some(front) = self.records.front_mut() {
            if front.seq >= ack {
                break;
            }
            if info.records == 0 {
                info.oldest = Some(front.sent_at);
            }
            info.records += 1;
            let (marks, end) = (front.marks, front.end());
            let whole = end <= ack;
            let bytes = if whole { front.len } else { ack - front.seq };
            if !whole {
                front.seq = ack;
                front.len -= bytes;
                front.offset += bytes;
            }
            let sent_at = front.sent_at;
            if marks & (SACKED | RETRANSMITTED) == 0 {
                info.delivered += bytes;
                if whole {
                    info.reordered |= end < self.fack;
                    info.lowest_original.get_or_insert(end);
                    info.newest = Some((sent_at, end));
                }
            } else {
                clean &= marks & RETRANSMITTED == 0;
                if marks & SACKED == 0 {
                    info.delivered += bytes;
                    if whole {
                        let guard =
                            guard.map(
                                |&guard| {
                                    if info.records == 1 { guard } else { guard.without_echo() }
                                },
                            );
                        info.on_delivered(marks, sent_at, end, self.fack, guard.as_ref());
                    }
                }
            }
            if marks != 0 {
                self.deduct(marks, bytes, whole);
            }
            if !whole {
                break;
            }
            self.records.pop_front();
        }
        if !clean {
            info.oldest = None;
        }
        self.fack = self.fack.max(ack);
        self.loss_cursor = self.loss_cursor.max(ack);
        self.retransmit_cursor = self.retransmit_cursor.max(ack);
    }

    /// `bytes` of a record with these marks leave the counters, `whole` of it or its head.
    fn deduct(&mut self, marks: u8, bytes: u32, whole: bool) {
        if marks & SACKED != 0 {
            self.sacked -= bytes;
            self.sacked_count -= u32::from(whole);
        }
        if marks & LOST != 0 {
            self.lost -= bytes;
        }
        if marks & RETRANS_IN_FLIGHT != 0 {
            self.retrans_out -= bytes;
        }
    }

    /// Marks the records that lie whole in one of the blocks. `una..nxt` is what was sent and not
    /// acknowledged; blocks outside are ignored, as hostile or as reports of duplicates.
    ///
    /// Cost: O(records newly reported), and a search for each block. Reports repeat what is known,
    /// and a peer may do so in any order: so each record that is passed remembers how many SACKED
    /// ones follow it at least, and is passed by that at the next time (as in a union-find with
    /// path compression).
    pub(in crate::tcp) fn apply_sack(
        &mut self,
        blocks: &[SackBlock],
        una: Seq,
        nxt: Seq,
        guard: &SampleGuard,
        info: &mut AckInfo,
    ) {
        let fack = self.fack;
        let guard = guard.without_echo();
        for &(start, end) in blocks {
            if start >= end || start < una || end > nxt {
                continue;
            }
            let mut index = self.index_of(start);
            // Reported in part: not before the block reaches over all of it.
            index += usize::from(self.records.get(index).is_some_and(|first| first.seq < start));
            let first = index;
            while let Some(record) = self.records.get_mut(index) {
                let record_end = record.end();
                if record_end > end {
                    break;
                }
                let run = usize::from(record.sacked_run).max(1);
                if record.marks & SACKED == 0 {
                    let (marks, len) = (record.marks, record.len);
                    record.marks = (marks | SACKED) & !(LOST | RETRANS_IN_FLIGHT);
                    info.delivered += len;
                    info.on_delivered(marks, record.sent_at, record_end, fack, Some(&guard));
                    self.fack = self.fack.max(record_end);
                    self.deduct(marks, len, true);
                    self.sacked += len;
                    self.sacked_count += 1;
                }
                index += run;
                self.note_sack_step();
            }
            self.note_sacked_run(first, index);
        }
    }

    /// All records of `start_seq..to` are SACKed: those passed on the way remember it.
    fn note_sacked_run(&mut self, mut from: usize, to: usize) {
        while let Some(record) = self.records.get_mut(from).filter(|_| from < to) {
            let run = usize::from(record.sacked_run).max(1);
            record.sacked_run = u16::try_from(to - from).unwrap_or(u16::MAX);
            from += run;
        }
    }

    /// Counts work, for a test of its amount.
    #[cfg_attr(not(test), expect(clippy::unused_self, reason = "tests count"))]
    const fn note_sack_step(&mut self) {
        #[cfg(test)]
        {
            self.sack_steps += 1;
        }
    }
}
