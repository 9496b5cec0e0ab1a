//! Threads that have driven a context once and are idle since.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ferrowarp::{Access, DriveMode, WcStatus};

use crate::support::*;

/// A program may poll from any of its threads, and each of them may keep mbufs in mempool caches of
/// its own. However many threads there are, enough mbufs are left for the one that polls now.
#[test]
fn idle_threads_do_not_exhaust_the_mempools() {
    isolate!();
    const THREADS: usize = 24;
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, _b) = connect(&left, &right);
    let source = left.mr(65_536, Access::LOCAL_READ);
    let remote = right.mr(65_536, Access::REMOTE_WRITE);
    // True if all Writes succeed.
    let transfer = || {
        for wr_id in 0..8 {
            if write(&a, wr_id, source.sge(0, 65_536), &remote, 0).is_err() {
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
                assert!(sent.is_ok(), "the main thread waits for the result");
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
    assert_eq!(good, THREADS, "thread {good} found too few mbufs: {counters:?}");
    for device in [counters.0.device, counters.1.device] {
        assert_eq!((device.control_drained, device.retransmit_drained), (0, 0));
    }
}
