//! The receiving half of MPA in full operation: finds FPDUs by their lengths, whatever the cuts;
//! and with markers by these, too, in bytes that are ahead of their turn.
//!
//! A whole FPDU within one contiguous run is verified and handed up where it lies, or
//! from a buffer of the shard into which it was copied without its markers. What is left over, or
//! comes in several runs, is gathered in one buffer per connection, taken from a bounded pool
//! ([`FpduPool`]) and given back as soon as the FPDU is whole. That costs a copy, at several
//! times the speed of the CRC pass that follows, and serves cut segments, chained buffers and FPDUs
//! above the segment size alike.

use crate::mpa::fpdu::{self, FpduError, LENGTH_LEN, fpdu_len};
use crate::mpa::fpdu_pool::{FpduPool, SMALL_LEN};
use crate::mpa::markers::{self, Markers};
use crate::mpa::stream_bytes::StreamBytes;
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

/// An FPDU of which not all bytes have been received.
#[derive(Debug)]
struct PartialFpdu {
    bytes: Vec<u8>,
    started_at: Instant,
    /// Complete, and its ULPDU was handed out by the last [`Deframer::next`].
    is_delivered: bool,
}

/// A verified ULPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ulpdu<'a> {
    /// DDP segment: header and payload.
    pub bytes: &'a [u8],
    /// Its FPDU came in several parts and was reassembled in a buffer of the pool.
    pub is_reassembled: bool,
}

/// Memory for an FPDU that is incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartialMemory {
    /// Refused at the pool's bound.
    Bounded,
    /// Never refused: its bytes cannot be declined to TCP.
    Forced,
    /// As `Bounded`; and no partial FPDU is started while the pool is under pressure.
    Scarce,
}

/// Why [`Deframer::next`] found no ULPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeframeError {
    /// The FPDU is wrong: the stream ends.
    Fpdu(FpduError),
    /// No memory for a partial FPDU. No byte was consumed; they may be declined to TCP, which has
    /// them retransmitted, or handed in again with [`PartialMemory::Forced`].
    NoMemory,
}

impl From<FpduError> for DeframeError {
    fn from(error: FpduError) -> Self {
        Self::Fpdu(error)
    }
}

