//! Ports that share one end of a `ring`, as hosts at a switch share the link to another host.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferrowarp::device::{
    Capabilities, Device, DpdkDevice, DpdkRetained, DpdkRx, DpdkTx, Port, RxFrame as _, TxClass,
};

const MAC_LEN: usize = 6;
const BURST_LEN: usize = 32;

/// The shared end, and the frames that have arrived for each port.
struct Hub {
    port: DpdkDevice,
    rx_queues: Vec<VecDeque<DpdkRx>>,
    arrived: Vec<DpdkRx>,
}

/// A port of a hub with a MAC address of its own. All are polled by one thread, so that the lock
/// is never contended. Frames go out in the order sent; if the ring is full they wait, and none is
/// lost. Broadcasts of the other end are.
pub(crate) struct HubPort {
    hub: Arc<Mutex<Hub>>,
    index: usize,
}

/// Address of the port `index`: a local one.
fn mac(index: usize) -> [u8; MAC_LEN] {
    [2, 0, 0x5e, 0, 0, u8::try_from(index).expect("at most 255 ports")]
}

impl HubPort {
    /// Returns `count` ports that share `port`, at most 255.
    pub(crate) fn share(port: DpdkDevice, count: usize) -> Vec<Self> {
        let rx_queues = (0..count).map(|_| VecDeque::new()).collect();
        let hub = Arc::new(Mutex::new(Hub { port, rx_queues, arrived: Vec::new() }));
        (0..count).map(|index| Self { hub: Arc::clone(&hub), index }).collect()
    }

    fn hub(&self) -> MutexGuard<'_, Hub> {
        self.hub.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Port for HubPort {}

impl Device for HubPort {
    type Rx = DpdkRx;
    type Tx = DpdkTx;
    type Retained = DpdkRetained;

    fn capabilities(&self) -> Capabilities {
        Capabilities { mac: mac(self.index), ..self.hub().port.capabilities() }
    }

    /// Takes a burst from the ring, sorts it by destination, and returns the frames for this port.
    fn receive(&mut self, burst: &mut Vec<DpdkRx>, max: usize) -> usize {
        let mut hub = self.hub();
        let Hub { port, rx_queues, arrived } = &mut *hub;
        port.receive(arrived, BURST_LEN);
        for frame in arrived.drain(..) {
            // The last byte of the destination: no port is that of a broadcast.
            let index = frame.head().get(MAC_LEN - 1).map(|&last| usize::from(last));
            if let Some(queue) = index.and_then(|index| rx_queues.get_mut(index)) {
                queue.push_back(frame);
            }
        }
        let queue = &mut rx_queues[self.index];
        let count = queue.len().min(max);
        burst.extend(queue.drain(..count));
        count
    }

    fn allocate(&mut self, pool: TxClass) -> Option<DpdkTx> {
        self.hub().port.allocate(pool)
    }

    fn data_avail_count(&self) -> usize {
        self.hub().port.data_avail_count()
    }

    fn tx_free_count(&self) -> usize {
        self.hub().port.tx_free_count()
    }

    fn transmit(&mut self, frame: DpdkTx) {
        self.hub().port.transmit(frame);
    }

    fn flush(&mut self) {
        self.hub().port.flush();
    }
}
