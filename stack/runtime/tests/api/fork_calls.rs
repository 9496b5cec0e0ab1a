//! Every call of the API in a child made by `fork`, with locks held at the fork: each returns an
//! error, or nothing, at once.

use std::fmt::Debug;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use dpdk_sys::fork::run_in_child;
use ferrowarp::cm::Abort;
use ferrowarp::{
    Access, Buffer, CompChannel, ConnParam, ConnRequest, Context, DriveMode, EventChannel,
    Listener, Mr, Mw, Notify, Qp, QpOptions, Sge, Spinner, Srq, Wc,
};

use crate::support::rx_hook::{Hooks, hooked_contexts};
use crate::support::*;

/// Forks, of which each may find other locks held.
const FORKS: u32 = 40;

/// One object of each kind, as the parent has them at the fork.
struct Objects {
    left: Endpoint,
    right: Endpoint,
    /// Connected, with completions on both sides that nobody has polled.
    connected: (Arc<Qp>, Arc<Qp>),
    idle: Qp,
    channel: CompChannel,
    events: EventChannel,
    srq: Srq,
    listener: Arc<Listener>,
    requests: Vec<ConnRequest>,
    region: Mr,
    window: Mw,
    buffers: Vec<Buffer>,
}

impl Objects {
    fn new() -> (Self, Hooks) {
        let drive = DriveMode::Inline;
        let (left, right, hooks) = hooked_contexts(config(1, drive), config(2, drive));
        let (left, right) = (Endpoint::new(left), Endpoint::new(right));
        let channel = right.context.create_comp_channel().unwrap();
        let events = right.context.event_channel().unwrap();
        let cq = right.context.create_cq_on(&channel, 64).unwrap();
        let qp = right.pd.create_qp(&QpOptions::new(&cq).max_recv_wr(64)).unwrap();
        let (a, b) = connect_qps(&right, left.qp_with(64, 1), qp).0;
        let listener = right.context.listen(PORT, 8).unwrap();
        let initiators: Vec<_> = (0..3).map(|_| left.qp()).collect();
        initiators.iter().for_each(|qp| qp.connect(server(), ConnParam::default()).unwrap());
        let requests = (0..2).map(|_| listener.accept_timeout(TIMEOUT).unwrap()).collect();
        let srq = right.pd.create_srq(64).unwrap();
        let access = Access::LOCAL_WRITE | Access::WINDOW_BIND;
        let (region, window) = (right.mr(4096, access), right.pd.allocate_window().unwrap());
        let buffers = (0..4).map(|_| right.context.allocate(64).unwrap()).collect();
        (0..4).for_each(|wr_id| b.post_recv(wr_id, region.sge(0, 64)).unwrap());
        cq.req_notify(Notify::Next).unwrap();
        (0..4).for_each(|wr_id| send(&a, wr_id, b"").unwrap());
        drive_for(&left.context, &right.context, Duration::from_millis(20));
        srq.arm(2).unwrap();
        assert_eq!(left.cq.poll_with(1, |_| ()), 1, "and three more");
        let (connected, listener, idle) = ((a.into(), b.into()), listener.into(), right.qp());
        let objects = Self {
            left,
            right,
            connected,
            idle,
            channel,
            events,
            srq,
            listener,
            requests,
            region,
            window,
            buffers,
        };
        (objects, hooks)
    }
}

/// Writes a line to standard error, without the standard library's stream, which may be locked.
fn note(line: &str) {
    let mut out = std::fs::OpenOptions::new().append(true).open("/dev/stderr").unwrap();
    let _ = writeln!(out, "{line}");
}

/// Results of calls that are not those expected.
#[derive(Default)]
struct Results(Vec<String>);

impl Results {
    /// Prints and checks a result, by its `Debug`.
    fn expect(&mut self, call: &str, result: &dyn Debug, expected: &str) {
        let result = format!("{result:?}");
        note(&format!("{call}: {result}"));
        if !result.starts_with(expected) {
            self.0.push(format!("{call} returns {result}, not {expected}"));
        }
    }
}

const FORKED: &str = "Err(Ended(Forked))";
const NONE_POSTED: &str = "Err(PostRefused { error: Ended(Forked), posted: 0 })";

