//! Work queue element (WQE): the encoding of a send request in the slots of a send queue.
//!
//! The words are in this machine's byte order. Word 8 and those after it are in the next slot,
//! which after the last slot of the ring is the first.
//!
//! | Word | Bits | Content |
//! |---|---|---|
//! | 0 | | `wr_id` |
//! | 1 | 0 to 7 | [`WqeOpcode`] |
//! | | 8 to 15 | `SendFlags` |
//! | | 16 to 27 | number of SGEs, or of inline bytes |
//! | | 28 to 31 | number of slots |
//! | | 32 to 63 | STag at the peer (`rkey`), or to invalidate |
//! | 2 | | remote tagged offset, Immediate Data of `Immediate`, or `addr` of `Bind` |
//! | 3 | | of `WriteImmediate` its Immediate Data, which move what follows by a word |
//! | 3 | | `addr` of the first SGE |
//! | 4 | 0 to 31 | `len` of the first SGE |
//! | | 32 to 63 | `lkey` of the first SGE; the others follow in two words each |
//! | from 3 | | or inline bytes, in the order of memory |
//! | from 5 | | operands of an atomic operation, in the order of [`AtomicOp`]'s fields |
//! | 3 | | `len` of `Bind` |
//! | 4 | 0 to 31 | `lkey` of `Bind` |
//! | | 32 to 39 | access rights of `Bind` |
//! | | 40 | zero-based |

#![expect(clippy::cast_possible_truncation, reason = "fields are cut out of words")]

use crate::ddp::memory::Access;
use crate::ddp::regions::Stag;
use crate::rdmap::operation::{AtomicOp, Bind, INLINE_LEN_MAX, ImmediateData, SGE_COUNT_MAX, Sge};
use crate::work_queue::slots::{SLOT_WORDS, Slot, Slots};

pub use super::flags::SendFlags;

/// First word of the payload.
pub(super) const PAYLOAD: usize = 3;
/// Word of the work request ID.
pub(super) const WR_ID: usize = 0;
/// Word of the operation, the flags and so on.
pub(super) const CONTROL: usize = 1;
/// First word of an atomic operation's operands.
pub(super) const OPERANDS: usize = PAYLOAD + 2;
/// Bytes per word.
pub(super) const WORD_LEN: usize = size_of::<u64>();

/// Bit of word 1 from which on it has the flags.
pub(super) const FLAGS_SHIFT: u32 = 8;
/// Bit of word 1 from which on it has the STag.
pub(super) const STAG_SHIFT: u32 = 32;
/// Bit of word 1 from which on it has the number of SGEs, or of inline bytes.
pub(super) const COUNT_SHIFT: u32 = 16;
/// Bit of word 1 from which on it has the number of slots.
pub(super) const SLOT_COUNT_SHIFT: u32 = 28;
const COUNT_MASK: u64 = (1 << (SLOT_COUNT_SHIFT - COUNT_SHIFT)) - 1;
pub(super) const SLOT_COUNT_MASK: u64 = (1 << (32 - SLOT_COUNT_SHIFT)) - 1;

/// Returns the slots of the longest request with at most so many SGEs and inline bytes: a Write
/// with Immediate Data and the longest payload, or a `CmpSwap`.
pub(super) const fn slot_count_max(sge_count: usize, inline_len: usize) -> usize {
    let mut words = OPERANDS + 4;
    let payloads = [2 * sge_count, inline_len.div_ceil(WORD_LEN)];
    let mut index = 0;
    while index < payloads.len() {
        let with_payload = PAYLOAD + 1 + payloads[index];
        words = if with_payload > words { with_payload } else { words };
        index += 1;
    }
    words.div_ceil(SLOT_WORDS)
}

const _: () = assert!(
    SGE_COUNT_MAX as u64 <= COUNT_MASK
        && INLINE_LEN_MAX as u64 <= COUNT_MASK
        && slot_count_max(SGE_COUNT_MAX, INLINE_LEN_MAX) as u64 <= SLOT_COUNT_MASK,
    "they fit the fields of word 1"
);

/// Bit of a `Bind`'s word 4 for a zero-based window.
pub(super) const ZERO_BASED: u64 = 1 << 40;

/// Operation of a request, without its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WqeOpcode {
    /// Send, in its four forms.
    Send,
    /// RDMA Write.
    Write,
    /// RDMA Write followed by Immediate Data.
    WriteImmediate,
    /// RDMA Read.
    Read,
    /// Atomic `FetchAdd`.
    FetchAdd,
    /// Atomic `Swap`.
    Swap,
    /// Atomic `CmpSwap`.
    CmpSwap,
    /// Immediate Data.
    Immediate,
    /// Local operation: binds a memory window.
    Bind,
    /// Local operation: invalidates an STag.
    Invalidate,
}

