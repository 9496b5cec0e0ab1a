//! Paired comparison of `iwperf` with the bound of this machine, or with another `iwperf`; and what
//! other comparisons in pairs need (`pairs`, `interval`).
//!
//! The measurements of a pair follow one another within seconds, on the same cores, in an order
//! that is reversed from pair to pair. Their ratio is therefore free of what changes slowly on a
//! machine; the median of the ratios and its interval are what counts.

pub mod interval;
pub mod measure;
pub mod pairs;
pub mod report;
pub mod rows;
