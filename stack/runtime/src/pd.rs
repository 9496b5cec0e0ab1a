//! Protection domains.

use std::fmt;
use std::sync::Arc;

use crate::context::{Context, ContextInner};

/// Protection domain: its queue pairs can access only its own regions. Clones refer to the same
/// one.
#[derive(Clone)]
pub struct Pd {
    inner: Arc<PdInner>,
}

/// Its number is used again once the last handle, region, window and queue of it are gone: those
/// keep it.
struct PdInner {
    context: Arc<ContextInner>,
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
    #[must_use]
    pub fn alloc_pd(&self) -> Pd {
        let context = Arc::clone(self.inner());
        let (id, _) = context.pd_numbers.allocate().expect("memory ends before the numbers do");
        Pd { inner: Arc::new(PdInner { context, id }) }
    }
}

impl Pd {
    pub(crate) fn context(&self) -> &Arc<ContextInner> {
        &self.inner.context
    }

    pub(crate) fn id(&self) -> u32 {
        self.inner.id
    }

    pub(crate) fn belongs_to(&self, context: &Arc<ContextInner>) -> bool {
        Arc::ptr_eq(self.context(), context)
    }
}

impl Drop for PdInner {
    fn drop(&mut self) {
        if !self.context.is_in_child() {
            self.context.pd_numbers.release(self.id);
        }
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
