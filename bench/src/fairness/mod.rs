//! Latency of short RDMA Writes beside other traffic, and what the fairness rule of the transmit
//! path promises: a connection that has something to send waits for one quantum of each of the
//! others, and for what was handed to the port before.

pub mod cases;
pub mod hub;
pub mod load;
pub mod measure;
pub mod report;
