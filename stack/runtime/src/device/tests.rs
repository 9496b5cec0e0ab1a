//! Devices that need only memory (`ring` and `memif`), and the errors of the others.

use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferrowarp_proto::device::{
    ChecksumMode, ChecksumState, Device, Retained, RxFrame, TxClass, TxFrame,
};

use super::*;

/// Serialises the tests that count free mbufs.
pub(super) fn lock_pools() -> MutexGuard<'static, ()> {
    static POOLS_LOCK: Mutex<()> = Mutex::new(());
    POOLS_LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pair(config: &OpenConfig) -> (DpdkDevice, DpdkDevice) {
    match open(&DeviceSpec::Ring, config).unwrap() {
        Opened::Pair(first, second) => (first, second),
        Opened::One(_) => panic!("ring is a pair"),
    }
}

pub(super) fn open_single(spec: &str, config: &OpenConfig) -> Result<DpdkDevice, DeviceError> {
    match open(&spec.parse()?, config)? {
        Opened::One(device) => Ok(device),
        Opened::Pair(..) => panic!("{spec} is not a pair"),
    }
}

/// Returns `len` bytes counting up from `seed`, modulo 251.
fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (seed..seed + len).map(|value| u8::try_from(value % 251).unwrap()).collect()
}

fn send(device: &mut DpdkDevice, bytes: &[u8]) {
    let mut frame = device.allocate(TxClass::Data).unwrap();
    frame.buf_mut()[..bytes.len()].copy_from_slice(bytes);
    frame.set_len(bytes.len());
    device.transmit(frame);
}

pub(super) fn contents(frame: &DpdkRx) -> Vec<u8> {
    let mut out = vec![0; frame.len()];
    frame.copy_out(0, &mut out);
    out
}

/// Polls until `count` frames were received or five seconds passed.
pub(super) fn receive(device: &mut DpdkDevice, count: usize) -> Vec<DpdkRx> {
    let mut burst = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(5);
    while burst.len() < count && Instant::now() < deadline {
        device.flush();
        let missing = count - burst.len();
        device.receive(&mut burst, missing);
    }
    burst
}

/// As `receive`, while the sender flushes: a memif server sends only into slots that its client
/// posted in an earlier poll.
fn exchange(from: &mut DpdkDevice, to: &mut DpdkDevice, count: usize) -> Vec<DpdkRx> {
    let mut burst = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(5);
    while burst.len() < count && Instant::now() < deadline {
        from.flush();
        let missing = count - burst.len();
        to.receive(&mut burst, missing);
    }
    assert_eq!(burst.len(), count, "all frames cross in time");
    burst
}

