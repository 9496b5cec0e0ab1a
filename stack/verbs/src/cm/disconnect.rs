//! The end of a connection: of its own, by `rdma_disconnect`, or with its queue pair.

use std::ffi::c_int;
use std::sync::{Arc, PoisonError, Weak};

use ferrowarp::{CmError, EndReason, QpState};

use crate::abi::{RDMA_CM_EVENT_CONNECT_ERROR, RDMA_CM_EVENT_DISCONNECTED};
use crate::cm::event::Param;
use crate::cm::id::{Id, Inner, State, call_with_event};
use crate::cm::time_wait;
use crate::errno::{Errno, Outcome};
use crate::object::exposed::Handle;
use crate::object::qp::Qp;
use crate::wait::Taken;

impl Id {
    /// Closes the connection gracefully. What was posted is executed, as long as the peer answers;
    /// receives are flushed at the end, which an event reports.
    fn disconnect(handle: Handle<Self>) -> Outcome {
        let id = handle.get()?;
        let mut inner = id.lock();
        let end = match inner.state {
            State::Connected => ferrowarp::Qp::close,
            State::Connecting | State::Accepting => ferrowarp::Qp::disconnect,
            // Also the peer may have ended it, which the program need not know yet.
            State::Closing | State::Ended | State::Requested(_) => return Ok(()),
            _ => return Err(Errno::EINVAL),
        };
        let ended = inner.qp.get()?.cell.with(end);
        if matches!(inner.state, State::Connected) {
            inner.state = State::Closing;
        }
        match ended {
            // Its event is on the way.
            Ok(()) | Err(CmError::Gone) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The connection has ended, or (`None`) its queue pair.
    pub(super) fn on_end(self: &Arc<Self>, inner: &mut Inner, reason: Option<EndReason>) {
        if !matches!(inner.state, State::Connected | State::Closing) {
            return;
        }
        inner.state = State::Ended;
        let status = reason.map_or(0, status);
        self.report(inner, RDMA_CM_EVENT_DISCONNECTED, status, Param::default());
        // A call of a synchronous ID waits for one event. Without a queue pair none can be reused.
        if reason.is_some() && !inner.is_synchronous() {
            time_wait::begin(self);
        }
    }

    /// Its queue pair is about to be destroyed, which ends the connection: the event that the queue
    /// pair will not report any more is reported here.
    pub(crate) fn on_destroy_qp(self: &Arc<Self>) {
        let mut inner = self.lock();
        if matches!(inner.state, State::Connecting | State::Accepting) {
            inner.state = State::Ended;
            let status = -libc::ECONNABORTED;
            self.report(&inner, RDMA_CM_EVENT_CONNECT_ERROR, status, Param::default());
        }
        self.on_end(&mut inner, None);
    }

    /// The ID, which was in `state`, is being destroyed: ends its connection, and lets go of its
    /// queue pair.
    pub(super) fn leave_qp(self: &Arc<Self>, qp: Handle<Qp>, state: &State) {
        let Ok(qp) = qp.get() else { return };
        let mut connection = qp.connection.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::ptr::eq(connection.as_ptr(), Arc::as_ptr(self)) {
            return;
        }
        *connection = Weak::new();
        drop(connection);
        let is_connected = matches!(
            state,
            State::Connecting | State::Accepting | State::Connected | State::Closing
        );
        if is_connected && qp.cell.with(ferrowarp::Qp::state) != QpState::Idle {
            // It may have ended meanwhile.
            let _ = qp.cell.with(ferrowarp::Qp::disconnect);
        }
    }

    /// Ends `rdma_disconnect` of a synchronous ID, which waits for the end.
    fn complete_disconnect(handle: Handle<Self>) -> Outcome<Taken> {
        let id = handle.get()?;
        let is_ended = matches!(id.lock().state, State::Ended | State::Requested(_));
        match Self::complete(handle) {
            // It was reported before, or nothing was connected.
            Ok(Taken::Wait(_)) if is_ended => Ok(Taken::Event),
            // An event with an error is one of the end as well.
            Err(_) => Ok(Taken::Event),
            taken => taken,
        }
    }
}

/// The status of the event: how the connection ended, if it was not closed.
fn status(reason: EndReason) -> c_int {
    match reason {
        EndReason::Local | EndReason::PeerClosed => 0,
        EndReason::TimedOut => -libc::ETIMEDOUT,
        EndReason::DeviceRemoved => -libc::ENODEV,
        _ => -libc::ECONNRESET,
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn rdma_disconnect(id: Handle<Id>) -> c_int {
    call_with_event(id, || Id::disconnect(id), || Id::complete_disconnect(id))
}
