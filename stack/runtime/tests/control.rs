//! Control calls from four threads against a shard that is busy: arming, counters, registering,
//! deregistering, binding, revoking, creating, connecting, closing, destroying. Each outcome is
//! checked. `FERROWARP_STRESS_SECONDS` (2) says how long it goes on for each kind of shard.

mod support;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferrowarp::{
    Access, Context, DriveMode, EndReason, Event, Mr, Notify, Operation, Qp, QpState, Wc, WcOpcode,
    WcStatus,
};
use support::*;

/// Octets of a transfer.
const LEN: usize = 3000;
/// Transfers through a window before it is revoked.
const THROUGH: u8 = 3;

fn length() -> Duration {
    let seconds = std::env::var("FERROWARP_STRESS_SECONDS").ok();
    Duration::from_secs(seconds.map_or(2, |text| text.parse().expect("a number of seconds")))
}

/// What one thread has of both contexts: domains and completion queues of its own, and a port.
struct Lane {
    left: End,
    right: End,
    port: u16,
}

impl Lane {
    fn new(left: &Context, right: &Context, port: u16) -> Self {
        Self { left: End::new(left.clone()), right: End::new(right.clone()), port }
    }

    /// A connection from left to right.
    fn connect(&self) -> (Qp, Qp) {
        let (a, b) = (self.left.qp_with(16, 16), self.right.qp_with(16, 16));
        let listener = self.right.context.listen(self.port, 4).unwrap();
        a.connect(SocketAddr::new(address(2), self.port), param(b"")).unwrap();
        let request = listener.accept_timeout(PATIENCE).expect("a request");
        request.accept(&b, param(b"")).unwrap();
        a.wait_established(PATIENCE).unwrap();
        b.wait_established(PATIENCE).unwrap();
        (a, b)
    }
}

/// The next completion of an end.
fn completion(end: &End) -> Wc {
    let (start, mut found) = (Instant::now(), Vec::with_capacity(1));
    while end.cq.poll(&mut found) == 0 {
        assert!(start.elapsed() < PATIENCE, "no completion: {:?}", end.context.counters());
        std::thread::yield_now();
    }
    assert_eq!(found.len(), 1, "{found:?}");
    found[0]
}

/// The next completion of an end, which is the success of this request.
fn succeeds(end: &End, wr_id: u64, opcode: WcOpcode) {
    let wc = completion(end);
    assert_eq!((wc.wr_id, wc.opcode, wc.status), (wr_id, opcode, WcStatus::Success));
}

/// Writes `source` to an STag of the right end, reads it back, and says whether it is the same.
fn write_and_read(lane: &Lane, a: &Qp, source: &Mr, sink: &Mr, (rkey, remote): (u32, u64)) -> bool {
    let all = u32::try_from(LEN).unwrap();
    let payload = gather(source.sge(0, all));
    a.post_send(request(1, Operation::Write { payload, rkey, remote })).unwrap();
    succeeds(&lane.left, 1, WcOpcode::Write);
    let operation = Operation::Read { sink: sink.sge(0, all), rkey, remote };
    a.post_send(request(2, operation)).unwrap();
    succeeds(&lane.left, 2, WcOpcode::Read);
    contents(sink) == contents(source)
}

