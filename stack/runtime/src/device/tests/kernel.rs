//! Devices whose link partner is the kernel, each in a network namespace of its own. Needs root.

use std::net::UdpSocket;
use std::process::Command;

use dpdk_sys::netif;

use super::*;

const KERNEL: [u8; 4] = [198, 18, 0, 1];
const STACK: [u8; 4] = [198, 18, 0, 2];

/// Runs `test` on a thread in a new network namespace; skips it if that is not permitted.
pub(super) fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let _pools = lock_pools();
    let inside = std::thread::spawn(move || match netif::enter_new_namespace() {
        Ok(()) => test(),
        Err(error) => skip(&format!("no network namespace can be made: {error}")),
    });
    if let Err(panic) = inside.join() {
        std::panic::resume_unwind(panic);
    }
}

pub(super) fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split_whitespace()).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

pub(super) fn format_mac(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Returns the first frame for which `wanted` holds, within five seconds.
fn await_frame(device: &mut DpdkDevice, wanted: impl Fn(&[u8]) -> bool) -> DpdkRx {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let mut burst = Vec::new();
        device.receive(&mut burst, 32);
        if let Some(frame) = burst.into_iter().find(|frame| wanted(frame.head())) {
            return frame;
        }
        assert!(Instant::now() < deadline, "the kernel's frame arrives");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// ARP request for `KERNEL` (RFC 826).
pub(super) fn arp_request(mac: [u8; 6]) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend([0xff; 6]);
    frame.extend(mac);
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(mac);
    frame.extend(STACK);
    frame.extend([0; 6]);
    frame.extend(KERNEL);
    frame.resize(60, 0);
    frame
}

/// Broadcast IPv4 packet with space for a UDP header and `payload_len` bytes.
fn datagram(mac: [u8; 6], payload_len: usize) -> Vec<u8> {
    let total = u16::try_from(28 + payload_len).unwrap();
    let mut frame = Vec::new();
    frame.extend([0xff; 6]);
    frame.extend(mac);
    frame.extend([8, 0, 0x45, 0]);
    frame.extend(total.to_be_bytes());
    frame.resize(14 + usize::from(total), 0);
    frame
}

/// Exchanges frames with the kernel behind `interface`: ARP request and reply, then a UDP datagram,
/// which is returned.
fn exchange_with_kernel(device: &mut DpdkDevice, interface: &str, payload_len: usize) -> DpdkRx {
    let mac = device.capabilities().mac;
    ip(&format!("address add 198.18.0.1/24 dev {interface}"));
    ip(&format!("link set {interface} up"));
    ip(&format!("neighbour replace 198.18.0.2 lladdr {} dev {interface}", format_mac(mac)));
    let mut request = device.allocate(TxClass::Control).unwrap();
    let bytes = arp_request(mac);
    request.buf_mut()[..bytes.len()].copy_from_slice(&bytes);
    request.set_len(bytes.len());
    device.transmit(request);
    device.flush();
    let reply = await_frame(device, |head| head[12..14] == [8, 6] && head[21] == 2);
    assert_eq!(reply.head()[..6], mac);
    assert_eq!(reply.head()[28..32], KERNEL);
    assert_ne!(reply.head()[22..28], mac, "two hosts, two addresses");

    let socket = UdpSocket::bind(("198.18.0.1", 0)).unwrap();
    let payload: Vec<u8> = (0..payload_len).map(|at| u8::try_from(at % 251).unwrap()).collect();
    socket.send_to(&payload, ("198.18.0.2", 9)).unwrap();
    let frame = await_frame(device, |head| head[12..14] == [8, 0] && head[23] == 17);
    assert_eq!(frame.head()[..6], mac);
    assert_eq!(contents(&frame)[42..], payload);
    frame
}

#[test]
fn tap_exchanges_frames_and_removes_its_interface() {
    in_namespace(|| {
        let mut device = open_single("tap:fwtap0", &OpenConfig::new()).unwrap();
        let taken = open_single("tap:fwtap0", &OpenConfig::new());
        assert!(matches!(taken, Err(DeviceError::InterfaceExists { .. })));
        exchange_with_kernel(&mut device, "fwtap0", 1472);
        drop(device);
        // A child that another test started meanwhile has inherited the descriptors.
        wait_until("the interface is removed", || !netif::exists("fwtap0"));
    });
}

#[test]
fn tap_carries_jumbo_frames_whole() {
    in_namespace(|| {
        let config = OpenConfig { mtu: 9000, ..OpenConfig::new() };
        let mut device = open_single("tap:fwtap1", &config).unwrap();
        assert_eq!(netif::mtu("fwtap1").unwrap(), 9000);
        let frame = exchange_with_kernel(&mut device, "fwtap1", 8972);
        assert_eq!(frame.head().len(), 9014);
    });
}

#[test]
fn frame_above_send_mtu_is_dropped_and_counted() {
    in_namespace(|| {
        let config = OpenConfig { mtu: 9000, ..OpenConfig::new() };
        let mut device = open_single("tap:fwtap3", &config).unwrap();
        let send_mtu = device.capabilities().send_mtu;
        assert_eq!((device.capabilities().mtu, send_mtu), (9000, 1500));
        let mac = device.capabilities().mac;
        let send = |device: &mut DpdkDevice, payload_len: usize| {
            let mut frame = device.allocate(TxClass::Data).unwrap();
            let bytes = datagram(mac, payload_len);
            frame.buf_mut()[..bytes.len()].copy_from_slice(&bytes);
            frame.set_len(bytes.len());
            device.transmit(frame);
            device.flush();
        };
        ip("link set fwtap3 up");
        send(&mut device, 8972);
        assert_eq!(device.counters().tx_too_long, 1);
        // A frame of exactly `send_mtu` is sent, and so are later ones.
        send(&mut device, usize::from(send_mtu) - 28);
        assert_eq!((device.counters().tx_frames, device.transmit_backlog()), (1, 0));
        exchange_with_kernel(&mut device, "fwtap3", 8972);
    });
}

#[test]
fn tap_carries_jumbo_frames_in_segments() {
    in_namespace(|| {
        let config = OpenConfig { mtu: 9000, rx_buf_size: Some(2048), ..OpenConfig::new() };
        let mut device = open_single("tap:fwtap2", &config).unwrap();
        let frame = exchange_with_kernel(&mut device, "fwtap2", 8972);
        assert_eq!(frame.len(), 9014);
        assert_eq!(frame.head().len(), 2048);
    });
}

#[test]
fn tap_named_by_eal_arguments_is_treated_as_a_tap() {
    in_namespace(|| {
        // EAL runs, so the device is hotplugged.
        drop(open(&DeviceSpec::Ring, &OpenConfig::new()).unwrap());
        let spec = "eal:--vdev=net_tap_named,iface=fwtap4";
        let checksum = Some(ChecksumMode::Offload);
        let refused = open_single(spec, &OpenConfig { checksum, ..OpenConfig::new() });
        assert!(matches!(refused, Err(DeviceError::NoChecksumOffload { .. })));
        let config = OpenConfig { mtu: 9000, ..OpenConfig::new() };
        let mut device = open_single(spec, &config).unwrap();
        assert_eq!(netif::mtu("fwtap4").unwrap(), 9000);
        assert_eq!(device.capabilities().send_mtu, 1500);
        let frame = exchange_with_kernel(&mut device, "fwtap4", 8972);
        assert_eq!(frame.head().len(), 9014);
    });
}

#[test]
fn af_packet_exchanges_frames_with_the_kernel() {
    in_namespace(|| {
        ip("link add fwv0 type veth peer name fwv1");
        ip("link set fwv1 up");
        let jumbo = OpenConfig { mtu: 9000, ..OpenConfig::new() };
        let refused = open_single("af_packet:fwv1", &jumbo);
        assert!(matches!(refused, Err(DeviceError::MtuTooLarge { max: 1500, .. })));
        let mut device = open_single("af_packet:fwv1", &OpenConfig::new()).unwrap();
        exchange_with_kernel(&mut device, "fwv0", 1472);
        drop(device);
        ip("link set fwv0 mtu 9000");
        ip("link set fwv1 mtu 9000");
        ip("address flush dev fwv0");
        let mut device = open_single("af_packet:fwv1", &jumbo).unwrap();
        exchange_with_kernel(&mut device, "fwv0", 8972);
    });
}

#[test]
fn af_xdp_exchanges_frames_with_the_kernel() {
    in_namespace(|| {
        // The device uses one queue, so the interface has only one.
        ip("link add fwx0 numrxqueues 1 type veth peer name fwx1 numrxqueues 1");
        ip("link set fwx1 up");
        match open_single("af_xdp:fwx1", &OpenConfig::new()) {
            Ok(mut device) => drop(exchange_with_kernel(&mut device, "fwx0", 1472)),
            Err(error @ DeviceError::NeedsHugepages { .. }) => skip(&error.to_string()),
            Err(error) => panic!("{error}"),
        }
    });
}
