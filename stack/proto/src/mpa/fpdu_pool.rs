//! Memory for FPDUs that arrive in pieces.
//!
//! An FPDU cannot be placed before its CRC was checked, so all of one that is cut over several
//! segments has to be kept, per connection. What that may take is bounded by the bytes of all
//! buffers together, not by their number: a buffer is as long as the FPDU that it is for says, and
//! with half of the bound lent only as long as what has arrived of it. So a peer takes memory by
//! what it sends, and a few long FPDUs that never end do not take what thousands of short ones
//! need.
//!
//! At the bound longer buffers are refused; the bytes are then declined to TCP, which has them
//! sent again. A buffer of the shortest kind is never refused: it holds the FPDUs of an ordinary
//! link, so that those streams go on whatever others have left unfinished. All of them together are
//! bounded by the number of connections.

use crate::mpa::fpdu;
use crate::mpa::markers;

/// Bytes of the longest FPDU with its markers.
const LEN_MAX: usize = fpdu::FPDU_LEN_MAX + markers::OVERHEAD_MAX;
/// Lengths of buffers: for links of 1,500 bytes, for jumbo frames, and for any FPDU.
const SIZE_CLASSES: [usize; 3] = [2048, 16 * 1024, LEN_MAX];
/// Bytes of the buffers that are never refused.
pub const SMALL_LEN: usize = SIZE_CLASSES[0];

/// Buffers for partial FPDUs, bounded per shard.
#[derive(Debug)]
pub struct FpduPool {
    /// Buffers given back, of each length.
    free: [Vec<Vec<u8>>; SIZE_CLASSES.len()],
    free_bytes: usize,
    buffers_in_use: usize,
    bytes_in_use: usize,
    bytes_max: usize,
    /// The FPDU being looked at, without its markers.
    pub(super) scratch: Vec<u8>,
}

impl FpduPool {
    /// A pool that lends buffers of at most `bytes_max` bytes in all, the shortest ones apart.
    /// They are allocated as they are needed, and kept within that bound.
    #[must_use]
    pub const fn new(bytes_max: usize) -> Self {
        let free = [const { Vec::new() }; SIZE_CLASSES.len()];
        Self {
            free,
            free_bytes: 0,
            buffers_in_use: 0,
            bytes_in_use: 0,
            bytes_max,
            scratch: Vec::new(),
        }
    }

    /// Buffers that are lent.
    #[must_use]
    pub const fn buffers_in_use(&self) -> usize {
        self.buffers_in_use
    }

    /// Bytes of the buffers that are lent.
    #[must_use]
    pub const fn bytes_in_use(&self) -> usize {
        self.bytes_in_use
    }

    /// Half of what there is is lent, or more: what is left is for streams that go on.
    #[must_use]
    pub const fn is_under_pressure(&self) -> bool {
        self.bytes_in_use >= self.bytes_max / 2
    }

    /// A buffer with room for `len` bytes, for a short while: it is never refused.
    #[must_use]
    pub fn alloc(&mut self, len: usize) -> Vec<u8> {
        let mut buffer = Vec::new();
        self.try_reserve(&mut buffer, len, len, true);
        buffer
    }

    /// Sees to it that `buffer` has room for `len` bytes, what is in it included, of an FPDU that
    /// will have `whole_len` as far as is known. False if that is refused; `must`: it is not.
    pub(super) fn try_reserve(
        &mut self,
        buffer: &mut Vec<u8>,
        len: usize,
        fpdu_len: usize,
        force: bool,
    ) -> bool {
        if len <= buffer.capacity() {
            return true;
        }
        let (least, ample) = (class_for(len), class_for(fpdu_len.max(len)));
        let admits = |kind: usize| {
            self.bytes_in_use + SIZE_CLASSES[kind] <= self.bytes_max + buffer.capacity()
        };
        let kind = if self.is_under_pressure() || !admits(ample) { least } else { ample };
        if !force && kind > 0 && !admits(kind) {
            return false;
        }
        let mut larger = self.alloc_class(kind);
        larger.extend_from_slice(buffer);
        self.release(std::mem::replace(buffer, larger));
        true
    }

