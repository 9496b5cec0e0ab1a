//! What a shard does now and then.

use ferrowarp_lockfree::doorbell::Doorbells;
use ferrowarp_proto::device::Device;
use ferrowarp_proto::time::{Instant, MILLISECOND};

use crate::memory::page_faults;
use crate::shard::engine::ShardEngine;

impl<D: Device> ShardEngine<D> {
    /// Has the shard see to it that page faults stay caught.
    pub(crate) fn keep_catching_page_faults(mut self) -> Self {
        self.keep_catching_at = Instant::ZERO;
        self.shard_qps.care_by(Instant::ZERO);
        self
    }

    /// Does what is done now and then.
    #[cold]
    pub(super) fn care(&mut self, now: Instant, doorbells: &Doorbells) {
        self.shard_qps.care(now, doorbells);
        if now >= self.keep_catching_at {
            page_faults::keep_catching();
            self.keep_catching_at = now + MILLISECOND;
        }
        self.shard_qps.care_by(self.keep_catching_at);
    }
}
