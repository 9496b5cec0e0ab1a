//! The receiving half of MPA in full operation: finds FPDUs by their lengths, whatever the cuts;
//! and with markers by these, too, in octets that are ahead of their turn.
//!
//! A whole FPDU within one contiguous run is verified and handed up where it lies ([`split`]), or
//! from a buffer of the shard into which it was copied without its markers. What is left over, or
//! comes in several runs, is gathered in one buffer per connection, taken from a bounded pool
//! ([`AssemblyPool`]) and given back as soon as the FPDU is whole. That costs a copy, at several
//! times the speed of the CRC pass that follows, and serves cut segments, chained buffers and FPDUs
//! above the segment size alike.
//!
//! [`split`]: crate::mpa::fpdu::split

use crate::mpa::assembly::{AssemblyPool, SMALL_LEN};
use crate::mpa::fpdu::{self, Damage, LENGTH_LEN, fpdu_len};
use crate::mpa::markers::{self, Markers};
use crate::time::Instant;
use crate::wire::seq::Seq;

/// What a receiver knows of the markers it asked for.
#[derive(Debug)]
struct Marked {
    markers: Markers,
    /// The next octet in order, or the partial FPDU's first.
    next: Seq,
    /// Where an FPDU begins among what came early: behind the last one that was found. `None` once
    /// that is not ahead any more: 2^32 octets later its sequence number means another place.
    chain_end: Option<Seq>,
}

/// What there was in octets ahead of their turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreseen {
    /// So many whole FPDUs and nothing else, and all were taken.
    Taken(u32),
    /// Something that has to wait for its turn: an FPDU that is not whole, was not taken or that
    /// no marker locates.
    Waits,
    /// An FPDU that is wrong.
    Damaged,
}

/// An FPDU of which not all octets are here.
#[derive(Debug)]
struct Partial {
    octets: Vec<u8>,
    begun: Instant,
}

/// The state of one direction: at most one FPDU in part.
#[derive(Debug)]
pub struct Receiver {
    marked: Option<Box<Marked>>,
    partial: Option<Partial>,
}

impl Receiver {
    /// Starts at the first octet of full operation; with markers, if this end asked for them.
    #[must_use]
    pub fn new(markers: Option<Markers>) -> Self {
        let marked =
            |markers: Markers| Box::new(Marked { markers, next: markers.start(), chain_end: None });
        Self { marked: markers.map(marked), partial: None }
    }

    /// FPDUs can be found ahead of their turn.
    #[inline]
    #[must_use]
    pub const fn has_markers(&self) -> bool {
        self.marked.is_some()
    }

    /// Octets of the partial FPDU that are still to come, as far as its length is known; `None`
    /// between FPDUs.
    #[must_use]
    pub fn missing(&self) -> Option<usize> {
        let partial = &self.partial.as_ref()?.octets;
        let wanted = match &self.marked {
            None => partial
                .first_chunk::<LENGTH_LEN>()
                .map_or(LENGTH_LEN, |length| fpdu_len(usize::from(u16::from_be_bytes(*length)))),
            Some(marked) => markers::wanted(partial, marked.phase()),
        };
        // req: MPA-039, MPA-083, MPA-131, MPA-138
        Some(wanted - partial.len())
    }

    /// Begins a partial FPDU.
    pub fn begin(&mut self, now: Instant) {
        debug_assert!(self.partial.is_none(), "one partial FPDU at a time");
        self.partial = Some(Partial { octets: Vec::new(), begun: now });
    }

    /// Appends `len` octets (at most [`Receiver::missing`]) that `copy` writes; whether the FPDU is
    /// whole now, [`Receiver::whole`] tells. False, and nothing is appended, if that leaves it in
    /// part and `pool` has no memory for it; `must`: it is taken beyond the pool's bound then.
    pub fn extend(
        &mut self,
        pool: &mut AssemblyPool,
        len: usize,
        must: bool,
        copy: impl FnOnce(&mut [u8]),
    ) -> bool {
        let missing = self.missing().unwrap_or(0);
        let Some(partial) = &mut self.partial else { return false };
        let octets = &mut partial.octets;
        let (start, end) = (octets.len(), octets.len() + len);
        // With the last octets the buffer goes back at once.
        let must = must || len == missing;
        if !pool.fit(octets, end, start + missing, must) {
            if start == 0 {
                self.partial = None;
            }
            return false;
        }
        octets.resize(end, 0);
        copy(&mut octets[start..]);
        true
    }

