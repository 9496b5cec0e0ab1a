//! A child made by `fork` has copies of all handles, and leaves the parent's device alone.

mod support;

use std::time::{Duration, Instant};

use dpdk_sys::fork::run_in_child;
use ferrowarp::{Access, CmError, ConnParam, Context, DriveMode, OpenError, WcStatus};
use support::*;

fn a_child_disturbs_nothing(drive: DriveMode) {
    let (left, right) = ends(drive);
    let (a, b) = connect(&left, &right);
    let listener = right.context.listen(PORT + 1, 4).unwrap();
    let idle = left.qp();
    let source = left.mr(4096, Access::LOCAL_READ);
    let sink = right.mr(4096, Access::REMOTE_WRITE);
    let mut parts = Some((left, right, a, b, listener, idle, source, sink));
    let well = run_in_child(|| {
        let (left, right, a, b, listener, idle, source, sink) = parts.take().unwrap();
        let start = Instant::now();
        // As after closing, and at once.
        assert_eq!(idle.connect(server(), ConnParam::default()), Err(CmError::Gone));
        assert_eq!(a.disconnect(), Err(CmError::Gone));
        assert!(!left.context.drive() && left.cq.poll(&mut Vec::new()) == 0);
        assert_eq!(left.context.connection_count(), 0);
        assert!(listener.accept_timeout(PATIENCE).is_none());
        assert!(b.wait_event(PATIENCE).is_none());
        let other = Context::ring_pair(config(3, drive), config(4, drive));
        assert!(matches!(other, Err(OpenError::Device(_))));
        drop((a, b, listener, idle, source, sink));
        left.context.clone().close();
        drop((left, right));
        start.elapsed() < Duration::from_secs(30)
    });
    assert!(well.unwrap(), "the child fails or hangs");
    // Nothing was closed, ended or taken.
    let (left, right, a, _b, _listener, _idle, source, sink) = parts.take().unwrap();
    for round in 1..=100 {
        source.fill(0, 4096, round);
        a.post_send(write(1, source.sge(0, 4096), &sink, 0)).unwrap();
        assert_eq!(left.completions(&right, 1)[0].status, WcStatus::Success);
        until(&left.context, &right.context, || sink.load_last(4095) == round);
        assert_eq!(contents(&sink), [round; 4096]);
    }
    drop((a, _b));
    left.context.close();
    right.context.close();
}

#[test]
fn a_child_disturbs_nothing_that_the_application_drives() {
    a_child_disturbs_nothing(DriveMode::Inline);
}

#[test]
fn a_child_disturbs_nothing_that_a_helper_drives() {
    a_child_disturbs_nothing(DriveMode::Helper);
}
