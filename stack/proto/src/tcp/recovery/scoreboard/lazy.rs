//! Scoreboard allocated lazily: a connection has it only while it sends.

use core::ops::Deref;

use super::Scoreboard;
use super::acked::{AckInfo, Acked};
use super::loss_detection::LossUpdate;
use crate::device::{Device, Retained};
use crate::tcp::recovery::rack::{Rack, SampleGuard};
use crate::tcp::recovery::sent_frame::CopyPool;
use crate::time::Instant;
use crate::wire::seq::Seq;
use crate::wire::tcp::SackBlock;

/// [`Scoreboard`], allocated with the first record and released when the connection has been idle
/// for a while. Of many connections most are idle; each then has only a null pointer.
#[derive(Debug)]
pub(in crate::tcp) struct LazyScoreboard<T> {
    inner: Option<Box<Scoreboard<T>>>,
}

impl<T: Clone + 'static> Deref for LazyScoreboard<T> {
    type Target = Scoreboard<T>;

    #[inline]
    fn deref(&self) -> &Scoreboard<T> {
        self.inner.as_deref().unwrap_or(Scoreboard::EMPTY)
    }
}

impl<T: Clone + 'static> LazyScoreboard<T> {
    /// No record.
    pub(in crate::tcp) const fn new() -> Self {
        Self { inner: None }
    }

    /// Has the port load the scoreboard, if there is one.
    pub(in crate::tcp) fn prefetch<D: Device>(&self) {
        if let Some(scoreboard) = &self.inner {
            D::prefetch::<Scoreboard<T>>(scoreboard);
        }
    }

    /// Adds a record; `sent`: it is sent now.
    #[inline]
    pub(in crate::tcp) fn push(
        &mut self,
        now: Instant,
        seq: Seq,
        len: u32,
        offset: u32,
        frame: T,
        sent: bool,
    ) {
        let scoreboard = self.inner.get_or_insert_with(|| Box::new(Scoreboard::new(seq)));
        scoreboard.push(now, seq, len, offset, frame, sent);
    }

    /// See [`Scoreboard::ack`].
    #[inline]
    pub(in crate::tcp) fn ack(
        &mut self,
        ack: Seq,
        guard: Option<&SampleGuard>,
        info: &mut AckInfo,
    ) {
        if let Some(scoreboard) = &mut self.inner {
            scoreboard.ack(ack, guard, info);
        }
    }

    /// See [`Scoreboard::ack_in_order`].
    #[inline]
    pub(in crate::tcp) fn ack_in_order(&mut self, ack: Seq) -> Acked {
        self.inner.as_mut().map_or_else(Acked::default, |scoreboard| scoreboard.ack_in_order(ack))
    }

    /// See [`Scoreboard::apply_sack`].
    pub(in crate::tcp) fn apply_sack(
        &mut self,
        blocks: &[SackBlock],
        una: Seq,
        nxt: Seq,
        guard: &SampleGuard,
        info: &mut AckInfo,
    ) {
        if let Some(scoreboard) = &mut self.inner {
            scoreboard.apply_sack(blocks, una, nxt, guard, info);
        }
    }

    /// See [`Scoreboard::detect_lost`].
    pub(in crate::tcp) fn detect_lost(
        &mut self,
        now: Instant,
        rack: &Rack,
        rack_timeout_ns: u64,
    ) -> LossUpdate {
        let scoreboard = self.inner.as_mut();
        scoreboard.map_or_else(LossUpdate::default, |scoreboard| {
            scoreboard.detect_lost(now, rack, rack_timeout_ns)
        })
    }

    /// See [`Scoreboard::mark_first_lost`].
    pub(in crate::tcp) fn mark_first_lost(&mut self) {
        if let Some(scoreboard) = &mut self.inner {
            scoreboard.mark_first_lost();
        }
    }

    /// See [`Scoreboard::mark_lost_on_rto`].
    pub(in crate::tcp) fn mark_lost_on_rto(&mut self, now: Instant, rack_timeout_ns: u64) {
        if let Some(scoreboard) = &mut self.inner {
            scoreboard.mark_lost_on_rto(now, rack_timeout_ns);
        }
    }

    /// See [`Scoreboard::mark_longer_lost`].
    pub(in crate::tcp) fn mark_longer_lost(&mut self, len: u32) {
        if let Some(scoreboard) = &mut self.inner {
            scoreboard.mark_longer_lost(len);
        }
    }

    /// See [`Scoreboard::clear_lost`].
    pub(in crate::tcp) fn clear_lost(&mut self, by_rack: bool) {
        if let Some(scoreboard) = &mut self.inner {
            scoreboard.clear_lost(by_rack);
        }
    }

    /// See [`Scoreboard::next_lost_seq`].
    pub(in crate::tcp) fn next_lost_seq(&mut self) -> Option<Seq> {
        self.inner.as_mut()?.next_lost_seq()
    }

    /// See [`Scoreboard::next_lost`].
    #[inline]
    pub(in crate::tcp) fn next_lost(&mut self) -> Option<usize> {
        self.inner.as_mut()?.next_lost()
    }

    /// See [`Scoreboard::split`].
    pub(in crate::tcp) fn split(&mut self, index: usize, len: u32) {
        if let Some(scoreboard) = &mut self.inner {
            scoreboard.split(index, len);
        }
    }

    /// See [`Scoreboard::mark_retransmitted`].
    pub(in crate::tcp) fn mark_retransmitted(&mut self, now: Instant, index: usize, by_rack: bool) {
        if let Some(scoreboard) = &mut self.inner {
            scoreboard.mark_retransmitted(now, index, by_rack);
        }
    }

    /// See [`Scoreboard::mark_sent`].
    pub(in crate::tcp) fn mark_sent(&mut self, now: Instant, index: usize) {
        if let Some(scoreboard) = &mut self.inner {
            scoreboard.mark_sent(now, index);
        }
    }

    /// True if the scoreboard is allocated.
    #[inline]
    pub(in crate::tcp) const fn holds_memory(&self) -> bool {
        self.inner.is_some()
    }

    /// Releases the memory if there is no record.
    pub(in crate::tcp) fn release_memory(&mut self) {
        if self.is_empty() {
            self.inner = None;
        }
    }

    /// Drops all records and releases the memory.
    pub(in crate::tcp) fn clear(&mut self) {
        self.inner = None;
    }
}

impl<T: Retained> LazyScoreboard<T> {
    /// See [`Scoreboard::copy_out`].
    pub(in crate::tcp) fn copy_out(&mut self, pool: &CopyPool, count_max: usize) -> usize {
        self.inner.as_mut().map_or(0, |scoreboard| scoreboard.copy_out(pool, count_max))
    }

    /// See [`Scoreboard::copy_out_short`].
    pub(in crate::tcp) fn copy_out_short(&mut self, pool: &CopyPool, len_max: usize) -> bool {
        self.inner.as_mut().is_some_and(|scoreboard| scoreboard.copy_out_short(pool, len_max))
    }
}
