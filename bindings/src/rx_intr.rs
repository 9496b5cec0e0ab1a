//! Receive interrupts: descriptors on which a thread sleeps until a queue receives frames.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::Arc;

use crate::attached::{Attached, Driver};
use crate::eal::control_lock;
use crate::sys;

/// Receive interrupt of a queue. The port is not closed before it is dropped.
///
/// To sleep: [`RxInterrupt::enable`] it, poll the queue once more, wait until the descriptor
/// ([`AsFd`]) is readable, and [`RxInterrupt::disable`] it.
#[derive(Debug)]
pub struct RxInterrupt {
    port: Arc<Attached>,
    queue: u16,
    fd: RawFd,
    kind: Kind,
}

/// Kind of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The kernel's queue of frames: readable while there are some.
    Frames,
    /// An eventfd that counts the interrupts of a card, or the kicks of a virtio-user port's peer,
    /// until it is read.
    Count,
    /// Another descriptor of a card, such as the completion channel of `mlx5`: its driver reads it.
    Channel,
}

impl Kind {
    /// Kind of a descriptor that a card's driver has for a queue.
    fn of_card(fd: RawFd) -> Self {
        let target = std::fs::read_link(format!("/proc/self/fd/{fd}"));
        let is_eventfd = target.is_ok_and(|target| target.as_os_str() == "anon_inode:[eventfd]");
        if is_eventfd { Self::Count } else { Self::Channel }
    }
}

impl RxInterrupt {
    /// `None` if the driver has no receive interrupts, they were not requested
    /// ([`PortConfig::rx_interrupts`](crate::PortConfig::rx_interrupts)), or the host program owns
    /// the port.
    pub(crate) fn of(port: &Arc<Attached>, queue: u16) -> Option<Self> {
        if port.is_borrowed() {
            return None;
        }
        let (fd, kind) = match (port.driver, port.packet_sockets.get(usize::from(queue))) {
            (_, Some(&socket)) => (socket, Kind::Frames),
            (Driver::Tap, None) => (port_fd(port, queue)?, Kind::Frames),
            (Driver::Other | Driver::VirtioUser, None) => {
                let fd = port_fd(port, queue)?;
                (fd, Kind::of_card(fd))
            }
            // `net_memif` has none, and masks the interrupts of its peers. `net_vhost` would enable
            // them in the rings of a peer that may just be leaving.
            (Driver::Memif | Driver::Vhost, None) => return None,
        };
        let interrupt = Self { port: Arc::clone(port), queue, fd, kind };
        // Some drivers have a descriptor, and no interrupts.
        let is_usable = interrupt.enable();
        interrupt.disable();
        is_usable.then_some(interrupt)
    }

    /// Has the next frame make the descriptor readable. Frames that have arrived before may not:
    /// poll the queue afterwards. False if the driver refuses.
    #[must_use]
    pub fn enable(&self) -> bool {
        if self.kind == Kind::Frames {
            return true;
        }
        let _interrupts = self.port.interrupts.lock();
        // SAFETY: a started port (kept by the `Arc`), and one of its queues.
        unsafe { sys::rte_eth_dev_rx_intr_enable(self.port.id, self.queue) == 0 }
    }

    /// Undoes [`RxInterrupt::enable`]; the descriptor is not readable any more once the frames are
    /// received.
    pub fn disable(&self) {
        match self.kind {
            // An error, such as that of an interface which is down, would stay until it is read.
            Kind::Frames if !self.port.packet_sockets.is_empty() => {
                socket_option(self.fd, libc::SO_ERROR);
            }
            Kind::Frames => {}
            Kind::Count => {
                self.disable_in_driver();
                let mut count = 0_u64;
                // SAFETY: an eventfd that is open while the port is, which never blocks, and eight
                // bytes to write.
                unsafe { libc::read(self.fd, (&raw mut count).cast(), size_of::<u64>()) };
            }
            Kind::Channel => self.disable_in_driver(),
        }
    }

    fn disable_in_driver(&self) {
        let _interrupts = self.port.interrupts.lock();
        // SAFETY: as in `enable`.
        unsafe { sys::rte_eth_dev_rx_intr_disable(self.port.id, self.queue) };
    }
}

impl AsFd for RxInterrupt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the driver closes it with the port, which is kept by the `Arc`.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }
}

/// Returns the descriptor that the driver has for the interrupts of a queue.
fn port_fd(port: &Attached, queue: u16) -> Option<RawFd> {
    let _control = control_lock();
    // SAFETY: a started port, and one of its queues.
    let fd = unsafe { sys::rte_eth_dev_rx_intr_ctl_q_get_fd(port.id, queue) };
    (fd >= 0).then_some(fd)
}

/// Returns an option of a socket that is a number; `None` if this is no socket, or has no such
/// option.
fn socket_option(fd: RawFd, option: libc::c_int) -> Option<libc::c_int> {
    let mut value = 0;
    let mut len = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or(0);
    // SAFETY: a number, and space for a value with its length.
    let status = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, option, (&raw mut value).cast(), &raw mut len)
    };
    (status == 0).then_some(value)
}

