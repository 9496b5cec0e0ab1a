//! Buffer pool for partial FPDUs.
//!
//! The payload of an FPDU cannot be placed before its CRC is verified, so an FPDU that spans
//! several segments is buffered per connection. The pool limits the total bytes of these buffers,
//! not their number. Until half of the limit is in use, a buffer is sized by the length that the
//! FPDU announces; from then on by the bytes that have been received. So a peer occupies memory
//! only by sending data, and a few long FPDUs that are never completed do not take the memory of
//! thousands of short ones.
//!
//! At the limit larger buffers are refused; the bytes then count as not received by TCP, and are
//! retransmitted. A buffer of the smallest class is never refused: it holds the FPDUs of an
//! ordinary MTU, so those streams make progress whatever partial FPDUs others leave. Nor does it
//! count against the limit of the larger ones, which could never be had otherwise: connections may
//! keep the smallest for ever. The total of these buffers is limited by the number of connections.
//! While no larger buffer is in use, one of any length is admitted, so that each FPDU has its turn.
//! All connections of a peer, but for the first buffer, get at most four times what they leave of
//! the limit: however many long FPDUs it leaves incomplete, there is a fifth for others. Peers are
//! told apart by a keyed hash of their address, which the caller gives.

use crate::mpa::fpdu;
use crate::mpa::markers;

/// Bytes of the longest FPDU with its markers.
const LEN_MAX: usize = fpdu::FPDU_LEN_MAX + markers::OVERHEAD_MAX;
/// Size classes of buffers: for an MTU of 1,500 bytes, for jumbo frames, and for any FPDU.
const SIZE_CLASSES: [usize; 3] = [2048, 16 * 1024, LEN_MAX];
/// Size of the smallest class, which is never refused.
pub const SMALL_LEN: usize = SIZE_CLASSES[0];

/// Most that all connections of a peer hold, as a multiple of what they leave.
const PEER_FACTOR: usize = 4;

/// Buffers for partial FPDUs, limited per shard.
#[derive(Debug)]
pub struct FpduPool {
    /// Free buffers of each size class.
    free: [Vec<Vec<u8>>; SIZE_CLASSES.len()],
    free_bytes: usize,
    buffers_in_use: usize,
    bytes_in_use: usize,
    /// Bytes of buffers in use beyond the smallest class, which the limit counts.
    large_bytes_in_use: usize,
    /// These by group of peers.
    large_bytes_by_peer: Box<[usize; 1 << u8::BITS]>,
    /// Some of these were released since [`FpduPool::take_released`].
    has_released: bool,
    bytes_max: usize,
    /// FPDU being parsed, without its markers.
    pub(super) scratch: Vec<u8>,
}

