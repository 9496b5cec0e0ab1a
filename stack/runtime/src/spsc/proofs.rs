use loom::thread;

use super::*;
use crate::spin_lock::SpinLock;

#[test]
fn values_arrive_once_in_order_whole() {
    loom::model(|| {
        let (mut tx, mut rx) = ring(2);
        let producer = thread::spawn(move || {
            for value in 0..3_u32 {
                let mut value = Box::new(value);
                while let Err(back) = tx.push(value) {
                    value = back;
                    thread::yield_now();
                }
                tx.publish();
            }
        });
        let mut next = 0;
        while next < 3 {
            match rx.pop() {
                Some(value) => {
                    assert_eq!(*value, next);
                    next += 1;
                }
                None => thread::yield_now(),
            }
        }
        producer.join().unwrap();
        assert!(rx.pop().is_none());
    });
}

/// Slots are replaced under the locks of both sides, between an unpublished value and its
/// publication or before or after: each side finds the values where they are, and a thread that
/// looks without a lock does not miss one.
#[test]
fn values_outlast_the_slots() {
    loom::model(|| {
        let (mut tx, rx) = ring(1);
        let peek = rx.peek();
        assert!(tx.push(1_u32).is_ok());
        let (tx, rx) = (Arc::new(SpinLock::new(tx)), Arc::new(SpinLock::new(rx)));
        let producer = {
            let tx = Arc::clone(&tx);
            thread::spawn(move || {
                tx.lock().publish();
                let mut tx = tx.lock();
                let second = tx.push(2).is_ok();
                tx.publish();
                second
            })
        };
        let consumer = {
            let rx = Arc::clone(&rx);
            thread::spawn(move || {
                // As a poll does: it locks only what is not empty.
                if peek.is_empty() { None } else { Some(rx.lock().pop()) }
            })
        };
        let is_replaced = {
            let mut tx = tx.lock();
            let rx = rx.try_lock();
            rx.map(|mut rx| replace_slots(&mut tx, &mut rx, &mut Slots::new(2))).is_some()
        };
        let second = producer.join().unwrap();
        let first = consumer.join().unwrap();
        assert!(first.is_none_or(|value| value == Some(1)), "not empty, and nothing there");
        let mut rx = rx.lock();
        if first.is_none() {
            assert_eq!(rx.pop(), Some(1));
        }
        assert_eq!(rx.pop(), second.then_some(2));
        assert!(rx.pop().is_none());
        // Whoever pushes next sees the new slots.
        let mut tx = tx.lock();
        let places = (0..2).take_while(|&value| tx.push(value).is_ok()).count();
        assert_eq!(places, if is_replaced { 2 } else { 1 });
    });
}
