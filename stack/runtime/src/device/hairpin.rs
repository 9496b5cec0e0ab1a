//! Frames that a queue pair returns to itself: those to the port's own hardware address.
//!
//! NICs and links do not return them. A queue pair begins to look at destinations with its first
//! local connection. Until then neither its transmit nor its receive path has any of this.

use std::collections::VecDeque;

use dpdk_sys::TxMbuf;

use crate::device::frame::DpdkRx;

/// Frames that a queue pair has returned and holds, at most. More are dropped, as by a receive
/// queue. They lie in the mbufs of their sender, so they take none of a pool.
const HAIRPIN_LEN: usize = 512;

/// Frames returned and not received yet.
#[derive(Debug)]
pub(super) struct Hairpin {
    frames: VecDeque<DpdkRx>,
}

impl Hairpin {
    pub(super) fn new() -> Self {
        Self { frames: VecDeque::with_capacity(HAIRPIN_LEN) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Returns a frame. False if it was dropped.
    pub(super) fn push(&mut self, frame: TxMbuf) -> bool {
        let has_room = self.frames.len() < HAIRPIN_LEN;
        if has_room {
            self.frames.push_back(DpdkRx(frame.into_received()));
        }
        has_room
    }

    /// Moves at most `max` frames to `burst`; returns their number.
    pub(super) fn receive(&mut self, burst: &mut Vec<DpdkRx>, max: usize) -> usize {
        let count = self.frames.len().min(max);
        burst.extend(self.frames.drain(..count));
        count
    }
}
