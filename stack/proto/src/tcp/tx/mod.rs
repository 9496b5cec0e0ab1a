//! The transmit side: selection of the next segment, and construction of its frame.

pub(super) mod output;
pub(super) mod pacing;
pub(super) mod schedule;
pub(super) mod send;
pub(super) mod train;
