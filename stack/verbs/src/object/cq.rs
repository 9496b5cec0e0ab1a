//! Completion queues.

use std::ffi::{c_int, c_void};

use ferrowarp::CqOptions;

use crate::abi::ibv_cq;
use crate::engine::Engine;
use crate::errno::{Code, Errno, Outcome, Pointer};
use crate::object::acks::Acks;
use crate::object::async_event::AsyncEvent;
use crate::object::comp_channel::CompChannel;
use crate::object::context::Context;
use crate::object::exposed::{Exposed, Handle, Registry, expose};
use crate::object::users::{Users, Using};

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) inner: ferrowarp::Cq,
    pub(crate) engine: &'static Engine,
    pub(crate) context: Handle<Context>,
    channel: Option<Using<CompChannel>>,
    /// What the program has named it.
    user_context: usize,
    pub(crate) comp_acks: Acks,
    pub(crate) async_acks: Acks,
    users: Users,
}

impl Exposed for Cq {
    type Public = ibv_cq;
    type Pointee = ibv_cq;

    fn registry() -> &'static Registry<Self> {
        static CQS: Registry<Cq> = Registry::new();
        &CQS
    }

    fn users(&self) -> &Users {
        &self.users
    }
}

impl Cq {
    /// Creates a queue of at least `entries`.
    pub(crate) fn create(
        context: Handle<Context>,
        entries: c_int,
        user_context: *mut c_void,
        channel: Handle<CompChannel>,
        vector: c_int,
    ) -> Outcome<Handle<Self>> {
        let engine = context.get()?.engine;
        let entries = usize::try_from(entries).ok().filter(|entries| *entries > 0);
        let entries = entries.ok_or(Errno::EINVAL)?;
        if vector != 0 {
            return Err(Errno::EINVAL);
        }
        let using = channel.get_optional()?.map(Using::new);
        let mut options = CqOptions::new(entries);
        options.channel = using.as_ref().map(|channel| &channel.inner);
        let inner = engine.context.create_cq_with(&options)?;
        let public = ibv_cq {
            context: context.as_ptr(),
            channel: channel.as_ptr(),
            cq_context: user_context,
            cqe: c_int::try_from(inner.capacity()).unwrap_or(c_int::MAX),
            ..ibv_cq::default()
        };
        let id = inner.id();
        let cq = Self {
            inner,
            engine,
            context,
            channel: using,
            user_context: user_context.expose_provenance(),
            comp_acks: Acks::default(),
            async_acks: Acks::default(),
            users: Users::default(),
        };
        let handle = expose(cq, public);
        if let Some(channel) = &handle.get()?.channel {
            channel.add(id, handle);
        }
        engine.objects.cqs.add(id, handle);
        Ok(handle)
    }

    /// What the program has named it.
    pub(crate) fn user_context(&self) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.user_context)
    }

    /// Destroys it, once the program has acknowledged its events.
    pub(crate) fn destroy(handle: Handle<Self>) -> Outcome {
        let cq = handle.get()?;
        if cq.users.any() {
            return Err(Errno::EBUSY);
        }
        // No event from now on.
        if let Some(channel) = &cq.channel {
            channel.remove(cq.inner.id());
        }
        cq.engine.objects.cqs.remove(cq.inner.id());
        AsyncEvent::CqError(handle).forget(cq.context);
        cq.comp_acks.wait();
        cq.async_acks.wait();
        let context = cq.context;
        drop(cq);
        handle.destroy()?;
        // One may have been on its way.
        AsyncEvent::CqError(handle).forget(context);
        Ok(())
    }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_cq(
    context: Handle<Context>,
    entries: c_int,
    cq_context: *mut c_void,
    channel: Handle<CompChannel>,
    vector: c_int,
) -> Pointer<ibv_cq> {
    Pointer::of(|| Ok(Cq::create(context, entries, cq_context, channel, vector)?.as_ptr()))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_resize_cq(cq: Handle<Cq>, entries: c_int) -> Code {
    Code::of(|| {
        let object = cq.get()?;
        let entries = usize::try_from(entries).ok().filter(|entries| *entries > 0);
        object.inner.resize(entries.ok_or(Errno::EINVAL)?)?;
        let capacity = c_int::try_from(object.inner.capacity()).unwrap_or(c_int::MAX);
        cq.change(|public| public.cqe = capacity);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_cq(cq: Handle<Cq>) -> Code {
    Code::of(|| Cq::destroy(cq))
}
