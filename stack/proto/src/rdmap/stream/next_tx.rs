//! Selection of the next ULPDU to send.

/// Source of a ULPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rdmap) enum TxSource {
    Terminate,
    Requests,
    Responses,
}

/// The next ULPDU to send, as [`Stream::next_tx`](super::Stream::next_tx) selected it. Valid as
/// long as nothing else is done with the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextTx {
    pub(super) source: TxSource,
    /// Its length in bytes with unlimited capacity.
    pub ulpdu_len: u64,
}
