//! Processing of received messages of RFC 7306.

use super::{Indication, Stream};
use crate::ddp::memory::Memory;
use crate::ddp::untagged::UntaggedFault;
use crate::rdmap::terminate::Fault;
use crate::wire::atomic::{IMMEDIATE_LEN, ImmediateData, QN_ATOMIC_RESPONSE};
use crate::wire::ddp::{HeaderError, Untagged};
use crate::wire::rdmap::{Opcode, QN_READ_REQUEST, QN_SEND, QN_TERMINATE};

impl Stream {
    /// Disables RFC 7306, for peers that may not support it: its messages are then handled like any
    /// unknown message. Called once, when the stream starts.
    pub const fn disable_extensions(&mut self) {
        self.extensions = false;
    }

    /// True if the operations of RFC 7306 are enabled.
    #[must_use]
    pub const fn has_extensions(&self) -> bool {
        self.extensions
    }

    /// Processes an untagged message that RFC 5040 does not define for its queue: one of RFC 7306,
    /// or an invalid one.
    #[cold]
    pub(super) fn on_extension_message(
        &mut self,
        memory: &impl Memory,
        header: &Untagged,
        opcode: Opcode,
        payload: &[u8],
    ) -> Result<Indication, Fault> {
        match (header.qn, opcode) {
            (QN_SEND, Opcode::Immediate { solicited }) if self.extensions => {
                self.on_immediate(memory, header, payload, solicited)
            }
            (QN_READ_REQUEST, Opcode::AtomicRequest) if self.extensions => {
                self.responder.on_atomic_request(memory, self.scope, header, payload)?;
                Ok(Indication::ReadRequested)
            }
            (QN_ATOMIC_RESPONSE, Opcode::AtomicResponse) if self.extensions => {
                self.requester.on_atomic_response(memory, self.scope, header, payload)?;
                self.execute_local_ops(memory);
                Ok(Indication::ReadCompleted)
            }
            // req: RDMAP-263, RDMAP-268
            (QN_SEND..=QN_TERMINATE, _) => Err(Fault::UnexpectedOpcode),
            (QN_ATOMIC_RESPONSE, _) if self.extensions => Err(Fault::UnexpectedOpcode),
            _ => Err(Fault::QueueNumber),
        }
    }

    /// Processes Immediate Data: it consumes a receive buffer and leaves its contents unchanged.
    fn on_immediate(
        &mut self,
        memory: &impl Memory,
        header: &Untagged,
        payload: &[u8],
        solicited: bool,
    ) -> Result<Indication, Fault> {
        // Checked first: a refused message must not consume a receive buffer.
        if header.mo != 0 {
            return Err(Fault::Untagged(UntaggedFault::MessageOffset));
        }
        if !header.last || payload.len() > IMMEDIATE_LEN {
            return Err(Fault::HeaderTooLong);
        }
        let data =
            ImmediateData::try_from(payload).map_err(|_| Fault::Header(HeaderError::Truncated))?;
        let message =
            self.recv_queue.place(memory, self.scope, header, &[]).map_err(Fault::Untagged)?;
        // A last segment always completes its message.
        message.map_or(Ok(Indication::Placed), |message| {
            Ok(Indication::ImmediateReceived { message, data, solicited })
        })
    }
}
