//! Network layer: addresses and routes, neighbor resolution, ICMP, MLD and IP reassembly.
//!
//! - `arp` (RFC 826, RFC 5227), `ndp` (RFC 4861): packets of address resolution.
//! - `neighbor`: the neighbor cache and its NUD state machine (RFC 4861 section 7), for both.
//! - `routing`: next hop and source address selection (RFC 6724 section 5).
//! - `listen_addr`: addresses of a listener.
//! - `next_hop`: the neighbor that receives a connection's frames.
//! - `recent_solicits`: solicitations sent lately, for several engines.
//! - `mld`, `memberships`: multicast listener reports (RFC 3810, RFC 2710), and when they are due.
//! - `fragments`: reassembly (RFC 791, RFC 8200 section 4.5, RFC 5722).
//! - `icmp_echo`, `icmp_error`, `icmp_tx`: echo replies, received and sent ICMP errors (RFC 792,
//!   RFC 4443).
//! - `interface`: all of these together, the IP interface of a port.
//! - `rate_limit`, `jittered_rate_limit`, `reply_limits`, `siphash_keys`: what they share with
//!   `connection` and `engine`.

pub mod arp;
pub mod fragments;
pub mod icmp_echo;
pub mod icmp_error;
pub mod icmp_tx;
pub(crate) mod interface;
pub(crate) mod jittered_rate_limit;
pub mod listen_addr;
mod memberships;
pub mod mld;
pub mod ndp;
pub mod neighbor;
pub(crate) mod next_hop;
pub mod rate_limit;
mod recent_solicits;
pub(crate) mod reply_limits;
pub mod routing;
pub mod siphash_keys;
