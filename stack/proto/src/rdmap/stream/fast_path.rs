//! Fast path of received ULPDUs: segments of Writes, Sends and Read Responses, in the fewest
//! instructions.
//!
//! Each function handles one form of segment, valid and with its reserved bits zero, as
//! [`Stream::on_ulpdu`] would. Anything else it refuses without an effect, for `on_ulpdu` to
//! process and to name the fault.

use super::Stream;
use super::segment_run::{RunKind, SegmentRun};
use crate::ddp::memory::{Access, Memory};
use crate::ddp::regions::LastRegion;
use crate::ddp::untagged::DeliveredMessage;
use crate::wire::ddp::{TAGGED_LEN, Tagged, UNTAGGED_LEN, Untagged};
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

/// Result of the fast path for segments of Sends and Read Responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Nothing was done: the ULPDU is to be processed otherwise.
    None,
    /// A segment was placed, and not the last of its message.
    Segment,
    /// The last segment of a Send that is not solicited and invalidates nothing was placed: the
    /// message is to be delivered.
    Message(DeliveredMessage),
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
        // req: DDP-104, DDP-106, DDP-160, DDP-089, DDP-105, RDMAP-142
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
        range.map(|range| memory.place(range, payload)).is_some()
    }

    /// Places an in-order ULPDU if it is the next segment of the Send or Read Response whose
    /// segment was placed before it, but not the last of a Read Response.
    #[inline(always)]
    pub fn place_if_continued(
        &mut self,
        memory: &impl Memory,
        ulpdu: &[u8],
        sinks: &mut LastSinks,
    ) -> Placement {
        let run = &mut sinks.message;
        match run.kind() {
            RunKind::None => Placement::None,
            RunKind::Send => {
                if let Some(len) = run.place_send(memory, ulpdu) {
                    self.recv_queue.advance(len);
                    return Placement::Segment;
                }
                let placed = run.place_last_of_send(memory, ulpdu);
                let message = placed.and_then(|len| self.recv_queue.deliver(len));
                message.map_or(Placement::None, Placement::Message)
            }
            RunKind::ReadResponse => match run.place_read_response(memory, ulpdu) {
                Some(len) => {
                    self.requester.advance_response(len);
                    Placement::Segment
                }
                None => Placement::None,
            },
        }
    }

    /// Places an in-order ULPDU if it is a valid segment of a Send or a Read Response, but not the
    /// last of a Read Response, whatever preceded it.
    #[inline]
    pub fn place_if_first(
        &mut self,
        memory: &impl Memory,
        ulpdu: &[u8],
        sinks: &mut LastSinks,
    ) -> Placement {
        sinks.message = SegmentRun::NONE;
        let opcode = Opcode::Send { invalidate: false, solicited: false }.control(self.version);
        let begun = match Untagged::parse_expected(ulpdu, self.version, opcode) {
            Some(header) if header.last => {
                let message = self.place_last_of_send(memory, &header, ulpdu);
                return message.map_or(Placement::None, Placement::Message);
            }
            Some(header) => self.run_of_send(memory, &header, ulpdu),
            None => self.run_of_read_response(memory, ulpdu),
        };
        let Some(run) = begun else { return Placement::None };
        sinks.message = run;
        self.place_if_continued(memory, ulpdu, sinks)
    }

    /// Places the last segment of a Send, often its only one.
    #[inline(always)]
    fn place_last_of_send(
        &mut self,
        memory: &impl Memory,
        header: &Untagged,
        ulpdu: &[u8],
    ) -> Option<DeliveredMessage> {
        let payload = &ulpdu[UNTAGGED_LEN..];
        if header.qn != QN_SEND || payload.is_empty() {
            return None;
        }
        let mut sink = self.recv_queue.rest_of_sink(memory, self.scope, header)?;
        if payload.len() > sink.len() {
            return None;
        }
        memory.place(sink.take_front(payload.len()), payload);
        #[expect(clippy::cast_possible_truncation, reason = "a sink has less than 2^32 bytes")]
        self.recv_queue.deliver(payload.len() as u32)
    }

    #[inline(always)]
    fn run_of_send(
        &mut self,
        memory: &impl Memory,
        header: &Untagged,
        ulpdu: &[u8],
    ) -> Option<SegmentRun> {
        if header.qn != QN_SEND {
            return None;
        }
        let sink = self.recv_queue.rest_of_sink(memory, self.scope, header)?;
        SegmentRun::of_send(ulpdu, sink)
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
