//! Sharing of the data pool: the share of each connection, and reclaim of frames from connections
//! without progress.
//!
//! A sent frame is retained until it is acknowledged. A peer may stop acknowledging, or close its
//! window for as long as it answers probes (RFC 9293 section 3.8.6.1), and a few such peers could
//! exhaust the pool. Three mechanisms ensure that another connection still gets a frame:
//!
//! - Fair share: below the low-water mark a connection gets at most twice as many frames as it
//!   leaves to the others. A single connection can still use nearly the whole pool.
//! - Copy-out: when a connection finds no frame, frames that have waited for their acknowledgment
//!   longer than a round trip on most paths are replaced by copies, as far as memory for copies
//!   allows. This costs their connections only the copy.
//! - Reset: when that memory is exhausted as well, the connection without progress for the longest
//!   time, and for some seconds at least, is reset. This is done one at a time, and only in favor
//!   of a connection that has nothing outstanding itself. TCP must not do so by itself, but a
//!   resource manager may (RFC 6429 section 5).

use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::engine::Engine;
use crate::tcp::CopyPool;
use crate::time::{Instant, MILLISECOND, SECOND};
use crate::verbs::wc::Completions;

/// Low-water mark: with this many free frames or more, no connection is limited. Less than what the
/// data pool has beyond the frames that can be in flight.
pub(super) const LOW_WATER_FRAMES: usize = 128;
/// Frames are copied out when the oldest record has waited, or nothing was acknowledged, for this
/// long.
const COPY_OUT_AFTER_NS: u64 = 10 * MILLISECOND;
/// Time without progress after which a connection may be reset.
const STALL_NS: u64 = 5 * SECOND;
/// Minimum interval of scans; connections visited and frames copied in one, at most.
const INTERVAL_NS: u64 = MILLISECOND;
const SCAN_MAX: usize = 128;
const COPY_OUT_MAX: usize = 64;

/// Search for frames to reclaim, in rounds over all connections.
#[derive(Debug)]
pub(super) struct TxReclaim {
    /// Memory for copies.
    pub(super) copy_pool: CopyPool,
    /// A frame was needed in this pass and none was free.
    is_needed: bool,
    /// In this round a connection with nothing outstanding needed one.
    is_urgent: bool,
    /// Earliest time of the next scan.
    next_at: Instant,
    /// Next connection to visit.
    cursor: u32,
    /// Something was copied in this round.
    has_copied: bool,
    /// Connection without progress for the longest time, of those visited in this round: time of
    /// its last progress, and its index and generation.
    longest_stalled: Option<(Instant, u32, u32)>,
}

impl TxReclaim {
    pub(super) const fn new(copies: CopyPool) -> Self {
        Self {
            copy_pool: copies,
            is_needed: false,
            is_urgent: false,
            next_at: Instant::ZERO,
            cursor: 0,
            has_copied: false,
            longest_stalled: None,
        }
    }

    /// Records that a connection with `records` unacknowledged records found no frame.
    #[cold]
    pub(super) const fn on_alloc_failed(&mut self, records: usize) {
        self.is_needed = true;
        self.is_urgent |= records == 0;
    }
}

/// True if a connection with `records` unacknowledged records holds its share of the frames, with
/// `left` free ones, and has to wait for one of its own to be released. It then has at least one,
/// so an ACK or a timer resumes it.
#[cold]
pub(super) const fn exceeds_share(left: usize, records: usize) -> bool {
    left < LOW_WATER_FRAMES && records > 2 * left
}

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// Reclaims frames after a pass in which one was needed and none was free. Cost: bounded, at
    /// most once per millisecond.
    #[inline]
    pub(super) fn reclaim_if_needed(&mut self, now: Instant) {
        if core::mem::take(&mut self.tx_reclaim.is_needed) && now >= self.tx_reclaim.next_at {
            self.reclaim_frames(now);
        }
    }

    #[cold]
    fn reclaim_frames(&mut self, now: Instant) {
        self.tx_reclaim.next_at = now + INTERVAL_NS;
        let mut budget = COPY_OUT_MAX;
        for _ in 0..SCAN_MAX.min(self.connections.slot_count()) {
            let index = self.tx_reclaim.cursor;
            self.reclaim_from(now, index, &mut budget);
            let is_last = index as usize + 1 >= self.connections.slot_count();
            self.tx_reclaim.cursor = if is_last { 0 } else { index + 1 };
            if is_last {
                self.end_reclaim_round(now);
            }
            if budget == 0 {
                break;
            }
        }
    }

    /// Copies out the frames of a stalled connection, and records since when it has no progress.
    fn reclaim_from(&mut self, now: Instant, index: u32, budget: &mut usize) {
        let generation = self.connections.generation(index);
        let Some(conn) = self.connections.get_mut(index) else { return };
        let Some(since) =
            conn.tcb.stalled_since(now).filter(|&since| since + COPY_OUT_AFTER_NS <= now)
        else {
            return;
        };
        let count = conn.tcb.copy_out(&self.tx_reclaim.copy_pool, *budget);
        *budget -= count;
        self.tx_reclaim.has_copied |= count > 0;
        self.verbs.counters.frames_copied_out += count as u64;
        let stalled = (conn.tcb.progress_at(now), index, generation);
        debug_assert!(since <= stalled.0);
        if self.tx_reclaim.longest_stalled.is_none_or(|slowest| stalled.0 < slowest.0) {
            self.tx_reclaim.longest_stalled = Some(stalled);
        }
    }

    /// Ends a round over all connections. If there was nothing to copy, or no memory for copies,
    /// the connection without progress for the longest time may be reset.
    fn end_reclaim_round(&mut self, now: Instant) {
        let has_copied = core::mem::take(&mut self.tx_reclaim.has_copied);
        let is_urgent = core::mem::take(&mut self.tx_reclaim.is_urgent);
        let Some((since, index, generation)) = self.tx_reclaim.longest_stalled.take() else {
            return;
        };
        if has_copied || !is_urgent || since + STALL_NS > now {
            return;
        }
        if self.connections.live_index(index, generation).is_some()
            && let Some(conn) = self.connections.get_mut(index)
        {
            conn.tcb.give_up();
            self.verbs.counters.stalled_resets += 1;
            self.handle_tcp_events_and_arm(now, index);
            self.make_ready(index);
        }
    }
}
