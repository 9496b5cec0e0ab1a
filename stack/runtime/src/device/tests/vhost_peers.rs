//! Both ends of a vhost-user socket within one process, which has no hugepages for that.

use std::process::Command;

use super::*;

const CHILD: &str = "FERROWARP_TEST_ORDINARY_MEMORY";

/// Runs the rest of a test in a process of its own, without hugepages: there, both ends may be in
/// one process. False in the process that has started it. `name` is the test's, after the module.
pub(super) fn in_ordinary_memory(name: &str) -> bool {
    if std::env::var(CHILD).is_ok_and(|wanted| wanted == name) {
        // The first device decides.
        drop(pair(&OpenConfig { hugepages: Hugepages::Never, ..OpenConfig::new() }));
        return true;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("device::tests::{name}"), "--nocapture"])
        .env(CHILD, name)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}\n{errors}");
    false
}

/// Opens both ends, connected.
fn open_both(path: &str, config: &OpenConfig) -> (DpdkDevice, DpdkDevice) {
    let server = open_single(&format!("vhost:{path}"), config).unwrap();
    let client = open_single(&format!("virtio-user:{path}"), config).unwrap();
    wait_for_link(&[&server, &client]);
    (server, client)
}

#[test]
fn vhost_carries_frames_both_ways_and_removes_its_socket() {
    if !in_ordinary_memory("vhost_peers::vhost_carries_frames_both_ways_and_removes_its_socket") {
        return;
    }
    let (_folder, path) = socket_path();
    let config = OpenConfig::new();
    let server = open_single(&format!("vhost:{path}"), &config).unwrap();
    assert!(!server.link_is_up() && !server.has_wire());
    drop(server);
    assert!(!std::path::Path::new(&path).exists());
    // A socket file as a killed server leaves it.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let (mut server, mut client) = open_both(&path, &config);
    assert!(server.has_wire() && client.has_wire());
    let macs = [&server, &client].map(|end| end.capabilities().mac);
    assert!(macs[0] != macs[1] && macs.iter().all(|mac| mac[0] & 0x03 == 0x02), "{macs:?}");
    assert_eq!(server.capabilities().checksum, ChecksumMode::Software);
    for round in 0..10 {
        for index in 0..100 {
            send(&mut client, &pattern(index + round, 1514));
            send(&mut server, &pattern(index + round, 60));
        }
        let got = exchange(&mut client, &mut server, 100);
        for (index, frame) in got.iter().enumerate() {
            assert_eq!(frame.head(), pattern(index + round, 1514));
        }
        let got = exchange(&mut server, &mut client, 100);
        for (index, frame) in got.iter().enumerate() {
            assert_eq!(frame.head(), pattern(index + round, 60));
        }
    }
    let refused = open_single(&format!("vhost:{path}"), &config).unwrap_err().to_string();
    assert!(refused.contains("serves this socket already"), "{refused}");
    let refused = open_single(&format!("virtio-user:{path}"), &config).unwrap_err().to_string();
    assert!(refused.contains("is connected to this socket already"), "{refused}");
    let refused = OpenConfig { mtu: 12_000, ..config };
    drop(client);
    let refused = open_single(&format!("virtio-user:{path}"), &refused).unwrap_err().to_string();
    assert!(refused.contains("the device supports at most 9698"), "{refused}");
    wait_until("the link goes down", || !server.link_is_up());
    assert!(!server.has_wire());
    drop(server);
    assert!(!std::path::Path::new(&path).exists(), "the socket is removed with its server");
}

#[test]
fn vhost_carries_jumbo_frames_whole_or_in_segments() {
    if !in_ordinary_memory("vhost_peers::vhost_carries_jumbo_frames_whole_or_in_segments") {
        return;
    }
    for rx_buf_size in [None, Some(2048)] {
        let (_folder, path) = socket_path();
        let config = OpenConfig { mtu: 9000, rx_buf_size, ..OpenConfig::new() };
        let (mut server, mut client) = open_both(&path, &config);
        for round in 0..300 {
            for (from, to) in [(0, 1), (1, 0)] {
                let mut ends = [&mut server, &mut client];
                send(ends[from], &pattern(round, 9014));
                let [to, from] = ends.get_disjoint_mut([to, from]).unwrap();
                let got = exchange(from, to, 1);
                assert_eq!(got[0].len(), 9014);
                assert_eq!(got[0].head().len() < 9014, rx_buf_size.is_some());
                assert_eq!(contents(&got[0]), pattern(round, 9014));
            }
        }
    }
}

/// Neither end offers the other an offload: a frame is not changed, and what it contains is not
/// vouched for.
#[test]
fn vhost_frame_arrives_with_its_checksum() {
    if !in_ordinary_memory("vhost_peers::vhost_frame_arrives_with_its_checksum") {
        return;
    }
    let (_folder, path) = socket_path();
    let (mut server, mut client) = open_both(&path, &OpenConfig::new());
    // IPv4 and TCP, with checksums of 0xffff and 0xeeee that are wrong.
    let mut bytes = vec![0x11; 80];
    bytes[12..14].copy_from_slice(&[0x08, 0x00]);
    bytes[14..24].copy_from_slice(&[0x45, 0, 0, 66, 0, 0, 0, 0, 64, 6]);
    bytes[24..26].copy_from_slice(&[0xff, 0xff]);
    bytes[46] = 0x50;
    bytes[50..52].copy_from_slice(&[0xee, 0xee]);
    for _ in 0..2 {
        send(&mut client, &bytes);
        let got = exchange(&mut client, &mut server, 1);
        assert_eq!((contents(&got[0]), got[0].checksum()), (bytes.clone(), ChecksumState::Unknown));
        core::mem::swap(&mut client, &mut server);
    }
}

