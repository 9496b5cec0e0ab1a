//! Input of congestion control from one ACK.

use crate::time::Instant;
use crate::wire::seq::Seq;

/// Input of congestion control from an ACK of new data.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct AckSample {
    /// Time of the ACK.
    pub(in crate::tcp) now: Instant,
    /// Bytes acknowledged.
    pub(in crate::tcp) bytes: u32,
    /// EMSS: payload of a full segment.
    pub(in crate::tcp) mss: u32,
    /// SRTT, including this ACK's sample; 0 before the first.
    pub(in crate::tcp) srtt_ns: u64,
    /// RTT sample of this ACK.
    pub(in crate::tcp) rtt_ns: Option<u64>,
    /// SND.UNA after this ACK.
    pub(in crate::tcp) snd_una: Seq,
    /// SND.NXT.
    pub(in crate::tcp) snd_nxt: Seq,
    /// A loss is being repaired: some of the bytes may have been received long ago.
    pub(in crate::tcp) recovering: bool,
}
