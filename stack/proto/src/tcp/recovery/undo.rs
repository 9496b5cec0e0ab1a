//! Undo of spurious recovery, detected by timestamps (Eifel, RFC 3522), by the ACKs after a timeout
//! (F-RTO, RFC 5682) or by D-SACK (RFC 2883, RFC 3708).

mod tcb;

use crate::tcp::congestion::Congestion;
use crate::wire::seq::Seq;

/// State of F-RTO, which detects spurious timeouts (RFC 5682 section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) enum Frto {
    /// Not in use.
    Off,
    /// Step 2: waits for the first ACK of new data.
    AwaitFirstAck,
    /// Step 3: waits for the next ACK, which decides. Until then retransmissions are deferred, and
    /// this many new segments may be sent.
    AwaitSecondAck { new_segments: u8 },
}

/// State to undo an episode that turns out to be spurious.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct Undo {
    /// Congestion control state before the episode.
    pub(in crate::tcp) prior: Congestion,
    /// Sequence number of the first loss. An ACK not beyond it has no information about it.
    pub(in crate::tcp) first_lost: Seq,
    /// TSval of the first retransmission: an ACK that echoes an earlier one is of the original
    /// (Eifel, RFC 3522). `None` before any retransmission.
    pub(in crate::tcp) retrans_stamp: Option<u32>,
    /// Eifel detection still waits for the first ACK beyond `first_lost`, the only one it may use.
    pub(in crate::tcp) eifel: bool,
    /// Retransmissions not yet reported by D-SACK.
    pub(in crate::tcp) undo_retrans: u32,
    /// The loss was detected by SACK: if it is spurious, the cause is reordering.
    pub(in crate::tcp) by_reordering: bool,
}
