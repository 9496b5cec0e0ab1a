//! Memory windows.

use std::sync::Arc;

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::ddp::regions::{Bind, Stag};
use ferrowarp_proto::verbs::wr::Operation;

use crate::context::Inner;
use crate::error::MemoryError;
use crate::mr::Mr;

/// A memory window (verbs: type 2): an STag that shows a part of a region to the peer of one queue
/// pair, for as long as it is bound.
///
/// Binding is a request ([`Mw::bind`] makes it) that a queue pair carries out in posting order;
/// what is posted after it may tell the peer the STag. It ends with a posted
/// [`Operation::Invalidate`], with the peer's Send with Invalidate, with [`Mw::revoke`], or when
/// the region is revoked or dropped. A window whose queue pair is gone can be reached by nobody.
///
/// It holds no memory: its region may be dropped at any time.
pub struct Mw {
    context: Arc<Inner>,
    stag: Stag,
}

impl Mw {
    pub(crate) fn allocate(context: &Arc<Inner>, pd: u32) -> Result<Self, MemoryError> {
        let stag = context.regions.allocate_window(pd)?;
        Ok(Self { context: Arc::clone(context), stag })
    }

    /// The STag of the binding made last, for the peer.
    #[must_use]
    pub const fn rkey(&self) -> Stag {
        self.stag
    }

    /// A request to bind the window to octets `offset..offset + len` of a region that was
    /// registered with [`Access::WINDOW_BIND`], under the next key: [`Mw::rkey`] has it from now
    /// on. The peer counts from the octet's address, as in the region, or from 0.
    ///
    /// The window must not be bound, and the region be of the same domain and give this end the
    /// right to write if the peer gets it; else the request completes with
    /// [`WcStatus::Bind`](crate::WcStatus::Bind) and the connection ends.
    ///
    /// # Panics
    /// If the octets leave the region.
    #[must_use]
    pub fn bind(
        &mut self,
        region: &Mr,
        offset: usize,
        len: usize,
        access: Access,
        zero_based: bool,
    ) -> Operation {
        let addr = region.addr_of(offset, len);
        self.stag = self.stag & !0xff | self.stag.wrapping_add(1) & 0xff;
        let (rkey, lkey) = (self.stag, region.lkey());
        Operation::Bind(Bind { rkey, lkey, addr, len: len as u64, access, zero_based })
    }

    /// Takes the window back whatever its queue pair does: after this nobody reaches the memory
    /// through it. Waits until no pass of the shard uses it any more. True if it was bound.
    pub fn revoke(&mut self) -> bool {
        let was_bound = self.context.regions.unbind(self.stag);
        self.context.shard.quiesce();
        was_bound
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        self.context.regions.retire_window(self.stag);
        // A binding that began before is done after this.
        self.context.shard.quiesce();
        self.revoke();
        self.context.regions.release(self.stag);
    }
}
