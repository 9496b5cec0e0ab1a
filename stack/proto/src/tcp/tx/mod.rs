//! The transmit side: which segment is next, and its frame.

pub(super) mod output;
pub(super) mod pacing;
pub(super) mod plan;
pub(super) mod schedule;
pub(super) mod send;
