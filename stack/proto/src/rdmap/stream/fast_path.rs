//! Fast path of received ULPDUs: the segments of long messages, in the fewest instructions.
//!
//! Each function handles one form of segment, valid and with its reserved bits zero, as
//! [`Stream::on_ulpdu`] would. Anything else it refuses without an effect, for `on_ulpdu` to
//! process and to name the fault.

use super::Stream;
use crate::ddp::memory::{Access, Memory};
use crate::ddp::regions::LastRegion;
use crate::wire::ddp::{TAGGED_LEN, Tagged, UNTAGGED_LEN, Untagged};
use crate::wire::rdmap::{Opcode, QN_SEND};

/// Regions to which the ULPDUs before were placed, for a run of them in one pass. To be replaced
/// by [`LastSinks::NONE`] when a ULPDU was processed by [`Stream::on_ulpdu`]: it may have
/// invalidated an STag.
#[derive(Debug)]
pub struct LastSinks {
    writes: LastRegion,
    /// Of Sends and Read Responses.
    others: LastRegion,
}

impl LastSinks {
    /// For the first ULPDU.
    pub const NONE: Self = Self { writes: LastRegion::NONE, others: LastRegion::NONE };
}

impl Stream {
    /// Places an in-order ULPDU if it is a valid RDMA Write. False, with nothing done: it is to be
    /// processed otherwise.
    #[inline(always)]
    pub fn place_if_write(
        &self,
        memory: &impl Memory,
        ulpdu: &[u8],
        sinks: &mut LastSinks,
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
        let range = regions.resolve_in_run(
            &mut sinks.writes,
            header.stag,
            self.scope,
            needed,
            header.to,
            len,
        );
        // req: DDP-104, DDP-106, DDP-160, DDP-089, DDP-105, RDMAP-142
        range.map(|range| memory.place(range, payload)).is_some()
    }

    /// Places an in-order ULPDU if it is a valid segment, but not the last, of a Send or a Read
    /// Response. False, with nothing done: [`Stream::on_ulpdu`] is to process it.
    #[inline(always)]
    pub fn place_if_not_last(
        &mut self,
        memory: &impl Memory,
        ulpdu: &[u8],
        sinks: &mut LastSinks,
    ) -> bool {
        let sink = &mut sinks.others;
        self.place_if_send(memory, ulpdu, sink) || self.place_if_read_response(memory, ulpdu, sink)
    }

    #[inline(always)]
    fn place_if_send(&mut self, memory: &impl Memory, ulpdu: &[u8], sink: &mut LastRegion) -> bool {
        let opcode = Opcode::Send { invalidate: false, solicited: false }.control(self.version);
        let Some(header) = Untagged::parse_expected(ulpdu, self.version, opcode) else {
            return false;
        };
        let payload = &ulpdu[UNTAGGED_LEN..];
        let queue = &mut self.recv_queue;
        header.qn == QN_SEND && queue.place_if_next(memory, self.scope, &header, payload, sink)
    }

    #[inline(always)]
    fn place_if_read_response(
        &mut self,
        memory: &impl Memory,
        ulpdu: &[u8],
        region: &mut LastRegion,
    ) -> bool {
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
        let (regions, needed, len) = (memory.regions(), Access::LOCAL_WRITE, payload.len());
        let range = regions.resolve_in_run(region, sink.lkey, self.scope, needed, to, len);
        let Some(range) = range else { return false };
        memory.place(range, payload);
        *received = end;
        true
    }
}
