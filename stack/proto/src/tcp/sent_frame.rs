//! What keeps the bytes of a sent record until they are acknowledged: the frame they first left
//! in, or a copy of it in memory for which copies are bounded.
//!
//! A kept frame is a buffer of the port's data pool. A peer that stops acknowledging, or closes its
//! window, would hold all of its records' buffers for as long as its connection lives, and RFC 9293
//! section 3.8.6.1 lets it live while it answers probes. So where others find the pool drained, the
//! frames of peers that make no progress are copied out and given back; see `engine/reclaim.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Tcb;
use crate::device::{Retained, RxFrame};
use crate::time::Instant;

/// How many sent frames an engine keeps copies of, over all its connections.
#[derive(Debug)]
pub struct CopyPool {
    in_use: Arc<AtomicUsize>,
    count_max: usize,
}

/// A copy of a sent frame; its place in the [`CopyPool`] is free again once the last record that
/// shares it is gone.
#[derive(Debug)]
pub(super) struct SentCopy {
    bytes: Box<[u8]>,
    in_use: Arc<AtomicUsize>,
}

impl Drop for SentCopy {
    fn drop(&mut self) {
        self.in_use.fetch_sub(1, Ordering::Relaxed);
    }
}

impl CopyPool {
    /// Room for as many copies of frames of `frame_len` bytes as `bytes_max` bytes take. Nothing
    /// is allocated yet.
    #[must_use]
    pub fn new(bytes_max: usize, frame_len: usize) -> Self {
        Self { in_use: Arc::default(), count_max: bytes_max / frame_len.max(1) }
    }

    /// Copies kept at present.
    #[must_use]
    pub fn count(&self) -> usize {
        self.in_use.load(Ordering::Relaxed)
    }

    /// Copies that one connection may have: at most twice of what it would leave to the others, as
    /// with [`super::OooPool`].
    pub(super) fn admits(&self, share: usize) -> bool {
        let left = self.count_max.checked_sub(self.count() + 1);
        left.is_some_and(|left| share <= 2 * left)
    }

    /// A copy of a frame's bytes, which [`CopyPool::admits`] was asked for.
    fn copy(&self, bytes: &[u8]) -> SentCopy {
        self.in_use.fetch_add(1, Ordering::Relaxed);
        SentCopy { bytes: bytes.into(), in_use: Arc::clone(&self.in_use) }
    }
}

/// What keeps a record's bytes.
#[derive(Clone, Debug)]
pub(super) enum SentFrame<T> {
    /// The frame they first left in.
    Frame(T),
    /// A copy of that frame, at the same offsets.
    Copy(Arc<SentCopy>),
}

impl<T> SentFrame<T> {
    pub(super) const fn is_copy(&self) -> bool {
        matches!(self, Self::Copy(_))
    }
}

impl<T: Retained> SentFrame<T> {
    /// The frame's bytes, headers as they were at first transmission.
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Frame(frame) => frame.bytes(),
            Self::Copy(copy) => &copy.bytes,
        }
    }

    /// Gives the frame up for a copy.
    pub(super) fn copy_out(&mut self, pool: &CopyPool) {
        if let Self::Frame(frame) = self {
            *self = Self::Copy(Arc::new(pool.copy(frame.bytes())));
        }
    }
}

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Since when the first record waits, or nothing was acknowledged, whichever is longer; `None`
    /// if no record is kept.
    #[must_use]
    pub fn stalled_since(&self, now: Instant) -> Option<Instant> {
        Some(self.scoreboard.front_sent_at()?.min(self.progress_at(now)))
    }

    /// Gives frames of records back for copies of them, `count_max` at most and as far as `pool`
    /// admits; returns how many. Nothing else changes: the bytes go again out of the copies.
    pub fn copy_out(&mut self, pool: &CopyPool, count_max: usize) -> usize {
        self.scoreboard.copy_out(pool, count_max)
    }
}

#[cfg(test)]
mod tests {
    use super::{CopyPool, SentFrame};
    use crate::tcp::tests::HeapFrame;

    #[test]
    fn dropped_copy_frees_its_place_in_the_pool() {
        let pool = CopyPool::new(3 * 1500 + 1, 1500);
        let mut kept = SentFrame::Frame(HeapFrame::new(&[1, 2, 3]));
        kept.copy_out(&pool);
        kept.copy_out(&pool);
        assert!(kept.is_copy());
        assert_eq!((kept.bytes(), pool.count()), (&[1, 2, 3][..], 1));
        let piece = kept.clone();
        drop(kept);
        assert_eq!((piece.bytes(), pool.count()), (&[1, 2, 3][..], 1));
        drop(piece);
        assert_eq!(pool.count(), 0);
    }

    #[test]
    fn one_connection_gets_two_thirds_of_the_copies() {
        let pool = CopyPool::new(90, 1);
        let mut all = Vec::new();
        while pool.admits(all.len()) {
            let mut kept = SentFrame::Frame(HeapFrame::new(&[0]));
            kept.copy_out(&pool);
            all.push(kept);
        }
        assert_eq!(all.len(), 60);
        assert!(pool.admits(0) && !CopyPool::new(0, 1).admits(0));
    }
}
