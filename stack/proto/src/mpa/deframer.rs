//! The receiving half of MPA in full operation: finds FPDUs by their lengths, whatever the cuts;
//! and with markers by these, too, in bytes that are ahead of their turn.
//!
//! A whole FPDU within one contiguous run is verified and handed up where it lies ([`parse`]), or
//! from a buffer of the shard into which it was copied without its markers. What is left over, or
//! comes in several runs, is gathered in one buffer per connection, taken from a bounded pool
//! ([`FpduPool`]) and given back as soon as the FPDU is whole. That costs a copy, at several
//! times the speed of the CRC pass that follows, and serves cut segments, chained buffers and FPDUs
//! above the segment size alike.
//!
//! [`parse`]: crate::mpa::fpdu::parse

use crate::mpa::fpdu::{self, FpduError, LENGTH_LEN, fpdu_len};
use crate::mpa::fpdu_pool::{FpduPool, SMALL_LEN};
use crate::mpa::markers::{self, Markers};
use crate::time::Instant;
use crate::wire::seq::Seq;

/// What a receiver knows of the markers it asked for.
#[derive(Debug)]
struct MarkerState {
    markers: Markers,
    /// The next byte in order, or the partial FPDU's first.
    next: Seq,
    /// Where an FPDU begins among what came early: behind the last one that was found. `None` once
    /// that is not ahead any more: 2^32 bytes later its sequence number means another place.
    ooo_fpdu_start: Option<Seq>,
}

/// What there was in bytes ahead of their turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OooPlacement {
    /// So many whole FPDUs and nothing else, and all were taken.
    Placed(u32),
    /// Something that has to wait for its turn: an FPDU that is not whole, was not taken or that
    /// no marker locates.
    Deferred,
    /// An FPDU that is wrong.
    Corrupt,
}

/// An FPDU of which not all bytes are here.
#[derive(Debug)]
struct PartialFpdu {
    bytes: Vec<u8>,
    started_at: Instant,
}

/// The state of one direction: at most one FPDU in part.
#[derive(Debug)]
pub struct Deframer {
    marker_state: Option<Box<MarkerState>>,
    partial: Option<PartialFpdu>,
}

impl Deframer {
    /// Starts at the first byte of full operation; with markers, if this end asked for them.
    #[must_use]
    pub fn new(markers: Option<Markers>) -> Self {
        let marked = |markers: Markers| {
            Box::new(MarkerState { markers, next: markers.start(), ooo_fpdu_start: None })
        };
        Self { marker_state: markers.map(marked), partial: None }
    }

    /// FPDUs can be found ahead of their turn.
    #[inline]
    #[must_use]
    pub const fn has_markers(&self) -> bool {
        self.marker_state.is_some()
    }

    /// Bytes of the partial FPDU that are still to come, as far as its length is known; `None`
    /// between FPDUs.
    #[must_use]
    pub fn needed(&self) -> Option<usize> {
        let partial = &self.partial.as_ref()?.bytes;
        let wanted = match &self.marker_state {
            None => partial
                .first_chunk::<LENGTH_LEN>()
                .map_or(LENGTH_LEN, |length| fpdu_len(usize::from(u16::from_be_bytes(*length)))),
            Some(marked) => markers::needed_len(partial, marked.phase()),
        };
        // req: MPA-039, MPA-083, MPA-131, MPA-138
        Some(wanted - partial.len())
    }

    /// Begins a partial FPDU.
    pub fn start_partial(&mut self, now: Instant) {
        debug_assert!(self.partial.is_none(), "one partial FPDU at a time");
        self.partial = Some(PartialFpdu { bytes: Vec::new(), started_at: now });
    }

    /// Appends `len` bytes (at most [`Deframer::needed`]) that `copy` writes; whether the FPDU is
    /// whole now, [`Deframer::complete`] tells. False, and nothing is appended, if that leaves it
    /// in part and `pool` has no memory for it; `must`: it is taken beyond the pool's bound then.
    pub fn extend(
        &mut self,
        pool: &mut FpduPool,
        len: usize,
        force: bool,
        copy: impl FnOnce(&mut [u8]),
    ) -> bool {
        let needed = self.needed().unwrap_or(0);
        let Some(partial) = &mut self.partial else { return false };
        let bytes = &mut partial.bytes;
        let (start, end) = (bytes.len(), bytes.len() + len);
        // With the last bytes the buffer goes back at once.
        let force = force || len == needed;
        if !pool.try_reserve(bytes, end, start + needed, force) {
            if start == 0 {
                self.partial = None;
            }
            return false;
        }
        bytes.resize(end, 0);
        copy(&mut bytes[start..]);
        true
    }

