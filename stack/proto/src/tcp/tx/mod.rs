//! The transmit side: selection of the next segment, and construction of its frame.

pub(super) mod output;
pub(super) mod pacing;
pub(super) mod send;
pub(super) mod train;
pub(super) mod transmit_plan;
