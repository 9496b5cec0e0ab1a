//! The stack over vhost-user beside `memif`: two ways through memory from one process to another.

pub mod report;
pub mod rows;
