//! ULPDUs to send: selection among the Terminate, requests and responses, and construction.

use super::{BuildError, Stream};
use crate::ddp::memory::Memory;
use crate::rdmap::fault::Fault;
use crate::rdmap::requester::{LastSegments, ShortMessage};
use crate::rdmap::segment_train::{SegmentTrain, TrainShape, TxSource};
use crate::wire::ddp::{UNTAGGED_LEN, Untagged};
use crate::wire::rdmap::{Opcode, QN_TERMINATE};
use crate::wire::terminate::Terminate;

/// The next ULPDU to send, as [`Stream::next_tx`] selected it. Valid as
/// long as nothing else is done with the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct NextTx {
    source: TxSource,
    /// Its length in bytes with unlimited capacity.
    pub ulpdu_len: u64,
}

/// Kind of messages of which [`Stream::build_last_segments`] builds the last segments: each has a
/// loop of its own, which keeps what it needs in registers.
#[derive(Clone, Copy, Debug)]
pub enum LastOf {
    /// RDMA Writes.
    Writes,
    /// Sends.
    Sends,
}

impl Stream {
    /// True if a segment can be built now.
    #[must_use]
    pub fn can_build(&self) -> bool {
        if self.failed {
            return self.terminate.is_some();
        }
        self.requester.can_build() || self.responder.can_build()
    }

    /// True if no message waits, not even for a fence or a credit: [`Stream::can_build`] is false.
    #[inline(always)]
    #[must_use]
    pub fn is_drained(&self) -> bool {
        !self.failed && self.requester.is_drained() && !self.responder.can_build()
    }

    /// Selects the next ULPDU; `None` if none can be built now. A pending Terminate comes first.
    /// Requests and responses alternate, message by message, if both can be built.
    #[inline]
    #[must_use]
    pub fn next_tx(&self) -> Option<NextTx> {
        self.can_build().then(|| {
            let source = self.next_source();
            NextTx { source, ulpdu_len: self.ulpdu_len(source) }
        })
    }

    #[inline]
    fn ulpdu_len(&self, source: TxSource) -> u64 {
        match source {
            TxSource::Terminate => {
                self.terminate.as_ref().map_or(0, |t| (UNTAGGED_LEN + t.wire_len()) as u64)
            }
            TxSource::Requests => self.requester.next_ulpdu_len(),
            TxSource::Responses => self.responder.next_ulpdu_len(),
        }
    }

    /// Builds the ULPDU that [`Stream::next_tx`] has selected into `out` (at least 128 bytes) and
    /// returns its length.
    ///
    /// # Errors
    /// [`BuildError`]; the stream has then failed.
    pub fn build_next(
        &mut self,
        next: NextTx,
        memory: &impl Memory,
        out: &mut [u8],
    ) -> Result<usize, BuildError> {
        debug_assert_eq!(Some(next), self.next_tx(), "the stream has changed");
        match next.source {
            TxSource::Terminate => {
                let terminate = self.terminate.take();
                Ok(terminate.map_or(0, |terminate| self.build_terminate(&terminate, out)))
            }
            TxSource::Requests => {
                let built = self.requester.build(memory, self.scope, self.version, out);
                if !self.requester.is_mid_message() {
                    self.prefers_responses = true;
                    self.execute_local_ops(memory);
                }
                built.map_err(|_| {
                    // req: RDMAP-128, RDMAP-257
                    self.fail(Fault::LocalCatastrophic, &[]);
                    BuildError::Request
                })
            }
            TxSource::Responses => {
                let built = self.responder.build(memory, self.scope, self.version, out);
                if !self.responder.is_mid_message() {
                    self.prefers_responses = false;
                }
                built.map_err(|failed| {
                    let terminate = failed.fault.to_terminate(self.version, &failed.segment);
                    self.fail(failed.fault, &failed.segment);
                    BuildError::Response(Box::new(terminate))
                })
            }
        }
    }

