//! Setup of a connection: active and passive open, and the MPA startup exchange.

pub(crate) mod accept;
pub(crate) mod awaiting_request;
pub(crate) mod connect;
pub(crate) mod listen;
pub(crate) mod listeners;
pub(crate) mod mpa_start;
pub(crate) mod secrets;
pub(crate) mod source_port;
mod syn_cookie;
