//! Both ends of a new connection: `rdma_connect`, `rdma_accept`, `rdma_reject`.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use ferrowarp::{CmError, ConnEvent, ConnInfo, ConnParam, ConnectError, QpState};

use crate::abi::{
    RDMA_CM_EVENT_CONNECT_ERROR, RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_REJECTED,
    RDMA_CM_EVENT_UNREACHABLE, rdma_cm_event_type, rdma_conn_param,
};
use crate::cm::event::Param;
use crate::cm::id::{Id, Inner, State, call_with_event};
use crate::cm::memory::bytes;
use crate::errno::{Errno, MinusOne, Outcome};
use crate::object::exposed::Handle;
use crate::object::qp::Qp;
use crate::object::query::MAX_RD_ATOM;

/// Time for the whole set-up, with the time that the peer's program takes to accept.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Time in which a listener may still appear: perftest listens anew for its second connection, and
/// with a card the other end takes some milliseconds to get there.
const REFUSAL_RETRY: Duration = Duration::from_millis(500);

impl Id {
    /// The parameters of a connection. `None` of the program: as many Reads as possible.
    fn conn_param(&self, inner: &Inner, param: Option<&rdma_conn_param>) -> Outcome<ConnParam> {
        let settings = &self.engine.settings;
        let mut conn = ConnParam::new()
            .crc(settings.crc)
            .peer_to_peer(settings.peer_to_peer)
            .connect_timeout(CONNECT_TIMEOUT)
            .refusal_retry(REFUSAL_RETRY)
            .ird(MAX_RD_ATOM.into())
            .ord(MAX_RD_ATOM.into());
        conn.dscp = inner.options.dscp;
        let Some(param) = param else { return Ok(conn) };
        // Above the limit is also RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH: as many as possible.
        conn.ird = param.responder_resources.min(MAX_RD_ATOM).into();
        conn.ord = param.initiator_depth.min(MAX_RD_ATOM).into();
        let data = bytes(param.private_data, param.private_data_len);
        conn.private_data(data).map_err(|_| Errno::EINVAL)
    }

    /// Finds the queue pair of the connection: that of the ID, or one that the program names.
    fn find_qp(&self, param: Option<&rdma_conn_param>) -> Outcome<Handle<Qp>> {
        let own = Self::public(self.handle()).qp;
        if !own.is_null() {
            return Ok(Handle::of(own));
        }
        let number = param.ok_or(Errno::EINVAL)?.qp_num;
        self.engine.objects.numbered_qps.get(number).ok_or(Errno::EINVAL)
    }

    /// Ties a queue pair to the ID, to which it reports from now on. Returns the ID that it was
    /// tied to.
    ///
    /// # Errors
    /// `EINVAL`: it is, or was, connected: another ID may still need its events.
    fn tie(self: &Arc<Self>, qp: &Qp) -> Outcome<Weak<Self>> {
        if qp.cell.with(ferrowarp::Qp::state) != QpState::Idle {
            return Err(Errno::EINVAL);
        }
        let mut connection = qp.connection.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(std::mem::replace(&mut connection, Arc::downgrade(self)))
    }

    /// It could not be connected: ties it to the ID of before, unless another one has it by now.
    fn untie(self: &Arc<Self>, qp: &Qp, before: Weak<Self>) {
        let mut connection = qp.connection.lock().unwrap_or_else(PoisonError::into_inner);
        if std::ptr::eq(connection.as_ptr(), Arc::as_ptr(self)) {
            *connection = before;
        }
    }

    fn connect(handle: Handle<Self>, param: Option<&rdma_conn_param>) -> Outcome {
        let id = handle.get()?;
        let mut inner = id.lock();
        let (State::RouteResolved, Some(local), Some(remote)) =
            (&inner.state, inner.local, inner.remote)
        else {
            return Err(Errno::EINVAL);
        };
        let conn = id.conn_param(&inner, param)?;
        let peer = id.peer_of(remote)?;
        let conn = conn.local_address(local.ip().to_canonical()).local_port(local.port());
        let handle = id.find_qp(param)?;
        let qp = handle.get()?;
        let before = id.tie(&qp)?;
        let connect = |conn| qp.cell.with(|qp| qp.connect(peer, conn));
        let connected = match connect(conn.clone()) {
            // Another connection to that peer has the port: one that the stack chooses will do.
            Err(CmError::PortInUse(_) | CmError::ConnectionExists(_)) if !inner.has_own_port => {
                connect(conn.local_port(0_u16))
            }
            connected => connected,
        };
        connected.inspect_err(|_| id.untie(&qp, before))?;
        (inner.state, inner.qp) = (State::Connecting, handle);
        Ok(())
    }

    fn accept(handle: Handle<Self>, param: Option<&rdma_conn_param>) -> Outcome {
        let id = handle.get()?;
        let mut inner = id.lock();
        let State::Requested(request) = &inner.state else { return Err(Errno::EINVAL) };
        let offer = request.offer();
        let mut conn = id.conn_param(&inner, param)?;
        if param.is_none() {
            (conn.ird, conn.ord) = (offer.ird, offer.ord);
        }
        // What the program grants is what the peer gets.
        conn.ird_max = conn.ird;
        let handle = id.find_qp(param)?;
        let qp = handle.get()?;
        let before = id.tie(&qp)?;
        let state = std::mem::replace(&mut inner.state, State::Accepting);
        let State::Requested(request) = state else { return Err(Errno::EINVAL) };
        let accepted = qp.cell.with(|qp| request.accept(qp, conn));
        accepted.map_err(|error| {
            id.untie(&qp, before);
            inner.state = State::Ended;
            match error {
                CmError::Gone => Errno(libc::ECONNRESET),
                error => error.into(),
            }
        })?;
        inner.qp = handle;
        Ok(())
    }

