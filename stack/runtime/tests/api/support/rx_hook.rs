//! A port that runs a function of the test in the middle of a poll of the shard.

use std::sync::{Arc, Mutex};

use ferrowarp::device::{
    self, DeviceSpec, DpdkDevice, DpdkRetained, DpdkRx, DpdkTx, OpenConfig, Opened,
};
use ferrowarp::{Config, Context, Port};
use ferrowarp_proto::device::{Capabilities, Device, TxClass};

use super::reserve_pair;

/// Function to run in the next poll, just before the receive burst; it runs once.
pub(crate) type RxHook = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// A port that runs its hook before each receive burst.
struct HookedPort {
    inner: DpdkDevice,
    rx_hook: RxHook,
}

impl Port for HookedPort {}

impl Device for HookedPort {
    type Rx = DpdkRx;
    type Tx = DpdkTx;
    type Retained = DpdkRetained;

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn receive(&mut self, burst: &mut Vec<DpdkRx>, max: usize) -> usize {
        let hook = self.rx_hook.lock().unwrap().take();
        if let Some(hook) = hook {
            hook();
        }
        self.inner.receive(burst, max)
    }

    fn allocate(&mut self, pool: TxClass) -> Option<DpdkTx> {
        self.inner.allocate(pool)
    }

    fn tx_free_count(&self) -> usize {
        self.inner.tx_free_count()
    }

    fn transmit(&mut self, frame: DpdkTx) {
        self.inner.transmit(frame);
    }

    fn flush(&mut self) {
        self.inner.flush();
    }
}

/// Opens two contexts, and returns the hook of the right one's port.
pub(crate) fn hooked_contexts(left: Config, right: Config) -> (Context, Context, RxHook) {
    reserve_pair([left.drive, right.drive]);
    let Ok(Opened::Pair(left_port, right_port)) =
        device::open(&DeviceSpec::Ring, &OpenConfig::default())
    else {
        panic!("no pair of rings");
    };
    let rx_hook = RxHook::default();
    let left_port = HookedPort { inner: left_port, rx_hook: RxHook::default() };
    let right_port = HookedPort { inner: right_port, rx_hook: Arc::clone(&rx_hook) };
    let (left, right) = Context::joined((left_port, left), (right_port, right)).unwrap();
    (left, right, rx_hook)
}
