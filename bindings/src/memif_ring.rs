//! Rings behind the queues of a `net_memif` port.
//!
//! The client of a memif link decides how many queues have a ring; a server with more queues keeps
//! the others, and a client with more than the server is disconnected and does not connect again.
//! The driver does not guard a queue without a ring: on the first connection it resolves to the
//! first ring of the link, received frames are copies of that queue's, and two threads are at one
//! ring; on a later connection it resolves to where its ring was before, and writes over others.
//! So no burst runs on such a queue.
//!
//! The driver tells the number of rings nowhere. But each ring comes with a descriptor for its
//! interrupts, which the driver keeps with the queue for as long as the connection lasts. It is
//! read from the queue's interrupt handle, in the interrupt thread alone, which writes it.

use core::ptr::NonNull;

use crate::burst_lock::RingState;
use crate::mempool::RxPool;
use crate::sys;

/// The evidence for a queue's ring.
#[derive(Debug)]
pub(crate) enum Ring {
    /// The driver's own check, whether the port is connected, is enough.
    Unconditional,
    /// The port was configured without this queue.
    Unconfigured,
    /// The driver's record of the queue.
    Queue(MemifQueue),
}

/// A queue of a started `net_memif` port.
#[derive(Debug)]
pub(crate) struct MemifQueue {
    port: u16,
    /// Handle of the queue's interrupts, which lives as long as the queue.
    handle: NonNull<sys::rte_intr_handle>,
}

// SAFETY: the handle is read in the interrupt thread alone, which writes it, too.
unsafe impl Send for MemifQueue {}
// SAFETY: as above.
unsafe impl Sync for MemifQueue {}

/// Returns the evidence for the rings of a receive and a transmit queue of a started `net_memif`
/// port; `pool` is the mempool of the former.
pub(crate) fn rings(port: u16, queue: u16, pool: RxPool<'_>) -> (Ring, Ring) {
    // SAFETY: a started port and one of its queues.
    let rx = unsafe { sys::fw_memif_rx_queue(port, queue) };
    // SAFETY: as above.
    let tx = unsafe { sys::fw_memif_tx_queue(port, queue) };
    let is_known = !rx.is_null() && has_known_layout(rx, port, pool);
    let [rx, tx] = [rx, tx].map(|queue| MemifQueue::new(port, queue));
    match (rx, tx) {
        (Some(rx), Some(tx)) if is_known => (Ring::Queue(rx), Ring::Queue(tx)),
        // Another layout than expected. The first queue has a ring whenever there is a connection.
        _ if queue == 0 => (Ring::Unconditional, Ring::Unconditional),
        _ => (Ring::Unconfigured, Ring::Unconfigured),
    }
}

/// True if the fields of a receive queue that are known have their values.
fn has_known_layout(queue: *const sys::fw_memif_queue, port: u16, pool: RxPool<'_>) -> bool {
    // SAFETY: a live allocation of the driver, which is longer; fields that are constant since the
    // queue was set up.
    let (mempool, in_port) = (unsafe { (*queue).mempool }, unsafe { (*queue).in_port });
    pool.may_be(mempool) && in_port == port
}

impl MemifQueue {
    /// `None` if there is no queue, or no handle in it.
    fn new(port: u16, queue: *const sys::fw_memif_queue) -> Option<Self> {
        if queue.is_null() {
            return None;
        }
        // SAFETY: as in `has_known_layout`.
        let handle = NonNull::new(unsafe { sys::fw_memif_intr_handle(queue) })?;
        Some(Self { port, handle })
    }
}

impl Ring {
    /// Returns the ring's state. For DPDK's interrupt thread, before the port is closed.
    pub(crate) fn state(&self) -> RingState {
        let MemifQueue { port, handle } = match self {
            Self::Unconditional => return RingState::Present,
            Self::Unconfigured => return RingState::Absent,
            Self::Queue(queue) => queue,
        };
        // SAFETY: a started port. The driver changes the link in this thread alone.
        if unsafe { sys::fw_link_is_up(*port) } == 0 {
            return RingState::LinkDown;
        }
        // SAFETY: the port is not closed, so its queues and their handles exist; written in this
        // thread alone.
        let has_ring = unsafe { sys::rte_intr_fd_get(handle.as_ptr()) } >= 0;
        if has_ring { RingState::Present } else { RingState::Absent }
    }
}
