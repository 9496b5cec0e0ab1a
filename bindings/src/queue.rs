//! Queues of a port that runs: bursts of frames in and out. A queue has one owner, which may move
//! between threads.

use core::ptr::NonNull;
use std::sync::Arc;

use crate::eal::control_lock;
use crate::mbuf::{Mbuf, TxMbuf};
use crate::memif_disconnect::BurstLock;
use crate::port::Attached;
use crate::sys;

/// Most frames one call moves.
pub const BURST: usize = BURST_U16 as usize;

const BURST_U16: u16 = 32;

/// Frames that a port could not pass on, since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortLosses {
    /// Dropped because nobody took them in time.
    pub missed: u64,
    /// Not received for want of buffers.
    pub no_buffer: u64,
    /// Received in error.
    pub rx_errors: u64,
    /// Not sent.
    pub tx_errors: u64,
}

/// Both sides of a queue of a started port.
pub(crate) fn rx_tx_queues(port: &Arc<Attached>, queue: u16) -> (RxQueue, TxQueue) {
    let gate = || port.unmaps_on_disconnect.then(BurstLock::new);
    let rx = RxQueue { port: Arc::clone(port), queue, burst_lock: gate() };
    let tx = TxQueue { port: Arc::clone(port), queue, burst_lock: gate() };
    (rx, tx)
}

/// The receiving side of a queue.
#[derive(Debug)]
pub struct RxQueue {
    port: Arc<Attached>,
    queue: u16,
    /// If the port's memory may vanish.
    burst_lock: Option<BurstLock>,
}

impl RxQueue {
    /// Takes at most `max` and at most [`BURST`] frames that are there, in order, and hands each
    /// to `take`. Returns how many. Never waits; about 10 ns and 1 ns a frame.
    #[inline]
    pub fn burst(&mut self, max: usize, mut take: impl FnMut(Mbuf)) -> usize {
        let mut frames = [core::ptr::null_mut::<sys::rte_mbuf>(); BURST];
        let wanted = u16::try_from(max).unwrap_or(u16::MAX).min(BURST_U16);
        let count = match self.burst_lock.as_mut().map(BurstLock::try_lock) {
            Some(None) => 0,
            // SAFETY: a started port (kept by the `Arc`) whose memory stays while the burst is
            // inside, a queue with one owner that is borrowed mutably, and room for `wanted`
            // pointers.
            None | Some(Some(_)) => unsafe {
                sys::fw_rx_burst(self.port.id, self.queue, frames.as_mut_ptr(), wanted)
            },
        };
        for &frame in &frames[..usize::from(count)] {
            let Some(frame) = NonNull::new(frame) else { continue };
            // SAFETY: the port gave the frame away, and nobody writes a received frame.
            take(unsafe { Mbuf::from_raw(frame) });
        }
        usize::from(count)
    }

    /// Whether the port's link is up, without waiting for it to settle. A control call: waits for
    /// other control calls of the process, which may take 0.1 s, and not for every pass.
    #[must_use]
    pub fn link_is_up(&self) -> bool {
        // Drivers change their links and their statistics while ports are set up and closed.
        let _control = control_lock();
        let mut link = sys::rte_eth_link::default();
        // SAFETY: a started port and a structure to fill.
        let status = unsafe { sys::rte_eth_link_get_nowait(self.port.id, &raw mut link) };
        status == 0 && link.link_status() != 0
    }

    /// What the port counts about frames it could not pass on, as far as its driver does. A
    /// control call, as [`RxQueue::link_is_up`].
    #[must_use]
    pub fn losses(&self) -> PortLosses {
        let _control = control_lock();
        let mut stats = sys::rte_eth_stats::default();
        // SAFETY: a started port and a structure to fill.
        let status = unsafe { sys::rte_eth_stats_get(self.port.id, &raw mut stats) };
        if status != 0 {
            return PortLosses::default();
        }
        PortLosses {
            missed: stats.imissed,
            no_buffer: stats.rx_nombuf,
            rx_errors: stats.ierrors,
            tx_errors: stats.oerrors,
        }
    }
}

/// The transmitting side of a queue.
#[derive(Debug)]
pub struct TxQueue {
    port: Arc<Attached>,
    queue: u16,
    /// If the port's memory may vanish.
    burst_lock: Option<BurstLock>,
}

impl TxQueue {
    /// Sends from the front of `frames` what the port takes; the rest stays, in order. Returns
    /// how many were sent. Never waits; about 10 ns a call and 1 ns a frame.
    #[inline]
    pub fn flush(&mut self, frames: &mut Vec<TxMbuf>) -> usize {
        let mut sent = 0;
        while sent < frames.len() {
            let rest = &mut frames[sent..];
            let wanted = u16::try_from(rest.len()).unwrap_or(u16::MAX);
            // `TxMbuf` is one non-null pointer to an mbuf.
            let first = rest.as_mut_ptr().cast::<*mut sys::rte_mbuf>();
            let taken = match self.burst_lock.as_mut().map(BurstLock::try_lock) {
                Some(None) => 0,
                // SAFETY: a started port (kept by the `Arc`) whose memory stays while the burst
                // is inside, a queue with one owner that is borrowed mutably, and `wanted` live
                // mbufs.
                None | Some(Some(_)) => unsafe {
                    sys::fw_tx_burst(self.port.id, self.queue, first, wanted)
                },
            };
            if taken == 0 {
                break;
            }
            sent += usize::from(taken);
        }
        if sent != 0 {
            // The port owns these now: they leave the vector without being dropped.
            frames.drain(..sent).for_each(core::mem::forget);
        }
        sent
    }
}
