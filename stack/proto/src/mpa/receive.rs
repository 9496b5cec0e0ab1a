//! The receiving half of MPA in full operation: finds FPDUs by their lengths, whatever the cuts.
//!
//! A whole FPDU within one contiguous run is verified and handed up where it lies ([`split`]).
//! What is left over, or comes in several runs, is gathered in one buffer per connection, taken
//! from a bounded pool and given back as soon as the FPDU is whole. That costs a copy, at several
//! times the speed of the CRC pass that follows, and serves cut segments, chained buffers and
//! FPDUs above the segment size alike.
//!
//! [`split`]: crate::mpa::fpdu::split

use crate::mpa::fpdu::{self, CrcMismatch, LENGTH_LEN, fpdu_len};

/// Buffers for partial FPDUs, bounded per shard.
#[derive(Debug)]
pub struct AssemblyPool {
    free: Vec<Vec<u8>>,
    taken: usize,
    count_max: usize,
}

impl AssemblyPool {
    /// A pool that lends at most `count_max` buffers at a time. They are allocated on first use.
    #[must_use]
    pub const fn new(count_max: usize) -> Self {
        Self { free: Vec::new(), taken: 0, count_max }
    }

    /// Buffers that are lent.
    #[must_use]
    pub const fn taken(&self) -> usize {
        self.taken
    }

    /// An empty buffer, or `None` when all are lent.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        if self.taken == self.count_max {
            return None;
        }
        self.taken += 1;
        Some(self.free.pop().unwrap_or_else(|| Vec::with_capacity(fpdu::FPDU_LEN_MAX)))
    }

    /// Takes a lent buffer back.
    pub fn give_back(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        self.taken -= 1;
        self.free.push(buffer);
    }
}

/// The state of one direction: at most one FPDU in part.
#[derive(Debug)]
pub struct Receiver {
    crc: bool,
    partial: Option<Vec<u8>>,
}

impl Receiver {
    /// Starts at the first octet of full operation.
    #[must_use]
    pub const fn new(crc: bool) -> Self {
        Self { crc, partial: None }
    }

    /// CRCs are checked.
    #[must_use]
    pub const fn crc(&self) -> bool {
        self.crc
    }

    /// Octets of the partial FPDU that are still to come, as far as its length is known; `None`
    /// between FPDUs.
    #[must_use]
    pub fn missing(&self) -> Option<usize> {
        let partial = self.partial.as_ref()?;
        let wanted = partial
            .first_chunk::<LENGTH_LEN>()
            .map_or(LENGTH_LEN, |length| fpdu_len(usize::from(u16::from_be_bytes(*length))));
        Some(wanted - partial.len())
    }

    /// Begins a partial FPDU in a buffer from the pool.
    pub fn begin(&mut self, buffer: Vec<u8>) {
        debug_assert!(self.partial.is_none(), "one partial FPDU at a time");
        self.partial = Some(buffer);
    }

    /// Appends `len` octets (at most [`Receiver::missing`]) that `copy` writes; whether the FPDU is
    /// whole now, [`Receiver::whole`] tells.
    pub fn extend(&mut self, len: usize, copy: impl FnOnce(&mut [u8])) {
        if let Some(partial) = &mut self.partial {
            let start = partial.len();
            partial.resize(start + len, 0);
            copy(&mut partial[start..]);
        }
    }

    /// The ULPDU of the partial FPDU once it is whole, verified.
    ///
    /// # Errors
    /// [`CrcMismatch`].
    pub fn whole(&self) -> Result<Option<&[u8]>, CrcMismatch> {
        let Some(partial) = &self.partial else { return Ok(None) };
        Ok(fpdu::split(partial, self.crc)?.map(|(ulpdu, _)| ulpdu))
    }

    /// Ends the partial FPDU; the buffer goes back to the pool.
    pub fn finish(&mut self, pool: &mut AssemblyPool) {
        if let Some(buffer) = self.partial.take() {
            pool.give_back(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Feeds `stream` in pieces cut at `cuts` and returns every ULPDU handed up.
    fn receive(stream: &[u8], cuts: &[usize], pool: &mut AssemblyPool) -> Vec<Vec<u8>> {
        let mut receiver = Receiver::new(true);
        let mut ulpdus = Vec::new();
        let mut start = 0;
        for &cut in cuts.iter().chain([&stream.len()]) {
            let mut piece = &stream[start..cut.max(start)];
            start = cut.max(start);
            while !piece.is_empty() {
                if receiver.missing().is_none() {
                    while let Some((ulpdu, used)) = fpdu::split(piece, true).unwrap() {
                        ulpdus.push(ulpdu.to_vec());
                        piece = &piece[used..];
                    }
                    if piece.is_empty() {
                        break;
                    }
                    receiver.begin(pool.take().unwrap());
                }
                let take = receiver.missing().unwrap().min(piece.len());
                let (now, later) = piece.split_at(take);
                receiver.extend(take, |out| out.copy_from_slice(now));
                piece = later;
                if let Some(ulpdu) = receiver.whole().unwrap() {
                    ulpdus.push(ulpdu.to_vec());
                    receiver.finish(pool);
                }
            }
        }
        assert_eq!(receiver.missing(), None);
        ulpdus
    }

    proptest! {
        // req-test: MPA-130, MPA-131
        #[test]
        fn any_cuts_give_the_same_ulpdus(
            lens in proptest::collection::vec(1usize..3000, 1..12),
            mut cuts in proptest::collection::vec(0usize..20_000, 0..40),
        ) {
            let mut stream = Vec::new();
            let mut sent = Vec::new();
            for (index, &len) in lens.iter().enumerate() {
                let ulpdu: Vec<u8> = (0..len).map(|at| ((at * 7) ^ (index * 31)) as u8).collect();
                let mut fpdu = vec![0; fpdu_len(len)];
                fpdu[2..2 + len].copy_from_slice(&ulpdu);
                fpdu::seal(&mut fpdu, len, true);
                stream.extend_from_slice(&fpdu);
                sent.push(ulpdu);
            }
            cuts.iter_mut().for_each(|cut| *cut %= stream.len());
            cuts.sort_unstable();
            let mut pool = AssemblyPool::new(1);
            prop_assert_eq!(&receive(&stream, &cuts, &mut pool), &sent);
            let every: Vec<usize> = (1..stream.len().min(400)).collect();
            prop_assert_eq!(&receive(&stream, &every, &mut pool), &sent);
            prop_assert!(pool.take().is_some(), "the buffer came back");
        }
    }

    #[test]
    fn the_pool_is_bounded() {
        let mut pool = AssemblyPool::new(2);
        let first = pool.take().unwrap();
        let _second = pool.take().unwrap();
        assert!(pool.take().is_none());
        pool.give_back(first);
        assert!(pool.take().is_some());
    }
}
