//! How soon a thread that sleeps goes on when something has come for it, and what the helpers cost
//! meanwhile. Figures of a busy machine say little: run with `--nocapture` on a quiet one to see
//! them, and with `FERROWARP_QUIET=1` to hold them to what is promised.

mod support;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use ferrowarp::{Access, DriveMode, Notify, QpOptions};
use support::*;

/// Messages.
const COUNT: u64 = 300;
/// Promised on a quiet machine, from a packet or a post to the sleeper's return. A virtual machine
/// that is quiet itself may be stopped by its host: twice the p90 and p99 of a bare flag will do as
/// well.
const P99: Duration = Duration::from_micros(100);

/// Times from just before a post until the receiver, asleep on its channel, goes on. The poster
/// does not drive; its own end is driven by a helper, or, if `drive` says so, by itself.
fn delays(drive: DriveMode) -> Vec<Duration> {
    let (left, right) = contexts_driven(drive, DriveMode::Helper);
    let (left, right) = (Endpoint::new(left), Endpoint::new(right));
    let channel = right.context.create_comp_channel().unwrap();
    let cq = right.context.create_cq_on(&channel, 64).unwrap();
    let options = QpOptions { send_cq: &right.cq, recv_cq: &cq, max_send_wr: 1, max_recv_wr: 16 };
    let b = right.pd.create_qp(&right.context, &options).unwrap();
    let (a, b) = connect_qps(&right, left.qp(), b).0;
    let recv_mr = right.mr(64, Access::LOCAL_WRITE);
    b.post_recv(recv(0, recv_mr.sge(0, 64))).unwrap();
    let (woken, wakes) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let woken = woken;
            let mut found = Vec::new();
            for _ in 0..COUNT {
                cq.req_notify(Notify::Next).unwrap();
                while cq.poll(&mut found) == 0 {
                    assert!(channel.wait(TIMEOUT).is_some(), "nobody wakes the sleeper");
                }
                let now = Instant::now();
                found.clear();
                // First: the poster may send again as soon as it knows.
                b.post_recv(recv(0, recv_mr.sge(0, 64))).unwrap();
                woken.send(now).unwrap();
            }
        });
        delays_of(|| {
            let posted = Instant::now();
            a.post_send(send(0, inline(b"x"))).unwrap();
            if drive == DriveMode::Inline {
                left.context.drive();
            }
            let woken = wakes.recv_timeout(TIMEOUT).expect("the sleeper goes on");
            left.cq.poll(&mut Vec::new());
            woken.saturating_duration_since(posted)
        })
    })
}

/// What this machine needs with nothing but a thread that naps for 20 us at a time, a flag that it
/// finds set, and a sleeper that it wakes then.
fn bare_delays() -> Vec<Duration> {
    let (set, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let (notify, sleeper) = mpsc::channel();
    let (woken, wakes) = mpsc::channel();
    std::thread::scope(|scope| {
        let _stop = OnDrop(|| stop.store(true, Ordering::Relaxed));
        scope.spawn(|| {
            let notify = notify;
            // Naps end no later than they must, as the helper's do.
            let task = std::fs::read_link("/proc/thread-self").unwrap();
            let id = task.file_name().unwrap().to_str().unwrap();
            let _ = std::fs::write(format!("/proc/{id}/timerslack_ns"), "1");
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_micros(20));
                if set.swap(false, Ordering::Relaxed) {
                    notify.send(()).unwrap();
                }
            }
        });
        scope.spawn(|| {
            let woken = woken;
            for () in sleeper {
                woken.send(Instant::now()).unwrap();
            }
        });
        delays_of(|| {
            let posted = Instant::now();
            set.store(true, Ordering::Relaxed);
            wakes.recv_timeout(TIMEOUT).expect("the sleeper goes on") - posted
        })
    })
}

