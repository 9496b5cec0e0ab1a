//! ACK processing on the scoreboard: records acknowledged, records reported by SACK.

use super::{LOST, RETRANS_IN_FLIGHT, RETRANSMITTED, SACKED, Scoreboard};
use crate::tcp::recovery::rack::{SampleGuard, sent_after};
use crate::time::Instant;
use crate::wire::seq::Seq;
use crate::wire::tcp::SackBlock;

/// Effect of one ACK on the scoreboard.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::tcp) struct AckInfo {
    /// Bytes newly acknowledged or SACKed (`DeliveredData` of RFC 9937).
    pub(in crate::tcp) delivered: u32,
    /// Records acknowledged, in part or whole.
    pub(in crate::tcp) records: u32,
    /// Transmission time of the oldest of them, if none was ever retransmitted (Karn).
    pub(in crate::tcp) oldest: Option<Instant>,
    /// Latest transmission among those delivered: its time and end.
    pub(in crate::tcp) newest: Option<(Instant, Seq)>,
    /// A record sent once was delivered after one sent later.
    pub(in crate::tcp) reordered: bool,
    /// Lowest end of the records delivered that were sent once.
    pub(in crate::tcp) lowest_original: Option<Seq>,
}

impl AckInfo {
    /// Notes that a whole record with these marks, not SACKed before, was delivered. `fack` is the
    /// end of what was known to be delivered before (RFC 8985 section 6.2, steps 2 and 3).
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

/// Records acknowledged by an ACK on the fast path.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::tcp) struct Acked {
    /// Number of records, in part or whole.
    pub(in crate::tcp) records: u32,
    /// Transmission time of the oldest, if none was ever retransmitted (Karn).
    pub(in crate::tcp) oldest: Option<Instant>,
    /// Transmission time and end of the newest acknowledged whole.
    pub(in crate::tcp) newest: Option<(Instant, Seq)>,
}

impl<T: Clone> Scoreboard<T> {
    /// As [`Scoreboard::ack`], if nothing is SACKed or lost and no retransmission is outstanding.
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

