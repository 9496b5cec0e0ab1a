//! Tasks of tokio that wait for completions and connections.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dpdk_sys::fork::run_in_child;
use ferrowarp::asynchronous::{AsyncCq, AsyncError, AsyncEvents};
use ferrowarp::{
    Access, AsyncEvent, ConnEvent, ConnParam, Context, DriveMode, EndReason, Mr, Pd, Qp, QpOptions,
    Wc, WcOpcode, WcStatus,
};

use crate::support::rx_hook::hooked_contexts;
use crate::support::*;

/// Messages of a connection.
const MESSAGES: u64 = 2000;
const CONNECTIONS: usize = 4;
/// Requests of each kind that an end has at a time, at most.
const DEPTH: u64 = 32;

/// Runs a future with threads of tokio, for [`TIMEOUT`] at most.
fn run<T>(future: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build().unwrap();
    let limited = async { tokio::time::timeout(TIMEOUT, future).await };
    runtime.block_on(limited).expect("a task is not woken")
}

/// One end of a connection, for a task.
struct End {
    qp: Qp,
    cq: AsyncCq,
    buffer: Mr,
}

impl End {
    fn new(context: &Context, pd: &Pd) -> Self {
        let depth = usize::try_from(DEPTH).unwrap();
        let cq = AsyncCq::new(context, 2 * depth).unwrap();
        let options = QpOptions::new(cq.cq()).max_send_wr(depth).max_recv_wr(depth);
        let buffer = pd.register(context.allocate(64).unwrap(), Access::LOCAL_WRITE).unwrap();
        let end = Self { qp: pd.create_qp(&options).unwrap(), cq, buffer };
        (0..DEPTH).for_each(|_| end.post_recv());
        end
    }

    fn post_recv(&self) {
        self.qp.post_recv(0, self.buffer.sge(0, 64)).unwrap();
    }

    /// Exchanges messages: the initiator sends, the other end returns each of them.
    async fn exchange(mut self, is_initiator: bool) -> Self {
        let (mut sent, mut completed, mut received) = (0, 0, 0);
        let mut wcs = [Wc::default(); 32];
        while completed < MESSAGES || received < MESSAGES {
            let allowed = if is_initiator { received + DEPTH / 2 } else { received };
            while sent < allowed.min(MESSAGES) {
                send(&self.qp, sent, b"x").unwrap();
                sent += 1;
            }
            let found = self.cq.wait(&mut wcs).await;
            assert!(!found.is_empty());
            for wc in found {
                if wc.opcode == WcOpcode::Recv && received == MESSAGES {
                    // The initiator has closed already.
                    continue;
                }
                assert_eq!(wc.status, WcStatus::Success);
                if wc.opcode == WcOpcode::Recv {
                    received += 1;
                    self.post_recv();
                } else {
                    completed += 1;
                }
            }
        }
        self
    }
}