    /// When the partial FPDU began, if more memory is kept for it than every stream may keep.
    #[must_use]
    pub fn large_partial_since(&self) -> Option<Instant> {
        let partial = self.partial.as_ref()?;
        (partial.bytes.capacity() > SMALL_LEN).then_some(partial.started_at)
    }

    /// Takes the FPDU at the head of `run` apart, the next bytes in order, if it is whole: its
    /// ULPDU, verified, and its length on the wire.
    ///
    /// # Errors
    /// [`FpduError`].
    #[inline]
    pub fn parse<'a>(
        &mut self,
        run: &'a [u8],
        crc: bool,
        pool: &'a mut FpduPool,
    ) -> Result<Option<(&'a [u8], usize)>, FpduError> {
        match &mut self.marker_state {
            None => fpdu::parse(run, crc),
            Some(marked) => marked.parse(run, crc, &mut pool.scratch),
        }
    }

    /// The ULPDU of the partial FPDU once it is whole, verified. To be followed by
    /// [`Deframer::reset`] then.
    ///
    /// # Errors
    /// [`FpduError`].
    pub fn complete<'a>(
        &'a mut self,
        crc: bool,
        pool: &'a mut FpduPool,
    ) -> Result<Option<&'a [u8]>, FpduError> {
        let Self { marker_state: marked, partial: Some(partial) } = self else { return Ok(None) };
        let bytes = &partial.bytes;
        let found = match marked {
            None => fpdu::parse(bytes, crc)?,
            Some(marked) => marked.parse(bytes, crc, &mut pool.scratch)?,
        };
        Ok(found.map(|(ulpdu, _)| ulpdu))
    }

    /// Ends the partial FPDU; the buffer goes back to the pool.
    pub fn reset(&mut self, pool: &mut FpduPool) {
        if let Some(partial) = self.partial.take() {
            pool.release(partial.bytes);
        }
    }

    /// Looks for FPDUs in `run`, bytes ahead of their turn that begin at `seq`: from where the
    /// last ones found end, or else from where a marker points to. Each that is whole and right is
    /// offered to `take`, after all of them were verified: of a run with damage in it, which counts
    /// as lost, none is.
    ///
    /// In their turn the bytes are passed over ([`Deframer::skip_placed`]) if all were taken, or
    /// else handed in like any other.
    pub fn place_ooo(
        &mut self,
        seq: Seq,
        run: &[u8],
        crc: bool,
        pool: &mut FpduPool,
        mut place: impl FnMut(&[u8]) -> bool,
    ) -> OooPlacement {
        let Some(marked) = &mut self.marker_state else { return OooPlacement::Deferred };
        let phase = marked.markers.phase(seq);
        let start = match marked.ooo_fpdu_start {
            Some(end) if end == seq => 0,
            _ => match markers::find_fpdu_start(run, phase) {
                Some(start) => start,
                None => return OooPlacement::Deferred,
            },
        };
        let first = markers::advance_phase(phase, start);
        let (mut end, mut at) = (start, first);
        loop {
            match markers::parse(&run[end..], at, crc, &mut pool.scratch) {
                Ok(Some((_, used))) => {
                    end += used;
                    // req: MPA-129, MPA-134
                    at = markers::advance_phase(at, used);
                }
                Ok(None) => break,
                // req: MPA-156
                Err(_) => return OooPlacement::Corrupt,
            }
        }
        let mut is_deferred = start > 0 || end < run.len();
        let (mut rest, mut at, mut count) = (&run[start..end], first, 0);
        while let Ok(Some((ulpdu, used))) = markers::parse(rest, at, false, &mut pool.scratch) {
            // req: MPA-051, MPA-133
            is_deferred |= !place(ulpdu);
            count += 1;
            rest = &rest[used..];
            at = markers::advance_phase(at, used);
        }
        marked.ooo_fpdu_start = Some(seq + u32::try_from(end).unwrap_or(0));
        if is_deferred { OooPlacement::Deferred } else { OooPlacement::Placed(count) }
    }

    /// The turn of `len` bytes has come all of whose FPDUs were taken ahead of it.
    ///
    /// # Errors
    /// [`FpduError::Marker`]: the lengths before them say that an FPDU goes on there.
    // req: MPA-153, MPA-154
    pub fn skip_placed(&mut self, len: u32) -> Result<(), FpduError> {
        if self.partial.is_some() {
            return Err(FpduError::Marker);
        }
        if let Some(marked) = &mut self.marker_state {
            marked.advance(len);
        }
        Ok(())
    }
}

