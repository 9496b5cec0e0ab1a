//! What the threads of a soak count together.

use std::sync::atomic::AtomicU64;

/// What the workers have done.
#[derive(Debug, Default)]
pub struct Tallies {
    /// Connections made.
    pub made: AtomicU64,
    /// Connections ended gracefully.
    pub ended: AtomicU64,
    /// Connections broken.
    pub broken: AtomicU64,
    /// Attempts abandoned or rejected.
    pub refused: AtomicU64,
    /// Bytes compared with those sent.
    pub verified: AtomicU64,
    /// Contexts that disappeared.
    pub peers_lost: AtomicU64,
}
