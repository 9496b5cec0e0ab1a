use std::fs::File;
use std::io::Read;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ferrowarp_proto::verbs::wc::CqId;

use super::*;
use crate::device::DeviceSpec;
use crate::{Config, Context, DriveMode, QpOptions};

/// Event that names a source.
fn event(port: u16) -> AsyncEvent {
    AsyncEvent::ConnectRequest { listener: port.into() }
}

fn drain(events: &AsyncEventQueue) -> Vec<AsyncEvent> {
    std::iter::from_fn(|| events.lock().pop(ChannelId::DEFAULT)).collect()
}

#[test]
fn source_is_queued_once_and_in_order() {
    let events = AsyncEventQueue::new();
    let mut publisher = EventPublisher::new(Arc::clone(&events));
    let (a, b) = (event(1), event(2));
    let overrun = AsyncEvent::CqOverrun { cq: CqId(3) };
    for _ in 0..1000 {
        publisher.publish(a);
        publisher.publish(overrun);
        publisher.publish(b);
    }
    assert_eq!(drain(&events), [a, overrun, b]);
    // An event after one was taken is reported again.
    publisher.publish(b);
    assert_eq!(drain(&events), [b]);
}

/// The last of the states that are pending is the present one.
#[test]
fn state_that_is_entered_again_is_queued_last() {
    let events = AsyncEventQueue::new();
    let mut publisher = EventPublisher::new(Arc::clone(&events));
    let (error, active) = (AsyncEvent::PortError, AsyncEvent::PortActive);
    for state in [error, active, error] {
        assert!(events.publish_state(state));
    }
    publisher.publish(event(1));
    assert_eq!(drain(&events), [active, error, event(1)]);
    for state in [active, error, active] {
        assert!(events.publish_state(state));
    }
    events.close();
    assert!(!events.publish_state(error), "nothing is reported after the end");
    assert_eq!(drain(&events), [error, active]);
}

#[test]
fn removed_source_yields_no_event() {
    let events = AsyncEventQueue::new();
    let mut publisher = EventPublisher::new(Arc::clone(&events));
    let (a, b) = (event(1), event(2));
    publisher.publish(a);
    publisher.publish(b);
    // Held by this very thread: what is published is deferred.
    let ready = events.lock();
    publisher.publish(b);
    drop(ready);
    publisher.forget(b);
    events.remove(b);
    publisher.retry_deferred();
    assert_eq!(drain(&events), [a]);
}

/// The event of a source is withdrawn when the source was emptied in another way, and only then;
/// not from an application that looks at the queue.
#[test]
fn event_of_an_empty_source_is_withdrawn() {
    let events = AsyncEventQueue::new();
    let mut publisher = EventPublisher::new(Arc::clone(&events));
    let (a, b) = (event(1), event(2));
    publisher.publish(a);
    publisher.publish(b);
    events.remove_if_unseen(a, || false);
    events.remove_if_unseen(b, || true);
    assert_eq!(drain(&events), [a]);
    publisher.publish(b);
    assert_eq!(drain(&events), [b], "it is queued again");
    let _fd = events.fd(ChannelId::DEFAULT).unwrap();
    publisher.publish(a);
    events.remove_if_unseen(a, || true);
    assert_eq!(drain(&events), [a]);
}

/// A publication that finds the lock held wakes the sleeping thread when it is retried.
#[test]
fn sleeping_thread_wakes_for_its_source_alone() {
    let events = AsyncEventQueue::new();
    let mut publisher = EventPublisher::new(Arc::clone(&events));
    let (source, has_event) = (EventSource::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let ready = || has_event.load(Ordering::Acquire).then_some(());
            events.wait_for(event(1), &source, Duration::MAX, ready)
        });
        while events.lock().sleepers.is_empty() {
            std::thread::yield_now();
        }
        publisher.publish(event(2));
        assert!(!sleeper.is_finished());
        let ready = events.lock();
        has_event.store(true, Ordering::Release);
        publisher.publish(event(1));
        assert!(!publisher.is_drained());
        drop(ready);
        publisher.retry_deferred();
        assert_eq!(sleeper.join().unwrap(), Some(()));
    });
    assert!(events.lock().sleepers.is_empty());
    // One that has ended gives what it has, and nothing later.
    events.end_source(event(1), &source);
    assert_eq!(events.wait_for(event(1), &source, Duration::MAX, || Some(())), Some(()));
    assert_eq!(events.wait_for(event(1), &source, Duration::MAX, || None::<()>), None);
}

