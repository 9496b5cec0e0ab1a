//! Mbufs as three types: under construction, retained after sending, received.
//!
//! A frame that was sent never changes: over `net_ring` the peer holds the same mbuf. So a
//! [`TxMbuf`] can be written only while it has one reference, and the other two not at all.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU16, Ordering};

use crate::mbuf_field::{
    BUF_ADDR, BUF_LEN, DATA_LEN, DATA_OFF, HASH_RSS, NB_SEGS, NEXT, OL_FLAGS, PKT_LEN, PORT,
    REFCNT, Raw, TX_OFFLOAD,
};
use crate::prefetch::prefetch_write;
use crate::sys;

/// Returns the reference count. C changes it with atomic instructions, so Rust does too.
#[inline]
fn refcount<'a>(raw: Raw) -> &'a AtomicU16 {
    // SAFETY: an aligned field of a pool that lives as long as the process (see `mempool`), to
    // which no plain access is made once the mbuf is shared.
    unsafe { AtomicU16::from_ptr(REFCNT.pointer(raw)) }
}

/// Returns the bytes of one segment.
#[inline]
fn segment<'a>(raw: Raw) -> &'a [u8] {
    let start = BUF_ADDR.get(raw);
    let offset = usize::from(DATA_OFF.get(raw));
    let len = usize::from(DATA_LEN.get(raw));
    // SAFETY: DPDK keeps `data_off` within the buffer.
    let start = unsafe { start.add(offset) };
    // SAFETY: `data_len` bytes from there lie in the buffer, which was zeroed or written, and
    // are not written while anyone but the builder of the frame can see them.
    unsafe { core::slice::from_raw_parts(start, len) }
}

/// Most references to an mbuf: far more than a sender needs, and so far below the counter's maximum
/// that threads which exceed it concurrently cannot overflow the counter.
const REFCNT_MAX: u16 = 1 << 15;
/// Length of an IPv6 header.
const IPV6_HEADER_LEN: usize = 40;

/// Takes one more reference to an mbuf that is shared already.
fn increment_refcnt(raw: Raw) {
    let count = refcount(raw);
    let before = count.fetch_add(1, Ordering::Relaxed);
    if before >= REFCNT_MAX {
        // A counter that wraps around would free the mbuf, or make it exclusive, while others
        // read it.
        count.fetch_sub(1, Ordering::Relaxed);
        panic!("a frame has at most {REFCNT_MAX} references");
    }
}

/// Releases one reference; the last one returns the mbuf to its pool.
///
/// A frame of one segment that others still refer to, as the sender's retained reference to one
/// just received over `ring`, costs one atomic subtraction and no call. As in DPDK, a frame with
/// one reference costs no atomic operation.
#[inline]
fn free(raw: Raw) {
    if NB_SEGS.get(raw) == 1 && release_shared(raw) {
        return;
    }
    // SAFETY: releases one reference that the caller's value owned and never uses again.
    unsafe { sys::fw_mbuf_free(raw.as_ptr()) };
}

/// Releases one reference if others remain. False if it is the last: the mbuf, with a count of 1,
/// is then the caller's alone.
#[inline]
fn release_shared(raw: Raw) -> bool {
    let count = refcount(raw);
    if count.load(Ordering::Acquire) == 1 {
        return false;
    }
    // Release: what this thread read happens before the mbuf is used again. Acquire: so does what
    // the others read.
    if count.fetch_sub(1, Ordering::AcqRel) > 1 {
        return true;
    }
    // The others released theirs meanwhile.
    count.store(1, Ordering::Relaxed);
    false
}

/// A frame under construction: one segment, exclusively owned until [`TxMbuf::retain`].
#[derive(Debug)]
#[repr(transparent)]
pub struct TxMbuf(Raw);

// SAFETY: the value owns a reference; mbufs may be freed in any thread.
unsafe impl Send for TxMbuf {}

