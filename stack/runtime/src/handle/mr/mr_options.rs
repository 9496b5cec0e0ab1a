//! Options of registering memory, and of registering it again.

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::setters;

use crate::handle::pd::Pd;

/// Options of a region. Rights alone are options, too: wherever these are taken,
/// [`Access::REMOTE_READ`](Access) will do.
#[doc(alias = "ibv_reg_mr_iova")]
#[doc(alias = "ibv_reg_mr_iova2")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MrOptions {
    /// Rights in addition to [`Access::LOCAL_READ`], which every region grants.
    pub access: Access,
    /// Address of the first byte in requests, local ones and those of peers. `None`: its address in
    /// memory. Registration fails if `iova` and the length exceed 2^64 - 1.
    pub iova: Option<u64>,
}

impl MrOptions {
    /// A region with these rights, whose addresses in requests are those in memory.
    #[must_use]
    pub const fn new(access: Access) -> Self {
        Self { access, iova: None }
    }

    setters! {
        iova: Option<u64>,
    }

    /// Lets the addresses in requests begin at 0: a request names an offset in the region.
    #[doc(alias = "IBV_ACCESS_ZERO_BASED")]
    #[must_use]
    pub const fn zero_based(self) -> Self {
        self.iova(0)
    }
}

impl From<Access> for MrOptions {
    fn from(access: Access) -> Self {
        Self::new(access)
    }
}

/// Changes to a region that is registered again. What is not set stays as it is. Start from
/// [`ReregOptions::new`] and set what changes.
#[doc(alias = "ibv_rereg_mr")]
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct ReregOptions<'a> {
    /// Rights in addition to [`Access::LOCAL_READ`].
    #[doc(alias = "IBV_REREG_MR_CHANGE_ACCESS")]
    pub access: Option<Access>,
    /// Protection domain, of the same context.
    #[doc(alias = "IBV_REREG_MR_CHANGE_PD")]
    pub pd: Option<&'a Pd>,
    /// Address of the first byte in requests. If it is not set and the memory changes, it is the
    /// address in memory.
    pub iova: Option<u64>,
}

impl<'a> ReregOptions<'a> {
    /// No change.
    #[must_use]
    pub const fn new() -> Self {
        Self { access: None, pd: None, iova: None }
    }

    setters! {
        access: Option<Access>,
        pd: Option<&'a Pd>,
        iova: Option<u64>,
    }
}
