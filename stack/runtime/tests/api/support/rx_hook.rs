//! A port that runs functions of the test in the middle of a poll of the shard.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use ferrowarp::device::{
    self, DeviceSpec, DpdkDevice, DpdkRetained, DpdkRx, DpdkTx, OpenConfig, Opened, Port,
};
use ferrowarp::{Config, Context};
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
    /// Function of the shard to call when the device is removed.
    pub(crate) removal: Hook,
    /// The port was told that nobody polls it any more.
    pub(crate) has_left: Arc<AtomicBool>,
}

/// A port that runs its hooks before each burst.
struct HookedPort {
    inner: DpdkDevice,
    hooks: Hooks,
}

/// Runs the function of a hook, if there is one.
pub(crate) fn run(hook: &Hook) {
    let hook = hook.lock().unwrap().take();
    if let Some(hook) = hook {
        hook();
    }
}

impl Port for HookedPort {
    fn observe_removal(&self, observer: Box<dyn FnOnce() + Send>) {
        *self.hooks.removal.lock().unwrap() = Some(observer);
    }

    fn leave(&self) {
        self.hooks.has_left.store(true, Ordering::Relaxed);
    }
}

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

    fn enable_hairpin(&mut self) -> bool {
        self.inner.enable_hairpin()
    }

    fn has_hairpinned(&self) -> bool {
        self.inner.has_hairpinned()
    }

    fn flush(&mut self) {
        run(&self.hooks.tx);
        self.inner.flush();
    }
}

/// Opens two contexts, and returns the hooks of the right one's port.
pub(crate) fn hooked_contexts(left: Config, right: Config) -> (Context, Context, Hooks) {
    let (left, right, mut hooks) = hooked_shards(left, right);
    (left, right, hooks.remove(0))
}

/// As [`hooked_contexts`], with the number of shards of `left`, and hooks for each shard of the
/// right context.
pub(crate) fn hooked_shards(left: Config, right: Config) -> (Context, Context, Vec<Hooks>) {
    reserve_pair([left.drive, right.drive]);
    let mut config = OpenConfig::new();
    config.queues = u16::try_from(left.shards).unwrap();
    let opened = device::open(&DeviceSpec::Ring, &config);
    let Ok(Opened::Pair(left_ports, right_ports)) = opened else { panic!("ring is a pair") };
    let hook = |inner| HookedPort { inner, hooks: Hooks::default() };
    let left_ports: Vec<_> = left_ports.into_iter().map(hook).collect();
    let right_ports: Vec<_> = right_ports.into_iter().map(hook).collect();
    let hooks = right_ports.iter().map(|port| port.hooks.clone()).collect();
    let (left, right) = Context::joined_queues((left_ports, left), (right_ports, right)).unwrap();
    (left, right, hooks)
}
