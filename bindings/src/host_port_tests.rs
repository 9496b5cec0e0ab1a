//! A host program's part is played by calls of DPDK itself. Each test runs in a process of its own,
//! because others take every port that has no owner.

use super::*;
use crate::{Bus, EalConfig};

/// True in a process that runs only this test; otherwise runs it in one, and returns false.
fn isolated(name: &str) -> bool {
    const CHILD: &str = "FERROWARP_TEST_HOST_PORT";
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let name = format!("host_port::tests::{name}");
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{errors}");
    false
}

/// Queue pairs of the host program's port.
const QUEUES: u16 = 3;

/// A `net_null` port of the host program.
struct NullPort {
    id: u16,
    name: String,
}

fn eal() -> Eal {
    Eal::init(&EalConfig::default()).unwrap()
}

/// Creates a mempool of the host program.
fn create_pool(name: &str, data_room: u16) {
    let name = CString::new(name).unwrap();
    // SAFETY: EAL runs, and the name is copied.
    let pool = unsafe {
        sys::rte_pktmbuf_pool_create(name.as_ptr(), 255, 16, 0, data_room, sys::SOCKET_ID_ANY)
    };
    assert!(!pool.is_null());
}

fn lookup(name: &str) -> *mut sys::rte_mempool {
    let name = CString::new(name).unwrap();
    // SAFETY: EAL runs, and a string that lives through the call.
    unsafe { sys::rte_mempool_lookup(name.as_ptr()) }
}

impl NullPort {
    /// Attaches the port, and configures it with queues over this mempool.
    fn configured(name: &str, pool: &str) -> Self {
        let device = CString::new(name).unwrap();
        let bus = Bus::Virtual.name().as_ptr();
        // SAFETY: EAL runs, and three strings that live through the call.
        let status = unsafe { sys::rte_eal_hotplug_add(bus, device.as_ptr(), c"".as_ptr()) };
        assert_eq!(status, 0);
        let id = port_id_by_name(&device).unwrap();
        let conf = sys::rte_eth_conf::default();
        // SAFETY: an attached port of the test's own, and a configuration, which is copied.
        let status = unsafe { sys::rte_eth_dev_configure(id, QUEUES, QUEUES, &raw const conf) };
        assert_eq!(status, 0);
        for queue in 0..QUEUES {
            let (none, pool) = (core::ptr::null(), lookup(pool));
            // SAFETY: a configured port, one of its queues, and a pool that is never freed.
            let status = unsafe { sys::rte_eth_rx_queue_setup(id, queue, 64, 0, none, pool) };
            assert_eq!(status, 0);
            let none = core::ptr::null();
            // SAFETY: as above.
            let status = unsafe { sys::rte_eth_tx_queue_setup(id, queue, 64, 0, none) };
            assert_eq!(status, 0);
        }
        Self { id, name: name.to_owned() }
    }

    fn start(&self) {
        // SAFETY: the port of the test, with all queues set up.
        assert_eq!(unsafe { sys::rte_eth_dev_start(self.id) }, 0);
    }

    fn is_started(&self) -> bool {
        // SAFETY: an attached port.
        unsafe { sys::fw_port_is_started(self.id) != 0 }
    }

    fn borrow(&self, queues: Range<u16>) -> Result<HostPort, Error> {
        eal().borrow_queues(&self.name, queues)
    }
}

impl Drop for NullPort {
    fn drop(&mut self) {
        let device = CString::new(&*self.name).unwrap();
        // SAFETY: the port of the test, whose queues are not in use.
        unsafe { crate::memif_disconnect::stop_and_close(self.id, self.is_started()) };
        // SAFETY: the name it was attached with; the port is closed.
        unsafe { sys::rte_eal_hotplug_remove(Bus::Virtual.name().as_ptr(), device.as_ptr()) };
    }
}

