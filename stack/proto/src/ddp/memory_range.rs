//! Range of registered memory that may be accessed, or the fault.

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
    /// [`Memory`](crate::ddp::memory::Memory) chose.
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
