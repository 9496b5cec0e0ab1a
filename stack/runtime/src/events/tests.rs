use std::fs::File;
use std::io::Read;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use ferrowarp_proto::verbs::wc::CqId;

use super::*;
use crate::device::DeviceSpec;
use crate::{Config, Context, DriveMode, QpOptions};

fn source(port: u16) -> (Arc<EventSource>, AsyncEvent) {
    let (source, event) = (EventSource::new(), AsyncEvent::ConnectRequest { port });
    source.set_event(event);
    (source, event)
}

fn drain(events: &AsyncEventQueue) -> Vec<AsyncEvent> {
    std::iter::from_fn(|| events.lock().pop()).collect()
}

#[test]
fn source_is_queued_once_and_in_order() {
    let events = AsyncEventQueue::new();
    let mut publisher = EventPublisher::new(Arc::clone(&events));
    let ((a, event_a), (b, event_b)) = (source(1), source(2));
    let overrun = AsyncEvent::CqOverrun { cq: CqId(3) };
    for _ in 0..1000 {
        publisher.publish(&a);
        publisher.publish_error(overrun);
        publisher.publish(&b);
    }
    assert_eq!(drain(&events), [event_a, overrun, event_b]);
    // An event after one was taken is reported again.
    publisher.publish(&b);
    assert_eq!(drain(&events), [event_b]);
}

#[test]
fn removed_source_yields_no_event() {
    let events = AsyncEventQueue::new();
    let mut publisher = EventPublisher::new(Arc::clone(&events));
    let ((a, event_a), (b, _)) = (source(1), source(2));
    publisher.publish(&a);
    publisher.publish(&b);
    events.remove(&b);
    publisher.publish(&b);
    assert_eq!(drain(&events), [event_a]);
}

#[test]
fn publish_under_contention_is_deferred() {
    let events = AsyncEventQueue::new();
    let mut publisher = EventPublisher::new(Arc::clone(&events));
    let (source, event) = source(1);
    let overrun = AsyncEvent::CqOverrun { cq: CqId(3) };
    // Held by this very thread: a publisher that blocked would deadlock.
    let ready = events.lock();
    for _ in 0..1000 {
        publisher.publish(&source);
        publisher.publish_error(overrun);
    }
    publisher.retry_deferred();
    assert!(!publisher.is_drained());
    drop(ready);
    publisher.retry_deferred();
    assert!(publisher.is_drained());
    assert_eq!(drain(&events), [event, overrun]);

    let sleepers = source.lock_sleepers();
    publisher.publish(&source);
    assert!(!publisher.is_drained());
    drop(sleepers);
    publisher.retry_deferred();
    assert!(publisher.is_drained());
    assert_eq!(drain(&events), [event]);
}

#[test]
fn fd_is_readable_while_events_are_pending() {
    let events = AsyncEventQueue::new();
    let mut publisher = EventPublisher::new(Arc::clone(&events));
    let ((a, _), (b, _)) = (source(1), source(2));
    // Created late, it is readable for an earlier event.
    publisher.publish(&a);
    let fd = events.fd().unwrap();
    let file = File::from(fd.as_fd().try_clone_to_owned().unwrap());
    // Counts the readable bytes and writes them back.
    let readable = || {
        let count = (&file).read(&mut [0; 8]).unwrap_or(0);
        (0..count).for_each(|_| fd.set());
        count
    };
    assert_eq!(readable(), 1);
    publisher.publish(&b);
    assert_eq!(readable(), 1);
    events.lock().pop();
    assert_eq!(readable(), 1);
    events.lock().pop();
    assert_eq!(readable(), 0);
    publisher.publish(&a);
    events.remove(&a);
    assert_eq!(readable(), 0);
    // Even if the application reads the bytes itself, no event is lost.
    publisher.publish(&b);
    let _ = (&file).read(&mut [0; 2]);
    assert_eq!(drain(&events).len(), 1);
}

/// Two contexts on a ring, polled by helpers.
fn helped() -> (Context, Context) {
    let config = |host| {
        let address = Ipv4Addr::new(198, 18, 0, host).into();
        let mut config = Config::new(DeviceSpec::Ring, address, 24);
        config.drive = DriveMode::Helper;
        config
    };
    Context::ring_pair(config(1), config(2)).unwrap()
}

#[test]
fn exported_event_fd_counts_as_a_waiter() {
    let (context, _peer) = helped();
    let channel = context.event_channel().unwrap();
    let waiters = || context.inner().shards.get(0).helper_wakeup().waiters();
    assert!(!waiters().any());
    let _ = channel.as_fd();
    assert!(waiters().fd_exported && !waiters().sleeping);
}

/// Sleeping would hand polling over and end the helper's long sleeps.
#[test]
fn wait_of_zero_does_not_hand_over_to_the_helper() {
    let (context, _peer) = helped();
    let (channel, events) =
        (context.create_comp_channel().unwrap(), context.event_channel().unwrap());
    let (pd, cq) = (context.alloc_pd(), context.create_cq_on(&channel, 4).unwrap());
    let options = QpOptions::new(&cq).max_send_wr(1).max_recv_wr(1);
    let qp = pd.create_qp(&options).unwrap();
    let wait_seq = || context.inner().shards.get(0).helper_wakeup().waiters().wait_seq;
    let before = wait_seq();
    assert_eq!(channel.wait(Duration::ZERO), None);
    assert_eq!(events.wait(Duration::ZERO), None);
    assert_eq!(qp.wait_event(Duration::ZERO), None);
    assert_eq!(wait_seq(), before);
    let shortest = Duration::from_millis(1);
    assert_eq!(channel.wait(shortest), None);
    assert_eq!(events.wait(shortest), None);
    assert_eq!(qp.wait_event(shortest), None);
    assert_eq!(wait_seq(), before + 3);
}
