//! Endpoints: synchronous IDs by the results of `rdma_getaddrinfo`.

use std::ptr;

use crate::abi::{
    IBV_QPT_RC, RAI_PASSIVE, ibv_pd, ibv_qp_cap, ibv_qp_init_attr, rdma_addrinfo, rdma_cm_id,
};
use crate::cm::id::{Id, State, check_port_space};
use crate::cm::memory::socket_addr;
use crate::errno::{Errno, MinusOne, Outcome, run};
use crate::object::cq::Cq;
use crate::object::exposed::Handle;
use crate::object::srq::Srq;
use crate::program;

/// Attributes of queue pairs that are created later.
#[derive(Clone, Copy)]
pub(super) struct QpTemplate {
    user_context: usize,
    send_cq: Handle<Cq>,
    recv_cq: Handle<Cq>,
    srq: Handle<Srq>,
    cap: ibv_qp_cap,
    sq_sig_all: i32,
}

impl QpTemplate {
    fn of(attr: &ibv_qp_init_attr) -> Self {
        Self {
            user_context: attr.qp_context.expose_provenance(),
            send_cq: Handle::of(attr.send_cq),
            recv_cq: Handle::of(attr.recv_cq),
            srq: Handle::of(attr.srq),
            cap: attr.cap,
            sq_sig_all: attr.sq_sig_all,
        }
    }

    fn attr(self) -> ibv_qp_init_attr {
        ibv_qp_init_attr {
            qp_context: ptr::with_exposed_provenance_mut(self.user_context),
            send_cq: self.send_cq.as_ptr(),
            recv_cq: self.recv_cq.as_ptr(),
            srq: self.srq.as_ptr(),
            cap: self.cap,
            qp_type: IBV_QPT_RC,
            sq_sig_all: self.sq_sig_all,
        }
    }
}

impl std::fmt::Debug for QpTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QpTemplate").finish_non_exhaustive()
    }
}

impl Id {
    /// Creates the queue pair of a connection request, if the listener has a template.
    pub(super) fn create_qp_of_template(&self, requested: Handle<Self>) -> Outcome {
        let template = self.lock().template;
        let pd = Self::public(self.handle()).pd;
        template.map_or(Ok(()), |template| Self::create_qp(requested, pd, &mut template.attr()))
    }

    /// Makes a new ID an endpoint: bound if it is passive, else ready to connect.
    fn set_up(
        handle: Handle<Self>,
        info: &rdma_addrinfo,
        pd: *mut ibv_pd,
        attr: Option<&mut ibv_qp_init_attr>,
    ) -> Outcome {
        if info.ai_flags.cast_unsigned() & RAI_PASSIVE != 0 {
            let id = handle.get()?;
            let mut inner = id.lock();
            id.bind(&mut inner, socket_addr(info.ai_src_addr)?)?;
            inner.template = attr.map(|attr| QpTemplate::of(attr));
            if !pd.is_null() {
                handle.change(|public| public.pd = pd);
            }
            return Ok(());
        }
        Self::resolve_address(handle, info.ai_src_addr, info.ai_dst_addr)?;
        Self::complete(handle)?;
        Self::resolve_route(handle)?;
        Self::complete(handle)?;
        attr.map_or(Ok(()), |attr| {
            attr.qp_type = IBV_QPT_RC;
            Self::create_qp(handle, pd, attr)
        })
    }
}

#[unsafe(no_mangle)]
extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    info: Option<&rdma_addrinfo>,
    pd: *mut ibv_pd,
    attr: Option<&mut ibv_qp_init_attr>,
) -> MinusOne {
    MinusOne::of(|| {
        let info = info.filter(|_| !id.is_null()).ok_or(Errno::EINVAL)?;
        check_port_space(info.ai_port_space.cast_unsigned())?;
        if info.ai_qp_type.cast_unsigned() != IBV_QPT_RC {
            return Err(Errno::EOPNOTSUPP);
        }
        let handle = Id::create(Handle::of(ptr::null_mut()), ptr::null_mut(), State::Idle)?;
        match Id::set_up(handle, info, pd, attr) {
            Ok(()) => program::write(id, handle.as_ptr()),
            Err(error) => {
                Id::destroy(handle)?;
                Err(error)
            }
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn rdma_destroy_ep(id: Handle<Id>) {
    let _ = run(|| {
        // It may have neither.
        let _ = Id::destroy_qp(id);
        let _ = Id::destroy_srq(id);
        Id::destroy(id)
    });
}
