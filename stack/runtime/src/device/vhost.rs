//! Attaches the two ends of a vhost-user socket: `net_vhost`, which serves it, and
//! `net_virtio_user`, which connects.
//!
//! In the protocol a back end does not report how many queues it polls. So a driver
//! with several sends frames on each, which any host ignores, and finds those queues on which they
//! are taken from the ring.

use std::time::{Duration, Instant};

use dpdk_sys::{Eal, Memory, Port, RetainedMbuf};
use ferrowarp_proto::device::{Device, TxClass, TxFrame};

use crate::device::device_error::DeviceError;
use crate::device::port::DpdkDevice;
use crate::device::quirks::VRING_LEN;
use crate::device::socket::{self, SocketState, SocketType};
use crate::device::spec::DeviceSpec;

/// Time in which a back end has to notice that its last client is gone.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Time in which a back end has to poll the first queue, and then the others.
const ANSWER_TIMEOUT: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(1)];

/// Frames that are sent on a queue at once to see whether they are taken: more than those taken
/// ones that the driver keeps until there are others.
const PROBES: usize = 8;

/// Interval of further ones, each of which has the driver look at the ring. With headers of their
/// own there they fill less than three quarters of it in the longest time.
const PROBE_INTERVAL: Duration = Duration::from_millis(40);

/// Attaches a back end, which creates the socket.
pub(super) fn attach_back_end(
    spec: &DeviceSpec,
    path: &str,
    queues: u16,
    plug: impl Fn(&str) -> Result<Port, DeviceError>,
) -> Result<Port, DeviceError> {
    let unusable = |source| DeviceError::Socket { device: spec.to_string(), source };
    socket::check_folder(spec, path)?;
    match socket::probe(path, SocketType::Stream).map_err(unusable)? {
        SocketState::Absent => {}
        SocketState::Stale => socket::remove_stale(path).map_err(unusable)?,
        SocketState::Listening => {
            return Err(DeviceError::SocketInUse { device: spec.to_string() });
        }
    }
    socket::check_creatable(spec, path)?;
    plug(&format!("iface={path},queues={queues}"))
}

/// Attaches a virtio driver to a back end.
pub(super) fn attach_virtio(
    eal: Eal,
    spec: &DeviceSpec,
    path: &str,
    queues: u16,
    plug: impl Fn(&str) -> Result<Port, DeviceError>,
) -> Result<Port, DeviceError> {
    let device = || spec.to_string();
    let unusable = |source| DeviceError::Socket { device: device(), source };
    if socket::probe(path, SocketType::Stream).map_err(unusable)? != SocketState::Listening {
        return Err(DeviceError::NoServer { device: device() });
    }
    if eal.memory() != Memory::Ordinary && socket::is_served_here(path) {
        // A thread that has EAL map more memory holds a lock, and waits for the back end, which
        // needs that lock when it allocates. Memory without hugepages does not grow.
        return Err(DeviceError::ServedHere { device: device() });
    }
    if !socket::wait_for_no_client(path, DISCONNECT_TIMEOUT) {
        return Err(DeviceError::ClientPresent { device: device() });
    }
    plug(&format!("path={path},queues={queues},queue_size={VRING_LEN}"))
}

/// Returns how many queues, from the first on, the back end polls. At least 1. Takes some
/// milliseconds, or up to 3 s if it does not poll all.
pub(super) fn polled_queues(devices: &mut [DpdkDevice]) -> u16 {
    let began = Instant::now();
    let mut first_answer = None;
    let mut probes: Vec<Vec<RetainedMbuf>> = devices.iter().map(|_| Vec::new()).collect();
    loop {
        let elapsed = began.elapsed().as_millis() / PROBE_INTERVAL.as_millis();
        let due = PROBES + usize::try_from(elapsed).unwrap_or(0);
        for (device, sent) in devices.iter_mut().zip(&mut probes) {
            if !is_taken(sent) && sent.len() < due {
                sent.extend(send_probe(device));
            }
        }
        let polled = probes.iter().take_while(|sent| is_taken(sent)).count();
        if polled != 0 && first_answer.is_none() {
            first_answer = Some(Instant::now());
        }
        let [first, others] = ANSWER_TIMEOUT;
        let is_late = first_answer.map_or(began.elapsed() > first, |at| at.elapsed() > others);
        if polled == devices.len() || is_late {
            return u16::try_from(polled.max(1)).unwrap_or(u16::MAX);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// True if the back end has taken the first frame from the ring.
fn is_taken(sent: &[RetainedMbuf]) -> bool {
    sent.first().is_some_and(RetainedMbuf::is_last)
}

/// Sends a frame that no host is to process: its type is one for experiments (IEEE 802, Local
/// Experimental EtherType 1), and no bridge forwards its address (IEEE 802.1Q, nearest bridge).
fn send_probe(device: &mut DpdkDevice) -> Option<RetainedMbuf> {
    const LEN: usize = 60;
    let mut frame = device.allocate(TxClass::Control)?;
    let buf = &mut frame.buf_mut()[..LEN];
    buf.fill(0);
    buf[..6].copy_from_slice(&[0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e]);
    buf[6..12].copy_from_slice(&device.capabilities().mac);
    buf[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame.set_len(LEN);
    let retained = frame.0.retain();
    device.transmit(frame);
    device.flush();
    Some(retained)
}
