//! Work completions.

use crate::ddp::regions::Stag;
use crate::rdmap::send_queue::wqe::WqeOpcode;
use crate::wire::rdmap_extensions::ImmediateData;

/// Handle of a completion queue (verbs: `ibv_cq`): its index, and above that a generation, so that
/// a stale handle does not name the next queue of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CqId(pub u32);

impl CqId {
    /// Number of completion queues at a time: indices are below it.
    pub const COUNT_MAX: usize = 1 << Self::INDEX_BITS;
    const INDEX_BITS: u32 = 20;

    /// Returns the handle of an index below [`CqId::COUNT_MAX`], in a generation, of which the low
    /// bits count.
    #[must_use]
    pub const fn new(index: u32, generation: u32) -> Self {
        debug_assert!((index as usize) < Self::COUNT_MAX, "an index within the range");
        Self(index | generation << Self::INDEX_BITS)
    }

    /// Index of the queue.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize & (Self::COUNT_MAX - 1)
    }
}

/// Handle of a queue pair of an engine (verbs: `ibv_qp`). It is not reused for another queue pair
/// within 2^32 creations in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QpId {
    /// Slot index.
    pub index: u32,
    /// Generation of the slot.
    pub generation: u32,
}

impl QpId {
    /// Slot index, to index with.
    #[inline]
    #[must_use]
    pub const fn slot(self) -> usize {
        self.index as usize
    }
}

/// Operation that completed (verbs: `ibv_wc_opcode`).
#[doc(alias = "ibv_wc_opcode")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WcOpcode {
    /// Send of any form (`IBV_WC_SEND`).
    #[doc(alias = "IBV_WC_SEND")]
    Send,
    /// RDMA Write, with or without immediate data (`IBV_WC_RDMA_WRITE`).
    #[doc(alias = "IBV_WC_RDMA_WRITE")]
    Write,
    /// RDMA Read (`IBV_WC_RDMA_READ`).
    #[doc(alias = "IBV_WC_RDMA_READ")]
    Read,
    /// An incoming Send was delivered into a receive buffer (`IBV_WC_RECV`).
    #[doc(alias = "IBV_WC_RECV")]
    Recv,
    /// Atomic Fetch and Add (`IBV_WC_FETCH_ADD`).
    #[doc(alias = "IBV_WC_FETCH_ADD")]
    FetchAdd,
    /// Atomic Swap.
    Swap,
    /// Atomic Compare and Swap, whether it swapped or not (`IBV_WC_COMP_SWAP`).
    #[doc(alias = "IBV_WC_COMP_SWAP")]
    CmpSwap,
    /// Immediate Data without an RDMA Write.
    Immediate,
    /// Incoming Immediate Data consumed a receive buffer: [`Wc::immediate`] (`IBV_WC_RECV` with
    /// `IBV_WC_WITH_IMM`, or `IBV_WC_RECV_RDMA_WITH_IMM`).
    #[doc(alias = "IBV_WC_RECV")]
    #[doc(alias = "IBV_WC_WITH_IMM")]
    #[doc(alias = "IBV_WC_RECV_RDMA_WITH_IMM")]
    RecvImmediate,
    /// A window was bound (`IBV_WC_BIND_MW`).
    #[doc(alias = "IBV_WC_BIND_MW")]
    Bind,
    /// A local STag was invalidated by a posted request (`IBV_WC_LOCAL_INV`).
    #[doc(alias = "IBV_WC_LOCAL_INV")]
    Invalidate,
}

impl WcOpcode {
    /// True for a completion of the receive queue.
    #[must_use]
    pub const fn is_receive(self) -> bool {
        matches!(self, Self::Recv | Self::RecvImmediate)
    }
}

impl From<WqeOpcode> for WcOpcode {
    #[inline]
    fn from(opcode: WqeOpcode) -> Self {
        match opcode {
            WqeOpcode::Send => Self::Send,
            WqeOpcode::Write | WqeOpcode::WriteImmediate => Self::Write,
            WqeOpcode::Read => Self::Read,
            WqeOpcode::FetchAdd => Self::FetchAdd,
            WqeOpcode::Swap => Self::Swap,
            WqeOpcode::CmpSwap => Self::CmpSwap,
            WqeOpcode::Immediate => Self::Immediate,
            WqeOpcode::Bind => Self::Bind,
            WqeOpcode::Invalidate => Self::Invalidate,
        }
    }
}

