//! A host program in Rust: it starts EAL, creates mempools, and owns two `net_ring` ports that are
//! connected to each other, with traffic of its own on the first queue pair. It calls DPDK itself.

use std::ffi::{CStr, CString, c_char};
use std::ptr::{null, null_mut};

use dpdk_sys::sys;

/// Length of the program's own frames, in bytes.
const FRAME_LEN: u16 = 60;

/// Starts EAL in this process, with ordinary memory.
pub(crate) fn start_eal() {
    let prefix = format!("--file-prefix=host-{}", std::process::id());
    let arguments = [
        "host",
        "--no-huge",
        "-m",
        "192",
        "--no-shconf",
        "--no-telemetry",
        "--no-pci",
        "--iova-mode=va",
        "--log-level=critical",
        "--lcores=0@0",
        &prefix,
    ];
    let mut arguments: Vec<*mut c_char> =
        arguments.iter().map(|text| CString::new(*text).unwrap().into_raw()).collect();
    let count = i32::try_from(arguments.len()).unwrap();
    arguments.push(null_mut());
    // SAFETY: `count` strings and NULL, leaked; called once in a process of the test's own.
    let status = unsafe { sys::rte_eal_init(count, Vec::leak(arguments).as_mut_ptr()) };
    assert!(status >= 0, "the program starts EAL");
    // SAFETY: EAL runs.
    let folder = unsafe { sys::rte_eal_get_runtime_dir() };
    // SAFETY: a string that EAL keeps.
    let folder = unsafe { CStr::from_ptr(folder) };
    // DPDK does not remove it. It is empty without shared configuration.
    let _ = std::fs::remove_dir(folder.to_str().unwrap());
}

/// A mempool of the program. It is never freed.
#[derive(Clone, Copy)]
pub(crate) struct HostPool {
    raw: *mut sys::rte_mempool,
    count: u32,
}

impl HostPool {
    pub(crate) fn create(name: &str, count: u32, cache: u32, data_room: u16) -> Self {
        let name = CString::new(name).unwrap();
        // SAFETY: EAL runs, and the name is copied.
        let raw = unsafe {
            sys::rte_pktmbuf_pool_create(
                name.as_ptr(),
                count,
                cache,
                0,
                data_room,
                sys::SOCKET_ID_ANY,
            )
        };
        assert!(!raw.is_null(), "the program has memory for a mempool");
        Self { raw, count }
    }

    /// True if all mbufs are in the pool.
    pub(crate) fn is_complete(&self) -> bool {
        // SAFETY: the pool is never freed.
        unsafe { sys::rte_mempool_avail_count(self.raw) == self.count }
    }
}

/// A port of the program.
pub(crate) struct HostRingPort {
    pub(crate) id: u16,
    pub(crate) name: String,
    pool: HostPool,
    queues: u16,
    sent: u32,
    received: u32,
}

/// Returns two ports, connected to each other, configured with `queues` queue pairs and not
/// started. `pool` is for the program's own traffic.
pub(crate) fn ring_ports(queues: u16, pool: HostPool) -> [HostRingPort; 2] {
    let rings = |way: &str| -> Vec<*mut sys::rte_ring> {
        let ring = |queue| {
            let name = CString::new(format!("host_{way}_{queue}")).unwrap();
            let flags = sys::RING_F_SP_ENQ | sys::RING_F_SC_DEQ;
            // SAFETY: EAL runs, and the name is copied.
            let ring =
                unsafe { sys::rte_ring_create(name.as_ptr(), 256, sys::SOCKET_ID_ANY, flags) };
            assert!(!ring.is_null());
            ring
        };
        (0..queues).map(ring).collect()
    };
    let (forth, back) = (rings("forth"), rings("back"));
    [("host_left", &back, &forth), ("host_right", &forth, &back)].map(|(name, rx, tx)| {
        let label = CString::new(name).unwrap();
        let (rx, tx, count) = (rx.as_ptr(), tx.as_ptr(), u32::from(queues));
        // SAFETY: arrays of live rings with their lengths; the rings are never freed.
        let id = unsafe { sys::rte_eth_from_rings(label.as_ptr(), rx, count, tx, count, 0) };
        let id = u16::try_from(id).unwrap();
        let conf = sys::rte_eth_conf::default();
        // SAFETY: a port of the program's own, and a configuration, which is copied.
        assert_eq!(unsafe { sys::rte_eth_dev_configure(id, queues, queues, &raw const conf) }, 0);
        for queue in 0..queues {
            // SAFETY: a configured port, one of its queues, and a pool that is never freed.
            let rx = unsafe { sys::rte_eth_rx_queue_setup(id, queue, 64, 0, null(), pool.raw) };
            // SAFETY: as above.
            let tx = unsafe { sys::rte_eth_tx_queue_setup(id, queue, 64, 0, null()) };
            assert_eq!((rx, tx), (0, 0));
        }
        let name = format!("net_ring_{name}");
        HostRingPort { id, name, pool, queues, sent: 0, received: 0 }
    })
}

