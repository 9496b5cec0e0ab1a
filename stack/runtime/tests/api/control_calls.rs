//! Control calls from four threads to a busy shard: requests for notification, counters,
//! registration, deregistration, binding, revocation, creation, connecting, closing, destruction.
//! Each outcome is checked. `FERROWARP_STRESS_SECONDS` (2) is the duration for each drive mode.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferrowarp::{
    Access, ConnEvent, Context, DriveMode, EndReason, Mr, Notify, Qp, QpState, RemoteAddr, Wc,
    WcOpcode, WcStatus,
};

use crate::support::*;

/// Bytes of a transfer.
const LEN: usize = 3000;
/// Transfers through a window before it is revoked.
const WRITES_PER_BIND: u8 = 3;

fn duration() -> Duration {
    let seconds = std::env::var("FERROWARP_STRESS_SECONDS").ok();
    Duration::from_secs(seconds.map_or(2, |text| text.parse().expect("a number of seconds")))
}

/// Objects of one thread: protection domains and completion queues of its own in both contexts, and
/// a port.
struct Worker {
    left: Endpoint,
    right: Endpoint,
    port: u16,
}

impl Worker {
    fn new(left: &Context, right: &Context, port: u16) -> Self {
        Self { left: Endpoint::new(left.clone()), right: Endpoint::new(right.clone()), port }
    }

    /// A connection from left to right.
    fn connect(&self) -> (Qp, Qp) {
        let (a, b) = (self.left.qp_with(16, 16), self.right.qp_with(16, 16));
        let listener = self.right.context.listen(self.port, 4).unwrap();
        a.connect(SocketAddr::new(address(2), self.port), param(b"")).unwrap();
        let request = listener.accept_timeout(TIMEOUT).expect("a request");
        request.accept(&b, param(b"")).unwrap();
        a.wait_established(TIMEOUT).unwrap();
        b.wait_established(TIMEOUT).unwrap();
        (a, b)
    }
}

/// The next completion of an end.
fn next_completion(end: &Endpoint) -> Wc {
    let (start, mut wcs) = (Instant::now(), [Wc::default()]);
    while end.cq.poll(&mut wcs).is_empty() {
        assert!(start.elapsed() < TIMEOUT, "no completion: {:?}", end.context.counters());
        std::thread::yield_now();
    }
    wcs[0]
}

/// Expects that the next completion of an end is the success of this request.
fn expect_success(end: &Endpoint, wr_id: u64, opcode: WcOpcode) {
    let wc = next_completion(end);
    assert_eq!((wc.wr_id, wc.opcode, wc.status), (wr_id, opcode, WcStatus::Success));
}

/// Writes `source` to memory of the right end, reads it back, and compares.
fn write_and_read(
    worker: &Worker,
    a: &Qp,
    source: &Mr,
    sink: &Mr,
    remote: impl Into<RemoteAddr>,
) -> bool {
    let (all, remote) = (u32::try_from(LEN).unwrap(), remote.into());
    a.post().write(source.sge(0, all), remote).wr_id(1).signaled().ring().unwrap();
    expect_success(&worker.left, 1, WcOpcode::Write);
    a.post().read(sink.sge(0, all), remote).wr_id(2).signaled().ring().unwrap();
    expect_success(&worker.left, 2, WcOpcode::Read);
    contents(sink) == contents(source)
}

