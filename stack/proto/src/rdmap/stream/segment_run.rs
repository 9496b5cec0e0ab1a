//! Run of received segments of one message, in one pass: the header of the next one is known, and
//! the rest of the sink is resolved.

use crate::ddp::memory::{Memory, MemoryRange};
use crate::rdmap::segment_train::OFFSET_LEN;
use crate::wire::ddp::{CONTROL_LAST, TAGGED_LEN, UNTAGGED_LEN};

/// Bytes of a header before its offset.
const TAGGED_FIXED_LEN: usize = TAGGED_LEN - OFFSET_LEN;
const UNTAGGED_FIXED_LEN: usize = UNTAGGED_LEN - OFFSET_LEN;

/// Message of which the last segment placed was valid and not its last. Lives as long as a
/// [`ResolvedRegion`](crate::ddp::regions::ResolvedRegion) may.
#[derive(Debug)]
pub(super) struct SegmentRun {
    kind: RunKind,
    /// Start of the header, the same in each segment but the last: control bytes, and STag or
    /// queue number.
    fixed: [u8; UNTAGGED_FIXED_LEN],
    /// End of the next header.
    offset: u64,
    /// Part of the sink that was not placed.
    rest: MemoryRange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunKind {
    /// No message: the next segment is to be checked.
    None,
    Send,
    ReadResponse,
}

impl SegmentRun {
    /// No message.
    pub(super) const NONE: Self = Self {
        kind: RunKind::None,
        fixed: [0; UNTAGGED_FIXED_LEN],
        offset: 0,
        rest: MemoryRange::EMPTY,
    };

    /// Begins with a valid segment of a Send, which is to be placed at the start of `sink`, the
    /// rest of its buffer.
    pub(super) fn of_send(ulpdu: &[u8], sink: MemoryRange) -> Option<Self> {
        let (fixed, offset) = split_header::<UNTAGGED_FIXED_LEN>(ulpdu)?;
        Some(Self { kind: RunKind::Send, fixed: *fixed, offset, rest: sink })
    }

    /// Begins with a valid segment of a Read Response, which is to be placed at the start of
    /// `sink`, the rest of the Read's.
    pub(super) fn of_read_response(ulpdu: &[u8], sink: MemoryRange) -> Option<Self> {
        let (fixed_bytes, offset) = split_header::<TAGGED_FIXED_LEN>(ulpdu)?;
        let mut fixed = [0; UNTAGGED_FIXED_LEN];
        fixed[..TAGGED_FIXED_LEN].copy_from_slice(fixed_bytes);
        Some(Self { kind: RunKind::ReadResponse, fixed, offset, rest: sink })
    }

    pub(super) const fn kind(&self) -> RunKind {
        self.kind
    }

    /// Places the next segment of a Send, and returns its payload length. `None` if the segment is
    /// another, fills the sink, or cannot be placed: the run has then ended.
    #[inline(always)]
    pub(super) fn place_send(&mut self, memory: &impl Memory, ulpdu: &[u8]) -> Option<u32> {
        self.place::<UNTAGGED_FIXED_LEN, false>(memory, ulpdu)
    }

    /// Places the next segment of a Read Response, as [`SegmentRun::place_send`] does.
    #[inline(always)]
    pub(super) fn place_read_response(
        &mut self,
        memory: &impl Memory,
        ulpdu: &[u8],
    ) -> Option<u32> {
        self.place::<TAGGED_FIXED_LEN, false>(memory, ulpdu)
    }

    /// As [`SegmentRun::place_send`], for the last segment of the Send, which ends the run.
    #[inline(always)]
    pub(super) fn place_last_of_send(&mut self, memory: &impl Memory, ulpdu: &[u8]) -> Option<u32> {
        let len = self.place::<UNTAGGED_FIXED_LEN, true>(memory, ulpdu)?;
        *self = Self::NONE;
        Some(len)
    }

    /// Compares the header as words. A segment of a run has a payload, and leaves room for that of
    /// the message's last unless it is the `LAST`.
    #[inline(always)]
    fn place<const FIXED_LEN: usize, const LAST: bool>(
        &mut self,
        memory: &impl Memory,
        ulpdu: &[u8],
    ) -> Option<u32> {
        let (fixed, offset) = split_header::<FIXED_LEN>(ulpdu)?;
        let payload = &ulpdu[FIXED_LEN + OFFSET_LEN..];
        let is_expected = if LAST {
            let mut expected = self.fixed;
            expected[0] |= CONTROL_LAST;
            fixed[..] == expected[..FIXED_LEN] && payload.len() <= self.rest.len()
        } else {
            fixed[..] == self.fixed[..FIXED_LEN] && payload.len() < self.rest.len()
        };
        if !is_expected || offset != self.offset || payload.is_empty() {
            return None;
        }
        self.offset = offset.wrapping_add(payload.len() as u64);
        memory.place(self.rest.take_front(payload.len()), payload).ok()?;
        #[expect(clippy::cast_possible_truncation, reason = "a sink has less than 2^32 bytes")]
        let len = payload.len() as u32;
        Some(len)
    }
}

#[inline(always)]
fn split_header<const FIXED_LEN: usize>(ulpdu: &[u8]) -> Option<(&[u8; FIXED_LEN], u64)> {
    let (fixed, rest) = ulpdu.split_first_chunk()?;
    let offset = rest.first_chunk()?;
    Some((fixed, u64::from_be_bytes(*offset)))
}