/// Status of a completion (verbs: `ibv_wc_status`).
#[doc(alias = "ibv_wc_status")]
#[doc(alias = "ibv_wc_status_str")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WcStatus {
    /// Success (`IBV_WC_SUCCESS`).
    #[doc(alias = "IBV_WC_SUCCESS")]
    #[error("success")]
    Success,
    /// A local buffer was not registered as the request claimed (`IBV_WC_LOC_PROT_ERR`).
    #[doc(alias = "IBV_WC_LOC_PROT_ERR")]
    #[error(
        "local protection error: a buffer of the request is not registered with the required \
         access, or not mapped any more"
    )]
    LocalProtection,
    /// A window could not be bound: it is bound already, or the region does not allow it
    /// (`IBV_WC_MW_BIND_ERR`).
    #[doc(alias = "IBV_WC_MW_BIND_ERR")]
    #[error("bind error: the window is already bound, or the region does not allow the binding")]
    Bind,
    /// The message is longer than the receive buffer, or the request has an invalid length
    /// (`IBV_WC_LOC_LEN_ERR`).
    #[doc(alias = "IBV_WC_LOC_LEN_ERR")]
    #[error("local length error: the message is longer than the receive buffer")]
    LocalLength,
    /// The peer refused the access with a Terminate (`IBV_WC_REM_ACCESS_ERR`).
    #[doc(alias = "IBV_WC_REM_ACCESS_ERR")]
    #[error("remote access error: the peer refused the access")]
    RemoteAccess,
    /// The peer could not process the operation (`IBV_WC_REM_OP_ERR`).
    #[doc(alias = "IBV_WC_REM_OP_ERR")]
    #[error("remote operation error: the peer could not process the operation")]
    RemoteOperation,
    /// The connection ended before the request completed (`IBV_WC_WR_FLUSH_ERR`).
    #[doc(alias = "IBV_WC_WR_FLUSH_ERR")]
    #[error("flushed: the connection ended before completion")]
    Flushed,
}

/// Data of a received message besides its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WcData {
    /// Nothing.
    None,
    /// `RecvImmediate`: the Immediate Data (`IBV_WC_WITH_IMM`, `imm_data`).
    Immediate(ImmediateData),
    /// `Recv`: local STag that the Send invalidated (`IBV_WC_WITH_INV`, `invalidated_rkey`).
    Invalidated(Stag),
}

/// Work completion (verbs: `ibv_wc`).
#[doc(alias = "ibv_wc")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Wc {
    /// `wr_id` of the request.
    pub wr_id: u64,
    /// Queue pair of the request.
    pub qp: QpId,
    /// Status.
    pub status: WcStatus,
    /// Operation. Valid also on failure.
    pub opcode: WcOpcode,
    /// Bytes received (`Recv`) or transferred; 0 on failure. `RecvImmediate`: bytes of the RDMA
    /// Write that ended last since the receive before, 0 if none did: a Write with immediate data
    /// is such a Write and the Immediate Data behind it. With out-of-order placement
    /// ([`ConnParam::ooo_placement`]) it is not always known, and then 0.
    ///
    /// [`ConnParam::ooo_placement`]: crate::verbs::cm::ConnParam::ooo_placement
    pub byte_len: u32,
    /// `Recv`, `RecvImmediate`: the sender requested a solicited event.
    pub solicited: bool,
    /// Data of a received message besides its payload: [`Wc::immediate`], [`Wc::invalidated`].
    pub data: WcData,
    /// Of a request flushed because of an error, that of the connection (`vendor_err`): layer, type
    /// and code in the low 16 bits, as in a Terminate (RFC 5040 section 4.8). Otherwise 0, as for a
    /// local error, which is layer 0, type 0, code 0.
    pub vendor_err: u32,
    /// When the completion became visible to the application, in nanoseconds of the context's
    /// clock, if its queue takes time stamps; otherwise 0 (`ibv_wc_read_completion_ts`).
    pub timestamp_ns: u64,
}

const _: () = assert!(size_of::<Wc>() == 48, "three fourths of a cache line of a queue each");

