//! Connections and their management: listening, active and passive open, MPA startup, graceful and
//! abortive close, and [`quirks`] of peers.
//!
//! A connection is looked up once per segment. From there its work is its methods, with the
//! [`Context`](context::Context) of what all connections share; it never reaches another
//! connection. Effects on others are left to the engine as [`Deferred`](context::Deferred).
//!
//! Here are the methods of [`Connection`](connection::Connection) for its lifetime. Those that
//! receive and send data are in `engine` (`rx`, `rx_ooo`, `tx`): they call TCP, MPA and verbs.

mod abort;
pub(crate) mod awaiting_request;
mod closing;
mod connect;
pub(crate) mod connection;
pub(crate) mod context;
mod cookie;
pub(crate) mod env;
mod graceful_close;
pub(crate) mod listen;
pub(crate) mod listeners;
mod mpa_start;
mod params;
mod quirks;
mod rtr;
pub(crate) mod schedule;
pub(crate) mod secrets;
mod source_port;
mod stateless;
mod terminate_drain;
pub(crate) mod tx_reclaim;