impl MarkerState {
    /// Of the next byte in order, or of the partial FPDU's first.
    fn phase(&self) -> usize {
        self.markers.phase(self.next)
    }

    fn advance(&mut self, len: u32) {
        self.next += len;
        if self.ooo_fpdu_start.is_some_and(|end| end <= self.next) {
            self.ooo_fpdu_start = None;
        }
    }

    fn parse<'a>(
        &mut self,
        bytes: &[u8],
        crc: bool,
        scratch: &'a mut Vec<u8>,
    ) -> Result<Option<(&'a [u8], usize)>, FpduError> {
        let found = markers::parse(bytes, self.phase(), crc, scratch)?;
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
    fn receive(stream: &[u8], cuts: &[usize], pool: &mut FpduPool) -> Vec<Vec<u8>> {
        let mut receiver = Deframer::new(None);
        let mut ulpdus = Vec::new();
        let mut start = 0;
        for &cut in cuts.iter().chain([&stream.len()]) {
            let mut piece = &stream[start..cut.max(start)];
            start = cut.max(start);
            while !piece.is_empty() {
                if receiver.needed().is_none() {
                    while let Some((ulpdu, used)) = receiver.parse(piece, true, pool).unwrap() {
                        ulpdus.push(ulpdu.to_vec());
                        piece = &piece[used..];
                    }
                    if piece.is_empty() {
                        break;
                    }
                    receiver.start_partial(Instant::ZERO);
                }
                let take = receiver.needed().unwrap().min(piece.len());
                let (now, later) = piece.split_at(take);
                assert!(receiver.extend(pool, take, true, |out| out.copy_from_slice(now)));
                piece = later;
                if let Some(ulpdu) = receiver.complete(true, pool).unwrap() {
                    ulpdus.push(ulpdu.to_vec());
                    receiver.reset(pool);
                }
            }
        }
        assert_eq!(receiver.needed(), None);
        ulpdus
    }

    proptest! {
        // req-test: MPA-130, MPA-131
        #[test]
        fn any_segmentation_yields_same_ulpdus(
            lens in proptest::collection::vec(1usize..3000, 1..12),
            mut cuts in proptest::collection::vec(0usize..20_000, 0..40),
        ) {
            let mut stream = Vec::new();
            let mut sent = Vec::new();
            for (index, &len) in lens.iter().enumerate() {
                let ulpdu: Vec<u8> = (0..len).map(|at| ((at * 7) ^ (index * 31)) as u8).collect();
                let mut fpdu = vec![0; fpdu_len(len)];
                fpdu[2..2 + len].copy_from_slice(&ulpdu);
                fpdu::finalize(&mut fpdu, len, true);
                stream.extend_from_slice(&fpdu);
                sent.push(ulpdu);
            }
            cuts.iter_mut().for_each(|cut| *cut %= stream.len());
            cuts.sort_unstable();
            let mut pool = FpduPool::new(1);
            prop_assert_eq!(&receive(&stream, &cuts, &mut pool), &sent);
            let every: Vec<usize> = (1..stream.len().min(400)).collect();
            prop_assert_eq!(&receive(&stream, &every, &mut pool), &sent);
            prop_assert_eq!((pool.buffers_in_use(), pool.bytes_in_use()), (0, 0));
        }
    }

    #[test]
    fn bytes_are_refused_without_memory_and_accepted_later() {
        let mut fpdu = vec![0; fpdu_len(20_000)];
        fpdu::finalize(&mut fpdu, 20_000, true);
        let (head, tail) = fpdu.split_at(15_000);
        let mut pool = FpduPool::new(1);
        let mut receiver = Deframer::new(None);
        receiver.start_partial(Instant::ZERO);
        assert!(receiver.extend(&mut pool, 2, false, |out| out.copy_from_slice(&head[..2])));
        let head = &head[2..];
        assert!(!receiver.extend(&mut pool, head.len(), false, |_| unreachable!()));
        assert_eq!(
            (receiver.needed(), receiver.large_partial_since()),
            (Some(fpdu.len() - 2), None)
        );
        assert!(receiver.extend(&mut pool, head.len(), true, |out| out.copy_from_slice(head)));
        assert_eq!(receiver.large_partial_since(), Some(Instant::ZERO));
        // The end of it needs no memory for longer than it takes to look at it.
        assert!(receiver.extend(&mut pool, tail.len(), false, |out| out.copy_from_slice(tail)));
        assert_eq!(receiver.complete(true, &mut pool).unwrap().unwrap().len(), 20_000);
        receiver.reset(&mut pool);
        assert_eq!(pool.bytes_in_use(), 0);
    }
}
