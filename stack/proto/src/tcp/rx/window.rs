//! Receive side variables: sequence numbers, receive window, and pending ACKs.

use arrayvec::ArrayVec;

use crate::tcp::settings::Config;
use crate::tcp::timer::Timers;
use crate::time::{Instant, NEVER};
use crate::wire::seq::Seq;
use crate::wire::tcp::SackBlock;

/// Segment size assumed of a peer without an MSS option (RFC 9293 section 3.7.1).
const MSS_DEFAULT: u16 = 536;
/// Most duplicate ACKs pending for a peer without SACK.
const DUP_ACKS_OWED_MAX: u8 = 16;
/// Most D-SACK blocks that wait for their ACKs.
const DSACK_QUEUE_MAX: usize = 4;

/// Receive sequence variables (RFC 9293 section 3.3.1), with the state that every segment touches:
/// that of window updates and pending ACKs. The other window state is in [`RcvLimits`].
#[derive(Debug)]
pub(in crate::tcp) struct RcvVars {
    /// RCV.NXT: next sequence number expected.
    pub(in crate::tcp) nxt: Seq,
    /// Right edge of the advertised window; never moves left.
    pub(in crate::tcp) adv: Seq,
    /// Acknowledgment number of the last segment sent (RFC 7323 `Last.ACK.sent`).
    pub(in crate::tcp) last_ack_sent: Seq,
    /// Window if advertised in full; negative if the upper layer keeps more than the window may
    /// span.
    available: i32,
    /// Bytes received in order and not acknowledged.
    unacked: u32,
    /// Least advance of the right edge (SWS avoidance, RFC 9293 section 3.8.6.2.2); at least 1.
    update_min: u16,
    /// Estimate of the peer's full segment: the largest payload received, at least [`MSS_DEFAULT`]
    /// unless our MSS is less. Two short segments are no reason for an ACK (RFC 5681 section 4.2).
    rcv_mss: u16,
    /// Shift of the window field in segments sent.
    pub(in crate::tcp) wscale: u8,
    /// An ACK is due, with the next frame of any kind.
    pub(in crate::tcp) ack_now: bool,
    /// The ACK is due in a frame without payload: it reports SACK blocks, or counts as a duplicate
    /// ACK.
    pub(in crate::tcp) pure_ack: bool,
    /// Duplicate ACKs pending for a peer without SACK.
    pub(in crate::tcp) dup_acks_owed: u8,
}

impl RcvVars {
    /// State before anything was received.
    pub(in crate::tcp) fn new(cfg: &Config) -> Self {
        Self {
            nxt: Seq(0),
            adv: Seq(0),
            last_ack_sent: Seq(0),
            available: 0,
            unacked: 0,
            update_min: 1,
            rcv_mss: cfg.mss.min(MSS_DEFAULT),
            wscale: cfg.wscale(),
            ack_now: false,
            pure_ack: false,
            dup_acks_owed: 0,
        }
    }

    /// RCV.WND: bytes that the peer may send from `nxt` on.
    #[inline]
    pub(in crate::tcp) fn window(&self) -> u32 {
        self.adv - self.nxt
    }

    /// Returns the advance of the right edge if the window was advertised in full.
    #[inline]
    fn adv_growth(&self) -> i32 {
        (self.nxt + self.available.max(0).cast_unsigned()).distance(self.adv)
    }

    /// Returns the window field of a segment to be sent, and notes that it is.
    #[inline]
    pub(in crate::tcp) fn select_window(&mut self) -> u16 {
        let field = self.next_window();
        self.on_window_sent(field);
        field
    }

    /// Returns the window field of the next segment. [`RcvVars::on_window_sent`] follows once the
    /// segment is sent.
    ///
    /// The edge moves by at least a segment or half the window. The field is rounded up, so that
    /// scaling does not retract the window, but never to more than one unit beyond the limit: a
    /// peer that sends single bytes could otherwise push the edge on forever.
    #[doc(alias = "silly window syndrome")]
    #[inline]
    pub(in crate::tcp) fn next_window(&self) -> u16 {
        let span = if self.adv_growth() >= i32::from(self.update_min) {
            self.available.max(0).cast_unsigned()
        } else {
            self.window()
        };
        let unit = 1u32 << self.wscale;
        let mut field = span >> self.wscale;
        let rounded = i64::from(field + 1) << self.wscale;
        if field << self.wscale < span && rounded <= i64::from(self.available) + i64::from(unit) {
            field += 1;
        }
        field.min(0xffff) as u16
    }

