//! The lines of the table, as far as other code relies on them.

use super::*;
use crate::device::pools::{MTU_MAX, MTU_MIN, PoolNeeds};

fn frame_capacity(mtu: u16) -> u16 {
    PoolNeeds::new().sizes(mtu, 0, 0).frame_capacity
}

#[test]
fn net_ring_passes_mbufs_and_needs_no_checksums() {
    let ring = DriverQuirks::of("net_ring");
    assert!(ring.rx_shares_sender_mbufs && ring.checksum_optional);
    assert_eq!((ring.mac, ring.mtu_by), (MacFrom::Local, MtuBy::Buffers));
    assert_eq!((ring.descriptors(false), ring.path_bytes), ((0, 0), 0));
    assert_eq!(ring.rx_buf_size(9000, 9088, Some(2048)), 9088, "the sender's buffers");
    assert_eq!((ring.steering, ring.queues_max), (SteeringBy::Peer, 16));
}

#[test]
fn net_memif_keeps_no_mbufs_and_needs_no_checksums() {
    let memif = DriverQuirks::of("net_memif");
    assert!(memif.checksum_optional && !memif.rx_shares_sender_mbufs);
    assert_eq!((memif.mac, memif.mtu_by), (MacFrom::Port, MtuBy::Buffers));
    assert_eq!((memif.descriptors(true), memif.path_bytes), ((0, 0), 0));
    assert_eq!(memif.rx_buf_size(9000, 9088, Some(2048)), 2048);
    assert_eq!(memif.rx_buf_size(9000, 9088, None), 9088);
    assert_eq!(memif.steering, SteeringBy::Peer);
}

#[test]
fn net_vhost_keeps_no_mbufs_and_gets_a_mac_of_its_own() {
    let vhost = DriverQuirks::of("net_vhost");
    assert!(vhost.checksum_optional && vhost.memory_files_max.is_none());
    assert_eq!((vhost.mac, vhost.mtu_by), (MacFrom::Local, MtuBy::Buffers));
    assert_eq!((vhost.descriptors(true), vhost.path_bytes), ((0, 0), 0));
    assert_eq!((vhost.steering, vhost.queues_max), (SteeringBy::Peer, 128));
}

#[test]
fn net_virtio_user_keeps_a_ring_of_mbufs_and_shares_8_files() {
    let virtio = DriverQuirks::of("net_virtio_user");
    assert!(virtio.checksum_optional);
    assert_eq!((virtio.mac, virtio.mtu_by), (MacFrom::Port, MtuBy::Ethdev));
    assert_eq!((virtio.descriptors(false), virtio.path_bytes), ((256, 256), 0));
    assert_eq!((virtio.steering, virtio.queues_max), (SteeringBy::Peer, 8));
    assert_eq!((virtio.memory_files_max, virtio.tx_free_thresh), (Some(8), Some(252)));
}

#[test]
fn net_tap_sends_1500_bytes_and_shares_the_kernels_mac() {
    let tap = DriverQuirks::of("net_tap");
    assert_eq!((tap.send_mtu_max, tap.mtu_max), (1500, u16::MAX));
    assert_eq!((tap.mac, tap.mtu_by), (MacFrom::PortFlipped, MtuBy::KernelNetdev));
    assert!(tap.checksum_in_software && !tap.checksum_optional && tap.tx_errors_are_retries);
    assert_eq!([false, true].map(|segmented| tap.descriptors(segmented)), [(8, 8), (64, 8)]);
    assert_eq!((tap.steering, tap.queues_max), (SteeringBy::Kernel, 4));
    assert_eq!((tap.path_bytes, tap.rx_buf_size(1500, 1536, None)), (PATH_BYTES, 1536));
}

#[test]
fn net_af_packet_fits_a_slot_in_each_buffer() {
    let packet = DriverQuirks::of("net_af_packet");
    for mtu in (MTU_MIN..=packet.mtu_max).step_by(61).chain([1500, 9000, packet.mtu_max]) {
        let slot = af_packet_slot(mtu);
        assert!(slot.is_power_of_two() && slot >= mtu + 32 + 128, "MTU {mtu}");
        for wanted in [None, Some(256)] {
            assert!(packet.rx_buf_size(mtu, frame_capacity(mtu), wanted) >= slot, "MTU {mtu}");
        }
    }
    let spec = "af_packet:veth0".parse().unwrap();
    let refused = packet.check_mtu(&spec, packet.mtu_max + 1);
    assert!(matches!(refused, Err(DeviceError::MtuTooLarge { max: 32_000, .. })));
    assert_eq!((packet.descriptors(false), packet.mtu_by), ((0, 0), MtuBy::Buffers));
    assert_eq!(packet.steering, SteeringBy::Other);
}