    /// Removes the records that `ack` covers. Cost: O(records removed).
    #[inline]
    pub(in crate::tcp) fn ack(
        &mut self,
        ack: Seq,
        guard: Option<&SampleGuard>,
        info: &mut AckInfo,
    ) {
        let mut clean = true;
        // RFC 9293 3.10.7.4, fifth: what SEG.ACK covers leaves the retransmission queue.
        while let Some(front) = self.records.front_mut() {
            if front.seq >= ack {
                break;
            }
            if info.records == 0 {
                info.oldest = Some(front.sent_at);
            }
            info.records += 1;
            // A record split or resegmented by the peer may be acknowledged in part: its head goes.
            let (marks, end) = (front.marks, front.end());
            let fully_acked = end <= ack;
            let bytes = if fully_acked { front.len } else { ack - front.seq };
            if !fully_acked {
                front.seq = ack;
                front.len -= bytes;
                front.offset += bytes;
            }
            let sent_at = front.sent_at;
            // Sent once and not SACKed: the common case. A record that ends below the highest one
            // delivered was overtaken (RFC 8985 section 6.2, step 3).
            if marks & (SACKED | RETRANSMITTED) == 0 {
                info.delivered += bytes;
                if fully_acked {
                    info.reordered |= end < self.fack;
                    info.lowest_original.get_or_insert(end);
                    info.newest = Some((sent_at, end));
                }
            } else {
                // RFC 8985 section 6.2, step 2: only the first record may use the echoed timestamp,
                // which is of the segment that this ACK answers. SACKed bytes were counted before.
                clean &= marks & RETRANSMITTED == 0;
                if marks & SACKED == 0 {
                    info.delivered += bytes;
                    if fully_acked {
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
            // RFC 6675 section 4, SetPipe(): bytes that left the scoreboard count no more.
            if marks != 0 {
                self.deduct(marks, bytes, fully_acked);
            }
            if !fully_acked {
                break;
            }
            self.records.pop_front();
        }
        // RFC 6298 section 3 (Karn): no sample from records retransmitted.
        if !clean {
            info.oldest = None;
        }
        // The cursors do not stay below SND.UNA.
        self.fack = self.fack.max(ack);
        self.loss_cursor = self.loss_cursor.max(ack);
        self.retransmit_cursor = self.retransmit_cursor.max(ack);
        // Nothing below SND.UNA is sent again.
        while self.lost_again.front().is_some_and(|&seq| seq < ack) {
            self.lost_again.pop_front();
        }
        if let Some(front) = self.records.front().filter(|front| front.awaits_retransmit()) {
            // Acknowledged in part, it starts later.
            self.note_lost(front.seq);
        }
    }

    /// Deducts `bytes` of a record with these marks from the counters; `fully_acked`: all of it,
    /// not only its head.
    fn deduct(&mut self, marks: u8, bytes: u32, fully_acked: bool) {
        if marks & SACKED != 0 {
            self.sacked -= bytes;
            self.sacked_count -= u32::from(fully_acked);
        }
        if marks & LOST != 0 {
            self.lost -= bytes;
        }
        if marks & RETRANS_IN_FLIGHT != 0 {
            self.retrans_out -= bytes;
        }
    }

    /// Marks the records that lie wholly in one of the blocks. `una..nxt` is what was sent and not
    /// acknowledged; blocks outside are ignored, as forged or as D-SACK.
    ///
    /// Cost: O(records newly reported), and a search for each block. SACK blocks repeat known
    /// information, and a peer may do so in any order. So each record passed stores how many SACKed
    /// ones follow it at least, and these are skipped next time (like path compression in a
    /// union-find).
    pub(in crate::tcp) fn apply_sack(
        &mut self,
        blocks: &[SackBlock],
        una: Seq,
        nxt: Seq,
        guard: &SampleGuard,
        info: &mut AckInfo,
    ) {
        let fack = self.fack;
        // RFC 8985 section 6.2, step 2: the echoed timestamp may be of any record in the blocks.
        let guard = guard.without_echo();
        for &(start, end) in blocks {
            // RFC 2018 section 3: a block lies above SND.UNA, and reports what was sent.
            if start >= end || start < una || end > nxt {
                continue;
            }
            let mut index = self.index_of(start);
            // A record reported in part is not marked before a block covers all of it.
            index += usize::from(self.records.get(index).is_some_and(|first| first.seq < start));
            let first = index;
            while let Some(record) = self.records.get_mut(index) {
                let record_end = record.end();
                if record_end > end {
                    break;
                }
                // Newly reported: delivered, and no longer lost (RFC 6675 section 4, Update()).
                let run = usize::from(record.sacked_run).max(1);
                if record.marks & SACKED == 0 {
                    let (marks, len) = (record.marks, record.len);
                    record.marks = (marks | SACKED) & !(LOST | RETRANS_IN_FLIGHT);
                    info.delivered += len;
                    info.on_delivered(marks, record.sent_at, record_end, fack, Some(&guard));
                    let before = if self.sacked > 0 { self.longest_sacked } else { 0 };
                    self.longest_sacked = before.max(len);
                    self.fack = self.fack.max(record_end);
                    self.deduct(marks, len, true);
                    self.sacked += len;
                    self.sacked_count += 1;
                }
                index += run;
                self.note_step();
            }
            // The next block that repeats this run skips it in one step.
            self.note_sacked_run(first, index);
        }
    }

    /// Stores in the records passed that all of the records at indices `from..to` are SACKed.
    fn note_sacked_run(&mut self, mut from: usize, to: usize) {
        while let Some(record) = self.records.get_mut(from).filter(|_| from < to) {
            let run = usize::from(record.sacked_run).max(1);
            record.sacked_run = u16::try_from(to - from).unwrap_or(u16::MAX);
            from += run;
        }
    }
}
