//! A port that runs functions of the test in the middle of a poll of the shard.

use std::sync::{Arc, Mutex};

use ferrowarp::device::{self, DeviceSpec, DpdkDevice, DpdkRetained, DpdkRx, DpdkTx, OpenConfig};
use ferrowarp::{Config, Context, Port};
use ferrowarp_proto::device::{Capabilities, Device, TxClass};

use super::reserve_pair;

/// Function to run in the next poll, once.
pub(crate) type Hook = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// Hooks of a port.
#[derive(Clone, Default)]
pub(crate) struct Hooks {
    /// Runs just before the receive burst.
    pub(crate) rx: Hook,
    /// Runs just before the transmit burst.
    pub(crate) tx: Hook,
}

/// A port that runs its hooks before each burst.
struct HookedPort {
    inner: DpdkDevice,
    hooks: Hooks,
}

fn run(hook: &Hook) {
    let hook = hook.lock().unwrap().take();
    if let Some(hook) = hook {
        hook();
    }
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
        run(&self.hooks.rx);
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
        run(&self.hooks.tx);
        self.inner.flush();
    }
}

/// Opens two contexts, and returns the hooks of the right one's port.
pub(crate) fn hooked_contexts(left: Config, right: Config) -> (Context, Context, Hooks) {
    reserve_pair([left.drive, right.drive]);
    let opened = device::open(&DeviceSpec::Ring, &OpenConfig::default()).unwrap();
    let (left_port, right_port) = opened.into_pair().expect("ring is a pair");
    let hooks = Hooks::default();
    let left_port = HookedPort { inner: left_port, hooks: Hooks::default() };
    let right_port = HookedPort { inner: right_port, hooks: hooks.clone() };
    let (left, right) = Context::joined((left_port, left), (right_port, right)).unwrap();
    (left, right, hooks)
}
