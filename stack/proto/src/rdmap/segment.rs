//! Builds the DDP segments of requests: one function for each kind of message. Cuts a message into
//! segments (RFC 5041 section 5.2).

use crate::ddp::memory::{Access, Memory, MemoryFault};
use crate::ddp::regions::{AccessScope, Stag};
use crate::ddp::sgl::{self, Sge};
use crate::rdmap::send_queue::wqe::{SendFlags, Wqe};
use crate::wire::ddp::{TAGGED_LEN, Tagged, UNTAGGED_LEN, Untagged, Version};
use crate::wire::rdmap::{Opcode, QN_READ_REQUEST, QN_SEND, READ_REQUEST_LEN, ReadRequest};
use crate::wire::rdmap_extensions::{ATOMIC_REQUEST_LEN, AtomicRequest, IMMEDIATE_LEN};

/// Part of a message that is still to be sent: `remaining` bytes, from `offset` on.
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    /// Bytes of the message sent before.
    pub offset: u64,
    /// Bytes still to be sent.
    pub remaining: u64,
}

impl Chunk {
    /// Returns the payload length of the next segment, at most `payload_max`, and whether it is the
    /// last of the message.
    #[inline]
    #[must_use]
    pub fn next_segment(self, payload_max: usize) -> (usize, bool) {
        match usize::try_from(self.remaining) {
            // req: DDP-038, DDP-040
            Ok(len) if len <= payload_max => (len, true),
            // req: DDP-093
            _ => (payload_max, false),
        }
    }
}

/// Properties of a built segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct BuiltSegment {
    /// Length of header and payload in bytes.
    pub(super) len: usize,
    /// Bytes of the message in it.
    pub(super) payload_len: usize,
    /// Last segment of the message (the L flag).
    pub(super) last: bool,
}

/// Builder of the DDP segments of a stream.
pub(super) struct SegmentBuilder<'a, M> {
    pub(super) memory: &'a M,
    pub(super) scope: AccessScope,
    pub(super) version: Version,
    /// Output buffer of the segment: at least 128 bytes.
    pub(super) out: &'a mut [u8],
}

