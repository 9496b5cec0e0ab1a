//! Contexts driven by dedicated threads, by helpers, or by several threads of the application.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use ferrowarp::{Access, DriveMode, Wc, WcStatus};

use crate::support::*;

/// `rounds` Sends each way; each side posts and polls from a thread of its own.
fn ping_pong(left: &Endpoint, right: &Endpoint, rounds: u64) {
    let (a, b) = connect(left, right);
    let posted = &Barrier::new(2);
    std::thread::scope(|scope| {
        for (end, qp, starts) in [(left, &a, true), (right, &b, false)] {
            scope.spawn(move || {
                let recv_mr = end.mr(64, Access::LOCAL_WRITE);
                qp.post_recv(0, recv_mr.sge(0, 64)).unwrap();
                // Neither side sends before both have posted their receives.
                posted.wait();
                if starts {
                    send(qp, 1, &0_u64.to_le_bytes()).unwrap();
                }
                let mut progress = Instant::now();
                // The side that sends last waits for the completion of that Send.
                let (mut wcs, mut seen, mut sent) = ([Wc::default(); 16], 0, 0);
                while seen < rounds || sent < rounds {
                    assert!(progress.elapsed() < TIMEOUT, "stuck after {seen} messages");
                    let found = end.cq.poll(&mut wcs);
                    if found.is_empty() {
                        std::thread::yield_now();
                    }
                    for wc in found {
                        progress = Instant::now();
                        assert_eq!(wc.status, WcStatus::Success);
                        if wc.wr_id != 0 {
                            sent += 1;
                            continue;
                        }
                        let mut bytes = [0; 8];
                        recv_mr.read(0, &mut bytes);
                        assert_eq!(u64::from_le_bytes(bytes), seen);
                        qp.post_recv(0, recv_mr.sge(0, 64)).unwrap();
                        let next = if starts { seen + 1 } else { seen };
                        seen += 1;
                        if !starts || seen < rounds {
                            send(qp, 1, &next.to_le_bytes()).unwrap();
                        }
                    }
                }
            });
        }
    });
}

#[test]
fn ping_pong_inline_from_two_threads() {
    let (left, right) = endpoints(DriveMode::Inline);
    ping_pong(&left, &right, 2_000);
}

#[test]
fn ping_pong_with_dedicated_threads() {
    let (left, right) = endpoints(DriveMode::Dedicated);
    // Few rounds: with more spinning threads than cores each message waits for the scheduler.
    ping_pong(&left, &right, 100);
}

#[test]
fn pinning_to_a_missing_core_is_not_fatal() {
    let mut configs = [1, 2].map(|host| config(host, DriveMode::Dedicated));
    (configs[0].cores, configs[1].cores) = (vec![1_000], vec![usize::MAX]);
    let [left, right] = configs;
    let (left, right) = ring_pair(left, right).unwrap();
    ping_pong(&Endpoint::new(left), &Endpoint::new(right), 10);
}

#[test]
fn ping_pong_with_helpers() {
    let (left, right) = endpoints(DriveMode::Helper);
    ping_pong(&left, &right, 500);
}

#[test]
fn ping_pong_with_hot_helpers() {
    let (left, right) = endpoints(DriveMode::Hot);
    ping_pong(&left, &right, 500);
}

#[test]
fn auto_stands_for_a_helper() {
    let (left, right) = endpoints(DriveMode::Auto);
    let mode = left.context.drive_mode();
    assert!(matches!(mode, DriveMode::Hot | DriveMode::Helper), "{mode:?}");
    ping_pong(&left, &right, 100);
}

#[test]
fn helper_makes_progress_without_application_polls() {
    progress_without_application_polls(DriveMode::Helper);
}

#[test]
fn hot_helper_makes_progress_without_application_polls() {
    progress_without_application_polls(DriveMode::Hot);
}

