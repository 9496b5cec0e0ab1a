//! Memory of the messages, as the runtime's arena maps registered memory.

use std::io;

use memmap2::{Advice, MmapMut, MmapOptions};

const HUGE_PAGE_LEN: usize = 2 << 20;
const HUGE_PAGE_BITS: u8 = 21;

/// One slot of a message: `iwperf` has one at each end unless it verifies.
#[derive(Debug)]
pub struct MessageMemory {
    map: MmapMut,
    offset: usize,
    len: usize,
}

impl MessageMemory {
    /// Maps `len` bytes that begin at `offset` of a mapping of 2 MiB pages, or of ordinary pages if
    /// there are none; all of them present.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn map(offset: usize, len: usize) -> io::Result<Self> {
        let mapped_len = (offset + len).next_multiple_of(HUGE_PAGE_LEN);
        let huge = MmapOptions::new().len(mapped_len).huge(Some(HUGE_PAGE_BITS)).map_anon();
        let map = match huge.and_then(populate) {
            Ok(map) => map,
            Err(_) => {
                let map = MmapOptions::new().len(mapped_len).map_anon()?;
                // Only an optimization, as in the arena.
                let _ = map.advise(Advice::HugePage);
                populate(map)?
            }
        };
        Ok(Self { map, offset, len })
    }

    /// Returns the message.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.map[self.offset..self.offset + self.len]
    }

    /// Returns the message for modification.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map[self.offset..self.offset + self.len]
    }
}

/// Faults the pages in now: the first access would end the process with SIGBUS if the kernel grants
/// no hugepages.
fn populate(map: MmapMut) -> io::Result<MmapMut> {
    match map.advise(Advice::PopulateWrite) {
        // EINVAL: kernels before 5.14 do not support the advice.
        Err(error) if error.kind() != io::ErrorKind::InvalidInput => Err(error),
        _ => Ok(map),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_has_its_length_and_page_offset() {
        for len in [1, 65_536, HUGE_PAGE_LEN] {
            let mut memory = MessageMemory::map(4096, len).unwrap();
            assert!(memory.bytes().iter().all(|&byte| byte == 0));
            memory.bytes_mut().fill(1);
            assert_eq!(memory.bytes().len(), len);
            assert_eq!(memory.bytes().as_ptr().addr() % HUGE_PAGE_LEN % 4096, 0);
        }
    }
}
