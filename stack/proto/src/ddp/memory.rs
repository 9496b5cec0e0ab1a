//! Interface to registered memory: access rights, copies in both directions, and atomic operations.

use crate::ddp::atomic::AtomicOp;
use crate::ddp::regions::RegionTable;

pub use crate::ddp::access::Access;
pub use crate::ddp::memory_range::{MemoryFault, MemoryRange};

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
