//! A message that is the only one to be sent: it is built in one step, as one segment.

use super::{Progress, Requester};
use crate::ddp::memory::{Access, Memory};
use crate::ddp::regions::{AccessScope, LastRegion};
use crate::rdmap::segment;
use crate::rdmap::send_queue::wqe::SendFlags;
use crate::wire::ddp::{TAGGED_LEN, Tagged, UNTAGGED_LEN, Untagged, Version};

/// A Write or a Send that waits alone: see
/// [`Stream::short_message`](crate::rdmap::stream::Stream::short_message).
#[derive(Clone, Copy, Debug)]
pub struct ShortMessage {
    is_send: bool,
    /// Bytes of its payload.
    len: u32,
}

impl ShortMessage {
    /// Returns the length of its ULPDU in bytes.
    #[inline(always)]
    #[must_use]
    pub const fn ulpdu_len(self) -> usize {
        (if self.is_send { UNTAGGED_LEN } else { TAGGED_LEN }) + self.len as usize
    }
}

impl Requester {
    /// Returns the next message if it is the only one to be built, was not begun, and is a Write or
    /// a Send without a fence, of at least one byte, from one element or inline.
    #[inline(always)]
    pub(in crate::rdmap) fn short_message(&self) -> Option<ShortMessage> {
        let entry = self.entries.only_unbuilt()?;
        let is_next = entry.progress == Progress::Queued && self.offset == 0;
        if !is_next || self.local_count > 0 || entry.len == 0 {
            return None;
        }
        let is_send = entry.control.is_unfenced_send();
        (is_send || entry.control.is_unfenced_write())
            .then_some(ShortMessage { is_send, len: entry.len })
    }

    /// Builds the ULPDU of this message, which [`Requester::short_message`] has returned, into
    /// `out`, of its length. False if its payload cannot be read: the request is as it was.
    #[inline(always)]
    pub(in crate::rdmap) fn build_short(
        &mut self,
        message: ShortMessage,
        memory: &impl Memory,
        scope: AccessScope,
        version: Version,
        out: &mut [u8],
    ) -> bool {
        let Some(entry) = self.entries.unbuilt_mut() else { return false };
        let wqe = entry.wqe(&self.sq);
        // RFC 5041 section 4.1: the only segment of a message has the L flag.
        // req: DDP-103
        let body = if message.is_send {
            let Some((header, body)) = out.split_first_chunk_mut::<UNTAGGED_LEN>() else {
                return false;
            };
            let header_of = segment::send_header(version, &wqe, 0, self.send_msn.0);
            // req: RDMAP-168
            Untagged { last: true, ..header_of }.emit(version, header);
            body
        } else {
            let Some((header, body)) = out.split_first_chunk_mut::<TAGGED_LEN>() else {
                return false;
            };
            let header_of = segment::write_header(version, 0, wqe.stag(), wqe.remote());
            // req: RDMAP-019, RDMAP-133
            Tagged { last: true, ..header_of }.emit(version, header);
            body
        };
        if entry.flags().contains(SendFlags::INLINE) {
            wqe.copy_inline(0, body);
        } else {
            let sge = wqe.first_sge();
            let (regions, len) = (memory.regions(), body.len());
            let (mut source, needed) = (LastRegion::NONE, Access::LOCAL_READ);
            // req: RDMAP-073, RDMAP-075, RDMAP-340, RDMAP-343
            let range = regions.resolve_in_run(&mut source, sge.lkey, scope, needed, sge.addr, len);
            let Some(range) = range else { return false };
            if memory.fetch(range, body).is_err() {
                return false;
            }
        }
        entry.progress = Progress::Built;
        self.entries.next_to_build += 1;
        // req: DDP-081, DDP-083, RDMAP-021
        self.send_msn += u32::from(message.is_send);
        true
    }
}
