//! Segment buffered out of order, and the memory charged to a connection for them.

use crate::device::{ChecksumState, RxFrame};

/// Bytes charged for a range of consumed bytes: its places in the tables of its connection.
pub(super) const CONSUMED_LEN: usize = 64;

/// Most that a connection holds, and all connections of a peer, as multiples of what they leave.
const CONNECTION_FACTOR: usize = 2;
const PEER_FACTOR: usize = 4;

/// Copy of bytes of a frame.
#[derive(Debug)]
pub struct OooCopy {
    pub(super) block: Box<[u8]>,
    pub(super) len: usize,
}

/// Buffered segment: the frame it arrived in, or a copy of its bytes. Allocated from an
/// [`OooPool`](crate::tcp::OooPool) and returned to it by
/// [`OooPool::release`](crate::tcp::OooPool::release).
#[derive(Debug)]
pub enum OooSegment<R> {
    /// The whole frame.
    Frame(R),
    /// The bytes.
    Copy(OooCopy),
}

impl<R: RxFrame> RxFrame for OooSegment<R> {
    fn head(&self) -> &[u8] {
        match self {
            Self::Frame(frame) => frame.head(),
            Self::Copy(copied) => &copied.block[..copied.len],
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Frame(frame) => frame.len(),
            Self::Copy(copied) => copied.len,
        }
    }

    fn copy_out(&self, offset: usize, out: &mut [u8]) {
        match self {
            Self::Frame(frame) => frame.copy_out(offset, out),
            Self::Copy(copied) => out.copy_from_slice(&copied.block[offset..offset + out.len()]),
        }
    }

    fn checksum(&self) -> ChecksumState {
        match self {
            Self::Frame(frame) => frame.checksum(),
            // Verified when the frame arrived.
            Self::Copy(_) => ChecksumState::Good,
        }
    }
}

/// Usage of the pool by a connection, and by all connections of its peer.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::tcp) struct Share {
    pub(in crate::tcp) connection: Quota,
    pub(in crate::tcp) peer: Quota,
}

impl Share {
    /// True if neither is too large where `left` is left to others.
    pub(super) fn is_admitted(&self, left: usize, part: impl Fn(Quota) -> usize) -> bool {
        part(self.connection) <= CONNECTION_FACTOR * left && part(self.peer) <= PEER_FACTOR * left
    }
}

/// Usage of the pool.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::tcp) struct Quota {
    /// Frames.
    pub(in crate::tcp) frames: usize,
    /// Bytes of the blocks that hold copies, and those charged for consumed bytes.
    pub(in crate::tcp) bytes: usize,
}

impl Quota {
    pub(in crate::tcp) fn add<R>(&mut self, segment: &OooSegment<R>) {
        match segment {
            OooSegment::Frame(_) => self.frames += 1,
            OooSegment::Copy(copied) => self.bytes += copied.block.len(),
        }
    }

    /// Returns it with `new` instead of `old`, which is part of it.
    pub(super) const fn exchange(self, old: Self, new: Self) -> Self {
        Self {
            frames: self.frames + new.frames - old.frames,
            bytes: self.bytes + new.bytes - old.bytes,
        }
    }

    pub(in crate::tcp) fn remove<R>(&mut self, segment: &OooSegment<R>) {
        match segment {
            OooSegment::Frame(_) => self.frames -= 1,
            OooSegment::Copy(copied) => self.bytes -= copied.block.len(),
        }
    }
}

/// What a connection was charged for: it may have delivered some of it since.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Charge {
    /// Group of its peer.
    pub(super) peer: u8,
    pub(super) quota: Quota,
    /// Ranges of consumed bytes.
    pub(super) consumed: usize,
}

impl Charge {
    /// Returns the charge of a connection to a peer of this group, before it holds anything.
    pub(super) fn none(peer: u8) -> Self {
        Self { peer, ..Self::default() }
    }
}
