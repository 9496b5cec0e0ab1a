//! The queue of records in memory of its own, which a connection has only while it sends.

use core::ops::Deref;

use super::{Board, Freed, News, Verdict};
use crate::device::Retained;
use crate::tcp::kept::CopyPool;
use crate::tcp::rack::{Guard, Rack};
use crate::time::Instant;
use crate::wire::seq::Seq;
use crate::wire::tcp::Block;

/// A [`Board`], taken with the first record and given back when the connection has been idle for
/// a while: most of many connections are, and then this is a null pointer.
#[derive(Debug)]
pub(in crate::tcp) struct Scoreboard<T> {
    board: Option<Box<Board<T>>>,
}

impl<T: Clone + 'static> Deref for Scoreboard<T> {
    type Target = Board<T>;

    #[inline]
    fn deref(&self) -> &Board<T> {
        self.board.as_deref().unwrap_or(Board::EMPTY)
    }
}

impl<T: Clone + 'static> Scoreboard<T> {
    /// No record.
    pub(in crate::tcp) const fn new() -> Self {
        Self { board: None }
    }

    /// Adds a record; `sent`: it leaves now.
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
        let board = self.board.get_or_insert_with(|| Box::new(Board::new(seq)));
        board.push(now, seq, len, offset, frame, sent);
    }

    /// See [`Board::ack`].
    #[inline]
    pub(in crate::tcp) fn ack(&mut self, ack: Seq, guard: Option<&Guard>, news: &mut News) {
        if let Some(board) = &mut self.board {
            board.ack(ack, guard, news);
        }
    }

    /// See [`Board::free`].
    #[inline]
    pub(in crate::tcp) fn free(&mut self, ack: Seq) -> Freed {
        self.board.as_mut().map_or_else(Freed::default, |board| board.free(ack))
    }

    /// See [`Board::apply_sack`].
    pub(in crate::tcp) fn apply_sack(
        &mut self,
        blocks: &[Block],
        una: Seq,
        nxt: Seq,
        guard: &Guard,
        news: &mut News,
    ) {
        if let Some(board) = &mut self.board {
            board.apply_sack(blocks, una, nxt, guard, news);
        }
    }

    /// See [`Board::detect_lost`].
    pub(in crate::tcp) fn detect_lost(
        &mut self,
        now: Instant,
        rack: &Rack,
        patience_ns: u64,
    ) -> Verdict {
        let board = self.board.as_mut();
        board.map_or_else(Verdict::default, |board| board.detect_lost(now, rack, patience_ns))
    }

    /// See [`Board::lose_first`].
    pub(in crate::tcp) fn lose_first(&mut self) {
        if let Some(board) = &mut self.board {
            board.lose_first();
        }
    }

    /// See [`Board::lose_at_timeout`].
    pub(in crate::tcp) fn lose_at_timeout(&mut self, now: Instant, patience_ns: u64) {
        if let Some(board) = &mut self.board {
            board.lose_at_timeout(now, patience_ns);
        }
    }

    /// See [`Board::lose_longer`].
    pub(in crate::tcp) fn lose_longer(&mut self, len: u32) {
        if let Some(board) = &mut self.board {
            board.lose_longer(len);
        }
    }

    /// See [`Board::forgive`].
    pub(in crate::tcp) fn forgive(&mut self, judged: bool) {
        if let Some(board) = &mut self.board {
            board.forgive(judged);
        }
    }

    /// See [`Board::first_lost`].
    pub(in crate::tcp) fn first_lost(&mut self) -> Option<Seq> {
        self.board.as_mut()?.first_lost()
    }

    /// See [`Board::next_lost`].
    #[inline]
    pub(in crate::tcp) fn next_lost(&mut self) -> Option<usize> {
        self.board.as_mut()?.next_lost()
    }

    /// See [`Board::cut`].
    pub(in crate::tcp) fn cut(&mut self, index: usize, len: u32) {
        if let Some(board) = &mut self.board {
            board.cut(index, len);
        }
    }

    /// See [`Board::resent`].
    pub(in crate::tcp) fn resent(&mut self, now: Instant, index: usize, judged: bool) {
        if let Some(board) = &mut self.board {
            board.resent(now, index, judged);
        }
    }

    /// See [`Board::sent`].
    pub(in crate::tcp) fn sent(&mut self, now: Instant, index: usize) {
        if let Some(board) = &mut self.board {
            board.sent(now, index);
        }
    }

    /// True if memory is held for records to come.
    #[inline]
    pub(in crate::tcp) const fn holds_memory(&self) -> bool {
        self.board.is_some()
    }

    /// Gives the memory back if nothing is in it.
    pub(in crate::tcp) fn release_memory(&mut self) {
        if self.is_empty() {
            self.board = None;
        }
    }

    /// Drops all records, and their memory.
    pub(in crate::tcp) fn clear(&mut self) {
        self.board = None;
    }
}

impl<T: Retained> Scoreboard<T> {
    /// See [`Board::copy_out`].
    pub(in crate::tcp) fn copy_out(&mut self, pool: &CopyPool, count_max: usize) -> usize {
        self.board.as_mut().map_or(0, |board| board.copy_out(pool, count_max))
    }
}