impl WqeOpcode {
    /// By value.
    const ALL: [Self; 10] = [
        Self::Send,
        Self::Write,
        Self::WriteImmediate,
        Self::Read,
        Self::FetchAdd,
        Self::Swap,
        Self::CmpSwap,
        Self::Immediate,
        Self::Bind,
        Self::Invalidate,
    ];

    /// True if it uses an ORD credit until its response has been received.
    #[inline(always)]
    #[must_use]
    pub const fn is_answered(self) -> bool {
        OpcodeSet::ANSWERED.contains(self)
    }

    /// True for a local operation: it sends nothing.
    #[inline(always)]
    #[must_use]
    pub const fn is_local(self) -> bool {
        OpcodeSet::LOCAL.contains(self)
    }

    /// True for an RDMA Write, with or without Immediate Data.
    #[must_use]
    pub const fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::WriteImmediate)
    }
}

/// Set of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpcodeSet(u16);

impl OpcodeSet {
    /// No operation.
    pub const NONE: Self = Self(0);
    /// All operations.
    pub const ALL: Self = Self(u16::MAX);
    /// Operations that use an ORD credit.
    pub const ANSWERED: Self =
        Self::new(&[WqeOpcode::Read, WqeOpcode::FetchAdd, WqeOpcode::Swap, WqeOpcode::CmpSwap]);
    /// Operations of RFC 7306.
    pub const EXTENSIONS: Self = Self::new(&[
        WqeOpcode::WriteImmediate,
        WqeOpcode::FetchAdd,
        WqeOpcode::Swap,
        WqeOpcode::CmpSwap,
        WqeOpcode::Immediate,
    ]);
    /// Local operations.
    pub const LOCAL: Self = Self::new(&[WqeOpcode::Bind, WqeOpcode::Invalidate]);

    const fn new(opcodes: &[WqeOpcode]) -> Self {
        let (mut bits, mut index) = (0, 0);
        while index < opcodes.len() {
            bits |= 1 << opcodes[index] as u8;
            index += 1;
        }
        Self(bits)
    }

    /// Returns the operations of both.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// True if the operation of the request is in the set.
    #[inline(always)]
    pub(in crate::rdmap) const fn contains_of(self, control: Control) -> bool {
        // Values above 9 are never emitted.
        self.0 >> (control.0 & 0xf) & 1 != 0
    }

    /// True if the operation is in the set.
    #[inline(always)]
    #[must_use]
    pub const fn contains(self, opcode: WqeOpcode) -> bool {
        self.0 >> opcode as u8 & 1 != 0
    }
}

/// Word 1 of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rdmap) struct Control(u64);

impl Control {
    pub(in crate::rdmap) const NONE: Self = Self(0);
    /// Operation, flags but for `SIGNALED`, and number of SGEs.
    const SHAPE: u64 = Self::COUNT | 0xffff & !((SendFlags::SIGNALED.bits() as u64) << 8);
    /// Operation, flags on which the payload and the time of sending depend, and number of SGEs.
    const SEND_SHAPE: u64 =
        Self::COUNT | 0xff | (SendFlags::INLINE.and(SendFlags::FENCE).bits() as u64) << 8;
    /// Flag and number of a payload that is one SGE.
    const PAYLOAD_SHAPE: u64 = Self::COUNT | (SendFlags::INLINE.bits() as u64) << 8;
    const COUNT: u64 = COUNT_MASK << COUNT_SHIFT;
    const ONE_SGE: u64 = 1 << COUNT_SHIFT;

    #[inline(always)]
    pub(in crate::rdmap) fn opcode(self) -> WqeOpcode {
        let value = self.0 & 0xff;
        *WqeOpcode::ALL.get(value as usize).expect("an opcode that was emitted")
    }

    #[inline(always)]
    pub(in crate::rdmap) const fn flags(self) -> SendFlags {
        SendFlags::from_bits((self.0 >> FLAGS_SHIFT) as u8)
    }

    /// Number of SGEs, or of inline bytes.
    #[inline(always)]
    pub(in crate::rdmap) const fn payload_count(self) -> usize {
        (self.0 >> COUNT_SHIFT & COUNT_MASK) as usize
    }

    /// True if the payload is one SGE.
    #[inline(always)]
    const fn has_one_sge(self) -> bool {
        self.0 & Self::PAYLOAD_SHAPE == Self::ONE_SGE
    }

