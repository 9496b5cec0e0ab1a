//! An attached port: its owner, the resources it keeps alive, and its close.

use core::ffi::CStr;
use core::fmt::Debug;
use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError};

use crate::eal::control_lock;
use crate::error::{Error, check};
use crate::{fork, memif_disconnect, sys, vhost_state};

/// Ports that have an owner, by port ID.
static OWNED: Mutex<[bool; sys::RTE_MAX_ETHPORTS as usize]> =
    Mutex::new([false; sys::RTE_MAX_ETHPORTS as usize]);

/// Marks a port as owned; false if it was owned already.
pub(crate) fn own(id: u16) -> bool {
    let mut owned = OWNED.lock().unwrap_or_else(PoisonError::into_inner);
    owned.get_mut(usize::from(id)).is_some_and(|slot| !core::mem::replace(slot, true))
}

/// Name of the driver of virtio ports without a virtual machine, as in `rte_eth_dev_info`.
const VIRTIO_USER: &CStr = c"net_virtio_user";

/// A port's driver, if its ports are treated in a way of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    /// Unmaps the rings in the interrupt thread when the peer disconnects.
    Memif,
    /// Unmaps them in a thread of its own.
    Vhost,
    /// Has an alarm set, with a pointer to the port, whenever the link is found down.
    VirtioUser,
    /// Any other.
    Other,
}

impl Driver {
    fn named(name: &CStr) -> Self {
        let known = [
            (memif_disconnect::DRIVER, Self::Memif),
            (vhost_state::DRIVER, Self::Vhost),
            (VIRTIO_USER, Self::VirtioUser),
        ];
        known.into_iter().find(|(driver, _)| *driver == name).map_or(Self::Other, |(_, is)| is)
    }
}

/// An attached port that has an owner. Dropping it closes the port, and detaches it if it was
/// hotplugged here.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) id: u16,
    pub(crate) started: bool,
    pub(crate) driver: Driver,
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
            Self { id, started: false, driver: Driver::Other, hotplugged, kept: Vec::new() };
        if let Ok(info) = port.raw_info() {
            port.driver = Driver::named(driver_name(&info));
        }
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
        if self.driver == Driver::Vhost {
            vhost_state::unwatch(self.id);
        }
        if matches!(self.driver, Driver::Memif | Driver::VirtioUser) {
            // An alarm that was set before has run by then.
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
