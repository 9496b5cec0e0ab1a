//! IDs: `rdma_cm_id`.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ferrowarp::ConnRequest;

use crate::abi::{
    IBV_QPT_RC, RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_CM_EVENT_REJECTED, RDMA_PS_TCP, rdma_cm_event,
    rdma_cm_event_type, rdma_cm_id, rdma_port_space,
};
use crate::cm::channel::Channel;
use crate::cm::endpoint::QpTemplate;
use crate::cm::event::{Event, Param, Pending};
use crate::cm::listen::Listening;
use crate::cm::memory::storage;
use crate::cm::option::Options;
use crate::cm::ports::Lease;
use crate::cm::queue_pair::default_pd;
use crate::engine::{Engine, engine};
use crate::errno::{Errno, MinusOne, Outcome, run};
use crate::object::acks::Acks;
use crate::object::context::Context;
use crate::object::exposed::{Exposed, Handle, Registry, expose};
use crate::object::qp::Qp;
use crate::object::users::Users;
use crate::program;
use crate::report::report;
use crate::wait::{Taken, take_event};

/// An ID.
#[derive(Debug)]
pub(crate) struct Id {
    pub(super) engine: &'static Engine,
    handle: OnceLock<Handle<Self>>,
    inner: Mutex<Inner>,
    pub(super) acks: Acks,
    users: Users,
}

/// What changes in the life of an ID.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) state: State,
    /// It has been, or is being, destroyed: no event is reported any more.
    is_destroyed: bool,
    channel: Arc<Channel>,
    /// The channel, if the ID is synchronous and has it for itself.
    own_channel: Option<Handle<Channel>>,
    pub(super) options: Options,
    pub(super) local: Option<SocketAddr>,
    pub(super) remote: Option<SocketAddr>,
    pub(super) lease: Option<Lease>,
    /// The program has chosen the local port.
    pub(super) has_own_port: bool,
    /// The queue pair that is, or was, connected.
    pub(super) qp: Handle<Qp>,
    /// Queue pairs for those who connect to this listener (`rdma_create_ep`).
    pub(super) template: Option<QpTemplate>,
}

/// State of an ID.
///
/// | From | By | To |
/// |---|---|---|
/// | `Idle` | `rdma_bind_addr` | `Bound` |
/// | `Idle`, `Bound` | `rdma_resolve_addr` | `AddrResolved` |
/// | `AddrResolved` | `rdma_resolve_route` | `RouteResolved` |
/// | `RouteResolved` | `rdma_connect` | `Connecting` |
/// | `Idle`, `Bound` | `rdma_listen` | `Listening` |
/// | (none) | connection request | `Requested` |
/// | `Requested` | `rdma_accept` | `Accepting` |
/// | `Requested` | `rdma_reject` | `Ended` |
/// | `Connecting`, `Accepting` | MPA exchange | `Connected` |
/// | `Connecting`, `Accepting` | failure | `Ended` |
/// | `Connected` | `rdma_disconnect` | `Closing` |
/// | `Connected`, `Closing` | end of the connection or of the queue pair | `Ended` |
///
/// A call in any other state fails with `EINVAL`; `rdma_disconnect` after the end does nothing.
#[derive(Debug)]
pub(super) enum State {
    Idle,
    Bound,
    AddrResolved,
    RouteResolved,
    Connecting,
    Listening(Listening),
    Requested(Box<ConnRequest>),
    Accepting,
    Connected,
    Closing,
    Ended,
}

impl Exposed for Id {
    type Public = rdma_cm_id;
    type Pointee = rdma_cm_id;

    fn registry() -> &'static Registry<Self> {
        static IDS: Registry<Id> = Registry::new();
        &IDS
    }

    fn users(&self) -> &Users {
        &self.users
    }
}

impl Inner {
    fn new(state: State, channel: Arc<Channel>, own_channel: Option<Handle<Channel>>) -> Self {
        Self {
            state,
            is_destroyed: false,
            channel,
            own_channel,
            options: Options::default(),
            local: None,
            remote: None,
            lease: None,
            has_own_port: false,
            qp: Handle::of(std::ptr::null_mut()),
            template: None,
        }
    }

    pub(super) fn is_synchronous(&self) -> bool {
        self.own_channel.is_some()
    }

    /// Reports an event, unless the ID has been destroyed.
    pub(super) fn report(&self, event: Pending) {
        if !self.is_destroyed {
            self.channel.events.push(event);
        }
    }
}

