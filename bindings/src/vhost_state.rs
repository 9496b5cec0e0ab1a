//! Queues of `net_vhost` ports that the peer has enabled, and the end of a connection.
//!
//! The peer, a virtio driver, enables the two vrings of a queue pair one by one, and only as many
//! as it has. The driver neither receives nor sends on a vring that is not enabled, and tells by an
//! event which one changed. The link is up as soon as the first pair is enabled, and nothing tells
//! how many follow. So it is taken for up when all are enabled that this end has, or after
//! [`SETTLE_US`].
//!
//! When the peer disconnects, a thread of DPDK's vhost library unmaps the peer's memory. The driver
//! waits for the bursts in flight first, but with a store and a load on each side and no fence
//! between them: a burst that begins on another core may miss the end, and not be seen. It is after
//! this, and still before unmapping, that the driver reports the link down. So in that event bursts
//! are waited for once more, with the lock that each of them holds.

use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::burst_lock::{BurstLock, InFlight, RingState};
use crate::error::{Errno, Error, check};
use crate::lock_order::{Rank, RankedGuard, RankedMutex};
use crate::{fd, sys};

/// Name of the driver, as in `rte_eth_dev_info`.
pub(crate) const DRIVER: &CStr = c"net_vhost";

/// Events that are watched.
const EVENTS: [sys::rte_eth_event_type; 2] =
    [sys::RTE_ETH_EVENT_INTR_LSC, sys::RTE_ETH_EVENT_QUEUE_STATE];

/// Microseconds that a peer has for enabling its queues. One with as many as this end needs some
/// milliseconds.
const SETTLE_US: u64 = 500_000;

/// Polls for the end of a callback when it is unregistered, and the sleep between them.
const UNREGISTER_POLLS: (u32, Duration) = (1000, Duration::from_millis(5));

/// Ports of this driver that are watched.
static PORTS: RankedMutex<Vec<Watched>> = RankedMutex::new(Rank::List, Vec::new());

/// A port that is watched.
#[derive(Debug)]
struct Watched {
    port: u16,
    /// Number of its queue pairs.
    wired: u16,
    /// Path of its socket, if that is known.
    socket: Option<PathBuf>,
    is_up: bool,
    /// The peer has had its time for enabling queues.
    is_settled: bool,
    /// Number of this connection, in the process.
    connection: usize,
    /// Enabled vrings of each queue pair, as seen from here: transmit, receive.
    enabled: Vec<[bool; 2]>,
    /// Locks of each queue pair: transmit, receive.
    queues: Vec<[Weak<InFlight>; 2]>,
}

impl Watched {
    const fn new(port: u16, wired: u16, socket: Option<PathBuf>) -> Self {
        Self {
            port,
            wired,
            socket,
            is_up: false,
            is_settled: false,
            connection: 0,
            enabled: Vec::new(),
            queues: Vec::new(),
        }
    }

    fn is_enabled(&self, queue: usize) -> bool {
        self.enabled.get(queue) == Some(&[true; 2])
    }

    /// True if no further queue is expected to be enabled.
    fn is_complete(&self) -> bool {
        self.is_settled || (0..usize::from(self.wired)).all(|queue| self.is_enabled(queue))
    }

    /// State of both rings of a queue pair. A pair is used as a whole.
    fn ring_state(&self, queue: usize) -> RingState {
        match self.is_enabled(queue) {
            _ if !self.is_up || !self.is_complete() => RingState::LinkDown,
            true => RingState::Present,
            false => RingState::Absent,
        }
    }

    fn on_vring(&mut self, event: QueueEvent) {
        let queue = usize::from(event.queue);
        if self.enabled.len() <= queue {
            self.enabled.resize(queue + 1, [false; 2]);
        }
        self.enabled[queue][usize::from(event.is_rx)] = event.is_enabled;
    }

    fn on_link(&mut self, is_up: bool) {
        self.is_up = is_up;
        self.is_settled = false;
        if is_up {
            static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);
            self.connection = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
        } else {
            self.enabled.clear();
        }
    }

    /// Has [`on_settled`] called for this connection, unless there is no memory for that: then it
    /// is taken for settled.
    fn set_alarm(&mut self) {
        let argument = self.connection << 16 | usize::from(self.port);
        let argument = core::ptr::without_provenance_mut(argument);
        // SAFETY: EAL runs, and the function takes any number as its argument.
        let status = unsafe { sys::rte_eal_alarm_set(SETTLE_US, Some(on_settled), argument) };
        self.is_settled = status < 0;
    }

    /// Has all queues know their state. Returns those to wait for, without the lock of the ports,
    /// before the memory is unmapped: all, once the link is down.
    #[must_use]
    fn publish(&self) -> Vec<Arc<InFlight>> {
        let locks = |pair: &[Weak<InFlight>; 2]| pair.each_ref().map(Weak::upgrade);
        // The first one last: once its state is known, the others' are, too.
        for (queue, pair) in self.queues.iter().enumerate().rev() {
            let state = self.ring_state(queue);
            locks(pair).iter().flatten().for_each(|lock| lock.note_ring_state(state));
        }
        let pairs = self.queues.iter().filter(|_| !self.is_up);
        pairs.flat_map(locks).flatten().collect()
    }

    /// Returns the locks of the next queue pair: receive, transmit.
    fn register_queue(&mut self) -> [BurstLock; 2] {
        let state = self.ring_state(self.queues.len());
        let pair = [InFlight::new(state), InFlight::new(state)];
        self.queues.push(pair.each_ref().map(Arc::downgrade));
        let [tx, rx] = pair.map(BurstLock::by_ring_state);
        [rx, tx]
    }
}