impl FpduPool {
    /// Creates a pool that limits its buffers to `bytes_max` bytes in use; the smallest class is
    /// never refused. Buffers are allocated on demand, and free ones are kept within that limit.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        let free = [const { Vec::new() }; SIZE_CLASSES.len()];
        Self {
            free,
            free_bytes: 0,
            buffers_in_use: 0,
            bytes_in_use: 0,
            large_bytes_in_use: 0,
            large_bytes_by_peer: Box::new([0; 1 << u8::BITS]),
            has_released: false,
            bytes_max,
            scratch: Vec::new(),
        }
    }

    /// Returns the number of buffers in use.
    #[must_use]
    pub const fn buffers_in_use(&self) -> usize {
        self.buffers_in_use
    }

    /// Returns the total size of the buffers in use, in bytes.
    #[must_use]
    pub const fn bytes_in_use(&self) -> usize {
        self.bytes_in_use
    }

    /// True if at least half of the limit is in use: the rest is for streams that make progress.
    /// Buffers of the smallest class do not count.
    #[must_use]
    pub const fn is_under_pressure(&self) -> bool {
        self.large_bytes_in_use >= self.bytes_max / 2
    }

    /// True if memory that counts against the limit was released since
    /// [`FpduPool::take_released`].
    pub const fn has_released(&self) -> bool {
        self.has_released
    }

    /// As [`FpduPool::has_released`], and forgets it.
    pub const fn take_released(&mut self) -> bool {
        core::mem::replace(&mut self.has_released, false)
    }

    /// Remembers that released memory is left.
    pub const fn keep_released(&mut self) {
        self.has_released = true;
    }

    /// Allocates a temporary buffer of at least `len` bytes for a connection of this group of
    /// peers; never refused.
    #[must_use]
    pub fn alloc(&mut self, peer: u8, len: usize) -> Vec<u8> {
        let mut buffer = Vec::new();
        self.try_reserve(peer, &mut buffer, len, len, true);
        buffer
    }

    /// Ensures that `buffer` has a capacity of `len` bytes, present content included, for an FPDU
    /// of `fpdu_len` bytes as far as is known, of a connection of this group of peers. Returns
    /// false if refused; with `force` it never is.
    pub(super) fn try_reserve(
        &mut self,
        peer: u8,
        buffer: &mut Vec<u8>,
        len: usize,
        fpdu_len: usize,
        force: bool,
    ) -> bool {
        if len <= buffer.capacity() {
            return true;
        }
        let (least, ample) = (class_for(len), class_for(fpdu_len.max(len)));
        let own = class_of(buffer).map_or(0, large_len);
        let others = self.large_bytes_in_use - own;
        let of_peer = self.large_bytes_by_peer[usize::from(peer)] - own;
        let admits = |kind: usize| {
            let left = self.bytes_max.checked_sub(others + SIZE_CLASSES[kind]);
            let is_within_share = |left| {
                of_peer == 0 || of_peer + SIZE_CLASSES[kind] <= PEER_FACTOR.saturating_mul(left)
            };
            kind == 0 || others == 0 || left.is_some_and(is_within_share)
        };
        let kind = if self.is_under_pressure() || !admits(ample) { least } else { ample };
        if !force && !admits(kind) {
            return false;
        }
        let mut larger = self.alloc_class(peer, kind);
        larger.extend_from_slice(buffer);
        self.release(peer, std::mem::replace(buffer, larger));
        true
    }

    fn alloc_class(&mut self, peer: u8, kind: usize) -> Vec<u8> {
        let len = SIZE_CLASSES[kind];
        let buffer = self.free[kind].pop();
        if buffer.is_some() {
            self.free_bytes -= len;
        }
        self.buffers_in_use += 1;
        self.bytes_in_use += len;
        self.large_bytes_in_use += large_len(kind);
        self.large_bytes_by_peer[usize::from(peer)] += large_len(kind);
        // Free buffers of other classes count too.
        for kind in (0..SIZE_CLASSES.len()).rev() {
            while self.bytes_in_use + self.free_bytes > self.bytes_max
                && self.free[kind].pop().is_some()
            {
                self.free_bytes -= SIZE_CLASSES[kind];
            }
        }
        buffer.unwrap_or_else(|| Vec::with_capacity(len))
    }

    /// Returns a buffer to the pool, from a connection of this group of peers.
    pub fn release(&mut self, peer: u8, mut buffer: Vec<u8>) {
        let Some(kind) = class_of(&buffer) else { return };
        buffer.clear();
        self.buffers_in_use -= 1;
        self.bytes_in_use -= SIZE_CLASSES[kind];
        self.large_bytes_in_use -= large_len(kind);
        self.large_bytes_by_peer[usize::from(peer)] -= large_len(kind);
        self.has_released |= kind > 0;
        // One of each class is kept in any case: a single stream then reuses its buffers.
        if self.free[kind].is_empty()
            || self.bytes_in_use + self.free_bytes + SIZE_CLASSES[kind] <= self.bytes_max
        {
            self.free_bytes += SIZE_CLASSES[kind];
            self.free[kind].push(buffer);
        }
    }
}

/// Returns the smallest size class with a capacity of `len` bytes.
const fn class_for(len: usize) -> usize {
    let mut kind = 0;
    while kind + 1 < SIZE_CLASSES.len() && SIZE_CLASSES[kind] < len {
        kind += 1;
    }
    kind
}

/// Returns the size class of a buffer of the pool; `None` if it has none yet.
fn class_of(buffer: &Vec<u8>) -> Option<usize> {
    SIZE_CLASSES.iter().rposition(|&len| len <= buffer.capacity())
}

/// Returns the bytes of a buffer that count against the limit.
const fn large_len(kind: usize) -> usize {
    if kind == 0 { 0 } else { SIZE_CLASSES[kind] }
}

#[cfg(test)]
mod tests {
    use super::{FpduPool, LEN_MAX, SIZE_CLASSES, SMALL_LEN};

    /// Allocates a buffer for the first `len` bytes of an FPDU of `fpdu_len`.
    fn alloc(pool: &mut FpduPool, len: usize, fpdu_len: usize) -> Option<Vec<u8>> {
        alloc_for(pool, 0, len, fpdu_len)
    }

    /// The same for a peer of this group.
    fn alloc_for(pool: &mut FpduPool, peer: u8, len: usize, fpdu_len: usize) -> Option<Vec<u8>> {
        let mut buffer = Vec::new();
        pool.try_reserve(peer, &mut buffer, len, fpdu_len, false).then_some(buffer)
    }

