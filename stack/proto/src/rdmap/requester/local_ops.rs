//! Requests that send nothing: local operations, and those that were rejected.

use super::{Progress, Requester};
use crate::ddp::regions::{AccessScope, RegionTable};
use crate::rdmap::send_queue::wqe::{SendFlags, WqeOpcode};

impl Requester {
    /// True if local operations or rejected requests are queued: see
    /// [`Requester::execute_local_ops`].
    #[must_use]
    pub const fn has_local_ops(&self) -> bool {
        self.local_count > 0
    }

    /// Executes the local operations that are next in the queue, and passes rejected requests. To
    /// be called when one was taken, a message was built completely, or a Read or atomic operation
    /// completed.
    #[cold]
    pub fn execute_local_ops(&mut self, regions: &RegionTable, scope: AccessScope) {
        while self.local_count > 0 && self.offset == 0 {
            let Some(entry) = self.entries.unbuilt_mut() else { return };
            if let Progress::Rejected(_) = entry.progress {
                self.local_count -= 1;
                self.unsent_count += 1;
                self.entries.next_to_build += 1;
                continue;
            }
            let waits = entry.flags().contains(SendFlags::FENCE) && !self.outstanding.is_empty();
            if waits || entry.progress != Progress::Queued {
                return;
            }
            let wqe = entry.wqe(&self.sq);
            let done = match entry.opcode() {
                WqeOpcode::Bind => regions.bind(&wqe.bind(), scope),
                WqeOpcode::Invalidate => regions.invalidate_local(wqe.stag(), scope),
                _ => return,
            };
            self.local_count -= 1;
            match done {
                Ok(()) => {
                    entry.progress = Progress::Built;
                    self.unsent_count += 1;
                    self.entries.next_to_build += 1;
                }
                Err(fault) => entry.progress = Progress::LocalOpFailed(fault),
            }
        }
    }
}