impl<M: Memory> SegmentBuilder<'_, M> {
    /// Builds a segment of a Send.
    #[inline]
    pub(super) fn send(
        &mut self,
        wqe: &Wqe<'_>,
        chunk: Chunk,
        msn: u32,
    ) -> Result<BuiltSegment, MemoryFault> {
        let (len, last) = chunk.next_segment(self.out.len() - UNTAGGED_LEN);
        let header = Untagged { last, ..send_header(self.version, wqe, chunk.offset, msn) };
        // req: RDMAP-168
        header.emit(self.version, self.out);
        // req: RDMAP-075, RDMAP-343
        self.copy_payload(wqe, chunk.offset, UNTAGGED_LEN, len)?;
        Ok(BuiltSegment { len: UNTAGGED_LEN + len, payload_len: len, last })
    }

    /// Builds a segment of an RDMA Write.
    #[inline]
    pub(super) fn write(
        &mut self,
        wqe: &Wqe<'_>,
        chunk: Chunk,
    ) -> Result<BuiltSegment, MemoryFault> {
        let (len, last) = chunk.next_segment(self.out.len() - TAGGED_LEN);
        // req: DDP-103, DDP-104
        let header = write_header(self.version, chunk.offset, wqe.stag(), wqe.remote());
        let header = Tagged { last, ..header };
        // req: RDMAP-019, RDMAP-133
        header.emit(self.version, self.out);
        // req: RDMAP-073, RDMAP-340
        self.copy_payload(wqe, chunk.offset, TAGGED_LEN, len)?;
        Ok(BuiltSegment { len: TAGGED_LEN + len, payload_len: len, last })
    }

    /// Builds a Read Request for SGE `sink` of a Read: those before it have their own.
    pub(super) fn read(
        &mut self,
        wqe: &Wqe<'_>,
        sink: u8,
        msn: u32,
    ) -> Result<BuiltSegment, MemoryFault> {
        let before = wqe.sges().take(sink.into()).map(|sge| u64::from(sge.len)).sum();
        let sink = wqe.sge(sink.into());
        // req: RDMAP-144, RDMAP-149
        self.write_untagged_header(Opcode::ReadRequest, QN_READ_REQUEST, msn);
        let request = ReadRequest {
            sink_stag: sink.lkey,
            // req: RDMAP-078
            sink_to: sink.addr,
            len: sink.len,
            source_stag: wqe.stag(),
            // req: RDMAP-022
            source_to: wqe.remote().wrapping_add(before),
        };
        // req: RDMAP-071
        request.emit(&mut self.out[UNTAGGED_LEN..]);
        // req: RDMAP-257
        self.check_sink(&sink)?;
        Ok(single_segment(READ_REQUEST_LEN))
    }

    /// Builds an Atomic Request.
    #[cold]
    pub(super) fn atomic(
        &mut self,
        sink: &Sge,
        request: &AtomicRequest,
        msn: u32,
    ) -> Result<BuiltSegment, MemoryFault> {
        self.write_untagged_header(Opcode::AtomicRequest, QN_READ_REQUEST, msn);
        request.emit(&mut self.out[UNTAGGED_LEN..]);
        self.check_sink(sink)?;
        Ok(single_segment(ATOMIC_REQUEST_LEN))
    }

    /// Builds an Immediate Data message.
    #[cold]
    pub(super) fn immediate(&mut self, wqe: &Wqe<'_>, msn: u32) -> BuiltSegment {
        let solicited = wqe.flags().contains(SendFlags::SOLICITED);
        self.write_untagged_header(Opcode::Immediate { solicited }, QN_SEND, msn);
        self.out[UNTAGGED_LEN..UNTAGGED_LEN + IMMEDIATE_LEN].copy_from_slice(&wqe.immediate());
        single_segment(IMMEDIATE_LEN)
    }

    /// Writes the header of an untagged message of one segment.
    fn write_untagged_header(&mut self, opcode: Opcode, queue: u32, msn: u32) {
        let rsvd_ulp = opcode.control(self.version);
        // req: RDMAP-341
        let header = Untagged { last: true, rsvd_ulp, rsvd_ulp_rest: 0, qn: queue, msn, mo: 0 };
        header.emit(self.version, self.out);
    }

    #[inline]
    fn copy_payload(
        &mut self,
        wqe: &Wqe<'_>,
        offset: u64,
        at: usize,
        len: usize,
    ) -> Result<(), MemoryFault> {
        let body = &mut self.out[at..at + len];
        if wqe.is_inline() {
            wqe.copy_inline(usize::try_from(offset).expect("inline data is short"), body);
            return Ok(());
        }
        sgl::gather(self.memory, self.scope, wqe.sges(), offset, body)
    }

    /// Checks the sink before the request is sent, so that the peer never responds to an unusable
    /// one.
    fn check_sink(&self, sink: &Sge) -> Result<(), MemoryFault> {
        if sink.len == 0 {
            return Ok(());
        }
        let (len, needed) = (sink.len as usize, Access::LOCAL_WRITE);
        self.memory.regions().resolve(sink.lkey, self.scope, needed, sink.addr, len).map(|_| ())
    }
}

/// Returns the header of a segment of a Send at `offset`, not the last.
#[inline]
pub(super) fn send_header(version: Version, wqe: &Wqe<'_>, offset: u64, msn: u32) -> Untagged {
    let invalidate = wqe.invalidate();
    let solicited = wqe.flags().contains(SendFlags::SOLICITED);
    let opcode = Opcode::Send { invalidate: invalidate.is_some(), solicited };
    Untagged {
        last: false,
        rsvd_ulp: opcode.control(version),
        // req: RDMAP-050, RDMAP-059, RDMAP-061, RDMAP-066, RDMAP-068, RDMAP-181
        rsvd_ulp_rest: invalidate.unwrap_or(0),
        // req: RDMAP-020, RDMAP-177
        qn: QN_SEND,
        msn,
        // req: DDP-041, DDP-099, DDP-110
        mo: u32::try_from(offset).expect("messages are shorter than 2^32 bytes"),
    }
}

/// Returns the header of a segment of an RDMA Write to `remote` at `offset`, not the last.
#[inline]
pub(super) fn write_header(version: Version, offset: u64, rkey: Stag, remote: u64) -> Tagged {
    Tagged {
        last: false,
        rsvd_ulp: Opcode::Write.control(version),
        // req: DDP-064, RDMAP-053
        stag: rkey,
        // req: DDP-101
        to: remote.wrapping_add(offset),
    }
}

/// Returns the result for a message that consists of a header of `len` bytes.
// req: RDMAP-047
const fn single_segment(len: usize) -> BuiltSegment {
    BuiltSegment { len: UNTAGGED_LEN + len, payload_len: len, last: true }
}
