//! End-to-end measurements: `iwperf` over several devices, tests and sizes, each beside the
//! frozen bound measured on the same cores just before; medians of several rounds.

pub mod measure;
pub mod plan;
pub mod plot;
pub mod report;
pub mod result;
pub mod runner;
