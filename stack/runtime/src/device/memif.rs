//! Attaches memif ports: the role that follows from the state of the control socket.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dpdk_sys::{Port, ring_refusal_count};

use crate::device::device_error::DeviceError;
use crate::device::port::DpdkDevice;
use crate::device::socket::{
    SocketState, SocketType, check_creatable, check_folder, probe, remove_stale,
};
use crate::device::spec::{DeviceSpec, MemifRole};

/// Base 2 logarithm of the ring size, in frames per direction.
const RING_LOG2: u32 = 9;

/// Time that a client waits for its server to accept or refuse its queues. A server that answers
/// takes less than 10 ms.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// An attempt to connect a client with several queues. One at a time, because refusals are counted
/// for the process.
#[derive(Debug)]
pub(super) struct Attempt {
    refusals_before: u64,
    _exclusive: MutexGuard<'static, ()>,
}

impl Attempt {
    pub(super) fn begin() -> Self {
        static ATTEMPTS: Mutex<()> = Mutex::new(());
        let exclusive = ATTEMPTS.lock().unwrap_or_else(PoisonError::into_inner);
        Self { refusals_before: ring_refusal_count(), _exclusive: exclusive }
    }

    /// Waits until the client is connected. True if the server has fewer queues and refused: the
    /// driver does not connect again by itself.
    pub(super) fn is_refused(&self, client: &DpdkDevice) -> bool {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        while !client.link_is_up() && Instant::now() < deadline {
            if ring_refusal_count() != self.refusals_before {
                return !client.link_is_up();
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        false
    }
}

/// Attaches a memif port of `driver`, and returns it with its role. `frame_capacity`: of a buffer
/// in the shared memory, in bytes.
pub(super) fn attach(
    spec: &DeviceSpec,
    socket: &str,
    role: MemifRole,
    frame_capacity: u16,
    driver: &'static str,
    plug: impl Fn(&str) -> Result<Port, dpdk_sys::Error>,
) -> Result<(Port, MemifRole), DeviceError> {
    let device = || spec.to_string();
    check_folder(spec, socket)?;
    let found = probe(socket, SocketType::SeqPacket)
        .map_err(|source| DeviceError::Socket { device: device(), source })?;
    let role = match (role, found) {
        (MemifRole::Server, SocketState::Listening) => {
            return Err(DeviceError::SocketInUse { device: device() });
        }
        (MemifRole::Client, SocketState::Absent | SocketState::Stale) => {
            return Err(DeviceError::NoServer { device: device() });
        }
        (MemifRole::Auto, SocketState::Listening) => MemifRole::Client,
        (MemifRole::Auto, _) => MemifRole::Server,
        (role, _) => role,
    };
    if found == SocketState::Stale {
        remove_stale(socket).map_err(|source| DeviceError::Socket { device: device(), source })?;
    }
    if role == MemifRole::Server {
        check_creatable(spec, socket)?;
    }
    let name = if role == MemifRole::Server { "server" } else { "client" };
    let (path, is_abstract) = match socket.strip_prefix('@') {
        Some(name) => (name, "yes"),
        None => (socket, "no"),
    };
    let arguments = format!(
        "role={name},id=0,socket={path},socket-abstract={is_abstract},\
         rsize={RING_LOG2},bsize={frame_capacity}"
    );
    plug(&arguments).map(|port| (port, role)).map_err(|error| match error {
        dpdk_sys::Error::NoDriver => DeviceError::no_driver(device(), driver),
        source => DeviceError::Port { device: device(), source },
    })
}