/// Arms queues that come and go, and reads counters, which never fall. A queue that was armed tells
/// of what comes.
fn arms(lane: &Lane) {
    let (a, b) = lane.connect();
    let (source, sink) = (lane.left.mr(LEN, Access::ALL), lane.left.mr(LEN, Access::ALL));
    let target = lane.right.mr(LEN, Access::ALL);
    assert!(write_and_read(lane, &a, &source, &sink, (target.rkey(), target.addr())));
    let mut before = [&lane.left, &lane.right].map(|end| end.context.counters());
    go_on(|round| {
        let channel = lane.right.context.create_channel().unwrap();
        let cq = lane.right.context.create_cq_on(&channel, 16).unwrap();
        cq.arm(Notify::Next).unwrap();
        assert_eq!(channel.next_event(), None, "nothing has completed on it");
        let (other, mut end) = (lane.left.qp_with(4, 4), End::new(lane.right.context.clone()));
        end.cq = cq;
        let told = end.qp_with(4, 4);
        let listener = lane.right.context.listen(lane.port, 4).unwrap();
        other.connect(SocketAddr::new(address(2), lane.port), param(b"")).unwrap();
        let request = listener.accept_timeout(PATIENCE).expect("a request");
        let inbox = end.mr(64, Access::LOCAL_WRITE);
        told.post_recv(recv(7, inbox.sge(0, 64))).unwrap();
        request.accept(&told, param(b"")).unwrap();
        other.wait_established(PATIENCE).unwrap();
        other.post_send(send(round, inline(&round.to_le_bytes()))).unwrap();
        assert_eq!(channel.wait(PATIENCE), Some(end.cq.id()), "it was armed");
        succeeds(&end, 7, WcOpcode::Recv);
        assert_eq!(contents(&inbox)[..8], round.to_le_bytes());
        succeeds(&lane.left, round, WcOpcode::Send);
        for (before, end) in before.iter_mut().zip([&lane.left, &lane.right]) {
            let now = end.context.counters();
            assert!(now.engine.frames_in >= before.engine.frames_in);
            assert!(now.engine.completions >= before.engine.completions);
            *before = now;
        }
    });
    drop((a, b));
}

/// Registers, has the peer write and read, deregisters: what was written comes back in the buffer.
fn registers(lane: &Lane) {
    let (a, _b) = lane.connect();
    let (source, sink) = (lane.left.mr(LEN, Access::ALL), lane.left.mr(LEN, Access::ALL));
    go_on(|round| {
        let octets = pattern(LEN, round.to_le_bytes()[0]);
        source.write(0, &octets);
        let target = lane.right.mr(LEN, Access::REMOTE_WRITE | Access::REMOTE_READ);
        assert!(write_and_read(lane, &a, &source, &sink, (target.rkey(), target.addr())));
        let buffer = target.deregister().expect("nobody else has it");
        let mut found = vec![0; LEN];
        buffer.read(0, &mut found);
        assert!(found == octets, "round {round}");
    });
}

/// Binds windows, has the peer write through them, revokes them; then the peer finds them closed.
fn binds(lane: &Lane) {
    let (source, sink) = (lane.left.mr(LEN, Access::ALL), lane.left.mr(LEN, Access::ALL));
    let mut region = lane.right.mr(LEN, Access::ALL | Access::WINDOW_BIND);
    let (mut a, mut b) = lane.connect();
    go_on(|round| {
        let mut window = lane.right.pd.allocate_window().unwrap();
        for salt in 0..THROUGH {
            source.write(0, &pattern(LEN, salt));
            let rights = Access::REMOTE_WRITE | Access::REMOTE_READ;
            let bind = window.bind(&region, 0, LEN, rights, false);
            b.post_send(request(3, bind)).unwrap();
            succeeds(&lane.right, 3, WcOpcode::Bind);
            assert!(write_and_read(lane, &a, &source, &sink, (window.rkey(), region.addr())));
            assert!(contents(&region) == pattern(LEN, salt));
            assert!(window.revoke(), "it was bound");
            assert!(!window.revoke(), "it is not bound any more");
            assert_eq!(region.window_count(), 0);
        }
        // What is revoked nobody reaches; now and then the region goes with the window bound.
        let (stag, addr) = (window.rkey(), region.addr());
        source.fill(0, LEN, 0xEE);
        let before = contents(&region);
        if round.is_multiple_of(2) {
            drop(window);
        } else {
            let bind = window.bind(&region, 0, LEN, Access::REMOTE_WRITE, false);
            b.post_send(request(3, bind)).unwrap();
            succeeds(&lane.right, 3, WcOpcode::Bind);
            region.revoke();
            region.enable(Access::ALL | Access::WINDOW_BIND);
        }
        let payload = gather(source.sge(0, u32::try_from(LEN).unwrap()));
        let late = Operation::Write { payload, rkey: stag, remote: addr };
        a.post_send(request(4, late)).unwrap();
        // The Write may have completed when the answer comes: the end of the stream tells.
        let _ = completion(&lane.left);
        assert!(matches!(
            event(&a),
            Event::Disconnected { reason: EndReason::TerminateReceived(_), .. }
        ));
        assert!(matches!(event(&b), Event::Disconnected { .. }));
        assert!(contents(&region) == before, "nothing was written");
        (a, b) = lane.connect();
    });
}

