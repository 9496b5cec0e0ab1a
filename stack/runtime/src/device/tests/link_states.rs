//! Links of ports, as threads without a queue of the port read them.

use std::process::Command;

use dpdk_sys::netif;

use super::kernel::{in_namespace, ip};
use super::vhost_peers::in_ordinary_memory;
use super::*;

fn link_of(device: &DpdkDevice) -> DpdkLink {
    device.link().expect("the link may change")
}

#[test]
fn link_of_ring_does_not_change() {
    let (a, b) = pair(&OpenConfig::new());
    assert!(a.link().is_none() && b.link().is_none());
}

#[test]
fn link_of_tap_is_that_of_its_interface() {
    in_namespace(|| {
        let device = open_single("tap:fwtap8", &OpenConfig::new()).unwrap();
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

/// A device on the interface `fwk0`, and how to make that first.
struct OnInterface {
    device: &'static str,
    make: &'static [&'static str],
    no_carrier: &'static str,
    carrier: &'static str,
}

const VETH: &[&str] =
    &["link add fwk0 type veth peer name fwk1", "link set fwk1 up", "link set fwk0 up"];

const ON_INTERFACES: [OnInterface; 3] = [
    OnInterface {
        device: "tap:fwk0",
        make: &[],
        no_carrier: "link set fwk0 carrier off",
        carrier: "link set fwk0 carrier on",
    },
    OnInterface {
        device: "af_packet:fwk0",
        make: VETH,
        no_carrier: "link set fwk1 down",
        carrier: "link set fwk1 up",
    },
    OnInterface {
        device: "af_xdp:fwk0",
        make: VETH,
        no_carrier: "link set fwk1 down",
        carrier: "link set fwk1 up",
    },
];

/// Runs `test` with each device that has an interface of the kernel, in namespaces of their own.
fn on_interfaces(test: fn(&OnInterface, DpdkDevice)) {
    for on in ON_INTERFACES {
        in_namespace(move || {
            on.make.iter().for_each(|command| ip(command));
            match open_single(on.device, &OpenConfig::new()) {
                Ok(device) => {
                    ip("link set fwk0 up");
                    test(&on, device);
                }
                Err(error @ DeviceError::NeedsHugepages { .. }) => skip(&error.to_string()),
                Err(error) => panic!("{error}"),
            }
        });
    }
}

/// It is read in the namespace of the device, by the interface's index.
#[test]
fn link_is_that_of_the_interface_whatever_its_name() {
    on_interfaces(|on, device| {
        let mut link = link_of(&device);
        let mut expect = |command: &str, is_up: bool| {
            ip(command);
            let what = format!("{}: {command}", on.device);
            // The kernel changes the carrier a little later.
            wait_until(&what, || link.is_up() == is_up && device.link_is_up() == is_up);
        };
        expect("link set fwk0 up", true);
        expect("link set fwk0 down", false);
        expect("link set fwk0 up", true);
        expect(on.no_carrier, false);
        expect(on.carrier, true);
        expect("link set fwk0 down", false);
        expect("link set fwk0 name fwk2", false);
        // Another one has the name now.
        expect("link add fwk0 type veth peer name fwk3", false);
        expect("link set fwk3 up", false);
        expect("link set fwk0 up", false);
        expect("link set fwk2 up", true);
        expect("link set fwk0 down", true);
        expect("link delete fwk0", true);
        std::thread::scope(|scope| {
            let elsewhere = scope.spawn(|| {
                netif::enter_new_namespace().unwrap();
                assert!(link.is_up(), "{}: read from another namespace", on.device);
                link
            });
            drop(elsewhere.join().unwrap());
        });
    });
}

#[test]
fn deleted_interface_is_the_removal_of_the_device() {
    on_interfaces(|on, device| {
        let (removed, asked) = std::sync::mpsc::channel();
        let mut link = link_of(&device);
        device.observe_removal(move || removed.send(()).unwrap());
        wait_until("the link comes up", || link.is_up());
        ip("link set fwk0 name fwk2");
        assert!(link.is_up());
        ip("link delete fwk2");
        // As a manager of networks does that finds it missing.
        ip("link add fwk0 type veth peer name fwk3");
        ip("link set fwk0 up");
        assert!(!link.is_up(), "{}", on.device);
        assert!(asked.try_recv().is_err(), "nobody was told yet");
        link.report_removal();
        asked.try_recv().unwrap_or_else(|_| panic!("{}: no removal", on.device));
        assert!(!link.is_up());
        link.report_removal();
        drop((device, link));
        assert!(netif::exists("fwk0"), "another one's");
    });
}

/// A tap keeps its interface, wherever that is; other devices lose it.
#[test]
fn interface_in_another_namespace_is_the_removal_of_all_devices_but_a_tap() {
    on_interfaces(|on, device| {
        let mut link = link_of(&device);
        wait_until("the link comes up", || link.is_up());
        let elsewhere = Command::new("unshare").args(["-n", "sleep", "60"]).spawn();
        let mut elsewhere = elsewhere.unwrap();
        let of = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net")).ok();
        // The namespace of this test is its thread's.
        let (here, process) = (of("thread-self"), elsewhere.id().to_string());
        wait_until("its namespace", || of(&process) != here);
        ip(&format!("link set fwk0 netns {}", elsewhere.id()));
        let is_tap = on.device.starts_with("tap");
        assert_eq!(link.is_up(), is_tap, "{}", on.device);
        if is_tap {
            let inside = format!("-t {} -n ip link delete fwk0", elsewhere.id());
            let status = Command::new("nsenter").args(inside.split(' ')).status().unwrap();
            assert!(status.success() && !link.is_up());
        }
        elsewhere.kill().unwrap();
        elsewhere.wait().unwrap();
    });
}

#[test]
fn link_of_memif_comes_and_goes_with_its_peers() {
    let _pools = lock_pools();
    let (_folder, path) = socket_path();
    let server = open_single(&format!("memif:{path},server"), &OpenConfig::new()).unwrap();
    let mut link = link_of(&server);
    assert!(!link.is_up());
    for _ in 0..2 {
        let client = open_single(&format!("memif:{path},client"), &OpenConfig::new()).unwrap();
        wait_until("the link comes up", || link.is_up());
        drop(client);
        wait_until("the link goes down", || !link.is_up());
    }
}

/// The back end of a vhost-user socket gets another link partner later, the driver does not.
#[test]
fn link_of_virtio_user_ends_with_its_back_end() {
    if !in_ordinary_memory("link_states::link_of_virtio_user_ends_with_its_back_end") {
        return;
    }
    let (_folder, path) = socket_path();
    let config = OpenConfig::new();
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
