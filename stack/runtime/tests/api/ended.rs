//! Errors name the cause when a context does nothing any more, and print a remedy.

use std::time::Duration;

use dpdk_sys::fork::run_in_child;
use ferrowarp::cm::Abort;
use ferrowarp::{
    Access, Buffer, CmError, ConnRequest, CqOptions, CreateError, DriveMode, Ended, MemoryError,
    Notify, PostError, Qp, QpOptions, ReqNotifyError, ResizeError, SrqError, SrqOptions,
};

use crate::support::rx_hook::{Hooks, hooked_shards};
use crate::support::*;

/// Two ends with two shards each, and the hooks of the right one.
fn ends() -> (Endpoint, Endpoint, Vec<Hooks>) {
    let config = |host| {
        let mut config = config(host, DriveMode::Inline);
        (config.shards, config.cores) = (2, Vec::new());
        config.linger = Duration::from_millis(50);
        config
    };
    let (left, right, hooks) = hooked_shards(config(1), config(2));
    (Endpoint::new(left), Endpoint::new(right), hooks)
}

/// Has a shard of the right end panic.
fn kill(left: &Endpoint, right: &Endpoint, hooks: &[Hooks], shard: usize) {
    *hooks[shard].rx.lock().unwrap() = Some(Box::new(|| panic!("deliberate panic of this test")));
    let dead = right.context.shard(shard).unwrap();
    drive_until(&left.context, &right.context, || dead.has_failed());
}

/// Objects of the right end, of kinds whose calls fail with different errors.
struct Objects {
    end: Endpoint,
    connected: Qp,
    /// Belongs to no shard.
    unbound: Qp,
    /// Of shard 0, without a connection.
    bound: Qp,
    /// Of shard 0; its listener is gone.
    request: Option<ConnRequest>,
    buffer: Option<Buffer>,
}

impl Objects {
    fn new(left: &Endpoint, end: Endpoint) -> Self {
        let on_0 = QpOptions::new(&left.cq).shard(0);
        let connected = connect_qps(&end, left.pd.create_qp(&on_0).unwrap(), end.qp()).0.1;
        let listener = end.context.listen(PORT, 1).unwrap();
        let initiator = left.pd.create_qp(&on_0).unwrap();
        initiator.connect(server(), param(b"")).unwrap();
        let request = listener.accept_timeout(TIMEOUT);
        let bound = end.pd.create_qp(&QpOptions::new(&end.cq).shard(0)).unwrap();
        let (unbound, buffer) = (end.qp(), Some(end.context.allocate(64).unwrap()));
        Self { end, connected, unbound, bound, request, buffer }
    }

    /// Checks that calls for the connected queue pair and others of shard 0 fail for this cause.
    fn check_bound(&mut self, ended: Ended) {
        let Self { connected, bound, .. } = self;
        assert_eq!(send(connected, 1, b""), Err(PostError::Ended(ended)));
        assert_eq!(bound.post_recv(1, []), Err(PostError::Ended(ended)));
        let cm = Err(CmError::Ended(ended));
        assert_eq!([connected.close(), connected.half_close(), connected.disconnect()], [cm; 3]);
        assert_eq!([connected.terminate(Abort::Stream), connected.to_error()], [cm; 2]);
        assert_eq!(connected.stream_send(b"x"), Err(CmError::Ended(ended)));
        assert_eq!([bound.connect(server(), param(b"")), bound.disconnect()], [cm; 2]);
        let request = self.request.take().unwrap();
        assert_eq!(request.reject(b""), cm);
        assert_eq!(self.bound.reset(), Err(CreateError::Ended(ended)));
    }

    /// Checks that calls for objects of no shard, and for the context, fail for this cause.
    fn check_all(&mut self, ended: Ended) {
        let Self { end, unbound, buffer, .. } = self;
        assert_eq!(unbound.post_recv(1, []), Err(PostError::Ended(ended)));
        let cm = Err(CmError::Ended(ended));
        assert_eq!([unbound.connect(server(), param(b"")), unbound.disconnect()], [cm; 2]);
        assert_eq!([unbound.close(), unbound.to_error()], [cm; 2]);
        assert_eq!(end.context.listen(PORT + 1, 1).err(), Some(CmError::Ended(ended)));
        let create = Some(CreateError::Ended(ended));
        assert_eq!(unbound.reset().err(), create);
        assert_eq!(end.context.create_cq(1).err(), create);
        assert_eq!(end.pd.create_srq(1).err(), create);
        assert_eq!(end.pd.create_qp(&QpOptions::new(&end.cq)).err(), create);
        assert_eq!(end.cq.resize(8), Err(ResizeError::Ended(ended)));
        let buffer = buffer.take().unwrap();
        let refused = end.pd.register_for(unbound, buffer, Access::LOCAL_READ).err().unwrap();
        assert!(matches!(refused.error, MemoryError::Ended(cause) if cause == ended));
        assert_eq!(refused.error.to_string(), ended.to_string());
    }
}