    #[test]
    fn buffer_is_sized_for_its_fpdu_until_pool_is_under_pressure() {
        let mut pool = FpduPool::new(4 * LEN_MAX);
        assert_eq!(alloc(&mut pool, 2, 1000).unwrap().capacity(), SMALL_LEN);
        assert_eq!(alloc(&mut pool, 2, 60_000).unwrap().capacity(), LEN_MAX);
        assert!(!pool.is_under_pressure());
        assert_eq!(alloc(&mut pool, 2, 60_000).unwrap().capacity(), LEN_MAX);
        assert!(pool.is_under_pressure());
        let mut buffer = alloc(&mut pool, 2, 60_000).unwrap();
        assert_eq!(buffer.capacity(), SMALL_LEN, "sized for the bytes received so far");
        buffer.extend_from_slice(&[7; 2000]);
        assert!(pool.try_reserve(0, &mut buffer, 3000, 60_000, false));
        assert_eq!((buffer.capacity(), &buffer[..]), (SIZE_CLASSES[1], &[7; 2000][..]));
        assert_eq!(
            (pool.buffers_in_use(), pool.bytes_in_use()),
            (4, 2 * LEN_MAX + SMALL_LEN + SIZE_CLASSES[1])
        );
    }

    #[test]
    fn only_small_buffers_exceed_the_limit() {
        let mut pool = FpduPool::new(LEN_MAX);
        let first = alloc(&mut pool, 30_000, 60_000).unwrap();
        assert!(alloc(&mut pool, 3000, 3000).is_none());
        let short: Vec<_> = (0..100).map(|_| alloc(&mut pool, 1500, 60_000).unwrap()).collect();
        assert!(short.iter().all(|buffer| buffer.capacity() == SMALL_LEN));
        let passing = pool.alloc(0, 9000);
        assert_eq!(
            passing.capacity(),
            SIZE_CLASSES[1],
            "a buffer returned at once can be taken again"
        );
        short.into_iter().chain([first, passing]).for_each(|buffer| pool.release(0, buffer));
        assert_eq!((pool.buffers_in_use(), pool.bytes_in_use()), (0, 0));
        assert_eq!(pool.large_bytes_in_use, 0);
        let one_of_each: usize = SIZE_CLASSES.iter().sum();
        assert!(pool.free_bytes <= one_of_each, "{}", pool.free_bytes);
        assert!(alloc(&mut pool, 30_000, 60_000).is_some());
    }

    #[test]
    fn small_buffers_leave_the_limit_to_large_ones() {
        let mut pool = FpduPool::new(2 * SIZE_CLASSES[1]);
        let mut small: Vec<_> = (0..100).map(|_| alloc(&mut pool, 2, 1000).unwrap()).collect();
        assert!(!pool.is_under_pressure());
        let [first, second] = [1, 2].map(|peer| alloc_for(&mut pool, peer, 2, 3000).unwrap());
        assert_eq!([first.capacity(), second.capacity()], [SIZE_CLASSES[1], SMALL_LEN]);
        pool.release(1, first);
        pool.release(2, second);
        let large = [1, 2].map(|peer| (peer, alloc_for(&mut pool, peer, 3000, 3000).unwrap()));
        assert!(!pool.try_reserve(0, &mut small[0], 3000, 3000, false));
        large.into_iter().for_each(|(peer, buffer)| pool.release(peer, buffer));
        assert!(pool.try_reserve(0, &mut small[0], 3000, 3000, false));
    }

    #[test]
    fn one_fpdu_of_any_length_is_admitted_at_a_time() {
        let mut pool = FpduPool::new(SMALL_LEN);
        let mut buffers = [(); 2].map(|()| alloc(&mut pool, 1000, 60_000).unwrap());
        for len in [3000, 60_000] {
            assert!(pool.try_reserve(0, &mut buffers[0], len, 60_000, false));
            assert!(!pool.try_reserve(0, &mut buffers[1], 3000, 60_000, false));
        }
        pool.release(0, core::mem::take(&mut buffers[0]));
        assert!(pool.try_reserve(0, &mut buffers[1], 60_000, 60_000, false));
    }

    #[test]
    fn peer_leaves_a_fifth_to_others() {
        let mut pool = FpduPool::new(10 * LEN_MAX);
        let held: Vec<_> =
            core::iter::from_fn(|| alloc_for(&mut pool, 7, 60_000, 60_000)).collect();
        assert_eq!(held.len(), 8);
        let other = alloc_for(&mut pool, 1, 60_000, 60_000).unwrap();
        pool.release(1, other);
        held.into_iter().for_each(|buffer| pool.release(7, buffer));
        assert_eq!((pool.large_bytes_in_use, *pool.large_bytes_by_peer), (0, [0; 256]));
    }
}
