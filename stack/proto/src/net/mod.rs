//! The neighbourhood: which addresses are ours, where packets to others go, which hardware
//! address a neighbour has, answers to ping, and what routers and hosts report of our packets.

pub mod arp;
pub mod fragments;
pub mod icmp_echo;
pub mod icmp_error;
pub mod icmp_tx;
pub mod mld;
pub mod ndp;
pub mod neighbor;
pub mod rate_limit;
pub mod routing;
pub mod siphash_keys;
