//! Shared receive queues.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use ferrowarp::SrqOptions;

use crate::abi::{IBV_SRQ_LIMIT, IBV_SRQ_MAX_WR, ibv_srq, ibv_srq_attr, ibv_srq_init_attr};
use crate::engine::Engine;
use crate::errno::{Code, Errno, Outcome, Pointer};
use crate::object::acks::Acks;
use crate::object::async_event::AsyncEvent;
use crate::object::context::Context;
use crate::object::exposed::{Exposed, Handle, Registry, expose};
use crate::object::pd::Pd;
use crate::object::users::{Users, Using};
use crate::out::{Out, fill};

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) inner: ferrowarp::Srq,
    engine: &'static Engine,
    pub(crate) context: Handle<Context>,
    _pd: Using<Pd>,
    max_wr: u32,
    max_sge: u32,
    /// The limit that is armed; 0 if none is.
    limit: AtomicU32,
    pub(crate) acks: Acks,
    users: Users,
}

impl Exposed for Srq {
    type Public = ibv_srq;
    type Pointee = ibv_srq;

    fn registry() -> &'static Registry<Self> {
        static SRQS: Registry<Srq> = Registry::new();
        &SRQS
    }

    fn users(&self) -> &Users {
        &self.users
    }
}

impl Srq {
    /// Creates a queue as `attr` asks; its limit is for `ibv_modify_srq` alone.
    pub(crate) fn create(
        pd_handle: Handle<Pd>,
        user_context: *mut c_void,
        attr: &mut ibv_srq_attr,
    ) -> Outcome<Handle<Self>> {
        let pd = Using::new(pd_handle.get()?);
        let context = pd.context;
        let engine = context.get()?.engine;
        if attr.max_wr == 0 {
            return Err(Errno::EINVAL);
        }
        let max_sge = attr.max_sge.max(1);
        let options = SrqOptions::new(attr.max_wr as usize).max_sge(max_sge as usize);
        let inner = pd.inner.create_srq_with(&options)?;
        attr.max_sge = max_sge;
        let public = ibv_srq {
            context: context.as_ptr(),
            srq_context: user_context,
            pd: pd_handle.as_ptr(),
            ..ibv_srq::default()
        };
        let id = inner.id();
        let srq = Self {
            inner,
            engine,
            context,
            _pd: pd,
            max_wr: attr.max_wr,
            max_sge,
            limit: AtomicU32::new(0),
            acks: Acks::default(),
            users: Users::default(),
        };
        let handle = expose(srq, public);
        engine.objects.srqs.add(id, handle);
        Ok(handle)
    }

    /// Arms the limit.
    fn arm(&self, limit: u32) -> Outcome {
        if limit > self.max_wr {
            return Err(Errno::EINVAL);
        }
        self.inner.arm(limit as usize)?;
        self.limit.store(limit, Ordering::Relaxed);
        Ok(())
    }

    /// Reports that the limit was reached, and disarms it.
    pub(crate) fn on_limit(&self, handle: Handle<Self>) {
        while self.inner.next_limit().is_some() {
            self.limit.store(0, Ordering::Relaxed);
            AsyncEvent::SrqLimit(handle).report(self.context);
        }
    }

    /// Destroys it, once the program has acknowledged its events.
    pub(crate) fn destroy(handle: Handle<Self>) -> Outcome {
        let srq = handle.get()?;
        if srq.users.any() {
            return Err(Errno::EBUSY);
        }
        srq.engine.objects.srqs.remove(srq.inner.id());
        AsyncEvent::SrqLimit(handle).forget(srq.context);
        srq.acks.wait();
        let context = srq.context;
        drop(srq);
        handle.destroy()?;
        // One may have been on its way.
        AsyncEvent::SrqLimit(handle).forget(context);
        Ok(())
    }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_srq(
    pd: Handle<Pd>,
    init: Option<&mut ibv_srq_init_attr>,
) -> Pointer<ibv_srq> {
    Pointer::of(|| {
        let init = init.ok_or(Errno::EINVAL)?;
        Ok(Srq::create(pd, init.srq_context, &mut init.attr)?.as_ptr())
    })
}

/// A queue keeps its length: `IBV_DEVICE_SRQ_RESIZE` is not among the capabilities.
#[unsafe(no_mangle)]
extern "C" fn ibv_modify_srq(srq: Handle<Srq>, attr: Option<&ibv_srq_attr>, mask: c_int) -> Code {
    Code::of(|| {
        let (srq, attr) = (srq.get()?, attr.ok_or(Errno::EINVAL)?);
        let mask: c_uint = mask.cast_unsigned();
        if mask & IBV_SRQ_MAX_WR != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if mask != IBV_SRQ_LIMIT {
            return Err(Errno::EINVAL);
        }
        srq.arm(attr.srq_limit)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_srq(srq: Handle<Srq>, attr: Out<'_, ibv_srq_attr>) -> Code {
    Code::of(|| {
        let srq = srq.get()?;
        let srq_limit = srq.limit.load(Ordering::Relaxed);
        fill(attr, ibv_srq_attr { max_wr: srq.max_wr, max_sge: srq.max_sge, srq_limit })
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_srq(srq: Handle<Srq>) -> Code {
    Code::of(|| Srq::destroy(srq))
}
