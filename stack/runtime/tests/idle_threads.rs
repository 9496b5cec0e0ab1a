//! Threads that drove once and do something else now.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ferrowarp::{Access, DriveMode, WcStatus};
use support::*;

/// A program may poll from any of its threads. Each that ever did may keep frames in caches of its
/// own: however many they are, enough are left for the one that drives now.
#[test]
fn idle_threads_do_not_exhaust_the_mempools() {
    const THREADS: usize = 24;
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, _b) = connect(&left, &right);
    let source = left.mr(65_536, Access::LOCAL_READ);
    let remote = right.mr(65_536, Access::REMOTE_WRITE);
    // True if all is well.
    let transfer = || {
        for wr_id in 0..8 {
            if a.post_send(write(wr_id, source.sge(0, 65_536), &remote, 0)).is_err() {
                return false;
            }
        }
        let wcs = left.completions(&right, 8);
        drive_for(&left.context, &right.context, Duration::from_millis(1));
        wcs.iter().all(|wc| wc.status == WcStatus::Success)
    };
    let done = AtomicBool::new(false);
    let good = std::thread::scope(|scope| {
        let mut good = 0;
        while good < THREADS {
            let (tx, rx) = std::sync::mpsc::channel();
            let (transfer, done) = (&transfer, &done);
            scope.spawn(move || {
                let sent = tx.send(transfer());
                assert!(sent.is_ok(), "the other end waits for it");
                while !done.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            if rx.recv() != Ok(true) {
                break;
            }
            good += 1;
        }
        done.store(true, Ordering::Relaxed);
        good
    });
    let counters = (left.context.counters(), right.context.counters());
    assert_eq!(good, THREADS, "thread {good} found too few frames: {counters:?}");
    for device in [counters.0.device, counters.1.device] {
        assert_eq!((device.control_drained, device.retransmit_drained), (0, 0));
    }
}
