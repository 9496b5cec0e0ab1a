//! Data that became contiguous.

use core::ops::Range;

use super::ooo_segment::OooSegment;
use crate::wire::seq::Seq;

/// Bytes accepted out of order that are now the next in order.
#[derive(Debug)]
pub enum Contiguous<R> {
    /// Buffered by TCP until now. The caller returns `segment` by
    /// [`OooPool::release`](crate::tcp::OooPool::release).
    Buffered {
        /// Frame or copy that holds the bytes.
        segment: OooSegment<R>,
        /// Position of the bytes in it.
        bytes: Range<usize>,
    },
    /// Consumed by the upper layer when they arrived.
    Consumed {
        /// Sequence number of the first byte.
        seq: Seq,
        /// Number of bytes.
        len: u32,
    },
}

impl<R> Contiguous<R> {
    /// Returns the length in sequence space.
    #[expect(clippy::cast_possible_truncation, reason = "a payload is below 64 KiB")]
    pub(super) fn seq_len(&self) -> u32 {
        match self {
            Self::Buffered { bytes, .. } => bytes.len() as u32,
            Self::Consumed { len, .. } => *len,
        }
    }
}
