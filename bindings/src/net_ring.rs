//! Two `net_ring` ports of one process, connected by rings of mbuf pointers.

use core::ffi::CStr;
use core::ptr::NonNull;
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::attached::{Attached, own};
use crate::eal::{Eal, control_lock};
use crate::error::{Errno, Error};
use crate::mbuf::Mbuf;
use crate::port::{Bus, Port};
use crate::sys;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// One direction of one queue pair. Single producer, single consumer: each side is one port's
/// queue, and a queue has one owner.
#[derive(Debug)]
struct Ring(NonNull<sys::rte_ring>);

// SAFETY: used only through ports, whose queues are one producer and one consumer.
unsafe impl Send for Ring {}
// SAFETY: as above; a shared `Ring` offers no operation but its address.
unsafe impl Sync for Ring {}

impl Ring {
    fn new(slots: u32) -> Result<Self, Error> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = CString::new(format!("fw_ring_{number}")).map_err(|_| Error::BadName)?;
        let flags = sys::RING_F_SP_ENQ | sys::RING_F_SC_DEQ;
        let _control = control_lock();
        // SAFETY: EAL runs (callers hold an `Eal`); the name is copied; DPDK checks `slots`.
        let ring = unsafe { sys::rte_ring_create(name.as_ptr(), slots, sys::SOCKET_ID_ANY, flags) };
        NonNull::new(ring).map(Self).ok_or_else(|| Error::RingCreate(Errno::last()))
    }

    fn raw(&self) -> *mut sys::rte_ring {
        self.0.as_ptr()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if crate::fork::is_child() {
            return;
        }
        let mut object = core::ptr::null_mut();
        // SAFETY: both ports are closed (they hold the `Arc`s), so this is the only user.
        while unsafe { sys::fw_ring_dequeue(self.raw(), &raw mut object, 1) } == 1 {
            if let Some(frame) = NonNull::new(object.cast()) {
                // SAFETY: rings hold mbufs that were sent, one reference each.
                drop(unsafe { Mbuf::from_raw(frame) });
            }
        }
        // SAFETY: empty, and no longer referenced.
        unsafe { sys::rte_ring_free(self.raw()) };
    }
}

impl Port {
    /// Creates a `net_ring` port over these rings.
    fn from_rings(
        name: &CStr,
        receive: &[Arc<Ring>],
        transmit: &[Arc<Ring>],
    ) -> Result<Self, Error> {
        let receive_raw: Vec<_> = receive.iter().map(|ring| ring.raw()).collect();
        let transmit_raw: Vec<_> = transmit.iter().map(|ring| ring.raw()).collect();
        let queues = |count: usize| u32::try_from(count).map_err(|_| Error::BadName);
        let plug = CString::new(format!("net_ring_{}", name.to_string_lossy()))
            .map_err(|_| Error::BadName)?;
        let _control = control_lock();
        // SAFETY: two arrays of live rings with their lengths; the driver copies them, and the
        // rings are kept until the port is closed.
        let id = unsafe {
            sys::rte_eth_from_rings(
                name.as_ptr(),
                receive_raw.as_ptr(),
                queues(receive_raw.len())?,
                transmit_raw.as_ptr(),
                queues(transmit_raw.len())?,
                0,
            )
        };
        let id = u16::try_from(id).map_err(|_| Error::PortFromRings(Errno::last()))?;
        if !own(id) {
            return Err(Error::NoPort);
        }
        let mut port = Attached::new(id, Some((Bus::Virtual.name(), plug)));
        for ring in receive.iter().chain(transmit) {
            port.keep(Arc::<Ring>::clone(ring));
        }
        Ok(Self(port))
    }
}

/// Creates two connected ports with `queues` queue pairs each: queue n of one sends to queue n of
/// the other.
///
/// `slots`, a power of two, is the ring size per direction; a ring holds one frame less. Frames are
/// passed as pointers: the receiver frees them into the sender's pool.
///
/// # Errors
/// [`Error::RingCreate`] or [`Error::PortFromRings`].
pub fn ring_pair(_eal: Eal, queues: u16, slots: u32) -> Result<(Port, Port), Error> {
    let rings =
        || (0..queues).map(|_| Ring::new(slots).map(Arc::new)).collect::<Result<Vec<_>, _>>();
    let forth = rings()?;
    let back = rings()?;
    let name = || {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        CString::new(format!("fw_{number}")).map_err(|_| Error::BadName)
    };
    let first = Port::from_rings(&name()?, &back, &forth)?;
    let second = Port::from_rings(&name()?, &forth, &back)?;
    Ok((first, second))
}

#[cfg(test)]
mod tests;
