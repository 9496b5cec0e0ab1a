//! Protection domains.

use crate::abi::ibv_pd;
use crate::errno::{Code, Pointer};
use crate::object::context::Context;
use crate::object::exposed::{Exposed, Handle, Registry, expose};
use crate::object::users::Users;

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Pd {
    pub(crate) inner: ferrowarp::Pd,
    pub(crate) context: Handle<Context>,
    users: Users,
}

impl Exposed for Pd {
    type Public = ibv_pd;
    type Pointee = ibv_pd;

    fn registry() -> &'static Registry<Self> {
        static PDS: Registry<Pd> = Registry::new();
        &PDS
    }

    fn users(&self) -> &Users {
        &self.users
    }
}

impl Pd {
    /// Allocates a domain.
    pub(crate) fn allocate(context: Handle<Context>) -> crate::errno::Outcome<Handle<Self>> {
        let inner = context.get()?.engine.context.alloc_pd();
        let public = ibv_pd { context: context.as_ptr(), handle: 0 };
        Ok(expose(Self { inner, context, users: Users::default() }, public))
    }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_alloc_pd(context: Handle<Context>) -> Pointer<ibv_pd> {
    Pointer::of(|| Ok(Pd::allocate(context)?.as_ptr()))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dealloc_pd(pd: Handle<Pd>) -> Code {
    Code::of(|| pd.destroy())
}
