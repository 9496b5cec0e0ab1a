//! Fast path of received ULPDUs: the segments of long messages, in the fewest instructions.
//!
//! Each function handles one form of segment, valid and with its reserved bits zero, as
//! [`Stream::on_ulpdu`] would. Anything else it refuses without an effect, for `on_ulpdu` to
//! process and to name the fault.

use super::Stream;
use crate::ddp::memory::{Access, Memory};
use crate::ddp::regions::LastRegion;
use crate::ddp::tagged;
use crate::wire::ddp::{TAGGED_LEN, Tagged, UNTAGGED_LEN, Untagged};
use crate::wire::rdmap::{Opcode, QN_SEND};

impl Stream {
    /// Places an in-order ULPDU if it is a valid RDMA Write. False, with nothing done: it is to be
    /// processed otherwise. `sink`: the region of the Writes before it.
    #[inline(always)]
    pub fn place_if_write(
        &self,
        memory: &impl Memory,
        ulpdu: &[u8],
        sink: &mut LastRegion,
    ) -> bool {
        let opcode = Opcode::Write.control(self.version);
        let Some(header) = Tagged::parse_expected(ulpdu, self.version, opcode) else {
            return false;
        };
        let payload = &ulpdu[TAGGED_LEN..];
        if payload.is_empty() {
            return true;
        }
        let (regions, needed, len) = (memory.regions(), Access::REMOTE_WRITE, payload.len());
        let range = regions.resolve_in_run(sink, header.stag, self.scope, needed, header.to, len);
        // req: DDP-104, DDP-106, DDP-160, DDP-089, DDP-105, RDMAP-142
        range.map(|range| memory.place(range, payload)).is_some()
    }

    /// Places an in-order ULPDU if it is a valid segment, but not the last, of a Send or a Read
    /// Response. False, with nothing done: [`Stream::on_ulpdu`] is to process it.
    #[inline(always)]
    pub fn place_if_not_last(&mut self, memory: &impl Memory, ulpdu: &[u8]) -> bool {
        self.place_if_send(memory, ulpdu) || self.place_if_read_response(memory, ulpdu)
    }

    #[inline(always)]
    fn place_if_send(&mut self, memory: &impl Memory, ulpdu: &[u8]) -> bool {
        let opcode = Opcode::Send { invalidate: false, solicited: false }.control(self.version);
        let Some(header) = Untagged::parse_expected(ulpdu, self.version, opcode) else {
            return false;
        };
        let payload = &ulpdu[UNTAGGED_LEN..];
        header.qn == QN_SEND && self.recv_queue.place_if_next(memory, self.scope, &header, payload)
    }

    #[inline(always)]
    fn place_if_read_response(&mut self, memory: &impl Memory, ulpdu: &[u8]) -> bool {
        let opcode = Opcode::ReadResponse.control(self.version);
        let Some(header) = Tagged::parse_expected(ulpdu, self.version, opcode) else {
            return false;
        };
        let payload = &ulpdu[TAGGED_LEN..];
        let Some((sink, received)) = self.requester.oldest_sink() else { return false };
        let end = u64::from(*received) + payload.len() as u64;
        let Ok(end) = u32::try_from(end) else { return false };
        let to = sink.addr.wrapping_add(u64::from(*received));
        let is_next = (header.stag, header.to) == (sink.lkey, to);
        // An empty segment may be the response to the RTR Read.
        if header.last || payload.is_empty() || !is_next || end > sink.len {
            return false;
        }
        let sink = (sink.lkey, to);
        let placed = tagged::place(memory, self.scope, Access::LOCAL_WRITE, sink, payload).is_ok();
        if placed {
            *received = end;
        }
        placed
    }
}