/// Requests notification on short-lived queues, which must notify, and reads counters, which must
/// not decrease.
fn stress_req_notify(worker: &Worker) {
    let (a, b) = worker.connect();
    let (source, sink) = (worker.left.mr(LEN, Access::ALL), worker.left.mr(LEN, Access::ALL));
    let target = worker.right.mr(LEN, Access::ALL);
    assert!(write_and_read(worker, &a, &source, &sink, target.remote()));
    let mut before = [&worker.left, &worker.right].map(|end| end.context.counters());
    repeat(|round| {
        let channel = worker.right.context.create_comp_channel().unwrap();
        let cq = worker.right.context.create_cq_on(&channel, 16).unwrap();
        cq.req_notify(Notify::Next).unwrap();
        assert_eq!(channel.next_event(), None, "there is no completion yet");
        let (other, mut end) =
            (worker.left.qp_with(4, 4), Endpoint::new(worker.right.context.clone()));
        end.cq = cq;
        let qp = end.qp_with(4, 4);
        let listener = worker.right.context.listen(worker.port, 4).unwrap();
        other.connect(SocketAddr::new(address(2), worker.port), param(b"")).unwrap();
        let request = listener.accept_timeout(TIMEOUT).expect("a request");
        let recv_mr = end.mr(64, Access::LOCAL_WRITE);
        qp.post_recv(7, recv_mr.sge(0, 64)).unwrap();
        request.accept(&qp, param(b"")).unwrap();
        other.wait_established(TIMEOUT).unwrap();
        send(&other, round, &round.to_le_bytes()).unwrap();
        assert_eq!(channel.wait(TIMEOUT), Some(end.cq.id()), "notification was requested");
        expect_success(&end, 7, WcOpcode::Recv);
        assert_eq!(contents(&recv_mr)[..8], round.to_le_bytes());
        expect_success(&worker.left, round, WcOpcode::Send);
        for (before, end) in before.iter_mut().zip([&worker.left, &worker.right]) {
            let now = end.context.counters();
            assert!(now.engine.frames_in >= before.engine.frames_in);
            assert!(now.engine.completions >= before.engine.completions);
            *before = now;
        }
    });
    drop((a, b));
}

/// Registers, has the peer write and read, deregisters: the returned buffer holds the written data.
fn stress_register(worker: &Worker) {
    let (a, _b) = worker.connect();
    let (source, sink) = (worker.left.mr(LEN, Access::ALL), worker.left.mr(LEN, Access::ALL));
    repeat(|round| {
        let bytes = pattern(LEN, round.to_le_bytes()[0]);
        source.write(0, &bytes);
        let target = worker.right.mr(LEN, Access::REMOTE_WRITE | Access::REMOTE_READ);
        assert!(write_and_read(worker, &a, &source, &sink, target.remote()));
        let buffer = target.deregister().expect("the only handle");
        assert!(buffer[..] == bytes, "round {round}");
    });
}

/// Binds windows, has the peer write through them, revokes them; then the peer's access is refused.
fn stress_bind(worker: &Worker) {
    let (source, sink) = (worker.left.mr(LEN, Access::ALL), worker.left.mr(LEN, Access::ALL));
    let mut region = worker.right.mr(LEN, Access::ALL | Access::WINDOW_BIND);
    let (mut a, mut b) = worker.connect();
    repeat(|round| {
        let mut window = worker.right.pd.allocate_window().unwrap();
        for salt in 0..WRITES_PER_BIND {
            source.write(0, &pattern(LEN, salt));
            let rights = Access::REMOTE_WRITE | Access::REMOTE_READ;
            let bind = window.bind(&region, 0, LEN, rights, false);
            b.post().bind(bind).wr_id(3).signaled().ring().unwrap();
            expect_success(&worker.right, 3, WcOpcode::Bind);
            let remote = RemoteAddr { addr: region.addr(), rkey: window.rkey() };
            assert!(write_and_read(worker, &a, &source, &sink, remote));
            assert!(contents(&region) == pattern(LEN, salt));
            assert!(window.revoke(), "the window was bound");
            assert!(!window.revoke(), "the window is no longer bound");
            assert_eq!(region.window_count(), 0);
        }
        // A revoked window gives no access; in odd rounds the region is revoked instead.
        let remote = RemoteAddr { addr: region.addr(), rkey: window.rkey() };
        source.fill(0, LEN, 0xEE);
        let before = contents(&region);
        if round.is_multiple_of(2) {
            drop(window);
        } else {
            let bind = window.bind(&region, 0, LEN, Access::REMOTE_WRITE, false);
            b.post().bind(bind).wr_id(3).signaled().ring().unwrap();
            expect_success(&worker.right, 3, WcOpcode::Bind);
            region.revoke();
            region.enable(Access::ALL | Access::WINDOW_BIND);
        }
        let late = source.sge(0, u32::try_from(LEN).unwrap());
        a.post().write(late, remote).wr_id(4).signaled().ring().unwrap();
        // The Write may complete before the Terminate arrives; the event of the connection tells.
        let _ = next_completion(&worker.left);
        assert!(matches!(
            expect_event(&a),
            ConnEvent::Disconnected { reason: EndReason::TerminateReceived(_), .. }
        ));
        assert!(matches!(expect_event(&b), ConnEvent::Disconnected { .. }));
        assert!(contents(&region) == before, "nothing was written");
        (a, b) = worker.connect();
    });
}

