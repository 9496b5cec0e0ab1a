//! Time that each end of a transfer takes by itself: what it could reach alone on a core.

pub mod measure;
pub mod port;
pub mod report;
