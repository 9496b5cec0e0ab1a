//! Latency of short RDMA Writes beside other traffic, and what the fairness rule of the transmit
//! path promises: a connection that has something to send waits for the rest of a round, and then
//! for one quantum of each of the others.

pub mod cases;
pub mod hub;
pub mod load;
pub mod measure;
pub mod report;