    /// When the partial FPDU began, if more memory is kept for it than every stream may keep.
    #[must_use]
    pub fn hoards_since(&self) -> Option<Instant> {
        let partial = self.partial.as_ref()?;
        (partial.octets.capacity() > SMALL_LEN).then_some(partial.begun)
    }

    /// Takes the FPDU at the head of `run` apart, the next octets in order, if it is whole: its
    /// ULPDU, verified, and its length on the wire.
    ///
    /// # Errors
    /// [`Damage`].
    #[inline]
    pub fn split<'a>(
        &mut self,
        run: &'a [u8],
        crc: bool,
        pool: &'a mut AssemblyPool,
    ) -> Result<Option<(&'a [u8], usize)>, Damage> {
        match &mut self.marked {
            None => fpdu::split(run, crc),
            Some(marked) => marked.split(run, crc, &mut pool.scratch),
        }
    }

    /// The ULPDU of the partial FPDU once it is whole, verified. To be followed by
    /// [`Receiver::finish`] then.
    ///
    /// # Errors
    /// [`Damage`].
    pub fn whole<'a>(
        &'a mut self,
        crc: bool,
        pool: &'a mut AssemblyPool,
    ) -> Result<Option<&'a [u8]>, Damage> {
        let Self { marked, partial: Some(partial) } = self else { return Ok(None) };
        let octets = &partial.octets;
        let found = match marked {
            None => fpdu::split(octets, crc)?,
            Some(marked) => marked.split(octets, crc, &mut pool.scratch)?,
        };
        Ok(found.map(|(ulpdu, _)| ulpdu))
    }

    /// Ends the partial FPDU; the buffer goes back to the pool.
    pub fn finish(&mut self, pool: &mut AssemblyPool) {
        if let Some(partial) = self.partial.take() {
            pool.give_back(partial.octets);
        }
    }

    /// Looks for FPDUs in `run`, octets ahead of their turn that begin at `seq`: from where the
    /// last ones found end, or else from where a marker points to. Each that is whole and right is
    /// offered to `take`, after all of them were verified: of a run with damage in it, which counts
    /// as lost, none is.
    ///
    /// In their turn the octets are passed over ([`Receiver::pass_over`]) if all were taken, or
    /// else handed in like any other.
    pub fn look_ahead(
        &mut self,
        seq: Seq,
        run: &[u8],
        crc: bool,
        pool: &mut AssemblyPool,
        mut take: impl FnMut(&[u8]) -> bool,
    ) -> Foreseen {
        let Some(marked) = &mut self.marked else { return Foreseen::Waits };
        let phase = marked.markers.phase(seq);
        let start = match marked.chain_end {
            Some(end) if end == seq => 0,
            _ => match markers::find_start(run, phase) {
                Some(start) => start,
                None => return Foreseen::Waits,
            },
        };
        let first = markers::advance(phase, start);
        let (mut end, mut at) = (start, first);
        loop {
            match markers::split(&run[end..], at, crc, &mut pool.scratch) {
                Ok(Some((_, used))) => {
                    end += used;
                    // req: MPA-129, MPA-134
                    at = markers::advance(at, used);
                }
                Ok(None) => break,
                // req: MPA-156
                Err(_) => return Foreseen::Damaged,
            }
        }
        let mut is_waiting = start > 0 || end < run.len();
        let (mut rest, mut at, mut count) = (&run[start..end], first, 0);
        while let Ok(Some((ulpdu, used))) = markers::split(rest, at, false, &mut pool.scratch) {
            // req: MPA-051, MPA-133
            is_waiting |= !take(ulpdu);
            count += 1;
            rest = &rest[used..];
            at = markers::advance(at, used);
        }
        marked.chain_end = Some(seq + u32::try_from(end).unwrap_or(0));
        if is_waiting { Foreseen::Waits } else { Foreseen::Taken(count) }
    }

    /// The turn of `len` octets has come all of whose FPDUs were taken ahead of it.
    ///
    /// # Errors
    /// [`Damage::Marker`]: the lengths before them say that an FPDU goes on there.
    // req: MPA-153, MPA-154
    pub fn pass_over(&mut self, len: u32) -> Result<(), Damage> {
        if self.partial.is_some() {
            return Err(Damage::Marker);
        }
        if let Some(marked) = &mut self.marked {
            marked.advance(len);
        }
        Ok(())
    }
}

