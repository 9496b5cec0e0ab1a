//! Encoding of a send request in the slots of a send queue: see [`super::wqe`].

use super::wqe::{OPERANDS, PAYLOAD, WORD_LEN, WR_ID, WqeFlags, WqeOpcode, ZERO_BASED};
use crate::ddp::regions::Stag;
use crate::rdmap::operation::{AtomicOp, Operation, Payload, SendWr, Sge};
use crate::work_queue::slots::{SLOT_WORDS, Slot, Slots};

/// Fields of words 1 and 2.
struct Head {
    opcode: WqeOpcode,
    flags: WqeFlags,
    count: usize,
    stag: Stag,
    remote: u64,
}

/// Writes the words of a request, in any order.
struct Emitter<'a> {
    slots: &'a Slots,
    first: &'a Slot,
    number: u64,
}

impl Emitter<'_> {
    /// Stores word `index`.
    #[inline(always)]
    fn put(&self, index: usize, value: u64) {
        if index < SLOT_WORDS {
            self.first.store(index, value);
        } else {
            let slot = self.slots.get(self.number + (index / SLOT_WORDS) as u64);
            slot.store(index % SLOT_WORDS, value);
        }
    }

    /// Stores words 1 and 2 of a request of `words` words; returns its number of slots.
    #[inline(always)]
    fn put_head(&self, head: &Head, words: usize) -> u64 {
        let slots = words.div_ceil(SLOT_WORDS) as u64;
        let low = u64::from(head.opcode as u8) | u64::from(head.flags.bits()) << 8;
        let counts = (head.count as u64) << 16 | slots << 24;
        self.put(1, low | counts | u64::from(head.stag) << 32);
        self.put(2, head.remote);
        slots
    }

    /// Stores a list of SGEs from word `at` on; returns the number of words.
    #[inline(always)]
    fn put_sges(&self, at: usize, list: &[Sge]) -> usize {
        // Most lists have one.
        if let [sge] = list {
            self.put_sge(at, sge);
        } else {
            for (index, sge) in list.iter().enumerate() {
                self.put_sge(at + 2 * index, sge);
            }
        }
        2 * list.len()
    }

    #[inline(always)]
    fn put_sge(&self, at: usize, sge: &Sge) {
        self.put(at, sge.addr);
        self.put(at + 1, u64::from(sge.len) | u64::from(sge.lkey) << 32);
    }

    /// Stores a payload from word `at` on; returns the number of words.
    #[inline(always)]
    fn put_payload(&self, at: usize, payload: &Payload) -> usize {
        match payload {
            Payload::Gather(list) => self.put_sges(at, list),
            Payload::Inline(bytes) => {
                let (words, rest) = bytes.as_chunks::<WORD_LEN>();
                for (index, word) in words.iter().enumerate() {
                    self.put(at + index, u64::from_ne_bytes(*word));
                }
                if !rest.is_empty() {
                    let mut word = [0; WORD_LEN];
                    word[..rest.len()].copy_from_slice(rest);
                    self.put(at + words.len(), u64::from_ne_bytes(word));
                }
                bytes.len().div_ceil(WORD_LEN)
            }
        }
    }
}

/// Returns the flag of a payload, and its number of SGEs or inline bytes.
#[inline(always)]
fn payload_shape(payload: &Payload) -> (WqeFlags, usize) {
    match payload {
        Payload::Gather(list) => (WqeFlags::default(), list.len()),
        Payload::Inline(bytes) => (WqeFlags::INLINE, bytes.len()),
    }
}

