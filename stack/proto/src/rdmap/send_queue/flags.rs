//! Flags of send requests.

/// Properties of a send request (verbs: `ibv_send_flags`). Fence, signaled, solicited and inline
/// have the bits that verbs gives them.
#[doc(alias = "ibv_send_flags")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendFlags(u8);

impl SendFlags {
    /// None.
    pub const NONE: Self = Self(0);
    /// Starts when all earlier Reads and atomic operations have completed (`IBV_SEND_FENCE`).
    #[doc(alias = "IBV_SEND_FENCE")]
    pub const FENCE: Self = Self(1);
    /// Success is reported too; errors always are (`IBV_SEND_SIGNALED`).
    #[doc(alias = "IBV_SEND_SIGNALED")]
    pub const SIGNALED: Self = Self(2);
    /// With Solicited Event (`IBV_SEND_SOLICITED`).
    #[doc(alias = "IBV_SEND_SOLICITED")]
    pub const SOLICITED: Self = Self(4);
    /// The payload is inline (`IBV_SEND_INLINE`).
    pub(in crate::rdmap) const INLINE: Self = Self(8);
    /// Send with Invalidate: [`SqProducer::set_invalidate`](super::SqProducer::set_invalidate).
    pub(in crate::rdmap) const INVALIDATE: Self = Self(16);

    /// True if it has the flag.
    #[inline]
    #[must_use]
    pub const fn contains(self, flag: Self) -> bool {
        self.0 & flag.0 != 0
    }

    #[inline]
    pub(super) const fn bits(self) -> u8 {
        self.0
    }

    #[inline]
    pub(super) const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Returns the flag if `is_set`, otherwise none.
    #[inline]
    #[must_use]
    pub const fn when(self, is_set: bool) -> Self {
        if is_set { self } else { Self(0) }
    }

    /// Returns the flags of both.
    #[inline]
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
