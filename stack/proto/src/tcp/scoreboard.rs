//! The send side's records: what was sent and is not acknowledged, which of it the peer holds
//! (SACK, RFC 2018 and 6675), which is lost, and which was sent again.
//!
//! A record is the unit the upper layer wrote; its boundary survives retransmission. Byte
//! counters are kept beside the marks, so that `pipe` costs nothing. What is lost is judged by
//! time of transmission (`rack`): of records sent once, sequence order is time order, and a cursor
//! remembers how far they were judged; those sent again stand in a queue in order of time.

mod ack;
mod lazy;
mod loss_detection;

use std::collections::VecDeque;

use super::sent_frame::{CopyPool, SentFrame};
use crate::device::Retained;
use crate::time::Instant;
use crate::wire::seq::Seq;

pub(super) use ack::{AckInfo, Acked};
pub(super) use lazy::LazyScoreboard;
pub(super) use loss_detection::LossUpdate;

/// The peer holds it.
const SACKED: u8 = 1;
/// Judged lost: not in the network unless also `RETRANS_IN_FLIGHT`.
const LOST: u8 = 2;
/// A copy of it is in the network.
const RETRANS_IN_FLIGHT: u8 = 4;
/// Sent more than once: gives no round-trip sample (Karn).
const RETRANSMITTED: u8 = 8;

/// Bytes of one segment, and what keeps them: the frame they first left in, or a copy of it.
#[derive(Debug)]
pub(super) struct Record<T> {
    pub(super) seq: Seq,
    pub(super) len: u32,
    /// Where the bytes start in the frame.
    pub(super) offset: u32,
    marks: u8,
    /// So many records, from this one on, are known to be SACKed; 0 or 1 says nothing. They are
    /// stepped over when they are reported again, see [`Scoreboard::apply_sack`].
    sacked_run: u16,
    /// When it was last sent.
    sent_at: Instant,
    pub(super) frame: SentFrame<T>,
}

impl<T> Record<T> {
    pub(super) fn end(&self) -> Seq {
        self.seq + self.len
    }

    fn is(&self, marks: u8) -> bool {
        self.marks & marks != 0
    }

    /// The last transmission was not the first, and its fate is not known.
    fn is_retrans_outstanding(&self) -> bool {
        self.is(RETRANSMITTED)
            && !self.is(SACKED)
            && self.marks & (LOST | RETRANS_IN_FLIGHT) != LOST
    }
}

/// A retransmission whose fate is not known: when it left, and where its record started.
#[derive(Clone, Copy, Debug)]
struct Retransmission {
    sent_at: Instant,
    seq: Seq,
}

/// The queue of records with its marks.
#[derive(Debug)]
pub(super) struct Scoreboard<T> {
    records: VecDeque<Record<T>>,
    /// Retransmissions in the order they left; entries whose fate is known stay until they come
    /// to the front.
    retransmissions: VecDeque<Retransmission>,
    /// The last record is written but not sent.
    unsent: bool,
    sacked: u32,
    lost: u32,
    retrans_out: u32,
    /// Records reported by SACK.
    sacked_count: u32,
    /// End of the highest byte acknowledged or reported by SACK (`RACK.fack`).
    fack: Seq,
    /// Of the records below, each is SACKed, lost, or was sent again.
    loss_cursor: Seq,
    /// No record below waits to be sent again.
    retransmit_cursor: Seq,
    /// Records looked at for SACK blocks.
    #[cfg(test)]
    sack_steps: usize,
}

impl<T: Clone + 'static> Scoreboard<T> {
    /// What a connection has that sends nothing.
    const EMPTY: &'static Self = &Self::new(Seq(0));
}