impl Id {
    /// Creates an ID; without a channel it is synchronous.
    pub(super) fn create(
        channel: Handle<Channel>,
        user_context: *mut c_void,
        state: State,
    ) -> Outcome<Handle<Self>> {
        let engine = engine()?;
        let own = channel.is_null().then(Channel::create).transpose()?;
        let shown = own.unwrap_or(channel);
        let public = rdma_cm_id {
            channel: shown.as_ptr(),
            context: user_context,
            ps: RDMA_PS_TCP,
            qp_type: IBV_QPT_RC,
            ..rdma_cm_id::default()
        };
        let id = Self {
            engine,
            handle: OnceLock::new(),
            inner: Mutex::new(Inner::new(state, shown.get()?, own)),
            acks: Acks::default(),
            users: Users::default(),
        };
        let handle = expose(id, public);
        let _ = handle.get()?.handle.set(handle);
        Ok(handle)
    }

    /// Creates the ID of a connection request. It has the channel of its listener, or one of its
    /// own if that is synchronous.
    pub(super) fn of_request(listener: &Self, request: ConnRequest) -> Outcome<Handle<Self>> {
        let shown = Self::public(listener.handle());
        let is_synchronous = listener.lock().is_synchronous();
        let channel = if is_synchronous { std::ptr::null_mut() } else { shown.channel };
        let (local, remote) = (request.offer().local, request.offer().peer);
        let state = State::Requested(Box::new(request));
        let handle = Self::create(Handle::of(channel), shown.context, state)?;
        let id = handle.get()?;
        let mut inner = id.lock();
        inner.options = listener.lock().options;
        id.set_addresses(&mut inner, local, Some(remote));
        drop(inner);
        if let Err(error) = id.set_device() {
            // Rejects the request.
            Self::destroy(handle)?;
            return Err(error);
        }
        Ok(handle)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pointer of the program.
    pub(super) fn handle(&self) -> Handle<Self> {
        let null = || Handle::of(std::ptr::null_mut());
        self.handle.get().copied().unwrap_or_else(null)
    }

    /// What the program sees.
    pub(super) fn public(handle: Handle<Self>) -> rdma_cm_id {
        let mut id = rdma_cm_id::default();
        handle.change(|public| id = *public);
        id
    }

    /// Shows the program addresses, and keeps them.
    pub(super) fn set_addresses(
        &self,
        inner: &mut Inner,
        local: SocketAddr,
        remote: Option<SocketAddr>,
    ) {
        (inner.local, inner.remote) = (Some(local), remote);
        self.handle().change(|public| {
            let address = &mut public.route.addr;
            address.__bindgen_anon_1.src_storage = storage(local).0;
            if let Some(remote) = remote {
                address.__bindgen_anon_2.dst_storage = storage(remote).0;
            }
        });
    }

    /// Binds it to the device.
    pub(super) fn set_device(&self) -> Outcome {
        let (context, pd) = (Context::of_cm()?, default_pd()?);
        self.handle().change(|public| {
            (public.verbs, public.port_num) = (context.as_ptr(), 1);
            if public.pd.is_null() {
                public.pd = pd.as_ptr();
            }
        });
        Ok(())
    }

    /// Reports an event.
    pub(super) fn report(
        self: &Arc<Self>,
        inner: &Inner,
        kind: rdma_cm_event_type,
        status: c_int,
        param: Param,
    ) {
        inner.report(Pending::new(self, kind, status, param));
    }

    /// The channel, if the ID is synchronous.
    pub(super) fn own_channel(&self) -> Option<Arc<Channel>> {
        let inner = self.lock();
        inner.is_synchronous().then(|| Arc::clone(&inner.channel))
    }

    /// Acknowledges the event that a synchronous ID shows.
    pub(super) fn release_event(&self) {
        let null = std::ptr::null_mut();
        let mut event = null;
        self.handle().change(|public| event = std::mem::replace(&mut public.event, null));
        let _ = Event::acknowledge(Handle::of(event));
    }

    /// Shows an event in a synchronous ID.
    pub(super) fn show_event(&self, event: Handle<Event>) {
        self.handle().change(|public| public.event = event.as_ptr());
    }

    /// Ends a call of a synchronous ID: takes its event.
    ///
    /// # Errors
    /// The error of the event.
    pub(super) fn complete(handle: Handle<Self>) -> Outcome<Taken> {
        let id = handle.get()?;
        let channel = id.own_channel().ok_or(Errno::EINVAL)?;
        id.release_event();
        let Some(event) = channel.take()? else { return Ok(Taken::Wait(channel.events.fd())) };
        id.show_event(event);
        error_of(&Event::public(event)).map_or(Ok(Taken::Event), Err)
    }

    /// Destroys it, once the program has acknowledged its events.
    pub(super) fn destroy(handle: Handle<Self>) -> Outcome {
        let id = handle.get()?;
        let mut inner = id.lock();
        if std::mem::replace(&mut inner.is_destroyed, true) {
            return Err(Errno::EINVAL);
        }
        let state = std::mem::replace(&mut inner.state, State::Ended);
        let left = (inner.lease.take(), inner.qp);
        let (channel, own_channel) = (Arc::clone(&inner.channel), inner.own_channel);
        drop(inner);
        id.release_event();
        id.leave_qp(left.1, &state);
        // Requests are rejected.
        drop((state, left.0));
        drop(channel.events.remove(|event| Arc::ptr_eq(&event.id, &id)));
        id.acks.wait();
        handle.remove()?;
        own_channel.map_or(Ok(()), Channel::destroy)
    }

    /// Moves it, with its events, to another channel, or makes it synchronous.
    fn migrate(handle: Handle<Self>, channel: Handle<Channel>) -> Outcome {
        let id = handle.get()?;
        let own = channel.is_null().then(Channel::create).transpose()?;
        let shown = own.unwrap_or(channel);
        let new = shown.get()?;
        id.release_event();
        let mut inner = id.lock();
        for event in inner.channel.events.remove(|event| Arc::ptr_eq(&event.id, &id)) {
            new.events.push(event);
        }
        inner.channel = new;
        let old = std::mem::replace(&mut inner.own_channel, own);
        drop(inner);
        handle.change(|public| public.channel = shown.as_ptr());
        id.acks.wait();
        old.map_or(Ok(()), Channel::destroy)
    }
}

/// The error of an event, for a synchronous call.
fn error_of(event: &rdma_cm_event) -> Option<Errno> {
    match event.event {
        RDMA_CM_EVENT_REJECTED => Some(Errno(libc::ECONNREFUSED)),
        RDMA_CM_EVENT_DEVICE_REMOVAL => Some(Errno::ENODEV),
        _ if event.status != 0 => Some(Errno(event.status.saturating_abs())),
        _ => None,
    }
}

/// Runs the body of a call that has an event, which `complete` takes if the ID is synchronous.
/// Returns 0, or -1 with `errno`.
///
/// It waits as `take_event` does. An ID with a channel is not looked at after the body: another
/// thread may have got the event, and destroyed the ID.
#[inline(always)]
pub(super) fn call_with_event(
    id: Handle<Id>,
    body: impl FnOnce() -> Outcome,
    complete: impl Fn() -> Outcome<Taken> + Copy,
) -> c_int {
    let started = run(|| {
        let is_synchronous = id.get()?.lock().is_synchronous();
        body().map(|()| is_synchronous)
    });
    match started {
        Ok(true) => take_event(complete),
        Ok(false) => 0,
        Err(_) => -1,
    }
}

/// The stack has failed: reports it to all IDs of the device.
pub(crate) fn on_device_removal() {
    for id in Id::registry().all() {
        if !Id::public(id.handle()).verbs.is_null() {
            id.report(&id.lock(), RDMA_CM_EVENT_DEVICE_REMOVAL, 0, Param::default());
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn rdma_create_id(
    channel: Handle<Channel>,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> MinusOne {
    MinusOne::of(|| {
        if id.is_null() {
            return Err(Errno::EINVAL);
        }
        check_port_space(ps)?;
        program::write(id, Id::create(channel, context, State::Idle)?.as_ptr())
    })
}

/// # Errors
/// `EOPNOTSUPP`, and a line on standard error, for spaces without connections.
pub(super) fn check_port_space(ps: rdma_port_space) -> Outcome {
    if ps == RDMA_PS_TCP {
        return Ok(());
    }
    report("iWARP has reliable connections only: the port space has to be RDMA_PS_TCP");
    Err(Errno::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
extern "C" fn rdma_destroy_id(id: Handle<Id>) -> MinusOne {
    MinusOne::of(|| Id::destroy(id))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_migrate_id(id: Handle<Id>, channel: Handle<Channel>) -> MinusOne {
    MinusOne::of(|| Id::migrate(id, channel))
}
