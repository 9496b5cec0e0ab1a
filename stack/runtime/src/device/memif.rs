//! Who meets whom on a memif socket, before the driver is asked: it answers every trouble with
//! -1 and never removes what a killed server left.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;

use dpdk_sys::Port;

use crate::device::error::DeviceError;
use crate::device::open::no_driver;
use crate::device::spec::{DeviceSpec, MemifRole};

pub(super) const DRIVER: &str = "net_memif";

/// Frames each direction holds, as a power of two.
const RING_LOG2: u32 = 9;

/// What is found where the two meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocketState {
    Absent,
    /// A file whose server is gone.
    Stale,
    Listening,
}

fn probe_socket(socket: &str) -> io::Result<SocketState> {
    // The driver's sockets keep packet boundaries: a stream socket is told apart without ever
    // being accepted.
    let result = match socket.strip_prefix('@') {
        Some(name) => UnixStream::connect_addr(&SocketAddr::from_abstract_name(name.as_bytes())?),
        None => UnixStream::connect(socket),
    };
    match result {
        Ok(_) => Ok(SocketState::Listening),
        Err(error) if error.raw_os_error() == Some(libc::EPROTOTYPE) => Ok(SocketState::Listening),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(SocketState::Absent),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Ok(if socket.starts_with('@') { SocketState::Absent } else { SocketState::Stale })
        }
        Err(error) => Err(error),
    }
}

/// Attaches one end. `room` is the bytes of frame a slot of the shared memory holds.
pub(super) fn attach(
    spec: &DeviceSpec,
    socket: &str,
    role: MemifRole,
    room: u16,
    plug: impl Fn(&str) -> Result<Port, dpdk_sys::Error>,
) -> Result<(Port, MemifRole), DeviceError> {
    let device = || spec.to_string();
    let is_file = !socket.starts_with('@');
    let folder = Path::new(socket).parent().filter(|folder| *folder != Path::new(""));
    if is_file
        && let Some(folder) = folder
        && !folder.is_dir()
    {
        return Err(DeviceError::NoFolder { device: device(), folder: folder.to_owned() });
    }
    let found =
        probe_socket(socket).map_err(|source| DeviceError::Socket { device: device(), source })?;
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
    let name = if role == MemifRole::Server { "server" } else { "client" };
    let (path, is_abstract) = match socket.strip_prefix('@') {
        Some(name) => (name, "yes"),
        None => (socket, "no"),
    };
    let arguments = format!(
        "role={name},id=0,socket={path},socket-abstract={is_abstract},\
         rsize={RING_LOG2},bsize={room}"
    );
    match plug(&arguments) {
        Ok(port) => Ok((port, role)),
        Err(dpdk_sys::Error::NoDriver) => Err(no_driver(device(), DRIVER)),
        Err(source) => Err(DeviceError::Port { device: device(), source }),
    }
}

/// Takes away a socket whose server is gone. Anything else stays.
fn remove_stale(path: &str) -> io::Result<()> {
    if std::fs::symlink_metadata(path)?.file_type().is_socket() {
        std::fs::remove_file(path)
    } else {
        Err(io::Error::from_raw_os_error(libc::EEXIST))
    }
}
