//! A child process has copies of all handles, which do not reach the parent's device.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use dpdk_sys::fork::run_in_child;
use ferrowarp::{
    Access, CmError, CompChannel, ConnParam, Context, DriveMode, Ended, EventChannel, Notify,
    OpenError, QpOptions, ResizeError, WcStatus,
};

use crate::support::*;

fn forked_child_leaves_the_parent_alone(drive: DriveMode) {
    let (left, right) = endpoints(drive);
    let (a, b) = connect(&left, &right);
    let listener = right.context.listen(PORT + 1, 4).unwrap();
    let idle = left.qp();
    let source = left.mr(4096, Access::LOCAL_READ);
    let sink = right.mr(4096, Access::REMOTE_WRITE);
    let mut parts = Some((left, right, a, b, listener, idle, source, sink));
    let passed = run_in_child(|| {
        let (left, right, a, b, listener, idle, source, sink) = parts.take().unwrap();
        let start = Instant::now();
        // Calls fail without waiting.
        assert_eq!(
            idle.connect(server(), ConnParam::default()),
            Err(CmError::Ended(Ended::Forked))
        );
        assert_eq!(a.disconnect(), Err(CmError::Ended(Ended::Forked)));
        assert!(!left.context.drive() && left.cq.poll_with(32, |_| ()) == 0);
        assert_eq!(left.context.connection_count(), 0);
        assert!(listener.accept_timeout(TIMEOUT).is_none());
        assert_eq!(left.context.listen(PORT + 7, 1).err(), Some(CmError::Ended(Ended::Forked)));
        assert!(left.context.create_cq(4).is_err());
        assert_eq!(left.cq.resize(8), Err(ResizeError::Ended(Ended::Forked)));
        assert!(left.pd.create_qp(&QpOptions::new(&left.cq)).is_err());
        assert!(b.wait_event(TIMEOUT).is_none());
        let other = Context::ring_pair(config(3, drive), config(4, drive));
        assert!(matches!(other, Err(OpenError::Device(_))));
        drop((a, b, listener, idle, source, sink));
        left.context.clone().close();
        drop((left, right));
        start.elapsed() < Duration::from_secs(30)
    });
    assert!(passed.unwrap(), "the child fails or hangs");
    // The child closed nothing, ended no connection and received no frame.
    let (left, right, a, _b, _listener, _idle, source, sink) = parts.take().unwrap();
    for round in 1..=100 {
        source.fill(0, 4096, round);
        write(&a, 1, source.sge(0, 4096), &sink, 0).unwrap();
        assert_eq!(left.completions(&right, 1)[0].status, WcStatus::Success);
        drive_until(&left.context, &right.context, || sink.load_last(4095) == round);
        assert_eq!(contents(&sink), [round; 4096]);
    }
    drop((a, _b));
    left.context.close();
    right.context.close();
}

#[test]
fn forked_child_leaves_an_inline_context_alone() {
    isolate!();
    forked_child_leaves_the_parent_alone(DriveMode::Inline);
}

#[test]
fn forked_child_leaves_a_helper_context_alone() {
    isolate!();
    forked_child_leaves_the_parent_alone(DriveMode::Helper);
}

/// Reads the bytes that make the descriptor readable, and returns how many there were.
fn pending_bytes(descriptor: &impl AsFd) -> usize {
    let mut file = File::from(descriptor.as_fd().try_clone_to_owned().unwrap());
    file.read(&mut [0; 8]).unwrap_or(0)
}

/// Calls `act` with both channels of a context while each has an event. The descriptors are created
/// before the events if `descriptors_first`.
fn with_events(descriptors_first: bool, act: impl FnOnce(&CompChannel, &EventChannel)) {
    let (left, right) = endpoints(DriveMode::Inline);
    let channel = right.context.create_comp_channel().unwrap();
    let events = right.context.event_channel().unwrap();
    if descriptors_first {
        assert_eq!((pending_bytes(&channel), pending_bytes(&events)), (0, 0));
    }
    let cq = right.context.create_cq_on(&channel, 16).unwrap();
    let options = QpOptions::new(&cq).max_send_wr(4).max_recv_wr(4);
    let b = right.pd.create_qp(&options).unwrap();
    let (_a, b) = connect_qps(&right, left.qp(), b).0;
    cq.req_notify(Notify::Next).unwrap();
    b.post_recv(1, right.mr(64, Access::LOCAL_WRITE).sge(0, 64)).unwrap();
    b.disconnect().unwrap();
    drive_for(&left.context, &right.context, Duration::from_millis(20));
    act(&channel, &events);
}

#[test]
fn forked_child_does_not_write_to_notify_fds() {
    isolate!();
    with_events(false, |channel, events| {
        let requests_fds = || channel.as_fd().as_raw_fd() >= 0 && events.as_fd().as_raw_fd() >= 0;
        assert!(run_in_child(requests_fds).unwrap());
        assert_eq!((pending_bytes(channel), pending_bytes(events)), (1, 1));
    });
}

#[test]
fn forked_child_does_not_read_from_notify_fds() {
    isolate!();
    with_events(true, |channel, events| {
        let finds_none = || channel.next_event().is_none() && events.next_event().is_none();
        assert!(run_in_child(finds_none).unwrap());
        assert_eq!((pending_bytes(channel), pending_bytes(events)), (1, 1));
        assert!(channel.next_event().is_some() && events.next_event().is_some());
    });
}
