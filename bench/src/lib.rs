//! What the stack costs, measured in two ways that are never mixed.
//!
//! *Instructions* come from callgrind over two engines on one thread in virtual time, with heap
//! frames on a wire that copies nothing ([`loopback`], [`engine_pair`], [`callgrind`]): steady from
//! run to run, and they show what a change costs. *Wall time* comes from `iwperf` beside the bare
//! copy and CRC of the same bytes on the same cores ([`copy_crc_bound`], [`baseline`]), and from
//! our TCP and the kernel's over the same bad wires ([`tcp_vs_kernel`]).
//!
//! Programs: `core-cost` (the two engines), `instructions` (runs it under callgrind), `bare` (the
//! bound), `baseline` (all of it, written to `BASELINE.md`); `tcp-vs-kernel` (both TCPs, written
//! to `TCP-VS-KERNEL.md`) and `tcp-end` (one end of a connection for it).

pub mod baseline;
pub mod callgrind;
pub mod copy_crc_bound;
pub mod engine_pair;
pub mod loopback;
pub mod median;
pub mod tcp_vs_kernel;
