//! Queues of a started port: receive and transmit bursts. A queue has one owner and may move
//! between threads.

use core::ptr::NonNull;
use std::sync::Arc;

use crate::attached::{Attached, Driver};
use crate::burst_lock::{BurstLock, InFlight, RingState};
use crate::eal::control_lock;
use crate::link::{self, PortLink};
use crate::mbuf::{Mbuf, TxMbuf};
use crate::memif_disconnect;
use crate::memif_ring;
use crate::mempool::RxPool;
use crate::rss::{self, RssConfig};
use crate::rx_intr::RxInterrupt;
use crate::{removal, sys, vhost_state};

/// Largest burst, in frames.
pub const BURST: u16 = 32;

/// Frames a port has lost since it was started (`rte_eth_stats`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortLosses {
    /// Dropped because the receive queue was full.
    pub missed: u64,
    /// Not received because no mbuf was free.
    pub no_buffer: u64,
    /// Received with errors.
    pub rx_errors: u64,
    /// Failed to be sent.
    pub tx_errors: u64,
}

/// Returns a queue pair of a started port; `pool` is the mempool of the receive queue.
pub(crate) fn rx_tx_queues(
    port: &Arc<Attached>,
    queue: u16,
    pool: RxPool<'_>,
) -> (RxQueue, TxQueue) {
    let locks = match port.driver {
        Driver::Memif => {
            let (rx, tx) = memif_ring::rings(port.id, queue, pool);
            Some([rx, tx].map(memif_disconnect::burst_lock))
        }
        Driver::Vhost => vhost_state::burst_locks(port.id),
        Driver::VirtioUser | Driver::Tap | Driver::Other => None,
    };
    pair(port, queue, locks)
}

/// Returns a queue pair that never touches the port, which was configured without it.
pub(crate) fn without_wire(port: &Arc<Attached>, queue: u16) -> (RxQueue, TxQueue) {
    let lock = |_| BurstLock::by_ring_state(InFlight::new(RingState::Absent));
    pair(port, queue, Some([(), ()].map(lock)))
}

/// `locks`: of the receive and the transmit queue.
fn pair(port: &Arc<Attached>, queue: u16, locks: Option<[BurstLock; 2]>) -> (RxQueue, TxQueue) {
    let (rx, tx) = locks.map(|[rx, tx]| (rx, tx)).unzip();
    let rx = RxQueue { burst_lock: rx, port: Arc::clone(port), queue };
    (rx, TxQueue { burst_lock: tx, port: Arc::clone(port), queue })
}

/// A receive queue.
#[derive(Debug)]
pub struct RxQueue {
    /// Present if the driver may unmap the port's rings, or the queue has no wire. Dropped before
    /// the port, because it refers to the driver's queue.
    burst_lock: Option<BurstLock>,
    port: Arc<Attached>,
    queue: u16,
}

impl RxQueue {
    /// Returns the queue's number, from 0.
    #[must_use]
    pub fn index(&self) -> u16 {
        self.queue
    }

    /// Receives at most `max` frames, and at most [`BURST`], and passes each to `take` in order.
    /// Returns how many. Never blocks; about 10 ns per call and 1 ns per frame.
    #[inline]
    pub fn burst(&mut self, max: usize, mut take: impl FnMut(Mbuf)) -> usize {
        let mut frames = [core::ptr::null_mut::<sys::rte_mbuf>(); BURST as usize];
        let wanted = u16::try_from(max).unwrap_or(u16::MAX).min(BURST);
        let count = match self.burst_lock.as_mut().map(BurstLock::try_lock) {
            Some(None) => 0,
            // SAFETY: a started port (kept by the `Arc`) whose rings stay mapped while the burst
            // lock is held, a queue with one owner that is borrowed mutably, and space for
            // `wanted` pointers.
            None | Some(Some(_)) => unsafe {
                sys::fw_rx_burst(self.port.id, self.queue, frames.as_mut_ptr(), wanted)
            },
        };
        for &frame in &frames[..usize::from(count)] {
            let Some(frame) = NonNull::new(frame) else { continue };
            // SAFETY: the port passed on its reference, and a received frame is never written.
            take(unsafe { Mbuf::from_raw(frame) });
        }
        usize::from(count)
    }

    /// True if frames can arrive: always, except over memif and vhost, where the peer has to be
    /// connected, with a ring for this queue. Final for a connection as soon as
    /// [`RxQueue::link_is_up`]. One load.
    #[must_use]
    pub fn has_wire(&self) -> bool {
        self.burst_lock.as_ref().is_none_or(BurstLock::has_ring)
    }