/// Calls the function when dropped.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// The delays that `once` measures, each after a pause long enough for everybody to be asleep;
/// pauses differ, so that it is not always the same moment of a nap.
fn delays_of(mut once: impl FnMut() -> Duration) -> Vec<Duration> {
    let delay = |number: u64| {
        std::thread::sleep(Duration::from_micros(1_000 + number * 7_919 % 1_500));
        once()
    };
    let mut delays: Vec<_> = (0..COUNT).map(delay).collect();
    delays.sort_unstable();
    delays
}

/// Processor time that the helpers of this process have used.
fn helpers_time() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks
        .filter_map(|task| {
            let task = task.unwrap().path();
            let name = std::fs::read_to_string(task.join("comm")).ok()?;
            let times = std::fs::read_to_string(task.join("schedstat")).ok()?;
            let used = times.split(' ').next()?.parse().ok()?;
            // The system cuts names at 15 bytes.
            name.starts_with("ferrowarp-helpe").then(|| Duration::from_nanos(used))
        })
        .sum()
}

#[test]
fn wakeup_latency_and_idle_cpu_time_are_bounded() {
    let print = |case: &str, delays: &[Duration]| {
        let at = |percent: usize| delays[(delays.len() * percent / 100).min(delays.len() - 1)];
        println!("{case} to wake-up: p50 {:?}, p90 {:?}, p99 {:?}", at(50), at(90), at(99));
        (at(50), at(90), at(99))
    };
    let quiet = std::env::var_os("FERROWARP_QUIET").is_some();
    for (case, drive) in [("packet", DriveMode::Inline), ("post", DriveMode::Helper)] {
        let rounds = if quiet { 10 } else { 1 };
        let kept = (0..rounds).any(|_| {
            let (_, bare_p90, bare_p99) = print("bare flag", &bare_delays());
            let (median, p90, p99) = print(case, &delays(drive));
            assert!(median < Duration::from_millis(100), "{case}: p50 {median:?}");
            p99 <= P99 || (p90 <= bare_p90 * 2 && p99 <= bare_p99 * 2)
        });
        assert!(kept || !quiet, "{case}: too late in each of {rounds} rounds");
    }
    // One helper at a time with nothing to do.
    let shares = [
        (IdleWaiter::ArmedCq, Duration::from_millis(100), 0.75),
        (IdleWaiter::ArmedCq, Duration::from_secs(3), 0.2),
        (IdleWaiter::EventFd, Duration::from_millis(100), 0.75),
        (IdleWaiter::NoWaiter, Duration::from_millis(100), 0.2),
    ]
    .map(|(waits, after, max)| {
        let share = idle_share(waits, after);
        println!("idle helper, {waits:?}, after {after:?}: {:.1} % of a core", share * 100.0);
        // A nap costs more on a busy machine.
        let max = if quiet { max } else { max * 1.2 };
        assert!(share < max, "{waits:?} after {after:?}: {share}");
        share
    });
    assert!(!quiet || shares[2] > 2.0 * shares[3], "whoever has the descriptor may sleep on it");
}

/// Who waits while a helper has nothing to do.
#[derive(Clone, Copy, Debug)]
enum IdleWaiter {
    NoWaiter,
    ArmedCq,
    EventFd,
}

/// Share of a core that a helper uses over half a second, beginning so long after its context was
/// made.
fn idle_share(waits: IdleWaiter, after: Duration) -> f64 {
    let (_left, right) = contexts_driven(DriveMode::Inline, DriveMode::Helper);
    let channel = right.create_comp_channel().unwrap();
    let cq = right.create_cq_on(&channel, 4).unwrap();
    let events = right.event_channel().unwrap();
    match waits {
        IdleWaiter::NoWaiter => {}
        IdleWaiter::ArmedCq => cq.req_notify(Notify::Next).unwrap(),
        IdleWaiter::EventFd => drop(events.as_fd().try_clone_to_owned()),
    }
    std::thread::sleep(after);
    let (start, used) = (Instant::now(), helpers_time());
    std::thread::sleep(Duration::from_millis(500));
    (helpers_time() - used).as_secs_f64() / start.elapsed().as_secs_f64()
}
