//! A port that loses frames.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ferrowarp::device::{
    Capabilities, Device, DpdkDevice, DpdkRetained, DpdkRx, DpdkTx, Port, TxClass,
};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

/// What is shared with the thread that measures: it may ask for the loss of the next frame.
#[derive(Debug, Default)]
pub(super) struct Losses {
    pub(super) is_due: AtomicBool,
    pub(super) count: AtomicU64,
}

/// A port of the runtime that loses sent frames at random, each with the same probability, or on
/// demand.
pub(super) struct LossyPort {
    port: DpdkDevice,
    rate: f64,
    rng: SmallRng,
    losses: Arc<Losses>,
}

impl LossyPort {
    pub(super) fn new(port: DpdkDevice, rate: f64, seed: u64, losses: &Arc<Losses>) -> Self {
        Self { port, rate, rng: SmallRng::seed_from_u64(seed), losses: Arc::clone(losses) }
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

    #[inline]
    fn receive(&mut self, burst: &mut Vec<DpdkRx>, max: usize) -> usize {
        self.port.receive(burst, max)
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
        let is_due = self.losses.is_due.load(Ordering::Relaxed);
        if is_due || self.rng.random_bool(self.rate) {
            self.losses.is_due.store(false, Ordering::Relaxed);
            self.losses.count.fetch_add(1, Ordering::Relaxed);
        } else {
            self.port.transmit(frame);
        }
    }

    #[inline]
    fn flush(&mut self) {
        self.port.flush();
    }
}
