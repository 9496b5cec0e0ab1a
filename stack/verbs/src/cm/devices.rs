//! The devices of librdmacm: contexts, which are open.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::AtomicPtr;

use crate::abi::ibv_context;
use crate::errno::Pointer;
use crate::object::context::Context;

/// The context of all IDs, and a null pointer at the end.
static LIST: OnceLock<[AtomicPtr<ibv_context>; 2]> = OnceLock::new();

#[unsafe(no_mangle)]
extern "C" fn rdma_get_devices(count: Option<&mut c_int>) -> Pointer<*mut ibv_context> {
    Pointer::of(|| {
        let context = Context::of_cm().map(crate::object::exposed::Handle::as_ptr);
        if let Some(count) = count {
            *count = context.is_ok().into();
        }
        let context = context?;
        let list = LIST.get_or_init(|| [AtomicPtr::new(context), AtomicPtr::default()]);
        Ok(list.as_ptr().cast_mut().cast())
    })
}

/// The list is never freed.
#[unsafe(no_mangle)]
extern "C" fn rdma_free_devices(_list: *mut *mut ibv_context) {}
