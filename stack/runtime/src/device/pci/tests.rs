//! Each missing step, over a made-up tree of /sys, /dev and /proc.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::TempDir;

use super::*;

const ADDRESS: &str = "0000:01:00.0";
const DEVICES: &str = "sys/bus/pci/devices";
const GROUP: &str = "sys/kernel/iommu_groups/12";

/// A machine with a network card of Intel's and 256 free hugepages, and a process with all rights.
struct HostTree {
    folder: TempDir,
    try_open: fn(&Path) -> io::Result<()>,
}

impl HostTree {
    fn new(driver: Option<&str>) -> Self {
        let machine = Self { folder: tempfile::tempdir().unwrap(), try_open: |_| Ok(()) };
        machine.add_card(ADDRESS, driver);
        machine.write("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "256\n");
        machine.set_capabilities(u64::MAX);
        machine.write(
            "proc/self/limits",
            "Limit  Soft Limit  Hard Limit  Units\nMax locked memory   8388608   8388608   bytes\n",
        );
        machine
    }

    /// A machine whose card is bound to vfio-pci and can be used.
    fn with_vfio() -> Self {
        let machine = Self::new(Some(VFIO_PCI));
        machine.add_to_group(ADDRESS);
        machine.write("dev/vfio/vfio", "");
        machine.write("dev/vfio/12", "");
        machine
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn link(&self, path: &str, target: &str) {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.folder.path().join(path)).unwrap();
    }

    fn add_card(&self, address: &str, driver: Option<&str>) {
        self.write(&format!("{DEVICES}/{address}/class"), "0x020000\n");
        self.set_ids(address, "0x8086", "0x1572");
        if let Some(driver) = driver {
            self.link(&format!("{DEVICES}/{address}/driver"), &format!("../../drivers/{driver}"));
        }
    }

    fn set_ids(&self, address: &str, vendor: &str, device: &str) {
        self.write(&format!("{DEVICES}/{address}/vendor"), &format!("{vendor}\n"));
        self.write(&format!("{DEVICES}/{address}/device"), &format!("{device}\n"));
    }

    fn add_to_group(&self, address: &str) {
        self.link(&format!("{DEVICES}/{address}/iommu_group"), "../../../kernel/iommu_groups/12");
        self.write(&format!("{GROUP}/devices/{address}"), "");
    }

    fn set_capabilities(&self, set: u64) {
        self.write("proc/thread-self/status", &format!("Name:\tiwping\nCapEff:\t{set:016x}\n"));
    }

    fn add_process(&self, pid: u32, name: &str, node: &str) {
        self.write(&format!("proc/{pid}/comm"), &format!("{name}\n"));
        self.link(&format!("proc/{pid}/fd/7"), node);
    }

    fn probe(&self) -> Probe<'static> {
        Probe {
            host: Host::made_up(self.folder.path(), self.try_open),
            name: format!("pci:{ADDRESS}"),
            address: ADDRESS,
            memory: None,
            may_use_hugepages: true,
        }
    }

    /// The error of the checks before EAL starts.
    fn error(&self) -> String {
        error(&self.probe())
    }

    fn explain(&self, probe: &Probe<'_>, source: dpdk_sys::Error) -> String {
        line(&probe.explain(DeviceError::Port { device: self.probe().name, source }))
    }
}

fn error(probe: &Probe<'_>) -> String {
    let refusal = probe.check().expect_err("a step is missing");
    line(&probe.error(refusal))
}

fn line(error: &DeviceError) -> String {
    let text = error.to_string();
    assert!(text.starts_with(&format!("pci:{ADDRESS}: ")) && !text.contains('\n'), "{text}");
    text
}

