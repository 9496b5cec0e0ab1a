//! Tests of unmodified verbs programs on the stack, run by `scripts/verbs`.
//!
//! - [`case`]: a case.
//! - [`testbed`]: a link between two processes, and programs at its ends.
//! - [`cm_programs`], [`rping`], [`perftest`]: programs of rdma-core and perftest.
//! - [`peers`], [`guest`]: the same against `iwping`, and against Linux's siw in a guest.
//! - [`surroundings`]: users without rights, signals, forks, the dynamic loader.
//! - [`c_programs`]: programs of ours in C, each with a list of checks.
//! - [`matrix`]: all cases.
//! - [`run`]: runs cases.
//! - [`speed`]: perftest and `iwperf` in pairs, while the [`core_distance`] stays the same.

pub mod c_programs;
pub mod case;
pub mod cm_programs;
pub mod core_distance;
pub mod guest;
pub mod matrix;
pub mod peers;
pub mod perftest;
pub mod rping;
pub mod run;
pub mod speed;
pub mod surroundings;
pub mod testbed;