#[test]
fn closed_context_is_named() {
    let (left, right, _hooks) = ends();
    let channel = right.context.create_comp_channel().unwrap();
    let (cq, srq) =
        (right.context.create_cq_on(&channel, 1).unwrap(), right.pd.create_srq(1).unwrap());
    let mut objects = Objects::new(&left, right);
    objects.end.context.clone().close();
    objects.check_bound(Ended::Closed);
    objects.check_all(Ended::Closed);
    assert_eq!(cq.req_notify(Notify::Next), Err(ReqNotifyError::Ended(Ended::Closed)));
    assert_eq!(srq.post_recv(1, []), Err(PostError::Ended(Ended::Closed)));
    assert_eq!([srq.arm(1), srq.cap(1)], [Err(SrqError::Ended(Ended::Closed)); 2]);
}

/// The failure of a shard is named by what needs it, and by everything once no shard is left.
#[test]
fn failure_is_named() {
    let (left, right, hooks) = ends();
    let channel = right.context.create_comp_channel().unwrap();
    let options = CqOptions::new(1).channel(&channel).shard(0);
    let cq = right.context.create_cq_with(&options).unwrap();
    let srq = right.pd.create_srq_with(&SrqOptions::new(1).shard(0)).unwrap();
    let mut objects = Objects::new(&left, right);
    kill(&left, &objects.end, &hooks, 0);
    objects.check_bound(Ended::Failed);
    assert_eq!(cq.req_notify(Notify::Next), Err(ReqNotifyError::Ended(Ended::Failed)));
    assert_eq!(cq.resize(8), Err(ResizeError::Ended(Ended::Failed)));
    assert_eq!(srq.post_recv(1, []), Err(PostError::Ended(Ended::Failed)));
    assert_eq!([srq.arm(1), srq.cap(1)], [Err(SrqError::Ended(Ended::Failed)); 2]);
    let end = &objects.end;
    let failed = Some(CreateError::Ended(Ended::Failed));
    assert_eq!(end.context.create_cq_with(&CqOptions::new(1).shard(0)).err(), failed);
    assert_eq!(end.pd.create_srq_with(&SrqOptions::new(1).shard(0)).err(), failed);
    assert_eq!(end.pd.create_qp(&QpOptions::new(&end.cq).shard(0)).err(), failed);
    assert_eq!(objects.unbound.disconnect(), Err(CmError::Gone), "the other shard goes on");
    kill(&left, end, &hooks, 1);
    objects.check_all(Ended::Failed);
}

/// A context that closes after one of its shards has failed is closed.
#[test]
fn closing_after_a_failure_is_named() {
    let (left, right, hooks) = ends();
    let mut objects = Objects::new(&left, right);
    kill(&left, &objects.end, &hooks, 0);
    objects.end.context.clone().close();
    objects.check_all(Ended::Closed);
}

#[test]
fn parent_of_a_forked_child_is_named() {
    isolate!();
    let (left, right, _hooks) = ends();
    let channel = right.context.create_comp_channel().unwrap();
    let (cq, srq) =
        (right.context.create_cq_on(&channel, 1).unwrap(), right.pd.create_srq(1).unwrap());
    let mut objects = Objects::new(&left, right);
    let passed = run_in_child(|| {
        objects.check_bound(Ended::Forked);
        objects.check_all(Ended::Forked);
        assert_eq!(cq.req_notify(Notify::Next), Err(ReqNotifyError::Ended(Ended::Forked)));
        assert_eq!(srq.post_recv(1, []), Err(PostError::Ended(Ended::Forked)));
        assert_eq!([srq.arm(1), srq.cap(1)], [Err(SrqError::Ended(Ended::Forked)); 2]);
        let Objects { end, .. } = &objects;
        let allocated = end.context.allocate(8).err();
        assert!(matches!(allocated, Some(MemoryError::Ended(Ended::Forked))));
        let error = end.context.event_channel().err().unwrap();
        error.to_string() == Ended::Forked.to_string()
    });
    assert!(passed.unwrap());
}

/// A queue pair without a connection is no reason to open another context.
#[test]
fn queue_pair_without_a_connection_is_named() {
    let (left, right, _hooks) = ends();
    let Objects { unbound, bound, request, .. } = Objects::new(&left, right);
    for qp in [&unbound, &bound] {
        let refused = [qp.close(), qp.disconnect(), qp.terminate(Abort::Stream)];
        assert_eq!(refused, [Err(CmError::Gone); 3]);
    }
    let words = "there is no such connection or request, or no more: connect the queue pair \
                 first, or take the next request";
    assert_eq!(CmError::Gone.to_string(), words);
    assert_eq!(request.unwrap().reject(b""), Err(CmError::Gone));
}

#[test]
fn causes_are_printed_with_a_remedy() {
    let words = [
        (Ended::Closed, "the context is closed: open another"),
        (
            Ended::Failed,
            "a defect of the stack, or the removal of the device, has ended the shards that this \
             needs: use others, or open another context",
        ),
        (
            Ended::Forked,
            "the context belongs to the process that this one was forked from: open contexts \
             after `fork`, or in a program started by `exec`",
        ),
    ];
    for (ended, words) in words {
        assert_eq!(ended.to_string(), words);
        assert_eq!(PostError::Ended(ended).to_string(), words);
        assert_eq!(CmError::Ended(ended).to_string(), words);
        assert_eq!(CreateError::Ended(ended).to_string(), words);
        assert_eq!(ResizeError::Ended(ended).to_string(), words);
        assert_eq!(ReqNotifyError::Ended(ended).to_string(), words);
        assert_eq!(SrqError::Ended(ended).to_string(), words);
        assert_eq!(MemoryError::Ended(ended).to_string(), words);
    }
}
