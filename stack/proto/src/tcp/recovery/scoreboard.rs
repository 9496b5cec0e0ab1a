//! SACK scoreboard (RFC 2018, RFC 6675): the records sent and not acknowledged, with marks for
//! those SACKed, lost and retransmitted.
//!
//! A record is the unit that the upper layer wrote; its boundary survives retransmission. Byte
//! counters stand next to the marks, so that `pipe` costs nothing. Losses are detected by
//! transmission time (`rack`). Of records sent once, sequence order is time order, and a cursor
//! marks how far they were examined. Retransmissions are in a queue in time order.
//!
//! The marks correspond to those of Linux: `TCPCB_SACKED_ACKED`, `TCPCB_LOST`,
//! `TCPCB_SACKED_RETRANS`, `TCPCB_EVER_RETRANS`.

mod acked;
mod loss_detection;

use std::collections::VecDeque;

use super::sent_frame::{CopyPool, SentFrame};
use crate::device::Retained;
use crate::tcp::lazy::{Empty, Lazy};
use crate::time::Instant;
use crate::wire::seq::Seq;

pub(in crate::tcp) use acked::{AckInfo, Acked};

/// Reported by SACK.
const SACKED: u8 = 1;
/// Marked lost: not in the network, unless also `RETRANS_IN_FLIGHT`.
const LOST: u8 = 2;
/// A retransmission is in the network.
const RETRANS_IN_FLIGHT: u8 = 4;
/// Sent more than once: gives no RTT sample (Karn).
const RETRANSMITTED: u8 = 8;

/// Record: the bytes of one segment, and their storage: the frame of the first transmission or a
/// copy.
#[derive(Debug)]
pub(in crate::tcp) struct Record<T> {
    pub(in crate::tcp) seq: Seq,
    pub(in crate::tcp) len: u32,
    /// Offset of the bytes in the frame.
    pub(in crate::tcp) offset: u32,
    marks: u8,
    /// Number of records from this one on that are known to be SACKed; 0 and 1 have no meaning.
    /// They are skipped when they are reported again, see [`Scoreboard::apply_sack`].
    sacked_run: u16,
    /// Time of the last transmission.
    sent_at: Instant,
    pub(in crate::tcp) frame: SentFrame<T>,
}

impl<T> Record<T> {
    pub(in crate::tcp) fn end(&self) -> Seq {
        self.seq + self.len
    }

    fn is(&self, marks: u8) -> bool {
        self.marks & marks != 0
    }

    /// True if it is lost with no retransmission in the network.
    fn awaits_retransmit(&self) -> bool {
        self.marks & (LOST | RETRANS_IN_FLIGHT) == LOST
    }

    /// True if the last transmission was a retransmission and is outstanding: neither delivered nor
    /// lost.
    fn is_retrans_outstanding(&self) -> bool {
        self.is(RETRANSMITTED)
            && !self.is(SACKED)
            && self.marks & (LOST | RETRANS_IN_FLIGHT) != LOST
    }
}

/// Outstanding retransmission: transmission time, and start of its record.
#[derive(Clone, Copy, Debug)]
struct Retransmission {
    sent_at: Instant,
    seq: Seq,
}

/// Queue of records, with their marks and byte counters.
#[derive(Debug)]
pub(in crate::tcp) struct Scoreboard<T> {
    records: VecDeque<Record<T>>,
    /// Retransmissions in the order sent; entries no longer outstanding stay until they reach the
    /// front.
    retransmissions: VecDeque<Retransmission>,
    /// The last record was written and not sent.
    unsent: bool,
    sacked: u32,
    lost: u32,
    retrans_out: u32,
    /// Number of records reported by SACK.
    sacked_count: u32,
    /// Length of the longest record reported by SACK since none was.
    longest_sacked: u32,
    /// End of the highest byte acknowledged or reported by SACK (`RACK.fack`).
    fack: Seq,
    /// All records below are SACKed, lost or retransmitted.
    loss_cursor: Seq,
    /// No record below waits for retransmission, except those in `lost_again`.
    retransmit_cursor: Seq,
    /// Starts of records below the cursor that were marked lost, in order. Those that no longer
    /// wait for retransmission stay until they reach the front.
    lost_again: VecDeque<Seq>,
    /// Records examined for SACK blocks and for losses.
    #[cfg(test)]
    steps: usize,
}

impl<T: Clone + 'static> Empty for Scoreboard<T> {
    const EMPTY: &'static Self = &Self::new(Seq(0));
}