/// The packet sockets of this process in the network namespace of the calling thread, by inode, in
/// the order in which they were opened.
#[derive(Debug)]
pub(crate) struct PacketSockets(Vec<u64>);

impl PacketSockets {
    /// Those open now; none if /proc cannot be read.
    pub(crate) fn now() -> Self {
        let text = std::fs::read_to_string("/proc/thread-self/net/packet").unwrap_or_default();
        let inode = |line: &str| line.split_whitespace().last()?.parse().ok();
        // The kernel lists them in the order of their creation. The first line names the columns.
        Self(text.lines().skip(1).filter_map(inode).collect())
    }

    /// Returns the descriptors of those opened since that are bound to an interface, in order.
    /// `net_af_packet` has one for each queue, and tells nobody. None if there are more, or fewer,
    /// than `count`: other threads of the process may open some as well.
    pub(crate) fn opened_since(&self, interface: u32, count: usize) -> Vec<RawFd> {
        let own = own_packet_sockets();
        let now = Self::now().0;
        let new = now.iter().filter(|inode| !self.0.contains(inode));
        let mut found: Vec<_> = new.filter_map(|inode| own.get(inode).copied()).collect();
        found.retain(|&fd| bound_interface(fd) == Some(interface));
        if found.len() == count { found } else { Vec::new() }
    }
}

/// Returns the index of the interface to which a packet socket is bound; 0 if it is bound to none.
fn bound_interface(fd: RawFd) -> Option<u32> {
    let mut address = sockaddr_ll();
    let mut len = libc::socklen_t::try_from(size_of_val(&address)).unwrap_or(0);
    // SAFETY: a number, and space for an address with its length.
    let status = unsafe { libc::getsockname(fd, (&raw mut address).cast(), &raw mut len) };
    (status == 0).then_some(address.sll_ifindex).and_then(|index| index.try_into().ok())
}

/// Returns the address of a packet socket that is bound to nothing.
fn sockaddr_ll() -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: u16::try_from(libc::AF_PACKET).unwrap_or(0),
        sll_protocol: 0,
        sll_ifindex: 0,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    }
}

/// The packet sockets of this process: inode and descriptor.
fn own_packet_sockets() -> HashMap<u64, RawFd> {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return HashMap::new() };
    let sockets = open.flatten().filter_map(|entry| {
        let fd = entry.file_name().to_str()?.parse().ok()?;
        let target = std::fs::read_link(entry.path()).ok()?;
        let inode = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()?;
        (socket_option(fd, libc::SO_DOMAIN) == Some(libc::AF_PACKET)).then_some((inode, fd))
    });
    sockets.collect()
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

    use super::*;
    use crate::fd::EventFd;

    /// Index of the interface `lo`.
    const LO: u32 = 1;

    /// Returns a packet socket, bound to an interface or, for 0, to none.
    fn packet_socket(interface: u32) -> Option<OwnedFd> {
        // SAFETY: a plain system call.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        // SAFETY: a new descriptor that has no other owner.
        let socket = (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })?;
        let mut address = sockaddr_ll();
        address.sll_ifindex = interface.try_into().unwrap();
        let len = size_of_val(&address).try_into().unwrap();
        // SAFETY: a socket, and an address with its length.
        assert_eq!(unsafe { libc::bind(fd, (&raw const address).cast(), len) }, 0);
        Some(socket)
    }

    /// Gives a descriptor a higher number than any test needs otherwise.
    fn renumbered(old: OwnedFd) -> OwnedFd {
        // SAFETY: a plain system call.
        let fd = unsafe { libc::fcntl(old.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 900) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: a new descriptor that has no other owner.
        unsafe { OwnedFd::from_raw_fd(fd) }
    }

    #[test]
    fn new_packet_sockets_are_found_in_order() {
        let Some(_old) = packet_socket(LO) else {
            println!("not run: needs CAP_NET_RAW");
            return;
        };
        let before = PacketSockets::now();
        assert!(!before.0.is_empty());
        // Not in the order of their numbers.
        let first = renumbered(packet_socket(LO).unwrap());
        let second = packet_socket(LO).unwrap();
        assert!(second.as_raw_fd() < first.as_raw_fd());
        let both = [first.as_raw_fd(), second.as_raw_fd()];
        assert_eq!(before.opened_since(LO, 2), both);
        // Another thread of the process opens some.
        let _unbound = packet_socket(0).unwrap();
        assert_eq!(before.opened_since(LO, 2), both);
        assert_eq!(before.opened_since(LO, 1), [], "any of them may be the port's");
        let _third = packet_socket(LO).unwrap();
        assert_eq!(before.opened_since(LO, 2), []);
    }

    #[test]
    fn only_an_eventfd_counts() {
        let count = EventFd::new().unwrap();
        let other = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(Kind::of_card(count.as_fd().as_raw_fd()), Kind::Count);
        assert_eq!(Kind::of_card(other.as_raw_fd()), Kind::Channel);
    }
}
