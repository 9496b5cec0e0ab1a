//! Devices of a pair: order, pools, queues and retained frames.

use ferrowarp_proto::device::{
    ChecksumMode, ChecksumState, Device, Retained, RxFrame, TxClass, TxFrame,
};

use super::*;

#[test]
fn devices_and_frames_move_between_threads() {
    fn movable<T: Send>() {}
    movable::<DpdkDevice>();
    movable::<DpdkRx>();
    movable::<DpdkTx>();
    movable::<DpdkRetained>();
}

#[test]
fn ring_carries_frames_both_ways_in_order() {
    let _pools = lock_pools();
    let (mut a, mut b) = pair(&OpenConfig::new());
    assert_ne!(a.capabilities().mac, b.capabilities().mac);
    assert_eq!(a.capabilities().checksum, ChecksumMode::NotNeeded);
    assert_eq!(a.capabilities().mtu, 1500);
    assert!(a.link_is_up() && b.link_is_up());
    for index in 0..100 {
        send(&mut a, &pattern(index, 60 + index));
        send(&mut b, &pattern(index + 1, 1514));
    }
    let mut early = Vec::new();
    assert_eq!(a.receive(&mut early, 100), 0, "nothing leaves before a flush");
    a.flush();
    b.flush();
    let at_b = receive(&mut b, 100);
    let at_a = receive(&mut a, 100);
    assert_eq!((at_a.len(), at_b.len()), (100, 100));
    for (index, (first, second)) in at_a.iter().zip(&at_b).enumerate() {
        assert_eq!(contents(first), pattern(index + 1, 1514));
        assert_eq!(second.head(), pattern(index, 60 + index));
        assert_eq!(first.checksum(), ChecksumState::Unknown);
    }
    assert_eq!(a.counters().tx_frames, 100);
    assert_eq!(b.counters().rx_frames, 100);
}

#[test]
fn ring_carries_jumbo_frames_and_takes_other_checksum_modes() {
    let _pools = lock_pools();
    let config =
        OpenConfig { mtu: 9000, checksum: Some(ChecksumMode::Software), ..OpenConfig::new() };
    let (mut a, mut b) = pair(&config);
    assert_eq!(a.capabilities().checksum, ChecksumMode::Software);
    send(&mut a, &pattern(3, 9014));
    a.flush();
    let got = receive(&mut b, 1);
    assert_eq!(got[0].head(), pattern(3, 9014));
    let config = OpenConfig { checksum: Some(ChecksumMode::Offload), ..config };
    assert!(matches!(open(&DeviceSpec::Ring, &config), Err(DeviceError::NoChecksumOffload { .. })));
}

#[test]
fn drained_pool_leaves_the_others_usable() {
    let _pools = lock_pools();
    let (mut a, _b) = pair(&OpenConfig::new());
    let full = a.available();
    let mut held = Vec::new();
    let left = a.data_avail_count();
    assert!(left > 0 && left <= full[0] as usize);
    while let Some(frame) = a.allocate(TxClass::Data) {
        held.push(frame);
    }
    assert_eq!(held.len(), usize::try_from(full[0]).unwrap(), "to the last frame");
    assert!(a.allocate(TxClass::Control).is_some(), "control frames are still allocated");
    let mut rescue = Vec::new();
    while let Some(frame) = a.allocate(TxClass::Retransmit) {
        rescue.push(frame);
    }
    assert_eq!(rescue.len(), 64, "the reserve is for retransmission alone");
    assert!(a.allocate(TxClass::Data).is_none());
    assert_eq!(a.data_avail_count(), 0);
    held.pop();
    assert!(a.allocate(TxClass::Retransmit).is_some(), "and data serves it first");
    let counters = a.counters();
    assert_eq!((counters.data_drained, counters.retransmit_drained), (2, 1));
    assert_eq!(counters.control_drained, 0);
    drop(held);
    drop(rescue);
    assert_eq!(a.available(), full);
}

