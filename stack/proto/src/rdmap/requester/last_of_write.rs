//! Last segments of RDMA Writes: the shortest way from the send queue to the wire. It serves small
//! messages, which are packed into a TCP segment by the dozen, and the ends of longer ones.

use super::{Progress, Requester};
use crate::ddp::memory::{Access, Memory};
use crate::ddp::regions::AccessScope;
use crate::rdmap::segment;
use crate::rdmap::send_queue::wqe::{WqeFlags, WqeOpcode};
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
        // Local operations, or rejected requests, may follow the message.
        let entry = self.entries.unbuilt_mut().filter(|_| self.local_count == 0)?;
        if entry.opcode != WqeOpcode::Write {
            return None;
        }
        let len = usize::try_from(u64::from(entry.len) - offset).ok()?;
        let (header, body) = out.get_mut(..TAGGED_LEN + len)?.split_at_mut(TAGGED_LEN);
        // req: RDMAP-217, RDMAP-237
        let is_fenced = entry.flags.contains(WqeFlags::FENCE) && !self.outstanding.is_empty();
        if entry.progress != Progress::Queued || (offset == 0 && is_fenced) {
            return None;
        }
        let wqe = self.sq.wqe(entry.slot);
        if entry.flags.contains(WqeFlags::INLINE) {
            wqe.copy_inline(entry.len as usize - len, body);
        } else if len > 0 {
            // req: RDMAP-073, RDMAP-340
            if wqe.payload_count() != 1 {
                return None;
            }
            let sge = wqe.first_sge();
            let needed = Access::LOCAL_READ;
            let at = sge.addr.checked_add(offset)?;
            let range = memory.regions().resolve(sge.lkey, scope, needed, at, len).ok()?;
            memory.fetch(range, body);
        }
        // req: DDP-103, DDP-104, RDMAP-019, RDMAP-133
        let header_of = segment::write_header(version, offset, wqe.stag(), wqe.remote());
        let tagged = Tagged { last: true, ..header_of };
        tagged.emit(version, header);
        entry.progress = Progress::Built;
        self.entries.next_to_build += 1;
        self.offset = 0;
        Some(TAGGED_LEN + len)
    }
}
