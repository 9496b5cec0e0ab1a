//! Interface to registered memory: access rights, copies in both directions, and atomic operations.

use crate::ddp::atomic::AtomicOp;
use crate::ddp::regions::RegionTable;

/// Access rights of a region. Combine with `|`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access(u8);

impl Access {
    /// The local stack may read: payload of Sends and RDMA Writes that is not inline.
    pub const LOCAL_READ: Self = Self(1);
    /// The local stack may write: receive buffers and sinks of RDMA Reads.
    pub const LOCAL_WRITE: Self = Self(2);
    /// The peer may read with RDMA Read.
    pub const REMOTE_READ: Self = Self(4);
    /// The peer may write with RDMA Write.
    pub const REMOTE_WRITE: Self = Self(8);
    /// The peer may modify with atomic operations.
    pub const REMOTE_ATOMIC: Self = Self(16);
    /// Memory windows may be bound to the region.
    pub const WINDOW_BIND: Self = Self(32);
    /// All rights.
    pub const ALL: Self = Self(63);

    /// Rights with which the peer modifies memory.
    pub(super) const REMOTE_MODIFY: Self = Self(Self::REMOTE_WRITE.0 | Self::REMOTE_ATOMIC.0);
    /// Rights that a memory window may grant.
    const REMOTE: Self = Self(Self::REMOTE_READ.0 | Self::REMOTE_MODIFY.0);

    /// True if all rights of `needed` are included.
    #[must_use]
    pub const fn allows(self, needed: Self) -> bool {
        self.0 & needed.0 == needed.0
    }

    /// True if any right of `some` is included.
    pub(super) const fn intersects(self, some: Self) -> bool {
        self.0 & some.0 != 0
    }

    /// Returns only the remote rights.
    pub(super) const fn remote(self) -> Self {
        Self(self.0 & Self::REMOTE.0)
    }

    /// Returns the rights as bits, 0..=63.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Creates rights from bits; unknown bits are ignored.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & Self::ALL.0)
    }
}

impl core::ops::BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Reason why an access to registered memory was refused, in the order of the checks (RFC 5041
/// section 7.1, arranged so that each cause can occur). The names of the error codes are those of
/// RFC 5041 section 7.2 and RFC 5040 section 4.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryFault {
    /// "Invalid STag": no region or window has this STag, or it was invalidated.
    #[error("the STag names no region, or one that was invalidated")]
    InvalidStag,
    /// "STag not associated with DDP Stream": the STag belongs to another protection domain, or is
    /// bound to another stream.
    #[error("the region belongs to another protection domain or to another stream")]
    NotAssociated,
    /// "Access rights violation": the STag does not grant this access. A code of RDMAP only.
    #[error("the region does not grant this access")]
    AccessRights,
    /// "TO wrap": offset plus length wraps 64 bits.
    #[error("offset and length wrap 64 bits")]
    Wrap,
    /// "Base or bounds violation": the range starts or ends outside the region.
    #[error("the range leaves the region")]
    Bounds,
}

/// Range of registered memory that passed every check. Only [`RegionTable::resolve`] creates one.
/// It is used within the pass that resolved it and never stored.
#[derive(Debug)]
pub struct MemoryRange {
    backing: u64,
    offset: u64,
    len: usize,
}

impl MemoryRange {
    pub(super) const fn new(backing: u64, offset: u64, len: usize) -> Self {
        Self { backing, offset, len }
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

/// Registered memory: the table of regions, and the only operations that copy bytes in and out.
///
/// Production implements it over raw addresses, tests over a byte arena.
pub trait Memory {
    /// Returns the regions and their STags.
    fn regions(&self) -> &RegionTable;

    /// Places `bytes` in `range`. The last byte becomes visible last, so that a program which polls
    /// it sees all others.
    ///
    /// # Panics
    /// If the lengths differ.
    fn place(&self, range: MemoryRange, bytes: &[u8]);

    /// Reads `range` once into `out`; the application may be writing there at the same time.
    ///
    /// # Panics
    /// If the lengths differ.
    fn fetch(&self, range: MemoryRange, out: &mut [u8]);

    /// Executes `op` on the word of [`ATOMIC_LEN`](crate::ddp::atomic::ATOMIC_LEN) bytes in
    /// `range`, in the byte order of this machine, and returns the original value. It is atomic
    /// with respect to every other access to the word, by another call or by an atomic instruction
    /// of a local processor (see [`execute`](crate::ddp::atomic::execute)).
    ///
    /// `None`, with nothing changed, if the memory of `range` does not begin at a multiple of
    /// eight.
    ///
    /// # Panics
    /// If `range` is not eight bytes.
    fn atomic(&self, range: MemoryRange, op: AtomicOp) -> Option<u64>;
}