    /// Notes that a segment was sent with this window field: moves the right edge, and notes the
    /// acknowledgment number.
    #[inline]
    pub(in crate::tcp) fn on_window_sent(&mut self, field: u16) {
        self.adv = self.adv.max(self.nxt + (u32::from(field) << self.wscale));
        self.last_ack_sent = self.nxt;
    }

    /// Notes a segment received out of order, or with duplicate bytes.
    pub(in crate::tcp) fn on_out_of_order(&mut self) {
        self.ack_now = true;
        self.pure_ack = true;
        self.dup_acks_owed = (self.dup_acks_owed + 1).min(DUP_ACKS_OWED_MAX);
    }

    /// Notes an advance of RCV.NXT: pending ACKs are no duplicate ACKs any more.
    #[inline]
    pub(in crate::tcp) fn on_advance(&mut self) {
        self.dup_acks_owed = self.dup_acks_owed.min(1);
    }

    /// Notes that an ACK was sent in a segment with payload.
    #[inline]
    pub(in crate::tcp) const fn on_data_sent(&mut self, timers: &mut Timers) {
        self.unacked = 0;
        timers.delayed_ack = NEVER;
        self.ack_now = self.pure_ack;
    }

    /// Notes that a pure ACK was sent. Without SACK the pending duplicate ACKs follow one by one;
    /// with SACK another ACK follows if there is `more` to report.
    pub(in crate::tcp) fn on_pure_ack_sent(&mut self, timers: &mut Timers, sack: bool, more: bool) {
        self.unacked = 0;
        timers.delayed_ack = NEVER;
        self.dup_acks_owed = if sack { 0 } else { self.dup_acks_owed.saturating_sub(1) };
        self.pure_ack = self.dup_acks_owed > 0 || more;
        self.ack_now = self.pure_ack;
    }

    /// Notes `len` bytes received in order, in segments of at most `longest`, and delays the ACK
    /// (RFC 9293 section 3.8.6.3): it is due at two full segments, else within `delay_ns`.
    #[inline]
    #[doc(alias = "delayed ACK")]
    pub(in crate::tcp) fn on_in_order(
        &mut self,
        now: Instant,
        timers: &mut Timers,
        len: u32,
        longest: u16,
        delay_ns: u64,
    ) {
        self.rcv_mss = self.rcv_mss.max(longest);
        self.unacked += len;
        if self.unacked >= 2 * u32::from(self.rcv_mss) {
            self.ack_now = true;
        } else if timers.delayed_ack == NEVER {
            timers.delayed_ack = now + delay_ns;
        }
    }

    /// Takes back the last `len` bytes received in order, which the upper layer declined.
    pub(in crate::tcp) fn decline(&mut self, len: u32) {
        self.nxt = self.nxt - len;
        self.unacked = self.unacked.saturating_sub(len);
    }

    /// Cancels all pending ACKs.
    pub(in crate::tcp) const fn clear_acks(&mut self) {
        (self.ack_now, self.pure_ack, self.dup_acks_owed) = (false, false, 0);
    }
}

/// Limits of the receive window. Touched when they change, or when the upper layer keeps bytes.
#[derive(Debug)]
pub(in crate::tcp) struct RcvLimits {
    /// Bytes that the window may span.
    limit: u32,
    /// Most that `limit` may grow to, by the window field and the configuration.
    limit_max: u32,
    /// Bytes that the upper layer keeps and has not consumed.
    unconsumed: u32,
}

impl RcvLimits {
    /// State before anything was received.
    pub(in crate::tcp) fn new(cfg: &Config) -> Self {
        Self {
            limit: cfg.startup_window,
            limit_max: cfg.recv_window_max.max(cfg.recv_window).max(cfg.startup_window),
            unconsumed: 0,
        }
    }

    /// Initializes `rcv` from the peer's SYN with sequence number `irs`. The window is first
    /// advertised unscaled.
    pub(in crate::tcp) fn init(&self, rcv: &mut RcvVars, irs: Seq, cfg: &Config) {
        rcv.nxt = irs + 1;
        rcv.last_ack_sent = rcv.nxt;
        rcv.adv = rcv.nxt + self.limit.min(0xffff);
        self.apply(rcv, cfg);
    }

    /// Disables window scaling: the peer does not support it (RFC 7323 section 2.2).
    pub(in crate::tcp) fn disable_scaling(&mut self, rcv: &mut RcvVars, cfg: &Config) {
        rcv.wscale = 0;
        self.limit_max = self.limit_max.min(0xffff);
        self.limit = self.limit.min(0xffff);
        self.apply(rcv, cfg);
    }

