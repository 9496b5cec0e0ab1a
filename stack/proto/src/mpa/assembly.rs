//! Memory for FPDUs that arrive in pieces.
//!
//! An FPDU cannot be placed before its CRC was checked, so all of one that is cut over several
//! segments has to be kept, per connection. What that may take is bounded by the octets of all
//! buffers together, not by their number: a buffer is as long as the FPDU that it is for says, and
//! with half of the bound lent only as long as what has arrived of it. So a peer takes memory by
//! what it sends, and a few long FPDUs that never end do not take what thousands of short ones
//! need.
//!
//! At the bound longer buffers are refused; the octets are then declined to TCP, which has them
//! sent again. A buffer of the shortest kind is never refused: it holds the FPDUs of an ordinary
//! link, so that those streams go on whatever others have left unfinished. All of them together are
//! bounded by the number of connections.

use crate::mpa::fpdu;
use crate::mpa::markers;

/// Octets of the longest FPDU with its markers.
const LEN_MAX: usize = fpdu::FPDU_LEN_MAX + markers::OVERHEAD_MAX;
/// Lengths of buffers: for links of 1,500 octets, for jumbo frames, and for any FPDU.
const LENS: [usize; 3] = [2048, 16 * 1024, LEN_MAX];
/// Octets of the buffers that are never refused.
pub const SMALL_LEN: usize = LENS[0];

/// Buffers for partial FPDUs, bounded per shard.
#[derive(Debug)]
pub struct AssemblyPool {
    /// Buffers given back, of each length.
    free: [Vec<Vec<u8>>; LENS.len()],
    free_octets: usize,
    taken: usize,
    lent: usize,
    octets_max: usize,
    /// The FPDU being looked at, without its markers.
    pub(super) scratch: Vec<u8>,
}

impl AssemblyPool {
    /// A pool that lends buffers of at most `octets_max` octets in all, the shortest ones apart.
    /// They are allocated as they are needed, and kept within that bound.
    #[must_use]
    pub const fn new(octets_max: usize) -> Self {
        let free = [const { Vec::new() }; LENS.len()];
        Self { free, free_octets: 0, taken: 0, lent: 0, octets_max, scratch: Vec::new() }
    }

    /// Buffers that are lent.
    #[must_use]
    pub const fn taken(&self) -> usize {
        self.taken
    }

    /// Octets of the buffers that are lent.
    #[must_use]
    pub const fn lent(&self) -> usize {
        self.lent
    }

    /// Half of what there is is lent, or more: what is left is for streams that go on.
    #[must_use]
    pub const fn is_scarce(&self) -> bool {
        self.lent >= self.octets_max / 2
    }

    /// A buffer with room for `len` octets, for a short while: it is never refused.
    #[must_use]
    pub fn take(&mut self, len: usize) -> Vec<u8> {
        let mut buffer = Vec::new();
        self.fit(&mut buffer, len, len, true);
        buffer
    }

    /// Sees to it that `buffer` has room for `len` octets, what is in it included, of an FPDU that
    /// will have `whole_len` as far as is known. False if that is refused; `must`: it is not.
    pub(super) fn fit(
        &mut self,
        buffer: &mut Vec<u8>,
        len: usize,
        whole_len: usize,
        must: bool,
    ) -> bool {
        if len <= buffer.capacity() {
            return true;
        }
        let (least, ample) = (kind_for(len), kind_for(whole_len.max(len)));
        let admits = |kind: usize| self.lent + LENS[kind] <= self.octets_max + buffer.capacity();
        let kind = if self.is_scarce() || !admits(ample) { least } else { ample };
        if !must && kind > 0 && !admits(kind) {
            return false;
        }
        let mut larger = self.lend(kind);
        larger.extend_from_slice(buffer);
        self.give_back(std::mem::replace(buffer, larger));
        true
    }

