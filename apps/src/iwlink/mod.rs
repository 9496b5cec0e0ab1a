//! iwlink: network emulator between two devices.
//!
//! [`iwlink_options`] and [`link_option`] are the command line; [`forward`] forwards frames from
//! port to port through the emulator of `ferrowarp-link`; [`idle`] decides when to sleep;
//! [`links`] watches the links of the ports; [`link_report`] prints the counters.

pub mod forward;
pub mod idle;
pub mod iwlink_options;
pub mod iwlink_program;
pub mod link_option;
pub mod link_report;
pub mod links;
