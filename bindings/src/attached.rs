//! An attached port: its owner, the resources it keeps alive, and its close.

use core::ffi::CStr;
use core::fmt::Debug;
use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError};

use crate::eal::control_lock;
use crate::error::{Error, check};
use crate::{fork, memif_disconnect, sys};

/// Ports that have an owner, by port ID.
static OWNED: Mutex<[bool; sys::RTE_MAX_ETHPORTS as usize]> =
    Mutex::new([false; sys::RTE_MAX_ETHPORTS as usize]);

/// Marks a port as owned; false if it was owned already.
pub(crate) fn own(id: u16) -> bool {
    let mut owned = OWNED.lock().unwrap_or_else(PoisonError::into_inner);
    owned.get_mut(usize::from(id)).is_some_and(|slot| !core::mem::replace(slot, true))
}

/// An attached port that has an owner. Dropping it closes the port, and detaches it if it was
/// hotplugged here.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) id: u16,
    pub(crate) started: bool,
    /// The driver may unmap the rings at any time.
    pub(crate) unmaps_on_disconnect: bool,
    /// Bus and name of the device to remove once the port is closed; `None` if the port was not
    /// hotplugged here.
    hotplugged: Option<(&'static CStr, CString)>,
    /// Resources the port refers to, released after it is closed.
    kept: Vec<Arc<dyn Debug + Send + Sync>>,
}

impl Attached {
    /// `id` is a port that the caller has marked as its own ([`own`]).
    pub(crate) fn new(id: u16, hotplugged: Option<(&'static CStr, CString)>) -> Self {
        let mut port =
            Self { id, started: false, unmaps_on_disconnect: false, hotplugged, kept: Vec::new() };
        port.unmaps_on_disconnect =
            port.raw_info().is_ok_and(|info| driver_name(&info) == memif_disconnect::DRIVER);
        port
    }

    /// Keeps a resource that the port refers to until the port is closed.
    pub(crate) fn keep(&mut self, resource: Arc<dyn Debug + Send + Sync>) {
        self.kept.push(resource);
    }

    pub(crate) fn raw_info(&self) -> Result<sys::rte_eth_dev_info, Error> {
        let mut info = sys::rte_eth_dev_info::default();
        // SAFETY: an attached port (this value owns it) and a structure to fill.
        let status = unsafe { sys::rte_eth_dev_info_get(self.id, &raw mut info) };
        check(status, Error::PortInfo)?;
        Ok(info)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        let _control = control_lock();
        if self.unmaps_on_disconnect {
            if !memif_disconnect::close(self.id, self.started) {
                return;
            }
        } else {
            // SAFETY: this value owns the port; the queues that used it are dropped.
            unsafe { memif_disconnect::stop_and_close(self.id, self.started) };
        }
        if let Some((bus, name)) = &self.hotplugged {
            // SAFETY: the name it was hotplugged with; its port is closed.
            unsafe { sys::rte_eal_hotplug_remove(bus.as_ptr(), name.as_ptr()) };
        }
        let mut owned = OWNED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = owned.get_mut(usize::from(self.id)) {
            *slot = false;
        }
    }
}

/// Returns the name of a port's driver; empty if it has none.
pub(crate) fn driver_name(info: &sys::rte_eth_dev_info) -> &'static CStr {
    if info.driver_name.is_null() {
        return c"";
    }
    // SAFETY: a static string of the driver, and drivers stay loaded.
    unsafe { CStr::from_ptr(info.driver_name) }
}