    fn lend(&mut self, kind: usize) -> Vec<u8> {
        let len = LENS[kind];
        let buffer = self.free[kind].pop();
        if buffer.is_some() {
            self.free_octets -= len;
        }
        self.taken += 1;
        self.lent += len;
        // What is kept of other lengths counts too.
        for kind in (0..LENS.len()).rev() {
            while self.lent + self.free_octets > self.octets_max && self.free[kind].pop().is_some()
            {
                self.free_octets -= LENS[kind];
            }
        }
        buffer.unwrap_or_else(|| Vec::with_capacity(len))
    }

    /// Takes a lent buffer back.
    pub fn give_back(&mut self, mut buffer: Vec<u8>) {
        let Some(kind) = LENS.iter().rposition(|&len| len <= buffer.capacity()) else { return };
        buffer.clear();
        self.taken -= 1;
        self.lent -= LENS[kind];
        // One of each is kept in any case: a lone stream allocates nothing.
        if self.free[kind].is_empty()
            || self.lent + self.free_octets + LENS[kind] <= self.octets_max
        {
            self.free_octets += LENS[kind];
            self.free[kind].push(buffer);
        }
    }
}

/// The shortest kind of buffer with room for `len` octets.
const fn kind_for(len: usize) -> usize {
    let mut kind = 0;
    while kind + 1 < LENS.len() && LENS[kind] < len {
        kind += 1;
    }
    kind
}

#[cfg(test)]
mod tests {
    use super::{AssemblyPool, LEN_MAX, LENS, SMALL_LEN};

    /// A buffer for the first `len` octets of an FPDU of `whole_len`.
    fn lend(pool: &mut AssemblyPool, len: usize, whole_len: usize) -> Option<Vec<u8>> {
        let mut buffer = Vec::new();
        pool.fit(&mut buffer, len, whole_len, false).then_some(buffer)
    }

    #[test]
    fn a_buffer_is_as_long_as_its_fpdu_until_memory_is_scarce() {
        let mut pool = AssemblyPool::new(4 * LEN_MAX);
        assert_eq!(lend(&mut pool, 2, 1000).unwrap().capacity(), SMALL_LEN);
        assert_eq!(lend(&mut pool, 2, 60_000).unwrap().capacity(), LEN_MAX);
        assert!(!pool.is_scarce());
        assert_eq!(lend(&mut pool, 2, 60_000).unwrap().capacity(), LEN_MAX);
        assert!(pool.is_scarce());
        let mut late = lend(&mut pool, 2, 60_000).unwrap();
        assert_eq!(late.capacity(), SMALL_LEN, "as long as what has arrived of it");
        late.extend_from_slice(&[7; 2000]);
        assert!(pool.fit(&mut late, 3000, 60_000, false));
        assert_eq!((late.capacity(), &late[..]), (LENS[1], &[7; 2000][..]));
        assert_eq!((pool.taken(), pool.lent()), (4, 2 * LEN_MAX + SMALL_LEN + LENS[1]));
    }

    #[test]
    fn only_the_shortest_are_lent_beyond_the_bound() {
        let mut pool = AssemblyPool::new(LEN_MAX);
        let first = lend(&mut pool, 30_000, 60_000).unwrap();
        assert!(lend(&mut pool, 3000, 3000).is_none());
        let short: Vec<_> = (0..100).map(|_| lend(&mut pool, 1500, 60_000).unwrap()).collect();
        assert!(short.iter().all(|buffer| buffer.capacity() == SMALL_LEN));
        let passing = pool.take(9000);
        assert_eq!(passing.capacity(), LENS[1], "what comes back at once is not refused");
        short.into_iter().chain([first, passing]).for_each(|buffer| pool.give_back(buffer));
        assert_eq!((pool.taken(), pool.lent()), (0, 0));
        let one_of_each: usize = LENS.iter().sum();
        assert!(pool.free_octets <= one_of_each, "{}", pool.free_octets);
        assert!(lend(&mut pool, 30_000, 60_000).is_some());
    }
}
