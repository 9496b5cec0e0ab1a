//! Counts that the threads of a soak share.

use std::sync::atomic::AtomicU64;

/// Work of all workers.
#[derive(Debug, Default)]
pub(crate) struct Tallies {
    /// Connections made.
    pub(crate) made: AtomicU64,
    /// Connections ended gracefully.
    pub(crate) ended: AtomicU64,
    /// Connections broken.
    pub(crate) broken: AtomicU64,
    /// Attempts abandoned or rejected.
    pub(crate) refused: AtomicU64,
    /// Bytes compared with those sent.
    pub(crate) verified: AtomicU64,
    /// Contexts that disappeared.
    pub(crate) peers_lost: AtomicU64,
}
