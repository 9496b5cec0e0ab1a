//! Encoding of send requests in the slots of a send queue: see [`super::wqe`].

use super::SqProducer;
use super::wqe::{
    COUNT_SHIFT, OPERANDS, PAYLOAD, SLOT_COUNT_SHIFT, SendFlags, WORD_LEN, WR_ID, WqeOpcode,
    ZERO_BASED,
};
use crate::ddp::atomic::ATOMIC_LEN;
use crate::ddp::regions::Stag;
use crate::ddp::sgl;
use crate::rdmap::operation::{AtomicOp, Bind, ImmediateData, MESSAGE_LEN_MAX, Sge};
use crate::work_queue::PostError;
use crate::work_queue::slots::{SLOT_WORDS, Slot, Slots};

/// What every request has (verbs: the first fields of `ibv_send_wr`).
#[derive(Clone, Copy, Debug, Default)]
pub struct WqeHead {
    /// Work request ID, returned in the completion.
    pub wr_id: u64,
    /// Properties.
    pub flags: SendFlags,
    /// STag at the peer (`rkey`), or of a Send with Invalidate the one to invalidate.
    pub stag: Stag,
    /// Tagged offset at the peer.
    pub remote: u64,
}

/// Source of a message, or sink of an RDMA Read.
#[derive(Clone, Copy, Debug)]
pub enum WqePayload<'a> {
    /// One piece of registered memory.
    Sge(Sge),
    /// Pieces of registered memory.
    Gather(&'a [Sge]),
    /// Bytes that are copied into the request (verbs: `IBV_SEND_INLINE`).
    Inline(&'a [u8]),
}

impl From<Sge> for WqePayload<'_> {
    #[inline(always)]
    fn from(sge: Sge) -> Self {
        Self::Sge(sge)
    }
}

impl<'a> From<&'a [Sge]> for WqePayload<'a> {
    #[inline(always)]
    fn from(list: &'a [Sge]) -> Self {
        Self::Gather(list)
    }
}

impl<'a, const COUNT: usize> From<&'a [Sge; COUNT]> for WqePayload<'a> {
    #[inline(always)]
    fn from(list: &'a [Sge; COUNT]) -> Self {
        Self::Gather(list)
    }
}

/// Writes the words of a request, in any order.
struct Emitter<'a> {
    slots: &'a Slots,
    first: &'a Slot,
    number: u64,
}

impl<'a> Emitter<'a> {
    #[inline(always)]
    fn new(slots: &'a Slots, number: u64) -> Self {
        Self { slots, first: slots.get(number), number }
    }

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

    /// Stores words 0 to 2 of a request of `words` words, with so many SGEs or inline bytes;
    /// returns its number of slots.
    #[inline(always)]
    fn put_head(&self, opcode: WqeOpcode, head: &WqeHead, count: usize, words: usize) -> u64 {
        let slots = words.div_ceil(SLOT_WORDS) as u64;
        let low = u64::from(opcode as u8) | u64::from(head.flags.bits()) << 8;
        let counts = (count as u64) << COUNT_SHIFT | slots << SLOT_COUNT_SHIFT;
        self.put(WR_ID, head.wr_id);
        self.put(1, low | counts | u64::from(head.stag) << 32);
        self.put(2, head.remote);
        slots
    }

    #[inline(always)]
    fn put_sge(&self, at: usize, sge: &Sge) {
        self.put(at, sge.addr);
        self.put(at + 1, u64::from(sge.len) | u64::from(sge.lkey) << 32);
    }

    /// Stores a list of SGEs from word `at` on; returns the number of words.
    #[inline(always)]
    fn put_sges(&self, at: usize, list: &[Sge]) -> usize {
        for (index, sge) in list.iter().enumerate() {
            self.put_sge(at + 2 * index, sge);
        }
        2 * list.len()
    }

