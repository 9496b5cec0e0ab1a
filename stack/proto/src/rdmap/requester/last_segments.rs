//! Last segments of RDMA Writes and Sends: the shortest way from the send queue to the wire. It
//! serves small messages, which are packed into a TCP segment by the dozen, and the ends of longer
//! ones.

use super::{Entry, Progress, Requester};
use crate::ddp::memory::{Access, Memory};
use crate::ddp::regions::{AccessScope, LastRegion};
use crate::rdmap::segment;
use crate::rdmap::send_queue::wqe::{SendFlags, Wqe, WqeOpcode};
use crate::wire::ddp::{TAGGED_LEN, Tagged, UNTAGGED_LEN, Untagged, Version};

/// Last segments that were built.
#[derive(Clone, Copy, Debug, Default)]
pub struct LastSegments {
    /// Their number.
    pub count: u64,
    /// The last call of `buffer` was for one more, whose payload could not be read.
    pub page_fault: bool,
}

impl Requester {
    /// Builds the next requests, of the first one the rest, as long as each is an RDMA Write that
    /// may be sent now, inline or without a fence from one element of readable memory, and `buffer`
    /// has room for its ULPDU, of the length that it is called with. For any other request
    /// [`Requester::build`] is to be called.
    #[inline(always)]
    pub(in crate::rdmap) fn build_last_of_writes<'o>(
        &mut self,
        memory: &impl Memory,
        scope: AccessScope,
        version: Version,
        mut buffer: impl FnMut(usize) -> Option<&'o mut [u8]>,
    ) -> LastSegments {
        // Local operations, or rejected requests, may follow a message.
        if self.local_count > 0 {
            return LastSegments::default();
        }
        let mut source = LastRegion::NONE;
        let (mut count, mut page_fault, mut offset) = (0, false, self.offset);
        let mut begin = |wqe: &Wqe<'_>, offset: u64, len: usize| {
            let (out, body) = buffer(TAGGED_LEN + len)?.split_first_chunk_mut::<TAGGED_LEN>()?;
            let header = segment::write_header(version, offset, wqe.stag(), wqe.remote());
            // RFC 5041 section 4.1: the last segment of a message has the L flag.
            // req: DDP-103
            let header = Tagged { last: true, ..header };
            // req: RDMAP-019, RDMAP-133
            header.emit(version, out);
            Some(body)
        };
        while let Some(entry) = self.entries.unbuilt_after_mut(count) {
            // Of the first request the rest, of the others all.
            let Ok(len) = usize::try_from(u64::from(entry.len) - offset) else { break };
            if entry.progress != Progress::Queued {
                break;
            }
            let wqe = entry.wqe(&self.sq);
            if entry.control.is_plain_write() && len > 0 {
                // From registered memory: one element, without a fence.
                let sge = wqe.first_sge();
                let Some(at) = sge.addr.checked_add(offset) else { break };
                let (regions, needed) = (memory.regions(), Access::LOCAL_READ);
                // req: RDMAP-073, RDMAP-340
                let range = regions.resolve_in_run(&mut source, sge.lkey, scope, needed, at, len);
                let Some(range) = range else { break };
                let Some(body) = begin(&wqe, offset, len) else { break };
                if memory.fetch(range, body).is_err() {
                    page_fault = true;
                    break;
                }
            } else {
                // From the slots of the request. RFC 5040 section 5.5: a fence waits for Reads.
                let is_fenced = offset == 0 && !self.outstanding.is_empty();
                if !is_inline_or_empty(entry, is_fenced) {
                    break;
                }
                let Some(body) = begin(&wqe, offset, len) else { break };
                wqe.copy_inline(entry.len as usize - len, body);
            }
            entry.progress = Progress::Built;
            offset = 0;
            count += 1;
        }
        self.offset = offset;
        self.entries.next_to_build += count;
        LastSegments { count, page_fault }
    }

    /// Builds the next requests, of the first one the rest, as long as each is a Send without a
    /// fence from one element of readable memory, and `buffer` has room for its ULPDU, of the
    /// length that it is called with. For any other request [`Requester::build`] is to be called.
    pub(in crate::rdmap) fn build_last_of_sends<'o>(
        &mut self,
        memory: &impl Memory,
        scope: AccessScope,
        version: Version,
        mut buffer: impl FnMut(usize) -> Option<&'o mut [u8]>,
    ) -> LastSegments {
        // Local operations, or rejected requests, may follow a message.
        if self.local_count > 0 {
            return LastSegments::default();
        }
        let mut source = LastRegion::NONE;
        let (mut count, mut page_fault) = (0, false);
        while let Some(entry) = self.entries.unbuilt_after_mut(count) {
            // Of the first request the rest, of the others all.
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
            // RFC 5041 section 4.1: the L flag; RFC 5040 section 5.3: the queue of Sends.
            // req: RDMAP-168
            let header_of = segment::send_header(version, &wqe, self.offset, self.send_msn.0);
            Untagged { last: true, ..header_of }.emit(version, header);
            if memory.fetch(range, body).is_err() {
                page_fault = true;
                break;
            }
            entry.progress = Progress::Built;
            // RFC 5041 section 4.3: the next message of the queue has the next MSN.
            // req: DDP-081, DDP-083, RDMAP-021
            self.send_msn += 1;
            self.offset = 0;
            count += 1;
        }
        self.entries.next_to_build += count;
        LastSegments { count, page_fault }
    }
}

/// True for an RDMA Write whose payload is inline or empty, and that does not wait for its fence.
fn is_inline_or_empty(entry: &Entry, is_fenced: bool) -> bool {
    let flags = entry.flags();
    let waits = is_fenced && flags.contains(SendFlags::FENCE);
    let has_no_memory = flags.contains(SendFlags::INLINE) || entry.len == 0;
    // req: RDMAP-217
    entry.opcode() == WqeOpcode::Write && has_no_memory && !waits
}
