//! Storage of a sent record's bytes until they are acknowledged: the frame of their first
//! transmission, or a copy of it in bounded memory.
//!
//! A retained frame is a buffer of the port's data pool. A peer that stops acknowledging, or closes
//! its window, would hold the buffers of all its records for the life of its connection, and
//! RFC 9293 section 3.8.6.1 keeps that alive while the peer answers probes. So when other
//! connections find the pool exhausted, the frames of peers without progress are copied and
//! released; see `engine/tx_reclaim.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::device::{Retained, RxFrame};
use crate::tcp::Tcb;
use crate::time::Instant;

/// Limit on the copies of sent frames, for all connections of an engine.
#[derive(Debug)]
pub struct CopyPool {
    in_use: Arc<CopiesInUse>,
    bytes_max: usize,
    /// Bytes that a copy of the longest frame takes.
    copy_len_max: usize,
}

#[derive(Debug, Default)]
struct CopiesInUse {
    count: AtomicUsize,
    bytes: AtomicUsize,
}

/// Copy of a sent frame. Its bytes are free again for the [`CopyPool`] once the last record that
/// shares it is dropped.
#[derive(Debug)]
pub(in crate::tcp) struct SentCopy {
    bytes: Box<[u8]>,
    in_use: Arc<CopiesInUse>,
}

/// Bytes that a copy takes in addition to the frame's, the allocator's own included.
pub(super) const COPY_OVERHEAD: usize = 96;

impl Drop for SentCopy {
    fn drop(&mut self) {
        self.in_use.count.fetch_sub(1, Ordering::Relaxed);
        self.in_use.bytes.fetch_sub(self.bytes.len() + COPY_OVERHEAD, Ordering::Relaxed);
    }
}

impl CopyPool {
    /// Creates a pool for copies of frames of at most `frame_len` bytes, which take `bytes_max`
    /// bytes in all. Nothing is allocated yet.
    #[must_use]
    pub fn new(bytes_max: usize, frame_len: usize) -> Self {
        Self { in_use: Arc::default(), bytes_max, copy_len_max: frame_len + COPY_OVERHEAD }
    }

    /// Number of copies in use.
    #[must_use]
    pub fn count(&self) -> usize {
        self.in_use.count.load(Ordering::Relaxed)
    }

    /// True if a connection with `share` copies may have one more: at most twice as many as it
    /// leaves to others, of the longest frames, as with [`crate::tcp::OooPool`].
    pub(in crate::tcp) fn admits(&self, share: usize) -> bool {
        let in_use = self.in_use.bytes.load(Ordering::Relaxed);
        let left = self.bytes_max.checked_sub(in_use + self.copy_len_max);
        left.is_some_and(|left| share <= 2 * (left / self.copy_len_max))
    }

    /// Copies the bytes of a frame. To be called only if [`CopyPool::admits`] returned true.
    fn copy(&self, bytes: &[u8]) -> SentCopy {
        self.in_use.count.fetch_add(1, Ordering::Relaxed);
        self.in_use.bytes.fetch_add(bytes.len() + COPY_OVERHEAD, Ordering::Relaxed);
        SentCopy { bytes: bytes.into(), in_use: Arc::clone(&self.in_use) }
    }
}

/// Storage of a record's bytes.
#[derive(Clone, Debug)]
pub(in crate::tcp) enum SentFrame<T> {
    /// Frame of the first transmission.
    Frame(T),
    /// Copy of that frame, with the same offsets.
    Copy(Arc<SentCopy>),
}

impl<T> SentFrame<T> {
    pub(in crate::tcp) const fn is_copy(&self) -> bool {
        matches!(self, Self::Copy(_))
    }
}

impl<T: Retained> SentFrame<T> {
    /// Returns the bytes of the frame, with the headers of the first transmission.
    pub(in crate::tcp) fn bytes(&self) -> &[u8] {
        match self {
            Self::Frame(frame) => frame.bytes(),
            Self::Copy(copy) => &copy.bytes,
        }
    }

    /// Replaces the frame by a copy, and releases it.
    pub(in crate::tcp) fn copy_out(&mut self, pool: &CopyPool) {
        if let Self::Frame(frame) = self {
            *self = Self::Copy(Arc::new(pool.copy(frame.bytes())));
        }
    }
}

impl<R: RxFrame, T: Retained> Tcb<R, T> {
    /// Returns the earlier of the last transmission of the first record and the last progress;
    /// `None` if there is no record.
    #[must_use]
    pub fn stalled_since(&self, now: Instant) -> Option<Instant> {
        Some(self.scoreboard.front_sent_at()?.min(self.progress_at(now)))
    }

    /// Replaces frames of records by copies, at most `count_max` and as far as `pool` admits;
    /// returns how many. Nothing else changes: retransmissions use the copies.
    pub fn copy_out(&mut self, pool: &CopyPool, count_max: usize) -> usize {
        self.scoreboard.update(|records| records.copy_out(pool, count_max))
    }

    /// As [`Tcb::copy_out`] for one frame of at most `len_max` bytes; true if there is one.
    pub fn copy_out_short(&mut self, pool: &CopyPool, len_max: usize) -> bool {
        self.scoreboard.update(|records| records.copy_out_short(pool, len_max))
    }
}

#[cfg(test)]
mod tests {
    use super::{COPY_OVERHEAD, CopyPool, SentFrame};
    use crate::tcp::tests::HeapFrame;

    #[test]
    fn dropped_copy_frees_its_place_in_the_pool() {
        let pool = CopyPool::new(3 * (1500 + COPY_OVERHEAD) + 1, 1500);
        let mut frame = SentFrame::Frame(HeapFrame::new(&[1, 2, 3]));
        frame.copy_out(&pool);
        frame.copy_out(&pool);
        assert!(frame.is_copy());
        assert_eq!((frame.bytes(), pool.count()), (&[1, 2, 3][..], 1));
        let clone = frame.clone();
        drop(frame);
        assert_eq!((clone.bytes(), pool.count()), (&[1, 2, 3][..], 1));
        drop(clone);
        assert_eq!(pool.count(), 0);
    }

    #[test]
    fn one_connection_gets_two_thirds_of_the_copies() {
        let pool = CopyPool::new(90 * (1 + COPY_OVERHEAD), 1);
        let mut all = Vec::new();
        while pool.admits(all.len()) {
            let mut frame = SentFrame::Frame(HeapFrame::new(&[0]));
            frame.copy_out(&pool);
            all.push(frame);
        }
        assert_eq!(all.len(), 60);
        assert!(pool.admits(0) && !CopyPool::new(0, 1).admits(0));
    }
}
