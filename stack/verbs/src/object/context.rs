//! Contexts: what `ibv_open_device` returns. All of them share the stack.

use std::mem::offset_of;
use std::sync::{Arc, Mutex, PoisonError};

use crate::abi::{VerbsContext, ibv_context, verbs_context};
use crate::engine::{Engine, engine};
use crate::errno::{Code, Outcome};
use crate::event_queue::EventQueue;
use crate::object::async_event::AsyncEvent;
use crate::object::device::device;
use crate::object::exposed::{Exposed, Handle, Registry, expose};
use crate::object::users::{Users, Using};
use crate::object::{qp, query};
use crate::{poll, post};

/// An open device.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) engine: &'static Engine,
    pub(crate) events: EventQueue<AsyncEvent>,
    users: Users,
}

impl Exposed for Context {
    type Public = VerbsContext;
    type Pointee = ibv_context;
    const OFFSET: usize = offset_of!(VerbsContext, verbs) + offset_of!(verbs_context, context);

    fn registry() -> &'static Registry<Self> {
        static CONTEXTS: Registry<Context> = Registry::new();
        &CONTEXTS
    }

    fn users(&self) -> &Users {
        &self.users
    }
}

impl Context {
    /// Opens the device.
    pub(crate) fn open() -> Outcome<Handle<Self>> {
        let engine = engine()?;
        let events = EventQueue::new()?;
        let mut public = VerbsContext::default();
        let verbs = &mut public.verbs;
        verbs.sz = VerbsContext::LEN;
        verbs.query_port = Some(query::query_port);
        verbs.query_device_ex = Some(query::query_device_ex);
        verbs.create_qp_ex = Some(qp::create_qp_ex);
        let context = &mut verbs.context;
        context.device = device().as_ptr();
        // Inline helpers take all ones for the mark of a `verbs_context`.
        context.abi_compat = usize::MAX as *mut _;
        context.cmd_fd = -1;
        context.async_fd = events.fd();
        context.num_comp_vectors = 1;
        let ops = &mut context.ops;
        ops.poll_cq = Some(poll::poll_cq);
        ops.req_notify_cq = Some(poll::req_notify_cq);
        ops.post_send = Some(post::post_send);
        ops.post_recv = Some(post::post_recv);
        ops.post_srq_recv = Some(post::post_srq_recv);
        Ok(expose(Self { engine, events, users: Users::default() }, public))
    }

    /// Returns the context of librdmacm: `verbs` of all its IDs. It is in use for ever, so that a
    /// program cannot close it.
    pub(crate) fn of_cm() -> Outcome<Handle<Self>> {
        static CONTEXT: Mutex<Option<(Handle<Context>, Using<Context>)>> = Mutex::new(None);
        let mut context = CONTEXT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((handle, _)) = &*context {
            return Ok(*handle);
        }
        let handle = Self::open()?;
        *context = Some((handle, Using::new(handle.get()?)));
        Ok(handle)
    }

    /// All open contexts.
    pub(crate) fn all() -> Vec<Arc<Self>> {
        Self::registry().all()
    }
}

/// Objects of the context stay usable, as with rdma-core they do not: programs free them after.
/// `EBUSY` for the context of librdmacm, which other IDs have too.
#[unsafe(no_mangle)]
extern "C" fn ibv_close_device(context: Handle<Context>) -> Code {
    Code::of(|| context.destroy())
}
