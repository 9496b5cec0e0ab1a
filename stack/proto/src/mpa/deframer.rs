//! MPA receiver in full operation: locates FPDUs in the in-order stream by their lengths, however
//! the stream is segmented, and with markers in out-of-order bytes as well, by their FPDUPTRs.
//!
//! A complete FPDU within one contiguous run is verified, and its ULPDU returned, in place; with
//! markers it is first copied without them to a buffer of the shard. A partial FPDU, or one in
//! several runs, is reassembled in one buffer per connection. The buffer comes from a bounded pool
//! ([`FpduPool`]) and is released as soon as the FPDU is complete. The cost is one copy, several
//! times as fast as the CRC pass that follows. The same path handles FPDUs cut by segments, chained
//! buffers and FPDUs longer than a segment.

use crate::mpa::fpdu::{self, FpduError, LENGTH_LEN, fpdu_len};
use crate::mpa::fpdu_pool::{FpduPool, SMALL_LEN};
use crate::mpa::markers::{self, Markers};
use crate::mpa::stream_bytes::StreamBytes;
use crate::time::{Instant, NEVER};
use crate::wire::seq::Seq;

/// Marker state of a receiver that requested markers.
#[derive(Debug)]
struct MarkerState {
    markers: Markers,
    /// Sequence number of the next in-order byte or, during a partial FPDU, of its first byte.
    next: Seq,
    /// Sequence number of the start of an FPDU in the out-of-order bytes: the end of the last one
    /// located there. `None` once `next` has reached it, because 2^32 bytes later the same number
    /// is another position.
    ooo_fpdu_start: Option<Seq>,
}

/// Result of processing out-of-order bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OooPlacement {
    /// The bytes are exactly this number of complete FPDUs, and all were placed.
    Placed(u32),
    /// The bytes have to be processed again in order: they contain an FPDU that is incomplete, was
    /// not placed, or is not located by a marker.
    Deferred,
    /// An FPDU failed its CRC or marker check. None was placed.
    Corrupt,
}

/// FPDU received in several parts: incomplete, or complete and not yet released.
#[derive(Debug)]
struct PartialFpdu {
    bytes: Vec<u8>,
    /// Time from which on its buffer is longer than [`SMALL_LEN`], or of its last bytes before;
    /// [`NEVER`] once it is complete, and its ULPDU was returned by the last [`Deframer::next`].
    started_at: Instant,
}

impl PartialFpdu {
    fn is_delivered(&self) -> bool {
        self.started_at == NEVER
    }
}

/// Received ULPDU of a verified FPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ulpdu<'a> {
    /// DDP segment: header and payload.
    pub bytes: &'a [u8],
    /// The FPDU was received in several parts and reassembled in a buffer of the pool.
    pub is_reassembled: bool,
}

/// Allocation policy for a partial FPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartialMemory {
    /// The allocation fails at the limit of the pool.
    Bounded,
    /// The allocation never fails: the bytes cannot be declined to TCP.
    Forced,
    /// As `Bounded`, and no partial FPDU is started while the pool is under pressure.
    Scarce,
}

/// Error of [`Deframer::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeframeError {
    /// The FPDU is invalid. The stream has to be terminated.
    Fpdu(FpduError),
    /// No memory for a partial FPDU. The bytes left in the argument were not consumed. They may be
    /// declined to TCP, which has them retransmitted, or passed in again with
    /// [`PartialMemory::Forced`].
    NoMemory,
}

impl From<FpduError> for DeframeError {
    fn from(error: FpduError) -> Self {
        Self::Fpdu(error)
    }
}

/// MPA receiver of one stream direction. Holds at most one partial FPDU.
#[derive(Debug)]
pub struct Deframer {
    marker_state: Option<Box<MarkerState>>,
    partial: Option<PartialFpdu>,
}

impl Deframer {
    /// Returns a receiver at the first byte of full operation. `markers` are the marker positions
    /// if the local peer requested markers.
    #[must_use]
    pub fn new(markers: Option<Markers>) -> Self {
        let marked = |markers: Markers| {
            Box::new(MarkerState { markers, next: markers.start(), ooo_fpdu_start: None })
        };
        Self { marker_state: markers.map(marked), partial: None }
    }

    /// True if received FPDUs have markers, so that they can be located in out-of-order bytes.
    #[inline]
    #[must_use]
    pub const fn has_markers(&self) -> bool {
        self.marker_state.is_some()
    }