impl HostRingPort {
    pub(crate) fn start(&self) {
        // SAFETY: the program's port, with all queues set up.
        assert_eq!(unsafe { sys::rte_eth_dev_start(self.id) }, 0);
    }

    /// True if a hundred more frames of the program's own reach the other port, and none was lost
    /// before.
    pub(crate) fn carries_frames_to(&mut self, other: &mut Self) -> bool {
        let before = other.received;
        (0..100).for_each(|_| self.exchange(other));
        other.received - before == 100 && self.sent == other.received
    }

    /// Sends one numbered frame on the first queue pair, and receives it at the other end.
    pub(crate) fn exchange(&mut self, other: &mut Self) {
        let mut frame = null_mut();
        // SAFETY: a pool of the program, and space for one pointer.
        assert_eq!(unsafe { sys::fw_mbuf_alloc_bulk(self.pool.raw, &raw mut frame, 1) }, 0);
        let field = |offset: u32| frame.wrapping_byte_add(offset as usize);
        // SAFETY: a field of a live mbuf that nobody else refers to.
        unsafe { field(sys::FW_MBUF_DATA_LEN).cast::<u16>().write(FRAME_LEN) };
        // SAFETY: as above.
        unsafe { field(sys::FW_MBUF_PKT_LEN).cast::<u32>().write(FRAME_LEN.into()) };
        let number = self.sent.to_be_bytes();
        // SAFETY: as above; returns where its data begins.
        let data = unsafe { sys::fw_mtod(frame) }.cast::<[u8; 4]>();
        // SAFETY: the buffer has more than four bytes, and bytes are aligned.
        unsafe { data.write(number) };
        // SAFETY: a started port, its first queue, which only the program uses, and one mbuf.
        assert_eq!(unsafe { sys::fw_tx_burst(self.id, 0, &raw mut frame, 1) }, 1);
        self.sent += 1;

        let mut found = null_mut();
        // SAFETY: as above, and space for one pointer.
        assert_eq!(unsafe { sys::fw_rx_burst(other.id, 0, &raw mut found, 1) }, 1);
        // SAFETY: the frame was received.
        let data = unsafe { sys::fw_mtod(found) }.cast::<[u8; 4]>();
        // SAFETY: as for writing.
        assert_eq!(unsafe { data.read() }, number);
        // SAFETY: received, and used by nobody else.
        unsafe { sys::fw_mbuf_free(found) };
        other.received += 1;
    }

    /// Receives on all queues but the first what is left there.
    pub(crate) fn drain(&self) {
        for queue in 1..self.queues {
            let mut frame = null_mut();
            // SAFETY: a started port whose queue the stack has given back; space for one pointer.
            while unsafe { sys::fw_rx_burst(self.id, queue, &raw mut frame, 1) } == 1 {
                // SAFETY: received, and used by nobody else.
                unsafe { sys::fw_mbuf_free(frame) };
            }
        }
    }

    /// Stops and closes the port.
    pub(crate) fn close(self) {
        // SAFETY: the program's port, whose queues nobody uses.
        assert_eq!(unsafe { sys::rte_eth_dev_stop(self.id) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { sys::rte_eth_dev_close(self.id) }, 0);
    }
}
