//! Polling a completion queue (`ibv_poll_cq`) and arming it (`ibv_req_notify_cq`).

use std::ffi::c_int;

use ferrowarp::{Notify, ReqNotifyError, Wc, WcOpcode, WcStatus};

use crate::abi::{
    IBV_WC_BIND_MW, IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD, IBV_WC_GENERAL_ERR, IBV_WC_LOC_LEN_ERR,
    IBV_WC_LOC_PROT_ERR, IBV_WC_LOCAL_INV, IBV_WC_MW_BIND_ERR, IBV_WC_RDMA_READ, IBV_WC_RDMA_WRITE,
    IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_OP_ERR, IBV_WC_SEND,
    IBV_WC_SUCCESS, IBV_WC_WITH_IMM, IBV_WC_WITH_INV, IBV_WC_WR_FLUSH_ERR, ibv_cq, ibv_wc,
    ibv_wc_opcode, ibv_wc_status,
};
use crate::engine::is_exiting;
use crate::errno::{Errno, hot};
use crate::object::cq::Cq;
use crate::object::exposed::Handle;

/// `ibv_poll_cq` calls it. Returns a negative number for a queue that is destroyed.
pub(crate) extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wcs: *mut ibv_wc) -> c_int {
    hot(|| {
        // SAFETY: inline helpers have read its context, and verbs forbids to destroy it meanwhile.
        let Some(cq) = (unsafe { Handle::<Cq>::of(cq).hot() }) else {
            return -Errno::EINVAL.0;
        };
        if is_exiting() {
            return 0;
        }
        let mut place = wcs;
        let found = cq.inner.poll_with(usize::try_from(count).unwrap_or(0), |wc| {
            // SAFETY: the program has passed places for `count` completions.
            unsafe { place.write(public(cq, wc)) };
            place = place.wrapping_add(1);
        });
        c_int::try_from(found).unwrap_or(c_int::MAX)
    })
}

/// `ibv_req_notify_cq` calls it. Without a channel there is nobody to notify, and it succeeds.
pub(crate) extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    hot(|| {
        // SAFETY: as in `poll_cq`.
        let Some(cq) = (unsafe { Handle::<Cq>::of(cq).hot() }) else {
            return Errno::EINVAL.0;
        };
        let notify = if solicited_only == 0 { Notify::Next } else { Notify::Solicited };
        match cq.inner.req_notify(notify) {
            Ok(()) | Err(ReqNotifyError::NoChannel) => 0,
            Err(error) => Errno::from(error).0,
        }
    })
}

/// A completion as the program sees it.
#[inline(always)]
fn public(cq: &Cq, wc: Wc) -> ibv_wc {
    let mut found = ibv_wc {
        wr_id: wc.wr_id,
        status: status(wc.status),
        opcode: opcode(wc.opcode),
        vendor_err: wc.vendor_err,
        byte_len: wc.byte_len,
        qp_num: cq.engine.qp_number(wc.qp),
        ..ibv_wc::default()
    };
    if let Some(number) = wc.immediate_u32() {
        found.wc_flags = IBV_WC_WITH_IMM;
        found.__bindgen_anon_1.imm_data = number.to_be();
    } else if let Some(stag) = wc.invalidated() {
        found.wc_flags = IBV_WC_WITH_INV;
        found.__bindgen_anon_1.invalidated_rkey = stag;
    }
    found
}

#[inline(always)]
fn status(status: WcStatus) -> ibv_wc_status {
    match status {
        WcStatus::Success => IBV_WC_SUCCESS,
        WcStatus::LocalProtection => IBV_WC_LOC_PROT_ERR,
        WcStatus::Bind => IBV_WC_MW_BIND_ERR,
        WcStatus::LocalLength => IBV_WC_LOC_LEN_ERR,
        WcStatus::RemoteAccess => IBV_WC_REM_ACCESS_ERR,
        WcStatus::RemoteOperation => IBV_WC_REM_OP_ERR,
        WcStatus::Flushed => IBV_WC_WR_FLUSH_ERR,
        _ => IBV_WC_GENERAL_ERR,
    }
}

#[inline(always)]
fn opcode(opcode: WcOpcode) -> ibv_wc_opcode {
    match opcode {
        WcOpcode::Send | WcOpcode::Immediate => IBV_WC_SEND,
        WcOpcode::Write => IBV_WC_RDMA_WRITE,
        WcOpcode::Read => IBV_WC_RDMA_READ,
        WcOpcode::Recv => IBV_WC_RECV,
        WcOpcode::FetchAdd => IBV_WC_FETCH_ADD,
        WcOpcode::Swap | WcOpcode::CmpSwap => IBV_WC_COMP_SWAP,
        WcOpcode::RecvImmediate => IBV_WC_RECV_RDMA_WITH_IMM,
        WcOpcode::Bind => IBV_WC_BIND_MW,
        WcOpcode::Invalidate => IBV_WC_LOCAL_INV,
        _ => IBV_WC_SEND,
    }
}