impl TxMbuf {
    /// Returns the mbuf, for writing: it was not sent, because sending consumes the value.
    ///
    /// # Panics
    /// If another reference to it exists, whose owner might be reading it.
    pub(crate) fn exclusive(&mut self) -> Raw {
        let count = refcount(self.0).load(Ordering::Acquire);
        assert!(count == 1, "a retained frame never changes");
        self.0
    }

    /// Returns the writable buffer, from the start of the frame to the end of the mbuf's buffer.
    ///
    /// # Panics
    /// While a retained reference exists.
    #[inline]
    pub fn buf_mut(&mut self) -> &mut [u8] {
        let raw = self.exclusive();
        let offset = usize::from(DATA_OFF.get(raw));
        let len = usize::from(BUF_LEN.get(raw)) - offset;
        // SAFETY: `data_off` never exceeds `buf_len`.
        let start = unsafe { BUF_ADDR.get(raw).add(offset) };
        // SAFETY: the rest of the buffer, exclusively ours; pool memory is mapped zeroed, so
        // its bytes are initialized.
        unsafe { core::slice::from_raw_parts_mut(start, len) }
    }

    /// Sets the frame's length: the first `len` bytes of the buffer.
    ///
    /// # Panics
    /// If `len` exceeds the buffer, or while a retained reference exists.
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        let raw = self.exclusive();
        let len_max = BUF_LEN.get(raw) - DATA_OFF.get(raw);
        let len = u16::try_from(len).ok().filter(|&len| len <= len_max);
        let len = len.expect("the frame fits its buffer");
        DATA_LEN.set(raw, len);
        PKT_LEN.set(raw, u32::from(len));
    }

    /// Requests checksum offload: the port fills in the TCP checksum and, with `ipv4`, the checksum
    /// of an IPv4 header. When the frame is sent, its headers are complete, and the TCP checksum
    /// field holds the sum of the pseudo-header. Lengths are in bytes. A network header of 40 bytes
    /// or more is taken for IPv6.
    ///
    /// # Panics
    /// While a retained reference exists, or if a length does not fit its field (7, 9, 8 bits).
    pub fn request_checksum(&mut self, l2_len: usize, l3_len: usize, l4_len: usize, ipv4: bool) {
        assert!(l2_len < 128 && l3_len < 512 && l4_len < 256, "header lengths fit their fields");
        // An IPv6 header has no checksum. Some drivers reject requests for what they do not offer.
        let is_v4 = l3_len < IPV6_HEADER_LEN;
        let ip_flags = match (is_v4, ipv4) {
            (true, true) => sys::RTE_MBUF_F_TX_IPV4 | sys::RTE_MBUF_F_TX_IP_CKSUM,
            (true, false) => sys::RTE_MBUF_F_TX_IPV4,
            (false, _) => sys::RTE_MBUF_F_TX_IPV6,
        };
        let raw = self.exclusive();
        TX_OFFLOAD.set(raw, l2_len as u64 | (l3_len as u64) << 7 | (l4_len as u64) << 16);
        OL_FLAGS.set(raw, OL_FLAGS.get(raw) | ip_flags | sys::RTE_MBUF_F_TX_TCP_CKSUM);
    }

    /// Requests TCP segmentation with `payload_len` bytes of payload per segment, in addition to
    /// [`TxMbuf::request_checksum`], of a frame that is complete ([`TxMbuf::append`]). The sum in
    /// the TCP checksum field lacks the length. [`TxQueue::prepare`](crate::TxQueue::prepare) must
    /// follow.
    ///
    /// # Panics
    /// While a retained reference exists, or if the length does not fit 16 bits.
    pub fn request_segmentation(&mut self, payload_len: usize) {
        let payload_len = u16::try_from(payload_len).expect("a payload fits 16 bits");
        let raw = self.exclusive();
        TX_OFFLOAD.set(raw, TX_OFFLOAD.get(raw) | u64::from(payload_len) << 24);
        OL_FLAGS.set(raw, OL_FLAGS.get(raw) | sys::RTE_MBUF_F_TX_TCP_SEG);
    }

    /// Continues the frame with others, each of one segment, in order.
    ///
    /// References retained before, to this mbuf or to the others, remain valid: they refer to the
    /// bytes of their own segment.
    ///
    /// # Panics
    /// If one of the frames has several segments, or the frame becomes longer than 4 GiB, or has
    /// more than 65,535 segments.
    pub fn append(&mut self, frames: impl Iterator<Item = Self>) {
        assert_eq!(NB_SEGS.get(self.0), 1, "a frame of one segment");
        let mut last = self.0;
        let (mut count, mut len) = (1_u16, PKT_LEN.get(self.0));
        for frame in frames {
            let next = frame.0;
            assert_eq!(NB_SEGS.get(next), 1, "a frame of one segment");
            count = count.checked_add(1).expect("a chain of at most 65,535 segments");
            len = len.checked_add(PKT_LEN.get(next)).expect("a frame below 4 GiB");
            core::mem::forget(frame);
            // The last segment is live, as the chain owns a reference to it; references retained in
            // addition never access this field. The chain takes over the reference of the frame.
            NEXT.set(last, next.as_ptr());
            last = next;
            // These fields describe the whole chain, and only its owner reads them. Written for
            // each segment, so that a panic leaves a complete chain.
            NB_SEGS.set(self.0, count);
            PKT_LEN.set(self.0, len);
        }
    }

    /// Prefetches the first `len` bytes of the buffer for writing. If another core read them last,
    /// each cache line has to be fetched from there; requested early and together, these misses
    /// overlap.
    #[inline]
    pub fn prefetch_write(&self, len: usize) {
        let offset = usize::from(DATA_OFF.get(self.0));
        let data = BUF_ADDR.get(self.0).wrapping_add(offset);
        prefetch_write(data, len);
    }

    /// Takes a reference that outlives sending. The frame is immutable while it exists.
    ///
    /// The first reference costs a plain store, a further one an atomic addition.
    ///
    /// # Panics
    /// If 32,768 references exist.
    #[inline]
    pub fn retain(&mut self) -> RetainedMbuf {
        let count = refcount(self.0);
        if count.load(Ordering::Acquire) == 1 {
            // The only reference: no other thread can change the count between load and store.
            count.store(2, Ordering::Relaxed);
        } else {
            increment_refcnt(self.0);
        }
        RetainedMbuf(self.0)
    }

    /// Converts the frame into one that was received, as over `net_ring`: sent to this port itself.
    /// Its checksums count as correct: it stays in memory.
    ///
    /// # Panics
    /// If the frame is to be cut into segments.
    #[must_use]
    pub fn into_received(self) -> Mbuf {
        let raw = self.0;
        let flags = OL_FLAGS.get(raw);
        assert_eq!(flags & sys::RTE_MBUF_F_TX_TCP_SEG, 0, "one segment");
        // References retained in addition never access these fields.
        OL_FLAGS.set(raw, flags | RxChecksum::GOOD_FLAGS);
        PORT.set(raw, RETURNED_PORT);
        HASH_RSS.set(raw, 0);
        core::mem::forget(self);
        // SAFETY: the frame was complete when it was passed here; this value's reference is given
        // up.
        unsafe { Mbuf::from_raw(raw) }
    }

    /// Returns the frame, up to its current length.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        segment(self.0)
    }

    /// Returns the same bytes for modification.
    ///
    /// # Panics
    /// While a retained reference exists.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.bytes().len();
        &mut self.buf_mut()[..len]
    }
}

