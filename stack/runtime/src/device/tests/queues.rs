//! Ports with several queues: `ring`, `tap`, `af_packet`, and RSS as a driver reports it.

use std::collections::BTreeSet;
use std::net::UdpSocket;

use super::kernel::{arp_request, format_mac, in_namespace, ip};
use super::*;

/// Flows that the kernel sends; more than queues, so that most of them get one.
const FLOWS: u16 = 32;

fn ring_queues(queues: u16) -> (Vec<DpdkDevice>, Vec<DpdkDevice>) {
    let config = OpenConfig { queues, ..OpenConfig::new() };
    match open(&DeviceSpec::Ring, &config).unwrap() {
        Opened::Pair(first, second) => (first, second),
        Opened::One(_) => panic!("ring is a pair"),
    }
}

#[test]
fn ring_queue_reaches_the_peers_queue_of_the_same_number() {
    let _pools = lock_pools();
    for queues in [1, 2, 4] {
        let (mut first, mut second) = ring_queues(queues);
        assert_eq!((first.len(), second.len()), (usize::from(queues), usize::from(queues)));
        let macs: BTreeSet<_> = first.iter().map(|device| device.capabilities().mac).collect();
        assert_eq!(macs.len(), 1, "one port, one address");
        for (index, (from, to)) in first.iter_mut().zip(&mut second).enumerate() {
            assert_eq!(
                (usize::from(from.queue_index()), from.steering()),
                (index, &Steering::Mirrored)
            );
            send(from, &pattern(index, 60));
            send(to, &pattern(index + 100, 70));
            from.flush();
            to.flush();
        }
        for (index, (left, right)) in first.iter_mut().zip(&mut second).enumerate() {
            let mut burst = Vec::new();
            right.receive(&mut burst, 32);
            left.receive(&mut burst, 32);
            let got: Vec<_> = burst.iter().map(|frame| frame.head().to_vec()).collect();
            assert_eq!(got, [pattern(index, 60), pattern(index + 100, 70)], "of {queues}");
        }
    }
}

#[test]
fn port_stays_open_until_its_last_queue_is_dropped() {
    let _pools = lock_pools();
    let (mut first, second) = ring_queues(2);
    let full = first[0].available();
    drop(second);
    let mut last = first.pop().unwrap();
    drop(first);
    send(&mut last, &pattern(0, 60));
    last.flush();
    assert_eq!(last.counters().tx_frames, 1);
    drop(last);
    let (again, _second) = ring_queues(2);
    assert!(again.iter().all(|device| device.available() == full), "pools are used again");
}

#[test]
fn more_queues_than_the_device_has_is_an_error() {
    let _pools = lock_pools();
    let config = OpenConfig { queues: 17, ..OpenConfig::new() };
    let error = open(&DeviceSpec::Ring, &config).unwrap_err().to_string();
    assert_eq!(
        error,
        "ring: 17 queues were requested, the device has at most 16 (request fewer, or give the \
         device more)"
    );
    let (_folder, path) = socket_path();
    for (spec, queues, max) in [
        (format!("memif:{path}"), 256, 255),
        (format!("vhost:{path}"), 129, 128),
        (format!("virtio-user:{path}"), 9, 8),
        ("eal:--vdev=net_null_queues".to_owned(), u16::MAX, 1024),
    ] {
        let error = open_queues(&spec, queues).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&format!("at most {max} (request fewer")), "{spec}: {text}");
        assert!(!text.contains('\n'), "one line: {text}");
    }
    assert_eq!(open_queues("eal:--vdev=net_null_queues", 0).unwrap().len(), 1);
}

#[test]
fn raw_port_has_one_queue() {
    let _pools = lock_pools();
    let config = OpenConfig { queues: 4, ..OpenConfig::new() };
    drop(open_raw(&"eal:--vdev=net_null_raw".parse().unwrap(), &config).unwrap());
}

/// The driver `net_null` has RSS in name only: a key, and a table that is zero until it is set.
#[test]
fn rss_key_and_table_are_read_back() {
    let _pools = lock_pools();
    let devices = open_queues("eal:--vdev=net_null_rss", 2).unwrap();
    let Steering::Predicted(rss) = devices[1].steering() else {
        panic!("{:?}", devices[1].steering())
    };
    assert_eq!((rss.key.len(), rss.table.len()), (40, 128));
    assert!(rss.key.starts_with(&[0x6d, 0x5a, 0x56, 0xda]), "{:?}", rss.key);
    assert!(rss.table.iter().all(|&queue| queue < 2));
    assert!(rss.tcp_ipv4 && rss.tcp_ipv6);
    drop(devices);
    let single = open_queues("eal:--vdev=net_null_single", 1).unwrap();
    assert_eq!(single[0].steering(), &Steering::Unknown, "one queue has no RSS");
}

