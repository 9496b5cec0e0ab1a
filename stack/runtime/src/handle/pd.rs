//! Protection domains.

use std::fmt;

use crate::context::{Context, ContextInner};
use crate::fork::{ForkArc, is_child};

/// Protection domain: its queue pairs can access only its own regions. Clones refer to the same
/// one.
#[doc(alias = "ibv_pd")]
#[doc(alias = "ibv_dealloc_pd")]
#[derive(Clone)]
pub struct Pd {
    inner: ForkArc<PdInner>,
}

/// State shared by the handles of a domain. Its number is used again once the last handle, region,
/// window and queue of it are gone: those keep it.
struct PdInner {
    context: ForkArc<ContextInner>,
    id: u32,
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pd").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl Context {
    /// Allocates a protection domain.
    ///
    /// # Panics
    /// With 2^32 of them in use.
    #[doc(alias = "ibv_alloc_pd")]
    #[must_use]
    pub fn alloc_pd(&self) -> Pd {
        let context = self.inner().clone();
        // Calls on it fail in a child, where the lock may have been held at the fork.
        let number = if is_child() { Some((u32::MAX, 0)) } else { context.pd_ids.allocate() };
        let (id, _) = number.expect("memory ends before the numbers do");
        Pd { inner: ForkArc::new(PdInner { context, id }) }
    }
}

impl Pd {
    pub(crate) fn context(&self) -> &ForkArc<ContextInner> {
        &self.inner.context
    }

    pub(crate) fn id(&self) -> u32 {
        self.inner.id
    }

    pub(crate) fn belongs_to(&self, context: &ForkArc<ContextInner>) -> bool {
        self.context().ptr_eq(context)
    }
}

impl Drop for PdInner {
    fn drop(&mut self) {
        self.context.pd_ids.release(self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use crate::config::Config;
    use crate::context::Context;
    use crate::device::DeviceSpec;

    #[test]
    fn number_is_used_again_once_nothing_has_it() {
        let config =
            |host| Config::new(DeviceSpec::Ring, Ipv4Addr::new(198, 18, 0, host).into(), 24);
        let (context, _peer) = Context::ring_pair(config(1), config(2)).unwrap();
        let first = context.alloc_pd();
        let number = first.id();
        let region = first.register(context.allocate(1).unwrap(), crate::Access::LOCAL_READ);
        let srq = first.create_srq(1).unwrap();
        drop(first);
        assert_ne!(context.alloc_pd().id(), number, "a region and a queue have it");
        drop(region);
        assert_ne!(context.alloc_pd().id(), number, "a queue has it");
        drop(srq);
        let last = (0..2).map(|_| context.alloc_pd()).collect::<Vec<_>>();
        assert!(last.iter().any(|pd| pd.id() == number), "{last:?}");
    }
}
