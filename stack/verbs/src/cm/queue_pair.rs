//! Queue pairs and shared receive queues of IDs.

use std::ffi::c_int;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::abi::{
    IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_QP_ACCESS_FLAGS, IBV_QP_PORT,
    IBV_QP_STATE, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_SRQ_INIT_ATTR_PD,
    IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQT_BASIC, ibv_pd, ibv_qp_attr, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex, rdma_cm_id,
};
use crate::cm::id::{Id, State};
use crate::errno::{Errno, MinusOne, Outcome, run};
use crate::object::comp_channel::CompChannel;
use crate::object::context::Context;
use crate::object::cq::Cq;
use crate::object::exposed::Handle;
use crate::object::pd::Pd;
use crate::object::qp::{Qp, named_pd};
use crate::object::srq::Srq;
use crate::program;

/// Returns the protection domain of IDs for which the program names none.
pub(super) fn default_pd() -> Outcome<Handle<Pd>> {
    static PD: Mutex<Option<Handle<Pd>>> = Mutex::new(None);
    let mut pd = PD.lock().unwrap_or_else(PoisonError::into_inner);
    match *pd {
        Some(pd) if pd.get().is_ok() => Ok(pd),
        _ => Ok(*pd.insert(Pd::allocate(Context::of_cm()?)?)),
    }
}

/// The domain that the program names, or that of the ID.
fn pd_of(id: &rdma_cm_id, named: *mut ibv_pd) -> Outcome<Handle<Pd>> {
    if id.verbs.is_null() {
        return Err(Errno::EINVAL);
    }
    let pd = if named.is_null() { id.pd } else { named };
    let pd = if pd.is_null() { default_pd()? } else { Handle::of(pd) };
    if !ptr::eq(pd.get()?.context.as_ptr(), id.verbs) {
        return Err(Errno::EINVAL);
    }
    Ok(pd)
}

/// Creates a completion queue with a channel of its own.
fn create_cq(id: Handle<Id>, entries: u32) -> Outcome<(Handle<CompChannel>, Handle<Cq>)> {
    let context = Context::of_cm()?;
    let channel = CompChannel::create(context)?;
    let entries = c_int::try_from(entries.max(1)).map_err(|_| Errno::EINVAL)?;
    let cq = Cq::create(context, entries, id.as_ptr().cast(), channel, 0);
    let cq = cq.inspect_err(|_| {
        let _ = channel.destroy();
    })?;
    Ok((channel, cq))
}

/// Creates the completion queues that the program does not name.
fn create_cqs(id: Handle<Id>, attr: &mut ibv_qp_init_attr) -> Outcome {
    let public = Id::public(id);
    for (named, own) in [(attr.send_cq, public.send_cq), (attr.recv_cq, public.recv_cq)] {
        if !named.is_null() && !own.is_null() && !ptr::eq(named, own) {
            return Err(Errno::EINVAL);
        }
    }
    if attr.recv_cq.is_null() && public.recv_cq.is_null() {
        let (channel, cq) = create_cq(id, attr.cap.max_recv_wr)?;
        id.change(|id| (id.recv_cq_channel, id.recv_cq) = (channel.as_ptr(), cq.as_ptr()));
    }
    if attr.send_cq.is_null() && public.send_cq.is_null() {
        let (channel, cq) = create_cq(id, attr.cap.max_send_wr)?;
        id.change(|id| (id.send_cq_channel, id.send_cq) = (channel.as_ptr(), cq.as_ptr()));
    }
    let public = Id::public(id);
    if attr.send_cq.is_null() {
        attr.send_cq = public.send_cq;
    }
    if attr.recv_cq.is_null() {
        attr.recv_cq = public.recv_cq;
    }
    Ok(())
}

/// Destroys the completion queues that were created for the ID; the program may have done so.
fn destroy_cqs(id: Handle<Id>) {
    let public = Id::public(id);
    id.change(|id| {
        (id.send_cq, id.recv_cq) = (ptr::null_mut(), ptr::null_mut());
        (id.send_cq_channel, id.recv_cq_channel) = (ptr::null_mut(), ptr::null_mut());
    });
    for (cq, channel) in
        [(public.send_cq, public.send_cq_channel), (public.recv_cq, public.recv_cq_channel)]
    {
        let _ = Cq::destroy(Handle::of(cq));
        let _ = Handle::<CompChannel>::of(channel).destroy();
    }
}

impl Id {
    /// Creates the queue pair of the ID.
    pub(super) fn create_qp(
        handle: Handle<Self>,
        named_pd: *mut ibv_pd,
        attr: &mut ibv_qp_init_attr,
    ) -> Outcome {
        let id = handle.get()?;
        let public = Self::public(handle);
        if !public.qp.is_null() {
            return Err(Errno::EINVAL);
        }
        let pd = pd_of(&public, named_pd)?;
        if attr.srq.is_null() {
            attr.srq = public.srq;
        }
        let created = create_cqs(handle, attr).and_then(|()| Qp::create(pd, attr));
        let qp = created.inspect_err(|_| destroy_cqs(handle))?;
        let connection = Arc::downgrade(&id);
        *qp.get()?.connection.lock().unwrap_or_else(PoisonError::into_inner) = connection;
        id.lock().qp = qp;
        handle.change(|id| (id.qp, id.pd) = (qp.as_ptr(), pd.as_ptr()));
        Ok(())
    }

