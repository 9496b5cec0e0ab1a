//! Raw ports.

use super::*;

#[test]
fn raw_port_forwards_frames_without_copying() {
    let _pools = lock_pools();
    let ((_left_folder, left), (_right_folder, right)) = (socket_path(), socket_path());
    let config = OpenConfig::new();
    let raw =
        |path: &str| open_raw(&format!("memif:{path},server").parse().unwrap(), &config).unwrap();
    let (mut from, mut to) = (raw(&left), raw(&right));
    let mut source = open_single(&format!("memif:{left},client"), &config).unwrap();
    let mut sink = open_single(&format!("memif:{right},client"), &config).unwrap();
    wait_for_link(&[&source, &sink]);
    let mut got = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut sent = 0;
    while got.len() < 500 && Instant::now() < deadline {
        if sent < 500 && source.tx_free_count() > 0 {
            send(&mut source, &pattern(sent, 60 + sent));
            sent += 1;
        }
        source.flush();
        from.receive(32, |mut frame| {
            frame.bytes_mut()[3] ^= 0xff;
            to.send(frame);
        });
        to.flush();
        sink.receive(&mut got, 32);
    }
    assert_eq!(got.len(), 500, "{:?} {:?}", from.counters(), to.counters());
    for (index, frame) in got.iter().enumerate() {
        let mut expected = pattern(index, 60 + index);
        expected[3] ^= 0xff;
        assert_eq!(frame.head(), expected);
    }
    assert_eq!((from.counters().received, to.counters().sent), (500, 500));
    assert_eq!((from.counters().not_copied, to.counters().overrun), (0, 0));
    let copy = to.copy(&pattern(1, 100)).unwrap();
    assert_eq!(copy.bytes(), pattern(1, 100));
    assert!(to.copy(&[0; 5000]).is_none(), "longer than a frame");
    let refused = open_raw(&DeviceSpec::Ring, &config).unwrap_err().to_string();
    assert!(refused.contains("two devices of one process"), "{refused}");
}

#[test]
fn shared_or_segmented_frames_are_copied_on_raw_receive() {
    let _pools = lock_pools();
    let (mut a, b) = pair(&OpenConfig::new());
    let mut b = b.into_raw();
    let mut frame = a.allocate(TxClass::Data).unwrap();
    frame.buf_mut()[..60].copy_from_slice(&pattern(0, 60));
    frame.set_len(60);
    let retained = frame.retain();
    a.transmit(frame);
    send(&mut a, &pattern(9, 70));
    a.flush();
    let mut got = Vec::new();
    b.receive(32, |frame| got.push(frame));
    assert_eq!(got.len(), 2);
    got[0].bytes_mut()[0] ^= 1;
    assert_eq!(retained.bytes(), pattern(0, 60), "the sender's frame is as it was");
    assert_eq!(got[1].bytes(), pattern(9, 70));

    let (_folder, path) = socket_path();
    let config = OpenConfig { mtu: 9000, ..OpenConfig::new() };
    let mut server = open_single(&format!("memif:{path},server"), &config).unwrap();
    let config = OpenConfig { rx_buf_size: Some(2048), ..config };
    let spec = format!("memif:{path},client").parse().unwrap();
    let mut client = open_raw(&spec, &config).unwrap();
    wait_for_link(&[&server]);
    send(&mut server, &pattern(1, 9014));
    let mut got = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(5);
    while got.is_empty() && Instant::now() < deadline {
        server.flush();
        client.receive(32, |frame| got.push(frame));
    }
    assert_eq!(got[0].bytes(), pattern(1, 9014));
}