    /// Returns the number of connections to a peer that have ended, over memif and vhost; otherwise
    /// 0. Counted before the first frame of the next one arrives. One load.
    #[must_use]
    pub fn link_down_count(&self) -> u32 {
        self.burst_lock.as_ref().map_or(0, |lock| lock.in_flight.down_count())
    }

    /// True if the port's link is up, and it is known whether this queue has a wire; does not wait
    /// for the link to settle. A control-path call, not for every poll: waits for other control
    /// calls of the process, which may take 0.1 s.
    #[must_use]
    pub fn link_is_up(&self) -> bool {
        let is_noted = || self.burst_lock.as_ref().is_none_or(BurstLock::is_ring_known);
        link::is_up(&self.port) && is_noted()
    }

    /// Returns the number of the port among those of EAL.
    #[must_use]
    pub fn port_id(&self) -> u16 {
        self.port.id
    }

    /// Returns a handle by which any thread reads the state of the port's link; `None` if the host
    /// program owns the port, and so its control calls.
    #[must_use]
    pub fn port_link(&self) -> Option<PortLink> {
        let rings = self.burst_lock.as_ref().map(|lock| Arc::clone(&lock.in_flight));
        PortLink::of(&self.port, rings)
    }

    /// Has `observer` called, once, when the kernel asks for the port's device: it is to be
    /// unplugged, or unbound from vfio-pci. The device stays usable until the port is closed, for
    /// which the kernel waits. `observer` runs in EAL's interrupt thread and must not wait; it is
    /// called at once if the kernel has asked already, and never for devices without vfio.
    pub fn observe_removal(&self, observer: impl FnOnce() + Send + 'static) {
        removal::observe(self.port.id, Box::new(observer));
    }

    /// Returns the port's RSS key and redirection table; `None` if it hashes nothing, or its driver
    /// does not tell. A control-path call, as [`RxQueue::link_is_up`].
    #[must_use]
    pub fn rss_config(&self) -> Option<RssConfig> {
        rss::read(&self.port)
    }

    /// Returns the queue's receive interrupt; `None` if it has none: the driver knows none, or
    /// they were not requested ([`PortConfig::rx_interrupts`](crate::PortConfig::rx_interrupts)).
    /// `net_af_packet` always has them. A control-path call, as [`RxQueue::link_is_up`].
    #[must_use]
    pub fn interrupt(&self) -> Option<RxInterrupt> {
        if self.has_wire() { RxInterrupt::of(&self.port, self.queue) } else { None }
    }

    /// Returns the port's loss counters, as far as its driver maintains them. A control-path call,
    /// as [`RxQueue::link_is_up`].
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

/// A transmit queue.
#[derive(Debug)]
pub struct TxQueue {
    /// As [`RxQueue`]'s.
    burst_lock: Option<BurstLock>,
    port: Arc<Attached>,
    queue: u16,
}

impl TxQueue {
    /// As [`RxQueue::has_wire`], for sending.
    #[must_use]
    pub fn has_wire(&self) -> bool {
        self.burst_lock.as_ref().is_none_or(BurstLock::has_ring)
    }

    /// True if the link partner has no queue for this one, so that no frame will be sent unless it
    /// connects again. Unlike [`TxQueue::has_wire`], false while there is no connection.
    #[must_use]
    pub fn is_without_partner(&self) -> bool {
        self.burst_lock.as_ref().is_some_and(BurstLock::is_ring_absent)
    }

    /// Has the driver complete the headers of a frame for the offloads that it requests, from its
    /// headers and its whole length (`rte_eth_tx_prepare`). False if it refuses the frame, which
    /// must not be sent. One call into the driver, some 10 ns.
    ///
    /// # Panics
    /// While a retained reference exists: the headers are written.
    pub fn prepare(&mut self, frame: &mut TxMbuf) -> bool {
        let mut raw = frame.exclusive().as_ptr();
        // SAFETY: a started port (kept by the `Arc`), a queue with one owner that is borrowed
        // mutably, and a live mbuf to which no other reference exists. The headers, which alone are
        // written, lie in it, and not in those that continue it.
        unsafe { sys::fw_tx_prepare(self.port.id, self.queue, &raw mut raw, 1) == 1 }
    }

    /// Sends `frames` from the front until the port accepts no more; the rest stays, in order.
    /// Returns how many were sent. Never blocks; about 10 ns per call and 1 ns per frame.
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
                // SAFETY: a started port (kept by the `Arc`) whose rings stay mapped while the
                // burst lock is held, a queue with one owner that is borrowed mutably, and
                // `wanted` live mbufs.
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
