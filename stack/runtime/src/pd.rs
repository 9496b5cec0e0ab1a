//! Protection domains.

use std::fmt;
use std::sync::Arc;

use crate::context::{Context, ContextInner};

/// Protection domain: its queue pairs can access only its own regions. Clones refer to the same
/// one.
#[derive(Clone)]
pub struct Pd {
    context: Arc<ContextInner>,
    id: u32,
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pd").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Context {
    /// Allocates a protection domain.
    #[must_use]
    pub fn alloc_pd(&self) -> Pd {
        let context = Arc::clone(self.inner());
        let id = context.next_pd();
        Pd { context, id }
    }
}

impl Pd {
    pub(crate) const fn context(&self) -> &Arc<ContextInner> {
        &self.context
    }

    pub(crate) const fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn belongs_to(&self, context: &Arc<ContextInner>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }
}
