//! Counters of an engine. Cheap enough to be always on.

use core::ops::AddAssign;

/// Defines counters that can be added: those of several engines.
macro_rules! counters {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$doc:meta])* pub $field:ident: u64,)* }) => {
        $(#[$meta])*
        pub struct $name { $($(#[$doc])* pub $field: u64,)* }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                $(self.$field += other.$field;)*
            }
        }
    };
}

counters! {
    /// Counts of events since the engine was created.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct Counters {
        /// Frames received.
        pub frames_in: u64,
        /// Frames handed to the device.
        pub frames_out: u64,
        /// Frames forwarded to the shard that owns their connection: the port delivered them to
        /// another one's queue.
        pub frames_forwarded: u64,
        /// Source ports that active opens gave up because the SYN-ACK arrived at another shard: the
        /// next one was tried.
        pub source_ports_abandoned: u64,
        /// Frames that came from another shard.
        pub frames_from_shards: u64,
        /// Frames and other messages for another shard dropped because it did not keep up, or has
        /// died.
        pub shard_messages_dropped: u64,
        /// Frames dropped: malformed, bad checksum, or an unknown protocol or address.
        pub frames_dropped: u64,
        /// ICMP errors accepted: about outstanding segments.
        pub icmp_errors_in: u64,
        /// ICMP errors ignored: malformed, not about an outstanding segment, without new or
        /// possible values, or over the rate limit.
        pub icmp_errors_ignored: u64,
        /// ICMP errors sent for packets whose reassembly failed.
        pub icmp_errors_out: u64,
        /// Changes of a connection's EMSS with its path MTU.
        pub emss_changes: u64,
        /// TCP segments that belong to no connection and that no listener accepts; answered with
        /// RST within the rate limit.
        pub segments_unmatched: u64,
        /// ARP requests and neighbor solicitations sent.
        pub neighbor_solicits_out: u64,
        /// Changes of a neighbor's hardware address.
        pub neighbor_mac_changes: u64,
        /// Times a connection found that its neighbor does not, or no longer, reply.
        pub neighbors_unreachable: u64,
        /// Times another host claimed one of our addresses.
        pub address_conflicts: u64,
        /// Echo replies sent.
        pub echo_replies_out: u64,
        /// IP fragments received.
        pub fragments_in: u64,
        /// IP packets reassembled from fragments.
        pub packets_reassembled: u64,
        /// IP packets with at least one fragment received that were not reassembled.
        pub reassembly_failures: u64,
        /// SYNs, and ACKs that would have completed a handshake, dropped because a listener's
        /// backlog was full.
        pub backlog_overflows: u64,
        /// Connections reset because too many were without a complete MPA Request Frame.
        pub requests_evicted: u64,
        /// SYNs answered with a SYN cookie because too many connections were half open.
        pub cookies_sent: u64,
        /// SYNs dropped because of the rate limit of SYN cookies.
        pub cookies_rate_limited: u64,
        /// Connections created from a SYN cookie.
        pub cookies_accepted: u64,
        /// ACKs of no connection that might have carried a valid SYN cookie and did not.
        pub cookies_invalid: u64,
        /// Connections removed in TIME-WAIT because too many connections were in it, or at all.
        pub time_waits_recycled: u64,
        /// Connections removed although their peer had not closed yet, because there were too many:
        /// they had been rejected, or had ended and the peer had acknowledged everything.
        pub lingering_evicted: u64,
        /// Connections that entered full operation.
        pub connections_established: u64,
        /// Connections that ended neither by a local call nor by a close of the peer.
        pub connections_failed: u64,
        /// FPDUs received complete and verified.
        pub fpdus_in: u64,
        /// FPDUs built.
        pub fpdus_out: u64,
        /// FPDUs received in several parts and reassembled.
        pub fpdus_assembled: u64,
        /// FPDUs placed out of order.
        pub fpdus_placed_ooo: u64,
        /// FPDUs with a wrong CRC.
        pub crc_errors: u64,
        /// FPDUs with a wrong marker: its FPDUPTR does not point to the start of the FPDU.
        pub marker_errors: u64,
        /// Out-of-order segments dropped because the out-of-order memory of all connections was
        /// exhausted.
        pub ooo_pool_exhausted: u64,
        /// Out-of-order segments dropped because they were corrupt, or too many on their
        /// connection.
        pub ooo_dropped: u64,
        /// Retained frames replaced by copies so that other connections could send: their peers
        /// made no progress.
        pub frames_copied_out: u64,
        /// Connections reset because their peers had made no progress for the longest time, while
        /// others had no frames and no memory was left for copies.
        pub stalled_resets: u64,
        /// Grown receive windows reset to their initial size: their peers were idle, and other
        /// connections needed window growth.
        pub windows_reclaimed: u64,
        /// Invalid or unacceptable MPA startup frames received.
        pub startup_errors: u64,
        /// Times bytes of a partial FPDU counted as not received because there was no memory for
        /// them.
        pub assembly_exhausted: u64,
        /// Connections ended because their partial FPDU had held memory for too long while others
        /// waited for it.
        pub partials_evicted: u64,
        /// Messages refused a buffer of a shared receive queue because their queue pair was at its
        /// cap.
        pub srq_caps_reached: u64,
        /// Terminates sent.
        pub terminates_out: u64,
        /// Terminates received.
        pub terminates_in: u64,
        /// Failed allocations of a frame to send: its pool was empty, or the transmit queue of the
        /// port full.
        pub frame_shortages: u64,
        /// Work completions pushed, without those of the flush.
        pub completions: u64,
        /// Completion queues that have overrun, each once.
        pub cq_overruns: u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_engines_are_added() {
        let mut sum = Counters { frames_in: 3, cq_overruns: 1, ..Counters::default() };
        sum += Counters { frames_in: 4, fpdus_in: 2, ..Counters::default() };
        let expected =
            Counters { frames_in: 7, fpdus_in: 2, cq_overruns: 1, ..Counters::default() };
        assert_eq!(sum, expected);
    }
}
