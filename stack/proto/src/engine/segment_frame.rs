//! Frames that carry a TCP segment: as the port received them, or reassembled from fragments.

use core::ops::Range;

use crate::device::{ChecksumState, Device, RxFrame};
use crate::net::fragments::Reassembled;
use crate::tcp::{OooPool, Tcb};

/// A frame with a TCP segment: as the port received it, or reassembled from fragments.
pub(super) trait SegmentFrame<D: Device>: RxFrame {
    /// True if [`SegmentFrame::buffer_ooo`] has memory for `len` bytes.
    fn can_buffer(
        &self,
        tcb: &Tcb<D::Rx, D::Retained>,
        ooo_pool: &OooPool<D::Rx>,
        len: usize,
    ) -> bool;

    /// Has TCP buffer `bytes` of it; see [`Tcb::buffer_ooo`].
    fn buffer_ooo(
        self,
        tcb: &mut Tcb<D::Rx, D::Retained>,
        ooo_pool: &mut OooPool<D::Rx>,
        bytes: Range<usize>,
    ) -> bool;
}

/// A frame as the port received it.
pub(super) struct PortFrame<R>(pub(super) R);

impl<R: RxFrame> RxFrame for PortFrame<R> {
    #[inline]
    fn head(&self) -> &[u8] {
        self.0.head()
    }

    #[inline]
    fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn copy_out(&self, offset: usize, out: &mut [u8]) {
        self.0.copy_out(offset, out);
    }

    #[inline]
    fn checksum(&self) -> ChecksumState {
        self.0.checksum()
    }
}

impl<D: Device> SegmentFrame<D> for PortFrame<D::Rx> {
    fn can_buffer(
        &self,
        tcb: &Tcb<D::Rx, D::Retained>,
        ooo_pool: &OooPool<D::Rx>,
        len: usize,
    ) -> bool {
        tcb.can_buffer_ooo(ooo_pool, len)
    }

    fn buffer_ooo(
        self,
        tcb: &mut Tcb<D::Rx, D::Retained>,
        ooo_pool: &mut OooPool<D::Rx>,
        bytes: Range<usize>,
    ) -> bool {
        tcb.buffer_ooo(ooo_pool, self.0, bytes)
    }
}

impl<D: Device> SegmentFrame<D> for Reassembled {
    fn can_buffer(
        &self,
        tcb: &Tcb<D::Rx, D::Retained>,
        ooo_pool: &OooPool<D::Rx>,
        len: usize,
    ) -> bool {
        tcb.can_copy_ooo(ooo_pool, len)
    }

    fn buffer_ooo(
        self,
        tcb: &mut Tcb<D::Rx, D::Retained>,
        ooo_pool: &mut OooPool<D::Rx>,
        bytes: Range<usize>,
    ) -> bool {
        tcb.copy_ooo(ooo_pool, &self.head()[bytes])
    }
}
