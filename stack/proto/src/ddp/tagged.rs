//! Placement of tagged segments at the Data Sink (RFC 5041 sections 5.1.1, 5.2 and 7.1).

use crate::ddp::memory::{Access, Memory, MemoryFault};
use crate::ddp::regions::{AccessScope, Stag};

/// Validates the STag and the range that a tagged segment names, and places its payload: one copy,
/// to where the upper layer wants it. `scope` is the stream's, `needed` the right that the message
/// needs at its sink.
///
/// STag and TO of a segment without payload are not checked (RFC 5041 section 5.2).
///
/// # Errors
/// The first [`MemoryFault`] that applies; nothing is placed.
#[inline]
pub fn place(
    memory: &impl Memory,
    scope: AccessScope,
    needed: Access,
    (stag, to): (Stag, u64),
    payload: &[u8],
) -> Result<(), MemoryFault> {
    // req: DDP-104, DDP-106, DDP-160, DDP-089, DDP-105, RDMAP-142
    if !payload.is_empty() {
        let range = memory.regions().resolve(stag, scope, needed, to, payload.len())?;
        memory.place(range, payload);
    }
    Ok(())
}