#[test]
fn queues_are_borrowed_once_and_given_back() {
    if !isolated("queues_are_borrowed_once_and_given_back") {
        return;
    }
    eal();
    create_pool("host_borrowed", 2176);
    let host = NullPort::configured("net_null_borrowed", "host_borrowed");
    assert!(!host.is_started());
    assert_eq!(host.borrow(1..2).unwrap_err(), Error::PortNotStarted);
    host.start();
    assert!(host.is_started());
    let first = host.borrow(0..2).unwrap();
    let third = eal().borrow_queues(&host.id.to_string(), 2..3).unwrap();
    assert_eq!(host.borrow(1..3).unwrap_err(), Error::QueueInUse { queue: 1 });
    assert_eq!(eal().own_port(&host.name).unwrap_err(), Error::NoPort);
    assert_eq!(host.borrow(3..4).unwrap_err(), Error::NoQueue { queue: 3, count: QUEUES });
    assert_eq!(host.borrow(9999..10_000).unwrap_err(), Error::NoQueue { queue: 9999, count: 3 });

    let pool = Mempool::of_host(eal(), "host_borrowed").unwrap();
    let queues = first.into_queues(&pool).unwrap();
    assert_eq!(queues.iter().map(|(rx, _)| rx.index()).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(host.borrow(1..2).unwrap_err(), Error::QueueInUse { queue: 1 });
    drop((queues, third));
    assert!(host.is_started(), "the port is not the borrower's");
    drop(host.borrow(0..3).unwrap());
    // Without a borrower, another part of the process may own it as a whole.
    let owned = eal().own_port(&host.name).unwrap();
    assert_eq!(host.borrow(0..1).unwrap_err(), Error::PortInUse);
    drop(owned);
    assert_eq!(eal().borrow_queues("net_null_absent", 0..1).unwrap_err(), Error::NoPort);
    assert_eq!(eal().borrow_queues("31", 0..1).unwrap_err(), Error::NoPort);
    assert_eq!(eal().borrow_queues("99999", 0..1).unwrap_err(), Error::NoPort);
    assert_eq!(eal().borrow_queues("a\0b", 0..1).unwrap_err(), Error::BadName);
}

/// Frames are sent and received, and all mbufs are in their pool afterwards.
#[test]
fn bursts_of_borrowed_queues_use_the_programs_mempool() {
    if !isolated("bursts_of_borrowed_queues_use_the_programs_mempool") {
        return;
    }
    eal();
    create_pool("host_bursts", 2176);
    let host = NullPort::configured("net_null_bursts", "host_bursts");
    host.start();
    let pool = Mempool::of_host(eal(), "host_bursts").unwrap();
    assert_eq!(pool.config(), &MempoolConfig { count: 255, cache: 16, frame_capacity: 2048 });
    let mut queues = host.borrow(1..2).unwrap().into_queues(&pool).unwrap();
    let (rx, tx) = &mut queues[0];
    let mut frames = Vec::new();
    assert!(pool.allocate(&mut frames, 8));
    frames.iter_mut().for_each(|frame| frame.set_len(60));
    assert_eq!(pool.available(), 255 - 8);
    assert_eq!(tx.flush(&mut frames), 8);
    assert_eq!(rx.burst(8, drop), 8);
    drop(queues);
    let raw = pool.raw();
    drop(pool);
    // SAFETY: the pool is never freed.
    assert_eq!(unsafe { sys::rte_mempool_avail_count(raw) }, 255);
    assert!(host.is_started());
}

#[test]
fn mempool_of_the_program_is_used_as_it_is() {
    if !isolated("mempool_of_the_program_is_used_as_it_is") {
        return;
    }
    eal();
    create_pool("host_pool", 128 + 1000);
    let config = MempoolConfig { count: 255, cache: 16, frame_capacity: 1000 };
    let of_host = || Mempool::of_host(eal(), "host_pool").unwrap();
    let (first, second) = (of_host(), of_host());
    drop(first);
    // Never handed to those who ask for a pool of this shape, not even when nobody uses it.
    assert!(!core::ptr::eq(Mempool::new(eal(), &config).unwrap().raw(), second.raw()));
    drop(second);
    assert!(!core::ptr::eq(Mempool::new(eal(), &config).unwrap().raw(), of_host().raw()));
    assert_eq!(Mempool::of_host(eal(), "host_absent").unwrap_err(), Error::NoPool);
}

/// Mbufs in a thread's cache of the program's mempool are not lost with the thread, nor when the
/// pool is no longer used here.
#[test]
fn thread_caches_of_the_programs_mempool_are_flushed() {
    if !isolated("thread_caches_of_the_programs_mempool_are_flushed") {
        return;
    }
    eal();
    create_pool("host_caches", 2176);
    let raw = lookup("host_caches");
    // SAFETY: the pool is never freed.
    let free = move || unsafe { sys::fw_mempool_ops_get_count(raw) };
    let pool = Mempool::of_host(eal(), "host_caches").unwrap();
    let use_cache = |pool: &Mempool| {
        let mut frames = Vec::new();
        assert!(pool.allocate(&mut frames, 8));
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            assert!(eal().register_current_thread());
            use_cache(&pool);
        });
        // Waits for the end of the thread, and not only of this function.
        thread.join().unwrap();
    });
    assert_eq!(free(), 255, "flushed at the end of the thread");
    let _registered = eal().register_thread().unwrap();
    use_cache(&pool);
    assert!(free() < 255);
    drop(pool);
    assert_eq!(free(), 255, "flushed with the last handle");
}