impl Marked {
    /// Of the next octet in order, or of the partial FPDU's first.
    fn phase(&self) -> usize {
        self.markers.phase(self.next)
    }

    fn advance(&mut self, len: u32) {
        self.next += len;
        if self.chain_end.is_some_and(|end| end <= self.next) {
            self.chain_end = None;
        }
    }

    fn split<'a>(
        &mut self,
        octets: &[u8],
        crc: bool,
        scratch: &'a mut Vec<u8>,
    ) -> Result<Option<(&'a [u8], usize)>, Damage> {
        let found = markers::split(octets, self.phase(), crc, scratch)?;
        if let Some((_, used)) = found {
            // req: MPA-001, MPA-127
            self.advance(u32::try_from(used).unwrap_or(0));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Feeds `stream` in pieces cut at `cuts` and returns every ULPDU handed up.
    fn receive(stream: &[u8], cuts: &[usize], pool: &mut AssemblyPool) -> Vec<Vec<u8>> {
        let mut receiver = Receiver::new(None);
        let mut ulpdus = Vec::new();
        let mut start = 0;
        for &cut in cuts.iter().chain([&stream.len()]) {
            let mut piece = &stream[start..cut.max(start)];
            start = cut.max(start);
            while !piece.is_empty() {
                if receiver.missing().is_none() {
                    while let Some((ulpdu, used)) = receiver.split(piece, true, pool).unwrap() {
                        ulpdus.push(ulpdu.to_vec());
                        piece = &piece[used..];
                    }
                    if piece.is_empty() {
                        break;
                    }
                    receiver.begin(Instant::ZERO);
                }
                let take = receiver.missing().unwrap().min(piece.len());
                let (now, later) = piece.split_at(take);
                assert!(receiver.extend(pool, take, true, |out| out.copy_from_slice(now)));
                piece = later;
                if let Some(ulpdu) = receiver.whole(true, pool).unwrap() {
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
            prop_assert_eq!((pool.taken(), pool.lent()), (0, 0), "the buffer came back");
        }
    }

    #[test]
    fn octets_without_memory_are_refused_and_may_come_again() {
        let mut fpdu = vec![0; fpdu_len(20_000)];
        fpdu::seal(&mut fpdu, 20_000, true);
        let (head, tail) = fpdu.split_at(15_000);
        let mut pool = AssemblyPool::new(1);
        let mut receiver = Receiver::new(None);
        receiver.begin(Instant::ZERO);
        assert!(receiver.extend(&mut pool, 2, false, |out| out.copy_from_slice(&head[..2])));
        let head = &head[2..];
        assert!(!receiver.extend(&mut pool, head.len(), false, |_| unreachable!()));
        assert_eq!((receiver.missing(), receiver.hoards_since()), (Some(fpdu.len() - 2), None));
        assert!(receiver.extend(&mut pool, head.len(), true, |out| out.copy_from_slice(head)));
        assert_eq!(receiver.hoards_since(), Some(Instant::ZERO));
        // The end of it needs no memory for longer than it takes to look at it.
        assert!(receiver.extend(&mut pool, tail.len(), false, |out| out.copy_from_slice(tail)));
        assert_eq!(receiver.whole(true, &mut pool).unwrap().unwrap().len(), 20_000);
        receiver.finish(&mut pool);
        assert_eq!(pool.lent(), 0);
    }
}
