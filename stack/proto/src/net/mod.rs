//! The neighbourhood: which hardware address an IP address has, and answers to ping.

pub mod arp;
pub mod icmp;
pub mod keyed;
pub mod neighbours;
