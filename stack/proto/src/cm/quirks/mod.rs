//! Workarounds for peers that deviate from the specifications, each in a file of its own with what
//! the peer does and how the workaround stays within the RFCs.

mod siw_reject;
mod siw_wakeup;