/// `struct rte_eth_vhost_queue_event`. The driver counts as the guest does: its odd vrings are
/// those from which it receives.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct QueueEvent {
    queue: u16,
    is_rx: bool,
    is_enabled: bool,
}

type GetQueueEvent = unsafe extern "C" fn(u16, *mut QueueEvent) -> c_int;

/// Returns `rte_eth_vhost_get_queue_event` of the driver, whose archive is linked.
#[cfg(feature = "static")]
fn get_queue_event() -> Option<GetQueueEvent> {
    unsafe extern "C" {
        fn rte_eth_vhost_get_queue_event(port: u16, event: *mut QueueEvent) -> c_int;
    }
    Some(rte_eth_vhost_get_queue_event)
}

/// Returns `rte_eth_vhost_get_queue_event` of the driver, which is a plug-in and not linked.
#[cfg(not(feature = "static"))]
fn get_queue_event() -> Option<GetQueueEvent> {
    use std::ffi::CString;
    use std::sync::OnceLock;

    use crate::abi::ABI;

    static FOUND: OnceLock<Option<GetQueueEvent>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let library = CString::new(format!("librte_net_vhost.so.{ABI}")).ok()?;
        let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD;
        // SAFETY: a string. The library is not loaded by this, only found, and drivers stay loaded.
        let library = unsafe { libc::dlopen(library.as_ptr(), flags) };
        if library.is_null() {
            return None;
        }
        // SAFETY: an open library and a string.
        let symbol = unsafe { libc::dlsym(library, c"rte_eth_vhost_get_queue_event".as_ptr()) };
        // SAFETY: the function has this signature in DPDK 22.11 to 25.11 (rte_eth_vhost.h), or the
        // pointer is null, which is `None`.
        unsafe { core::mem::transmute::<*mut c_void, Option<GetQueueEvent>>(symbol) }
    })
}

fn ports() -> RankedGuard<'static, Vec<Watched>> {
    PORTS.lock()
}

/// Begins to watch a port that is attached, and not yet configured; `wired` is the number of its
/// queue pairs.
///
/// # Errors
/// [`Error::PortConfigure`] if there is no memory for it.
pub(crate) fn watch(port: u16, wired: u16, socket: Option<PathBuf>) -> Result<(), Error> {
    ports().push(Watched::new(port, wired, socket));
    EVENTS.into_iter().try_for_each(|event| {
        let none = core::ptr::null_mut();
        // SAFETY: an attached port, and a function that accepts any argument and lives as long as
        // the process.
        let status =
            unsafe { sys::rte_eth_dev_callback_register(port, event, Some(on_event), none) };
        check(status, Error::PortConfigure)
    })
}

/// Ends it, before the port is closed. Its queues are not in use.
pub(crate) fn unwatch(port: u16) {
    for event in EVENTS {
        for _ in 0..UNREGISTER_POLLS.0 {
            let none = core::ptr::null_mut();
            // SAFETY: as above.
            let status =
                unsafe { sys::rte_eth_dev_callback_unregister(port, event, Some(on_event), none) };
            if Errno::from_return(status) != Errno(libc::EAGAIN) {
                break;
            }
            // It is running.
            std::thread::sleep(UNREGISTER_POLLS.1);
        }
    }
    ports().retain(|watched| watched.port != port);
}

/// Returns the locks of the next queue pair of a started port, receive and transmit; `None` if the
/// port is not watched.
pub(crate) fn burst_locks(port: u16) -> Option<[BurstLock; 2]> {
    ports().iter_mut().find(|watched| watched.port == port).map(Watched::register_queue)
}

/// In a thread of the vhost library, or one that closes a port of it.
///
/// Must not wait for bursts in the event of a vring: the library holds its locks of all vrings
/// then, for which bursts wait.
unsafe extern "C" fn on_event(
    port: u16,
    event: sys::rte_eth_event_type,
    _: *mut c_void,
    _: *mut c_void,
) -> c_int {
    let mut ports = ports();
    let Some(watched) = ports.iter_mut().find(|watched| watched.port == port) else { return 0 };
    if event == sys::RTE_ETH_EVENT_INTR_LSC {
        // SAFETY: an attached port.
        watched.on_link(unsafe { sys::fw_link_is_up(port) } != 0);
    }
    if event == sys::RTE_ETH_EVENT_INTR_LSC && watched.is_up {
        // An executed program would keep the connection open after its end here.
        watched.socket.as_deref().map(fd::close_sockets_on_exec);
    }
    match get_queue_event() {
        Some(next) => {
            let mut event = QueueEvent::default();
            // SAFETY: an attached port of this driver and a structure to fill.
            while unsafe { next(port, &raw mut event) } == 0 {
                watched.on_vring(event);
            }
        }
        // The first pair is enabled whenever there is a link.
        None => watched.enabled = vec![[true; 2]],
    }
    if event == sys::RTE_ETH_EVENT_INTR_LSC && watched.is_up && !watched.is_complete() {
        watched.set_alarm();
    }
    if event == sys::RTE_ETH_EVENT_INTR_LSC || watched.is_up {
        let quiesced = watched.publish();
        drop(ports);
        quiesced.iter().for_each(|queue| queue.wait());
    }
    0
}

/// In the interrupt thread.
extern "C" fn on_settled(argument: *mut c_void) {
    let (connection, port) = (argument.addr() >> 16, argument.addr() & 0xffff);
    let mut ports = ports();
    let watched = ports.iter_mut().find(|watched| usize::from(watched.port) == port);
    if let Some(watched) = watched
        && watched.connection == connection
        && watched.is_up
    {
        watched.is_settled = true;
        // Of a link that is up: there is nothing to wait for.
        let _ = watched.publish();
    }
}

#[cfg(test)]
mod tests;