/// Receiver of one direction of a stream: at most one partial FPDU.
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

    /// FPDUs can be located in out-of-order bytes.
    #[inline]
    #[must_use]
    pub const fn has_markers(&self) -> bool {
        self.marker_state.is_some()
    }

    /// The stream is in the middle of an FPDU.
    #[must_use]
    pub fn has_partial(&self) -> bool {
        self.partial.as_ref().is_some_and(|partial| !partial.is_delivered)
    }

    /// When the partial FPDU began, if more memory is kept for it than every stream may keep.
    #[must_use]
    pub fn large_partial_since(&self) -> Option<Instant> {
        let partial = self.partial.as_ref().filter(|partial| !partial.is_delivered)?;
        (partial.bytes.capacity() > SMALL_LEN).then_some(partial.started_at)
    }

    /// MPA's receive loop: the next ULPDU of `bytes`, the next in order of the stream; its CRC
    /// verified if `crc`. `Ok(None)`: `bytes` are consumed, an FPDU may be left in part.
    ///
    /// Call it until it returns `Ok(None)` or an error, or call [`Deframer::reset`]: the buffer of
    /// a reassembled FPDU goes back to the pool with the call after the one that returned it.
    /// Cost: the pass for the CRC; for an FPDU in several parts a copy beside it, with markers one
    /// more.
    ///
    /// # Errors
    /// [`DeframeError`].
    // Inlined always: the result of the usual case stays in registers.
    #[inline(always)]
    pub fn next<'a, 'f: 'a>(
        &'a mut self,
        now: Instant,
        bytes: &mut StreamBytes<'f>,
        crc: bool,
        pool: &'a mut FpduPool,
        memory: PartialMemory,
    ) -> Result<Option<Ulpdu<'a>>, DeframeError> {
        if self.partial.is_none() && self.marker_state.is_none() {
            if let Some((ulpdu, used)) = fpdu::parse(bytes.run(), crc)? {
                bytes.advance_run(used);
                return Ok(Some(Ulpdu { bytes: ulpdu, is_reassembled: false }));
            }
            if bytes.is_empty() {
                return Ok(None);
            }
        }
        // A copy, so that the caller's bytes stay in registers.
        let mut rest = *bytes;
        let found = self.next_slow(now, &mut rest, crc, pool, memory);
        *bytes = rest;
        found
    }

    /// As [`Deframer::next`], with markers or a partial FPDU.
    #[cold]
    fn next_slow<'a, 'f: 'a>(
        &'a mut self,
        now: Instant,
        bytes: &mut StreamBytes<'f>,
        crc: bool,
        pool: &'a mut FpduPool,
        memory: PartialMemory,
    ) -> Result<Option<Ulpdu<'a>>, DeframeError> {
        if self.partial.as_ref().is_some_and(|partial| partial.is_delivered) {
            self.reset(pool);
        }
        while !bytes.is_empty() {
            if self.partial.is_none() {
                let run = bytes.run();
                if let Some((ulpdu_len, used)) =
                    locate(&mut self.marker_state, run, crc, &mut pool.scratch)?
                {
                    bytes.advance_run(used);
                    let fpdu = if self.marker_state.is_none() { run } else { &pool.scratch };
                    let ulpdu = &fpdu[LENGTH_LEN..LENGTH_LEN + ulpdu_len];
                    return Ok(Some(Ulpdu { bytes: ulpdu, is_reassembled: false }));
                }
                if memory == PartialMemory::Scarce && pool.is_under_pressure() {
                    return Err(DeframeError::NoMemory);
                }
                // req: MPA-135, MPA-137
                let bytes = Vec::new();
                self.partial = Some(PartialFpdu { bytes, started_at: now, is_delivered: false });
            }
            if !self.extend(bytes, pool, memory) {
                return Err(DeframeError::NoMemory);
            }
            let Some(partial) = &mut self.partial else { break };
            let found = locate(&mut self.marker_state, &partial.bytes, crc, &mut pool.scratch)?;
            if let Some((ulpdu_len, _)) = found {
                partial.is_delivered = true;
                return Ok(self.reassembled(pool, ulpdu_len));
            }
        }
        Ok(None)
    }

    /// The ULPDU of the partial FPDU, which is complete.
    fn reassembled<'a>(&'a self, pool: &'a FpduPool, ulpdu_len: usize) -> Option<Ulpdu<'a>> {
        let fpdu = match &self.marker_state {
            None => &self.partial.as_ref()?.bytes,
            Some(_) => &pool.scratch,
        };
        let bytes = &fpdu[LENGTH_LEN..LENGTH_LEN + ulpdu_len];
        Some(Ulpdu { bytes, is_reassembled: true })
    }

    /// Moves bytes to the partial FPDU, as many as it needs as far as its length is known. False,
    /// with nothing moved, if the FPDU stays incomplete and there is no memory for it.
    fn extend(
        &mut self,
        from: &mut StreamBytes<'_>,
        pool: &mut FpduPool,
        memory: PartialMemory,
    ) -> bool {
        let needed = self.needed();
        let Some(partial) = &mut self.partial else { return false };
        let bytes = &mut partial.bytes;
        let len = needed.min(from.len());
        let (start, end) = (bytes.len(), bytes.len() + len);
        // With its last bytes the FPDU needs no memory for longer than it takes to handle it.
        let force = memory == PartialMemory::Forced || len == needed;
        // req: MPA-132, MPA-136
        if !pool.try_reserve(bytes, end, start + needed, force) {
            if start == 0 {
                self.partial = None;
            }
            return false;
        }
        bytes.resize(end, 0);
        from.copy_to(&mut bytes[start..]);
        from.advance(len);
        true
    }

    /// Bytes of the partial FPDU that are still to come, as far as its length is known.
    fn needed(&self) -> usize {
        let Some(PartialFpdu { bytes: partial, .. }) = &self.partial else { return 0 };
        let wanted = match &self.marker_state {
            None => partial
                .first_chunk::<LENGTH_LEN>()
                .map_or(LENGTH_LEN, |length| fpdu_len(usize::from(u16::from_be_bytes(*length)))),
            Some(marked) => markers::needed_len(partial, marked.phase()),
        };
        // req: MPA-039, MPA-083, MPA-131, MPA-138
        wanted - partial.len()
    }

    /// Discards the partial FPDU; the buffer goes back to the pool.
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
        if self.has_partial() {
            return Err(FpduError::Marker);
        }
        if let Some(marked) = &mut self.marker_state {
            marked.advance(len);
        }
        Ok(())
    }
}

