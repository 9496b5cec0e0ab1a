//! iwperf: bandwidth and latency tests, modeled on perftest.
//!
//! [`options`] is the command line, [`control`] the control exchange and [`message`] its messages;
//! [`session`] holds one side's connections and memory; [`test_run`] is one run, with [`active`]
//! and [`passive`] halves for bandwidth, and [`latency`]; [`client`] and [`server`] run the
//! sequence of runs; [`report`], [`hdr`] and [`progress`] produce the output.

pub mod active;
pub mod client;
mod client_params;
pub mod clients;
mod codec;
pub mod control;
pub mod hdr;
pub mod kind;
pub mod latency;
pub mod latency_stats;
pub mod limits;
pub mod message;
pub mod options;
pub mod passive;
pub mod peak;
pub mod private_data;
pub mod program;
pub mod progress;
pub mod report;
pub mod server;
mod server_session;
mod server_sessions;
pub mod session;
pub mod shard_figures;
pub mod shard_report;
pub mod slots;
pub mod test_run;
pub mod worker;
