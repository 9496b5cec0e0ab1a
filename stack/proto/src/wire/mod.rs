//! Wire formats: parsing and emission. ARP, ICMP errors and neighbor discovery use `smoltcp::wire`.

pub mod atomic;
mod bytes;
pub mod checksum;
pub mod ddp;
mod ecn;
pub mod ethernet;
pub mod ip;
pub mod mpa;
mod parse_error;
pub mod rdmap;
pub mod rtr;
pub mod seq;
pub mod tcp;
pub mod terminate;
mod terminate_text;
pub(crate) use terminate_text::{EndNames, describe as describe_terminate};
