//! Memory that a virtio driver shares with a back end in another process.

use std::process::{Child, Command, Stdio};

use super::*;

const PEER: &str = "FERROWARP_TEST_VHOST_PEER";

/// Process that ends with the test, also if that fails.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the test `name` of this module in another process, as the peer of the socket `path`.
fn start_peer(name: &str, path: &str) -> Peer {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("device::tests::vhost_memory::{name}"), "--nocapture"])
        .env(PEER, path)
        .stdout(Stdio::piped())
        .spawn();
    Peer(child.unwrap())
}

/// Echoes frames until the other process ends.
fn echo(device: &mut DpdkDevice, peer: &mut Peer) -> usize {
    let mut echoed = 0;
    let mut burst = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(30);
    while peer.0.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "the other process ends");
        device.receive(&mut burst, 32);
        for frame in burst.drain(..) {
            send(device, &contents(&frame));
            echoed += 1;
        }
        device.flush();
    }
    assert!(peer.0.wait().unwrap().success());
    echoed
}

/// The back end maps the memory again whenever there is more of it, while frames are on the way.
/// Also with hugepages, of which there may be many.
#[test]
fn vhost_maps_memory_that_is_added() {
    const ROUNDS: usize = 8;
    if let Ok(path) = std::env::var(PEER) {
        let spec: DeviceSpec = format!("virtio-user:{path}").parse().unwrap();
        let mut client = open_raw(&spec, &OpenConfig::new()).unwrap();
        wait_until("the link comes up", || client.link_is_up());
        let mut rings = Vec::new();
        for round in 0..ROUNDS {
            // Frames of new mempools, 2 MiB and more.
            let pools = PoolNeeds::new().windows(4 + u32::try_from(round).unwrap());
            let (mut left, right) = pair(&OpenConfig::new().pools(pools));
            let mut right = right.into_raw();
            let (mut sent, mut got) = (0, 0);
            let deadline = Instant::now() + Duration::from_secs(10);
            while got < 50 {
                assert!(Instant::now() < deadline, "round {round}: {got} of {sent}");
                if sent < 50 {
                    send(&mut left, &pattern(round + sent, 1000));
                    left.flush();
                    sent += right.receive(1, |frame| client.send(frame));
                }
                client.flush();
                client.receive(32, |frame| {
                    assert_eq!(frame.bytes(), pattern(round + got, 1000));
                    got += 1;
                });
            }
            rings.push((left, right));
        }
        return;
    }
    let _pools = lock_pools();
    let (_folder, path) = socket_path();
    let mut server = open_single(&format!("vhost:{path}"), &OpenConfig::new()).unwrap();
    let mut peer = start_peer("vhost_maps_memory_that_is_added", &path);
    assert_eq!(echo(&mut server, &mut peer), 50 * ROUNDS);
    wait_until("the link goes down", || !server.link_is_up());
}

/// With a file for each hugepage, DPDK's driver reports success, and carries no frame.
#[test]
fn virtio_user_needs_memory_in_few_files() {
    if let Ok(path) = std::env::var(PEER) {
        let eal = "eal:--vdev=net_null0 --in-memory";
        let config = OpenConfig { mtu: 9000, ..OpenConfig::new() };
        drop(open_single(eal, &config).unwrap());
        let refused = open_single(&format!("virtio-user:{path}"), &config).unwrap_err();
        assert!(matches!(refused, DeviceError::MemoryNotShareable { .. }), "{refused}");
        return;
    }
    let _pools = lock_pools();
    let (_folder, path) = socket_path();
    let mut server = open_single(&format!("vhost:{path}"), &OpenConfig::new()).unwrap();
    if dpdk_sys::Eal::running().unwrap().memory() != dpdk_sys::Memory::Hugepages {
        return skip("no hugepages are free");
    }
    let mut peer = start_peer("virtio_user_needs_memory_in_few_files", &path);
    assert_eq!(echo(&mut server, &mut peer), 0);
}

/// A thread that has more memory mapped would wait for the back end, which would wait for it.
#[test]
fn both_ends_in_a_process_with_hugepages_are_refused() {
    let _pools = lock_pools();
    let (_folder, path) = socket_path();
    let server = open_single(&format!("vhost:{path}"), &OpenConfig::new()).unwrap();
    let client = open_single(&format!("virtio-user:{path}"), &OpenConfig::new());
    match dpdk_sys::Eal::running().unwrap().memory() {
        dpdk_sys::Memory::Ordinary => wait_for_link(&[&server, &client.unwrap()]),
        _ => {
            let refused = client.unwrap_err();
            assert!(matches!(refused, DeviceError::ServedHere { .. }), "{refused}");
            assert!(!refused.to_string().contains('\n'));
        }
    }
}

/// Ends that are killed: the other one notices, and serves or finds another.
#[test]
fn vhost_ends_that_are_killed_are_replaced() {
    if let Ok(spec) = std::env::var(PEER) {
        let mut device = open_single(&spec, &OpenConfig::new()).unwrap();
        let mut index = 0;
        loop {
            if device.tx_free_count() != 0 && device.data_avail_count() > 1 {
                send(&mut device, &pattern(index, 1514));
                index += 1;
            }
            device.flush();
            device.receive(&mut Vec::new(), 32);
        }
    }
    let _pools = lock_pools();
    let (_folder, path) = socket_path();
    let peers = |own: &str| if own == "vhost" { "virtio-user" } else { "vhost" };
    for own in ["vhost", "virtio-user"] {
        let mut server = None;
        for _ in 0..3 {
            let start = || {
                start_peer(
                    "vhost_ends_that_are_killed_are_replaced",
                    &format!("{}:{path}", peers(own)),
                )
            };
            let (mut device, mut peer) = if own == "vhost" {
                let open = || open_single(&format!("vhost:{path}"), &OpenConfig::new());
                let device = server.take().unwrap_or_else(|| open().unwrap());
                (device, start())
            } else {
                let peer = start();
                let mut client = None;
                wait_until("the back end listens", || {
                    let opened = open_single(&format!("virtio-user:{path}"), &OpenConfig::new());
                    client = opened.ok();
                    client.is_some()
                });
                (client.unwrap(), peer)
            };
            assert!(receive(&mut device, 1000).len() >= 1000);
            peer.0.kill().unwrap();
            let mut burst = Vec::new();
            wait_until("the link goes down", || {
                burst.clear();
                device.receive(&mut burst, 32);
                device.flush();
                !device.link_is_up()
            });
            drop(peer);
            if own == "vhost" {
                assert!(!device.has_wire());
                server = Some(device);
            }
        }
    }
}
