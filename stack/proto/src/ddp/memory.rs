//! The seam towards registered memory: who may touch what, the two copies, and the one operation
//! in place.

use crate::ddp::atomic::AtomicOp;
use crate::ddp::regions::RegionTable;

/// What a region may be used for. Combine with `|`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access(u8);

impl Access {
    /// The local stack may read it: source of Sends, Writes and inline-free gathers.
    pub const LOCAL_READ: Self = Self(1);
    /// The local stack may write it: receive buffers and sinks of RDMA Reads.
    pub const LOCAL_WRITE: Self = Self(2);
    /// The peer may read it with RDMA Read.
    pub const REMOTE_READ: Self = Self(4);
    /// The peer may write it with RDMA Write.
    pub const REMOTE_WRITE: Self = Self(8);
    /// The peer may change it with atomic operations.
    pub const REMOTE_ATOMIC: Self = Self(16);
    /// Windows may be bound to it.
    pub const WINDOW_BIND: Self = Self(32);
    /// Everything.
    pub const ALL: Self = Self(63);

    /// By any of these the peer changes memory.
    pub(super) const REMOTE_MODIFY: Self = Self(Self::REMOTE_WRITE.0 | Self::REMOTE_ATOMIC.0);
    /// What a window may grant.
    const REMOTE: Self = Self(Self::REMOTE_READ.0 | Self::REMOTE_MODIFY.0);

    /// True if every right of `needed` is there.
    #[must_use]
    pub const fn allows(self, needed: Self) -> bool {
        self.0 & needed.0 == needed.0
    }

    /// True if any right of `some` is there.
    pub(super) const fn intersects(self, some: Self) -> bool {
        self.0 & some.0 != 0
    }

    /// The rights of peers alone.
    pub(super) const fn remote(self) -> Self {
        Self(self.0 & Self::REMOTE.0)
    }

    /// The rights as bits, 0..=63.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Rights from bits; unknown bits are dropped.
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

/// Why an access to registered memory was refused, in the order of the checks
/// (RFC 5041 section 7.1, arranged so that each cause can occur).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryFault {
    /// No region has this STag, or it was invalidated.
    #[error("the STag names no region, or one that was invalidated")]
    InvalidStag,
    /// The region belongs to another protection domain, or is for another stream alone.
    #[error("the region belongs to another protection domain or to another stream")]
    NotAssociated,
    /// The region does not grant what was asked.
    #[error("the region does not grant this access")]
    AccessRights,
    /// Offset plus length wraps 64 bits.
    #[error("offset and length wrap 64 bits")]
    Wrap,
    /// The range starts or ends outside the region.
    #[error("the range leaves the region")]
    Bounds,
}

/// A range of registered memory that passed every check. Only [`RegionTable::resolve`] makes one,
/// and it is used within the pass that resolved it: never stored.
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

    /// What the region was registered with: an address or an index, as the implementation of
    /// [`Memory`] chose.
    #[must_use]
    pub const fn backing(&self) -> u64 {
        self.backing
    }

    /// Bytes from the start of the region.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes in the range.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True if the range has no byte.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Registered memory: a table of regions, and the only ways bytes go in and out.
///
/// Production implements it over raw addresses, tests over a byte arena.
pub trait Memory {
    /// The regions and their STags.
    fn regions(&self) -> &RegionTable;

    /// Places `bytes` at `place`. The last byte becomes visible last, so that a program which
    /// spins on it sees all others.
    ///
    /// # Panics
    /// If the lengths differ.
    fn place(&self, range: MemoryRange, bytes: &[u8]);

    /// Reads `place` once into `out`; the application may be writing there at this moment.
    ///
    /// # Panics
    /// If the lengths differ.
    fn fetch(&self, range: MemoryRange, out: &mut [u8]);

    /// Carries `op` out on the word of [`ATOMIC_LEN`](crate::ddp::atomic::ATOMIC_LEN) bytes at
    /// `place`, in the byte order of this machine, and returns what it was before. No other access
    /// to the word comes in between: neither another call, nor an atomic instruction of a local
    /// processor (see [`execute`](crate::ddp::atomic::execute)).
    ///
    /// `None`, and nothing has changed, if the memory behind `place` does not begin at a multiple
    /// of eight.
    ///
    /// # Panics
    /// If `place` is not eight bytes.
    fn atomic(&self, range: MemoryRange, op: AtomicOp) -> Option<u64>;
}