    /// Recomputes the window variables that depend on the limits.
    fn apply(&self, rcv: &mut RcvVars, cfg: &Config) {
        let available = i64::from(self.limit) - i64::from(self.unconsumed);
        let bounds = (i64::from(i32::MIN), i64::from(i32::MAX));
        rcv.available = i32::try_from(available.clamp(bounds.0, bounds.1)).unwrap_or(0);
        rcv.update_min = u16::try_from(self.limit / 2).unwrap_or(u16::MAX).min(cfg.mss).max(1);
    }

    /// Returns the window field of a SYN, which is never scaled.
    pub(in crate::tcp) fn syn_window(&self) -> u16 {
        u16::try_from(self.limit).unwrap_or(u16::MAX)
    }

    /// Notes that the upper layer keeps `bytes`.
    pub(in crate::tcp) fn add_unconsumed(&mut self, rcv: &mut RcvVars, bytes: u32, cfg: &Config) {
        self.unconsumed = self.unconsumed.saturating_add(bytes);
        self.apply(rcv, cfg);
    }

    /// Notes that the upper layer consumed `bytes` that it had kept. Returns true if a window
    /// update is due: little of the window was left, and it can grow by a worthwhile amount.
    pub(in crate::tcp) fn consume(&mut self, rcv: &mut RcvVars, bytes: u32, cfg: &Config) -> bool {
        self.unconsumed = self.unconsumed.saturating_sub(bytes);
        self.needs_update(rcv, cfg)
    }

    /// Raises the limit of the window to `limit`, as far as it may grow. Returns true if a window
    /// update is due.
    pub(in crate::tcp) fn raise(&mut self, rcv: &mut RcvVars, limit: u32, cfg: &Config) -> bool {
        self.limit = self.limit.max(limit.min(self.limit_max));
        self.needs_update(rcv, cfg)
    }

    /// Lowers the limit of the window to `limit`; the right edge does not move.
    pub(in crate::tcp) fn lower(&mut self, rcv: &mut RcvVars, limit: u32, cfg: &Config) {
        self.limit = self.limit.min(limit);
        self.apply(rcv, cfg);
    }

    /// Bytes that the window may span.
    pub(in crate::tcp) const fn limit(&self) -> u32 {
        self.limit
    }

    /// Most that the limit may grow to.
    pub(in crate::tcp) const fn limit_max(&self) -> u32 {
        self.limit_max
    }

    fn needs_update(&self, rcv: &mut RcvVars, cfg: &Config) -> bool {
        self.apply(rcv, cfg);
        let half = self.limit / 2;
        let growth_min = half.min(2 * u32::from(cfg.mss)).cast_signed().max(1);
        rcv.window() < half && rcv.adv_growth() >= growth_min
    }
}

/// SYN and FIN of the peer.
#[derive(Debug)]
pub(in crate::tcp) struct Peer {
    /// IRS: initial receive sequence number.
    pub(in crate::tcp) irs: Seq,
    /// Sequence number of the FIN, once received.
    pub(in crate::tcp) fin_seq: Option<Seq>,
    /// The FIN was processed: RCV.NXT is beyond it.
    pub(in crate::tcp) fin_received: bool,
    /// In TIME-WAIT the peer has sent a SYN that did not replace this connection.
    pub(in crate::tcp) syn_in_time_wait: bool,
}

/// Pending D-SACK blocks (RFC 2883): each ACK reports one, the oldest first. Allocated separately,
/// and released once the connection is idle.
#[derive(Debug, Default)]
pub(in crate::tcp) struct DsackQueue {
    blocks: Option<Box<ArrayVec<SackBlock, DSACK_QUEUE_MAX>>>,
}

impl DsackQueue {
    pub(in crate::tcp) fn push(&mut self, block: SackBlock) {
        // If the queue is full, only the first blocks are reported.
        let _ = self.blocks.get_or_insert_default().try_push(block);
    }

    /// True if a block is pending.
    pub(in crate::tcp) fn has_pending(&self) -> bool {
        self.blocks.as_ref().is_some_and(|blocks| !blocks.is_empty())
    }

    /// Removes and returns the block for the next ACK.
    pub(in crate::tcp) fn pop(&mut self) -> Option<SackBlock> {
        self.blocks.as_mut()?.pop_at(0)
    }

    /// Drops all blocks, and releases the memory.
    pub(in crate::tcp) fn clear(&mut self) {
        self.blocks = None;
    }

    /// Releases the memory if the queue is empty.
    pub(in crate::tcp) fn release_memory(&mut self) {
        if !self.has_pending() {
            self.blocks = None;
        }
    }
}

#[cfg(test)]
mod tests;