    /// Destroys the queue pair of the ID, unless the program has done so, and the completion queues
    /// that were created for it.
    ///
    /// # Errors
    /// `EINVAL`: it has none; `EBUSY`: others need it.
    pub(super) fn destroy_qp(handle: Handle<Self>) -> Outcome {
        let qp = Handle::<Qp>::of(Self::public(handle).qp);
        if qp.is_null() {
            return Err(Errno::EINVAL);
        }
        if qp.get().is_ok() {
            Qp::destroy(qp)?;
        }
        handle.change(|id| id.qp = ptr::null_mut());
        destroy_cqs(handle);
        Ok(())
    }

    fn create_srq(
        handle: Handle<Self>,
        named_pd: *mut ibv_pd,
        user_context: *mut std::ffi::c_void,
        attr: &mut ibv_srq_attr,
    ) -> Outcome {
        handle.get()?;
        let public = Self::public(handle);
        if !public.srq.is_null() {
            return Err(Errno::EINVAL);
        }
        let pd = pd_of(&public, named_pd)?;
        let srq = Srq::create(pd, user_context, attr)?;
        handle.change(|id| (id.srq, id.pd) = (srq.as_ptr(), pd.as_ptr()));
        Ok(())
    }

    /// Destroys the shared receive queue of the ID.
    pub(super) fn destroy_srq(handle: Handle<Self>) -> Outcome {
        Srq::destroy(Handle::of(Self::public(handle).srq))?;
        handle.change(|id| id.srq = ptr::null_mut());
        Ok(())
    }
}

#[unsafe(no_mangle)]
extern "C" fn rdma_create_qp(
    id: Handle<Id>,
    pd: *mut ibv_pd,
    attr: Option<&mut ibv_qp_init_attr>,
) -> MinusOne {
    MinusOne::of(|| Id::create_qp(id, pd, attr.ok_or(Errno::EINVAL)?))
}

/// The extended struct begins as the plain one.
#[unsafe(no_mangle)]
extern "C" fn rdma_create_qp_ex(id: Handle<Id>, attr: *mut ibv_qp_init_attr_ex) -> MinusOne {
    MinusOne::of(|| {
        let pd = named_pd(program::at(attr)?)?.unwrap_or(ptr::null_mut());
        Id::create_qp(id, pd, program::at(attr.cast())?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn rdma_destroy_qp(id: Handle<Id>) {
    let _ = run(|| Id::destroy_qp(id));
}

#[unsafe(no_mangle)]
extern "C" fn rdma_create_srq(
    id: Handle<Id>,
    pd: *mut ibv_pd,
    init: Option<&mut ibv_srq_init_attr>,
) -> MinusOne {
    MinusOne::of(|| {
        let init = init.ok_or(Errno::EINVAL)?;
        Id::create_srq(id, pd, init.srq_context, &mut init.attr)
    })
}

#[unsafe(no_mangle)]
extern "C" fn rdma_create_srq_ex(
    id: Handle<Id>,
    init: Option<&mut ibv_srq_init_attr_ex>,
) -> MinusOne {
    MinusOne::of(|| {
        let init = init.ok_or(Errno::EINVAL)?;
        let has = |bit| init.comp_mask & bit != 0;
        let is_basic = !has(IBV_SRQ_INIT_ATTR_TYPE) || init.srq_type == IBV_SRQT_BASIC;
        if !is_basic || has(!(IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD)) {
            return Err(Errno::EOPNOTSUPP);
        }
        let pd = if has(IBV_SRQ_INIT_ATTR_PD) { init.pd } else { ptr::null_mut() };
        Id::create_srq(id, pd, init.srq_context, &mut init.attr)
    })
}

#[unsafe(no_mangle)]
extern "C" fn rdma_destroy_srq(id: Handle<Id>) {
    let _ = run(|| Id::destroy_srq(id));
}

/// Returns how to modify a queue pair that the program has created itself. The connection moves it
/// to `IBV_QPS_RTR` and `IBV_QPS_RTS`: for these the mask has no state, as in the kernel for iWARP.
/// Nor has it one for `IBV_QPS_INIT` once it is connected: the active end of `rping -q` asks then.
#[unsafe(no_mangle)]
extern "C" fn rdma_init_qp_attr(
    id: Handle<Id>,
    attr: Option<&mut ibv_qp_attr>,
    mask: *mut c_int,
) -> MinusOne {
    MinusOne::of(|| {
        let object = id.get()?;
        let attr = attr.ok_or(Errno::EINVAL)?;
        if Id::public(id).verbs.is_null() {
            return Err(Errno::EINVAL);
        }
        let is_connected = matches!(object.lock().state, State::Connected | State::Closing);
        let found = match attr.qp_state {
            IBV_QPS_INIT if is_connected => IBV_QP_PORT,
            IBV_QPS_INIT => {
                attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
                IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PORT
            }
            IBV_QPS_RTR | IBV_QPS_RTS => IBV_QP_PORT,
            IBV_QPS_ERR => IBV_QP_STATE,
            _ => return Err(Errno::EINVAL),
        };
        attr.port_num = 1;
        program::write(mask, found.cast_signed())
    })
}