/// Makes all calls; true if each returned what it has to.
fn calls_fail(objects: Objects) -> bool {
    let mut results = Results::default();
    let mut check =
        |call: &str, result: &dyn Debug, expected| results.expect(call, result, expected);
    let Objects { left, right, connected, idle, channel, events, srq, listener, .. } = objects;
    let Objects { requests, mut region, mut window, buffers, .. } = objects;
    let (a, b) = connected;
    let forever = Duration::MAX;
    // Queue pairs.
    let buffer = region.sge(0, 64);
    check("post", &a.post().send(buffer).ring(), NONE_POSTED);
    check("post nothing", &a.post().ring(), NONE_POSTED);
    check("post_recv", &b.post_recv(1, buffer), FORKED);
    check("post_recvs", &b.post_recvs([(1, buffer)]), NONE_POSTED);
    check("post while idle", &idle.post().send(buffer).ring(), NONE_POSTED);
    check("post_recv while idle", &idle.post_recv(1, buffer), FORKED);
    check("connect", &idle.connect(server(), ConnParam::default()), FORKED);
    check("close", &a.close(), FORKED);
    check("half_close", &a.half_close(), FORKED);
    check("disconnect", &a.disconnect(), FORKED);
    check("to_error", &a.to_error(), FORKED);
    check("to_error while idle", &idle.to_error(), FORKED);
    check("terminate", &a.terminate(Abort::Stream), FORKED);
    check("stream_send", &a.stream_send(b"x"), FORKED);
    check("stream_receive", &a.stream_receive(&mut [0; 4]), FORKED);
    check("start_fpdus", &a.start_fpdus(ConnParam::default()), FORKED);
    check("tcp_stats", &a.tcp_stats().is_some(), "false");
    check("next_event", &b.next_event(), "None");
    check("wait_event", &b.wait_event(forever), "None");
    check("wait_established", &a.wait_established(forever), "Err(TimedOut)");
    // Completions, which there are in the parent's memory.
    let cqs = [&left.cq, b.recv_cq()];
    for cq in cqs {
        let mut wcs = [Wc::default(); 4];
        check("poll", &cq.poll(&mut wcs), "[]");
        check("poll_with", &cq.poll_with(4, |_| ()), "0");
        check("poll_spinning", &cq.poll_spinning(&mut wcs, &mut Spinner::new()), "[]");
        check("Cq::wait", &cq.wait(&mut wcs, forever), "[]");
        check("resize", &cq.resize(128), FORKED);
    }
    check("req_notify", &b.recv_cq().req_notify(Notify::Next), FORKED);
    check("CompChannel::next_event", &channel.next_event(), "None");
    check("CompChannel::wait", &channel.wait(forever), "None");
    check("EventChannel::next_event", &events.next_event(), "None");
    check("EventChannel::wait", &events.wait(forever), "None");
    // Shared receive queues.
    check("Srq::post_recv", &srq.post_recv(1, buffer), FORKED);
    check("Srq::post_recvs", &srq.post_recvs([(1, buffer)]), NONE_POSTED);
    check("arm", &srq.arm(2), FORKED);
    check("cap", &srq.cap(2), FORKED);
    check("next_limit", &srq.next_limit(), "None");
    // Listeners.
    check("next_request", &listener.next_request().is_some(), "false");
    check("Listener::poll", &listener.poll().is_some(), "false");
    check("accept_timeout", &listener.accept_timeout(forever).is_some(), "false");
    // Contexts.
    for Endpoint { context, pd, .. } in [&left, &right] {
        check("drive", &context.drive(), "false");
        check("listen", &context.listen(PORT + 1, 1).err(), "Some(Ended(Forked))");
        check("listen on any", &context.listen(0, 1).err(), "Some(Ended(Forked))");
        check(
            "listen_unframed",
            &context.listen_unframed(PORT + 1, 1).err(),
            "Some(Ended(Forked))",
        );
        check("create_cq", &context.create_cq(1).err(), "Some(Ended(Forked))");
        check(
            "create_cq_on",
            &right.context.create_cq_on(&channel, 1).err(),
            "Some(Ended(Forked))",
        );
        check("create_comp_channel", &context.create_comp_channel().is_err(), "true");
        check("event_channel", &context.event_channel().is_err(), "true");
        check("allocate", &context.allocate(64).err(), "Some(Ended(Forked))");
        check("connection_count", &context.connection_count(), "0");
        check("counters", &(context.counters() == Default::default()), "true");
        check("usage", &(context.usage() == Default::default()), "true");
        check("link_is_up", &context.link_is_up(), "false");
        check("alloc_pd", &context.alloc_pd().create_srq(1).err(), "Some(Ended(Forked))");
        check("create_qp", &pd.create_qp(&QpOptions::new(&left.cq)).is_err(), "true");
        check("create_srq", &pd.create_srq(1).err(), "Some(Ended(Forked))");
        check("allocate_window", &pd.allocate_window().err(), "Some(Ended(Forked))");
        let shard = context.shard(0).unwrap();
        check(
            "shard",
            &(shard.drive(), shard.has_link(), shard.connection_count()),
            "(false, false, 0)",
        );
    }
    let other = Context::ring_pair(config(3, DriveMode::Inline), config(4, DriveMode::Inline));
    check("ring_pair", &other.err(), "Some(Device(Environment(Forked");
    for (request, accepts) in requests.into_iter().zip([true, false]) {
        if accepts {
            check("accept", &request.accept(&idle, ConnParam::default()), FORKED);
        } else {
            check("reject", &request.reject(b"no"), FORKED);
        }
    }
    // Memory. Copies of the child's own are no calls of the stack.
    region.write(0, b"child");
    let mut buffers = buffers.into_iter();
    let mut buffer = || buffers.next().unwrap();
    for pd in [&left.pd, &right.pd] {
        let refused = pd.register(buffer(), Access::LOCAL_READ);
        check("register", &refused.err().map(|refused| refused.error), "Some(Ended(Forked))");
        let refused = pd.register_for(&idle, buffer(), Access::LOCAL_READ);
        check("register_for", &refused.err().map(|refused| refused.error), "Some(");
    }
    let stag = region.rkey();
    region.revoke();
    check("enable", &(region.enable(Access::REMOTE_READ) == stag), "true");
    // More than the keys that a window has without a lock.
    for _ in 0..300 {
        let bind = window.bind(&region, 0, 8, Access::REMOTE_READ, true);
        assert_eq!(bind.rkey, window.rkey());
    }
    check("Mw::revoke", &window.revoke(), "false");
    check("deregister", &region.deregister().is_some(), "true");
    left.context.clone().close();
    drop((left, right, a, b, idle, channel, events, srq, listener, window));
    results.0.iter().for_each(|wrong| note(wrong));
    results.0.is_empty()
}

