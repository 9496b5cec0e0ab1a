//! Last segments of Sends: the short way from the send queue to the wire, as
//! [`last_of_write`](super::last_of_write) is of RDMA Writes.

use super::{Progress, Requester};
use crate::ddp::memory::{Access, Memory};
use crate::ddp::regions::{AccessScope, LastRegion};
use crate::rdmap::segment;
use crate::wire::ddp::{UNTAGGED_LEN, Untagged, Version};

impl Requester {
    /// Builds the next requests, of the first one the rest, as long as each is a Send without a
    /// fence from one element of readable memory, and `buffer` has room for its ULPDU, of the
    /// length that it is called with. Returns their number. For any other request
    /// [`Requester::build`] is to be called.
    pub(in crate::rdmap) fn build_last_of_sends<'o>(
        &mut self,
        memory: &impl Memory,
        scope: AccessScope,
        version: Version,
        mut buffer: impl FnMut(usize) -> Option<&'o mut [u8]>,
    ) -> u64 {
        // Local operations, or rejected requests, may follow a message.
        if self.local_count > 0 {
            return 0;
        }
        let mut source = LastRegion::NONE;
        let mut count = 0;
        while let Some(entry) = self.entries.unbuilt_after_mut(count) {
            let Ok(len) = usize::try_from(u64::from(entry.len) - self.offset) else { break };
            if entry.progress != Progress::Queued || !entry.control.is_plain_send() || len == 0 {
                break;
            }
            let wqe = entry.wqe(&self.sq);
            let sge = wqe.first_sge();
            let Some(at) = sge.addr.checked_add(self.offset) else { break };
            let (regions, needed) = (memory.regions(), Access::LOCAL_READ);
            // req: RDMAP-075, RDMAP-343
            let range = regions.resolve_in_run(&mut source, sge.lkey, scope, needed, at, len);
            let Some(range) = range else { break };
            let Some(out) = buffer(UNTAGGED_LEN + len) else { break };
            let (header, body) = out.split_at_mut(UNTAGGED_LEN);
            // req: RDMAP-168
            let header_of = segment::send_header(version, &wqe, self.offset, self.send_msn.0);
            Untagged { last: true, ..header_of }.emit(version, header);
            memory.fetch(range, body);
            entry.progress = Progress::Built;
            // req: DDP-081, DDP-083, RDMAP-021
            self.send_msn += 1;
            self.offset = 0;
            count += 1;
        }
        self.entries.next_to_build += count;
        count
    }
}