impl Drop for TxMbuf {
    /// Releases a reference to each segment.
    fn drop(&mut self) {
        free(self.0);
    }
}

/// A second reference to a frame that was sent.
#[derive(Debug)]
#[repr(transparent)]
pub struct RetainedMbuf(Raw);

// SAFETY: as for `TxMbuf`; what it refers to is immutable.
unsafe impl Send for RetainedMbuf {}

impl RetainedMbuf {
    /// Returns the frame's bytes as they were sent.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        segment(self.0)
    }

    /// True if this is the only reference: the port has sent the frame and freed it.
    #[must_use]
    pub fn is_last(&self) -> bool {
        refcount(self.0).load(Ordering::Acquire) == 1
    }
}

impl Clone for RetainedMbuf {
    /// # Panics
    /// If 32,768 references exist.
    fn clone(&self) -> Self {
        increment_refcnt(self.0);
        Self(self.0)
    }
}

impl Drop for RetainedMbuf {
    /// Releases a reference to this segment alone: the others of its chain, if it is part of one,
    /// have retained references of their own.
    fn drop(&mut self) {
        if !release_shared(self.0) {
            // SAFETY: releases one reference that this value owned and never uses again.
            unsafe { sys::fw_mbuf_free_segment(self.0.as_ptr()) };
        }
    }
}

