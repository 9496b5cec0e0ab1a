//! Memory of the messages, as the runtime's arena maps registered memory.

use std::io;

use memmap2::{MmapMut, MmapOptions};

const HUGE_PAGE_LEN: usize = 2 << 20;
const HUGE_PAGE_BITS: u8 = 21;

/// The slots of the messages: `iwperf` has one of each queue pair at each end unless it verifies.
#[derive(Debug)]
pub(crate) struct MessageMemory {
    map: MmapMut,
    offset: usize,
    len: usize,
    stride: usize,
}

/// Bytes from one slot to the next are a multiple of this, as in `iwperf`.
const STRIDE_ALIGN: usize = 64;

impl MessageMemory {
    /// Maps `slots` slots of `len` bytes that begin at `offset` of a mapping of 2 MiB pages, or of
    /// ordinary pages if there are none; all of them present.
    pub(crate) fn map(offset: usize, len: usize, slots: usize) -> io::Result<Self> {
        let stride = len.next_multiple_of(STRIDE_ALIGN);
        let mapped_len = (offset + slots * stride).next_multiple_of(HUGE_PAGE_LEN);
        let mut options = MmapOptions::new();
        options.len(mapped_len).populate();
        let huge = options.clone().huge(Some(HUGE_PAGE_BITS)).map_anon();
        let map = huge.or_else(|_| options.map_anon())?;
        Ok(Self { map, offset, len, stride })
    }

    /// Returns the offset of a slot from the first, in bytes.
    #[inline]
    pub(crate) const fn start(&self, slot: usize) -> usize {
        slot * self.stride
    }

    #[inline]
    pub(crate) fn bytes(&self, slot: usize) -> &[u8] {
        &self.map[self.offset + self.start(slot)..][..self.len]
    }

    #[inline]
    pub(crate) fn bytes_mut(&mut self, slot: usize) -> &mut [u8] {
        let start = self.offset + self.start(slot);
        &mut self.map[start..start + self.len]
    }
}
