//! An attached port: its owner, the resources it keeps alive, and its close.

use core::ffi::CStr;
use core::fmt::Debug;
use core::ops::Range;
use std::ffi::CString;
use std::os::fd::RawFd;
use std::sync::Arc;

use crate::eal::control_lock;
use crate::error::{Error, check};
use crate::lock_order::{Rank, RankedMutex};
use crate::net_admin::without_net_admin;
use crate::removal::Watch;
use crate::{fork, memif_disconnect, sys, vhost_state};

/// Use of each port by this library, by port ID.
static IN_USE: RankedMutex<[InUse; sys::RTE_MAX_ETHPORTS as usize]> =
    RankedMutex::new(Rank::List, [const { InUse::Nothing }; sys::RTE_MAX_ETHPORTS as usize]);

/// Part of a port that this library uses.
#[derive(Debug)]
enum InUse {
    Nothing,
    /// All: the port is owned.
    Port,
    /// These queue pairs of a port that the host program owns; at least one.
    Queues(Vec<u16>),
}

/// Marks a port as owned; false if it, or one of its queues, is in use already.
pub(crate) fn own(id: u16) -> bool {
    let mut ports = IN_USE.lock();
    let Some(slot @ InUse::Nothing) = ports.get_mut(usize::from(id)) else { return false };
    *slot = InUse::Port;
    true
}

/// Queue pairs of a port that the host program owns, in use here until the value is dropped.
#[derive(Debug)]
pub(crate) struct BorrowedQueues {
    port: u16,
    queues: Range<u16>,
}

impl BorrowedQueues {
    /// Marks the queues as in use.
    ///
    /// # Errors
    /// [`Error::PortInUse`] if the port is owned here as a whole, or [`Error::QueueInUse`].
    pub(crate) fn new(port: u16, queues: Range<u16>) -> Result<Self, Error> {
        let mut ports = IN_USE.lock();
        let slot = ports.get_mut(usize::from(port)).ok_or(Error::NoPort)?;
        match slot {
            InUse::Nothing => *slot = InUse::Queues(queues.clone().collect()),
            InUse::Port => return Err(Error::PortInUse),
            InUse::Queues(taken) => {
                if let Some(queue) = queues.clone().find(|queue| taken.contains(queue)) {
                    return Err(Error::QueueInUse { queue });
                }
                taken.extend(queues.clone());
            }
        }
        Ok(Self { port, queues })
    }
}

impl Drop for BorrowedQueues {
    fn drop(&mut self) {
        if fork::is_child() {
            // The lock may have been held at the fork.
            return;
        }
        let mut ports = IN_USE.lock();
        let Some(slot) = ports.get_mut(usize::from(self.port)) else { return };
        if let InUse::Queues(taken) = slot {
            taken.retain(|queue| !self.queues.contains(queue));
            if taken.is_empty() {
                *slot = InUse::Nothing;
            }
        }
    }
}

/// Name of the driver of virtio ports without a virtual machine, as in `rte_eth_dev_info`.
const VIRTIO_USER: &CStr = c"net_virtio_user";

/// Name of the driver of kernel interfaces that it makes itself.
const TAP: &CStr = c"net_tap";

/// A port's driver, if its ports are treated in a way of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    /// Unmaps the rings in the interrupt thread when the peer disconnects.
    Memif,
    /// Unmaps them in a thread of its own.
    Vhost,
    /// Has an alarm set, with a pointer to the port, whenever the link is found down.
    VirtioUser,
    /// Sets the interface of its name down when it is closed, although that may be another one by
    /// now. Its own disappears with the last descriptor.
    Tap,
    /// Any other.
    Other,
}

impl Driver {
    fn of(info: &sys::rte_eth_dev_info) -> Self {
        let known = [
            (memif_disconnect::DRIVER, Self::Memif),
            (vhost_state::DRIVER, Self::Vhost),
            (VIRTIO_USER, Self::VirtioUser),
            (TAP, Self::Tap),
        ];
        let name = driver_name(info);
        match known.into_iter().find(|(driver, _)| *driver == name) {
            // It restores the flags of an interface that it mirrors.
            Some((_, Self::Tap)) if arguments(info).contains("remote=") => Self::Other,
            found => found.map_or(Self::Other, |(_, is)| is),
        }
    }
}

