//! Ports that are closed while an event of their control socket is still to be handled.

use core::mem::ManuallyDrop;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Receiver;
use std::thread;

use super::*;
use crate::intr_sources::{Handle, any_ready};
use crate::{Bus, Eal, EalConfig, Mempool, MempoolConfig, Port, PortConfig, RxQueue, TxQueue};

/// More than a thread needs to do what it does next.
const SETTLE: Duration = Duration::from_millis(200);

/// A memif server's socket in the hands of the test, which sends nothing by itself.
struct SilentServer {
    /// Name in the abstract namespace.
    name: String,
    listener: OwnedFd,
}

impl SilentServer {
    fn new(number: u32) -> Self {
        let name = format!("fw-test-{}-{number}", std::process::id());
        let mut address = libc::sockaddr_un {
            sun_family: libc::sa_family_t::try_from(libc::AF_UNIX).unwrap(),
            sun_path: [0; 108],
        };
        for (slot, byte) in address.sun_path[1..].iter_mut().zip(name.bytes()) {
            *slot = libc::c_char::try_from(byte).unwrap();
        }
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: creates a descriptor.
        let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
        assert!(fd >= 0);
        // SAFETY: created above, and nobody else owns it.
        let listener = unsafe { OwnedFd::from_raw_fd(fd) };
        let len = size_of::<libc::sa_family_t>() + 1 + name.len();
        let len = libc::socklen_t::try_from(len).unwrap();
        // SAFETY: an address with its length.
        assert_eq!(unsafe { libc::bind(fd, (&raw const address).cast(), len) }, 0);
        // SAFETY: a socket of this function.
        assert_eq!(unsafe { libc::listen(fd, 1) }, 0);
        Self { name, listener }
    }

    fn accept(&self) -> OwnedFd {
        let none = core::ptr::null_mut();
        let listener = self.listener.as_raw_fd();
        // SAFETY: a listening socket; the address is not asked for.
        let fd = unsafe { libc::accept4(listener, none, none.cast(), libc::SOCK_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: created above, and nobody else owns it.
        unsafe { OwnedFd::from_raw_fd(fd) }
    }

    fn attach_client(&self, eal: Eal) -> Port {
        let arguments = format!("role=client,id=0,socket={},socket-abstract=yes", self.name);
        eal.hotplug_add(Bus::Virtual, &format!("net_memif_{}", self.name), &arguments).unwrap()
    }

    /// Opens a client port, whose control socket is connected when this returns.
    fn open_client(&self, eal: Eal) -> Vec<(RxQueue, TxQueue)> {
        let pool = MempoolConfig { count: 63, cache: 0, frame_capacity: 1600 };
        let config = PortConfig {
            rx_descriptors: 0,
            tx_descriptors: 0,
            tx_free_thresh: None,
            socket: None,
            pools: vec![Mempool::new(eal, &pool).unwrap()],
            wired: u16::MAX,
            mtu: None,
            promiscuous: false,
            offloads: crate::Offloads::NONE,
            rss: false,
            rx_interrupts: false,
        };
        self.attach_client(eal).start(&config).unwrap()
    }
}

/// A callback at which the interrupt thread waits.
struct Stop {
    reached: Sender<()>,
    go_on: Receiver<()>,
}

/// The other ends of a [`Stop`].
struct StopControl {
    reached: Receiver<()>,
    go_on: Sender<()>,
}

impl Stop {
    /// Never freed: EAL may refer to it for as long as it runs.
    fn leak() -> (*mut c_void, StopControl) {
        let ((reached, is_reached), (go_on, may_go_on)) = (channel(), channel());
        let stop = Box::new(Self { reached, go_on: may_go_on });
        (Box::into_raw(stop).cast(), StopControl { reached: is_reached, go_on })
    }
}

impl StopControl {
    fn wait_until_reached(&self) {
        self.reached.recv_timeout(Duration::from_secs(5)).expect("the interrupt thread is alive");
    }
}

extern "C" fn on_stop(stop: *mut c_void) {
    // SAFETY: a `Stop` that is never freed and used only here, in the interrupt thread.
    let stop = unsafe { &*stop.cast::<Stop>() };
    let _ = stop.reached.send(());
    // Returns when the test has ended.
    let _ = stop.go_on.recv();
}

/// The event of the closed port's control socket must not run the callback of another one that got
/// its number: the driver would receive from it, and the interrupt thread would block.
#[test]
fn port_is_closed_only_after_the_events_of_its_control_socket() {
    let eal = Eal::init(&EalConfig::default()).unwrap();
    let servers = [SilentServer::new(0), SilentServer::new(1)];
    drop(servers[0].attach_client(eal));
    let port = servers[0].open_client(eal);
    let peer = servers[0].accept();
    // A source whose callback the interrupt thread waits in, until several others are ready. Closed
    // only when it is no longer registered: EAL ends the process if it cannot wait for a source.
    let (mut bell, source) = UnixStream::pair().unwrap();
    let source = ManuallyDrop::new(source);
    let handle = Handle::new().unwrap();
    assert!(!handle.is_source(source.as_raw_fd()), "but now the descriptor is in the handle");
    let (stop, first) = Stop::leak();
    // SAFETY: a handle with a descriptor that stays open until it is unregistered; the function's
    // argument is a `Stop` that is never freed.
    let status = unsafe { sys::rte_intr_callback_register(handle.0.as_ptr(), Some(on_stop), stop) };
    assert_eq!(status, 0);
    assert!(handle.is_source(source.as_raw_fd()));
    bell.write_all(&[0]).unwrap();
    first.wait_until_reached();
    let (opened, is_opened) = channel();
    let other = &servers[1];
    thread::scope(|scope| {
        scope.spawn(move || {
            drop(port);
            opened.send(other.open_client(eal)).unwrap();
        });
        thread::sleep(SETTLE);
        // Now the alarm that closes the port is due. The next event is of its control socket.
        drop(peer);
        assert!(any_ready());
        let (stop, second) = Stop::leak();
        // SAFETY: EAL runs; the function's argument is a `Stop` that is never freed.
        assert_eq!(unsafe { sys::rte_eal_alarm_set(ALARM_DELAY_US, Some(on_stop), stop) }, 0);
        first.go_on.send(()).unwrap();
        // Due alarms run in the order in which they were set, so the port would be closed now.
        second.wait_until_reached();
        let early = is_opened.recv_timeout(SETTLE);
        second.go_on.send(()).unwrap();
        let _other_port = early.or_else(|_| is_opened.recv()).unwrap();
        // An event that comes after the control socket's.
        bell.write_all(&[0]).unwrap();
        first.wait_until_reached();
        first.go_on.send(()).unwrap();
    });
    let handle = handle.0.as_ptr();
    // The callback may still be in progress.
    // SAFETY: the handle, function and argument with which it was registered.
    while unsafe { sys::rte_intr_callback_unregister(handle, Some(on_stop), stop) } == -libc::EAGAIN
    {
        thread::yield_now();
    }
    drop(ManuallyDrop::into_inner(source));
}
