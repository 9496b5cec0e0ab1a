//! Our TCP beside the kernel's over the same emulated link: goodput by loss and RTT, completion
//! times of requests and responses, and connections set up per second.
//!
//! [`plan`] lists the measurements; [`goodput`], [`exchange`] and [`connect_rates`] measure it.
//! [`network`] creates namespaces with `iwlink` between them and runs a sender and a receiver
//! (`tcp-end`) there; [`report`] and [`plot`] format the results.

pub mod connect_rates;
pub mod exchange;
pub mod goodput;
pub mod network;
pub mod plan;
pub mod plot;
pub mod report;
mod rounds;
pub mod sample;
