//! Frames that the port returns: those to its own hardware address.
//!
//! NICs and links do not return them. A queue pair begins to look at destinations with its first
//! local connection. Until then neither its transmit nor its receive path has any of this, but for
//! a look at the frames of others where the queue pair is borrowed ([`exchange`]).
//!
//! [`exchange`]: super::exchange

use std::collections::VecDeque;

use dpdk_sys::TxMbuf;

use crate::device::exchange::{Returned, Seat};
use crate::device::frame::DpdkRx;

/// Frames that were returned to a queue pair and wait to be received, at most: its own, and as many
/// of others. More are dropped, as by a receive queue. They lie in the mbufs of their sender, so
/// they take none of the receiver's pool.
pub(super) const HAIRPIN_LEN: usize = 512;

/// Frames returned to a queue pair and not received yet.
#[derive(Debug)]
pub(super) struct Hairpin {
    /// Those that it has sent itself.
    frames: VecDeque<DpdkRx>,
    /// Its way to others, if the port may have other users.
    seat: Option<Seat>,
}

impl Hairpin {
    pub(super) fn new(seat: Option<Seat>) -> Self {
        Self { frames: VecDeque::with_capacity(HAIRPIN_LEN), seat }
    }

    pub(super) const fn seat(&self) -> Option<&Seat> {
        self.seat.as_ref()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.seat().is_none_or(Seat::is_empty)
    }

    /// Returns a frame. False if it was dropped.
    pub(super) fn push(&mut self, frame: TxMbuf) -> bool {
        let frame = DpdkRx(frame.into_received());
        let returned = match &mut self.seat {
            Some(seat) => seat.send(frame),
            None => Returned::Own(frame),
        };
        match returned {
            Returned::Sent => true,
            Returned::Own(frame) if self.frames.len() < HAIRPIN_LEN => {
                self.frames.push_back(frame);
                true
            }
            Returned::Own(_) | Returned::Dropped => false,
        }
    }

    /// Passes a frame that is of no connection or listener here to another user of the port; see
    /// [`Seat::pass`].
    pub(super) fn pass(&mut self, frame: DpdkRx) -> Returned {
        match &mut self.seat {
            Some(seat) => seat.pass(frame),
            None => Returned::Own(frame),
        }
    }

    /// Moves at most `max` frames to `burst`, half of them from others; returns their number.
    pub(super) fn receive(&mut self, burst: &mut Vec<DpdkRx>, max: usize) -> usize {
        let of_others = self.seat.as_mut().map_or(0, |seat| seat.receive(burst, max.div_ceil(2)));
        let count = self.frames.len().min(max - of_others);
        burst.extend(self.frames.drain(..count));
        of_others + count
    }
}
