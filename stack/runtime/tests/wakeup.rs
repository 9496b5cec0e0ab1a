//! How soon a thread that sleeps goes on when something has come for it, and what the helpers cost
//! meanwhile. Figures of a busy machine say little: run with `--nocapture` on a quiet one to see
//! them, and with `FERROWARP_QUIET=1` to hold them to what is promised.

mod support;

use std::sync::mpsc;
use std::time::{Duration, Instant};

use ferrowarp::{Access, DriveMode, Notify, QpOptions};
use support::*;

/// Messages.
const COUNT: u64 = 300;
/// Promised on a quiet machine: from a packet or a post to the sleeper's return.
const P99: Duration = Duration::from_micros(100);

/// Times from just before a post until the receiver, asleep on its channel, goes on. The poster
/// does not drive; its own end is driven by a helper, or, if `drive` says so, by itself.
fn delays(drive: DriveMode) -> Vec<Duration> {
    let (left, right) = contexts_driven(drive, DriveMode::Helper);
    let (left, right) = (End::new(left), End::new(right));
    let channel = right.context.create_channel().unwrap();
    let cq = right.context.create_cq_on(&channel, 64).unwrap();
    let options = QpOptions { send_cq: &right.cq, recv_cq: &cq, max_send_wr: 1, max_recv_wr: 16 };
    let b = right.pd.create_qp(&right.context, &options).unwrap();
    let (a, b) = connect_qps(&right, left.qp(), b).0;
    let inbox = right.mr(64, Access::LOCAL_WRITE);
    b.post_recv(recv(0, inbox.sge(0, 64))).unwrap();
    let (woken, wakes) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let woken = woken;
            let mut found = Vec::new();
            for _ in 0..COUNT {
                cq.arm(Notify::Next).unwrap();
                while cq.poll(&mut found) == 0 {
                    assert!(channel.wait(PATIENCE).is_some(), "nobody wakes the sleeper");
                }
                woken.send(Instant::now()).unwrap();
                found.clear();
                b.post_recv(recv(0, inbox.sge(0, 64))).unwrap();
            }
        });
        let mut delays = Vec::new();
        for wr_id in 0..COUNT {
            // Long enough for everybody to be asleep; of different lengths, so that it is not
            // always the same moment of a nap.
            std::thread::sleep(Duration::from_micros(1_000 + wr_id * 7_919 % 1_500));
            let posted = Instant::now();
            a.post_send(send(wr_id, inline(b"x"))).unwrap();
            if drive == DriveMode::Inline {
                left.context.drive();
            }
            let woken = wakes.recv_timeout(PATIENCE).expect("the sleeper goes on");
            delays.push(woken.saturating_duration_since(posted));
            left.cq.poll(&mut Vec::new());
        }
        delays.sort_unstable();
        delays
    })
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
fn sleepers_are_woken_soon_and_naps_cost_little() {
    for (case, drive) in [("packet", DriveMode::Inline), ("post", DriveMode::Helper)] {
        let delays = delays(drive);
        let at = |percent: usize| delays[(delays.len() * percent / 100).min(delays.len() - 1)];
        let (median, p99) = (at(50), at(99));
        println!("{case} to wake-up: p50 {median:?}, p99 {p99:?}");
        assert!(median < Duration::from_millis(100), "{case}: p50 {median:?}");
        if std::env::var_os("FERROWARP_QUIET").is_some() {
            assert!(p99 <= P99, "{case}: p99 {p99:?}");
        }
    }
    // One helper at a time, nothing to do, with and without somebody who waits.
    for waits in [true, false] {
        let (_left, right) = contexts_driven(DriveMode::Inline, DriveMode::Helper);
        let channel = right.create_channel().unwrap();
        let cq = right.create_cq_on(&channel, 4).unwrap();
        if waits {
            cq.arm(Notify::Next).unwrap();
        }
        std::thread::sleep(Duration::from_millis(100));
        let (start, used) = (Instant::now(), helpers_time());
        std::thread::sleep(Duration::from_millis(500));
        let share = (helpers_time() - used).as_secs_f64() / start.elapsed().as_secs_f64();
        println!("idle helper, somebody waits: {waits}: {:.1} % of a core", share * 100.0);
        assert!(share < 0.5, "somebody waits: {waits}: {share}");
    }
}