/// Sends a TCP segment over IPv4 whose TCP checksum is left to the port. Returns its state as
/// received, and whether the checksum was filled in.
fn send_offloaded(from: &mut DpdkDevice, to: &mut DpdkDevice) -> (ChecksumState, bool) {
    let mut frame = from.allocate(TxClass::Data).unwrap();
    let buf = &mut frame.buf_mut()[..80];
    buf.fill(0x11);
    buf[12..14].copy_from_slice(&[0x08, 0x00]);
    buf[14..24].copy_from_slice(&[0x45, 0, 0, 66, 0, 0, 0, 0, 64, 6]);
    buf[46] = 0x50;
    // The sum of the pseudo-header: addresses, protocol, length.
    let pseudo = 4 * 0x1111_u16 + 6 + 46;
    buf[50..52].copy_from_slice(&pseudo.to_be_bytes());
    let sum = (34..80).step_by(2).map(|at| u32::from(u16::from_be_bytes([buf[at], buf[at + 1]])));
    let sum: u32 = sum.sum();
    let filled_in = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    frame.set_len(80);
    frame.request_checksum(&ChecksumRequest { l2_len: 14, l3_len: 20, l4_len: 20, ipv4: false });
    from.transmit(frame);
    let got = exchange(from, to, 1);
    let found = u16::from_be_bytes([got[0].head()[50], got[0].head()[51]]);
    assert!(found == pseudo || found == filled_in, "{found:#x}");
    (got[0].checksum(), found == filled_in)
}

/// A checksum that neither end computes, because the frame stays in memory, is marked as correct.
/// Towards an end that computes checksums itself it is filled in.
#[test]
fn vhost_frames_with_offload_arrive_marked_or_with_a_checksum() {
    if !in_ordinary_memory(
        "vhost_peers::vhost_frames_with_offload_arrive_marked_or_with_a_checksum",
    ) {
        return;
    }
    let software = OpenConfig::new();
    let offload = OpenConfig { checksum: Some(ChecksumMode::Offload), ..OpenConfig::new() };
    for (server_config, client_config) in
        [(&offload, &offload), (&offload, &software), (&software, &offload)]
    {
        let (_folder, path) = socket_path();
        let mut server = open_single(&format!("vhost:{path}"), server_config).unwrap();
        let mut client = open_single(&format!("virtio-user:{path}"), client_config).unwrap();
        wait_for_link(&[&server, &client]);
        let [server_offloads, client_offloads] =
            [&server, &client].map(|end| end.capabilities().checksum.is_offloaded());
        if client_offloads {
            let (state, is_filled_in) = send_offloaded(&mut client, &mut server);
            assert_eq!(state, ChecksumState::TransportGood);
            assert_eq!(is_filled_in, !server_offloads, "to the back end");
        }
        if server_offloads {
            let (state, is_filled_in) = send_offloaded(&mut server, &mut client);
            let marked =
                if client_offloads { ChecksumState::TransportGood } else { ChecksumState::Unknown };
            assert_eq!((state, is_filled_in), (marked, !client_offloads), "to the driver");
        }
    }
}

#[test]
fn virtio_user_returns_what_is_sent() {
    if !in_ordinary_memory("vhost_peers::virtio_user_returns_what_is_sent") {
        return;
    }
    let (_folder, path) = socket_path();
    let (mut server, mut client) = open_both(&path, &OpenConfig::new());
    let [before, ..] = client.available();
    for index in 0..100 {
        send(&mut client, &pattern(index, 1514));
        drop(exchange(&mut client, &mut server, 1));
    }
    let [after, ..] = client.available();
    assert!(after + 6 >= before, "{after} of {before} are free");
}

/// The ring is full and stays so; what is sent after that is dropped, and counted.
#[test]
fn virtio_user_drops_frames_without_its_back_end() {
    if !in_ordinary_memory("vhost_peers::virtio_user_drops_frames_without_its_back_end") {
        return;
    }
    let (_folder, path) = socket_path();
    let (server, mut client) = open_both(&path, &OpenConfig::new());
    let [before, ..] = client.available();
    drop(server);
    for _ in 0..3 {
        wait_until("the link goes down", || !client.link_is_up());
    }
    for index in 0..1000 {
        if let Some(mut frame) = client.allocate(TxClass::Control) {
            frame.set_len(60 + index % 2);
            client.transmit(frame);
            client.flush();
        }
    }
    let counters = client.counters();
    assert!(counters.tx_frames <= 256 && counters.tx_deferred != 0, "{counters:?}");
    assert!(receive_none(&mut client));
    // It does not connect again; another one does.
    let refused = open_single(&format!("virtio-user:{path}"), &OpenConfig::new()).unwrap_err();
    assert!(matches!(refused, DeviceError::NoServer { .. }), "{refused}");
    drop(client);
    let (mut server, mut client) = open_both(&path, &OpenConfig::new());
    assert_eq!(client.available()[0], before, "the ring's frames are returned");
    send(&mut client, &pattern(0, 100));
    assert_eq!(exchange(&mut client, &mut server, 1)[0].head(), pattern(0, 100));
}

fn receive_none(device: &mut DpdkDevice) -> bool {
    device.receive(&mut Vec::new(), 32) == 0
}