    fn alloc_class(&mut self, kind: usize) -> Vec<u8> {
        let len = SIZE_CLASSES[kind];
        let buffer = self.free[kind].pop();
        if buffer.is_some() {
            self.free_bytes -= len;
        }
        self.buffers_in_use += 1;
        self.bytes_in_use += len;
        // What is kept of other lengths counts too.
        for kind in (0..SIZE_CLASSES.len()).rev() {
            while self.bytes_in_use + self.free_bytes > self.bytes_max
                && self.free[kind].pop().is_some()
            {
                self.free_bytes -= SIZE_CLASSES[kind];
            }
        }
        buffer.unwrap_or_else(|| Vec::with_capacity(len))
    }

    /// Takes a lent buffer back.
    pub fn release(&mut self, mut buffer: Vec<u8>) {
        let Some(kind) = SIZE_CLASSES.iter().rposition(|&len| len <= buffer.capacity()) else {
            return;
        };
        buffer.clear();
        self.buffers_in_use -= 1;
        self.bytes_in_use -= SIZE_CLASSES[kind];
        // One of each is kept in any case: a lone stream allocates nothing.
        if self.free[kind].is_empty()
            || self.bytes_in_use + self.free_bytes + SIZE_CLASSES[kind] <= self.bytes_max
        {
            self.free_bytes += SIZE_CLASSES[kind];
            self.free[kind].push(buffer);
        }
    }
}

/// The shortest kind of buffer with room for `len` bytes.
const fn class_for(len: usize) -> usize {
    let mut kind = 0;
    while kind + 1 < SIZE_CLASSES.len() && SIZE_CLASSES[kind] < len {
        kind += 1;
    }
    kind
}

#[cfg(test)]
mod tests {
    use super::{FpduPool, LEN_MAX, SIZE_CLASSES, SMALL_LEN};

    /// A buffer for the first `len` bytes of an FPDU of `whole_len`.
    fn alloc(pool: &mut FpduPool, len: usize, whole_len: usize) -> Option<Vec<u8>> {
        let mut buffer = Vec::new();
        pool.try_reserve(&mut buffer, len, whole_len, false).then_some(buffer)
    }

    #[test]
    fn buffer_is_sized_for_its_fpdu_until_pool_is_under_pressure() {
        let mut pool = FpduPool::new(4 * LEN_MAX);
        assert_eq!(alloc(&mut pool, 2, 1000).unwrap().capacity(), SMALL_LEN);
        assert_eq!(alloc(&mut pool, 2, 60_000).unwrap().capacity(), LEN_MAX);
        assert!(!pool.is_under_pressure());
        assert_eq!(alloc(&mut pool, 2, 60_000).unwrap().capacity(), LEN_MAX);
        assert!(pool.is_under_pressure());
        let mut late = alloc(&mut pool, 2, 60_000).unwrap();
        assert_eq!(late.capacity(), SMALL_LEN, "as long as what has arrived of it");
        late.extend_from_slice(&[7; 2000]);
        assert!(pool.try_reserve(&mut late, 3000, 60_000, false));
        assert_eq!((late.capacity(), &late[..]), (SIZE_CLASSES[1], &[7; 2000][..]));
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
        let passing = pool.alloc(9000);
        assert_eq!(passing.capacity(), SIZE_CLASSES[1], "what comes back at once is not refused");
        short.into_iter().chain([first, passing]).for_each(|buffer| pool.release(buffer));
        assert_eq!((pool.buffers_in_use(), pool.bytes_in_use()), (0, 0));
        let one_of_each: usize = SIZE_CLASSES.iter().sum();
        assert!(pool.free_bytes <= one_of_each, "{}", pool.free_bytes);
        assert!(alloc(&mut pool, 30_000, 60_000).is_some());
    }
}