/// Creates, connects, sends, closes, destroys; every other time without closing.
fn connects(lane: &Lane) {
    let inbox = lane.right.mr(64, Access::LOCAL_WRITE);
    go_on(|round| {
        let (a, b) = lane.connect();
        b.post_recv(recv(5, inbox.sge(0, 64))).unwrap();
        a.post_send(send(6, inline(&round.to_le_bytes()))).unwrap();
        succeeds(&lane.right, 5, WcOpcode::Recv);
        assert_eq!(contents(&inbox)[..8], round.to_le_bytes());
        succeeds(&lane.left, 6, WcOpcode::Send);
        if round.is_multiple_of(2) {
            a.disconnect().unwrap();
        } else {
            drop(a);
        }
        match event(&b) {
            Event::Disconnected { reason: EndReason::PeerClosed | EndReason::Reset, .. } => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(b.state(), QpState::Error);
    });
}

/// Calls `work` with 0, 1, 2, and so on until the time is over, at least twice.
fn go_on(mut work: impl FnMut(u64)) {
    let (start, mut round) = (Instant::now(), 0);
    while round < 2 || start.elapsed() < length() {
        work(round);
        round += 1;
    }
    println!("{round} rounds");
}

/// Keeps both shards busy until `is_over`: transfers of which each is checked.
fn load(lane: &Lane, is_over: &AtomicBool) -> u64 {
    let (a, _b) = lane.connect();
    let (source, sink) = (lane.left.mr(LEN, Access::ALL), lane.left.mr(LEN, Access::ALL));
    let target = lane.right.mr(LEN, Access::ALL);
    let mut count = 0;
    while !is_over.load(Ordering::Relaxed) {
        source.write(0, &pattern(LEN, u64::to_le_bytes(count)[0]));
        assert!(write_and_read(lane, &a, &source, &sink, (target.rkey(), target.addr())));
        count += 1;
    }
    count
}

/// Sets a flag when dropped, so also when a thread panics.
struct Set<'a>(&'a AtomicBool);

impl Drop for Set<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn stress(left: DriveMode, right: DriveMode) {
    let (left, right) = contexts_driven(left, right);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let busy = Lane::new(&left, &right, PORT);
        let is_over = &is_over;
        let loaded = scope.spawn(move || load(&busy, is_over));
        let over = Set(is_over);
        let works: [fn(&Lane); 4] = [arms, registers, binds, connects];
        let threads: Vec<_> = (1..)
            .zip(works)
            .map(|(index, work)| {
                let lane = Lane::new(&left, &right, PORT + index);
                scope.spawn(move || work(&lane))
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
        assert!(count > 0, "the load went on");
    });
    for context in [&left, &right] {
        assert_eq!(context.counters().engine.cq_overruns, 0);
    }
}

#[test]
fn control_calls_are_sound_against_a_dedicated_shard_under_load() {
    stress(DriveMode::Dedicated { core: 0 }, DriveMode::Dedicated { core: 1 });
}

#[test]
fn control_calls_are_sound_against_a_helper_under_load() {
    stress(DriveMode::Helper, DriveMode::Helper);
}