fn wait_for_link(devices: &[&DpdkDevice]) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !devices.iter().all(|device| device.link_is_up()) {
        assert!(Instant::now() < deadline, "the link comes up");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn devices_and_frames_move_between_threads() {
    fn movable<T: Send>() {}
    movable::<DpdkDevice>();
    movable::<DpdkRx>();
    movable::<DpdkTx>();
    movable::<DpdkRetained>();
}

#[test]
fn ring_carries_frames_both_ways_in_order() {
    let _turn = lock_pools();
    let (mut a, mut b) = pair(&OpenConfig::default());
    assert_ne!(a.capabilities().mac, b.capabilities().mac);
    assert_eq!(a.capabilities().checksum, ChecksumMode::NotNeeded);
    assert_eq!(a.capabilities().mtu, 1500);
    assert!(a.link_is_up() && b.link_is_up());
    for index in 0..100 {
        send(&mut a, &pattern(index, 60 + index));
        send(&mut b, &pattern(index + 1, 1514));
    }
    let mut early = Vec::new();
    assert_eq!(a.receive(&mut early, 100), 0, "nothing leaves before a flush");
    a.flush();
    b.flush();
    let at_b = receive(&mut b, 100);
    let at_a = receive(&mut a, 100);
    assert_eq!((at_a.len(), at_b.len()), (100, 100));
    for (index, (first, second)) in at_a.iter().zip(&at_b).enumerate() {
        assert_eq!(contents(first), pattern(index + 1, 1514));
        assert_eq!(second.head(), pattern(index, 60 + index));
        assert_eq!(first.checksum(), ChecksumState::Unknown);
    }
    assert_eq!(a.counters().tx_frames, 100);
    assert_eq!(b.counters().rx_frames, 100);
}

#[test]
fn ring_carries_jumbo_frames_and_takes_other_checksum_modes() {
    let _turn = lock_pools();
    let config =
        OpenConfig { mtu: 9000, checksum: Some(ChecksumMode::Software), ..OpenConfig::default() };
    let (mut a, mut b) = pair(&config);
    assert_eq!(a.capabilities().checksum, ChecksumMode::Software);
    send(&mut a, &pattern(3, 9014));
    a.flush();
    let got = receive(&mut b, 1);
    assert_eq!(got[0].head(), pattern(3, 9014));
    let config = OpenConfig { checksum: Some(ChecksumMode::Offload), ..config };
    assert!(matches!(open(&DeviceSpec::Ring, &config), Err(DeviceError::NoChecksumOffload { .. })));
}

#[test]
fn drained_pool_leaves_the_others_usable() {
    let _turn = lock_pools();
    let (mut a, _b) = pair(&OpenConfig::default());
    let full = a.available();
    let mut held = Vec::new();
    let left = a.data_avail_count();
    assert!(left > 0 && left <= full[0] as usize);
    while let Some(frame) = a.allocate(TxClass::Data) {
        held.push(frame);
    }
    assert_eq!(held.len(), usize::try_from(full[0]).unwrap(), "to the last frame");
    assert!(a.allocate(TxClass::Control).is_some(), "control goes on");
    let mut rescue = Vec::new();
    while let Some(frame) = a.allocate(TxClass::Retransmit) {
        rescue.push(frame);
    }
    assert_eq!(rescue.len(), 64, "the reserve is for retransmission alone");
    assert!(a.allocate(TxClass::Data).is_none());
    assert_eq!(a.data_avail_count(), 0);
    held.pop();
    assert!(a.allocate(TxClass::Retransmit).is_some(), "and data serves it first");
    let counters = a.counters();
    assert_eq!((counters.data_drained, counters.retransmit_drained), (2, 1));
    assert_eq!(counters.control_drained, 0);
    drop(held);
    drop(rescue);
    assert_eq!(a.available(), full);
}

#[test]
fn full_tx_queue_drops_and_full_ring_defers() {
    let _turn = lock_pools();
    let config = OpenConfig { ring_slots: 64, ..OpenConfig::default() };
    let (mut a, mut b) = pair(&config);
    let full = a.available();
    assert_eq!(a.tx_free_count(), 256);
    for index in 0..257 {
        send(&mut a, &pattern(index, 60));
    }
    assert_eq!(a.tx_free_count(), 0);
    assert_eq!(a.counters().tx_dropped, 1);
    a.flush();
    assert_eq!((a.transmit_backlog(), a.tx_free_count()), (193, 63));
    assert_eq!((a.counters().tx_frames, a.counters().tx_deferred), (63, 1));
    let mut got = 0;
    for _ in 0..10 {
        let mut burst = Vec::new();
        b.receive(&mut burst, 256);
        for frame in &burst {
            assert_eq!(frame.head(), pattern(got, 60));
            got += 1;
        }
        a.flush();
    }
    assert_eq!(got, 256);
    assert_eq!(a.available(), full);
}

#[test]
fn retained_frames_return_to_their_pool_in_either_order() {
    let _turn = lock_pools();
    let (mut a, mut b) = pair(&OpenConfig::default());
    let full = a.available();
    let mut retained = Vec::new();
    for index in 0..200 {
        let mut frame = a.allocate(TxClass::Data).unwrap();
        frame.buf_mut()[..100].copy_from_slice(&pattern(index, 100));
        frame.set_len(100);
        retained.push(frame.retain());
        a.transmit(frame);
    }
    a.flush();
    let mut got = receive(&mut b, 200);
    assert_eq!(got.len(), 200);
    assert_eq!(a.available()[0], full[0] - 200);
    // Half of the references are dropped before the peer frees its frames, half after.
    retained.truncate(100);
    got.drain(..100);
    assert_eq!(a.available()[0], full[0] - 200);
    for (index, kept) in retained.iter().enumerate() {
        assert_eq!(kept.bytes(), pattern(index, 100));
        assert_eq!(got[index].head(), pattern(index + 100, 100));
    }
    drop(retained);
    drop(got);
    assert_eq!(a.available(), full);
}

#[test]
fn unsent_frame_is_freed_with_its_last_reference() {
    let _turn = lock_pools();
    let (mut a, b) = pair(&OpenConfig::default());
    let full = a.available();
    let mut frame = a.allocate(TxClass::Data).unwrap();
    frame.set_len(60);
    let retained = frame.retain();
    a.transmit(frame);
    drop(b);
    let available = a.available();
    assert_eq!(available[0], full[0] - 1);
    drop(retained);
    drop(a);
    let (a, _b) = pair(&OpenConfig::default());
    assert_eq!(a.available(), full, "pools of a closed device serve the next");
}

#[test]
#[should_panic(expected = "a retained frame never changes")]
fn writing_a_retained_frame_panics() {
    let _turn = lock_pools();
    let (mut a, _b) = pair(&OpenConfig::default());
    let mut frame = a.allocate(TxClass::Data).unwrap();
    frame.set_len(60);
    let _retained = frame.retain();
    frame.buf_mut();
}

#[test]
fn a_device_works_from_the_thread_it_moved_to() {
    let _turn = lock_pools();
    let (mut a, mut b) = pair(&OpenConfig::default());
    let full = a.available();
    let sender = std::thread::spawn(move || {
        assert!(adopt_thread());
        for index in 0..10_000 {
            while a.tx_free_count() == 0 {
                a.flush();
                std::thread::yield_now();
            }
            loop {
                let Some(mut frame) = a.allocate(TxClass::Data) else {
                    a.flush();
                    std::thread::yield_now();
                    continue;
                };
                frame.buf_mut()[..100].copy_from_slice(&pattern(index, 100));
                frame.set_len(100);
                a.transmit(frame);
                break;
            }
        }
        while a.transmit_backlog() != 0 {
            a.flush();
        }
        a
    });
    let mut next = 0;
    let deadline = Instant::now() + Duration::from_secs(20);
    while next < 10_000 && Instant::now() < deadline {
        let mut burst = Vec::new();
        if b.receive(&mut burst, 64) == 0 {
            std::thread::yield_now();
        }
        for frame in &burst {
            assert_eq!(frame.head(), pattern(next, 100));
            next += 1;
        }
    }
    assert_eq!(next, 10_000);
    let a = sender.join().unwrap();
    assert_eq!(a.available(), full);
}

/// Socket path of one test; the file is removed at the end in any case.
struct SocketPath(String);

impl SocketPath {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir();
        Self(format!("{}/fw-{}-{name}.sock", folder.display(), std::process::id()))
    }
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn memif_carries_frames_both_ways_and_removes_its_socket() {
    let _turn = lock_pools();
    let path = SocketPath::new("two");
    let config = OpenConfig::default();
    let mut server = open_single(&format!("memif:{}", path.0), &config).unwrap();
    let mut client = open_single(&format!("memif:{}", path.0), &config).unwrap();
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
    assert!(!std::path::Path::new(&path.0).exists(), "the socket goes with its server");
}

/// The driver releases a port's rings both when the peer disconnects and when the port is closed.
#[test]
fn memif_ports_may_close_concurrently() {
    let _turn = lock_pools();
    for round in 0..30 {
        let path = SocketPath::new(&format!("close{round}"));
        let config = OpenConfig::default();
        let server = open_single(&format!("memif:{},server", path.0), &config).unwrap();
        let client = open_single(&format!("memif:{},client", path.0), &config).unwrap();
        wait_for_link(&[&server, &client]);
        let moment = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            for end in [server, client] {
                let moment = &moment;
                scope.spawn(move || {
                    moment.wait();
                    drop(end);
                });
            }
        });
        assert!(!std::path::Path::new(&path.0).exists(), "the server's socket goes with it");
    }
}

