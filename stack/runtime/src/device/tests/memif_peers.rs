//! memif within the process and between two.

use std::process::Command;

use super::*;

#[test]
fn memif_carries_frames_both_ways_and_removes_its_socket() {
    let _pools = lock_pools();
    let (_folder, path) = socket_path();
    // As long as the path of a socket may be.
    let path = format!("{path}{}", "x".repeat(107 - path.len()));
    let config = OpenConfig::new();
    let mut server = open_single(&format!("memif:{path}"), &config).unwrap();
    let mut client = open_single(&format!("memif:{path}"), &config).unwrap();
    wait_for_link(&[&server, &client]);
    assert_eq!(server.capabilities().checksum, ChecksumMode::Software);
    for index in 0..100 {
        send(&mut client, &pattern(index, 1514));
        send(&mut server, &pattern(index, 60));
    }
    let got = exchange(&mut client, &mut server, 100);
    for (index, frame) in got.iter().enumerate() {
        assert_eq!(frame.head(), pattern(index, 1514));
    }
    let got = exchange(&mut server, &mut client, 100);
    assert_eq!(got[99].head(), pattern(99, 60));
    drop(server);
    drop(client);
    assert!(!std::path::Path::new(&path).exists(), "the socket is removed with its server");
}

/// The driver releases a port's rings both when the peer disconnects and when the port is closed.
#[test]
fn memif_ports_may_close_concurrently() {
    let _pools = lock_pools();
    for _ in 0..30 {
        let (_folder, path) = socket_path();
        let config = OpenConfig::new();
        let server = open_single(&format!("memif:{path},server"), &config).unwrap();
        let client = open_single(&format!("memif:{path},client"), &config).unwrap();
        wait_for_link(&[&server, &client]);
        let barrier = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            for end in [server, client] {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    drop(end);
                });
            }
        });
        assert!(!std::path::Path::new(&path).exists(), "the socket is removed with its server");
    }
}

#[test]
fn memif_carries_jumbo_frames_whole_or_in_segments() {
    let _pools = lock_pools();
    let (_folder, path) = socket_path();
    let config = OpenConfig { mtu: 9000, ..OpenConfig::new() };
    let mut server = open_single(&format!("memif:{path},server"), &config).unwrap();
    let config = OpenConfig { rx_buf_size: Some(2048), ..config };
    let mut client = open_single(&format!("memif:{path},client"), &config).unwrap();
    wait_for_link(&[&server, &client]);
    send(&mut client, &pattern(0, 9014));
    assert_eq!(exchange(&mut client, &mut server, 1)[0].head(), pattern(0, 9014));
    send(&mut server, &pattern(1, 9014));
    let got = exchange(&mut server, &mut client, 1);
    let frame = &got[0];
    assert_eq!(frame.len(), 9014);
    assert!(frame.head().len() <= 2048, "in runs");
    assert_eq!(contents(frame), pattern(1, 9014));
    let mut middle = [0; 5000];
    frame.copy_out(2040, &mut middle);
    assert_eq!(middle, pattern(1 + 2040, 5000).as_slice());
    // From each offset, the first of a segment among them.
    for (offset, expected) in pattern(1, 9014).into_iter().enumerate() {
        let mut byte = [0];
        frame.copy_out(offset, &mut byte);
        assert_eq!(byte, [expected], "offset {offset}");
    }
}

const PEER: &str = "FERROWARP_TEST_MEMIF_PEER";

/// Child process of the next test: echoes ten frames and exits without closing the device.
#[test]
fn memif_peer_process() {
    let Ok(spec) = std::env::var(PEER) else { return };
    let mut device = open_single(&spec, &OpenConfig::new()).unwrap();
    wait_for_link(&[&device]);
    for frame in receive(&mut device, 10) {
        send(&mut device, &contents(&frame));
    }
    while device.transmit_backlog() != 0 {
        device.flush();
    }
    std::thread::sleep(Duration::from_millis(200));
    std::process::exit(0);
}

#[test]
fn memif_server_replaces_a_stale_socket() {
    let _pools = lock_pools();
    let (_folder, path) = socket_path();
    // A socket file as a killed server leaves it.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let mut server = open_single(&format!("memif:{path},server"), &OpenConfig::new()).unwrap();
    let mut peer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "device::tests::memif_peers::memif_peer_process"])
        .env(PEER, format!("memif:{path},client"))
        .spawn()
        .unwrap();
    wait_for_link(&[&server]);
    for index in 0..10 {
        send(&mut server, &pattern(index, 1000));
    }
    let got = receive(&mut server, 10);
    assert_eq!(got.len(), 10);
    for (index, frame) in got.iter().enumerate() {
        assert_eq!(frame.head(), pattern(index, 1000));
    }
    assert!(peer.wait().unwrap().success());
}
