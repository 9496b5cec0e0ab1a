//! Workloads that the program `instructions` counts under valgrind: instructions of the stack, and
//! cache lines that it touches.
//!
//! Two ends run on one thread in virtual time, with heap frames and a zero-copy link
//! ([`loopback`]): engines (`engine_pair`) or contexts of the runtime (`verbs_pair`). The counts
//! are reproducible and show the cost of a change.
//!
//! Programs: `core-cost` (the two engines) and `verbs-cost` (the two contexts), which
//! `instructions` runs under valgrind. Wall time is measured by another program: `bench` runs each
//! case next to its bound or a peer.

#[cfg(feature = "core")]
pub mod engine_pair;
pub mod loopback;
pub mod memory_marks;
#[cfg(feature = "runtime")]
pub mod verbs_pair;
pub mod workload;