#[test]
fn publish_under_contention_is_deferred() {
    let events = AsyncEventQueue::new();
    let mut publisher = EventPublisher::new(Arc::clone(&events));
    let event = event(1);
    let overrun = AsyncEvent::CqOverrun { cq: CqId(3) };
    // Held by this very thread: a publisher that blocked would deadlock.
    let ready = events.lock();
    for _ in 0..1000 {
        publisher.publish(event);
        publisher.publish(overrun);
    }
    publisher.retry_deferred();
    assert!(!publisher.is_drained());
    drop(ready);
    publisher.retry_deferred();
    assert!(publisher.is_drained());
    assert_eq!(drain(&events), [event, overrun]);
}

#[test]
fn fd_is_readable_while_events_are_pending() {
    let events = AsyncEventQueue::new();
    let mut publisher = EventPublisher::new(Arc::clone(&events));
    let (a, b) = (event(1), event(2));
    // Created late, it is readable for an earlier event.
    publisher.publish(a);
    let fd = events.fd(ChannelId::DEFAULT).unwrap();
    let file = File::from(fd.as_fd().try_clone_to_owned().unwrap());
    // Counts the readable bytes and writes them back.
    let readable = || {
        let count = (&file).read(&mut [0; 8]).unwrap_or(0);
        (0..count).for_each(|_| fd.set());
        count
    };
    assert_eq!(readable(), 1);
    publisher.publish(b);
    assert_eq!(readable(), 1);
    events.lock().pop(ChannelId::DEFAULT);
    assert_eq!(readable(), 1);
    events.lock().pop(ChannelId::DEFAULT);
    assert_eq!(readable(), 0);
    publisher.publish(a);
    events.remove(a);
    assert_eq!(readable(), 0);
    // Even if the application reads the bytes itself, no event is lost.
    publisher.publish(b);
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

/// Also those whose source has not ended, and those that come too late.
#[test]
fn closed_queue_wakes_all_sleepers() {
    let (events, source) = (AsyncEventQueue::new(), EventSource::default());
    let sleep = |port| events.wait_for(event(port), &source, Duration::MAX, || None::<()>);
    std::thread::scope(|scope| {
        for port in 0..4 {
            scope.spawn(move || assert_eq!(sleep(port), None));
        }
        while events.lock().sleepers.len() < 4 {
            std::thread::yield_now();
        }
        events.close();
    });
    assert_eq!(sleep(4), None);
}

/// The next listener on the port has the same event, which must not be withdrawn with the last.
#[test]
fn port_is_free_once_the_event_of_its_listener_is_withdrawn() {
    let (context, _peer) = helped();
    let listener = context.listen(4791, 1).unwrap();
    let withdrawing = context.inner().events.lock();
    std::thread::scope(|scope| {
        scope.spawn(move || drop(listener));
        let (listening, listens) = std::sync::mpsc::channel();
        scope.spawn({
            let context = &context;
            move || {
                // Until the first one has ended.
                let successor =
                    std::iter::repeat_with(|| context.listen(4791, 1)).find_map(Result::ok);
                let _ = listening.send(successor);
            }
        });
        let early = listens.recv_timeout(Duration::from_millis(200));
        drop(withdrawing);
        assert!(early.is_err(), "the event may be the successor's");
        assert!(listens.recv().unwrap().is_some());
    });
}

#[test]
fn source_reports_to_its_channel_alone() {
    let events = AsyncEventQueue::new();
    let mut publisher = EventPublisher::new(Arc::clone(&events));
    let own = events.open_channel();
    let take = |channel| std::iter::from_fn(|| events.lock().pop(channel)).collect::<Vec<_>>();
    events.route(event(1), own);
    publisher.publish(event(1));
    publisher.publish(event(2));
    assert_eq!((take(own), take(ChannelId::DEFAULT)), (vec![event(1)], vec![event(2)]));
    // What is pending moves with its source, and back when the channel is closed.
    publisher.publish(event(2));
    events.route(event(2), own);
    assert_eq!((events.channel_of(event(2)), take(ChannelId::DEFAULT)), (own, vec![]));
    publisher.publish(event(1));
    events.close_channel(own);
    assert_eq!(take(ChannelId::DEFAULT), [event(2), event(1)]);
    assert_eq!(events.channel_of(event(1)), ChannelId::DEFAULT);
    // The name of a source that is destroyed may be given to another.
    let other = events.open_channel();
    events.route(event(1), other);
    events.remove(event(1));
    publisher.publish(event(1));
    assert_eq!((take(other), take(ChannelId::DEFAULT)), (vec![], vec![event(1)]));
}
