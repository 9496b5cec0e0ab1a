//! The state of a port's link, and the events that report its changes.

use std::time::{Duration, Instant};

use ferrowarp::{
    Access, AsyncEvent, ConnEvent, ConnParam, ConnectError, Context, DriveMode, EndReason,
    EventChannel, Qp, QpState, TcpState, WcStatus,
};

use crate::support::heap_port::{TestLink, linked_contexts};
use crate::support::*;

/// Opens two contexts, the right one with this link.
fn open(drive: DriveMode, link: &TestLink) -> (Context, Context) {
    linked_contexts(config(1, drive), config(2, drive), link)
}

fn drain(channel: &EventChannel) -> Vec<AsyncEvent> {
    std::iter::from_fn(|| channel.next_event()).collect()
}

/// Sets the state of the link, and waits until the context has noticed.
fn change(link: &TestLink, context: &Context, is_up: bool) {
    link.set(is_up);
    let start = Instant::now();
    while context.link_is_up() != is_up {
        assert!(start.elapsed() < TIMEOUT, "a change is noticed");
        std::thread::yield_now();
    }
}

fn changes_are_reported(drive: DriveMode) {
    let link = TestLink::new(true);
    let (left, right) = open(drive, &link);
    let [left_channel, channel] = [&left, &right].map(|end| end.event_channel().unwrap());
    assert!(left.link_is_up() && right.link_is_up());
    for (is_up, event) in [(false, AsyncEvent::PortError), (true, AsyncEvent::PortActive)] {
        link.set(is_up);
        assert_eq!(channel.wait(TIMEOUT), Some(event));
        assert_eq!(right.link_is_up(), is_up);
    }
    assert_eq!(drain(&channel), []);
    assert!(left.link_is_up() && drain(&left_channel).is_empty(), "the other port's link");
}

#[test]
fn changes_of_the_link_are_reported_inline() {
    changes_are_reported(DriveMode::Inline);
}

#[test]
fn changes_of_the_link_are_reported_with_a_dedicated_thread() {
    changes_are_reported(DriveMode::Dedicated);
}

#[test]
fn changes_of_the_link_are_reported_with_a_helper() {
    changes_are_reported(DriveMode::Helper);
}

/// As a NIC's for some seconds after its start.
#[test]
fn link_that_is_down_at_first_is_no_error() {
    let link = TestLink::new(false);
    let (_left, right) = open(DriveMode::Inline, &link);
    assert!(!right.link_is_up());
    change(&link, &right, true);
    let channel = right.event_channel().unwrap();
    assert_eq!(channel.wait(TIMEOUT), Some(AsyncEvent::PortActive));
    assert_eq!(drain(&channel), []);
}

/// However often the link has changed before the application looks, the last event is its state.
#[test]
fn last_event_is_the_state_of_the_link() {
    let link = TestLink::new(true);
    let (_left, right) = open(DriveMode::Inline, &link);
    let channel = right.event_channel().unwrap();
    for is_up in [false, true, false, true, false] {
        change(&link, &right, is_up);
    }
    // The last one is published just after the state is, and may follow those of before.
    let mut events = Vec::new();
    while events.len() < 2 || events.last() != Some(&AsyncEvent::PortError) {
        events.push(channel.wait(TIMEOUT).expect("the last event"));
    }
    assert_eq!(events[events.len() - 2], AsyncEvent::PortActive, "{events:?}");
}

