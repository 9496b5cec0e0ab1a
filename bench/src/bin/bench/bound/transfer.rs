//! Data Source and Data Sink of the bound: what each does with the bytes of a segment.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::io;
use std::sync::Arc;

use ferrowarp_proto::mpa::fpdu::CRC_LEN;

use super::crc::{self, Crc};
use super::frames::BURST_LEN;
use super::layout::{self, FPDU_HEADER_LEN, Segment, Target};
use super::message_memory::MessageMemory;

/// Offset of the message in its mapping at the source, and at the sink, in bytes: the server of
/// `iwperf` has registered a page before.
const MESSAGE_OFFSETS: [usize; 2] = [0, 4096];
/// Offset of the Tagged Offset, the last field of the DDP header, from the start of the FPDU.
const TO_AT: usize = FPDU_HEADER_LEN - size_of::<u64>();

/// A transfer: its segments, and how each is processed.
#[derive(Clone, Debug)]
pub(crate) struct Transfer {
    pub(crate) mtu: u16,
    message_len: usize,
    segments: Vec<Segment>,
    crc_names: String,
}

impl Transfer {
    /// Creates the transfer of the frozen bound and that of the best bound for messages that follow
    /// one another. Measures the candidates for the CRC, in some ten milliseconds.
    pub(crate) fn frozen_and_best(mtu: u16, message_len: usize, target: Target) -> [Arc<Self>; 2] {
        let mut crcs: BTreeMap<usize, [Crc; 2]> = BTreeMap::new();
        [0, 1].map(|which| {
            let segments = layout::segments(mtu, message_len, target, |len| {
                crcs.entry(len).or_insert_with(|| crc::frozen_and_best(len))[which]
            });
            let names = crcs.iter().map(|(len, of)| format!("{} ({len} bytes)", of[which].name));
            let crc_names = names.collect::<Vec<_>>().join(", ");
            Arc::new(Self { mtu, message_len, segments, crc_names })
        })
    }

    /// Returns the transfer of one message behind which none waits.
    pub(crate) fn alone(&self) -> Arc<Self> {
        let mut alone = self.clone();
        // Small messages share a segment: keep the first.
        let last = alone.segments.last_mut().expect("a message has a segment");
        last.fpdus.truncate(1);
        last.payload_len = last.fpdus[0].payload.len();
        Arc::new(alone)
    }

    fn messages_per_round(&self) -> usize {
        let payload: usize = self.segments.iter().map(|segment| segment.payload_len).sum();
        payload / self.message_len
    }

    /// Returns the length of a frame in bytes if the message is one segment of one FPDU.
    pub(crate) fn single_frame_len(&self) -> Option<usize> {
        let [Segment { fpdus, .. }] = self.segments.as_slice() else { return None };
        let [fpdu] = fpdus.as_slice() else { return None };
        Some(fpdu.covered.end + CRC_LEN)
    }

    /// Returns the names of the CRCs, with the bytes that each is used for.
    pub(crate) fn crc_names(&self) -> &str {
        &self.crc_names
    }
}

/// The queue pairs that a transfer stands for: their messages lie in slots of their own, and they
/// take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkingSet {
    /// Slots at each end, one of each queue pair; at least one.
    pub(crate) slots: usize,
    /// Requests outstanding per queue pair, at least one. In its turn a queue pair sends them all,
    /// or as many of them as make the segments of a pass of the engine.
    pub(crate) depth: usize,
}

impl WorkingSet {
    pub(crate) const SINGLE: Self = Self { slots: 1, depth: 1 };
}

/// One end: its slots of the message, and the next segment.
#[derive(Debug)]
struct End {
    transfer: Arc<Transfer>,
    memory: MessageMemory,
    next: usize,
    slot: usize,
    slots: usize,
    /// Rounds of the segments until the next slot has its turn, and in each turn.
    rounds_left: usize,
    rounds: usize,
}

