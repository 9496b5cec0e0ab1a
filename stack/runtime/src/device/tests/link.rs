//! Links of ports, as threads without a queue of the port read them.

use dpdk_sys::netif;

use super::kernel::{in_namespace, ip};
use super::vhost::in_ordinary_memory;
use super::*;

fn link_of(device: &DpdkDevice) -> DpdkLink {
    device.link().expect("the link may change")
}

#[test]
fn link_of_ring_does_not_change() {
    let (a, b) = pair(&OpenConfig::default());
    assert!(a.link().is_none() && b.link().is_none());
}

#[test]
fn link_of_tap_is_that_of_its_interface() {
    in_namespace(|| {
        let device = open_single("tap:fwtap8", &OpenConfig::default()).unwrap();
        let mut link = link_of(&device);
        for state in ["up", "down", "up"] {
            ip(&format!("link set fwtap8 {state}"));
            // The kernel brings the carrier up a little later.
            wait_until("the link changes", || link.is_up() == (state == "up"));
        }
        drop(device);
        assert!(netif::exists("fwtap8"), "the link keeps the port open");
        drop(link);
        wait_until("the interface is removed", || !netif::exists("fwtap8"));
    });
}

/// DPDK's driver does not look at the interface.
#[test]
fn link_of_af_packet_is_not_told() {
    in_namespace(|| {
        ip("link add fwv8 type veth peer name fwv9");
        ip("link set fwv8 up");
        let device = open_single("af_packet:fwv8", &OpenConfig::default()).unwrap();
        assert!(device.link().is_none());
    });
}

#[test]
fn link_of_memif_comes_and_goes_with_its_peers() {
    let _pools = lock_pools();
    let (_folder, path) = socket_path();
    let server = open_single(&format!("memif:{path},server"), &OpenConfig::default()).unwrap();
    let mut link = link_of(&server);
    assert!(!link.is_up());
    for _ in 0..2 {
        let client = open_single(&format!("memif:{path},client"), &OpenConfig::default()).unwrap();
        wait_until("the link comes up", || link.is_up());
        drop(client);
        wait_until("the link goes down", || !link.is_up());
    }
}

/// Of the two ends of a vhost-user socket the back end gets another link partner, the driver none.
#[test]
fn link_of_virtio_user_ends_with_its_back_end() {
    if !in_ordinary_memory("link::link_of_virtio_user_ends_with_its_back_end") {
        return;
    }
    let (_folder, path) = socket_path();
    let config = OpenConfig::default();
    let server = open_single(&format!("vhost:{path}"), &config).unwrap();
    let mut server_link = link_of(&server);
    for _ in 0..2 {
        assert!(!server_link.is_up());
        let client = open_single(&format!("virtio-user:{path}"), &config).unwrap();
        wait_until("both links come up", || server_link.is_up() && link_of(&client).is_up());
        drop(client);
        wait_until("the link goes down", || !server_link.is_up());
    }
    let client = open_single(&format!("virtio-user:{path}"), &config).unwrap();
    let mut client_link = link_of(&client);
    wait_until("the link comes up", || client_link.is_up());
    drop((server, server_link));
    wait_until("the link goes down", || !client_link.is_up());
    let _server = open_single(&format!("vhost:{path}"), &config).unwrap();
    assert!((0..100).all(|_| !client_link.is_up()));
}