/// Creates, connects, sends, closes, destroys; in odd rounds destroys without closing.
fn stress_connect(worker: &Worker) {
    let recv_mr = worker.right.mr(64, Access::LOCAL_WRITE);
    repeat(|round| {
        let (a, b) = worker.connect();
        b.post_recv(5, recv_mr.sge(0, 64)).unwrap();
        send(&a, 6, &round.to_le_bytes()).unwrap();
        expect_success(&worker.right, 5, WcOpcode::Recv);
        assert_eq!(contents(&recv_mr)[..8], round.to_le_bytes());
        expect_success(&worker.left, 6, WcOpcode::Send);
        if round.is_multiple_of(2) {
            a.disconnect().unwrap();
        } else {
            drop(a);
        }
        match expect_event(&b) {
            ConnEvent::Disconnected {
                reason: EndReason::PeerClosed | EndReason::Reset, ..
            } => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(b.state(), QpState::Error);
    });
}

/// Calls `work` with 0, 1, 2, and so on until [`duration`] has elapsed, at least twice.
fn repeat(mut work: impl FnMut(u64)) {
    let (start, mut round) = (Instant::now(), 0);
    while round < 2 || start.elapsed() < duration() {
        work(round);
        round += 1;
    }
    println!("{round} rounds");
}

/// Keeps both shards busy with verified transfers until `is_over`; returns their number.
fn run_load(worker: &Worker, is_over: &AtomicBool) -> u64 {
    let (a, _b) = worker.connect();
    let (source, sink) = (worker.left.mr(LEN, Access::ALL), worker.left.mr(LEN, Access::ALL));
    let target = worker.right.mr(LEN, Access::ALL);
    let mut count = 0;
    while !is_over.load(Ordering::Relaxed) {
        source.write(0, &pattern(LEN, u64::to_le_bytes(count)[0]));
        assert!(write_and_read(worker, &a, &source, &sink, target.remote()));
        count += 1;
    }
    count
}

/// Sets a flag when dropped, also when a thread panics.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn stress(left: DriveMode, right: DriveMode) {
    let (left, right) = contexts_driven(left, right);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let busy = Worker::new(&left, &right, PORT);
        let is_over = &is_over;
        let loaded = scope.spawn(move || run_load(&busy, is_over));
        let over = SetOnDrop(is_over);
        let works: [fn(&Worker); 4] =
            [stress_req_notify, stress_register, stress_bind, stress_connect];
        let threads: Vec<_> = (1..)
            .zip(works)
            .map(|(index, work)| {
                let worker = Worker::new(&left, &right, PORT + index);
                scope.spawn(move || work(&worker))
            })
            .collect();
        for thread in threads {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
        drop(over);
        let count = loaded.join().unwrap();
        println!("{count} transfers meanwhile");
        assert!(count > 0, "there was no load");
    });
    for context in [&left, &right] {
        assert_eq!(context.counters().engine.cq_overruns, 0);
    }
}

#[test]
fn control_calls_work_against_a_busy_dedicated_shard() {
    stress(DriveMode::Dedicated, DriveMode::Dedicated);
}

#[test]
fn control_calls_work_against_a_busy_helper() {
    stress(DriveMode::Helper, DriveMode::Helper);
}
