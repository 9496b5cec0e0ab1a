//! Removal of devices in use (hot unplug): the kernel asks for a card back that the process holds
//! by vfio, and waits until its port is closed.
//!
//! DPDK passes the request on as an event of the device, in its interrupt thread
//! (`pci_vfio_req_handler` in drivers/bus/pci/linux/pci_vfio.c).

use core::ffi::{CStr, c_void};
use std::collections::BTreeMap;
use std::fmt;

use crate::lock_order::{Rank, RankedGuard, RankedMutex};
use crate::{fork, sys};

/// Function to be called once.
type Observer = Box<dyn FnOnce() + Send>;

/// State of a port that is watched.
enum Watched {
    /// Functions to be called at the request.
    Present(Vec<Observer>),
    /// The kernel has asked for it.
    Requested,
}

/// Ports that are watched, by port ID. Numbers instead of pointers: an event that is late finds
/// nothing.
static PORTS: RankedMutex<BTreeMap<u16, Watched>> = RankedMutex::new(Rank::List, BTreeMap::new());

fn ports() -> RankedGuard<'static, BTreeMap<u16, Watched>> {
    PORTS.lock()
}

/// The device of a port, watched until this is dropped.
pub(crate) struct Watch {
    port: u16,
    device: &'static CStr,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("port", &self.port).finish_non_exhaustive()
    }
}

impl Watch {
    /// Watches the device of an attached port, if it has one and there is memory for that.
    pub(crate) fn new(port: u16, info: &sys::rte_eth_dev_info) -> Option<Self> {
        if info.device.is_null() {
            return None;
        }
        // SAFETY: the device of an attached port.
        let name = unsafe { sys::rte_dev_name(info.device) };
        // SAFETY: a string that lives as long as the device, which outlives this value.
        let device = unsafe { CStr::from_ptr(name) };
        ports().insert(port, Watched::Present(Vec::new()));
        let argument = core::ptr::without_provenance_mut(usize::from(port));
        // SAFETY: a string, which is copied, and a function that takes any number as its argument.
        let status = unsafe {
            sys::rte_dev_event_callback_register(device.as_ptr(), Some(on_event), argument)
        };
        // Drops the entry on failure.
        let watch = Self { port, device };
        (status == 0).then_some(watch)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        ports().remove(&self.port);
        let argument = core::ptr::without_provenance_mut(usize::from(self.port));
        // It stays registered if an event is being reported, which finds nothing then.
        // SAFETY: the device exists as long as its port, which is closed after this.
        unsafe {
            sys::rte_dev_event_callback_unregister(self.device.as_ptr(), Some(on_event), argument);
        }
    }
}

/// Has `observer` called when the kernel asks for the port's device, in a thread that must not wait
/// for a control call; at once if it has asked already. Never if the port is not watched.
pub(crate) fn observe(port: u16, observer: Observer) {
    match ports().get_mut(&port) {
        Some(Watched::Present(observers)) => return observers.push(observer),
        Some(Watched::Requested) => {}
        None => return,
    }
    observer();
}

/// `rte_dev_event_cb_fn`.
extern "C" fn on_event(
    _device: *const core::ffi::c_char,
    event: sys::rte_dev_event_type,
    port: *mut c_void,
) {
    if event != sys::RTE_DEV_EVENT_REMOVE {
        return;
    }
    let Ok(port) = u16::try_from(port.addr()) else { return };
    report(port);
}

/// Calls the observers of a port's removal, once.
pub(crate) fn report(port: u16) {
    let was = ports().get_mut(&port).map(|watched| core::mem::replace(watched, Watched::Requested));
    if let Some(Watched::Present(observers)) = was {
        observers.into_iter().for_each(|observer| observer());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// IDs that no port of the other tests has.
    const PORT: u16 = u16::MAX;

    fn event(kind: sys::rte_dev_event_type) {
        let argument = core::ptr::without_provenance_mut(usize::from(PORT));
        on_event(c"0000:01:00.0".as_ptr(), kind, argument);
    }

    #[test]
    fn observers_are_called_once_for_a_port_that_is_watched() {
        let called = Arc::new(AtomicU32::new(0));
        let observer = |called: &Arc<AtomicU32>| -> Observer {
            let called = Arc::clone(called);
            Box::new(move || {
                called.fetch_add(1, Ordering::Relaxed);
            })
        };
        let count = || called.load(Ordering::Relaxed);
        event(sys::RTE_DEV_EVENT_REMOVE);
        observe(PORT, observer(&called));
        assert_eq!(count(), 0, "not watched");
        ports().insert(PORT, Watched::Present(Vec::new()));
        observe(PORT, observer(&called));
        observe(PORT, observer(&called));
        event(sys::RTE_DEV_EVENT_ADD);
        assert_eq!(count(), 0, "another event");
        event(sys::RTE_DEV_EVENT_REMOVE);
        event(sys::RTE_DEV_EVENT_REMOVE);
        assert_eq!(count(), 2);
        observe(PORT, observer(&called));
        assert_eq!(count(), 3, "at once");
        ports().remove(&PORT);
    }
}