fn progress_without_application_polls(drive: DriveMode) {
    let (left, right) = endpoints_driven(DriveMode::Inline, drive);
    let (a, _b) = connect(&left, &right);
    let source = left.mr(4096, Access::LOCAL_READ);
    let remote = right.mr(4096, Access::REMOTE_WRITE | Access::REMOTE_READ);
    // The application of the right end sleeps; its helper places, responds and acknowledges.
    for round in 0..50_u8 {
        source.fill(0, 4096, round);
        write(&a, 1, source.sge(0, 4096), &remote, 0).unwrap();
        let sink = left.mr(4096, Access::LOCAL_WRITE);
        read(&a, 2, sink.sge(0, 4096), &remote, 0).unwrap();
        let mut wcs = Vec::new();
        let start = Instant::now();
        while wcs.len() < 2 {
            left.cq.poll_with(32, |wc| wcs.push(wc));
            assert!(start.elapsed() < TIMEOUT, "{:?}", right.context.counters());
        }
        assert_eq!(contents(&sink), [round; 4096]);
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn helper_transmits_posted_work_without_polls() {
    let (left, right) = endpoints(DriveMode::Helper);
    let (a, _b) = connect(&left, &right);
    let source = left.mr(64, Access::LOCAL_READ);
    let remote = right.mr(64, Access::REMOTE_WRITE);
    for round in 1..=20 {
        // Both helpers sleep by now.
        std::thread::sleep(Duration::from_millis(5));
        source.fill(0, 64, round);
        write(&a, 1, source.sge(0, 64), &remote, 0).unwrap();
        let start = Instant::now();
        while remote.load_last(63) != round {
            std::thread::yield_now();
            assert!(start.elapsed() < TIMEOUT, "round {round} never arrived");
        }
    }
}

#[test]
fn register_and_deregister_during_traffic() {
    let (left, right) = endpoints_driven(DriveMode::Inline, DriveMode::Dedicated);
    let (a, _b) = connect(&left, &right);
    let source = left.mr(65_536, Access::LOCAL_READ);
    let remote = right.mr(65_536, Access::REMOTE_WRITE);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0_u8;
            while !stop.load(Ordering::Relaxed) {
                round = round.wrapping_add(1);
                let region = right.mr(8192, Access::ALL);
                region.fill(0, 8192, round);
                assert_eq!(contents(&region), [round; 8192]);
                std::thread::yield_now();
            }
        });
        let mut wcs = [Wc::default(); 64];
        for wr_id in 0..2_000 {
            while write(&a, wr_id, source.sge(0, 65_536), &remote, 0).is_err() {
                let found = left.cq.poll(&mut wcs);
                assert!(found.iter().all(|wc| wc.status == WcStatus::Success));
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn threads_share_one_qp_and_one_cq() {
    const THREADS: u64 = 4;
    const EACH: u64 = 500;
    let (left, right) = endpoints(DriveMode::Helper);
    let (a, _b) = connect(&left, &right);
    let remote = right.mr(4096, Access::REMOTE_WRITE);
    let source = left.mr(4096, Access::LOCAL_READ);
    let mut done = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (a, source, remote, left) = (&a, &source, &remote, &left);
                scope.spawn(move || {
                    let (mut wcs, mut next) = (Vec::new(), 0);
                    while next < EACH {
                        let wr_id = thread * EACH + next;
                        if write(a, wr_id, source.sge(0, 512), remote, 0).is_ok() {
                            next += 1;
                        } else {
                            left.cq.poll_with(32, |wc| wcs.push(wc));
                            std::thread::yield_now();
                        }
                    }
                    wcs
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    let total = usize::try_from(THREADS * EACH).unwrap();
    let left_over = total - done.len();
    done.extend(left.completions(&right, left_over));
    let mut ids: Vec<u64> = done.iter().map(|wc| wc.wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..THREADS * EACH).collect::<Vec<_>>());
    assert!(done.iter().all(|wc| wc.status == WcStatus::Success));
}

/// The CRC covers the bytes that are sent, so a peer may read a region while the application
/// writes to it.
#[test]
fn rewriting_a_region_during_reads_causes_no_crc_error() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, _b) = connect(&left, &right);
    let source = right.mr(65_536, Access::REMOTE_READ);
    let sink = left.mr(65_536, Access::LOCAL_WRITE);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0_u8;
            while !stop.load(Ordering::Relaxed) {
                round = round.wrapping_add(1);
                source.fill(0, 65_536, round);
            }
        });
        for wr_id in 0..300 {
            read(&a, wr_id, sink.sge(0, 65_536), &source, 0).unwrap();
            let wc = left.completions(&right, 1)[0];
            assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(left.context.counters().engine.crc_errors, 0);
}

/// Programs may spin on the last byte of a message instead of polling for a completion.
#[test]
fn last_byte_of_a_write_is_visible_last() {
    const LEN: usize = 1_000;
    let (left, right) = endpoints_driven(DriveMode::Inline, DriveMode::Dedicated);
    let (a, _b) = connect(&left, &right);
    let source = left.mr(LEN, Access::LOCAL_READ);
    let remote = right.mr(LEN, Access::REMOTE_WRITE);
    let seen = AtomicU8::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=200 {
                while remote.load_last(LEN - 1) != round {
                    std::thread::yield_now();
                }
                assert_eq!(contents(&remote), [round; LEN]);
                seen.store(round, Ordering::Release);
            }
        });
        for round in 1..=200 {
            let start = Instant::now();
            source.fill(0, LEN, round);
            let length = u32::try_from(LEN).unwrap();
            write(&a, 1, source.sge(0, length), &remote, 0).unwrap();
            while seen.load(Ordering::Acquire) != round {
                left.cq.poll_with(32, |_| ());
                std::thread::yield_now();
                assert!(start.elapsed() < TIMEOUT, "stuck in round {round}");
            }
        }
    });
}

/// CPU time of this thread, if the kernel tells it.
fn thread_cpu_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(Duration::from_nanos(text.split(' ').next()?.parse().ok()?))
}

#[test]
fn cq_wait_returns_completions_and_sleeps_when_there_are_none() {
    for drive in [DriveMode::Dedicated, DriveMode::Helper, DriveMode::Hot, DriveMode::Inline] {
        let (left, right) = endpoints(drive);
        let (a, b) = connect(&left, &right);
        let recv_mr = right.mr(64, Access::LOCAL_WRITE);
        let mut wcs = [Wc::default(); 4];
        for wr_id in 0..3 {
            b.post_recv(wr_id, recv_mr.sge(0, 64)).unwrap();
            send(&a, wr_id, b"hello").unwrap();
            let found = right.cq.wait(&mut wcs, TIMEOUT);
            assert_eq!(found.len(), 1, "{drive:?}");
            assert_eq!((found[0].wr_id, found[0].status), (wr_id, WcStatus::Success));
        }
        let idle = Duration::from_millis(400);
        let (start, used) = (Instant::now(), thread_cpu_time());
        assert_eq!(right.cq.wait(&mut wcs, idle), []);
        assert!(start.elapsed() >= idle);
        if let (Some(before), Some(after)) = (used, thread_cpu_time()) {
            assert!(after - before < idle / 2, "{drive:?}: {:?}", after - before);
        }
        right.context.close();
        assert_eq!(right.cq.wait(&mut wcs, TIMEOUT), [], "a closed context keeps nobody waiting");
    }
}