    /// Stores bytes from word `at` on; returns the number of words.
    #[inline(always)]
    fn put_bytes(&self, at: usize, bytes: &[u8]) -> usize {
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

/// The encoder: each call writes a request to the queue, which [`SqProducer::publish`] passes to
/// the stack.
///
/// The rights of the connection ([`OpcodeSet`](super::wqe::OpcodeSet)) are checked by the caller.
impl SqProducer {
    /// Posts a Send, an RDMA Write or an RDMA Read; of a Read the payload is the sink.
    ///
    /// # Errors
    /// `QueueFull`, `TooManySges`, `InlineTooLong`, `InlineSink`, `TooLong`; nothing was posted.
    #[inline(always)]
    pub fn post(
        &mut self,
        opcode: WqeOpcode,
        head: &WqeHead,
        payload: WqePayload<'_>,
    ) -> Result<(), PostError> {
        debug_assert!(matches!(opcode, WqeOpcode::Send | WqeOpcode::Write | WqeOpcode::Read));
        // Nearly every request: its length is a constant, and within every limit.
        if let WqePayload::Sge(sge) | WqePayload::Gather(&[sge]) = payload {
            return self.0.post(|slots, number| {
                let out = Emitter::new(slots, number);
                out.put_sge(PAYLOAD, &sge);
                out.put_head(opcode, head, 1, PAYLOAD + 2)
            });
        }
        let payload = match payload {
            // A Read Request has a sink, also for no bytes.
            WqePayload::Gather([]) if opcode == WqeOpcode::Read => Sge::default().into(),
            WqePayload::Inline(_) if opcode == WqeOpcode::Read => {
                return Err(PostError::InlineSink);
            }
            other => other,
        };
        self.post_at(opcode, head, PAYLOAD, payload, |_| {})
    }

    /// Posts an RDMA Write followed by Immediate Data.
    ///
    /// # Errors
    /// As [`SqProducer::post`].
    #[inline(never)]
    pub fn post_write_immediate(
        &mut self,
        head: &WqeHead,
        data: ImmediateData,
        payload: WqePayload<'_>,
    ) -> Result<(), PostError> {
        // RFC 7306 section 5: the 8 bytes of Immediate Data follow the Write in a message.
        self.post_at(WqeOpcode::WriteImmediate, head, PAYLOAD + 1, payload, |out| {
            out.put(PAYLOAD, u64::from_ne_bytes(data));
        })
    }

    /// Posts a request with its payload from word `at` on; `put_rest` stores what is before it.
    #[inline(always)]
    fn post_at(
        &mut self,
        opcode: WqeOpcode,
        head: &WqeHead,
        at: usize,
        payload: WqePayload<'_>,
        put_rest: impl FnOnce(&Emitter<'_>),
    ) -> Result<(), PostError> {
        match payload {
            WqePayload::Sge(_) => {}
            WqePayload::Gather(list) => {
                if list.len() > usize::from(self.0.max().sge_count) {
                    return Err(PostError::TooManySges);
                }
                // req: DDP-095, RDMAP-002
                if sgl::len(list) > u64::from(MESSAGE_LEN_MAX) {
                    return Err(PostError::TooLong);
                }
            }
            WqePayload::Inline(bytes) => {
                if bytes.len() > usize::from(self.0.max().len) {
                    return Err(PostError::InlineTooLong);
                }
            }
        }
        self.0.post(|slots, number| {
            let out = Emitter::new(slots, number);
            put_rest(&out);
            let (count, words, inline) = match &payload {
                WqePayload::Sge(sge) => {
                    (1, out.put_sges(at, std::slice::from_ref(sge)), SendFlags::default())
                }
                WqePayload::Gather(list) => {
                    (list.len(), out.put_sges(at, list), SendFlags::default())
                }
                WqePayload::Inline(bytes) => {
                    (bytes.len(), out.put_bytes(at, bytes), SendFlags::INLINE)
                }
            };
            let head = WqeHead { flags: head.flags.and(inline), ..*head };
            out.put_head(opcode, &head, count, at + words)
        })
    }

    /// Posts Immediate Data alone; `remote` and `stag` of `head` are not used.
    ///
    /// # Errors
    /// `QueueFull`.
    #[inline(never)]
    pub fn post_immediate(&mut self, head: &WqeHead, data: ImmediateData) -> Result<(), PostError> {
        // They need no address, so they take its word.
        let head = WqeHead { remote: u64::from_ne_bytes(data), stag: 0, ..*head };
        self.post_words(WqeOpcode::Immediate, &head, &[])
    }

    /// Posts an atomic operation whose original value goes to `sink`.
    ///
    /// # Errors
    /// `QueueFull`, `Misaligned`.
    #[inline(never)]
    pub fn post_atomic(
        &mut self,
        head: &WqeHead,
        op: AtomicOp,
        sink: &Sge,
    ) -> Result<(), PostError> {
        const LEN: u64 = ATOMIC_LEN as u64;
        if !head.remote.is_multiple_of(LEN) || u64::from(sink.len) != LEN {
            return Err(PostError::Misaligned);
        }
        // RFC 7306 section 4.1: one operand or two, each with its mask.
        let (opcode, operands, count) = match op {
            AtomicOp::FetchAdd { add, boundaries } => {
                (WqeOpcode::FetchAdd, [add, boundaries, 0, 0], 2)
            }
            AtomicOp::Swap { swap, mask } => (WqeOpcode::Swap, [swap, mask, 0, 0], 2),
            AtomicOp::CmpSwap { compare, compare_mask, swap, swap_mask } => {
                (WqeOpcode::CmpSwap, [compare, compare_mask, swap, swap_mask], 4)
            }
        };
        self.0.post(|slots, number| {
            let out = Emitter::new(slots, number);
            out.put_sge(PAYLOAD, sink);
            for (index, &operand) in operands[..count].iter().enumerate() {
                out.put(OPERANDS + index, operand);
            }
            out.put_head(opcode, head, 1, OPERANDS + count)
        })
    }

    /// Posts the binding of a memory window, a local operation: the send queue keeps its place
    /// among the others.
    ///
    /// # Errors
    /// `QueueFull`.
    #[inline(never)]
    pub fn post_bind(
        &mut self,
        wr_id: u64,
        flags: SendFlags,
        bind: &Bind,
    ) -> Result<(), PostError> {
        let zero_based = if bind.zero_based { ZERO_BASED } else { 0 };
        let rest = u64::from(bind.lkey) | u64::from(bind.access.bits()) << 32 | zero_based;
        let head = WqeHead { wr_id, flags, stag: bind.rkey, remote: bind.addr };
        self.post_words(WqeOpcode::Bind, &head, &[bind.len, rest])
    }

    /// Posts the invalidation of an STag of this machine, a local operation.
    ///
    /// # Errors
    /// `QueueFull`.
    #[inline(never)]
    pub fn post_invalidate(
        &mut self,
        wr_id: u64,
        flags: SendFlags,
        stag: Stag,
    ) -> Result<(), PostError> {
        let head = WqeHead { wr_id, flags, stag, remote: 0 };
        self.post_words(WqeOpcode::Invalidate, &head, &[])
    }

    /// Posts a request without SGEs or inline bytes, with these words from word 3 on.
    fn post_words(
        &mut self,
        opcode: WqeOpcode,
        head: &WqeHead,
        words: &[u64],
    ) -> Result<(), PostError> {
        self.0.post(|slots, number| {
            let out = Emitter::new(slots, number);
            for (index, &word) in words.iter().enumerate() {
                out.put(PAYLOAD + index, word);
            }
            out.put_head(opcode, head, 0, PAYLOAD + words.len())
        })
    }
}
