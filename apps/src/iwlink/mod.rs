//! iwlink: network emulator between two devices.
//!
//! [`options`] and [`link_option`] are the command line; [`forward`] forwards frames from port to
//! port through the emulator of `ferrowarp-link`; [`idle`] decides when to sleep; [`links`]
//! watches the links of the ports; [`report`] prints the counters.

pub mod forward;
pub mod idle;
pub mod link_option;
pub mod links;
pub mod options;
pub mod program;
pub mod report;
