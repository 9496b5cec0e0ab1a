//! Ports, queues, mempools and mbufs over a pair of `net_ring` ports: neither root nor hugepages
//! are needed.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{
    Bus, Eal, EalConfig, Error, Mbuf, Mempool, MempoolConfig, PortConfig, RetainedMbuf, RxQueue,
    TxMbuf, TxQueue, is_registered, ring_pair,
};

const CONFIG: MempoolConfig = MempoolConfig { count: 255, cache: 32, frame_capacity: 1600 };

/// Held by each test: they count the mbufs of mempools, which are reused when the last handle is
/// dropped.
static POOLS_LOCK: Mutex<()> = Mutex::new(());

fn lock_pools() -> (MutexGuard<'static, ()>, Eal) {
    let lock = POOLS_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    (lock, Eal::init(&EalConfig::default()).unwrap())
}

fn own_status(key: &str) -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    status.lines().find(|line| line.starts_with(key)).unwrap().to_owned()
}

#[test]
fn eal_init_keeps_the_callers_affinity_and_leaves_no_files() {
    let before = own_status("Cpus_allowed_list:");
    let (_lock, eal) = lock_pools();
    assert_eq!(own_status("Cpus_allowed_list:"), before);
    drop(pair(eal));
    let prefix = format!("ferrowarp-{}", std::process::id());
    for folder in ["/var/run/dpdk", "/tmp/dpdk"] {
        assert!(!std::path::Path::new(folder).join(&prefix).exists());
    }
}

#[test]
fn second_init_returns_the_running_eal_or_an_error() {
    let (_lock, _eal) = lock_pools();
    assert!(Eal::running().is_some());
    assert!(Eal::init(&EalConfig::default()).is_ok());
    let other = EalConfig { extra: vec!["--vdev=net_null0".into()], ..EalConfig::default() };
    assert_eq!(Eal::init(&other).unwrap_err(), Error::EalArgumentsDiffer);
}

#[test]
fn missing_and_failing_drivers_give_different_errors() {
    let (_lock, eal) = lock_pools();
    assert_eq!(eal.hotplug_add(Bus::Virtual, "net_nosuch0", "").unwrap_err(), Error::NoDriver);
    let failing = eal.hotplug_add(Bus::Virtual, "net_memif_t", "role=neither").unwrap_err();
    assert!(matches!(failing, Error::Hotplug(_)));
    assert_eq!(eal.next_port().unwrap_err(), Error::NoPort);
}

struct RingEnd {
    pool: Mempool,
    rx: RxQueue,
    tx: TxQueue,
}

fn pair(eal: Eal) -> [RingEnd; 2] {
    let (first, second) = ring_pair(eal, 1, 64).unwrap();
    [first, second].map(|port| {
        let pool = Mempool::new(eal, &CONFIG).unwrap();
        let config = PortConfig {
            rx_descriptors: 64,
            tx_descriptors: 64,
            tx_free_thresh: None,
            socket: None,
            pools: vec![pool.clone()],
            wired: u16::MAX,
            mtu: None,
            promiscuous: true,
            offloads: crate::Offloads::NONE,
            rss: false,
            rx_interrupts: false,
        };
        let (rx, tx) = port.start(&config).unwrap().remove(0);
        RingEnd { pool, rx, tx }
    })
}

fn frame(pool: &Mempool, fill: u8, len: usize) -> TxMbuf {
    let mut frames = Vec::new();
    assert!(pool.allocate(&mut frames, 1));
    let mut frame = frames.remove(0);
    frame.buf_mut()[..len].fill(fill);
    frame.set_len(len);
    frame
}

#[test]
fn queues_and_frames_move_between_threads() {
    fn movable<T: Send>() {}
    movable::<RxQueue>();
    movable::<TxQueue>();
    movable::<TxMbuf>();
    movable::<RetainedMbuf>();
    movable::<Mbuf>();
}

#[test]
fn frames_arrive_in_order_and_return_to_their_pool() {
    let (_lock, eal) = lock_pools();
    let [mut a, mut b] = pair(eal);
    let mut out: Vec<TxMbuf> =
        (0..40_u8).map(|fill| frame(&a.pool, fill, 60 + usize::from(fill))).collect();
    assert_eq!(a.pool.available(), 215);
    assert_eq!(a.tx.flush(&mut out), 40);
    assert!(out.is_empty());
    let mut got = Vec::new();
    while b.rx.burst(32, |frame| got.push(frame)) != 0 {}
    assert_eq!(got.len(), 40);
    for (fill, frame) in (0..).zip(&got) {
        assert_eq!(frame.len(), 60 + usize::from(fill));
        assert!(frame.head().iter().all(|&byte| byte == fill));
    }
    drop(got);
    assert_eq!(a.pool.available(), 255);
}

#[test]
fn full_ring_leaves_the_remaining_frames_in_order() {
    let (_lock, eal) = lock_pools();
    let [mut a, mut b] = pair(eal);
    let mut out: Vec<TxMbuf> = (0..100_u8).map(|fill| frame(&a.pool, fill, 60)).collect();
    assert_eq!(a.tx.flush(&mut out), 63, "a ring of 64 slots holds 63 frames");
    assert_eq!(out.len(), 37);
    assert_eq!(out[0].bytes()[0], 63);
    assert_eq!(b.rx.burst(5, drop), 5, "at most the requested burst");
    assert_eq!(a.tx.flush(&mut out), 5);
    let mut expected = 5;
    while b.rx.burst(32, |frame| {
        assert_eq!(frame.head()[0], expected);
        expected += 1;
    }) != 0
    {}
    assert_eq!(expected, 68);
    drop(out);
    assert_eq!(a.pool.available(), 255);
}

