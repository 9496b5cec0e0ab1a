//! Benchmarks of the stack, of two kinds.
//!
//! *Counts* of instructions and of cache lines come from valgrind ([`instructions`]) over two ends
//! on one thread in virtual time, with heap frames and a zero-copy link ([`loopback`]): engines
//! (`engine_pair`) or contexts of the runtime (`verbs_pair`). They are reproducible, and show the
//! cost of a change. *Wall time* comes from `iwperf` beside the frozen bound, the copies and CRCs
//! alone, measured on the same cores (`bound`, `paired`, `baseline`), from our TCP and the kernel's
//! over the same emulated links (`tcp_vs_kernel`), from `iwperf` beside other stacks (`peers`) and
//! beside DPDK's own generator (`testpmd`), over vhost-user beside `memif` (`vhost`), and from two
//! ends over `ring` (`ring_end`): the time of each by itself (`one_end`), latency beside other
//! traffic (`fairness`), and what many connections cost (`connections`).
//!
//! Programs: `core-cost` (the two engines), `verbs-cost` (the two contexts), `instructions` (runs
//! both under valgrind), `bound` (`iwperf` as a share of the bound, written to `BOUND.md`),
//! `baseline` (all of these, written to `BASELINE.md`); `crc` (CRC32C by message length);
//! `tcp-vs-kernel` (both TCPs, written to `TCP-VS-KERNEL.md`) and `tcp-end` (one end of a
//! connection for it); `bench-peers` (other stacks, written to `RESULTS.md`) and `smoltcp-loop`
//! (smoltcp over `ring` for it); `testpmd`, `vhost`, `one-end`, `fairness` and `connections`,
//! written to `TESTPMD.md`, `VHOST.md`, `ONE-END.md`, `FAIRNESS.md` and `CONNECTIONS.md`. What they
//! have in common is in `program`.

#[cfg(feature = "device")]
pub mod baseline;
#[cfg(feature = "device")]
pub mod bound;
pub mod callgrind;
#[cfg(feature = "device")]
pub mod connections;
#[cfg(feature = "core")]
pub mod engine_pair;
#[cfg(feature = "device")]
pub mod fairness;
pub mod instructions;
pub mod loopback;
#[cfg(feature = "device")]
pub mod median;
pub mod memory_marks;
#[cfg(feature = "device")]
pub mod one_end;
#[cfg(feature = "device")]
pub mod paired;
#[cfg(feature = "device")]
pub mod peers;
#[cfg(feature = "device")]
pub mod program;
#[cfg(feature = "device")]
pub mod ring_end;
pub mod state_lines;
#[cfg(feature = "device")]
pub mod tcp_vs_kernel;
#[cfg(feature = "device")]
pub mod testpmd;
#[cfg(feature = "runtime")]
pub mod verbs_pair;
#[cfg(feature = "device")]
pub mod vhost;
pub mod workload;
