//! In-order bytes of the TCP stream, as the deframer consumes them.

use core::ops::Range;

use crate::device::RxFrame;

/// Bytes of the stream in order: a range of a received frame, or a slice. Consumed from the front.
#[derive(Clone, Copy)]
pub struct StreamBytes<'f> {
    /// The first contiguous run of what is left; empty if that lies in a later segment of a frame
    /// of several.
    run: &'f [u8],
    /// Bytes behind `run`.
    beyond: usize,
    /// The frame, for what `run` does not hold, and where in it the bytes end.
    frame: Option<&'f dyn RxFrame>,
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
    /// The bytes `range` of `frame`, which has them.
    #[inline]
    #[must_use]
    pub fn of_frame<F: RxFrame>(frame: &'f F, range: Range<usize>) -> Self {
        let head = frame.head();
        let run = head.get(range.start..range.end.min(head.len())).unwrap_or(&[]);
        Self { run, beyond: range.len() - run.len(), frame: Some(frame), end: range.end }
    }

    /// Bytes left.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.run.len() + self.beyond
    }

    /// True if no byte is left.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.run.is_empty() && self.beyond == 0
    }

    /// The first contiguous run of the bytes left.
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

    /// Copies the first bytes left to `out`, which has at most [`StreamBytes::len`].
    pub(super) fn copy_to(&self, out: &mut [u8]) {
        match (self.run.get(..out.len()), self.frame) {
            (Some(bytes), _) => out.copy_from_slice(bytes),
            (None, Some(frame)) => frame.copy_out(self.end - self.len(), out),
            (None, None) => unreachable!("a slice is one run"),
        }
    }
}