    /// True for an RDMA Write from one SGE without a fence.
    #[inline(always)]
    pub(in crate::rdmap) const fn is_plain_write(self) -> bool {
        self.0 & Self::SHAPE == Self::ONE_SGE | WqeOpcode::Write as u64
    }

    /// True for a Send from one SGE without a fence.
    #[inline(always)]
    pub(in crate::rdmap) const fn is_plain_send(self) -> bool {
        self.0 & Self::SEND_SHAPE == Self::ONE_SGE | WqeOpcode::Send as u64
    }

    /// True for an RDMA Write without a fence, from one SGE or inline.
    #[inline(always)]
    pub(in crate::rdmap) const fn is_unfenced_write(self) -> bool {
        self.is_unfenced(WqeOpcode::Write)
    }

    /// True for a Send without a fence, from one SGE or inline.
    #[inline(always)]
    pub(in crate::rdmap) const fn is_unfenced_send(self) -> bool {
        self.is_unfenced(WqeOpcode::Send)
    }

    #[inline(always)]
    const fn is_unfenced(self, opcode: WqeOpcode) -> bool {
        const UNFENCED: u64 = 0xff | (SendFlags::FENCE.bits() as u64) << FLAGS_SHIFT;
        let has_one_payload =
            self.flags().contains(SendFlags::INLINE) || self.0 & Self::COUNT == Self::ONE_SGE;
        self.0 & UNFENCED == opcode as u64 && has_one_payload
    }

    /// STag at the peer; of `Bind` the window's, of `Invalidate` the one to invalidate.
    #[inline(always)]
    pub(in crate::rdmap) const fn stag(self) -> Stag {
        (self.0 >> 32) as Stag
    }

    /// Number of the request's slots.
    #[inline(always)]
    pub(super) const fn slot_count(self) -> u64 {
        self.0 >> SLOT_COUNT_SHIFT & SLOT_COUNT_MASK
    }
}

/// A request in its slots.
#[derive(Clone, Copy)]
pub(in crate::rdmap) struct Wqe<'a> {
    slots: &'a Slots,
    first: &'a Slot,
    /// Number of the first slot.
    number: u64,
    control: Control,
}

impl<'a> Wqe<'a> {
    #[inline(always)]
    pub(super) fn new(slots: &'a Slots, number: u64) -> Self {
        let first = slots.get(number);
        Self { slots, first, number, control: Control(first.load(CONTROL)) }
    }

    /// The request in the slots from `number` on, whose word 1 is known.
    #[inline(always)]
    pub(super) fn with_control(slots: &'a Slots, number: u64, control: Control) -> Self {
        Self { slots, first: slots.get(number), number, control }
    }

    #[inline(always)]
    fn word(&self, index: usize) -> u64 {
        if index < SLOT_WORDS {
            self.first.load(index)
        } else {
            let slot = self.slots.get(self.number + (index / SLOT_WORDS) as u64);
            slot.load(index % SLOT_WORDS)
        }
    }

    #[inline(always)]
    pub(in crate::rdmap) const fn control(&self) -> Control {
        self.control
    }

    #[inline(always)]
    pub(in crate::rdmap) fn opcode(&self) -> WqeOpcode {
        self.control.opcode()
    }

    #[inline(always)]
    pub(in crate::rdmap) const fn flags(&self) -> SendFlags {
        self.control.flags()
    }

    /// Number of SGEs, or of inline bytes.
    #[inline(always)]
    pub(in crate::rdmap) const fn payload_count(&self) -> usize {
        self.control.payload_count()
    }

    /// Work request ID.
    #[inline(always)]
    pub(in crate::rdmap) fn wr_id(&self) -> u64 {
        self.first.load(WR_ID)
    }

    #[inline(always)]
    pub(in crate::rdmap) fn is_inline(&self) -> bool {
        self.flags().contains(SendFlags::INLINE)
    }

    /// STag at the peer; of `Bind` the window's, of `Invalidate` the one to invalidate.
    #[inline(always)]
    pub(in crate::rdmap) const fn stag(&self) -> Stag {
        self.control.stag()
    }

    /// Tagged offset at the peer.
    #[inline(always)]
    pub(in crate::rdmap) fn remote(&self) -> u64 {
        self.word(2)
    }

    /// STag that a Send invalidates.
    pub(in crate::rdmap) fn invalidate(&self) -> Option<Stag> {
        self.flags().contains(SendFlags::INVALIDATE).then(|| self.stag())
    }