/// Sends an ARP request on each device, and returns those that the kernel replied to.
fn arp_replies(devices: &mut [DpdkDevice]) -> usize {
    let (mut replies, mac) = (0, devices[0].capabilities().mac);
    for sender in 0..devices.len() {
        send(&mut devices[sender], &arp_request(mac));
        devices[sender].flush();
        assert_eq!(devices[sender].counters().tx_frames, 1, "queue {sender} sends");
        let reply = |head: &[u8]| head[12..14] == [8, 6] && head[21] == 2;
        replies += usize::from(!receive_on_any(devices, 1, reply).is_empty());
    }
    replies
}

/// Polls all devices until `count` frames for which `wanted` holds have arrived, on whichever, or
/// five seconds have passed. Returns each with the queue it came from.
fn receive_on_any(
    devices: &mut [DpdkDevice],
    count: usize,
    wanted: impl Fn(&[u8]) -> bool,
) -> Vec<(usize, Vec<u8>)> {
    let mut got = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(5);
    while got.len() < count && Instant::now() < deadline {
        for (index, device) in devices.iter_mut().enumerate() {
            let mut burst = Vec::new();
            device.receive(&mut burst, 32);
            let frames = burst.iter().map(|frame| frame.head()).filter(|head| wanted(head));
            got.extend(frames.map(|head| (index, head.to_vec())));
        }
    }
    got
}

/// Exchanges frames with the kernel behind `interface`: replies to requests from each queue, and
/// datagrams of many flows, each of which arrives once, on some queue.
fn exchange_with_kernel(devices: &mut [DpdkDevice], interface: &str) {
    let mac = devices[0].capabilities().mac;
    ip(&format!("address add 198.18.0.1/24 dev {interface}"));
    ip(&format!("link set {interface} up"));
    ip(&format!("neighbour replace 198.18.0.2 lladdr {} dev {interface}", format_mac(mac)));
    assert_eq!(arp_replies(devices), devices.len());
    for flow in 0..FLOWS {
        let socket = UdpSocket::bind(("198.18.0.1", 0)).unwrap();
        socket.send_to(&flow.to_be_bytes(), ("198.18.0.2", 9)).unwrap();
    }
    let is_datagram = |head: &[u8]| head[12..14] == [8, 0] && head[23] == 17;
    let got = receive_on_any(devices, usize::from(FLOWS), is_datagram);
    let flows: BTreeSet<_> = got.iter().map(|(_, head)| [head[42], head[43]]).collect();
    assert_eq!(got.len(), usize::from(FLOWS));
    assert_eq!(flows.len(), usize::from(FLOWS), "each arrives once");
}

#[test]
fn tap_queues_share_one_interface() {
    in_namespace(|| {
        for queues in [2, 4] {
            let mut devices = open_queues("tap:fwtapq", queues).unwrap();
            assert_eq!(devices[0].steering(), &Steering::Learned);
            exchange_with_kernel(&mut devices, "fwtapq");
            drop(devices);
            // A child that another test started meanwhile has inherited the descriptors.
            wait_until("the interface is removed", || !dpdk_sys::netif::exists("fwtapq"));
        }
        let error = open_queues("tap:fwtapq", 5).unwrap_err();
        assert!(matches!(error, DeviceError::TooManyQueues { queues: 5, max: 4, .. }), "{error}");
    });
}

#[test]
fn af_packet_queues_share_one_interface() {
    in_namespace(|| {
        ip("link add fwvq0 type veth peer name fwvq1");
        ip("link set fwvq1 up");
        let mut devices = open_queues("af_packet:fwvq1", 2).unwrap();
        assert_eq!(devices[0].steering(), &Steering::Unknown);
        exchange_with_kernel(&mut devices, "fwvq0");
    });
}

/// A veth has no combined channels, which are the ones that the driver counts.
#[test]
fn af_xdp_has_no_more_queues_than_its_interface() {
    in_namespace(|| {
        ip("link add fwxq0 type veth peer name fwxq1");
        ip("link set fwxq1 up");
        match open_queues("af_xdp:fwxq1", 2) {
            Err(DeviceError::TooManyQueues { queues: 2, max: 1, .. }) => {}
            Err(error @ DeviceError::NeedsHugepages { .. }) => skip(&error.to_string()),
            other => panic!("{other:?}"),
        }
    });
}