impl<T: Clone> Scoreboard<T> {
    /// An empty board; the first record will start at `seq`.
    const fn new(seq: Seq) -> Self {
        Self {
            records: VecDeque::new(),
            retransmissions: VecDeque::new(),
            unsent: false,
            sacked: 0,
            lost: 0,
            retrans_out: 0,
            sacked_count: 0,
            fack: seq,
            loss_cursor: seq,
            retransmit_cursor: seq,
            #[cfg(test)]
            sack_steps: 0,
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
    pub(super) fn is_clean(&self) -> bool {
        self.sacked == 0 && self.retransmissions.is_empty()
    }

    /// Nor is anything lost: what is in flight is in the network.
    pub(super) fn is_loss_free(&self) -> bool {
        self.is_clean() && self.lost == 0 && self.retrans_out == 0
    }

    /// Records sent and not acknowledged.
    #[inline]
    pub(super) fn sent_count(&self) -> usize {
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

    /// Bytes reported by SACK.
    #[inline]
    pub(super) fn sacked(&self) -> u32 {
        self.sacked
    }

    /// Records reported by SACK.
    pub(super) fn sacked_count(&self) -> u32 {
        self.sacked_count
    }

    /// Bytes of `flight` that are thought to be in the network (RFC 6675 `pipe`).
    #[inline]
    pub(super) fn pipe(&self, flight: u32) -> u32 {
        (flight + self.retrans_out).saturating_sub(self.sacked + self.lost)
    }

    /// True if something lost has no copy in the network: it goes before anything new.
    #[inline]
    pub(super) fn needs_retransmit(&self) -> bool {
        self.lost > self.retrans_out
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
        let frame = SentFrame::Frame(frame);
        self.records.push_back(Record {
            seq,
            len,
            offset,
            marks: 0,
            sacked_run: 0,
            sent_at: now,
            frame,
        });
        self.unsent = !sent;
    }

    /// Index of the first record that ends beyond `seq`.
    fn index_of(&self, seq: Seq) -> usize {
        self.records.partition_point(|record| record.end() <= seq)
    }

    /// Where the first record starts that is lost and has no copy in the network.
    pub(super) fn next_lost_seq(&mut self) -> Option<Seq> {
        let index = self.next_lost()?;
        Some(self.records[index].seq)
    }

    /// Index of the first record that is lost and has no copy in the network.
    pub(super) fn next_lost(&mut self) -> Option<usize> {
        if !self.needs_retransmit() {
            return None;
        }
        let mut index = self.index_of(self.retransmit_cursor);
        while let Some(record) = self.records.get(index) {
            if record.marks & (LOST | RETRANS_IN_FLIGHT) == LOST {
                self.retransmit_cursor = record.seq;
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

    /// Cuts the record at `index` after `len` bytes; the pieces share the frame. An unsent
    /// record's second piece stays unsent, and the first counts as sent from now on.
    pub(super) fn split(&mut self, index: usize, len: u32) {
        let record = &mut self.records[index];
        debug_assert!(0 < len && len < record.len);
        let rest = Record {
            seq: record.seq + len,
            len: record.len - len,
            // req: MPA-101, MPA-104, MPA-176, DDP-020
            offset: record.offset + len,
            marks: record.marks,
            sacked_run: 0,
            sent_at: record.sent_at,
            frame: record.frame.clone(),
        };
        // req: MPA-106
        record.len = len;
        debug_assert_eq!(record.sacked_run, 0, "what the peer holds is not sent again");
        self.records.insert(index + 1, rest);
    }

    /// Notes that the record at `index` was sent once more. With `judged`, its fate will be judged
    /// by [`LazyScoreboard::detect_lost`].
    pub(super) fn mark_retransmitted(&mut self, now: Instant, index: usize, judged: bool) {
        if judged && self.retransmissions.len() >= 2 * self.records.len() + 16 {
            self.prune_retransmissions();
        }
        let record = &mut self.records[index];
        record.marks |= RETRANSMITTED;
        record.sent_at = now;
        if record.marks & (LOST | RETRANS_IN_FLIGHT) == LOST {
            record.marks |= RETRANS_IN_FLIGHT;
            self.retrans_out += record.len;
        }
        if judged {
            self.retransmissions.push_back(Retransmission { sent_at: now, seq: record.seq });
        }
    }

    /// Notes that the unsent record at `index`, the first of what is unsent, was sent.
    pub(super) fn mark_sent(&mut self, now: Instant, index: usize) {
        self.records[index].sent_at = now;
        self.unsent = index + 1 < self.records.len();
    }
}

impl<T: Retained> Scoreboard<T> {
    /// Gives up to `count_max` frames for copies of them, from the first record that has one on, as
    /// far as `pool` admits; returns how many. Copies are always those of the first records, so
    /// that the search for where they end is all that this costs besides.
    pub(super) fn copy_out(&mut self, pool: &CopyPool, count_max: usize) -> usize {
        let copied = self.records.partition_point(|record| record.frame.is_copy());
        let mut count = 0;
        for record in self.records.range_mut(copied..).take(count_max) {
            if !pool.admits(copied + count) {
                break;
            }
            record.frame.copy_out(pool);
            count += 1;
        }
        count
    }

    /// When the first record was last sent, or written if it was never sent.
    pub(super) fn front_sent_at(&self) -> Option<Instant> {
        self.records.front().map(|record| record.sent_at)
    }
}

#[cfg(test)]
mod tests;
