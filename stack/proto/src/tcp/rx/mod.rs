//! The receive side: segments that arrive, their acknowledgments and their data.

pub(super) mod ack;
pub(super) mod assembler;
pub(super) mod autotune;
pub(super) mod deliver;
pub(super) mod input;
pub(super) mod ooo_queue;
pub(super) mod window;
