//! Interface to registered memory: checked ranges, copies in both directions, atomic operations,
//! placement of tagged segments.

use crate::ddp::atomic::AtomicOp;
use crate::ddp::regions::{AccessScope, RegionTable, Stag};

pub use crate::ddp::access::Access;

/// Registered memory: the table of regions, and the only operations that copy bytes in and out.
///
/// Production implements it over raw addresses, tests over a byte arena.
pub trait Memory {
    /// Returns the regions and their STags.
    fn regions(&self) -> &RegionTable;

    /// Places `bytes` in `range`. The last byte becomes visible last, so that a program which polls
    /// it sees all others.
    ///
    /// # Errors
    /// [`PageFault`]; a part may have been placed.
    ///
    /// # Panics
    /// If the lengths differ.
    fn place(&self, range: MemoryRange, bytes: &[u8]) -> Result<(), PageFault>;

    /// Reads `range` once into `out`; the application may be writing there at the same time.
    ///
    /// # Errors
    /// [`PageFault`]; a part may have been read.
    ///
    /// # Panics
    /// If the lengths differ.
    fn fetch(&self, range: MemoryRange, out: &mut [u8]) -> Result<(), PageFault>;

    /// Executes `op` on the word of [`ATOMIC_LEN`](crate::ddp::atomic::ATOMIC_LEN) bytes in
    /// `range`, in the byte order of this machine, and returns the original value. It is atomic
    /// with respect to every other access to the word, by another call or by an atomic instruction
    /// of a local processor.
    ///
    /// `None`, with nothing changed, if the memory of `range` does not begin at a multiple of
    /// eight.
    ///
    /// # Errors
    /// [`PageFault`]; nothing was changed.
    ///
    /// # Panics
    /// If `range` is not eight bytes.
    fn atomic(&self, range: MemoryRange, op: AtomicOp) -> Result<Option<u64>, PageFault>;
}

/// The memory of a range cannot be accessed, although it is registered: its owner has unmapped or
/// protected it, truncated the file behind it, or the system has no page for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory of the region is not mapped as it was registered")]
pub struct PageFault;

/// Validates the STag and the range that a tagged segment names, and places its payload (RFC 5041
/// sections 5.1.1 and 7.1): one copy, to where the upper layer wants it. `scope` is the stream's,
/// `needed` the right that the message needs at its sink.
///
/// STag and TO of a segment without payload are not checked (RFC 5041 section 5.2).
///
/// # Errors
/// The first [`MemoryFault`] that applies; nothing is placed, but a part before a
/// [`MemoryFault::Page`].
#[inline]
pub fn place_tagged(
    memory: &impl Memory,
    scope: AccessScope,
    needed: Access,
    (stag, to): (Stag, u64),
    payload: &[u8],
) -> Result<(), MemoryFault> {
    // req: DDP-104, DDP-106, DDP-160, DDP-089, DDP-105, RDMAP-142
    if !payload.is_empty() {
        let range = memory.regions().resolve(stag, scope, needed, to, payload.len())?;
        memory.place(range, payload)?;
    }
    Ok(())
}

/// Reason why an access to registered memory was refused, in the order of the checks (RFC 5041
/// section 7.1, arranged so that each cause can occur). The names of the error codes are those of
/// RFC 5041 section 7.2 and RFC 5040 section 4.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryFault {
    /// "Invalid STag": no region or window has this STag, or it was invalidated.
    #[error("the STag is not allocated, or was invalidated")]
    InvalidStag,
    /// "STag not associated with DDP Stream": the STag belongs to another protection domain, or is
    /// bound to another stream.
    #[error("the region belongs to another protection domain or to another stream")]
    NotAssociated,
    /// "Access rights violation": the STag does not grant this access. A code of RDMAP only.
    #[error("the region does not grant this access")]
    AccessRights,
    /// "TO wrap": offset plus length wraps 64 bits.
    #[error("offset and length overflow 64 bits")]
    Wrap,
    /// "Base or bounds violation": the range starts or ends outside the region.
    #[error("the range is outside the region")]
    Bounds,
    /// The range passed every check, and its memory cannot be accessed. No fault of the peer.
    #[error(transparent)]
    Page(#[from] PageFault),
}

/// Range of registered memory that passed every check. Only
/// [`RegionTable::resolve`](crate::ddp::regions::RegionTable::resolve) creates one. It is used
/// within the pass that resolved it and never stored.
#[derive(Debug)]
pub struct MemoryRange {
    backing: u64,
    offset: u64,
    len: usize,
}

impl MemoryRange {
    /// Range without bytes.
    pub(crate) const EMPTY: Self = Self::new(0, 0, 0);

    pub(super) const fn new(backing: u64, offset: u64, len: usize) -> Self {
        Self { backing, offset, len }
    }

    /// Splits off the first `len` bytes.
    ///
    /// # Panics
    /// If the range is shorter.
    #[inline]
    #[must_use]
    pub const fn take_front(&mut self, len: usize) -> Self {
        assert!(len <= self.len, "the range is shorter");
        let front = Self { backing: self.backing, offset: self.offset, len };
        self.offset += len as u64;
        self.len -= len;
        front
    }

    /// Returns the `backing` of the registration: an address or an index, as the implementation of
    /// [`Memory`] chose.
    #[must_use]
    pub const fn backing(&self) -> u64 {
        self.backing
    }

    /// Returns the offset in bytes from the start of the region.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True if the range is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}
