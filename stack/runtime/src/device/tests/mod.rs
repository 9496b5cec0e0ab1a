//! Devices that need only memory (`ring`, `memif` and vhost), those whose link partner is the
//! kernel, and the errors of the others.

use std::io::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferrowarp_proto::device::{Device, RxFrame, TxClass, TxFrame};
use tempfile::TempDir;

use super::*;

mod interrupts;
mod kernel;
mod link_states;
mod memif_peers;
mod memif_queues;
mod opening;
mod queues;
mod raw_port;
mod ring;
mod vhost_memory;
mod vhost_peers;
mod vhost_queues;

/// Serializes the tests that count free mbufs.
fn lock_pools() -> MutexGuard<'static, ()> {
    static POOLS_LOCK: Mutex<()> = Mutex::new(());
    POOLS_LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reports a test as skipped, past the capture of the test harness, so that scripts see it.
fn skip(reason: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {reason}");
}

pub(super) fn pair(config: &OpenConfig) -> (DpdkDevice, DpdkDevice) {
    open(&DeviceSpec::Ring, config).unwrap().into_pair().expect("ring is a pair")
}

fn open_single(spec: &str, config: &OpenConfig) -> Result<DpdkDevice, DeviceError> {
    let opened = open(&spec.parse()?, config)?;
    Ok(opened.into_single().unwrap_or_else(|| panic!("{spec} is a single device")))
}

/// Returns `len` bytes counting up from `seed`, modulo 251.
fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (seed..seed + len).map(|value| u8::try_from(value % 251).unwrap()).collect()
}

/// Returns the devices of one port.
fn open_queues(spec: &str, queues: u16) -> Result<Vec<DpdkDevice>, DeviceError> {
    let config = OpenConfig { queues, ..OpenConfig::new() };
    match open(&spec.parse()?, &config)? {
        Opened::One(devices) => Ok(devices),
        Opened::Pair(..) => panic!("{spec} is not a pair"),
    }
}

fn send(device: &mut DpdkDevice, bytes: &[u8]) {
    let mut frame = device.allocate(TxClass::Data).unwrap();
    frame.buf_mut()[..bytes.len()].copy_from_slice(bytes);
    frame.set_len(bytes.len());
    device.transmit(frame);
}

fn contents(frame: &DpdkRx) -> Vec<u8> {
    let mut out = vec![0; frame.len()];
    frame.copy_out(0, &mut out);
    out
}

/// Polls until `count` frames were received or five seconds passed.
fn receive(device: &mut DpdkDevice, count: usize) -> Vec<DpdkRx> {
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

/// Waits until `is_so` holds, at most five seconds.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

fn wait_for_link(devices: &[&DpdkDevice]) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !devices.iter().all(|device| device.link_is_up()) {
        assert!(Instant::now() < deadline, "the link comes up");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A socket path in a folder of its own, which is removed with it.
fn socket_path() -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("memif.sock").display().to_string();
    (folder, path)
}

/// Sends a frame on each device; its contents name the queue.
fn send_on_each(devices: &mut [DpdkDevice], seed: usize) {
    for (queue, device) in devices.iter_mut().enumerate() {
        send(device, &pattern(seed + queue, 60));
        device.flush();
    }
}

/// Polls each device once, the last first, and returns what it received.
fn poll(devices: &mut [DpdkDevice]) -> Vec<Vec<Vec<u8>>> {
    let mut got: Vec<_> = devices
        .iter_mut()
        .rev()
        .map(|device| {
            device.flush();
            let mut burst = Vec::new();
            device.receive(&mut burst, 32);
            burst.iter().map(contents).collect()
        })
        .collect();
    got.reverse();
    got
}
