//! Events: what becomes a `rdma_cm_event` when the program gets it.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use ferrowarp::{ConnInfo, ConnRequest};

use crate::abi::{
    RDMA_CM_EVENT_CONNECT_REQUEST, rdma_cm_event, rdma_cm_event_type, rdma_conn_param,
};
use crate::cm::id::Id;
use crate::errno::Outcome;
use crate::object::exposed::{Exposed, Handle, Registry, expose};
use crate::object::users::Users;

/// Bytes of private data that an event can show.
const PRIVATE_DATA_LEN_MAX: usize = u8::MAX as usize;

/// An event that the program has not got.
pub(super) struct Pending {
    /// The ID that it is about; of a connection request the listener.
    pub(super) id: Arc<Id>,
    kind: rdma_cm_event_type,
    /// 0, or a negative error number.
    status: c_int,
    param: Param,
    /// Becomes an ID when the program gets the event; rejected if it never does.
    request: Option<ConnRequest>,
}

/// Parameters of a connection that the peer has sent.
#[derive(Debug)]
pub(super) struct Param {
    private_data: Arc<[u8]>,
    responder_resources: u8,
    initiator_depth: u8,
}

impl Default for Param {
    fn default() -> Self {
        Self { private_data: Arc::new([]), responder_resources: 0, initiator_depth: 0 }
    }
}

impl Param {
    /// Private data.
    pub(super) fn of_bytes(bytes: &[u8]) -> Self {
        let bytes = &bytes[..bytes.len().min(PRIVATE_DATA_LEN_MAX)];
        Self { private_data: bytes.into(), ..Self::default() }
    }

    /// What the peer has sent.
    pub(super) fn of_info(info: &ConnInfo) -> Self {
        Self {
            private_data: Self::of_bytes(&info.private_data).private_data,
            ..Self::of_depths(info)
        }
    }

    /// What the peer has sent, but for private data.
    pub(super) fn of_depths(info: &ConnInfo) -> Self {
        let narrow = |depth: u16| depth.try_into().unwrap_or(u8::MAX);
        // Before revision 2 peers do not tell: some programs take 0 for a peer without Reads.
        let least = if info.revision < 2 { 1 } else { 0 };
        Self {
            responder_resources: narrow(info.ird.max(least)),
            initiator_depth: narrow(info.ord.max(least)),
            ..Self::default()
        }
    }

    fn public(&self) -> rdma_conn_param {
        let data = &self.private_data;
        rdma_conn_param {
            private_data: if data.is_empty() { ptr::null() } else { data.as_ptr().cast() },
            private_data_len: data.len().try_into().unwrap_or(u8::MAX),
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            ..rdma_conn_param::default()
        }
    }
}

impl Pending {
    /// An event of an ID.
    pub(super) fn new(id: &Arc<Id>, kind: rdma_cm_event_type, status: c_int, param: Param) -> Self {
        Self { id: Arc::clone(id), kind, status, param, request: None }
    }

    /// A connection request to a listener.
    pub(super) fn of_request(listener: &Arc<Id>, request: ConnRequest) -> Self {
        let param = Param::of_info(request.offer());
        let request = Some(request);
        let kind = RDMA_CM_EVENT_CONNECT_REQUEST;
        Self { id: Arc::clone(listener), kind, status: 0, param, request }
    }

    /// The program gets it: from now on its ID waits for the acknowledgment.
    pub(super) fn on_taken(&self) {
        self.id.acks.report();
    }

    /// Shows it to the program.
    pub(super) fn show(self) -> Outcome<Handle<Event>> {
        let Self { id, kind, status, param, request } = self;
        let mut public = rdma_cm_event { event: kind, status, ..rdma_cm_event::default() };
        match request {
            None => public.id = id.handle().as_ptr(),
            Some(request) => {
                let child = Id::of_request(&id, request);
                id.on_request_taken();
                let child = child.inspect_err(|_| id.acks.acknowledge(1))?;
                (public.id, public.listen_id) = (child.as_ptr(), id.handle().as_ptr());
            }
        }
        public.param.conn = param.public();
        Ok(expose(Event { id, _param: param, users: Users::default() }, public))
    }
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pending").field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// An event that the program has got and not acknowledged.
#[derive(Debug)]
pub(super) struct Event {
    id: Arc<Id>,
    /// Has the private data that the program reads.
    _param: Param,
    users: Users,
}

impl Exposed for Event {
    type Public = rdma_cm_event;
    type Pointee = rdma_cm_event;

    fn registry() -> &'static Registry<Self> {
        static EVENTS: Registry<Event> = Registry::new();
        &EVENTS
    }

    fn users(&self) -> &Users {
        &self.users
    }
}

impl Event {
    /// The program has done with it.
    ///
    /// # Errors
    /// `EINVAL`: it is none, or was acknowledged before.
    pub(super) fn acknowledge(handle: Handle<Self>) -> Outcome {
        handle.remove()?.id.acks.acknowledge(1);
        Ok(())
    }

    /// What the program sees.
    pub(super) fn public(handle: Handle<Self>) -> rdma_cm_event {
        let mut event = rdma_cm_event::default();
        handle.change(|public| event = *public);
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_is_cut_to_the_length_that_an_event_can_show() {
        let param = Param::of_bytes(&[7; 300]).public();
        assert_eq!(param.private_data_len, 255);
        assert!(Param::default().public().private_data.is_null());
    }
}