/// A completion to be overwritten.
impl Default for Wc {
    fn default() -> Self {
        Self::new(0, QpId { index: 0, generation: 0 }, WcStatus::Success, WcOpcode::Send)
    }
}

impl Wc {
    /// `RecvImmediate`: the Immediate Data. RDMA Writes that the sender posted before are placed.
    #[must_use]
    pub const fn immediate(&self) -> Option<ImmediateData> {
        match self.data {
            WcData::Immediate(data) => Some(data),
            _ => None,
        }
    }

    /// `Recv`: local STag that the Send invalidated.
    #[must_use]
    pub const fn invalidated(&self) -> Option<Stag> {
        match self.data {
            WcData::Invalidated(stag) => Some(stag),
            _ => None,
        }
    }

    /// Returns Immediate Data of four bytes, made by [`immediate_u32`]: the first four, in network
    /// byte order.
    ///
    /// [`immediate_u32`]: crate::rdmap::operation::immediate_u32
    #[must_use]
    pub fn immediate_u32(&self) -> Option<u32> {
        let [a, b, c, d, ..] = self.immediate()?;
        Some(u32::from_be_bytes([a, b, c, d]))
    }

    /// A completion that says nothing about received data.
    #[must_use]
    #[inline]
    pub const fn new(wr_id: u64, qp: QpId, status: WcStatus, opcode: WcOpcode) -> Self {
        Self {
            wr_id,
            qp,
            status,
            opcode,
            byte_len: 0,
            solicited: false,
            data: WcData::None,
            vendor_err: 0,
            timestamp_ns: 0,
        }
    }
}

/// Interface to the completion queues. Production implements it over lock-free rings.
pub trait Completions {
    /// Appends to a queue; `false` if it is full (nothing was appended).
    fn push(&mut self, cq: CqId, wc: Wc) -> bool;

    /// Appends completions of one queue pair to a queue, in order, until it is full: `false` if any
    /// is left.
    #[inline(always)]
    fn push_all(&mut self, cq: CqId, completed: impl Completed) -> bool {
        completed.drain(|wc| self.push(cq, wc))
    }

    /// True if a queue has no free slot: what waits for one need not be tried. The default leaves
    /// that to [`Completions::push`].
    fn is_full(&self, _cq: CqId) -> bool {
        false
    }

    /// Called when the engine finds that a queue has overrun. The queue accepts nothing until
    /// [`Completions::on_qps_ended`]. True if the overrun is to be counted: where several engines
    /// feed the queue, each may find it. The default is for a queue of one.
    fn claim_overrun(&mut self, _cq: CqId) -> bool {
        true
    }

    /// Called for each queue pair of a queue that has overrun, before the engine ends it.
    fn on_qp_overrun(&mut self, _cq: CqId, _qp: QpId) {}

    /// Called once the engine has ended all queue pairs of a queue that has overrun: it accepts
    /// what they flush.
    fn on_qps_ended(&mut self, _cq: CqId) {}
}

/// Completions of one queue pair, not yet appended to its completion queue.
pub trait Completed {
    /// Passes them to `accept`, oldest first, and removes those for which it returns true. `false`
    /// at the first for which it does not.
    fn drain(self, accept: impl FnMut(Wc) -> bool) -> bool;
}

/// Completions that trigger a notification.
#[doc(alias = "solicited_only")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// The next completion.
    Next,
    /// The next solicited completion (verbs: `solicited_only`): one with solicited event, or in
    /// error.
    Solicited,
}

impl Wc {
    /// True for a solicited completion: the peer requested an event, or the request failed.
    #[must_use]
    pub const fn is_solicited(&self) -> bool {
        self.solicited || !matches!(self.status, WcStatus::Success)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn wc(status: WcStatus, solicited: bool) -> Wc {
        let qp = QpId { index: 0, generation: 0 };
        Wc { solicited, ..Wc::new(0, qp, status, WcOpcode::Recv) }
    }

    #[test]
    fn completions_in_error_count_as_solicited() {
        assert!(!wc(WcStatus::Success, false).is_solicited());
        assert!(wc(WcStatus::Success, true).is_solicited());
        assert!(wc(WcStatus::Flushed, false).is_solicited());
    }
}