impl<T: Clone> Lazy<Scoreboard<T>> {
    /// Adds a record; `sent`: it is sent now. The first one allocates the scoreboard.
    #[inline(always)]
    pub(in crate::tcp) fn push(
        &mut self,
        now: Instant,
        seq: Seq,
        len: u32,
        offset: u32,
        frame: T,
        sent: bool,
    ) {
        let scoreboard = self.get_or_insert_with(|| Box::new(Scoreboard::new(seq)));
        scoreboard.push(now, seq, len, offset, frame, sent);
    }

    /// Releases the memory if there is no record.
    pub(in crate::tcp) fn release_memory(&mut self) {
        if self.as_ref().is_some_and(Scoreboard::is_empty) {
            self.clear();
        }
    }
}

impl<T: Clone> Scoreboard<T> {
    /// Creates an empty scoreboard; the first record will start at `seq`.
    const fn new(seq: Seq) -> Self {
        Self {
            records: VecDeque::new(),
            retransmissions: VecDeque::new(),
            unsent: false,
            sacked: 0,
            lost: 0,
            retrans_out: 0,
            sacked_count: 0,
            longest_sacked: 0,
            fack: seq,
            loss_cursor: seq,
            retransmit_cursor: seq,
            lost_again: VecDeque::new(),
            #[cfg(test)]
            steps: 0,
        }
    }

    pub(in crate::tcp) fn len(&self) -> usize {
        self.records.len()
    }

    pub(in crate::tcp) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// True if nothing is SACKed and no retransmission is outstanding: an ACK of new data then
    /// needs no loss detection.
    #[inline]
    pub(in crate::tcp) fn is_clean(&self) -> bool {
        self.sacked == 0 && self.retransmissions.is_empty()
    }

    /// True if also nothing is lost: all of the flight is in the network.
    pub(in crate::tcp) fn is_loss_free(&self) -> bool {
        self.is_clean() && self.lost == 0 && self.retrans_out == 0
    }

    /// Number of records sent and not acknowledged.
    #[inline]
    pub(in crate::tcp) fn sent_count(&self) -> usize {
        self.records.len() - usize::from(self.unsent)
    }

    pub(in crate::tcp) fn get(&self, index: usize) -> Option<&Record<T>> {
        self.records.get(index)
    }

    pub(in crate::tcp) fn front_len(&self) -> u32 {
        self.records.front().map_or(0, |record| record.len)
    }

    /// End of the last record written.
    pub(in crate::tcp) fn end(&self) -> Option<Seq> {
        self.records.back().map(Record::end)
    }

    /// Bytes reported by SACK.
    #[inline]
    pub(in crate::tcp) fn sacked(&self) -> u32 {
        self.sacked
    }

    /// Number of records reported by SACK.
    pub(in crate::tcp) fn sacked_count(&self) -> u32 {
        self.sacked_count
    }

    /// Returns the length of the longest record reported by SACK since none was, or since the last
    /// retransmission timeout; 0 if none is now.
    pub(in crate::tcp) fn longest_sacked(&self) -> u32 {
        if self.sacked > 0 { self.longest_sacked } else { 0 }
    }

    /// Returns how many bytes of `flight` are considered to be in the network (RFC 6675 `pipe`).
    #[inline]
    pub(in crate::tcp) fn pipe(&self, flight: u32) -> u32 {
        (flight + self.retrans_out).saturating_sub(self.sacked + self.lost)
    }

    /// True if a lost record has no retransmission in the network: it is sent before new data.
    #[inline]
    pub(in crate::tcp) fn needs_retransmit(&self) -> bool {
        self.lost > self.retrans_out
    }

