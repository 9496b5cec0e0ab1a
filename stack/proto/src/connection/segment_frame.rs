//! Frames that carry a TCP segment: as the port received them, or reassembled from fragments.

use crate::device::{ChecksumState, Device, RxFrame};
use crate::net::fragments::Reassembled;
use crate::steering::message::Message;
use crate::wire::tcp::Segment;

/// A frame with a TCP segment: as the port received it, or reassembled from fragments.
pub(crate) trait SegmentFrame<D: Device>: RxFrame + Sized {
    /// TCP can hold the frame itself out of order; otherwise it copies the bytes.
    const IS_FROM_PORT: bool;

    /// Returns the frame of the port, or `self` if it was reassembled.
    fn into_port_frame(self) -> Result<D::Rx, Self>;

    /// Returns the message that passes the frame, with this segment, to another shard.
    fn into_message(self, segment: &Segment) -> Message<D::Rx>;
}

/// A frame as the port received it.
pub(crate) struct PortFrame<R>(pub(crate) R);

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

    fn is_hairpinned(&self) -> bool {
        self.0.is_hairpinned()
    }
}

impl<D: Device> SegmentFrame<D> for PortFrame<D::Rx> {
    const IS_FROM_PORT: bool = true;

    fn into_port_frame(self) -> Result<D::Rx, Self> {
        Ok(self.0)
    }

    fn into_message(self, _: &Segment) -> Message<D::Rx> {
        Message::Frame(self.0)
    }
}

impl<D: Device> SegmentFrame<D> for Reassembled {
    const IS_FROM_PORT: bool = false;

    fn into_port_frame(self) -> Result<D::Rx, Self> {
        Err(self)
    }

    fn into_message(self, segment: &Segment) -> Message<D::Rx> {
        Message::Segment(Box::new((segment.clone(), self)))
    }
}
