//! Options of IDs.

use std::ffi::{c_int, c_void};

use crate::abi::{
    RDMA_OPTION_IB, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY,
    RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS,
};
use crate::cm::id::{Id, Inner, State};
use crate::cm::memory::option_value;
use crate::errno::{Errno, MinusOne, Outcome};
use crate::object::exposed::Handle;

/// Options that the program has set.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    /// `RDMA_OPTION_ID_TOS`, without its two low bits, which are TCP's own.
    pub(super) dscp: Option<u8>,
    pub(super) reuse_address: bool,
    pub(super) af_only: bool,
}

fn set(inner: &mut Inner, name: c_int, value: *const c_void, len: usize) -> Outcome {
    let is_before_listen = matches!(inner.state, State::Idle | State::Bound);
    match name.cast_unsigned() {
        RDMA_OPTION_ID_TOS => {
            let tos = option_value::<u8>(value, len)?;
            inner.options.dscp = u8::try_from(tos >> 2).ok();
        }
        RDMA_OPTION_ID_REUSEADDR => {
            let shares = option_value::<c_int>(value, len)? != 0;
            let is_allowed = match inner.state {
                State::Idle => true,
                State::Listening(_) => false,
                // As in the kernel: others may rely on it by now, so it is not taken back.
                _ => shares,
            };
            if !is_allowed {
                return Err(Errno::EINVAL);
            }
            inner.options.reuse_address = shares;
            if let Some(lease) = &mut inner.lease {
                lease.share();
            }
        }
        RDMA_OPTION_ID_AFONLY => {
            let af_only = option_value::<c_int>(value, len)? != 0;
            if !is_before_listen {
                return Err(Errno::EINVAL);
            }
            inner.options.af_only = af_only;
        }
        // That of InfiniBand's transport: TCP measures its own.
        RDMA_OPTION_ID_ACK_TIMEOUT => drop(option_value::<u8>(value, len)?),
        _ => return Err(Errno(libc::ENOSYS)),
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn rdma_set_option(
    id: Handle<Id>,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: usize,
) -> MinusOne {
    MinusOne::of(|| {
        let id = id.get()?;
        match level.cast_unsigned() {
            RDMA_OPTION_ID => set(&mut id.lock(), name, value, len),
            // Paths of InfiniBand.
            RDMA_OPTION_IB => Err(Errno::EOPNOTSUPP),
            _ => Err(Errno(libc::ENOSYS)),
        }
    })
}
