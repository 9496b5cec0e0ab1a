//! The neighbourhood: which addresses are ours, where packets to others go, which hardware
//! address a neighbour has, and answers to ping.

pub mod arp;
pub mod fragments;
pub mod icmp;
pub mod keyed;
pub mod ndp;
pub mod neighbours;
pub mod rate;
pub mod routing;
