use std::collections::VecDeque;

use super::*;

/// Random operations of a test; miri takes a thousand times as long for each.
const STEPS: u64 = if cfg!(miri) { 1_000 } else { 100_000 };

#[test]
fn full_ring_is_not_taken_for_empty() {
    let (mut tx, mut rx) = ring(4);
    for value in 0..4 {
        tx.push(value).unwrap();
    }
    assert_eq!(tx.push(4), Err(4));
    assert_eq!(rx.pop(), None, "nothing is seen before it is published");
    tx.publish();
    let mut out = [9; 3];
    assert_eq!(rx.pop_into(&mut out), 3);
    assert_eq!(out, [0, 1, 2]);
    tx.push(4).unwrap();
    tx.publish();
    assert_eq!((rx.pop(), rx.pop(), rx.pop()), (Some(3), Some(4), None));
}

#[test]
fn matches_a_deque_over_random_operations() {
    let (mut tx, mut rx) = ring(8);
    let mut model = VecDeque::new();
    let mut state = 1_u64;
    for step in 0..STEPS {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        if state >> 63 == 0 {
            if tx.push(step).is_ok() {
                model.push_back(step);
            } else {
                assert_eq!(model.len(), 8);
            }
            tx.publish();
        } else {
            assert_eq!(rx.pop(), model.pop_front());
        }
    }
}

/// Some values are not published when the slots are replaced.
#[test]
fn ring_whose_slots_are_replaced_matches_a_deque() {
    let (mut tx, mut rx) = ring(8);
    let peek = rx.peek();
    let (mut model, mut capacity, mut unpublished) = (VecDeque::new(), 8, 0);
    let mut state = 1_u64;
    for step in 0..STEPS {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        match state >> 60 {
            0..8 => {
                if tx.push(step).is_ok() {
                    model.push_back(step);
                    unpublished += 1;
                } else {
                    assert_eq!(model.len(), capacity, "step {step}");
                }
                if state >> 58 & 1 == 0 {
                    tx.publish();
                    unpublished = 0;
                }
            }
            8..15 => {
                assert_eq!(peek.len_min(), model.len() - unpublished);
                assert_eq!(peek.is_empty(), model.len() == unpublished);
                if model.len() == unpublished {
                    assert_eq!(rx.pop(), None);
                } else {
                    assert_eq!(rx.pop(), model.pop_front(), "step {step}");
                }
            }
            _ => {
                let wanted = 1 << (state >> 56 & 7);
                assert_eq!(held(&tx, &rx), model.len());
                if wanted >= model.len() {
                    let mut slots = Slots::new(wanted);
                    replace_slots(&mut tx, &mut rx, &mut slots);
                    assert_eq!(slots.count(), std::mem::replace(&mut capacity, wanted));
                }
            }
        }
    }
}

#[test]
#[should_panic = "3 values for 2 slots"]
fn values_are_not_moved_to_fewer_slots() {
    let (mut tx, mut rx) = ring(4);
    (0..3).for_each(|value| tx.push(value).unwrap());
    replace_slots(&mut tx, &mut rx, &mut Slots::new(2));
}

#[test]
#[should_panic = "sides of different rings"]
fn slots_of_two_rings_are_not_exchanged() {
    let ((mut tx, _), (_, mut rx)) = (ring::<u32>(4), ring(4));
    replace_slots(&mut tx, &mut rx, &mut Slots::new(2));
}

#[test]
fn moved_values_are_dropped_once() {
    let token = std::sync::Arc::new(());
    let (mut tx, mut rx) = ring(4);
    for _ in 0..3 {
        tx.push(std::sync::Arc::clone(&token)).unwrap();
    }
    let mut slots = Slots::new(16);
    replace_slots(&mut tx, &mut rx, &mut slots);
    drop(slots);
    assert_eq!(std::sync::Arc::strong_count(&token), 4);
    drop(tx);
    drop(rx);
    assert_eq!(std::sync::Arc::strong_count(&token), 1);
}

#[test]
fn unread_values_are_dropped_with_the_ring() {
    let token = std::sync::Arc::new(());
    let (mut tx, rx) = ring(4);
    for _ in 0..3 {
        tx.push(std::sync::Arc::clone(&token)).unwrap();
    }
    drop(tx);
    drop(rx);
    assert_eq!(std::sync::Arc::strong_count(&token), 1);
}

#[test]
fn order_is_kept_between_two_threads() {
    let (mut tx, mut rx) = ring(64);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for value in 0..STEPS {
                while tx.push(value).is_err() {
                    std::thread::yield_now();
                }
                tx.publish();
            }
        });
        let mut next = 0;
        while next < STEPS {
            match rx.pop() {
                Some(value) => {
                    assert_eq!(value, next);
                    next += 1;
                }
                None => std::thread::yield_now(),
            }
        }
    });
}

/// Random values are pushed, changed, published, popped, and removed by value.
#[test]
fn ring_from_which_values_are_removed_matches_a_deque() {
    let (mut tx, mut rx) = ring(8);
    let peek = rx.peek();
    let (mut model, mut unpublished) = (VecDeque::new(), VecDeque::new());
    let mut state = 1_u64;
    for _ in 0..STEPS {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let value = state >> 33 & 3;
        match state >> 60 {
            0..7 => {
                if tx.push(value).is_ok() {
                    unpublished.push_back(value);
                }
            }
            7..10 => {
                tx.publish();
                model.append(&mut unpublished);
            }
            10 => {
                tx.update_unpublished(|held| *held += 4);
                unpublished.iter_mut().for_each(|held| *held += 4);
            }
            11..14 => assert_eq!(rx.pop(), model.pop_front()),
            _ => {
                rx.retain(|&held| held & 3 != value);
                model.retain(|&held| held & 3 != value);
                assert_eq!(peek.len_min(), model.len());
            }
        }
    }
}
