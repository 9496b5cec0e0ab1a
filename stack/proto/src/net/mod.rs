//! The neighbourhood: which addresses are ours, where packets to others go, which hardware
//! address a neighbour has, answers to ping, and what routers and hosts report of our packets.

pub mod arp;
pub mod fragments;
pub mod icmp;
pub mod icmp_error;
pub mod icmp_report;
pub mod keyed;
pub mod mld;
pub mod ndp;
pub mod neighbours;
pub mod rate;
pub mod routing;