#[test]
fn frame_returns_to_its_pool_after_its_last_reference() {
    let (_lock, eal) = lock_pools();
    let [mut a, mut b] = pair(eal);
    let mut sent = frame(&a.pool, 7, 100);
    let kept = sent.retain();
    let again = kept.clone();
    assert_eq!(a.tx.flush(&mut vec![sent]), 1);
    assert_eq!(b.rx.burst(32, drop), 1);
    assert_eq!(a.pool.available(), 254);
    assert_eq!(kept.bytes(), [7; 100]);
    drop(kept);
    assert_eq!(a.pool.available(), 254);
    drop(again);
    assert_eq!(a.pool.available(), 255);
}

#[test]
fn receiver_may_hold_the_last_reference() {
    let (_lock, eal) = lock_pools();
    let [mut a, mut b] = pair(eal);
    let mut sent = frame(&a.pool, 9, 100);
    drop(sent.retain());
    let kept = sent.retain();
    assert_eq!(a.tx.flush(&mut vec![sent]), 1);
    let mut got = Vec::new();
    assert_eq!(b.rx.burst(32, |frame| got.push(frame)), 1);
    drop(kept);
    assert_eq!(a.pool.available(), 254);
    assert_eq!(got[0].head(), [9; 100]);
    got.clear();
    assert_eq!(a.pool.available(), 255);
}

#[test]
#[should_panic(expected = "a retained frame never changes")]
fn writing_a_retained_frame_panics() {
    let (_lock, eal) = lock_pools();
    let pool = Mempool::new(eal, &CONFIG).unwrap();
    let mut frame = frame(&pool, 1, 64);
    let _kept = frame.retain();
    frame.buf_mut()[0] = 2;
}

#[test]
fn refcnt_never_wraps() {
    let (_lock, eal) = lock_pools();
    let pool = Mempool::new(eal, &CONFIG).unwrap();
    let mut frame = frame(&pool, 1, 64);
    let kept = frame.retain();
    for further in [true, false] {
        // One reference for each value of the 16-bit count: if it wrapped, the frame would count as
        // exclusively owned again.
        let refused = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
            for _ in 0..=u16::MAX {
                core::mem::forget(if further { frame.retain() } else { kept.clone() });
            }
        }));
        assert!(refused.is_err(), "{further}");
    }
    let written = core::panic::AssertUnwindSafe(|| frame.buf_mut()[0] = 2);
    assert!(std::panic::catch_unwind(written).is_err(), "the frame still has other references");
    assert_eq!(kept.bytes(), [1; 64]);
}

#[test]
fn drained_pool_refuses_and_recovers() {
    let (_lock, eal) = lock_pools();
    let pool = Mempool::new(eal, &CONFIG).unwrap();
    let mut frames = Vec::new();
    while pool.allocate(&mut frames, 1) {}
    assert_eq!((frames.len(), pool.available(), pool.common_pool_count()), (255, 0, 0));
    frames.truncate(250);
    assert!(!pool.allocate(&mut frames, 6), "an allocation is all or nothing");
    assert_eq!(frames.len(), 250);
    drop(frames);
    assert_eq!(pool.available(), 255);
}

#[test]
fn frames_outlive_their_ports() {
    let (_lock, eal) = lock_pools();
    let [mut a, mut b] = pair(eal);
    let pool = a.pool.clone();
    let mut got = Vec::new();
    a.tx.flush(&mut (0..8).map(|fill| frame(&pool, fill, 60)).collect());
    assert_eq!(b.rx.burst(4, |frame| got.push(frame)), 4);
    drop(a);
    drop(b);
    assert_eq!(
        pool.available(),
        251,
        "frames in the ring were freed, frames held by the receiver were not"
    );
    assert_eq!(got[3].head()[0], 3);
    drop(got);
    assert_eq!(pool.available(), 255);
}

#[test]
fn ring_pairs_can_be_opened_repeatedly() {
    let (_lock, eal) = lock_pools();
    for _ in 0..100 {
        let [mut a, mut b] = pair(eal);
        a.tx.flush(&mut vec![frame(&a.pool, 1, 60)]);
        assert_eq!(b.rx.burst(32, drop), 1);
    }
}

#[test]
fn thread_exit_flushes_its_mempool_caches() {
    let (_lock, eal) = lock_pools();
    let pool = Mempool::new(eal, &CONFIG).unwrap();
    for _ in 0..300 {
        let pool = pool.clone();
        let worker = std::thread::spawn(move || {
            assert!(!is_registered());
            assert!(eal.register_current_thread());
            assert!(is_registered());
            let mut frames = Vec::new();
            assert!(pool.allocate(&mut frames, 64));
        });
        worker.join().unwrap();
    }
    // This thread has another cache: it gets all mbufs only if no exited thread's cache holds any.
    let mut frames = Vec::new();
    assert!(pool.allocate(&mut frames, 255));
}