impl End {
    fn new(transfer: &Arc<Transfer>, memory_offset: usize, set: WorkingSet) -> io::Result<Self> {
        let memory = MessageMemory::map(memory_offset, transfer.message_len, set.slots)?;
        let of_depth = set.depth.div_ceil(transfer.messages_per_round());
        let of_pass = BURST_LEN / transfer.segments.len();
        let rounds = of_depth.min(of_pass).max(1);
        let transfer = Arc::clone(transfer);
        let slots = set.slots;
        Ok(Self { transfer, memory, next: 0, slot: 0, slots, rounds_left: rounds, rounds })
    }

    /// Returns the index of the segment and its slot, and steps to the next one.
    #[inline]
    fn step(&mut self) -> (usize, usize) {
        let at = (self.next, self.slot);
        self.next += 1;
        if self.next == self.transfer.segments.len() {
            self.next = 0;
            self.rounds_left -= 1;
            if self.rounds_left == 0 {
                self.rounds_left = self.rounds;
                self.slot = if self.slot + 1 == self.slots { 0 } else { self.slot + 1 };
            }
        }
        at
    }
}

#[derive(Debug)]
pub(crate) struct Source(End);

#[derive(Debug)]
pub(crate) struct Sink {
    end: End,
    /// Bytes of payload.
    pub(crate) placed: u64,
}

impl Source {
    /// Creates the source of a transfer, with messages that are not constant.
    pub(crate) fn new(transfer: &Arc<Transfer>, set: WorkingSet) -> io::Result<Self> {
        let mut end = End::new(transfer, MESSAGE_OFFSETS[0], set)?;
        for slot in 0..set.slots {
            for (at, byte) in end.memory.bytes_mut(slot).iter_mut().enumerate() {
                *byte = (slot + at).wrapping_mul(0x9e37_79b1).to_be_bytes()[4];
            }
        }
        Ok(Self(end))
    }

    /// Writes the FPDUs of the next segment to `frame`: copies the payload, then computes the CRC.
    #[inline]
    pub(crate) fn build(&mut self, frame: &mut [u8]) {
        let (index, slot) = self.0.step();
        let message = black_box(self.0.memory.bytes(slot));
        let start = self.0.memory.start(slot) as u64;
        for fpdu in &self.0.transfer.segments[index].fpdus {
            let (covered, rest) = frame[fpdu.covered.start..].split_at_mut(fpdu.covered.len());
            covered[..FPDU_HEADER_LEN].copy_from_slice(&fpdu.header);
            covered[TO_AT..FPDU_HEADER_LEN].copy_from_slice(&(fpdu.to + start).to_be_bytes());
            let end = FPDU_HEADER_LEN + fpdu.payload.len();
            covered[FPDU_HEADER_LEN..end].copy_from_slice(&message[fpdu.payload.clone()]);
            covered[end..].fill(0);
            let sum = (fpdu.crc.of)(covered);
            rest[..CRC_LEN].copy_from_slice(&sum.to_le_bytes());
        }
    }
}

impl Sink {
    pub(crate) fn new(transfer: &Arc<Transfer>, set: WorkingSet) -> io::Result<Self> {
        Ok(Self { end: End::new(transfer, MESSAGE_OFFSETS[1], set)?, placed: 0 })
    }

    /// Verifies the CRCs of the FPDUs in `frame`, and copies the payload of each.
    #[inline]
    pub(crate) fn place(&mut self, frame: &[u8]) {
        let (index, slot) = self.end.step();
        let segment = &self.end.transfer.segments[index];
        let message = self.end.memory.bytes_mut(slot);
        for fpdu in &segment.fpdus {
            let (covered, rest) = frame[fpdu.covered.start..].split_at(fpdu.covered.len());
            let sum = (fpdu.crc.of)(covered).to_le_bytes();
            assert_eq!(rest[..CRC_LEN], sum, "a segment was corrupted in transit");
            let payload = &covered[FPDU_HEADER_LEN..FPDU_HEADER_LEN + fpdu.payload.len()];
            message[fpdu.payload.clone()].copy_from_slice(payload);
        }
        self.placed += segment.payload_len as u64;
        black_box(message);
    }
}

#[cfg(test)]
#[path = "transfer_tests.rs"]
mod tests;
