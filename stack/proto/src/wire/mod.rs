//! Wire formats: parsing and emission. ARP, ICMP errors and neighbor discovery use `smoltcp::wire`.

mod bytes;
pub mod checksum;
pub mod ddp;
pub mod ethernet;
pub mod ip;
pub mod mpa;
mod parse_error;
pub mod rdmap;
pub mod rdmap_extensions;
pub mod seq;
pub mod tcp;
pub mod terminate;
mod terminate_text;
pub(crate) use terminate_text::{EndNames, describe as describe_terminate};