    /// First word of the payload.
    #[inline(always)]
    fn payload(&self) -> usize {
        PAYLOAD + usize::from(self.control.0 as u8 == WqeOpcode::WriteImmediate as u8)
    }

    /// SGE `index`; the sink of a Read or atomic operation is the first.
    #[inline(always)]
    pub(in crate::rdmap) fn sge(&self, index: usize) -> Sge {
        self.sge_at(self.payload() + 2 * index)
    }

    /// Number of the first SGE of a Read's sink: that is not empty, if there is one.
    #[inline(always)]
    pub(in crate::rdmap) fn first_sink(&self) -> u8 {
        if self.control.has_one_sge() {
            return 0;
        }
        let first = self.sink_from(0);
        if usize::from(first) == self.payload_count() { 0 } else { first }
    }

    /// Number of the next SGE of a Read's sink after `sink` that is not empty; the number of all if
    /// there is none.
    #[inline(always)]
    pub(in crate::rdmap) fn sink_after(&self, sink: u8) -> u8 {
        if self.control.has_one_sge() { 1 } else { self.sink_from(sink + 1) }
    }

    #[cold]
    fn sink_from(&self, first: u8) -> u8 {
        let count = self.payload_count() as u8;
        (first..count).find(|&index| self.sge(index.into()).len > 0).unwrap_or(count)
    }

    /// First SGE of any operation but `WriteImmediate`, in the fewest instructions.
    #[inline(always)]
    pub(in crate::rdmap) fn first_sge(&self) -> Sge {
        self.sge_at(PAYLOAD)
    }

    #[inline(always)]
    fn sge_at(&self, at: usize) -> Sge {
        let (addr, rest) = (self.word(at), self.word(at + 1));
        Sge { addr, len: rest as u32, lkey: (rest >> 32) as Stag }
    }

    /// All SGEs.
    #[inline]
    pub(in crate::rdmap) fn sges(self) -> impl Iterator<Item = Sge> {
        (0..self.payload_count()).map(move |index| self.sge(index))
    }

    /// Copies inline bytes from `offset` on to `out`.
    #[inline]
    pub(in crate::rdmap) fn copy_inline(&self, offset: usize, out: &mut [u8]) {
        let at = self.payload();
        let mut done = 0;
        while done < out.len() {
            let (word, skip) = ((offset + done) / WORD_LEN, (offset + done) % WORD_LEN);
            let bytes = self.word(at + word).to_ne_bytes();
            let len = (WORD_LEN - skip).min(out.len() - done);
            out[done..done + len].copy_from_slice(&bytes[skip..skip + len]);
            done += len;
        }
    }

    /// Immediate Data.
    pub(in crate::rdmap) fn immediate(&self) -> ImmediateData {
        let is_alone = self.opcode() == WqeOpcode::Immediate;
        self.word(if is_alone { 2 } else { PAYLOAD }).to_ne_bytes()
    }

    /// Atomic operation, if it is one.
    #[cold]
    pub(in crate::rdmap) fn atomic(&self) -> Option<AtomicOp> {
        let operand = |index| self.word(OPERANDS + index);
        match self.opcode() {
            WqeOpcode::FetchAdd => {
                Some(AtomicOp::FetchAdd { add: operand(0), boundaries: operand(1) })
            }
            WqeOpcode::Swap => Some(AtomicOp::Swap { swap: operand(0), mask: operand(1) }),
            WqeOpcode::CmpSwap => Some(AtomicOp::CmpSwap {
                compare: operand(0),
                compare_mask: operand(1),
                swap: operand(2),
                swap_mask: operand(3),
            }),
            _ => None,
        }
    }

    /// Binding of a `Bind`.
    #[cold]
    pub(in crate::rdmap) fn bind(&self) -> Bind {
        let rest = self.word(PAYLOAD + 1);
        Bind {
            rkey: self.stag(),
            lkey: rest as Stag,
            addr: self.word(2),
            len: self.word(PAYLOAD),
            access: Access::from_bits((rest >> 32) as u8),
            zero_based: rest & ZERO_BASED != 0,
        }
    }

    /// Number of bytes that the request transfers.
    #[inline(always)]
    pub(in crate::rdmap) fn len(&self) -> u32 {
        if self.control.has_one_sge() {
            return self.sge(0).len;
        }
        let count = self.payload_count();
        if self.is_inline() {
            return count as u32;
        }
        // The sum of a request that was checked does not overflow.
        (0..count).fold(0, |sum: u32, index| sum.wrapping_add(self.sge(index).len))
    }
}
