//! States of queues as events arrive, and bursts at the end of a connection.

use std::time::Instant;

use super::*;

fn enable(watched: &mut Watched, queue: u16, is_rx: bool, is_enabled: bool) {
    watched.on_vring(QueueEvent { queue, is_rx, is_enabled });
    watched.publish().iter().for_each(|queue| queue.wait());
}

fn states(watched: &Watched) -> Vec<RingState> {
    (0..2).map(|queue| watched.ring_state(queue)).collect()
}

#[test]
fn queue_has_a_ring_while_both_of_its_vrings_are_enabled() {
    use RingState::{Absent, LinkDown, Present};
    let mut watched = Watched::new(0, 2, None);
    let [mut rx, _tx] = watched.register_queue();
    // The first pair is enabled before the link is up.
    enable(&mut watched, 0, false, true);
    enable(&mut watched, 0, true, true);
    assert!(!rx.has_ring());
    watched.on_link(true);
    watched.publish().iter().for_each(|queue| queue.wait());
    assert_eq!(states(&watched), [LinkDown; 2], "others may follow");
    enable(&mut watched, 1, false, true);
    assert_eq!(states(&watched), [LinkDown; 2]);
    enable(&mut watched, 1, true, true);
    assert_eq!(states(&watched), [Present; 2]);
    assert!(rx.try_lock().is_some());
    // Of more queues than there are here, nothing follows.
    enable(&mut watched, 7, true, true);
    assert_eq!(states(&watched), [Present; 2]);
    watched.on_link(false);
    watched.publish().iter().for_each(|queue| queue.wait());
    assert!(rx.try_lock().is_none() && !rx.is_ring_known());

    watched.on_link(true);
    enable(&mut watched, 0, false, true);
    enable(&mut watched, 0, true, true);
    assert_eq!(states(&watched), [LinkDown; 2], "those of the last connection are forgotten");
    watched.is_settled = true;
    assert_eq!(states(&watched), [Present, Absent]);
    let [second, _tx] = watched.register_queue();
    assert!(second.is_ring_absent());
    enable(&mut watched, 0, true, false);
    assert!(rx.is_ring_absent() && rx.try_lock().is_none());
}

#[test]
fn end_of_a_connection_waits_for_the_burst_in_flight() {
    let mut watched = Watched::new(0, 1, None);
    let [mut rx, mut tx] = watched.register_queue();
    enable(&mut watched, 0, false, true);
    enable(&mut watched, 0, true, true);
    watched.on_link(true);
    watched.publish().iter().for_each(|queue| queue.wait());
    assert!(tx.try_lock().is_some());
    let burst = rx.try_lock().expect("a burst begins");
    let ended = std::thread::scope(|scope| {
        let ending = scope.spawn(|| {
            watched.on_link(false);
            watched.publish().iter().for_each(|queue| queue.wait());
            Instant::now()
        });
        while tx.has_ring() {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(20));
        assert!(!ending.is_finished());
        let ends = Instant::now();
        drop(burst);
        let ended = ending.join().unwrap();
        assert!(ended >= ends);
        ended
    });
    assert!(rx.try_lock().is_none());
    // It does not wait for a queue that is gone, nor for ever.
    watched.on_link(true);
    watched.publish().iter().for_each(|queue| queue.wait());
    drop((rx, tx));
    watched.on_link(false);
    watched.publish().iter().for_each(|queue| queue.wait());
    assert!(ended.elapsed() < Duration::from_secs(10));
}
