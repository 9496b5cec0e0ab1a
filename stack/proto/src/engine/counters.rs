//! What an engine counts. Cheap enough to be always on.

/// Events since the engine was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames received.
    pub frames_in: u64,
    /// Frames handed to the device.
    pub frames_out: u64,
    /// Frames dropped: malformed, a bad checksum, an unknown protocol or address.
    pub frames_dropped: u64,
    /// ICMP errors about segments under way, taken.
    pub icmp_errors_in: u64,
    /// ICMP errors refused: malformed, about nothing under way, saying nothing new or nothing
    /// possible, or too many.
    pub icmp_errors_ignored: u64,
    /// ICMP errors sent: packets whose fragments were given up.
    pub icmp_errors_out: u64,
    /// Times the segment size of a connection changed with its path.
    pub emss_changes: u64,
    /// TCP segments for which there was no connection and no listener; answered with RST within
    /// the rate limit.
    pub segments_unmatched: u64,
    /// Questions for hardware addresses sent.
    pub neighbor_solicits_out: u64,
    /// Neighbours whose hardware address changed.
    pub neighbor_mac_changes: u64,
    /// Times a connection found that its neighbour no longer, or never, answers.
    pub neighbors_unreachable: u64,
    /// Times somebody else claimed one of our addresses.
    pub address_conflicts: u64,
    /// Pings answered.
    pub echo_replies_out: u64,
    /// IP fragments received.
    pub fragments_in: u64,
    /// Packets made whole from fragments.
    pub packets_reassembled: u64,
    /// Packets of which a fragment was received and that never became whole.
    pub reassembly_failures: u64,
    /// SYNs, and ACKs that would have completed a handshake, dropped because a listener's backlog
    /// was full.
    pub backlog_overflows: u64,
    /// Connections whose peers had not sent a whole start-up request, reset because too many such
    /// were.
    pub requests_evicted: u64,
    /// SYNs answered with a cookie because too many connections were half open.
    pub cookies_sent: u64,
    /// SYNs dropped because the rate of cookies is limited.
    pub cookies_rate_limited: u64,
    /// Connections made from a cookie.
    pub cookies_accepted: u64,
    /// ACKs of no connection that might have brought a cookie back and did not.
    pub cookies_invalid: u64,
    /// Connections in TIME-WAIT that gave way because too many were.
    pub time_waits_recycled: u64,
    /// Connections set up.
    pub connections_established: u64,
    /// Connections that ended otherwise than by an orderly close.
    pub connections_failed: u64,
    /// FPDUs received whole and verified.
    pub fpdus_in: u64,
    /// FPDUs built.
    pub fpdus_out: u64,
    /// FPDUs gathered from several pieces before they were whole.
    pub fpdus_assembled: u64,
    /// FPDUs placed ahead of their turn.
    pub fpdus_placed_ooo: u64,
    /// FPDUs with a wrong CRC.
    pub crc_errors: u64,
    /// FPDUs with a marker that points elsewhere.
    pub marker_errors: u64,
    /// Frames that came ahead of their turn and were dropped: all connections together held as many
    /// as may be.
    pub ooo_pool_exhausted: u64,
    /// Frames that came ahead of their turn and were dropped, as there was no use for them.
    pub ooo_dropped: u64,
    /// Sent frames that were copied out, so that others could be sent: their peers made no
    /// progress.
    pub frames_copied_out: u64,
    /// Connections reset because their peers had made no progress for the longest time, and others
    /// found neither frames nor memory to copy them out to.
    pub stalled_resets: u64,
    /// Receive windows that had grown and are as wide as at first again: their peers were silent,
    /// and others in want.
    pub windows_reclaimed: u64,
    /// Start-up frames refused.
    pub startup_errors: u64,
    /// Times bytes of a partial FPDU counted as not received, because there was no memory to keep
    /// them.
    pub assembly_exhausted: u64,
    /// Connections ended because their partial FPDU had taken memory for too long that others
    /// waited for.
    pub partials_evicted: u64,
    /// Messages refused a buffer of a shared receive queue because their queue pair held as many
    /// as it may.
    pub srq_caps_reached: u64,
    /// Terminates sent.
    pub terminates_out: u64,
    /// Terminates received.
    pub terminates_in: u64,
    /// Passes in which a frame was wanted and its pool was drained, or the port full.
    pub frame_shortages: u64,
    /// Completions pushed.
    pub completions: u64,
    /// Completion queues that overran.
    pub cq_overruns: u64,
}
