//! Bursts while they are quiesced, and on queues without a ring.

use core::sync::atomic::AtomicU32;
use std::time::Instant;

use super::*;
use crate::{Eal, EalConfig};

const LOG_WARNING: u32 = 5;

unsafe extern "C" {
    fn rte_log(level: u32, logtype: u32, format: *const libc::c_char, ...) -> libc::c_int;
}

/// Logs a line of the driver, as the driver does.
fn log_as_driver(level: u32) {
    let Some(Ok(hook)) = LOG_HOOK.get() else { panic!("the log is not hooked") };
    // SAFETY: EAL runs, the type is registered, and the format takes no arguments.
    unsafe { rte_log(level, hook.logtype, c"line\n".as_ptr()) };
}

#[test]
fn disconnection_because_of_rings_is_recognized() {
    let by = "memif_msg_receive_disconnect(): Disconnect received: ";
    for (reason, expected) in [("Invalid ring index\n", true), ("Device closed\n", false)] {
        assert_eq!(is_ring_refusal(format!("{by}{reason}").as_bytes()), expected, "{reason}");
    }
    assert!(!is_ring_refusal(b"memif_connect(): Wrong ring\n"));
}

#[test]
fn no_burst_runs_on_a_queue_without_a_ring() {
    static TESTED: Bursts = Bursts::new();
    let mut queue = TESTED.register_queue(Ring::Unconfigured);
    assert!(queue.try_lock().is_none() && queue.is_ring_absent() && !queue.has_ring());
    TESTED.resume();
    assert!(queue.try_lock().is_none() && queue.is_ring_absent());
    assert!(!queue.in_flight.is_set.load(Ordering::Relaxed));
}

#[test]
fn no_burst_runs_while_quiesced() {
    static TESTED: Bursts = Bursts::new();
    static IN_FLIGHT: AtomicU32 = AtomicU32::new(0);
    static PASSED: AtomicU32 = AtomicU32::new(0);
    static DONE: AtomicBool = AtomicBool::new(false);
    let mut seen = false;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut burst_lock = TESTED.register_queue(Ring::Unconditional);
                while !DONE.load(Ordering::Relaxed) {
                    let Some(_guard) = burst_lock.try_lock() else { continue };
                    IN_FLIGHT.fetch_add(1, Ordering::Relaxed);
                    PASSED.fetch_add(1, Ordering::Relaxed);
                    IN_FLIGHT.fetch_sub(1, Ordering::Relaxed);
                }
            });
        }
        let mut rounds = 0;
        while rounds < 5 {
            let before = PASSED.load(Ordering::Relaxed);
            while PASSED.load(Ordering::Relaxed) == before {
                std::thread::yield_now();
            }
            TESTED.quiesce();
            rounds += 1;
            let passed = PASSED.load(Ordering::Relaxed);
            let until = Instant::now() + Duration::from_millis(10);
            while Instant::now() < until {
                seen |= IN_FLIGHT.load(Ordering::Relaxed) != 0;
            }
            seen |= PASSED.load(Ordering::Relaxed) != passed;
            TESTED.resume();
        }
        DONE.store(true, Ordering::Relaxed);
    });
    assert!(!seen, "bursts begun or in flight");
}

#[test]
fn quiesce_waits_for_a_stuck_burst_and_others_go_on() {
    static TESTED: Bursts = Bursts::new();
    let (mut stuck, mut other) =
        (TESTED.register_queue(Ring::Unconditional), TESTED.register_queue(Ring::Unconditional));
    let guard = stuck.try_lock();
    assert!(guard.is_some());
    std::thread::scope(|scope| {
        let quiescing = scope.spawn(|| TESTED.quiesce());
        // Several times what a preempted burst is given.
        let (polls, interval) = QUIESCE_POLLS;
        let began = Instant::now();
        let mut others = 0;
        while began.elapsed() < 20 * polls * interval {
            assert!(!quiescing.is_finished(), "the rings would be unmapped under the burst");
            others += u32::from(other.try_lock().is_some());
            // Opening a port does not wait for the burst.
            drop(TESTED.register_queue(Ring::Unconfigured));
            std::thread::sleep(interval);
        }
        assert!(others > 0, "another port's bursts wait for the stuck one");
        drop(guard);
        quiescing.join().unwrap();
    });
    assert!(stuck.try_lock().is_none() && other.try_lock().is_none());
    TESTED.resume();
    assert!(stuck.try_lock().is_some() && other.try_lock().is_some());
    drop(stuck);
    let began = Instant::now();
    TESTED.quiesce();
    let (polls, interval) = QUIESCE_POLLS;
    assert!(began.elapsed() < polls * interval, "a removed queue delays no burst");
}

/// The driver also logs in bursts (`Failed to send interrupt`), while its interrupt thread is in
/// the hook for a line of its own, and waits for the burst.
#[test]
fn burst_that_logs_does_not_wait_for_the_interrupt_thread() {
    static HANDLED: AtomicBool = AtomicBool::new(false);
    extern "C" fn on_event(_: *mut c_void) {
        log_as_driver(sys::RTE_LOG_DEBUG);
        HANDLED.store(true, Ordering::SeqCst);
    }
    Eal::init(&EalConfig::default()).unwrap();
    hook_log().unwrap();
    let mut queue = burst_lock(Ring::Unconditional);
    let observer = BurstLock::by_ring_state(Arc::clone(&queue.in_flight));
    let began = Instant::now();
    let burst = loop {
        if let Some(burst) = queue.try_lock() {
            break burst;
        }
        assert!(began.elapsed() < Duration::from_secs(10), "bursts are forbidden");
        std::thread::yield_now();
    };
    // SAFETY: EAL runs, and the function ignores its argument.
    let status = unsafe { sys::rte_eal_alarm_set(1, Some(on_event), core::ptr::null_mut()) };
    assert_eq!(status, 0);
    // The interrupt thread waits for this burst alone from then on.
    while observer.has_ring() {
        std::thread::yield_now();
    }
    let (logged, has_logged) = channel();
    std::thread::spawn(move || {
        log_as_driver(LOG_WARNING);
        logged.send(())
    });
    let outcome = has_logged.recv_timeout(Duration::from_secs(2));
    let handled_under_the_burst = HANDLED.load(Ordering::SeqCst);
    drop(burst);
    while !HANDLED.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    assert!(!handled_under_the_burst, "the rings would be unmapped under the burst");
    outcome.expect("the log's lock is free while the interrupt thread waits");
}
