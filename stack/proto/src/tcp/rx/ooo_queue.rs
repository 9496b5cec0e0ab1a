//! Out-of-order queue: segments received out of order, and the memory that holds them. It is
//! bounded and shared by all connections of an engine.
//!
//! A received frame is held without a copy, but it is a buffer of the port's receive pool: if held
//! frames exhausted the pool, the segments that fill the holes could not be received either. So
//! only some segments are held as frames, the others as copies of their bytes. Small segments are
//! always copied, so that one byte does not cost a whole buffer.

use core::ops::Range;

use super::assembler::Assembler;
use crate::device::{ChecksumState, RxFrame};
use crate::wire::seq::Seq;
use crate::wire::tcp::SackBlock;

/// Payload length below which a segment is copied at once: half of the usual receive buffer.
const SMALL_LEN: usize = 1024;
/// Block sizes besides those for small and for full segments.
const BLOCK_SMALL: usize = 256;
const BLOCK_LARGE: usize = 2048;
/// Number of groups of peers, by a hash of the address.
const PEER_GROUPS: usize = 1 << u8::BITS;
/// Empty assemblers kept for connections that next receive out-of-order data.
const SPARE_ASSEMBLERS: usize = 16;

/// Memory for the out-of-order segments of all connections of an engine.
///
/// Blocks are allocated as needed, kept and reused: nothing is allocated per packet once the
/// working size is reached. A connection gets at most twice what it leaves free, so that one
/// connection that holds much does not block those that hold little. All connections of one peer
/// get four times that: however many it has, a fifth of the pool is left to others. Peers are told
/// apart by a keyed hash of their address, which the caller gives.
#[derive(Debug)]
pub struct OooPool<R> {
    frames: usize,
    frames_max: usize,
    /// Bytes of all blocks, in use or free.
    allocated: usize,
    /// Bytes of the blocks in use.
    in_use: usize,
    /// Bytes charged for ranges of consumed bytes.
    consumed: usize,
    bytes_max: usize,
    /// Usage by group of peers.
    by_peer: Box<[Quota; PEER_GROUPS]>,
    /// Block sizes, ascending.
    sizes: [usize; 4],
    free: [Vec<Box<[u8]>>; 4],
    /// Boxed, because a connection has space for a pointer only.
    #[expect(clippy::vec_box, reason = "only the boxes are lent")]
    spares: Vec<Box<Assembler<R>>>,
}

impl<R> OooPool<R> {
    /// Creates a pool of at most `frames_max` frames and `bytes_max` bytes of copies. Bytes are
    /// copied once half of the frames are in use. A full segment carries `segment_len` bytes.
    /// Nothing is allocated yet.
    #[must_use]
    pub fn new(frames_max: usize, bytes_max: usize, segment_len: usize) -> Self {
        let full = segment_len.max(SMALL_LEN).next_multiple_of(64);
        Self {
            frames: 0,
            frames_max,
            allocated: 0,
            in_use: 0,
            consumed: 0,
            bytes_max,
            by_peer: Box::new([Quota::default(); PEER_GROUPS]),
            // Even where segments may be long, those of most peers are not.
            sizes: [BLOCK_SMALL, SMALL_LEN, full.min(BLOCK_LARGE), full],
            free: [const { Vec::new() }; 4],
            spares: Vec::new(),
        }
    }

    /// Number of frames in the queue.
    #[must_use]
    pub const fn frames(&self) -> usize {
        self.frames
    }

