//! A port that counts the frames that it moves, and loses some.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrowarp::Port;
use ferrowarp::device::{Capabilities, Device, DpdkDevice, DpdkRetained, DpdkRx, DpdkTx, TxClass};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

/// Counts of a port; shared with the thread that measures.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Frames received, and given to be sent.
    pub(crate) moved: AtomicU64,
    pub(crate) due: AtomicU64,
    pub(crate) lost: AtomicU64,
}

/// A port of the runtime that loses frames at random, each with the same probability, or on demand.
pub(crate) struct WatchedPort {
    port: DpdkDevice,
    watch: Arc<Watch>,
    /// Probability that a frame is lost, and its seed; none is lost without.
    loss: Option<(f64, SmallRng)>,
}

impl WatchedPort {
    pub(crate) fn new(port: DpdkDevice, loss: Option<(f64, u64)>, watch: &Arc<Watch>) -> Self {
        let loss = loss.map(|(rate, seed)| (rate, SmallRng::seed_from_u64(seed)));
        Self { port, watch: Arc::clone(watch), loss }
    }

    /// Only the polling thread writes, so that no atomic addition is needed.
    #[inline]
    fn add(&self, count: usize) {
        let moved = self.watch.moved.load(Ordering::Relaxed);
        self.watch.moved.store(moved + count as u64, Ordering::Relaxed);
    }

    #[inline]
    fn loses_next(&mut self) -> bool {
        let Some((rate, rng)) = &mut self.loss else { return false };
        let due = self.watch.due.load(Ordering::Relaxed);
        let is_lost = rng.random_bool(*rate) || due > 0;
        if is_lost {
            self.watch.due.store(due.saturating_sub(1), Ordering::Relaxed);
            self.watch.lost.fetch_add(1, Ordering::Relaxed);
        }
        is_lost
    }
}

impl Port for WatchedPort {}

impl Device for WatchedPort {
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
        if !self.loses_next() {
            self.port.transmit(frame);
        }
    }

    #[inline]
    fn flush(&mut self) {
        self.port.flush();
    }
}