    fn reject(handle: Handle<Self>, private_data: &[u8]) -> Outcome {
        let id = handle.get()?;
        let mut inner = id.lock();
        if !matches!(inner.state, State::Requested(_)) {
            return Err(Errno::EINVAL);
        }
        let State::Requested(request) = std::mem::replace(&mut inner.state, State::Ended) else {
            return Err(Errno::EINVAL);
        };
        match request.reject(private_data) {
            // The peer has given up.
            Ok(()) | Err(CmError::Gone) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The queue pair has an event.
    pub(crate) fn on_event(self: &Arc<Self>, event: ConnEvent) {
        let mut inner = self.lock();
        match event {
            ConnEvent::Established { info, .. } => self.on_established(&mut inner, &info),
            ConnEvent::ConnectFailed { error, private_data, .. } => {
                let (kind, status) = match inner.state {
                    State::Connecting => failure(error),
                    State::Accepting => (RDMA_CM_EVENT_CONNECT_ERROR, failure(error).1),
                    _ => return,
                };
                inner.state = State::Ended;
                self.report(&inner, kind, status, Param::of_bytes(&private_data));
            }
            ConnEvent::Disconnected { reason, .. } => self.on_end(&mut inner, Some(reason)),
            _ => {}
        }
    }

    fn on_established(self: &Arc<Self>, inner: &mut Inner, info: &ConnInfo) {
        let is_active = matches!(inner.state, State::Connecting);
        if !is_active && !matches!(inner.state, State::Accepting) {
            return;
        }
        inner.state = State::Connected;
        let mut local = info.local;
        if let Some(bound) = inner.local.filter(|bound| bound.is_ipv4() != local.is_ipv4()) {
            // The program wrote an IPv4-mapped address.
            local.set_ip(bound.ip());
        }
        let remote = inner.remote;
        self.set_addresses(inner, local, remote);
        // The passive end has had the private data with the request.
        let param = if is_active { Param::of_info(info) } else { Param::of_depths(info) };
        self.report(inner, RDMA_CM_EVENT_ESTABLISHED, 0, param);
    }
}

/// The event, and its status, of a connection that could not be set up, as the kernel has them for
/// iWARP.
fn failure(error: ConnectError) -> (rdma_cm_event_type, c_int) {
    let (kind, error) = match error {
        ConnectError::Rejected | ConnectError::Refused => {
            (RDMA_CM_EVENT_REJECTED, libc::ECONNREFUSED)
        }
        ConnectError::Reset => (RDMA_CM_EVENT_REJECTED, libc::ECONNRESET),
        ConnectError::TimedOut => (RDMA_CM_EVENT_UNREACHABLE, libc::ETIMEDOUT),
        ConnectError::Unreachable => (RDMA_CM_EVENT_UNREACHABLE, libc::EHOSTUNREACH),
        ConnectError::LinkDown => (RDMA_CM_EVENT_UNREACHABLE, libc::ENETUNREACH),
        ConnectError::TooManyReads => (RDMA_CM_EVENT_CONNECT_ERROR, libc::ENOMEM),
        ConnectError::Local => (RDMA_CM_EVENT_CONNECT_ERROR, libc::ECONNABORTED),
        _ => (RDMA_CM_EVENT_CONNECT_ERROR, libc::EPROTO),
    };
    (kind, -error)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn rdma_connect(id: Handle<Id>, param: Option<&rdma_conn_param>) -> c_int {
    call_with_event(id, || Id::connect(id, param), || Id::complete(id))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn rdma_accept(id: Handle<Id>, param: Option<&rdma_conn_param>) -> c_int {
    call_with_event(id, || Id::accept(id, param), || Id::complete(id))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_reject(id: Handle<Id>, private_data: *const c_void, len: u8) -> MinusOne {
    MinusOne::of(|| Id::reject(id, &bytes(private_data, len)))
}

/// The stack completes each connection itself.
#[unsafe(no_mangle)]
extern "C" fn rdma_establish(id: Handle<Id>) -> MinusOne {
    MinusOne::of(|| id.get().map(drop))
}

/// There is nothing that the stack does not notice.
#[unsafe(no_mangle)]
extern "C" fn rdma_notify(id: Handle<Id>, _event: c_int) -> MinusOne {
    MinusOne::of(|| id.get().map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_events_of_the_kernel() {
        let refused = (RDMA_CM_EVENT_REJECTED, -libc::ECONNREFUSED);
        assert_eq!(failure(ConnectError::Rejected), refused);
        assert_eq!(failure(ConnectError::Refused), refused);
        let silent = (RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT);
        assert_eq!(failure(ConnectError::TimedOut), silent);
        assert_eq!(failure(ConnectError::Protocol).0, RDMA_CM_EVENT_CONNECT_ERROR);
    }
}
