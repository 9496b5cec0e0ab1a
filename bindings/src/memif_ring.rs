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
//! read from the driver's structure, in the interrupt thread alone, which writes it.

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
    /// What the driver keeps of the queue.
    Queue(MemifQueue),
}

/// A queue of a started `net_memif` port.
#[derive(Debug)]
pub(crate) struct MemifQueue {
    port: u16,
    queue: NonNull<sys::fw_memif_queue>,
}

// SAFETY: the driver's structure is read in the interrupt thread alone, which writes it, too.
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
    let [rx, tx] = [rx, tx]
        .map(|queue| NonNull::new(queue.cast_mut()).map(|queue| MemifQueue { port, queue }));
    match (rx, tx) {
        (Some(rx), Some(tx)) if rx.has_known_layout(pool) => (Ring::Queue(rx), Ring::Queue(tx)),
        // Another layout than expected. The first queue has a ring whenever there is a connection.
        _ if queue == 0 => (Ring::Unconditional, Ring::Unconditional),
        _ => (Ring::Unconfigured, Ring::Unconfigured),
    }
}

impl MemifQueue {
    /// True if the fields of a receive queue that are known have their values.
    fn has_known_layout(&self, pool: RxPool<'_>) -> bool {
        let queue = self.queue.as_ptr();
        // SAFETY: a live allocation of the driver, of at least one cache line; fields that are
        // constant since the queue was set up.
        let (mempool, port) = (unsafe { (*queue).mempool }, unsafe { (*queue).in_port });
        // SAFETY: as above; the driver's structure is longer.
        let handle = unsafe { (*queue).intr_handle };
        pool.may_be(mempool) && port == self.port && !handle.is_null()
    }
}

impl Ring {
    /// Returns the ring's state. For DPDK's interrupt thread, before the port is closed.
    pub(crate) fn state(&self) -> RingState {
        let MemifQueue { port, queue } = match self {
            Self::Unconditional => return RingState::Present,
            Self::Unconfigured => return RingState::Absent,
            Self::Queue(queue) => queue,
        };
        // SAFETY: a started port. The driver changes the link in this thread alone.
        if unsafe { sys::fw_link_is_up(*port) } == 0 {
            return RingState::LinkDown;
        }
        // SAFETY: the port is not closed, so its queues exist; the field is constant.
        let handle = unsafe { (*queue.as_ptr()).intr_handle };
        // SAFETY: a handle that lives as long as its queue, and is written in this thread alone.
        let has_ring = unsafe { sys::rte_intr_fd_get(handle) } >= 0;
        if has_ring { RingState::Present } else { RingState::Absent }
    }
}
