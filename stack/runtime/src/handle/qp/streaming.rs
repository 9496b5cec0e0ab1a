//! Streaming mode: the applications exchange bytes before the connection carries FPDUs.

use ferrowarp_proto::verbs::cm::{CmError, ConnParam};
use ferrowarp_proto::verbs::wc::QpId;

use super::Qp;
use crate::shard::ShardControl;

impl Qp {
    /// Sends application bytes in streaming mode, on a connection that does not carry FPDUs yet
    /// ([`ConnEvent::Streaming`]). Returns the number accepted: at most 64 KiB are buffered.
    ///
    /// # Errors
    /// `WrongState` if the connection is not in that mode; `Gone` if there is none; `Ended`.
    ///
    /// [`ConnEvent::Streaming`]: crate::ConnEvent::Streaming
    pub fn stream_send(&self, bytes: &[u8]) -> Result<usize, CmError> {
        self.control_stream(|engine, qp| engine.stream_send(qp, bytes))
    }

    /// Receives bytes of the peer's application in streaming mode; returns their number. Bytes not
    /// received before [`Qp::start_fpdus`] belong to FPDUs.
    ///
    /// # Errors
    /// As [`Qp::stream_send`].
    pub fn stream_receive(&self, out: &mut [u8]) -> Result<usize, CmError> {
        self.control_stream(|engine, qp| engine.stream_receive(qp, out))
    }

    /// Enters full operation: FPDUs follow in both directions, as agreed by the applications. See
    /// [`Qp::wait_established`].
    ///
    /// # Errors
    /// As [`Qp::stream_send`].
    pub fn start_fpdus(&self, param: ConnParam) -> Result<(), CmError> {
        self.control(|engine, now, qp| engine.start_fpdus(now, qp, &param))
    }

    /// Executes a streaming mode call, with a poll before and after it.
    fn control_stream(
        &self,
        act: impl FnOnce(&mut dyn ShardControl, QpId) -> Result<usize, CmError>,
    ) -> Result<usize, CmError> {
        let shard = self.shard_of_connection()?;
        shard.drive();
        let done = shard.control(|engine, _| act(engine, self.id));
        shard.drive();
        done?
    }
}
