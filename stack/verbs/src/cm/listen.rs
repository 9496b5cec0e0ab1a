//! Listeners, and the requests of those who connect to them.

use std::collections::HashMap;
use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ferrowarp::{CmError, ListenAddr, Listener};

use crate::abi::{RDMA_CM_EVENT_CONNECT_REQUEST, rdma_cm_id};
use crate::cm::event::{Event, Pending};
use crate::cm::id::{Id, Inner, State};
use crate::errno::{Errno, MinusOne, Outcome};
use crate::object::exposed::Handle;
use crate::program;
use crate::wait::{Taken, take_event};

/// Requests that wait for the program if it does not say how many, as in the kernel.
const BACKLOG: usize = 1024;

/// A listener.
#[derive(Debug)]
pub(super) struct Listening {
    /// `None`: the device has no address of the family, so that nobody can connect.
    listener: Option<Listener>,
    /// One request is on its way to the program. The others wait in the listener: its backlog
    /// counts them.
    is_reported: bool,
}

/// The IDs that listen.
static LISTENERS: Mutex<Option<HashMap<ListenAddr, Weak<Id>>>> = Mutex::new(None);

fn listeners() -> MutexGuard<'static, Option<HashMap<ListenAddr, Weak<Id>>>> {
    LISTENERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A listener has requests.
pub(crate) fn on_connect_requests(listener: ListenAddr) {
    let id = listeners().as_ref().and_then(|listeners| listeners.get(&listener)?.upgrade());
    if let Some(id) = id {
        id.report_request(&mut id.lock());
    }
}

/// Where an ID listens: an IPv6 wildcard stands for both families, unless it is restricted. Of two
/// listeners on a port, one for each family, the more specific one gets the requests.
fn listen_addr(local: SocketAddr, is_bound_to_device: bool, af_only: bool) -> ListenAddr {
    match local {
        _ if is_bound_to_device => local.into(),
        SocketAddr::V6(local) if !af_only => local.port().into(),
        SocketAddr::V4(local) => (Ipv4Addr::UNSPECIFIED, local.port()).into(),
        SocketAddr::V6(local) => (std::net::Ipv6Addr::UNSPECIFIED, local.port()).into(),
    }
}

impl Id {
    fn listen(handle: Handle<Self>, backlog: c_int) -> Outcome {
        let id = handle.get()?;
        let mut inner = id.lock();
        if matches!(inner.state, State::Idle) {
            id.bind(&mut inner, SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0))?;
        }
        let (State::Bound, Some(local)) = (&inner.state, inner.local) else {
            return Err(Errno::EINVAL);
        };
        let is_bound_to_device = !Self::public(handle).verbs.is_null();
        let addr = listen_addr(id.zoned(local)?, is_bound_to_device, inner.options.af_only);
        let backlog = usize::try_from(backlog).ok().filter(|backlog| *backlog > 0);
        let listener = match id.engine.context.listen(addr, backlog.unwrap_or(BACKLOG)) {
            Ok(listener) => Some(listener),
            Err(CmError::NoAddressOfFamily) => None,
            Err(error) => return Err(error.into()),
        };
        let at = listener.as_ref().map(Listener::local_addr);
        inner.state = State::Listening(Listening { listener, is_reported: false });
        if let Some(at) = at {
            listeners().get_or_insert_default().insert(at, Arc::downgrade(&id));
        }
        // The dispatcher may have looked for the ID before.
        id.report_request(&mut inner);
        Ok(())
    }

    /// Reports the oldest request, unless one is reported.
    fn report_request(self: &Arc<Self>, inner: &mut Inner) {
        let State::Listening(Listening { listener: Some(listener), is_reported }) =
            &mut inner.state
        else {
            return;
        };
        if !*is_reported && let Some(request) = listener.next_request() {
            *is_reported = true;
            inner.report(Pending::of_request(self, request));
        }
    }

    /// The program has got a request: reports the next one.
    pub(super) fn on_request_taken(self: &Arc<Self>) {
        let mut inner = self.lock();
        if let State::Listening(listening) = &mut inner.state {
            listening.is_reported = false;
        }
        self.report_request(&mut inner);
    }

    /// Takes a request of a synchronous listener, if there is one.
    fn take_request(handle: Handle<Self>, child: *mut *mut rdma_cm_id) -> Outcome<Taken> {
        let id = handle.get()?;
        let channel = id.own_channel().ok_or(Errno::EINVAL)?;
        if child.is_null() {
            return Err(Errno::EINVAL);
        }
        id.release_event();
        let Some(event) = channel.take()? else { return Ok(Taken::Wait(channel.events.fd())) };
        let public = Event::public(event);
        if public.event != RDMA_CM_EVENT_CONNECT_REQUEST {
            id.show_event(event);
            return Err(Errno::EINVAL);
        }
        let requested = Handle::<Self>::of(public.id);
        if let Err(error) = id.create_qp_of_template(requested) {
            Event::acknowledge(event)?;
            // Rejects the request.
            Self::destroy(requested)?;
            return Err(error);
        }
        requested.get()?.show_event(event);
        program::write(child, requested.as_ptr())?;
        Ok(Taken::Event)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(listener) = &self.listener
            && let Some(listeners) = &mut *listeners()
        {
            listeners.remove(&listener.local_addr());
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn rdma_listen(id: Handle<Id>, backlog: c_int) -> MinusOne {
    MinusOne::of(|| Id::listen(id, backlog))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn rdma_get_request(listener: Handle<Id>, id: *mut *mut rdma_cm_id) -> c_int {
    take_event(|| Id::take_request(listener, id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_of_ipv6_covers_ipv4_unless_it_is_restricted() {
        let addr = |text: &str, is_bound, af_only| {
            listen_addr(text.parse().expect(text), is_bound, af_only).to_string()
        };
        assert_eq!(addr("[::]:9", false, false), "*:9");
        assert_eq!(addr("[::]:9", false, true), "[::]:9");
        assert_eq!(addr("0.0.0.0:9", false, false), "0.0.0.0:9");
        assert_eq!(addr("127.0.0.1:9", false, false), "0.0.0.0:9");
        assert_eq!(addr("198.18.0.1:9", true, false), "198.18.0.1:9");
    }
}
