//! EAL arguments, hotplug, and the errors of opening.

use std::process::Command;

use super::*;

const ARGUMENTS: &str = "FERROWARP_TEST_EAL";

/// Child process of the next test: EAL can be started only once per process.
#[test]
fn eal_arguments_process() {
    let Ok(spec) = std::env::var(ARGUMENTS) else { return };
    match open_single(&spec, &OpenConfig::new()) {
        Ok(device) => println!("opened {} {:?}", device.name(), device.capabilities().checksum),
        Err(error) => println!("refused {error}"),
    }
    let folder = format!("/var/run/dpdk/ferrowarp-{}", std::process::id());
    println!("left behind: {}", std::path::Path::new(&folder).exists());
}

#[test]
fn eal_arguments_are_passed_verbatim() {
    let table = [
        ("eal:--vdev=net_null0", "opened eal:--vdev=net_null0 Software"),
        ("eal:--no-huge -m 64", "refused eal:--no-huge -m 64: no unused port was found"),
        ("eal:--vdev=net_nosuch0", "did not start"),
        ("pci:0000:ff:1f.7", "refused pci:0000:ff:1f.7: no PCI device has this address"),
    ];
    for (spec, expected) in table {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "device::tests::opening::eal_arguments_process"])
            .env(ARGUMENTS, spec)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(expected), "{spec}: {text}");
        assert!(text.contains("left behind: false"), "{spec}: {text}");
    }
}

/// Hotplugs devices that EAL was not started with, in sequence and at the same time.
#[test]
fn devices_can_be_hotplugged_after_eal_init() {
    let _pools = lock_pools();
    let config = OpenConfig::new();
    drop(pair(&config));
    for _ in 0..2 {
        let first = open_single("eal:--vdev=net_null_a,size=64", &config).unwrap();
        let mut second = open_single("eal:--vdev net_null_b,size=100", &config).unwrap();
        let frames = receive(&mut second, 8);
        assert!(frames.len() == 8 && frames.iter().all(|frame| frame.len() == 100));
        assert!(open_single("eal:--vdev=net_null_a,size=64", &config).is_err(), "it is in use");
        drop((first, second));
    }
}

/// Hotplugs a PCI device that is no NIC: DPDK finds it on the bus and has no driver for it.
#[test]
fn pci_hotplug_probes_the_bus() {
    let _pools = lock_pools();
    let config = OpenConfig::new();
    drop(pair(&config));
    let other = std::fs::read_dir("/sys/bus/pci/devices").ok().and_then(|mut devices| {
        devices.find_map(|device| {
            let device = device.ok()?;
            let class = std::fs::read_to_string(device.path().join("class")).ok()?;
            // Storage or unclassified, and bound to a kernel driver: no DPDK driver claims it.
            let is_other = class.starts_with("0x01") || class.starts_with("0xff");
            let is_held = device.path().join("driver").exists();
            (is_other && is_held).then(|| device.file_name().into_string().ok())?
        })
    });
    let Some(other) = other else {
        return skip("no PCI device other than NICs is bound to a kernel driver");
    };
    let error = open_single(&format!("pci:{other}"), &config).unwrap_err().to_string();
    assert!(error.contains("not a network card"), "{error}");
    // Without the checks of `pci:`.
    let error = open_single(&format!("eal:-a {other}"), &config).unwrap_err().to_string();
    // The error is neither that the device does not exist nor that EAL was started without it.
    assert!(error.contains("could not be attached"), "{error}");
    assert!(!error.contains("No such device"), "{error}");
}

#[test]
fn each_open_error_is_one_line() {
    let _pools = lock_pools();
    let (_folder, path) = socket_path();
    let config = OpenConfig::new();
    let table = [
        ("memif:/no/such/folder/x".to_owned(), "no folder /no/such/folder"),
        (format!("memif:{path},client"), "start the server first"),
        ("vhost:/no/such/folder/x".to_owned(), "no folder /no/such/folder"),
        (format!("virtio-user:{path}"), "start the server first"),
        ("af_packet:no-such-if".to_owned(), "no network interface `no-such-if`"),
        ("af_xdp:no-such-if".to_owned(), "no network interface `no-such-if`"),
        ("tap:lo".to_owned(), "exists already"),
        ("pci:0000:ff:1f.7".to_owned(), "no PCI device has this address"),
        ("port:net_null7".to_owned(), "no port of this name"),
        ("eal:--vdev=net_nosuch7".to_owned(), "no poll-mode driver"),
        ("eal:--vdev=net_null7 -l 1".to_owned(), "already runs with other arguments"),
    ];
    // The last cases are meaningful only while EAL runs.
    drop(pair(&config));
    for (spec, expected) in table {
        let error = open_single(&spec, &config).unwrap_err().to_string();
        assert!(error.contains(expected), "{spec}: {error}");
        assert!(!error.contains('\n'), "one line: {error}");
    }
    let config = OpenConfig { mtu: 40, ..OpenConfig::new() };
    assert!(matches!(open(&DeviceSpec::Ring, &config), Err(DeviceError::BadMtu { .. })));
}
