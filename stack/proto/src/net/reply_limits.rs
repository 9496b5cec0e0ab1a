//! Limits on the replies that any host can provoke, and on the work for its messages. Engines over
//! the queues of one port share them: the limits are those of the host, whatever its number of
//! queues.

use crate::net::jittered_rate_limit::JitteredRateLimit;
use crate::net::rate_limit::RateLimit;
use crate::net::siphash_keys::{KeyPurpose, Secret};

/// RSTs for unmatched segments per second, at most.
const RSTS_PER_SECOND: u32 = 1000;
/// ICMP errors processed per second, at most.
const ICMP_ERRORS_IN_PER_SECOND: u32 = 1000;
/// Replies to ARP requests and neighbor solicitations per second, at most.
const NEIGHBOR_REPLIES_PER_SECOND: u32 = 1000;
/// ARP requests and neighbor solicitations per second, at most.
pub(crate) const SOLICITS_PER_SECOND: u32 = 1000;
/// Echo replies per second, at most.
const ECHO_REPLIES_PER_SECOND: u32 = 1000;
/// ICMP errors sent per second, at most.
const ICMP_ERRORS_OUT_PER_SECOND: u32 = 100;

/// See the [module's documentation](self). Clones share the limits.
#[derive(Clone)]
pub(crate) struct ReplyLimits {
    /// RSTs for unmatched segments.
    pub(crate) resets: JitteredRateLimit,
    /// SYN-ACKs with a cookie.
    pub(crate) cookies: JitteredRateLimit,
    /// ICMP errors received about outstanding segments.
    pub(crate) icmp_errors_in: RateLimit,
    /// ICMP errors sent.
    pub(crate) icmp_errors_out: RateLimit,
    /// Echo replies.
    pub(crate) echo_replies: RateLimit,
    /// Replies to ARP requests and neighbor solicitations.
    pub(crate) neighbor_replies: RateLimit,
    /// ARP requests and neighbor solicitations.
    pub(crate) solicits: RateLimit,
}

impl ReplyLimits {
    pub(crate) fn new(seed: u64, cookies_per_second: u32) -> Self {
        let secret = Secret::new(seed, KeyPurpose::Limits);
        Self {
            resets: JitteredRateLimit::new(secret, RSTS_PER_SECOND),
            cookies: JitteredRateLimit::new(secret, cookies_per_second),
            icmp_errors_in: RateLimit::new(ICMP_ERRORS_IN_PER_SECOND),
            icmp_errors_out: RateLimit::new(ICMP_ERRORS_OUT_PER_SECOND),
            echo_replies: RateLimit::new(ECHO_REPLIES_PER_SECOND),
            neighbor_replies: RateLimit::new(NEIGHBOR_REPLIES_PER_SECOND),
            solicits: RateLimit::new(SOLICITS_PER_SECOND),
        }
    }
}