#[test]
fn memif_carries_jumbo_frames_whole_or_in_segments() {
    let _turn = lock_pools();
    let path = SocketPath::new("jumbo");
    let config = OpenConfig { mtu: 9000, ..OpenConfig::default() };
    let mut server = open_single(&format!("memif:{},server", path.0), &config).unwrap();
    let config = OpenConfig { rx_buf_size: Some(2048), ..config };
    let mut client = open_single(&format!("memif:{},client", path.0), &config).unwrap();
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
}

#[test]
#[should_panic(expected = "the range lies in the frame")]
fn copying_beyond_the_frame_panics() {
    let _turn = lock_pools();
    let (mut a, mut b) = pair(&OpenConfig::default());
    send(&mut a, &pattern(0, 100));
    a.flush();
    receive(&mut b, 1)[0].copy_out(50, &mut [0; 51]);
}

const PEER: &str = "FERROWARP_TEST_MEMIF_PEER";

/// Child process of the next test: echoes ten frames and exits without closing the device.
#[test]
fn memif_peer_process() {
    let Ok(spec) = std::env::var(PEER) else { return };
    let mut device = open_single(&spec, &OpenConfig::default()).unwrap();
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
    let _turn = lock_pools();
    let path = SocketPath::new("processes");
    // A socket file as a killed server leaves it.
    drop(std::os::unix::net::UnixListener::bind(&path.0).unwrap());
    let mut server =
        open_single(&format!("memif:{},server", path.0), &OpenConfig::default()).unwrap();
    let mut peer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "device::tests::memif_peer_process"])
        .env(PEER, format!("memif:{},client", path.0))
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