/// Encodes a request in the slots from `number` on; returns the number of slots.
#[inline(always)]
pub(super) fn encode(slots: &Slots, number: u64, wr: &SendWr) -> u64 {
    let out = Emitter { slots, first: slots.get(number), number };
    out.put(WR_ID, wr.wr_id);
    let flags = WqeFlags::SIGNALED.when(wr.signaled).and(WqeFlags::FENCE.when(wr.fence));
    match &wr.operation {
        Operation::Write { payload, rkey, remote } => {
            let (opcode, stag, remote) = (WqeOpcode::Write, *rkey, *remote);
            // Nearly every Write: its length is a constant.
            if let Payload::Gather(list) = payload
                && let [sge] = &list[..]
            {
                out.put_sge(PAYLOAD, sge);
                let head = Head { opcode, flags, count: 1, stag, remote };
                return out.put_head(&head, PAYLOAD + 2);
            }
            let (inline, count) = payload_shape(payload);
            let flags = flags.and(inline);
            let words = PAYLOAD + out.put_payload(PAYLOAD, payload);
            out.put_head(&Head { opcode, flags, count, stag, remote }, words)
        }
        Operation::Send { payload, solicited, invalidate } => {
            let (inline, count) = payload_shape(payload);
            let flags = flags
                .and(inline)
                .and(WqeFlags::SOLICITED.when(*solicited))
                .and(WqeFlags::INVALIDATE.when(invalidate.is_some()));
            let words = PAYLOAD + out.put_payload(PAYLOAD, payload);
            let (opcode, stag) = (WqeOpcode::Send, invalidate.unwrap_or(0));
            out.put_head(&Head { opcode, flags, count, stag, remote: 0 }, words)
        }
        Operation::Read { sink, rkey, remote } => {
            let words = PAYLOAD + out.put_sges(PAYLOAD, &[*sink]);
            let (opcode, stag, remote) = (WqeOpcode::Read, *rkey, *remote);
            out.put_head(&Head { opcode, flags, count: 1, stag, remote }, words)
        }
        operation => emit_uncommon(slots, number, operation, flags),
    }
}

/// Encodes the other operations from word 1 on; returns the number of slots.
#[cold]
fn emit_uncommon(slots: &Slots, number: u64, operation: &Operation, flags: WqeFlags) -> u64 {
    let out = Emitter { slots, first: slots.get(number), number };
    let opcode = WqeOpcode::Immediate;
    let head = Head { opcode, flags, count: 0, stag: 0, remote: 0 };
    match operation {
        Operation::WriteImmediate { payload, rkey, remote, data, solicited } => {
            let (inline, count) = payload_shape(payload);
            let flags = flags.and(inline).and(WqeFlags::SOLICITED.when(*solicited));
            // RFC 7306 section 5: the 8 bytes of Immediate Data follow the Write in a message.
            out.put(PAYLOAD, u64::from_ne_bytes(*data));
            let words = PAYLOAD + 1 + out.put_payload(PAYLOAD + 1, payload);
            let opcode = WqeOpcode::WriteImmediate;
            out.put_head(&Head { opcode, flags, count, stag: *rkey, remote: *remote }, words)
        }
        Operation::Immediate { data, solicited } => {
            let flags = flags.and(WqeFlags::SOLICITED.when(*solicited));
            // Alone they need no address, so they take its word.
            let remote = u64::from_ne_bytes(*data);
            out.put_head(&Head { flags, remote, ..head }, PAYLOAD)
        }
        Operation::Atomic { op, sink, rkey, remote } => {
            // RFC 7306 section 4.1: one operand or two, each with its mask.
            let (opcode, operands, count) = match *op {
                AtomicOp::FetchAdd { add, boundaries } => {
                    (WqeOpcode::FetchAdd, [add, boundaries, 0, 0], 2)
                }
                AtomicOp::Swap { swap, mask } => (WqeOpcode::Swap, [swap, mask, 0, 0], 2),
                AtomicOp::CmpSwap { compare, compare_mask, swap, swap_mask } => {
                    (WqeOpcode::CmpSwap, [compare, compare_mask, swap, swap_mask], 4)
                }
            };
            out.put_sges(PAYLOAD, &[*sink]);
            for (index, &operand) in operands[..count].iter().enumerate() {
                out.put(OPERANDS + index, operand);
            }
            let head = Head { opcode, count: 1, stag: *rkey, remote: *remote, ..head };
            out.put_head(&head, OPERANDS + count)
        }
        // A local operation: the send queue keeps its place among the others.
        Operation::Bind(bind) => {
            out.put(PAYLOAD, bind.len);
            let zero_based = if bind.zero_based { ZERO_BASED } else { 0 };
            let access = u64::from(bind.access.bits()) << 32;
            out.put(PAYLOAD + 1, u64::from(bind.lkey) | access | zero_based);
            let (opcode, stag, remote) = (WqeOpcode::Bind, bind.rkey, bind.addr);
            out.put_head(&Head { opcode, stag, remote, ..head }, PAYLOAD + 2)
        }
        Operation::Invalidate { stag } => {
            out.put_head(&Head { opcode: WqeOpcode::Invalidate, stag: *stag, ..head }, PAYLOAD)
        }
        Operation::Write { .. } | Operation::Send { .. } | Operation::Read { .. } => 0,
    }
}