/// Result of the port's checksum verification of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxChecksum {
    /// The port did not verify the transport checksum.
    Unknown,
    /// The transport checksum is correct; the IPv4 header checksum was not verified.
    TransportGood,
    /// The IPv4 header checksum and the transport checksum are correct.
    Good,
    /// At least one is incorrect.
    Bad,
}

impl RxChecksum {
    /// Flags of a received mbuf with correct checksums.
    const GOOD_FLAGS: u64 =
        sys::RTE_MBUF_F_RX_IP_CKSUM_GOOD as u64 | sys::RTE_MBUF_F_RX_L4_CKSUM_GOOD as u64;

    /// Reads the flags of a received mbuf.
    ///
    /// Both flags of a checksum together (`RTE_MBUF_F_RX_L4_CKSUM_NONE`) mean that the bytes are
    /// intact, but that its field was never filled in, as in frames that a virtual machine sends
    /// to another one: correct.
    #[inline]
    pub(crate) const fn from_flags(flags: u64) -> Self {
        const IP_BAD: u64 = sys::RTE_MBUF_F_RX_IP_CKSUM_BAD as u64;
        const IP_GOOD: u64 = sys::RTE_MBUF_F_RX_IP_CKSUM_GOOD as u64;
        const L4_BAD: u64 = sys::RTE_MBUF_F_RX_L4_CKSUM_BAD as u64;
        const L4_GOOD: u64 = sys::RTE_MBUF_F_RX_L4_CKSUM_GOOD as u64;
        if flags & (IP_BAD | IP_GOOD) == IP_BAD || flags & (L4_BAD | L4_GOOD) == L4_BAD {
            return Self::Bad;
        }
        match (flags & IP_GOOD != 0, flags & L4_GOOD != 0) {
            (_, false) => Self::Unknown,
            (false, true) => Self::TransportGood,
            (true, true) => Self::Good,
        }
    }
}

/// Number of no port, in place of the one that has received the frame: it never left this host.
/// New mbufs have another one (`RTE_MBUF_PORT_INVALID`).
const RETURNED_PORT: u16 = u16::MAX - 1;

/// A received frame: one or more segments, read only.
#[derive(Debug)]
#[repr(transparent)]
pub struct Mbuf(Raw);

// SAFETY: as for `TxMbuf`; what it refers to is immutable.
unsafe impl Send for Mbuf {}

impl Mbuf {
    /// Takes over a reference.
    ///
    /// # Safety
    /// `raw` is a live mbuf whose frame is not written any more, and the caller gives up one
    /// reference to it.
    pub(crate) unsafe fn from_raw(raw: Raw) -> Self {
        Self(raw)
    }

    /// Returns the first segment.
    #[inline]
    #[must_use]
    pub fn head(&self) -> &[u8] {
        segment(self.0)
    }

