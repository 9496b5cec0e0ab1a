use super::*;

fn source(port: u16) -> (Arc<Source>, AsyncEvent) {
    let (source, event) = (Source::new(), AsyncEvent::ConnectRequest { port });
    source.name(event);
    (source, event)
}

fn all(events: &Events) -> Vec<AsyncEvent> {
    std::iter::from_fn(|| events.lock().take()).collect()
}

#[test]
fn each_source_is_in_line_once_and_in_order() {
    let events = Events::new();
    let mut teller = Teller::new(Arc::clone(&events));
    let ((a, event_a), (b, event_b)) = (source(1), source(2));
    let overrun = AsyncEvent::CqOverrun { cq: CqId(3) };
    for _ in 0..1000 {
        teller.tell(&a);
        teller.tell_error(overrun);
        teller.tell(&b);
    }
    assert_eq!(all(&events), [event_a, overrun, event_b]);
    // What happens after an event was taken is told of again.
    teller.tell(&b);
    assert_eq!(all(&events), [event_b]);
}

#[test]
fn a_source_that_is_gone_is_told_of_no_more() {
    let events = Events::new();
    let mut teller = Teller::new(Arc::clone(&events));
    let ((a, event_a), (b, _)) = (source(1), source(2));
    teller.tell(&a);
    teller.tell(&b);
    events.forget(&b);
    teller.tell(&b);
    assert_eq!(all(&events), [event_a]);
}

#[test]
fn the_shard_does_not_wait_for_a_lock_and_tells_later() {
    let events = Events::new();
    let mut teller = Teller::new(Arc::clone(&events));
    let (source, event) = source(1);
    let overrun = AsyncEvent::CqOverrun { cq: CqId(3) };
    // Held by this very thread: a teller that waited would do so for ever.
    let ready = events.lock();
    for _ in 0..1000 {
        teller.tell(&source);
        teller.tell_error(overrun);
    }
    teller.tell_rest();
    assert!(!teller.is_done());
    drop(ready);
    teller.tell_rest();
    assert!(teller.is_done());
    assert_eq!(all(&events), [event, overrun]);

    let sleepers = source.lock_sleepers();
    teller.tell(&source);
    assert!(!teller.is_done());
    drop(sleepers);
    teller.tell_rest();
    assert!(teller.is_done());
    assert_eq!(all(&events), [event]);
}

#[test]
fn the_descriptor_is_readable_while_events_wait() {
    let events = Events::new();
    let mut teller = Teller::new(Arc::clone(&events));
    let ((a, _), (b, _)) = (source(1), source(2));
    // Made late, it tells of what was there before.
    teller.tell(&a);
    let wakeup = events.wakeup().unwrap();
    // Octets that are there; put back where they were.
    let readable = || {
        let count = (&wakeup.reader).read(&mut [0; 8]).unwrap_or(0);
        (&wakeup.writer).write_all(&[0; 8][..count]).unwrap();
        count
    };
    assert_eq!(readable(), 1);
    teller.tell(&b);
    assert_eq!(readable(), 1);
    events.lock().take();
    assert_eq!(readable(), 1);
    events.lock().take();
    assert_eq!(readable(), 0);
    teller.tell(&a);
    events.forget(&a);
    assert_eq!(readable(), 0);
    // Even if the application takes the octets itself nobody waits for ever.
    teller.tell(&b);
    let _ = (&wakeup.reader).read(&mut [0; 2]);
    assert_eq!(all(&events).len(), 1);
}