    #[inline(always)]
    fn push(&mut self, now: Instant, seq: Seq, len: u32, offset: u32, frame: T, sent: bool) {
        debug_assert!(!self.unsent, "an unsent record goes out before another is written");
        let frame = SentFrame::Frame(frame);
        if self.records.len() == self.records.capacity() {
            self.grow();
        }
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

    /// Makes room for a record: the memory is full, or there is none.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        if self.records.is_empty() {
            // One frame sets up a connection; of many connections most then send no more.
            self.records.reserve_exact(1);
        } else {
            self.records.reserve(1);
        }
    }

    /// Returns the index of the first record that ends beyond `seq`.
    fn index_of(&self, seq: Seq) -> usize {
        self.records.partition_point(|record| record.end() <= seq)
    }

    /// Returns the start of the first record that is lost with no retransmission in the network.
    pub(in crate::tcp) fn next_lost_seq(&mut self) -> Option<Seq> {
        let index = self.next_lost()?;
        Some(self.records[index].seq)
    }

    /// Returns the index of the first record that is lost with no retransmission in the network.
    /// Cost: O(records passed), each once per episode, and a search.
    pub(in crate::tcp) fn next_lost(&mut self) -> Option<usize> {
        if !self.needs_retransmit() {
            return None;
        }
        while let Some(&seq) = self.lost_again.front() {
            let index = self.index_of(seq);
            self.note_step();
            if self.records.get(index).is_some_and(Record::awaits_retransmit) {
                return Some(index);
            }
            self.lost_again.pop_front();
        }
        let mut index = self.index_of(self.retransmit_cursor);
        while let Some(record) = self.records.get(index) {
            if record.awaits_retransmit() {
                self.retransmit_cursor = record.seq;
                return Some(index);
            }
            index += 1;
            self.note_step();
        }
        None
    }

    /// Notes that the record at `seq` awaits retransmission.
    fn note_lost(&mut self, seq: Seq) {
        if seq >= self.retransmit_cursor {
            return;
        }
        // Mostly at the end: losses are detected in the order of transmission.
        let at = match self.lost_again.back() {
            Some(&last) if seq <= last => self.lost_again.partition_point(|&other| other < seq),
            _ => self.lost_again.len(),
        };
        if self.lost_again.get(at) != Some(&seq) {
            self.lost_again.insert(at, seq);
        }
    }

    /// Counts steps, for tests of the cost.
    #[cfg_attr(not(test), expect(clippy::unused_self, reason = "tests count"))]
    const fn note_step(&mut self) {
        #[cfg(test)]
        {
            self.steps += 1;
        }
    }

    /// Returns the index of the record that was written and not sent.
    pub(in crate::tcp) fn unsent(&self) -> Option<usize> {
        self.unsent.then(|| self.records.len() - 1)
    }

    /// Splits the record at `index` after `len` bytes; both parts share the frame. The second part
    /// of an unsent record stays unsent, and the first counts as sent from now on.
    pub(in crate::tcp) fn split(&mut self, index: usize, len: u32) {
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
        debug_assert_eq!(record.sacked_run, 0, "SACKed data is not retransmitted");
        if rest.awaits_retransmit() {
            self.note_lost(rest.seq);
        }
        self.records.insert(index + 1, rest);
    }

    /// Notes a retransmission of the record at `index`. With `by_rack`, its loss is detected by
    /// [`Scoreboard::detect_lost`].
    pub(in crate::tcp) fn mark_retransmitted(&mut self, now: Instant, index: usize, by_rack: bool) {
        if by_rack && self.retransmissions.len() >= 2 * self.records.len() + 16 {
            self.prune_retransmissions();
        }
        let record = &mut self.records[index];
        record.marks |= RETRANSMITTED;
        record.sent_at = now;
        if record.awaits_retransmit() {
            record.marks |= RETRANS_IN_FLIGHT;
            self.retrans_out += record.len;
        }
        if by_rack {
            self.retransmissions.push_back(Retransmission { sent_at: now, seq: record.seq });
        }
    }

    /// Notes that the record at `index`, the first unsent one, was sent.
    pub(in crate::tcp) fn mark_sent(&mut self, now: Instant, index: usize) {
        self.records[index].sent_at = now;
        self.unsent = index + 1 < self.records.len();
    }
}

impl<T: Retained> Scoreboard<T> {
    /// Replaces up to `count_max` frames by copies, starting at the first record that has a frame,
    /// as far as `pool` admits. Returns how many. The copies are always those of the first records,
    /// so that the only other cost is the search for their end.
    pub(in crate::tcp) fn copy_out(&mut self, pool: &CopyPool, count_max: usize) -> usize {
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

    /// Replaces the first frame by a copy if it has at most `len_max` bytes and `pool` admits it;
    /// true if so. The copies are then those of the first records, as of [`Scoreboard::copy_out`].
    pub(in crate::tcp) fn copy_out_short(&mut self, pool: &CopyPool, len_max: usize) -> bool {
        let copied = self.records.partition_point(|record| record.frame.is_copy());
        let first = self.records.get(copied);
        first.is_some_and(|first| first.frame.bytes().len() <= len_max)
            && self.copy_out(pool, 1) == 1
    }

    /// Returns the time when the first record was last sent, or written if it was never sent.
    pub(in crate::tcp) fn front_sent_at(&self) -> Option<Instant> {
        self.records.front().map(|record| record.sent_at)
    }
}

#[cfg(test)]
mod tests;
