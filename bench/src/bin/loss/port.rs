//! A port that loses frames it is to send.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrowarp::Port;
use ferrowarp::device::{Capabilities, Device, DpdkDevice, DpdkRetained, DpdkRx, DpdkTx, TxClass};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

/// How many frames are lost; shared with the thread that measures.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    /// Frames to lose at once.
    pub(crate) due: AtomicU64,
    /// Frames lost so far.
    pub(crate) count: AtomicU64,
}

/// A port of the runtime that loses frames at random, each with the same probability, or on demand.
pub(crate) struct LossyPort {
    port: DpdkDevice,
    losses: Arc<Losses>,
    /// Probability that a frame is lost.
    rate: f64,
    rng: SmallRng,
}

impl LossyPort {
    pub(crate) fn new(port: DpdkDevice, rate: f64, seed: u64, losses: &Arc<Losses>) -> Self {
        Self { port, losses: Arc::clone(losses), rate, rng: SmallRng::seed_from_u64(seed) }
    }

    fn loses_next(&mut self) -> bool {
        let due = self.losses.due.load(Ordering::Relaxed);
        let is_lost = self.rng.random_bool(self.rate) || due > 0;
        if is_lost {
            self.losses.due.store(due.saturating_sub(1), Ordering::Relaxed);
            self.losses.count.fetch_add(1, Ordering::Relaxed);
        }
        is_lost
    }
}

impl Port for LossyPort {}

impl Device for LossyPort {
    type Rx = DpdkRx;
    type Tx = DpdkTx;
    type Retained = DpdkRetained;

    fn capabilities(&self) -> Capabilities {
        self.port.capabilities()
    }

    fn receive(&mut self, burst: &mut Vec<DpdkRx>, max: usize) -> usize {
        self.port.receive(burst, max)
    }

    fn allocate(&mut self, pool: TxClass) -> Option<DpdkTx> {
        self.port.allocate(pool)
    }

    fn data_avail_count(&self) -> usize {
        self.port.data_avail_count()
    }

    fn tx_free_count(&self) -> usize {
        self.port.tx_free_count()
    }

    fn transmit(&mut self, frame: DpdkTx) {
        if !self.loses_next() {
            self.port.transmit(frame);
        }
    }

    fn flush(&mut self) {
        self.port.flush();
    }
}