#[test]
fn net_af_xdp_needs_hugepages_and_large_buffers() {
    let xdp = DriverQuirks::of("net_af_xdp");
    let spec = "af_xdp:veth0".parse().unwrap();
    let refused = xdp.check_memory(&spec, Memory::Ordinary);
    assert!(matches!(refused, Err(DeviceError::NeedsHugepages { .. })));
    assert_eq!((xdp.descriptors(false), xdp.mtu_by), ((2048, 2048), MtuBy::Ethdev));
    assert_eq!([256, 4096].map(|size| xdp.rx_buf_size(9000, 9088, Some(size))), [2048, 4096]);
}

#[test]
fn net_e1000_em_has_buffers_of_powers_of_two_and_a_largest_frame() {
    let em = DriverQuirks::of("net_e1000_em");
    let sizes = [1500, 9000].map(|mtu| em.rx_buf_size(mtu, frame_capacity(mtu), None));
    assert_eq!(sizes, [2048, 16_384]);
    let spec = "pci:00:01.0".parse().unwrap();
    assert!(em.check_mtu(&spec, 9212).is_ok() && em.check_mtu(&spec, 9213).is_err());
    assert_eq!((em.steering, em.mtu_by), (SteeringBy::Port, MtuBy::Ethdev));
    assert!(em.offload_by_default);
}

#[test]
fn net_virtio_and_net_vmxnet3_leave_everything_to_the_port() {
    for name in ["net_virtio", "net_vmxnet3"] {
        assert!(TABLE.iter().any(|(line, _)| *line == name), "{name}");
        let nic = DriverQuirks::of(name);
        assert_eq!((nic.link, nic.steering), (LinkKind::Line, SteeringBy::Port), "{name}");
        assert_eq!((nic.mtu_max, nic.send_mtu_max, nic.queues_max), (u16::MAX, u16::MAX, u16::MAX));
        assert!(nic.offload_by_default && !nic.checksum_in_software, "{name}");
    }
}

#[test]
fn nic_buffer_in_steps_of_1024_holds_a_full_frame() {
    let nic = DriverQuirks::of("net_ixgbe");
    for mtu in (MTU_MIN..=MTU_MAX).step_by(61).chain([1500, 9000]) {
        let capacity = frame_capacity(mtu);
        let size = nic.rx_buf_size(mtu, capacity, None);
        assert!(size >= capacity && size.checked_add(HEADROOM).is_some(), "MTU {mtu}");
        let counted = size / 1024 * 1024;
        assert!(counted >= mtu + 18 || mtu > 64_000, "MTU {mtu}: {counted}");
    }
    assert_eq!(nic.rx_buf_size(1500, frame_capacity(1500), None), 2048);
    assert_eq!((nic.descriptors(true), nic.mtu_by), ((512, 512), MtuBy::Ethdev));
    assert_eq!((nic.mac, nic.path_bytes), (MacFrom::Port, PATH_BYTES));
    assert_eq!((nic.steering, nic.queues_max), (SteeringBy::Port, u16::MAX));
    assert!(!nic.checksum_in_software && !nic.checksum_optional && nic.offload_by_default);
}

#[test]
fn each_device_with_a_driver_of_its_own_has_a_line() {
    let specs =
        ["ring", "memif:/a", "vhost:/a", "virtio-user:/a", "tap:a", "af_packet:a", "af_xdp:a"];
    let drivers = specs.map(|spec| spec.parse::<DeviceSpec>().unwrap().driver().unwrap());
    assert_eq!(drivers, TABLE.each_ref().map(|(name, _)| *name)[..drivers.len()]);
    for spec in ["pci:00:01.0", "port:a", "eal:--vdev=net_tap0"] {
        assert_eq!(spec.parse::<DeviceSpec>().unwrap().driver(), None, "{spec}");
    }
}
