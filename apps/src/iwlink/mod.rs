//! iwlink: joins two devices by a bad wire.
//!
//! [`options`] and [`link_option`] say what is asked for; [`forward`] passes frames from port to
//! port through the model of `ferrowarp-link`; [`idle`] decides when to sleep; [`report`] tells.

pub mod forward;
pub mod idle;
pub mod link_option;
pub mod options;
pub mod program;
pub mod report;