const ARGUMENTS: &str = "FERROWARP_TEST_EAL";

/// Child process of the next test: EAL can be started only once per process.
#[test]
fn eal_arguments_process() {
    let Ok(spec) = std::env::var(ARGUMENTS) else { return };
    match open_single(&spec, &OpenConfig::default()) {
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
        ("pci:0000:ff:1f.7", "refused pci:0000:ff:1f.7: no card has this address"),
    ];
    for (spec, expected) in table {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "device::tests::eal_arguments_process"])
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
    let _turn = lock_pools();
    let config = OpenConfig::default();
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
    let _turn = lock_pools();
    let config = OpenConfig::default();
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
        eprintln!("skipped: this machine has no PCI device but cards");
        return;
    };
    let error = open_single(&format!("pci:{other}"), &config).unwrap_err().to_string();
    // The error is neither that the device does not exist nor that EAL was started without it.
    assert!(error.contains("could not be attached"), "{error}");
    assert!(!error.contains("No such device"), "{error}");
}

#[test]
fn each_open_error_is_one_line() {
    let _turn = lock_pools();
    let path = SocketPath::new("nobody");
    let config = OpenConfig::default();
    let table = [
        ("memif:/no/such/folder/x".to_owned(), "no folder /no/such/folder"),
        (format!("memif:{},client", path.0), "start the server first"),
        ("af_packet:no-such-if".to_owned(), "no network interface `no-such-if`"),
        ("af_xdp:no-such-if".to_owned(), "no network interface `no-such-if`"),
        ("tap:lo".to_owned(), "exists already"),
        ("pci:0000:ff:1f.7".to_owned(), "no card has this address"),
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
    let config = OpenConfig { mtu: 40, ..OpenConfig::default() };
    assert!(matches!(open(&DeviceSpec::Ring, &config), Err(DeviceError::BadMtu { .. })));
}

#[test]
fn raw_port_forwards_frames_without_copying() {
    let _turn = lock_pools();
    let (left, right) = (SocketPath::new("rawleft"), SocketPath::new("rawright"));
    let config = OpenConfig::default();
    let raw = |path: &SocketPath| {
        open_raw(&format!("memif:{},server", path.0).parse().unwrap(), &config).unwrap()
    };
    let (mut from, mut to) = (raw(&left), raw(&right));
    let mut source = open_single(&format!("memif:{},client", left.0), &config).unwrap();
    let mut sink = open_single(&format!("memif:{},client", right.0), &config).unwrap();
    wait_for_link(&[&source, &sink]);
    let mut got = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut sent = 0;
    while got.len() < 500 && Instant::now() < deadline {
        if sent < 500 && source.tx_free_count() > 0 {
            send(&mut source, &pattern(sent, 60 + sent));
            sent += 1;
        }
        source.flush();
        from.receive(32, |mut frame| {
            frame.bytes_mut()[3] ^= 0xff;
            to.send(frame);
        });
        to.flush();
        sink.receive(&mut got, 32);
    }
    assert_eq!(got.len(), 500, "{:?} {:?}", from.counters(), to.counters());
    for (index, frame) in got.iter().enumerate() {
        let mut expected = pattern(index, 60 + index);
        expected[3] ^= 0xff;
        assert_eq!(frame.head(), expected);
    }
    assert_eq!((from.counters().received, to.counters().sent), (500, 500));
    assert_eq!((from.counters().not_copied, to.counters().overrun), (0, 0));
    let copy = to.copy(&pattern(1, 100)).unwrap();
    assert_eq!(copy.bytes(), pattern(1, 100));
    assert!(to.copy(&[0; 5000]).is_none(), "longer than a frame");
    let refused = open_raw(&DeviceSpec::Ring, &config).unwrap_err().to_string();
    assert!(refused.contains("two ends of one program"), "{refused}");
}

#[test]
fn shared_or_segmented_frames_are_copied_on_raw_receive() {
    let _turn = lock_pools();
    let (mut a, b) = pair(&OpenConfig::default());
    let mut b = b.into_raw();
    let mut frame = a.allocate(TxClass::Data).unwrap();
    frame.buf_mut()[..60].copy_from_slice(&pattern(0, 60));
    frame.set_len(60);
    let retained = frame.retain();
    a.transmit(frame);
    send(&mut a, &pattern(9, 70));
    a.flush();
    let mut got = Vec::new();
    b.receive(32, |frame| got.push(frame));
    assert_eq!(got.len(), 2);
    got[0].bytes_mut()[0] ^= 1;
    assert_eq!(retained.bytes(), pattern(0, 60), "the sender's frame is as it was");
    assert_eq!(got[1].bytes(), pattern(9, 70));

    let path = SocketPath::new("rawruns");
    let config = OpenConfig { mtu: 9000, ..OpenConfig::default() };
    let mut server = open_single(&format!("memif:{},server", path.0), &config).unwrap();
    let config = OpenConfig { rx_buf_size: Some(2048), ..config };
    let spec = format!("memif:{},client", path.0).parse().unwrap();
    let mut client = open_raw(&spec, &config).unwrap();
    wait_for_link(&[&server]);
    send(&mut server, &pattern(1, 9014));
    let mut got = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(5);
    while got.is_empty() && Instant::now() < deadline {
        server.flush();
        client.receive(32, |frame| got.push(frame));
    }
    assert_eq!(got[0].bytes(), pattern(1, 9014));
}
