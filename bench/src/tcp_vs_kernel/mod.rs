//! Our TCP beside the kernel's over the same bad wire: goodput by loss and round trip, how long
//! requests and their responses take, and connections set up per second.
//!
//! [`plan`] says what is measured; [`goodput`], [`exchange`] and [`connect_rates`] measure it.
//! [`network`] makes namespaces with `iwlink` between them and runs a sender and a receiver
//! (`tcp-end`) there; [`report`] and [`plot`] show what came of it.

pub mod connect_rates;
pub mod exchange;
pub mod goodput;
pub mod network;
pub mod plan;
pub mod plot;
pub mod report;
mod rounds;
pub mod sample;
