//! Encoding of send requests in the slots of a send queue: see [`super::wqe`].

use super::SqProducer;
use super::wqe::{
    CONTROL, COUNT_SHIFT, FLAGS_SHIFT, OPERANDS, PAYLOAD, SLOT_COUNT_MASK, SLOT_COUNT_SHIFT,
    STAG_SHIFT, SendFlags, WORD_LEN, WR_ID, WqeOpcode, ZERO_BASED,
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

    /// Stores words 0 to 2 of a request of `words` words, with so many SGEs or inline bytes.
    #[inline(always)]
    fn put_head(&self, opcode: WqeOpcode, head: &WqeHead, count: usize, words: usize) -> WqePlace {
        let slots = words.div_ceil(SLOT_WORDS) as u64;
        let low = u64::from(opcode as u8) | u64::from(head.flags.bits()) << FLAGS_SHIFT;
        let counts = (count as u64) << COUNT_SHIFT | slots << SLOT_COUNT_SHIFT;
        let control = low | counts | u64::from(head.stag) << STAG_SHIFT;
        self.put(WR_ID, head.wr_id);
        self.put(CONTROL, control);
        self.put(2, head.remote);
        WqePlace { number: self.number, control }
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

/// Place of a request that is not published, and can still be changed.
#[derive(Debug, PartialEq, Eq)]
pub struct WqePlace {
    /// Number of its first slot.
    number: u64,
    /// Its word 1.
    control: u64,
}

/// Changes of a request that was posted after the last [`SqProducer::publish`].
impl SqProducer {
    /// Sets the work request ID.
    #[inline(always)]
    pub fn set_wr_id(&mut self, place: &WqePlace, wr_id: u64) {
        self.0.slots().get(place.number).store(WR_ID, wr_id);
    }

    /// Sets flags, in addition to those that it has.
    #[inline(always)]
    pub fn set_flags(&mut self, place: &mut WqePlace, flags: SendFlags) {
        self.set_control(place, place.control | u64::from(flags.bits()) << FLAGS_SHIFT);
    }

    /// Makes a Send one with Invalidate; changes no other request.
    #[inline(always)]
    pub fn set_invalidate(&mut self, place: &mut WqePlace, stag: Stag) {
        if place.control & 0xff == WqeOpcode::Send as u64 {
            let flags = u64::from(SendFlags::INVALIDATE.bits()) << FLAGS_SHIFT;
            let low = place.control & ((1 << STAG_SHIFT) - 1);
            self.set_control(place, low | flags | u64::from(stag) << STAG_SHIFT);
        }
    }

    #[inline(always)]
    fn set_control(&mut self, place: &mut WqePlace, control: u64) {
        place.control = control;
        self.0.slots().get(place.number).store(CONTROL, control);
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
    ) -> Result<WqePlace, PostError> {
        debug_assert!(matches!(opcode, WqeOpcode::Send | WqeOpcode::Write | WqeOpcode::Read));
        // Nearly every request: its length is a constant, and within every limit.
        if let WqePayload::Sge(sge) | WqePayload::Gather(&[sge]) = payload {
            let number = self.0.begin()?;
            let out = Emitter::new(self.0.slots(), number);
            out.put_sge(PAYLOAD, &sge);
            let place = out.put_head(opcode, head, 1, PAYLOAD + 2);
            return Ok(self.end(place));
        }
        // The same is true of few bytes: they fit the first slot.
        if let WqePayload::Inline(bytes) = payload
            && opcode != WqeOpcode::Read
            && bytes.len() <= WORD_LEN * (SLOT_WORDS - PAYLOAD)
            && bytes.len() <= usize::from(self.0.max().len)
        {
            let number = self.0.begin()?;
            let out = Emitter::new(self.0.slots(), number);
            out.put_bytes(PAYLOAD, bytes);
            let head = WqeHead { flags: head.flags.and(SendFlags::INLINE), ..*head };
            let place = out.put_head(opcode, &head, bytes.len(), SLOT_WORDS);
            return Ok(self.end(place));
        }
        self.post_other(opcode, head, payload)
    }

    /// [`SqProducer::post`] for any payload.
    #[inline(never)]
    fn post_other(
        &mut self,
        opcode: WqeOpcode,
        head: &WqeHead,
        payload: WqePayload<'_>,
    ) -> Result<WqePlace, PostError> {
        let payload = match payload {
            // A Read Request has a sink, also for no bytes.
            WqePayload::Gather([]) if opcode == WqeOpcode::Read => Sge::default().into(),
            WqePayload::Inline(_) if opcode == WqeOpcode::Read => {
                return Err(PostError::InlineSink);
            }
            other => other,
        };
        self.post_at(opcode, head, PAYLOAD, payload, [0; WORD_LEN])
    }

    /// Posts an RDMA Write followed by Immediate Data.
    ///
    /// # Errors
    /// As [`SqProducer::post`].
    pub fn post_write_immediate(
        &mut self,
        head: &WqeHead,
        data: ImmediateData,
        payload: WqePayload<'_>,
    ) -> Result<WqePlace, PostError> {
        // RFC 7306 section 5: the 8 bytes of Immediate Data follow the Write in a message.
        self.post_at(WqeOpcode::WriteImmediate, head, PAYLOAD + 1, payload, data)
    }

    /// Posts a request with its payload from word `at` on, and `data` in the first word that the
    /// payload may have.
    #[inline(always)]
    fn post_at(
        &mut self,
        opcode: WqeOpcode,
        head: &WqeHead,
        at: usize,
        payload: WqePayload<'_>,
        data: ImmediateData,
    ) -> Result<WqePlace, PostError> {
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
        let number = self.0.begin()?;
        let out = Emitter::new(self.0.slots(), number);
        if at > PAYLOAD {
            out.put(PAYLOAD, u64::from_ne_bytes(data));
        }
        let (count, words, inline) = match payload {
            WqePayload::Sge(sge) => (1, out.put_sges(at, &[sge]), SendFlags::NONE),
            WqePayload::Gather(list) => (list.len(), out.put_sges(at, list), SendFlags::NONE),
            WqePayload::Inline(bytes) => (bytes.len(), out.put_bytes(at, bytes), SendFlags::INLINE),
        };
        let head = WqeHead { flags: head.flags.and(inline), ..*head };
        let place = out.put_head(opcode, &head, count, at + words);
        Ok(self.end(place))
    }

    /// Ends the request in this place.
    #[inline(always)]
    fn end(&mut self, place: WqePlace) -> WqePlace {
        self.0.end(place.control >> SLOT_COUNT_SHIFT & SLOT_COUNT_MASK);
        place
    }

    /// Posts Immediate Data alone; `remote` and `stag` of `head` are not used.
    ///
    /// # Errors
    /// `QueueFull`.
    #[inline(never)]
    pub fn post_immediate(
        &mut self,
        head: &WqeHead,
        data: ImmediateData,
    ) -> Result<WqePlace, PostError> {
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
    ) -> Result<WqePlace, PostError> {
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
        let number = self.0.begin()?;
        let out = Emitter::new(self.0.slots(), number);
        out.put_sge(PAYLOAD, sink);
        for (index, &operand) in operands[..count].iter().enumerate() {
            out.put(OPERANDS + index, operand);
        }
        let place = out.put_head(opcode, head, 1, OPERANDS + count);
        Ok(self.end(place))
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
    ) -> Result<WqePlace, PostError> {
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
    ) -> Result<WqePlace, PostError> {
        let head = WqeHead { wr_id, flags, stag, remote: 0 };
        self.post_words(WqeOpcode::Invalidate, &head, &[])
    }

    /// Posts a request without SGEs or inline bytes, with these words from word 3 on.
    fn post_words(
        &mut self,
        opcode: WqeOpcode,
        head: &WqeHead,
        words: &[u64],
    ) -> Result<WqePlace, PostError> {
        let number = self.0.begin()?;
        let out = Emitter::new(self.0.slots(), number);
        for (index, &word) in words.iter().enumerate() {
            out.put(PAYLOAD + index, word);
        }
        let place = out.put_head(opcode, head, 0, PAYLOAD + words.len());
        Ok(self.end(place))
    }
}