/// Asserts that an error has all of these parts.
fn assert_tells(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` in: {text}");
    }
}

#[test]
fn absent_and_other_devices_are_refused() {
    let machine = HostTree::new(None);
    fs::remove_dir_all(machine.folder.path().join(DEVICES).join(ADDRESS)).unwrap();
    assert_tells(&machine.error(), &["no PCI device has this address", "`lspci -D`"]);

    // No advice to take the disk's driver away.
    let machine = HostTree::new(Some("nvme"));
    machine.write(&format!("{DEVICES}/{ADDRESS}/class"), "0x010802\n");
    let text = machine.error();
    assert_tells(&text, &["not a network card", "010802"]);
    assert!(!text.contains("vfio"), "{text}");
}

#[test]
fn accelerator_bound_for_dpdk_is_tried() {
    let machine = HostTree::with_vfio();
    machine.write(&format!("{DEVICES}/{ADDRESS}/class"), "0x120000\n");
    assert!(machine.probe().check().is_ok());
    let text = machine.explain(&machine.probe(), dpdk_sys::Error::Hotplug(NO_DRIVER));
    assert_tells(&text, &["not a network card", "120000"]);
}

#[test]
fn unbound_card_names_each_step_that_is_missing() {
    let machine = HostTree::new(None);
    let all = ["no kernel driver", "turn the IOMMU on", "intel_iommu=on", "`modprobe vfio-pci`"];
    assert_tells(&machine.error(), &all);
    assert_tells(&machine.error(), &[&format!("`driverctl set-override {ADDRESS} vfio-pci`")]);

    machine.write("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y\n");
    assert!(!machine.error().contains("IOMMU"), "{}", machine.error());
    machine.remove("sys/module/vfio/parameters/enable_unsafe_noiommu_mode");
    machine.add_to_group(ADDRESS);
    assert!(!machine.error().contains("IOMMU"), "{}", machine.error());
    machine.write("sys/bus/pci/drivers/vfio-pci/bind", "");
    assert!(!machine.error().contains("modprobe"), "{}", machine.error());
    assert_tells(&machine.error(), &[&format!("`dpdk-devbind.py -b vfio-pci {ADDRESS}`")]);
}

#[test]
fn card_of_the_kernel_names_driver_and_interface() {
    let machine = HostTree::new(Some("i40e"));
    let text = machine.error();
    assert_tells(&text, &["bound to the kernel's driver i40e", "vfio-pci"]);
    assert!(!text.contains("loses"), "{text}");
    machine.write(&format!("{DEVICES}/{ADDRESS}/net/eth1/mtu"), "1500");
    assert_tells(&machine.error(), &["the kernel then loses the interface eth1"]);

    let machine = HostTree::new(Some("virtio-pci"));
    machine.write(&format!("{DEVICES}/{ADDRESS}/virtio0/net/eth0/mtu"), "1500");
    assert_tells(&machine.error(), &["virtio-pci", "loses the interface eth0"]);
}

#[test]
fn card_that_stays_with_the_kernel_needs_its_driver_and_verbs() {
    let machine = HostTree::new(Some("mlx5_core"));
    machine.set_ids(ADDRESS, "0x15b3", "0x1017");
    machine.write(&format!("{DEVICES}/{ADDRESS}/net/eth1/mtu"), "1500");
    assert_tells(&machine.error(), &["no RDMA device", "`modprobe -a mlx5_ib ib_uverbs`"]);
    machine.write(&format!("{DEVICES}/{ADDRESS}/infiniband_verbs/uverbs0/dev"), "231:192\n");
    assert!(machine.probe().check().is_ok());
    // Only a failure shows that it needs the right to send frames of any kind.
    machine.set_capabilities(0);
    assert!(machine.probe().check().is_ok());
    let text = machine.explain(&machine.probe(), dpdk_sys::Error::Hotplug(Errno(1)));
    assert_tells(&text, &["CAP_NET_RAW"]);

    let machine = HostTree::with_vfio();
    machine.set_ids(ADDRESS, "0x15b3", "0x1003");
    let text = machine.error();
    assert_tells(&text, &["through the kernel's driver mlx4_core, not vfio-pci"]);
    assert_tells(&text, &["`modprobe mlx4_core`", "`driverctl unset-override 0000:01:00.0`"]);
}

#[test]
fn vfio_card_needs_group_and_nodes() {
    let machine = HostTree::with_vfio();
    assert!(machine.probe().check().is_ok());
    machine.remove("dev/vfio/12");
    assert_tells(&machine.error(), &["there is no /dev/vfio/12", "container"]);
    machine.remove("dev/vfio/vfio");
    assert_tells(&machine.error(), &["there is no /dev/vfio/vfio", "`modprobe vfio-pci`"]);
    machine.remove(&format!("{DEVICES}/{ADDRESS}/iommu_group"));
    assert_tells(&machine.error(), &["no IOMMU group", "intel_iommu=on"]);
}

#[test]
fn vfio_node_without_rights_is_named() {
    let mut machine = HostTree::with_vfio();
    machine.try_open = |path| {
        let is_group = path.ends_with("12");
        if is_group { Err(io::Error::from_raw_os_error(13)) } else { Ok(()) }
    };
    assert_tells(
        &machine.error(),
        &["/dev/vfio/12 cannot be opened: Permission denied", "`chown USER /dev/vfio/12`"],
    );
    machine.try_open = |_| Err(io::Error::from_raw_os_error(1));
    assert_tells(&machine.error(), &["/dev/vfio/vfio cannot be opened: Operation not permitted"]);
}

#[test]
fn card_in_use_names_the_process() {
    let mut machine = HostTree::with_vfio();
    machine.try_open = |path| {
        let is_group = path.ends_with("12");
        if is_group { Err(io::Error::from_raw_os_error(16)) } else { Ok(()) }
    };
    assert_tells(&machine.error(), &["in use by another process"]);
    machine.add_process(4_000_001, "testpmd", "/dev/vfio/13");
    assert_tells(&machine.error(), &["in use by another process"]);
    machine.add_process(4_000_002, "testpmd", "/dev/vfio/12");
    assert_tells(&machine.error(), &["in use by process 4000002 (testpmd)"]);
    machine.remove("proc/4000002/fd/7");
    // EAL of this process has opened the group for another device of it.
    machine.add_process(std::process::id(), "iwping", "/dev/vfio/12");
    assert!(machine.probe().check().is_ok());
}

#[test]
fn group_with_a_device_of_the_kernel_is_refused() {
    let machine = HostTree::with_vfio();
    for (address, driver) in [
        ("0000:00:01.0", Some("pcieport")),
        ("0000:01:00.2", None),
        ("0000:01:00.3", Some("vfio-pci")),
    ] {
        machine.add_card(address, driver);
        machine.add_to_group(address);
    }
    assert!(machine.probe().check().is_ok());
    machine.add_card("0000:01:00.1", Some("i40e"));
    machine.add_to_group("0000:01:00.1");
    assert_tells(&machine.error(), &["group 12 holds 0000:01:00.1", "bound to i40e"]);
}

#[test]
fn memory_that_vfio_would_lock_is_there() {
    let machine = HostTree::with_vfio();
    machine.write("proc/meminfo", "MemTotal: 2000000 kB\nMemAvailable:    700000 kB\n");
    assert!(machine.probe().check().is_ok(), "hugepages");
    let never = Probe { may_use_hugepages: false, ..machine.probe() };
    let text = error(&never);
    assert_tells(&text, &["1024 MiB of ordinary memory", "683 MiB are available"]);
    assert_tells(&text, &["`sysctl vm.nr_hugepages=64`"]);
    let running = Probe { memory: Some(Memory::Ordinary), ..machine.probe() };
    assert!(running.check().is_ok(), "it is locked already, or on its way");
    machine.write("proc/meminfo", "MemAvailable:    1048576 kB\n");
    assert!(never.check().is_ok());
}

#[test]
fn card_without_iommu_needs_hugepages_and_rights() {
    for driver in ["uio_pci_generic", "igb_uio"] {
        let machine = HostTree::new(Some(driver));
        assert!(machine.probe().check().is_ok());
        let hugepages = Probe { memory: Some(Memory::Hugepages), ..machine.probe() };
        let ordinary = Probe { memory: Some(Memory::Ordinary), ..machine.probe() };
        let never = Probe { may_use_hugepages: false, ..machine.probe() };
        assert_tells(&error(&ordinary), &[driver, "hugepages"]);
        assert_tells(&error(&never), &[driver, "hugepages"]);
        machine.write("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "63\n");
        let text = machine.error();
        assert_tells(&text, &[driver, "128 MiB of free hugepages", "`sysctl vm.nr_hugepages=64`"]);
        assert!(hugepages.check().is_ok(), "EAL has its memory");
        machine.write("sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages", "1\n");
        assert!(machine.probe().check().is_ok());
        machine.set_capabilities(0);
        assert_tells(&machine.error(), &["CAP_SYS_ADMIN"]);
    }
}

#[test]
fn vfio_without_iommu_is_as_uio() {
    let machine = HostTree::with_vfio();
    machine.write(&format!("{GROUP}/name"), "vfio-noiommu\n");
    assert_tells(&machine.error(), &["there is no /dev/vfio/noiommu-12"]);
    machine.write("dev/vfio/noiommu-12", "");
    assert!(machine.probe().check().is_ok());
    machine.remove("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    assert_tells(&machine.error(), &["vfio-pci", "hugepages"]);
    machine.write("sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages", "1\n");
    assert!(machine.probe().check().is_ok(), "one page of 1 GiB");
    machine.set_capabilities(!(1 << 17));
    assert_tells(&machine.error(), &["CAP_SYS_RAWIO"]);
}

#[test]
fn uio_card_has_one_user() {
    let machine = HostTree::new(Some("uio_pci_generic"));
    machine.write(&format!("{DEVICES}/{ADDRESS}/uio/uio3/name"), "uio_pci_generic\n");
    assert!(machine.probe().check().is_ok());
    machine.add_process(4_000_003, "testpmd", "/dev/uio3");
    assert_tells(&machine.error(), &["in use by process 4000003 (testpmd)"]);
}

#[test]
fn failure_without_a_poll_mode_driver_names_packages() {
    let machine = HostTree::with_vfio();
    let text = machine.explain(&machine.probe(), dpdk_sys::Error::Hotplug(NO_DRIVER));
    assert_tells(
        &text,
        &["8086:1572", &format!("librte-net-i40e{}", dpdk_sys::ABI), "static build"],
    );
    let text = machine.explain(&machine.probe(), dpdk_sys::Error::NoPort);
    assert_tells(&text, &["open already"]);
}

#[test]
fn low_limit_of_locked_memory_explains_a_failure() {
    let machine = HostTree::with_vfio();
    let failures = [
        dpdk_sys::Error::EalInit(Errno(95)),
        dpdk_sys::Error::Hotplug(Errno(1)),
        dpdk_sys::Error::PoolCreate(Errno(12)),
    ];
    machine.set_capabilities(0);
    let probe = machine.probe();
    for failure in failures {
        let text = machine.explain(&probe, failure);
        assert_tells(&text, &["lock 8192 KiB", "needs 131072 KiB", "`ulimit -l unlimited`"]);
    }
    let ordinary = Probe { memory: Some(Memory::Ordinary), ..machine.probe() };
    assert_tells(&machine.explain(&ordinary, failures[1]), &["needs 1048576 KiB"]);
    // Another failure is not explained by it, nor is one of a process that may lock all.
    let bare = |failure: dpdk_sys::Error| format!("pci:{ADDRESS}: {failure}");
    let other = dpdk_sys::Error::TxQueue(Errno(22));
    assert_eq!(machine.explain(&probe, other), bare(other));
    machine.set_capabilities(1 << 14);
    assert_eq!(machine.explain(&probe, failures[1]), bare(failures[1]));
    machine.set_capabilities(0);
    machine.write("proc/self/limits", "Max locked memory   unlimited   unlimited   bytes\n");
    assert_eq!(machine.explain(&probe, failures[1]), bare(failures[1]));
}

#[test]
fn running_eal_with_virtual_addresses_explains_a_failure() {
    let machine = HostTree::new(Some("uio_pci_generic"));
    let running = Probe { memory: Some(Memory::Hugepages), ..machine.probe() };
    let text = machine.explain(&running, dpdk_sys::Error::Hotplug(OTHER_ADDRESSES));
    assert_tells(&text, &["virtual addresses", "open this device first"]);
    let refused = dpdk_sys::Error::Hotplug(Errno(1));
    assert_eq!(machine.explain(&running, refused), format!("pci:{ADDRESS}: {refused}"));
}

#[test]
fn card_taken_meanwhile_is_explained() {
    let mut machine = HostTree::with_vfio();
    assert!(machine.probe().check().is_ok());
    machine.try_open = |_| Err(io::Error::from_raw_os_error(13));
    let text = machine.explain(&machine.probe(), dpdk_sys::Error::EalInit(Errno(95)));
    assert_tells(&text, &["Permission denied"]);
}