    /// Bytes of blocks in use.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.in_use
    }

    /// Releases a segment.
    pub fn release(&mut self, segment: OooSegment<R>) {
        match segment {
            OooSegment::Frame(_) => self.frames -= 1,
            OooSegment::Copy(OooCopy { block, .. }) => {
                self.in_use -= block.len();
                if let Some(class) = self.sizes.iter().position(|size| *size == block.len()) {
                    self.free[class].push(block);
                }
            }
        }
    }

    /// Returns an empty assembler, for a connection that receives its first out-of-order data.
    pub(in crate::tcp) fn take_assembler(&mut self) -> Box<Assembler<R>> {
        self.spares.pop().unwrap_or_default()
    }

    /// Takes back an assembler in which no segment is left.
    pub(in crate::tcp) fn put_assembler(&mut self, mut assembler: Box<Assembler<R>>) {
        if self.spares.len() < SPARE_ASSEMBLERS {
            assembler.reset();
            self.spares.push(assembler);
        }
    }

    /// Returns the size class of a block for `len` bytes, if the limits admit one for a connection
    /// with usage `share`.
    fn size_class(&self, len: usize, share: Share) -> Option<usize> {
        let class = self.sizes.iter().position(|size| len <= *size)?;
        self.admits_bytes(self.sizes[class], share).then_some(class)
    }

    fn admits_bytes(&self, len: usize, share: Share) -> bool {
        let left = self.bytes_max.checked_sub(self.in_use + self.consumed + len);
        left.is_some_and(|left| share.is_admitted(left, |usage| usage.bytes))
    }

    /// True if a connection with usage `share` may have one more range of consumed bytes.
    pub(in crate::tcp) fn admits_consumed(&self, share: Share) -> bool {
        self.admits_bytes(CONSUMED_LEN, share)
    }

    /// Charges a connection for what it holds now, instead of what it was charged for.
    pub(super) fn charge(&mut self, charge: &mut Charge, holds: Quota, consumed: usize) {
        if consumed != charge.consumed {
            self.charge_consumed(charge.consumed, consumed);
        }
        let peer = &mut self.by_peer[usize::from(charge.peer)];
        *peer = peer.exchange(charge.quota, holds);
        (charge.quota, charge.consumed) = (holds, consumed);
    }

    /// Charges `after` ranges of consumed bytes instead of `before`.
    #[cold]
    fn charge_consumed(&mut self, before: usize, after: usize) {
        self.consumed = self.consumed + CONSUMED_LEN * after - CONSUMED_LEN * before;
        self.fit_free_blocks(0);
    }

    /// Deallocates free blocks until there is room for `size` more bytes. False if there is not
    /// enough of them.
    fn fit_free_blocks(&mut self, size: usize) -> bool {
        while self.allocated + self.consumed + size > self.bytes_max {
            let Some(block) = self.free.iter_mut().find_map(Vec::pop) else { return false };
            self.allocated -= block.len();
        }
        true
    }

    /// Returns the usage by a connection that holds `holds`, with that of its peer.
    pub(super) fn share(&self, charge: Charge, holds: Quota) -> Share {
        let peer = self.by_peer[usize::from(charge.peer)].exchange(charge.quota, holds);
        Share { connection: holds, peer }
    }

    /// True if [`OooPool::copy`] has memory for `len` bytes.
    pub(in crate::tcp) fn admits_copy(&self, len: usize, share: Share) -> bool {
        self.size_class(len, share).is_some()
    }

    /// True if [`OooPool::buffer`] has memory for `len` bytes.
    pub(in crate::tcp) fn admits(&self, len: usize, share: Share) -> bool {
        self.admits_frame(share) || self.admits_copy(len, share)
    }

    /// Allocates a block for `len` bytes, if the limits admit one for a connection with usage
    /// `share`.
    fn alloc_block(&mut self, len: usize, share: Share) -> Option<Box<[u8]>> {
        let class = self.size_class(len, share)?;
        let size = self.sizes[class];
        let block = match self.free[class].pop() {
            Some(block) => block,
            None => {
                // Of other sizes: there are none of this one.
                if !self.fit_free_blocks(size) {
                    return None;
                }
                self.allocated += size;
                vec![0; size].into_boxed_slice()
            }
        };
        self.in_use += size;
        Some(block)
    }

    fn admits_frame(&self, share: Share) -> bool {
        let left = self.frames_max.checked_sub(self.frames + 1);
        left.is_some_and(|left| share.is_admitted(left, |usage| usage.frames))
    }
}

impl<R> OooPool<R> {
    /// Holds a copy of `bytes` for a connection with usage `share`. Returns `None` if there is no
    /// memory.
    pub(in crate::tcp) fn copy(&mut self, bytes: &[u8], share: Share) -> Option<OooSegment<R>> {
        let mut block = self.alloc_block(bytes.len(), share)?;
        block[..bytes.len()].copy_from_slice(bytes);
        Some(OooSegment::Copy(OooCopy { block, len: bytes.len() }))
    }
}

impl<R: RxFrame> OooPool<R> {
    /// Holds `bytes` of `frame` for a connection with usage `share`. Returns the segment and the
    /// offset of the bytes in it. Returns `None`, and drops the frame, if there is no memory.
    pub(in crate::tcp) fn buffer(
        &mut self,
        frame: R,
        bytes: Range<usize>,
        share: Share,
    ) -> Option<(OooSegment<R>, usize)> {
        let len = bytes.len();
        let copies = len < SMALL_LEN || self.frames >= self.frames_max / 2;
        let block =
            if copies || !self.admits_frame(share) { self.alloc_block(len, share) } else { None };
        if let Some(mut block) = block {
            // req: MPA-167, MPA-173, MPA-174
            frame.copy_out(bytes.start, &mut block[..len]);
            return Some((OooSegment::Copy(OooCopy { block, len }), 0));
        }
        if !self.admits_frame(share) {
            return None;
        }
        self.frames += 1;
        Some((OooSegment::Frame(frame), bytes.start))
    }
}

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

/// Memory charged to a connection: it may have delivered some of it since.
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

/// Out-of-order segment offered to the upper layer, which accepts or drops it.
#[derive(Debug)]
#[must_use]
pub struct OooOffer {
    /// Sequence numbers of its new bytes.
    pub(super) block: SackBlock,
    /// Position of the first of them in the frame.
    pub(super) start: usize,
    /// Sequence number of the peer's FIN, if the segment has it. Used once the bytes are accepted.
    pub(super) fin: Option<Seq>,
}

impl OooOffer {
    /// Returns the sequence number of the first new byte.
    #[must_use]
    pub const fn seq(&self) -> Seq {
        self.block.0
    }

    /// Returns the position of the new bytes in the frame; never empty.
    #[must_use]
    pub const fn bytes(&self) -> Range<usize> {
        self.start..self.start + (self.block.1.0.wrapping_sub(self.block.0.0)) as usize
    }
}

/// Bytes accepted out of order that are now the next in order.
#[derive(Debug)]
#[must_use]
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

#[cfg(test)]
mod tests;
