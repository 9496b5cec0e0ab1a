//! RDMA Writes of one segment: the shortest way from the send queue to the wire, for small messages
//! that are packed into a TCP segment by the dozen.

use super::{Progress, Requester};
use crate::ddp::memory::{Access, Memory};
use crate::ddp::regions::AccessScope;
use crate::rdmap::operation::{Operation, Payload};
use crate::rdmap::segment;
use crate::wire::ddp::{TAGGED_LEN, Tagged, Version};

impl Requester {
    /// Builds the next request into `out` if it is an RDMA Write that may be sent now and fits
    /// whole, from one element of readable memory or inline; returns the length of the segment.
    /// `None`, with nothing changed, for any other: [`Requester::build`] is to build it.
    #[inline(always)]
    pub(in crate::rdmap) fn build_whole_write(
        &mut self,
        memory: &impl Memory,
        scope: AccessScope,
        version: Version,
        out: &mut [u8],
    ) -> Option<usize> {
        let is_blocked = self.offset != 0 || self.local_count != 0;
        let entry = self.queue.get_mut(self.built_count).filter(|_| !is_blocked)?;
        let Operation::Write { payload, rkey, remote } = &entry.request.operation else {
            return None;
        };
        let len = usize::try_from(entry.request.len).ok()?;
        let (header, body) = out.get_mut(..TAGGED_LEN + len)?.split_at_mut(TAGGED_LEN);
        // req: RDMAP-217, RDMAP-237
        if entry.progress != Progress::Queued
            || (entry.request.fence && !self.outstanding.is_empty())
        {
            return None;
        }
        match payload {
            Payload::Gather(_) if len == 0 => {}
            // req: RDMAP-073, RDMAP-340
            Payload::Gather(list) => {
                let [sge] = list.as_slice() else { return None };
                let needed = Access::LOCAL_READ;
                let regions = memory.regions();
                let range = regions.resolve(sge.lkey, scope, needed, sge.addr, len).ok()?;
                memory.fetch(range, body);
            }
            Payload::Inline(bytes) => body.copy_from_slice(bytes),
        }
        // req: DDP-103, DDP-104, RDMAP-019, RDMAP-133
        let tagged = Tagged { last: true, ..segment::write_header(version, 0, *rkey, *remote) };
        tagged.emit(version, header);
        entry.progress = Progress::Built;
        self.built_count += 1;
        Some(TAGGED_LEN + len)
    }
}
