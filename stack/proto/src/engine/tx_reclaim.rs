//! Frames of the data pool that connections share: what each may hold, and taking them back from
//! peers that make no progress.
//!
//! A sent frame is kept until it is acknowledged. A peer may stop acknowledging, or close its
//! window for as long as it answers probes (RFC 9293 section 3.8.6.1), and a few of them could hold
//! a whole pool. Three things together see to it that the next connection finds a frame:
//!
//! - While frames are scarce a connection gets at most twice as many as it leaves to the others.
//!   Alone it still uses nearly all of the pool.
//! - A connection that finds none has the frames of those copied out that wait for their
//!   acknowledgment for longer than a round trip on most paths, as far as memory for copies goes.
//!   That costs such a connection nothing but the copy.
//! - With that memory used up as well, whoever has made no progress for the longest time, and for
//!   some seconds, is reset, one at a time, and only for a connection that has nothing outstanding
//!   itself. TCP may not do so of itself, but whoever manages resources may (RFC 6429 section 5).

use crate::ddp::memory::Memory;
use crate::device::Device;
use crate::engine::Engine;
use crate::tcp::CopyPool;
use crate::time::{Instant, MILLISECOND, SECOND};
use crate::verbs::wc::Completions;

/// While so many frames are left, nobody is held back. Less than the data pool has beyond what may
/// be in flight.
pub(super) const LOW_WATER_FRAMES: usize = 128;
/// For so long the first of a connection's records has waited, or nothing was acknowledged, before
/// its frames are copied out.
const COPY_OUT_AFTER_NS: u64 = 10 * MILLISECOND;
/// For so long a connection has made no progress before it may have to give way.
const STALL_NS: u64 = 5 * SECOND;
/// How often frames are looked for, at most; how many connections are looked at then, and how many
/// frames are copied.
const INTERVAL_NS: u64 = MILLISECOND;
const SCAN_MAX: usize = 128;
const COPY_OUT_MAX: usize = 64;

/// The search for frames, which goes round all connections.
#[derive(Debug)]
pub(super) struct TxReclaim {
    /// Memory for copies.
    pub(super) copy_pool: CopyPool,
    /// A frame was wanted in this pass and there was none.
    is_needed: bool,
    /// In this round by a connection that has nothing outstanding.
    is_urgent: bool,
    /// When to look again.
    next_at: Instant,
    /// The connection to look at next.
    cursor: u32,
    /// Something was copied in this round.
    has_copied: bool,
    /// The connection that has made no progress for the longest time, of those looked at in this
    /// round: since when, and its handle.
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

    /// A connection with so many records unacknowledged found no frame.
    #[cold]
    pub(super) const fn on_alloc_failed(&mut self, records: usize) {
        self.is_needed = true;
        self.is_urgent |= records == 0;
    }
}

/// True if a connection with so many records unacknowledged holds its share of the frames, with so
/// many left to the others, and has to wait for one of its own. It has at least one then, so that
/// its peer or a timer brings it back.
#[cold]
pub(super) const fn exceeds_share(left: usize, records: usize) -> bool {
    left < LOW_WATER_FRAMES && records > 2 * left
}

impl<D: Device, M: Memory, C: Completions> Engine<D, M, C> {
    /// After a pass in which a frame was wanted and there was none: takes some back. Cost: bounded,
    /// and no more than once a millisecond.
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

    /// Copies out what waits on a connection, and notes since when it has.
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

    /// All connections were looked at. If there was nothing to copy, or no memory to copy to, the
    /// slowest one gives way.
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
