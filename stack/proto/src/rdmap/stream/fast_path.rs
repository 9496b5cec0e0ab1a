//! Fast path of received ULPDUs: the segments of long messages, in the fewest instructions.
//!
//! Each function handles one form of segment, valid and with its reserved bits zero, as
//! [`Stream::on_ulpdu`] would. Anything else it refuses without an effect, for `on_ulpdu` to
//! process and to name the fault.

use super::Stream;
use super::segment_run::{RunKind, SegmentRun};
use crate::ddp::memory::{Access, Memory};
use crate::ddp::regions::LastRegion;
use crate::wire::ddp::{TAGGED_LEN, Tagged, Untagged};
use crate::wire::rdmap::{Opcode, QN_SEND};

/// Sinks to which the ULPDUs before were placed, for a run of them in one pass. To be replaced
/// by [`LastSinks::NONE`] when a ULPDU was processed by [`Stream::on_ulpdu`]: it may have
/// invalidated an STag.
#[derive(Debug)]
pub struct LastSinks {
    writes: LastRegion,
    /// Of a Send or a Read Response.
    message: SegmentRun,
}

impl LastSinks {
    /// For the first ULPDU.
    pub const NONE: Self = Self { writes: LastRegion::NONE, message: SegmentRun::NONE };
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

    /// Places an in-order ULPDU if it is the next segment, but not the last, of the Send or Read
    /// Response whose segment was placed before it. False, with nothing done: it is to be processed
    /// otherwise.
    #[inline(always)]
    pub fn place_if_continued(
        &mut self,
        memory: &impl Memory,
        ulpdu: &[u8],
        sinks: &mut LastSinks,
    ) -> bool {
        let run = &mut sinks.message;
        match run.kind() {
            RunKind::None => false,
            RunKind::Send => {
                let placed = run.place_send(memory, ulpdu);
                placed.map(|len| self.recv_queue.advance(len)).is_some()
            }
            RunKind::ReadResponse => {
                let placed = run.place_read_response(memory, ulpdu);
                placed.map(|len| self.requester.advance_response(len)).is_some()
            }
        }
    }

    /// Places an in-order ULPDU if it is a valid segment, but not the last, of a Send or a Read
    /// Response, whatever preceded it. False, with nothing placed: [`Stream::on_ulpdu`] is to
    /// process it.
    pub fn place_if_first(
        &mut self,
        memory: &impl Memory,
        ulpdu: &[u8],
        sinks: &mut LastSinks,
    ) -> bool {
        let begun = self.run_of_send(memory, ulpdu);
        let begun = begun.or_else(|| self.run_of_read_response(memory, ulpdu));
        sinks.message = begun.unwrap_or(SegmentRun::NONE);
        self.place_if_continued(memory, ulpdu, sinks)
    }

    fn run_of_send(&self, memory: &impl Memory, ulpdu: &[u8]) -> Option<SegmentRun> {
        let opcode = Opcode::Send { invalidate: false, solicited: false }.control(self.version);
        let header = Untagged::parse_expected(ulpdu, self.version, opcode)?;
        let starts = header.qn == QN_SEND && !header.last;
        let sink = starts.then(|| self.recv_queue.rest_of_sink(memory, self.scope, &header))?;
        SegmentRun::of_send(ulpdu, sink?)
    }

    fn run_of_read_response(&self, memory: &impl Memory, ulpdu: &[u8]) -> Option<SegmentRun> {
        let opcode = Opcode::ReadResponse.control(self.version);
        let header = Tagged::parse_expected(ulpdu, self.version, opcode)?;
        let sink = self.requester.rest_of_sink()?;
        if header.last || (header.stag, header.to) != (sink.lkey, sink.addr) {
            return None;
        }
        let (regions, needed) = (memory.regions(), Access::LOCAL_WRITE);
        let range = regions.resolve(sink.lkey, self.scope, needed, sink.addr, sink.len as usize);
        SegmentRun::of_read_response(ulpdu, range.ok()?)
    }
}
