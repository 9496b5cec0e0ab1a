//! The stack beside DPDK's own traffic generator, `dpdk-testpmd`, over the same device: what the
//! device and its driver leave to whoever uses it.

pub mod memif;
pub mod program;
pub mod report;
pub mod tap;
