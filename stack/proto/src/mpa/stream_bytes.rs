//! In-order received bytes of the TCP stream: the input of the deframer.

use core::ops::Range;

use crate::device::RxFrame;

/// Cursor over in-order bytes of the stream, in a range of a received frame or in a slice. Bytes
/// are consumed from the front.
#[derive(Clone, Copy)]
pub struct StreamBytes<'f> {
    /// First contiguous run of the remaining bytes; empty if they are in a later segment of a
    /// multi-segment frame.
    run: &'f [u8],
    /// Number of remaining bytes after `run`.
    beyond: usize,
    /// Frame from which the bytes after `run` are copied; `None` for a slice.
    frame: Option<&'f dyn RxFrame>,
    /// End offset of the bytes in the frame or slice.
    end: usize,
}

impl core::fmt::Debug for StreamBytes<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("StreamBytes").field("run", &self.run).field("beyond", &self.beyond).finish()
    }
}

impl<'f> From<&'f [u8]> for StreamBytes<'f> {
    fn from(bytes: &'f [u8]) -> Self {
        Self { run: bytes, beyond: 0, frame: None, end: bytes.len() }
    }
}

impl<'f> StreamBytes<'f> {
    /// Returns a cursor over the bytes `range` of `frame`. The range has to lie within the frame.
    #[inline]
    #[must_use]
    pub fn of_frame<F: RxFrame>(frame: &'f F, range: Range<usize>) -> Self {
        let head = frame.head();
        let run = head.get(range.start..range.end.min(head.len())).unwrap_or(&[]);
        Self { run, beyond: range.len() - run.len(), frame: Some(frame), end: range.end }
    }

    /// Returns the number of remaining bytes.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.run.len() + self.beyond
    }

    /// True if no bytes remain.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.run.is_empty() && self.beyond == 0
    }

    /// Returns the first contiguous run of the remaining bytes.
    #[inline]
    pub(super) const fn run(&self) -> &'f [u8] {
        self.run
    }

    /// Consumes `len` bytes of the run.
    #[inline]
    pub(super) fn advance_run(&mut self, len: usize) {
        self.run = &self.run[len..];
    }

    /// Consumes `len` bytes, at most [`StreamBytes::len`].
    pub(super) fn advance(&mut self, len: usize) {
        let of_run = len.min(self.run.len());
        self.advance_run(of_run);
        self.beyond -= len - of_run;
    }

    /// Fills `out` with the first remaining bytes, without consuming them. `out` is at most
    /// [`StreamBytes::len`] long.
    pub(super) fn copy_to(&self, out: &mut [u8]) {
        match (self.run.get(..out.len()), self.frame) {
            (Some(bytes), _) => out.copy_from_slice(bytes),
            (None, Some(frame)) => frame.copy_out(self.end - self.len(), out),
            (None, None) => unreachable!("a slice is contiguous"),
        }
    }
}
