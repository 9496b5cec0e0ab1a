//! Workloads that the program `instructions` counts under valgrind: instructions of the stack, and
//! cache lines that it touches.
//!
//! Two ends run on one thread in virtual time, with heap frames and a zero-copy link
//! ([`loopback`]): engines (`engine_pair`, the program `core-cost`) or contexts of the runtime
//! (`verbs_pair`, the program `verbs-cost`). The counts are reproducible and show the cost of a
//! change. The program `bench` measures wall time instead.

#[cfg(feature = "core")]
pub mod engine_pair;
pub mod loopback;
pub mod memory_marks;
#[cfg(feature = "runtime")]
pub mod verbs_pair;
pub mod workload;
