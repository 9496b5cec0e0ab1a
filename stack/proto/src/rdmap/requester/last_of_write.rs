//! Last segments of RDMA Writes: the shortest way from the send queue to the wire. It serves small
//! messages, which are packed into a TCP segment by the dozen, and the ends of longer ones.

use super::{Progress, Requester};
use crate::ddp::memory::{Access, Memory};
use crate::ddp::regions::AccessScope;
use crate::rdmap::operation::{Operation, Payload};
use crate::rdmap::segment;
use crate::wire::ddp::{TAGGED_LEN, Tagged, Version};

impl Requester {
    /// Builds the next request, or the rest of it, into `out` if it is an RDMA Write that may be
    /// sent now and fits, from one element of readable memory or inline; returns the length of the
    /// segment. `None`, with nothing changed, for any other: [`Requester::build`] is to build it.
    #[inline(always)]
    pub(in crate::rdmap) fn build_last_of_write(
        &mut self,
        memory: &impl Memory,
        scope: AccessScope,
        version: Version,
        out: &mut [u8],
    ) -> Option<usize> {
        let offset = self.offset;
        // Local operations may follow the message.
        let entry = self.queue.get_mut(self.built_count).filter(|_| self.local_count == 0)?;
        let Operation::Write { payload, rkey, remote } = &entry.request.operation else {
            return None;
        };
        let len = usize::try_from(entry.request.len - offset).ok()?;
        let (header, body) = out.get_mut(..TAGGED_LEN + len)?.split_at_mut(TAGGED_LEN);
        // req: RDMAP-217, RDMAP-237
        if entry.progress != Progress::Queued
            || (offset == 0 && entry.request.fence && !self.outstanding.is_empty())
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
                let at = sge.addr.checked_add(offset)?;
                let range = regions.resolve(sge.lkey, scope, needed, at, len).ok()?;
                memory.fetch(range, body);
            }
            Payload::Inline(bytes) => body.copy_from_slice(&bytes[bytes.len() - len..]),
        }
        // req: DDP-103, DDP-104, RDMAP-019, RDMAP-133
        let tagged =
            Tagged { last: true, ..segment::write_header(version, offset, *rkey, *remote) };
        tagged.emit(version, header);
        entry.progress = Progress::Built;
        self.built_count += 1;
        self.offset = 0;
        Some(TAGGED_LEN + len)
    }
}