/// The FPDU at the head of `bytes`, if it is complete and right: lengths of its ULPDU and of itself
/// on the wire. With markers it lies in `scratch` then, without them.
fn locate(
    marker_state: &mut Option<Box<MarkerState>>,
    bytes: &[u8],
    crc: bool,
    scratch: &mut Vec<u8>,
) -> Result<Option<(usize, usize)>, FpduError> {
    let found = match marker_state {
        None => fpdu::parse(bytes, crc)?,
        Some(marked) => marked.parse(bytes, crc, scratch)?,
    };
    Ok(found.map(|(ulpdu, used)| (ulpdu.len(), used)))
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
        let mut deframer = Deframer::new(None);
        let mut ulpdus = Vec::new();
        let mut start = 0;
        for &cut in cuts.iter().chain([&stream.len()]) {
            let mut bytes = StreamBytes::from(&stream[start..cut.max(start)]);
            start = cut.max(start);
            let mut next = || {
                let memory = PartialMemory::Forced;
                let ulpdu = deframer.next(Instant::ZERO, &mut bytes, true, pool, memory).unwrap();
                ulpdu.map(|ulpdu| ulpdu.bytes.to_vec())
            };
            ulpdus.extend(std::iter::from_fn(&mut next));
        }
        assert!(!deframer.has_partial());
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
        let mut deframer = Deframer::new(None);
        let mut next = |bytes: &[u8], memory| {
            let mut bytes = StreamBytes::from(bytes);
            let found = deframer.next(Instant::ZERO, &mut bytes, true, &mut pool, memory);
            let ulpdu_len = found.map(|ulpdu| ulpdu.map(|ulpdu| ulpdu.bytes.len()));
            (ulpdu_len, bytes.len(), deframer.large_partial_since())
        };
        let none = Ok(None);
        assert_eq!(next(&head[..2], PartialMemory::Bounded), (none, 0, None));
        let refused = (Err(DeframeError::NoMemory), head.len() - 2, None);
        assert_eq!(next(&head[2..], PartialMemory::Bounded), refused);
        let accepted = (none, 0, Some(Instant::ZERO));
        assert_eq!(next(&head[2..], PartialMemory::Forced), accepted);
        // The end of it needs no memory for longer than it takes to handle it.
        assert_eq!(next(tail, PartialMemory::Bounded), (Ok(Some(20_000)), 0, None));
        assert_eq!(next(&[], PartialMemory::Bounded), (none, 0, None));
        assert_eq!(pool.bytes_in_use(), 0);
    }

    #[test]
    fn no_partial_fpdu_is_started_under_pressure_where_memory_is_scarce() {
        let mut pool = FpduPool::new(1);
        let held = pool.alloc(2000);
        assert!(pool.is_under_pressure());
        let mut deframer = Deframer::new(None);
        let mut next = |memory| {
            let mut bytes = StreamBytes::from(&[0, 100, 1, 2][..]);
            deframer.next(Instant::ZERO, &mut bytes, true, &mut pool, memory).is_ok()
        };
        assert!(!next(PartialMemory::Scarce));
        assert!(next(PartialMemory::Bounded), "the smallest buffers are never refused");
        assert!(deframer.has_partial());
        pool.release(held);
    }
}
