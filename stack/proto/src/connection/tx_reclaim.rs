//! Sharing of the data pool: the share of each connection, and reclaim of frames from connections
//! without progress.
//!
//! We retain a sent frame until it is acknowledged. A peer may stop acknowledging, or keep its
//! window closed while it answers probes (RFC 9293 section 3.8.6.1). A few such peers could exhaust
//! the pool. Three mechanisms ensure that another connection still gets a frame:
//!
//! - Fair share: below the low-water mark a connection gets at most twice as many frames as it
//!   leaves to the others. A single connection can still use nearly the whole pool.
//! - Copy-out: when a connection finds no frame, frames that have waited for their acknowledgment
//!   longer than a round trip on most paths are replaced by copies, as far as memory for copies
//!   allows. This costs their connections only the copy.
//!   Short frames are copied as they are sent, below the low-water mark: of many connections each
//!   may have one outstanding, and the peer delay its ACK. Each copy is allocated, which costs less
//!   than the wait for a frame.
//! - Reset: when that memory is exhausted as well, the connection without progress for the longest
//!   time, and for some seconds at least, is reset. This is done one at a time, and only in favor
//!   of a connection that has nothing outstanding itself. TCP must not do so by itself, but a
//!   resource manager may (RFC 6429 section 5).

use crate::connection::schedule::ConnId;
use crate::counters::Counters;
use crate::device::{Retained, RxFrame};
use crate::tcp::{CopyPool, Tcb};
use crate::time::{Instant, MILLISECOND, SECOND};

/// Low-water mark: with this many free frames or more, no connection is limited. The data pool has
/// more than this beyond the frames that can be in flight.
pub(crate) const LOW_WATER_FRAMES: usize = 128;
/// Frames are copied out when the oldest record has waited, or nothing was acknowledged, for this
/// long.
const COPY_OUT_AFTER_NS: u64 = 10 * MILLISECOND;
/// Frames of at most so many bytes are copied as they are sent.
const SHORT_FRAME_LEN: usize = 256;
/// Time without progress after which a connection may be reset.
const STALL_NS: u64 = 5 * SECOND;
/// Minimum interval of scans; connections visited and frames copied in one, at most.
const INTERVAL_NS: u64 = MILLISECOND;
pub(crate) const SCAN_MAX: usize = 128;
pub(crate) const COPY_OUT_MAX: usize = 64;

/// Search for frames to reclaim, in rounds over all connections.
#[derive(Debug)]
pub(crate) struct TxReclaim {
    /// Memory for copies.
    pub(crate) copy_pool: CopyPool,
    /// A frame was needed in this pass and none was free.
    is_needed: bool,
    /// In this round a connection with nothing outstanding needed one.
    is_urgent: bool,
    /// Earliest time of the next scan.
    next_at: Instant,
    /// Next connection to visit.
    pub(crate) cursor: u32,
    /// Something was copied in this round.
    has_copied: bool,
    /// Connection without progress for the longest time, of those visited in this round, and the
    /// time of its last progress.
    longest_stalled: Option<(Instant, ConnId)>,
}

impl TxReclaim {
    pub(crate) const fn new(copies: CopyPool) -> Self {
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
    pub(crate) const fn on_alloc_failed(&mut self, records: usize) {
        self.is_needed = true;
        self.is_urgent |= records == 0;
    }

    /// True if a scan is due after a pass: a frame was needed and none was free. Scans are at least
    /// a millisecond apart.
    #[inline]
    pub(crate) fn begin_scan(&mut self, now: Instant) -> bool {
        let is_due = core::mem::take(&mut self.is_needed) && now >= self.next_at;
        if is_due {
            self.next_at = now + INTERVAL_NS;
        }
        is_due
    }

    /// Copies out the frames of a stalled connection, and records since when it has no progress.
    /// `budget` is the number of frames that this scan may still copy.
    pub(crate) fn visit<R: RxFrame, T: Retained>(
        &mut self,
        now: Instant,
        id: ConnId,
        tcb: &mut Tcb<R, T>,
        budget: &mut usize,
        counters: &mut Counters,
    ) {
        let stalled = tcb.stalled_since(now).filter(|&since| since + COPY_OUT_AFTER_NS <= now);
        let Some(since) = stalled else { return };
        let count = tcb.copy_out(&self.copy_pool, *budget);
        *budget -= count;
        self.has_copied |= count > 0;
        counters.frames_copied_out += count as u64;
        let progress_at = tcb.progress_at(now);
        debug_assert!(since <= progress_at);
        if self.longest_stalled.is_none_or(|(longest, _)| progress_at < longest) {
            self.longest_stalled = Some((progress_at, id));
        }
    }

    /// Copies out a short frame that was sent while frames are short; to be called after each.
    #[cold]
    pub(crate) fn on_sent<R: RxFrame, T: Retained>(
        &self,
        tcb: &mut Tcb<R, T>,
        counters: &mut Counters,
    ) {
        counters.frames_copied_out +=
            u64::from(tcb.copy_out_short(&self.copy_pool, SHORT_FRAME_LEN));
    }

    /// Ends a round over all connections. Returns the connection to reset, if there was nothing to
    /// copy, or no memory for copies, and another one has no frame at all.
    pub(crate) fn end_round(&mut self, now: Instant) -> Option<ConnId> {
        let has_copied = core::mem::take(&mut self.has_copied);
        let is_urgent = core::mem::take(&mut self.is_urgent);
        let (since, id) = self.longest_stalled.take()?;
        (!has_copied && is_urgent && since + STALL_NS <= now).then_some(id)
    }
}

/// True if a connection with `records` unacknowledged records holds its share of the frames, with
/// `left` free ones, and has to wait for one of its own to be released. It then has at least one,
/// so an ACK or a timer resumes it.
#[cold]
pub(crate) const fn exceeds_share(left: usize, records: usize) -> bool {
    left < LOW_WATER_FRAMES && records > 2 * left
}
