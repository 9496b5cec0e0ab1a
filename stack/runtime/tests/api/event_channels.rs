//! Several event channels of one context.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use ferrowarp::{
    AsyncEvent, CmError, ConnParam, CreateError, DriveMode, EventChannel, Qp, QpOptions,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::support::*;

fn is_readable(channel: &EventChannel) -> bool {
    let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
}

fn drain(channel: &EventChannel) -> Vec<AsyncEvent> {
    std::iter::from_fn(|| channel.next_event()).collect()
}

fn named(qp: &Qp) -> AsyncEvent {
    AsyncEvent::Connection { qp: qp.id() }
}

/// As in librdmacm: a request comes to the channel of the listener, and the events of the
/// connection to that of the queue pair.
fn sources_report_to_their_channels(drive: DriveMode) {
    let (left, right) = endpoints(drive);
    let context = &right.context;
    let default = context.event_channel().unwrap();
    let [of_listener, of_qp] = [(); 2].map(|()| context.create_event_channel().unwrap());
    assert_ne!(of_listener.as_raw_fd(), of_qp.as_raw_fd());
    let listener = context.listen(PORT, 2).unwrap();
    listener.set_event_channel(&of_listener).unwrap();
    let a = left.qp();
    a.connect(server(), ConnParam::new()).unwrap();
    let request = AsyncEvent::ConnectRequest { listener: listener.local_addr() };
    let mut waited = None;
    drive_until(&left.context, context, || {
        waited = waited.or_else(|| of_listener.next_event());
        waited.is_some()
    });
    assert_eq!(waited, Some(request));
    let options = QpOptions::new(&right.cq).event_channel(&of_qp);
    let b = right.pd.create_qp(&options).unwrap();
    listener.next_request().unwrap().accept(&b, ConnParam::new()).unwrap();
    assert_eq!(of_qp.wait(TIMEOUT), Some(named(&b)));
    b.wait_established(TIMEOUT).unwrap();
    a.wait_established(TIMEOUT).unwrap();
    assert!(!is_readable(&of_qp));
    a.disconnect().unwrap();
    drive_until(&left.context, context, || is_readable(&of_qp));
    assert!(!is_readable(&default) && !is_readable(&of_listener));
    assert_eq!(drain(&of_qp), [named(&b)]);
    assert_eq!((drain(&default), drain(&of_listener)), (vec![], vec![]));
    assert!(b.wait_event(TIMEOUT).is_some(), "the details are at the source");
}

#[test]
fn sources_report_to_their_channels_inline() {
    sources_report_to_their_channels(DriveMode::Inline);
}

#[test]
fn sources_report_to_their_channels_with_a_helper() {
    sources_report_to_their_channels(DriveMode::Helper);
}

#[test]
fn pending_events_follow_a_queue_pair_and_outlive_its_channel() {
    let (left, right) = endpoints(DriveMode::Inline);
    let default = right.context.event_channel().unwrap();
    let (a, mut b) = connect(&left, &right);
    drain(&default);
    let created = right.context.create_event_channel().unwrap();
    a.disconnect().unwrap();
    drive_until(&left.context, &right.context, || is_readable(&default));
    b.set_event_channel(&created).unwrap();
    assert!(is_readable(&created) && !is_readable(&default));
    let again = created.clone();
    drop(created);
    assert!(is_readable(&again), "the last clone counts");
    drop(again);
    assert_eq!(default.next_event(), Some(named(&b)));
    // A queue pair that is reset keeps its channel.
    let created = right.context.create_event_channel().unwrap();
    b.set_event_channel(&created).unwrap();
    b.reset().unwrap();
    let c = left.qp();
    let ((_c, b), _) = connect_qps(&right, c, b);
    assert_eq!(created.wait(TIMEOUT), Some(named(&b)));
    assert_eq!(drain(&default), []);
}

/// The old channel's notification was taken, and what it names was not.
#[test]
fn source_that_moves_is_reported_again() {
    let (left, right) = endpoints(DriveMode::Inline);
    let context = &right.context;
    let default = context.event_channel().unwrap();
    let created = context.create_event_channel().unwrap();
    let listener = context.listen(PORT, 2).unwrap();
    let a = left.qp();
    a.connect(server(), ConnParam::new()).unwrap();
    drive_until(&left.context, context, || is_readable(&default));
    let request = AsyncEvent::ConnectRequest { listener: listener.local_addr() };
    assert_eq!(drain(&default), [request]);
    listener.set_event_channel(&created).unwrap();
    assert_eq!(drain(&created), [request]);
    let b = right.qp();
    listener.next_request().unwrap().accept(&b, ConnParam::new()).unwrap();
    drive_until(&left.context, context, || is_readable(&default));
    assert_eq!(drain(&default), [named(&b)]);
    b.set_event_channel(&created).unwrap();
    assert!(is_readable(&created));
    assert_eq!(drain(&created), [named(&b)]);
    b.wait_established(TIMEOUT).unwrap();
    // Nothing is left to report.
    b.set_event_channel(&default).unwrap();
    listener.set_event_channel(&default).unwrap();
    assert_eq!((drain(&default), drain(&created)), (vec![], vec![]));
}

#[test]
fn channel_of_another_context_is_refused() {
    let (left, right) = endpoints(DriveMode::Inline);
    let foreign = left.context.create_event_channel().unwrap();
    let options = QpOptions::new(&right.cq).event_channel(&foreign);
    assert!(matches!(right.pd.create_qp(&options), Err(CreateError::OtherContext)));
    assert_eq!(right.qp().set_event_channel(&foreign), Err(CmError::OtherChannel));
    let listener = right.context.listen(PORT, 1).unwrap();
    assert_eq!(listener.set_event_channel(&foreign), Err(CmError::OtherChannel));
    // All of them end with the context.
    let created = right.context.create_event_channel().unwrap();
    right.context.clone().close();
    assert_eq!(created.wait(Duration::MAX), None);
}