/// An attached port. Dropping it closes the port, and detaches it if it was hotplugged here, unless
/// the host program owns it.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) id: u16,
    pub(crate) started: bool,
    pub(crate) driver: Driver,
    /// Bus and name of the device to remove once the port is closed; `None` if the port was not
    /// hotplugged here.
    hotplugged: Option<(&'static CStr, CString)>,
    /// Queues in use here of a port that the host program owns; `None` if it is owned here.
    borrowed: Option<BorrowedQueues>,
    /// Watches for the kernel's request to return the device; `None` if it cannot be known.
    watch: Option<Watch>,
    /// Sockets of `net_af_packet`, by queue; the driver closes them with the port.
    pub(crate) packet_sockets: Vec<RawFd>,
    /// Held while the driver enables or disables an interrupt: the queues of a card share registers
    /// that the driver reads and writes back.
    pub(crate) interrupts: RankedMutex<()>,
    /// Resources the port refers to, released after it is closed.
    kept: Vec<Arc<dyn Debug + Send + Sync>>,
}

impl Attached {
    /// `id` is a port that the caller has marked as its own ([`own`]).
    pub(crate) fn new(id: u16, hotplugged: Option<(&'static CStr, CString)>) -> Self {
        Self::with_driver(id, hotplugged, None)
    }

    /// `borrowed` are queues of a started port that the host program owns.
    pub(crate) fn borrowed(borrowed: BorrowedQueues) -> Self {
        let mut port = Self::with_driver(borrowed.port, None, Some(borrowed));
        port.started = true;
        port
    }

    fn with_driver(
        id: u16,
        hotplugged: Option<(&'static CStr, CString)>,
        borrowed: Option<BorrowedQueues>,
    ) -> Self {
        let info = raw_info(id).ok();
        let driver = info.map_or(Driver::Other, |info| Driver::of(&info));
        // A device that is to be removed is the host program's affair where the port is.
        let watch = info.filter(|_| borrowed.is_none()).and_then(|info| Watch::new(id, &info));
        Self {
            id,
            started: false,
            driver,
            hotplugged,
            borrowed,
            watch,
            packet_sockets: Vec::new(),
            interrupts: RankedMutex::new(Rank::Interrupts, ()),
            kept: Vec::new(),
        }
    }

    /// Keeps a resource that the port refers to until the port is closed.
    pub(crate) fn keep(&mut self, resource: Arc<dyn Debug + Send + Sync>) {
        self.kept.push(resource);
    }

    /// True if the host program owns the port.
    pub(crate) const fn is_borrowed(&self) -> bool {
        self.borrowed.is_some()
    }

    pub(crate) fn raw_info(&self) -> Result<sys::rte_eth_dev_info, Error> {
        raw_info(self.id)
    }
}

/// Returns the information of a port; an error if there is none of this number.
fn raw_info(id: u16) -> Result<sys::rte_eth_dev_info, Error> {
    let mut info = sys::rte_eth_dev_info::default();
    // SAFETY: accepts any number; a structure to fill.
    let status = unsafe { sys::rte_eth_dev_info_get(id, &raw mut info) };
    check(status, Error::PortInfo)?;
    Ok(info)
}

impl Drop for Attached {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        if self.is_borrowed() {
            if self.driver == Driver::Memif {
                memif_disconnect::forget_dropped_queues();
            }
            return;
        }
        let _control = control_lock();
        self.watch = None;
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
            let close = || unsafe { memif_disconnect::stop_and_close(self.id, self.started) };
            if self.driver == Driver::Tap { without_net_admin(close) } else { close() }
        }
        if let Some((bus, name)) = &self.hotplugged {
            // SAFETY: the name it was hotplugged with; its port is closed.
            unsafe { sys::rte_eal_hotplug_remove(bus.as_ptr(), name.as_ptr()) };
        }
        let mut ports = IN_USE.lock();
        if let Some(slot) = ports.get_mut(usize::from(self.id)) {
            *slot = InUse::Nothing;
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

/// Returns the arguments that a port's driver was given; empty if there are none.
fn arguments(info: &sys::rte_eth_dev_info) -> String {
    if info.device.is_null() {
        return String::new();
    }
    // SAFETY: the device of an attached port.
    let devargs = unsafe { sys::rte_dev_devargs(info.device) };
    // SAFETY: null, or arguments that live as long as the device.
    let Some(devargs) = (unsafe { devargs.as_ref() }) else { return String::new() };
    // SAFETY: both members of the union are this pointer.
    let text = unsafe { devargs.__bindgen_anon_1.args };
    if text.is_null() {
        return String::new();
    }
    // SAFETY: a string that lives as long.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forked_child_drops_borrowed_queues_without_the_lock() {
        fork::install_atfork();
        let port = u16::try_from(sys::RTE_MAX_ETHPORTS - 1).unwrap();
        let mut queues = Some(BorrowedQueues::new(port, 0..1).unwrap());
        let held = IN_USE.lock();
        let passed = fork::run_in_child(|| {
            drop(queues.take());
            true
        });
        drop(held);
        assert!(passed.unwrap(), "the child waits for a thread of its parent");
        drop(queues);
        BorrowedQueues::new(port, 0..1).unwrap();
    }
}