/// A link that is down ends no connection if it is not to, and a driver that takes long to read it
/// delays none.
#[test]
fn connection_lives_while_the_link_is_down_or_read() {
    let link = TestLink::new(true);
    let (left, right) = open_with_grace(DriveMode::Inline, &link, None);
    let (a, b) = connect(&left, &right);
    let source = left.mr(64, Access::LOCAL_READ);
    let remote = right.mr(64, Access::REMOTE_WRITE);
    change(&link, &right.context, false);
    let is_read = link.is_up.lock().unwrap();
    for wr_id in 0..4 {
        write(&a, wr_id, source.sge(0, 64), &remote, 0).unwrap();
        assert_eq!(left.completions(&right, 1)[0].wr_id, wr_id);
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(is_read);
    assert!(!right.context.link_is_up());
    assert_eq!(b.state(), QpState::Rts);
}

fn open_with_grace(
    drive: DriveMode,
    link: &TestLink,
    grace: Option<Duration>,
) -> (Endpoint, Endpoint) {
    let mut right = config(2, drive);
    right.link_down_grace = grace;
    let (left, right) = linked_contexts(config(1, drive), right, link);
    (Endpoint::new(left), Endpoint::new(right))
}

/// Waits until the connection of a queue pair ends with the link, and returns how long that takes.
fn ends_with_link(right: &Endpoint, b: &Qp) -> Duration {
    let start = Instant::now();
    let event = b.wait_event(TIMEOUT);
    let took = start.elapsed();
    let expected = ConnEvent::Disconnected { qp: b.id(), reason: EndReason::LinkDown };
    assert_eq!(event, Some(expected));
    assert_eq!((b.state(), right.context.connection_count()), (QpState::Error, 0));
    took
}

/// The other process is killed: its connections, requests and attempts end, and the listener serves
/// the next one.
fn peer_loss_ends_connections(drive: DriveMode) {
    let link = TestLink::new(true);
    let (left, right) = open_with_grace(drive, &link, Some(Duration::ZERO));
    let (_a, b) = connect(&left, &right);
    b.post_recv(1, []).unwrap();
    let connecting = right.qp();
    connecting.connect((address(9), PORT).into(), ConnParam::new()).unwrap();
    let listener = right.context.listen(PORT + 1, 1).unwrap();
    let asking = left.qp();
    asking.connect((address(2), PORT + 1).into(), ConnParam::new()).unwrap();
    let request = listener.accept_timeout(TIMEOUT).expect("a request");
    let list = right.context.connections();
    let of = |qp: &Qp| list.iter().find(|each| each.qp == Some(qp.id())).expect("listed");
    assert_eq!(list.len(), 3);
    assert_eq!((of(&b).tcp_state, of(&b).is_passive), (TcpState::Established, true));
    assert_eq!((Some(of(&b).local), Some(of(&b).peer)), (b.local(), b.peer()));
    assert_eq!(of(&connecting).tcp_state, TcpState::SynSent);
    assert!(!of(&connecting).is_passive && of(&connecting).stats.segments_out <= 1);
    assert!(list.iter().any(|each| each.qp.is_none() && each.local.port() == PORT + 1));
    assert!(list.iter().all(|each| each.age < TIMEOUT && each.idle < TIMEOUT));

    link.set(false);
    let took = ends_with_link(&right, &b);
    assert!(took < Duration::from_secs(1), "{took:?}");
    let found = right.completions(&left, 1);
    assert_eq!((found[0].wr_id, found[0].status), (1, WcStatus::Flushed));
    assert_eq!(connecting.wait_established(TIMEOUT), Err(ConnectError::LinkDown));
    assert!(request.accept(&right.qp(), ConnParam::new()).is_err(), "the request is gone");

    link.set(true);
    drop((asking, listener));
    let (_, next) = connect(&left, &right);
    assert_eq!(next.state(), QpState::Rts);
}

#[test]
fn peer_loss_ends_connections_inline() {
    peer_loss_ends_connections(DriveMode::Inline);
}

#[test]
fn peer_loss_ends_connections_with_a_helper() {
    peer_loss_ends_connections(DriveMode::Helper);
}

/// The end of one process and the arrival of the next lie between two readings.
#[test]
fn process_that_is_replaced_at_once_is_lost_as_well() {
    let link = TestLink::new(true);
    let (left, right) = open_with_grace(DriveMode::Inline, &link, Some(Duration::ZERO));
    let (_a, b) = connect(&left, &right);
    link.flap();
    ends_with_link(&right, &b);
    let (_, next) = connect(&left, &right);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(next.state(), QpState::Rts, "once");
}

/// The next process connects before anybody has read the state.
#[test]
fn connection_to_the_next_process_is_not_lost_with_the_last_one() {
    let link = TestLink::new(true);
    let (left, right) = open_with_grace(DriveMode::Inline, &link, Some(Duration::ZERO));
    let (_a, b) = connect(&left, &right);
    // Keeps the reading back.
    let is_read = link.is_up.lock().unwrap();
    link.flap();
    let (_next_a, next) = connect(&left, &right);
    drop(is_read);
    let event = b.wait_event(TIMEOUT);
    let expected = ConnEvent::Disconnected { qp: b.id(), reason: EndReason::LinkDown };
    assert_eq!(event, Some(expected));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!((next.state(), right.context.connection_count()), (QpState::Rts, 1));
    assert_eq!(next.next_event(), None);
}

/// It came and went between two readings.
#[test]
fn process_that_was_never_seen_is_lost_as_well() {
    let link = TestLink::new(false);
    let (left, right) = open_with_grace(DriveMode::Inline, &link, Some(Duration::ZERO));
    let (_a, b) = connect(&left, &right);
    link.flap();
    ends_with_link(&right, &b);
}

/// A switch that restarts within the time costs no connection.
#[test]
fn peer_is_lost_after_the_grace_alone() {
    const GRACE: Duration = Duration::from_millis(600);
    let link = TestLink::new(true);
    let (left, right) = open_with_grace(DriveMode::Inline, &link, Some(GRACE));
    let (_a, b) = connect(&left, &right);
    change(&link, &right.context, false);
    change(&link, &right.context, true);
    link.flap();
    assert_eq!(b.wait_event(GRACE + Duration::from_millis(300)), None);
    change(&link, &right.context, false);
    let took = ends_with_link(&right, &b);
    assert!(took >= GRACE - Duration::from_millis(150), "{took:?}");
}

/// As of the second client of a `memif` server, which serves one.
#[test]
fn connect_names_a_link_that_is_down() {
    let link = TestLink::new(false);
    let (left, right) = open(DriveMode::Inline, &link);
    let (left, right) = (Endpoint::new(left), Endpoint::new(right));
    let failure = |from: &Endpoint, to| {
        let qp = from.qp();
        qp.connect(std::net::SocketAddr::new(to, 7), ConnParam::default()).unwrap();
        qp.wait_established(Duration::from_millis(100)).unwrap_err()
    };
    assert_eq!(failure(&right, address(9)), ConnectError::LinkDown);
    change(&link, &right.context, true);
    assert_eq!(failure(&right, address(9)), ConnectError::TimedOut);
    drop(left);
}

/// What failed before the link went down did not fail because of it.
#[test]
fn connect_that_failed_before_does_not_name_the_link() {
    let link = TestLink::new(true);
    let (left, right) = open(DriveMode::Inline, &link);
    let (left, right) = (Endpoint::new(left), Endpoint::new(right));
    let channel = right.context.event_channel().unwrap();
    let failure = |state_then| {
        let qp = right.qp();
        let param = ConnParam::new().connect_timeout(Duration::from_millis(50));
        qp.connect((address(9), PORT).into(), param).unwrap();
        let named = AsyncEvent::Connection { qp: qp.id() };
        drive_until(&left.context, &right.context, || channel.next_event() == Some(named));
        change(&link, &right.context, state_then);
        let error = qp.wait_established(TIMEOUT).unwrap_err();
        assert_eq!(qp.attrs().unwrap().connect_error, Some(error));
        error
    };
    assert_eq!(failure(false), ConnectError::TimedOut);
    assert_eq!(failure(true), ConnectError::LinkDown);
}

#[test]
fn process_that_left_the_link_is_gone() {
    let link = TestLink::new(false);
    let (_left, right) = open(DriveMode::Inline, &link);
    assert!(!right.peer_is_gone(), "it has not come yet");
    change(&link, &right, true);
    assert!(!right.peer_is_gone());
    change(&link, &right, false);
    assert!(right.peer_is_gone());
    change(&link, &right, true);
    assert!(!right.peer_is_gone(), "another one has come");
}

/// The second of two clients of one server is not served, and the first is at once.
#[test]
fn process_that_does_not_serve_this_one_is_gone_after_a_second() {
    let link = TestLink { joins: true, ..TestLink::new(false) };
    let (_left, right) = open(DriveMode::Inline, &link);
    let start = Instant::now();
    while !right.peer_is_gone() {
        assert!(start.elapsed() < TIMEOUT, "it is noticed");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(start.elapsed() >= Duration::from_millis(900), "it may take a little to be served");
    change(&link, &right, true);
    assert!(!right.peer_is_gone(), "it is served after all");
}

#[test]
fn closing_drops_the_link_before_the_port() {
    let link = TestLink::new(true);
    let (left, right) = open(DriveMode::Inline, &link);
    let again = right.clone();
    right.close();
    assert!(!again.link_is_up());
    assert_eq!(*link.dropped.lock().unwrap(), ["link", "port"]);
    drop(left);
}