    /// Builds the next ULPDUs as long as each is the last of a message of this kind, or the only
    /// one, nothing else is to be sent first, and `buffer` has room for it: it is called with its
    /// length. For any other see [`Stream::next_tx`].
    #[inline(always)]
    pub fn build_last_segments<'o>(
        &mut self,
        kind: LastOf,
        memory: &impl Memory,
        buffer: impl FnMut(usize) -> Option<&'o mut [u8]>,
    ) -> LastSegments {
        if self.failed || self.responder.can_build() {
            return LastSegments::default();
        }
        let (scope, version) = (self.scope, self.version);
        let requester = &mut self.requester;
        let built = match kind {
            LastOf::Writes => requester.build_last_of_writes(memory, scope, version, buffer),
            LastOf::Sends => requester.build_last_of_sends(memory, scope, version, buffer),
        };
        self.prefers_responses |= built.count > 0;
        built
    }

    /// Returns the message that waits if it is alone, for [`Stream::build_short`]: nothing else can
    /// be sent, and no other was posted after it.
    #[inline(always)]
    #[must_use]
    pub fn short_message(&self) -> Option<ShortMessage> {
        if self.failed || self.responder.can_build() {
            return None;
        }
        self.requester.short_message()
    }

    /// Builds the ULPDU of the message that [`Stream::short_message`] has returned into `out`, of
    /// its length. False if its payload cannot be read: the request is as it was.
    #[inline(always)]
    #[must_use]
    pub fn build_short(
        &mut self,
        message: ShortMessage,
        memory: &impl Memory,
        out: &mut [u8],
    ) -> bool {
        let is_built = self.requester.build_short(message, memory, self.scope, self.version, out);
        self.prefers_responses |= is_built;
        is_built
    }

    /// Returns the next ULPDUs to send as a train: at least two of `ulpdu_len` bytes and at most
    /// `count_max`, which [`Stream::build_next`] would build one by one. `None` if the next ULPDUs
    /// are shorter, their payload does not lie in one range of memory, or it cannot be read.
    #[must_use]
    pub fn segment_train(
        &self,
        memory: &impl Memory,
        ulpdu_len: usize,
        count_max: usize,
    ) -> Option<SegmentTrain> {
        let shape = TrainShape { ulpdu_len, count_max };
        let train = match self.next_source() {
            TxSource::Terminate => return None,
            TxSource::Requests => self.requester.train(memory, self.scope, self.version, shape),
            TxSource::Responses => self.responder.train(memory, self.scope, self.version, shape),
        };
        train.filter(|train| train.remaining() > 1)
    }

    /// Notes that the segments emitted by `train` were built.
    pub fn end_train(&mut self, train: &SegmentTrain) {
        match train.source {
            TxSource::Terminate => {}
            TxSource::Requests => self.requester.advance(train.emitted_len()),
            TxSource::Responses => self.responder.advance(train.emitted_len()),
        }
    }

    /// Selects the source of the next ULPDU, if there is one: the Terminate, then a message built
    /// in part, otherwise requests and responses in turn.
    fn next_source(&self) -> TxSource {
        // req: RDMAP-260
        if self.terminate.is_some() {
            return TxSource::Terminate;
        }
        if self.requester.is_mid_message() {
            return TxSource::Requests;
        }
        if self.responder.is_mid_message() {
            return TxSource::Responses;
        }
        let responds = if self.prefers_responses {
            self.responder.can_build()
        } else {
            !self.requester.can_build()
        };
        if responds { TxSource::Responses } else { TxSource::Requests }
    }

    // req: RDMAP-059, RDMAP-069, RDMAP-187, RDMAP-188
    #[cold]
    fn build_terminate(&self, terminate: &Terminate, out: &mut [u8]) -> usize {
        let header = Untagged {
            last: true,
            rsvd_ulp: Opcode::Terminate.control(self.version),
            rsvd_ulp_rest: 0,
            // req: RDMAP-345
            qn: QN_TERMINATE,
            msn: 1,
            mo: 0,
        };
        header.emit(self.version, out);
        // req: RDMAP-010, RDMAP-071
        terminate.emit(&mut out[UNTAGGED_LEN..]);
        UNTAGGED_LEN + terminate.wire_len()
    }
}
