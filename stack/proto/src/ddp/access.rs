//! Access to registered memory: the rights that a region or window grants, and the scope of an
//! access (protection domain and stream).

/// Access rights of a region. Combine with `|`.
#[doc(alias = "ibv_access_flags")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access(u8);

impl Access {
    /// The local stack may read: payload of Sends and RDMA Writes that is not inline.
    pub const LOCAL_READ: Self = Self(1);
    /// The local stack may write: receive buffers and sinks of RDMA Reads.
    #[doc(alias = "IBV_ACCESS_LOCAL_WRITE")]
    pub const LOCAL_WRITE: Self = Self(2);
    /// The peer may read with RDMA Read.
    #[doc(alias = "IBV_ACCESS_REMOTE_READ")]
    pub const REMOTE_READ: Self = Self(4);
    /// The peer may write with RDMA Write.
    #[doc(alias = "IBV_ACCESS_REMOTE_WRITE")]
    pub const REMOTE_WRITE: Self = Self(8);
    /// The peer may modify with atomic operations.
    #[doc(alias = "IBV_ACCESS_REMOTE_ATOMIC")]
    pub const REMOTE_ATOMIC: Self = Self(16);
    /// Memory windows may be bound to the region.
    #[doc(alias = "IBV_ACCESS_MW_BIND")]
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

/// Identifies a stream to the table: one queue pair of one of the engines that share it. Allocated
/// by [`RegionTable::new_stream_id`](crate::ddp::regions::RegionTable::new_stream_id).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamId(pub u64);

impl StreamId {
    /// No stream: its accesses match only STags that are valid for the whole protection domain.
    pub const NONE: Self = Self(u64::MAX);
}

/// Scope of an access: a protection domain and a stream in it. Both are local values that no peer
/// can set.
// req: DDP-189
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessScope {
    /// Protection domain.
    pub pd: u32,
    /// Stream.
    pub stream: StreamId,
}

/// The protection domain without a stream.
impl From<u32> for AccessScope {
    fn from(pd: u32) -> Self {
        Self { pd, stream: StreamId::NONE }
    }
}
