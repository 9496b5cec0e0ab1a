//! Completions of requests.

use crate::rdmap::requester::{DoneRequest, Rejection, RequestOutcome, Requester};
use crate::verbs::queue_pair::Qp;
use crate::verbs::resources::Verbs;
use crate::verbs::wc::{Completed, Completions, QpId, Wc, WcOpcode, WcStatus};

/// The oldest requests of a queue pair, as far as they succeeded.
pub(super) struct SucceededRequests<'a> {
    pub(super) qp: QpId,
    pub(super) requester: &'a mut Requester,
    /// Number of completions accepted.
    pub(super) count: &'a mut u64,
}

impl Completed for SucceededRequests<'_> {
    #[inline(always)]
    fn drain(self, mut accept: impl FnMut(Wc) -> bool) -> bool {
        self.requester.complete_succeeded(|request| {
            let is_accepted = accept(success_wc(self.qp, request));
            *self.count += u64::from(is_accepted);
            is_accepted
        })
    }
}

impl Qp {
    /// [`Qp::complete_sends`] after the last request of the queue was built, in one step if it is
    /// the oldest.
    #[inline(always)]
    pub(crate) fn complete_send<M, C: Completions>(&mut self, verbs: &mut Verbs<M, C>) {
        let Some(request) = self.stream.requester.only_succeeded() else {
            return self.complete_sends(verbs);
        };
        if request.signaled {
            if !verbs.completions.push(self.send_cq, success_wc(self.id, &request)) {
                return self.complete_sends(verbs);
            }
            verbs.counters.completions += 1;
        }
        self.stream.requester.pop();
        debug_assert!(self.stream.requester.completed().is_none(), "it was the last");
    }
}

/// True for an outcome after which no request is reported with success. A request that was not
/// executed leaves the stream as it is.
pub(super) const fn is_failure(outcome: RequestOutcome) -> bool {
    matches!(outcome, RequestOutcome::LocalProtection | RequestOutcome::Flushed)
}

/// Returns the completion of a request that succeeded.
#[inline(always)]
fn success_wc(qp: QpId, request: &DoneRequest) -> Wc {
    let opcode = WcOpcode::from(request.opcode);
    let byte_len = request.len;
    Wc { opcode, byte_len, ..recv_wc(qp, request.wr_id, WcStatus::Success) }
}

/// Returns the completion of a request with this outcome; `refused`: the status that the peer's
/// Terminate gives it.
pub(super) fn send_wc(
    qp: QpId,
    request: &DoneRequest,
    outcome: RequestOutcome,
    refused: Option<WcStatus>,
) -> Wc {
    let opcode = WcOpcode::from(request.opcode);
    let status = match outcome {
        RequestOutcome::Success => WcStatus::Success,
        RequestOutcome::LocalProtection if opcode == WcOpcode::Bind => WcStatus::Bind,
        RequestOutcome::LocalProtection => WcStatus::LocalProtection,
        RequestOutcome::Flushed => refused.unwrap_or(WcStatus::Flushed),
        RequestOutcome::Rejected(Rejection::WrongState) => WcStatus::Flushed,
        RequestOutcome::Rejected(Rejection::Unsupported) => WcStatus::RemoteOperation,
    };
    let byte_len = if status == WcStatus::Success { request.len } else { 0 };
    Wc { opcode, byte_len, ..recv_wc(qp, request.wr_id, status) }
}

/// Returns the completion of a receive that says nothing about its data.
pub(super) const fn recv_wc(qp: QpId, wr_id: u64, status: WcStatus) -> Wc {
    Wc::new(wr_id, qp, status, WcOpcode::Recv)
}
