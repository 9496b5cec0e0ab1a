//! iwlink: joins two devices by a bad wire.
//!
//! [`options`] and [`setting`] say what is asked for; [`forward`] passes frames from port to
//! port through the model of `ferrowarp-link`; [`pace`] decides when to sleep; [`report`] tells.

pub mod forward;
pub mod options;
pub mod pace;
pub mod program;
pub mod report;
pub mod setting;
