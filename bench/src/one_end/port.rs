//! A port that counts the frames that it moves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrowarp::Port;
use ferrowarp::device::{Capabilities, Device, DpdkDevice, DpdkRetained, DpdkRx, DpdkTx, TxClass};

/// A port of the runtime, and the number of frames that it has received and was given to send.
pub struct CountingPort {
    port: DpdkDevice,
    moved: Arc<AtomicU64>,
}

impl CountingPort {
    /// Wraps a port; `moved` is read by the thread that polls it.
    #[must_use]
    pub const fn new(port: DpdkDevice, moved: Arc<AtomicU64>) -> Self {
        Self { port, moved }
    }

    /// Only the polling thread writes, so that no atomic addition is needed.
    #[inline]
    fn add(&self, count: usize) {
        let moved = self.moved.load(Ordering::Relaxed);
        self.moved.store(moved + count as u64, Ordering::Relaxed);
    }
}

impl Port for CountingPort {}

impl Device for CountingPort {
    type Rx = DpdkRx;
    type Tx = DpdkTx;
    type Retained = DpdkRetained;

    fn capabilities(&self) -> Capabilities {
        self.port.capabilities()
    }

    #[inline]
    fn receive(&mut self, burst: &mut Vec<DpdkRx>, max: usize) -> usize {
        let count = self.port.receive(burst, max);
        self.add(count);
        count
    }

    #[inline]
    fn allocate(&mut self, pool: TxClass) -> Option<DpdkTx> {
        self.port.allocate(pool)
    }

    #[inline]
    fn data_avail_count(&self) -> usize {
        self.port.data_avail_count()
    }

    #[inline]
    fn tx_free_count(&self) -> usize {
        self.port.tx_free_count()
    }

    #[inline]
    fn transmit(&mut self, frame: DpdkTx) {
        self.add(1);
        self.port.transmit(frame);
    }

    #[inline]
    fn flush(&mut self) {
        self.port.flush();
    }
}