#[test]
fn tasks_serve_connections_and_thousands_of_completions() {
    let (left, right) = contexts(DriveMode::Helper);
    let served = Arc::new(AtomicU64::new(0));
    run(async {
        let listener = right.listen(PORT, 8).unwrap();
        let events_l = Arc::new(AsyncEvents::new(&left).unwrap());
        let events_r = Arc::new(AsyncEvents::new(&right).unwrap());
        let mut tasks = Vec::new();
        for _ in 0..CONNECTIONS {
            let (context, events) = (left.clone(), Arc::clone(&events_l));
            tasks.push(tokio::spawn(async move {
                let end = End::new(&context, &context.alloc_pd());
                end.qp.connect(server(), ConnParam::default()).unwrap();
                events.established(&end.qp).await.unwrap();
                let end = end.exchange(true).await;
                end.qp.close().unwrap();
                let event = events.next_of(&end.qp).await;
                assert!(matches!(event, Some(ConnEvent::Disconnected { .. })), "{event:?}");
            }));
        }
        for _ in 0..CONNECTIONS {
            let request = events_r.accept(&listener).await.unwrap();
            let (context, events) = (right.clone(), Arc::clone(&events_r));
            let served = Arc::clone(&served);
            tasks.push(tokio::spawn(async move {
                let end = End::new(&context, &context.alloc_pd());
                request.accept(&end.qp, ConnParam::default()).unwrap();
                events.established(&end.qp).await.unwrap();
                let end = end.exchange(false).await;
                served.fetch_add(MESSAGES, Ordering::Relaxed);
                let event = events.next_of(&end.qp).await;
                let reason = EndReason::PeerClosed;
                assert!(matches!(event, Some(ConnEvent::Disconnected { reason: found, .. })
                    if found == reason));
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert_eq!(served.load(Ordering::Relaxed), MESSAGES * CONNECTIONS as u64);
}

#[test]
fn waiting_tasks_end_with_the_context() {
    let (left, right) = contexts(DriveMode::Helper);
    run(async {
        let events = Arc::new(AsyncEvents::new(&right).unwrap());
        let mut cq = AsyncCq::new(&right, 4).unwrap();
        let listener = right.listen(PORT, 1).unwrap();
        let idle = right.alloc_pd().create_qp(&QpOptions::new(cq.cq())).unwrap();
        let mut tasks =
            vec![tokio::spawn(async move { cq.wait(&mut [Wc::default()]).await.is_empty() })];
        let of = Arc::clone(&events);
        tasks.push(tokio::spawn(async move { of.accept(&listener).await.is_none() }));
        let of = Arc::clone(&events);
        tasks.push(tokio::spawn(async move { of.established(&idle).await.is_err() }));
        tasks.push(tokio::spawn(async move { events.next_other().await.is_none() }));
        tokio::time::sleep(Duration::from_millis(20)).await;
        let closing = [left, right].map(|context| tokio::task::spawn_blocking(|| context.close()));
        for task in tasks {
            assert!(task.await.unwrap(), "nothing comes any more");
        }
        for close in closing {
            close.await.unwrap();
        }
    });
}

#[test]
fn inline_context_is_refused() {
    let (left, _right) = contexts(DriveMode::Inline);
    run(async {
        assert!(matches!(AsyncCq::new(&left, 4).err(), Some(AsyncError::Inline)));
        assert!(matches!(AsyncEvents::new(&left).err(), Some(AsyncError::Inline)));
    });
}

#[test]
fn event_without_a_task_of_its_own_is_kept_for_next_other() {
    let (left, right) = contexts(DriveMode::Helper);
    run(async {
        let events = AsyncEvents::new(&right).unwrap();
        let pd = right.alloc_pd();
        let srq = pd.create_srq(4).unwrap();
        srq.arm(2).unwrap();
        assert_eq!(events.next_other().await, Some(AsyncEvent::SrqLimit { srq: srq.id() }));
    });
    drop(left);
}

/// The task that asks for the failure may come after it.
#[test]
fn failure_before_the_first_call_is_reported() {
    let modes = [config(1, DriveMode::Helper), config(2, DriveMode::Helper)];
    let [left, right] = modes;
    let (left, right, hooks) = hooked_contexts(left, right);
    run(async {
        let events = AsyncEvents::new(&right).unwrap();
        *hooks.rx.lock().unwrap() = Some(Box::new(|| panic!("deliberate panic of this test")));
        while !right.has_failed() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(events.next_other().await, Some(AsyncEvent::Failed));
        assert_eq!(events.next_other().await, None);
    });
    drop(left);
}

/// Events that nobody asks for are held while their source is there.
#[test]
fn event_of_a_destroyed_source_is_not_kept() {
    let (left, right) = contexts(DriveMode::Helper);
    run(async {
        let events = AsyncEvents::new(&right).unwrap();
        let listener = right.listen(PORT, 1).unwrap();
        let pd = right.alloc_pd();
        let arm_one = || {
            let srq = pd.create_srq(4).unwrap();
            srq.arm(2).unwrap();
            srq
        };
        let look_at_events = async || {
            let waiting = tokio::time::timeout(Duration::from_millis(20), events.accept(&listener));
            assert!(waiting.await.is_err(), "nobody connects");
        };
        for _ in 0..5 {
            let srq = arm_one();
            look_at_events().await;
            drop(srq);
        }
        let (first, second) = (arm_one(), arm_one());
        look_at_events().await;
        for srq in [&first, &second] {
            assert_eq!(events.next_other().await, Some(AsyncEvent::SrqLimit { srq: srq.id() }));
        }
    });
    drop(left);
}

/// The child's copies refer to the parent's reactor.
#[test]
fn dropping_copies_in_a_forked_child_disturbs_no_task() {
    isolate!();
    let (left, right) = contexts(DriveMode::Helper);
    run(async {
        let mut end = End::new(&right, &right.alloc_pd());
        let mut parts =
            Some((End::new(&left, &left.alloc_pd()), AsyncEvents::new(&right).unwrap()));
        let listener = right.listen(PORT, 1).unwrap();
        let passed = run_in_child(|| {
            drop(parts.take());
            true
        });
        assert!(passed.unwrap(), "the child fails or hangs");
        let (mut other, events) = parts.take().unwrap();
        other.qp.connect(server(), ConnParam::default()).unwrap();
        let request = events.accept(&listener).await.unwrap();
        request.accept(&end.qp, ConnParam::default()).unwrap();
        events.established(&end.qp).await.unwrap();
        other.qp.wait_established(TIMEOUT).unwrap();
        send(&other.qp, 1, b"x").unwrap();
        let mut wcs = [Wc::default(); 4];
        assert_eq!(other.cq.wait(&mut wcs).await.len(), 1);
        assert_eq!(end.cq.wait(&mut wcs).await.len(), 1);
    });
}
