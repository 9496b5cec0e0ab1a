//! In-order bytes of the TCP stream, as the deframer consumes them.

use core::ops::Range;

use crate::device::RxFrame;

/// Bytes of the stream in order: a range of a received frame, or a slice. Consumed from the front.
#[derive(Clone)]
pub struct StreamBytes<'f> {
    /// The first contiguous run of what is left; empty if that lies in a later segment of a frame
    /// of several.
    run: &'f [u8],
    len: usize,
    /// The frame and the offset in it of the first byte left, for what `run` does not hold.
    frame: Option<&'f dyn RxFrame>,
    offset: usize,
}

impl core::fmt::Debug for StreamBytes<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("StreamBytes").field("run", &self.run).field("len", &self.len).finish()
    }
}

impl<'f> From<&'f [u8]> for StreamBytes<'f> {
    fn from(bytes: &'f [u8]) -> Self {
        Self { run: bytes, len: bytes.len(), frame: None, offset: 0 }
    }
}

impl<'f> StreamBytes<'f> {
    /// The bytes `range` of `frame`, which has them.
    #[inline]
    #[must_use]
    pub fn of_frame(frame: &'f dyn RxFrame, range: Range<usize>) -> Self {
        let head = frame.head();
        let run = head.get(range.start..range.end.min(head.len())).unwrap_or(&[]);
        Self { run, len: range.len(), frame: Some(frame), offset: range.start }
    }

    /// Bytes left.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True if no byte is left.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first contiguous run of the bytes left.
    #[inline]
    pub(super) const fn run(&self) -> &'f [u8] {
        self.run
    }

    /// Consumes `len` bytes, at most [`StreamBytes::len`].
    #[inline]
    pub(super) fn advance(&mut self, len: usize) {
        self.run = self.run.get(len..).unwrap_or(&[]);
        self.len -= len;
        self.offset += len;
    }

    /// Copies the first bytes left to `out`, which has at most [`StreamBytes::len`].
    pub(super) fn copy_to(&self, out: &mut [u8]) {
        match (self.run.get(..out.len()), self.frame) {
            (Some(bytes), _) => out.copy_from_slice(bytes),
            (None, Some(frame)) => frame.copy_out(self.offset, out),
            (None, None) => unreachable!("a slice is one run"),
        }
    }
}
