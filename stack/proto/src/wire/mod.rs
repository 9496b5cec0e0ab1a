//! Wire formats: parsing and emission. ARP, ICMP errors and neighbor discovery use `smoltcp::wire`.

pub mod atomic;
pub mod checksum;
pub mod ddp;
pub mod ethernet;
pub mod ip;
pub mod mpa;
pub mod rdmap;
pub mod rtr;
pub mod seq;
pub mod tcp;
pub mod terminate;