#[test]
fn full_tx_queue_drops_and_full_ring_defers() {
    let _pools = lock_pools();
    let config = OpenConfig { ring_slots: 64, ..OpenConfig::new() };
    let (mut a, mut b) = pair(&config);
    let full = a.available();
    assert_eq!(a.tx_free_count(), 256);
    for index in 0..257 {
        send(&mut a, &pattern(index, 60));
    }
    assert_eq!(a.tx_free_count(), 0);
    assert_eq!(a.counters().tx_dropped, 1);
    a.flush();
    assert_eq!((a.transmit_backlog(), a.tx_free_count()), (193, 63));
    assert_eq!((a.counters().tx_frames, a.counters().tx_deferred), (63, 1));
    let mut got = 0;
    for _ in 0..10 {
        let mut burst = Vec::new();
        b.receive(&mut burst, 256);
        for frame in &burst {
            assert_eq!(frame.head(), pattern(got, 60));
            got += 1;
        }
        a.flush();
    }
    assert_eq!(got, 256);
    assert_eq!(a.available(), full);
}

#[test]
fn retained_frames_return_to_their_pool_in_either_order() {
    let _pools = lock_pools();
    let (mut a, mut b) = pair(&OpenConfig::new());
    let full = a.available();
    let mut retained = Vec::new();
    for index in 0..200 {
        let mut frame = a.allocate(TxClass::Data).unwrap();
        frame.buf_mut()[..100].copy_from_slice(&pattern(index, 100));
        frame.set_len(100);
        retained.push(frame.retain());
        a.transmit(frame);
    }
    a.flush();
    let mut got = receive(&mut b, 200);
    assert_eq!(got.len(), 200);
    assert_eq!(a.available()[0], full[0] - 200);
    // Half of the references are dropped before the peer frees its frames, half after.
    retained.truncate(100);
    got.drain(..100);
    assert_eq!(a.available()[0], full[0] - 200);
    for (index, kept) in retained.iter().enumerate() {
        assert_eq!(kept.bytes(), pattern(index, 100));
        assert_eq!(got[index].head(), pattern(index + 100, 100));
    }
    drop(retained);
    drop(got);
    assert_eq!(a.available(), full);
}

#[test]
fn unsent_frame_is_freed_with_its_last_reference() {
    let _pools = lock_pools();
    let (mut a, b) = pair(&OpenConfig::new());
    let full = a.available();
    let mut frame = a.allocate(TxClass::Data).unwrap();
    frame.set_len(60);
    let retained = frame.retain();
    a.transmit(frame);
    drop(b);
    let available = a.available();
    assert_eq!(available[0], full[0] - 1);
    drop(retained);
    drop(a);
    let (a, _b) = pair(&OpenConfig::new());
    assert_eq!(a.available(), full, "pools of a closed device serve the next");
}

#[test]
#[should_panic(expected = "a retained frame never changes")]
fn writing_a_retained_frame_panics() {
    let _pools = lock_pools();
    let (mut a, _b) = pair(&OpenConfig::new());
    let mut frame = a.allocate(TxClass::Data).unwrap();
    frame.set_len(60);
    let _retained = frame.retain();
    frame.buf_mut();
}

#[test]
fn a_device_works_from_the_thread_it_moved_to() {
    let _pools = lock_pools();
    let (mut a, mut b) = pair(&OpenConfig::new());
    let full = a.available();
    let sender = std::thread::spawn(move || {
        assert!(register_current_thread());
        for index in 0..10_000 {
            while a.tx_free_count() == 0 {
                a.flush();
                std::thread::yield_now();
            }
            loop {
                let Some(mut frame) = a.allocate(TxClass::Data) else {
                    a.flush();
                    std::thread::yield_now();
                    continue;
                };
                frame.buf_mut()[..100].copy_from_slice(&pattern(index, 100));
                frame.set_len(100);
                a.transmit(frame);
                break;
            }
        }
        while a.transmit_backlog() != 0 {
            a.flush();
        }
        a
    });
    let mut next = 0;
    let deadline = Instant::now() + Duration::from_secs(20);
    while next < 10_000 && Instant::now() < deadline {
        let mut burst = Vec::new();
        if b.receive(&mut burst, 64) == 0 {
            std::thread::yield_now();
        }
        for frame in &burst {
            assert_eq!(frame.head(), pattern(next, 100));
            next += 1;
        }
    }
    assert_eq!(next, 10_000);
    let a = sender.join().unwrap();
    assert_eq!(a.available(), full);
}

#[test]
#[should_panic(expected = "the range lies in the frame")]
fn copying_beyond_the_frame_panics() {
    let _pools = lock_pools();
    let (mut a, mut b) = pair(&OpenConfig::new());
    send(&mut a, &pattern(0, 100));
    a.flush();
    receive(&mut b, 1)[0].copy_out(50, &mut [0; 51]);
}