/// Waits for `barrier` twice: between the two the caller's lock is held.
fn hold(barrier: &Barrier) {
    barrier.wait();
    barrier.wait();
}

/// Calls `act` again and again.
fn until<T>(ends: &AtomicBool, act: impl Fn() -> T) {
    while !ends.load(Ordering::Relaxed) {
        let _ = act();
    }
}

#[test]
fn calls_of_a_forked_child_fail_at_once_whatever_locks_are_held() {
    isolate!();
    let (objects, hooks) = Objects::new();
    let (a, b) = (Arc::clone(&objects.connected.0), Arc::clone(&objects.connected.1));
    let context = objects.right.context.clone();
    let (pd, cq) = (objects.right.pd.clone(), objects.right.cq.clone());
    let (channel, events) = (objects.channel.clone(), objects.events.clone());
    let (srq, listener) = (objects.srq.clone(), Arc::clone(&objects.listener));
    let mut objects = Some(objects);
    let (barrier, ends) = (Arc::new(Barrier::new(4)), AtomicBool::new(false));
    let in_poll = Arc::clone(&barrier);
    let passed = std::thread::scope(|scope| {
        // The locks of both work queues, and of the shard.
        scope.spawn(|| {
            let _sends = a.post();
            hold(&barrier);
        });
        scope.spawn(|| {
            b.post_recvs(std::iter::from_fn(|| -> Option<(u64, Sge)> {
                hold(&barrier);
                None
            }))
        });
        *hooks.rx.lock().unwrap() = Some(Box::new(move || hold(&in_poll)));
        scope.spawn(|| context.drive());
        // The others in turn, as long as the forks take.
        scope.spawn(|| until(&ends, || (events.next_event(), channel.next_event())));
        scope.spawn(|| until(&ends, || (context.allocate(64), context.alloc_pd())));
        scope.spawn(|| until(&ends, || (srq.next_limit(), cq.poll_with(32, |_| ()))));
        scope.spawn(|| until(&ends, || (pd.allocate_window(), listener.next_request())));
        barrier.wait();
        let passed =
            (0..FORKS).all(|_| run_in_child(|| calls_fail(objects.take().unwrap())).unwrap());
        ends.store(true, Ordering::Relaxed);
        barrier.wait();
        passed
    });
    assert!(passed, "a call in a child hangs, panics, or succeeds: see above");
    // The parent goes on.
    let Objects { left, right, connected: (a, b), region, .. } = objects.unwrap();
    b.post_recv(9, region.sge(0, 64)).unwrap();
    send(&a, 9, b"on").unwrap();
    drive_until(&left.context, &right.context, || region.load_last(1) == b'n');
}
