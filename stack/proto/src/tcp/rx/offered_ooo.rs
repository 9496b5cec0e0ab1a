//! Out-of-order segment whose disposition is pending.

use crate::wire::seq::Seq;
use crate::wire::tcp::SackBlock;

/// Out-of-order segment offered to the upper layer, its disposition pending.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct OfferedOoo {
    /// Its new bytes.
    pub(super) block: SackBlock,
    /// Sequence number of the peer's FIN, if the segment has it. Used once the bytes are accepted.
    pub(super) fin: Option<Seq>,
}

impl OfferedOoo {
    pub(super) const fn len(&self) -> usize {
        (self.block.1.0.wrapping_sub(self.block.0.0)) as usize
    }
}