    /// True if the next bytes start an FPDU and have no markers: complete FPDUs in them may be
    /// parsed with [`fpdu::parse`] instead.
    #[inline]
    #[must_use]
    pub const fn is_at_unmarked_fpdu(&self) -> bool {
        self.partial.is_none() && self.marker_state.is_none()
    }

    /// True if an incomplete FPDU is held.
    #[must_use]
    pub fn has_partial(&self) -> bool {
        self.partial.as_ref().is_some_and(|partial| !partial.is_delivered())
    }

    /// Returns the time since when the buffer of the partial FPDU has been longer than
    /// [`SMALL_LEN`], the length that every stream may hold. The wait for it does not count.
    #[must_use]
    pub fn large_partial_since(&self) -> Option<Instant> {
        let partial = self.partial.as_ref().filter(|partial| !partial.is_delivered())?;
        (partial.bytes.capacity() > SMALL_LEN).then_some(partial.started_at)
    }

    /// Returns the next ULPDU from `bytes`, the next in-order bytes of the stream, or `Ok(None)` if
    /// `bytes` are consumed; a partial FPDU may be held then. The CRC is verified if `crc`.
    ///
    /// Call it until it returns `Ok(None)` or an error, or call [`Deframer::reset`]: the buffer of
    /// a reassembled FPDU is released by the call after the one that returned its ULPDU. `peer`
    /// returns the group of the peer that the buffer is charged to, always the same.
    /// Cost: the CRC pass; one copy for an FPDU in several parts, and one more with markers.
    ///
    /// # Errors
    /// [`DeframeError`].
    // Always inlined: in the common case the result stays in registers.
    #[inline(always)]
    pub fn next<'a, 'f: 'a>(
        &'a mut self,
        now: Instant,
        bytes: &mut StreamBytes<'f>,
        crc: bool,
        pool: &'a mut FpduPool,
        memory: PartialMemory,
        peer: impl FnOnce() -> u8,
    ) -> Result<Option<Ulpdu<'a>>, DeframeError> {
        if self.is_at_unmarked_fpdu() {
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
        let found = self.next_slow(now, &mut rest, crc, pool, (memory, peer()));
        *bytes = rest;
        found
    }

    /// As [`Deframer::next`], for a stream with markers or an FPDU in several parts.
    #[cold]
    fn next_slow<'a, 'f: 'a>(
        &'a mut self,
        now: Instant,
        bytes: &mut StreamBytes<'f>,
        crc: bool,
        pool: &'a mut FpduPool,
        (memory, peer): (PartialMemory, u8),
    ) -> Result<Option<Ulpdu<'a>>, DeframeError> {
        // The caller is done with the ULPDU returned last.
        if self.partial.as_ref().is_some_and(PartialFpdu::is_delivered) {
            self.reset(pool, peer);
        }
        while !bytes.is_empty() {
            if self.partial.is_none() {
                // RFC 5044 section 4.1: an FPDU that is complete in these bytes is not copied,
                // except to remove its markers.
                let run = bytes.run();
                if let Some((ulpdu_len, used)) =
                    locate(&mut self.marker_state, run, crc, &mut pool.scratch)?
                {
                    bytes.advance_run(used);
                    let fpdu = if self.marker_state.is_none() { run } else { &pool.scratch };
                    let ulpdu = &fpdu[LENGTH_LEN..LENGTH_LEN + ulpdu_len];
                    return Ok(Some(Ulpdu { bytes: ulpdu, is_reassembled: false }));
                }
                // Its start is kept until the rest arrives, if there is memory for it.
                if memory == PartialMemory::Scarce && pool.is_under_pressure() {
                    return Err(DeframeError::NoMemory);
                }
                let bytes = Vec::new();
                // req: MPA-135, MPA-137
                self.partial = Some(PartialFpdu { bytes, started_at: now });
            }
            if !self.extend(now, bytes, pool, (memory, peer)) {
                return Err(DeframeError::NoMemory);
            }
            // Sections 4.3 and 4.4: markers and CRC are checked once all of it has arrived.
            let Some(partial) = &mut self.partial else { break };
            let found = locate(&mut self.marker_state, &partial.bytes, crc, &mut pool.scratch)?;
            if let Some((ulpdu_len, _)) = found {
                partial.started_at = NEVER;
                return Ok(self.reassembled(pool, ulpdu_len));
            }
        }
        Ok(None)
    }

    /// Returns the ULPDU of the partial FPDU, which is now complete.
    fn reassembled<'a>(&'a self, pool: &'a FpduPool, ulpdu_len: usize) -> Option<Ulpdu<'a>> {
        let fpdu = match &self.marker_state {
            None => &self.partial.as_ref()?.bytes,
            Some(_) => &pool.scratch,
        };
        let bytes = &fpdu[LENGTH_LEN..LENGTH_LEN + ulpdu_len];
        Some(Ulpdu { bytes, is_reassembled: true })
    }

    /// Moves bytes to the partial FPDU, at most [`Deframer::needed`]. Returns false, with nothing
    /// moved, if the FPDU would stay incomplete and there is no memory for it.
    fn extend(
        &mut self,
        now: Instant,
        from: &mut StreamBytes<'_>,
        pool: &mut FpduPool,
        (memory, peer): (PartialMemory, u8),
    ) -> bool {
        let needed = self.needed();
        let Some(partial) = &mut self.partial else { return false };
        let bytes = &mut partial.bytes;
        let len = needed.min(from.len());
        let (start, end) = (bytes.len(), bytes.len() + len);
        let was_long = bytes.capacity() > SMALL_LEN;
        // With its last bytes the FPDU is processed and its buffer released at once.
        let force = memory == PartialMemory::Forced || len == needed;
        if !pool.try_reserve(peer, bytes, end, start + needed, force) {
            if start == 0 {
                self.partial = None;
            }
            return false;
        }
        bytes.resize(end, 0);
        // req: MPA-132, MPA-136
        from.copy_to(&mut bytes[start..]);
        if !was_long {
            partial.started_at = now;
        }
        from.advance(len);
        true
    }

    /// Returns the number of missing bytes of the partial FPDU, or of its length field while its
    /// length is not known.
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

    /// Discards the partial FPDU and releases its buffer to the pool; `peer` is the group of the
    /// peer.
    pub fn reset(&mut self, pool: &mut FpduPool, peer: u8) {
        if let Some(partial) = self.partial.take() {
            pool.release(peer, partial.bytes);
        }
    }

    /// Performs out-of-order placement: locates FPDUs in `run`, out-of-order bytes that begin at
    /// `seq`, from the end of the last ones located or else by an FPDUPTR. Each complete and valid
    /// FPDU is passed to `place`, which returns true if it placed the ULPDU. `place` is called only
    /// after all of them were verified: none is placed from a run with a corrupt FPDU, which counts
    /// as lost.
    ///
    /// Once the bytes are in order they are skipped with [`Deframer::skip_placed`] if the result
    /// was [`OooPlacement::Placed`]; otherwise they are passed to [`Deframer::next`].
    pub fn place_ooo(
        &mut self,
        seq: Seq,
        run: &[u8],
        crc: bool,
        pool: &mut FpduPool,
        mut place: impl FnMut(&[u8]) -> bool,
    ) -> OooPlacement {
        let Some(marked) = &mut self.marker_state else { return OooPlacement::Deferred };
        // RFC 5044 section 4.3: an FPDU starts where the last one located ended, or where the
        // first FPDUPTR points to.
        let phase = marked.markers.phase(seq);
        // req: MPA-126
        let start = match marked.ooo_fpdu_start {
            Some(end) if end == seq => 0,
            _ => match markers::find_fpdu_start(run, phase) {
                Some(start) => start,
                None => return OooPlacement::Deferred,
            },
        };
        // Section 4.4: every FPDU is verified before any is placed.
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
        // RFC 5041 section 5.3: placement in any order; delivery waits for the order.
        let mut is_deferred = start > 0 || end < run.len();
        let (mut rest, mut at, mut count) = (&run[start..end], first, 0);
        while let Ok(Some((ulpdu, used))) = markers::parse(rest, at, false, &mut pool.scratch) {
            // req: MPA-051, MPA-133
            is_deferred |= !place(ulpdu);
            count += 1;
            rest = &rest[used..];
            at = markers::advance_phase(at, used);
        }
        // The bytes after the run begin with an FPDU.
        marked.ooo_fpdu_start = Some(seq + u32::try_from(end).unwrap_or(0));
        if is_deferred { OooPlacement::Deferred } else { OooPlacement::Placed(count) }
    }

    /// Skips `len` bytes that are now in order and whose FPDUs were all placed out of order.
    ///
    /// # Errors
    /// [`FpduError::Marker`] if, by the lengths of the FPDUs before them, these bytes continue an
    /// FPDU.
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

/// Parses the FPDU at the start of `bytes`. Returns the length of its ULPDU and its own length on
/// the wire, or `None` if it is incomplete. With markers it is then in `scratch`, without them.
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
    /// Returns the phase of the byte at `next`.
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
mod tests;