    /// Returns the frame's length in bytes, over all segments.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        PKT_LEN.get(self.0) as usize
    }

    /// True if the frame has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the segments in order; at most `nb_segs` of them.
    pub fn segments(&self) -> impl Iterator<Item = &[u8]> {
        let count = NB_SEGS.get(self.0);
        let mut next = Some(self.0);
        (0..count).map_while(move |_| {
            let raw = next?;
            // Segments of a chain live as long as its first one.
            next = NonNull::new(NEXT.get(raw));
            Some(segment(raw))
        })
    }

    /// Copies bytes `offset..offset + out.len()` to `out`.
    ///
    /// # Panics
    /// If the range ends beyond the frame.
    #[inline]
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) {
        let head = self.head();
        if let Some(source) = offset.checked_add(out.len()).and_then(|end| head.get(offset..end)) {
            out.copy_from_slice(source);
            return;
        }
        self.copy_out_of_chain(offset, out);
    }

    #[cold]
    fn copy_out_of_chain(&self, offset: usize, out: &mut [u8]) {
        let mut skip = offset;
        let mut rest = out;
        for piece in self.segments() {
            let Some(piece) = piece.get(skip..).filter(|piece| !piece.is_empty()) else {
                skip -= piece.len();
                continue;
            };
            skip = 0;
            let count = piece.len().min(rest.len());
            let (now, later) = rest.split_at_mut(count);
            now.copy_from_slice(&piece[..count]);
            rest = later;
        }
        assert!(rest.is_empty(), "the range lies in the frame");
    }

    /// Returns the RSS hash, if the port has delivered it.
    #[must_use]
    pub fn rss_hash(&self) -> Option<u32> {
        let is_set = OL_FLAGS.get(self.0) & u64::from(sys::RTE_MBUF_F_RX_RSS_HASH) != 0;
        is_set.then(|| HASH_RSS.get(self.0))
    }

    /// True if it comes from [`TxMbuf::into_received`], and not from a port.
    #[must_use]
    pub fn is_returned(&self) -> bool {
        PORT.get(self.0) == RETURNED_PORT
    }

    /// Counts one more receiver of a frame that [`Mbuf::is_returned`]; returns their number. The
    /// count is in the place of the RSS hash, which such a frame does not have.
    pub fn count_receiver(&mut self) -> u32 {
        debug_assert!(self.is_returned() && self.rss_hash().is_none(), "no port has received it");
        let count = HASH_RSS.get(self.0).saturating_add(1);
        HASH_RSS.set(self.0, count);
        count
    }

    /// Returns the result of the port's checksum verification.
    #[inline]
    #[must_use]
    pub fn checksum(&self) -> RxChecksum {
        RxChecksum::from_flags(OL_FLAGS.get(self.0))
    }
}

impl TryFrom<Mbuf> for TxMbuf {
    type Error = Mbuf;

    /// Converts a received frame into one to be sent, without a copy. Returns it as the error if
    /// it has more than one segment or its bytes are shared.
    fn try_from(frame: Mbuf) -> Result<Self, Mbuf> {
        const NOT_DIRECT: u64 = sys::RTE_MBUF_F_INDIRECT | sys::RTE_MBUF_F_EXTERNAL;
        let raw = frame.0;
        let is_sole = refcount(raw).load(Ordering::Acquire) == 1;
        let is_whole = NB_SEGS.get(raw) == 1 && OL_FLAGS.get(raw) & NOT_DIRECT == 0;
        if !is_sole || !is_whole {
            return Err(frame);
        }
        core::mem::forget(frame);
        let mut frame = Self(raw);
        let raw = frame.exclusive();
        // The receive flags and lengths would be taken as transmit offload requests.
        OL_FLAGS.set(raw, 0);
        TX_OFFLOAD.set(raw, 0);
        Ok(frame)
    }
}

impl Drop for Mbuf {
    fn drop(&mut self) {
        free(self.0);
    }
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod layout_tests;

#[cfg(test)]
#[path = "chain_tests.rs"]
mod chain_tests;
