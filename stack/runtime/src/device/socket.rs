//! State of a control socket before a port is attached to it. DPDK's drivers return -1 for every
//! failure, and never remove the socket of a killed server.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::device::error::DeviceError;
use crate::device::spec::DeviceSpec;

/// State of a control socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketState {
    Absent,
    /// A socket file without a server.
    Stale,
    Listening,
}

/// Type of a driver's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketType {
    /// `SOCK_SEQPACKET` (memif).
    SeqPacket,
    /// `SOCK_STREAM` (vhost-user).
    Stream,
}

/// Fails if the directory of a socket file does not exist.
pub(super) fn check_folder(spec: &DeviceSpec, path: &str) -> Result<(), DeviceError> {
    let folder = Path::new(path).parent().filter(|folder| *folder != Path::new(""));
    match folder {
        Some(folder) if !path.starts_with('@') && !folder.is_dir() => {
            Err(DeviceError::NoFolder { device: spec.to_string(), folder: folder.to_owned() })
        }
        _ => Ok(()),
    }
}

/// Returns the state of a socket. Its server does not notice: a connection of another type than the
/// server's is refused by the kernel (EPROTOTYPE), and only if there is a server.
pub(super) fn probe(path: &str, kind: SocketType) -> io::Result<SocketState> {
    let abstract_name = path.strip_prefix('@').map(str::as_bytes);
    let address = match abstract_name {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    let result = match kind {
        SocketType::SeqPacket => UnixStream::connect_addr(&address).map(drop),
        SocketType::Stream => {
            UnixDatagram::unbound().and_then(|socket| socket.connect_addr(&address))
        }
    };
    match result {
        Ok(()) => Ok(SocketState::Listening),
        Err(error) if error.raw_os_error() == Some(libc::EPROTOTYPE) => Ok(SocketState::Listening),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(SocketState::Absent),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Ok(if abstract_name.is_some() { SocketState::Absent } else { SocketState::Stale })
        }
        Err(error) => Err(error),
    }
}

/// Removes a socket file without a server. A file of any other type stays and is an error.
pub(super) fn remove_stale(path: &str) -> io::Result<()> {
    if std::fs::symlink_metadata(path)?.file_type().is_socket() {
        std::fs::remove_file(path)
    } else {
        Err(io::Error::from_raw_os_error(libc::EEXIST))
    }
}

/// A socket that is bound to a path, as /proc/net/unix lists it: in the network namespace of the
/// calling thread alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bound {
    inode: u64,
    is_listening: bool,
}

/// Returns the sockets in `table`, the text of /proc/net/unix, that are bound to `path`: that of
/// the server, and its ends of connections.
fn bound<'a>(table: &'a str, path: &Path) -> impl Iterator<Item = Bound> + 'a {
    /// `__SO_ACCEPTCON` (linux include/linux/net.h).
    const LISTENING: u32 = 1 << 16;
    let canonical = path.canonicalize().ok();
    let path = path.to_owned();
    let lines = table.lines().filter_map(|line| {
        // Num, RefCount, Protocol, Flags, Type, St, Inode, and the path, which may have blanks.
        let mut rest = line;
        let mut fields = [""; 7];
        for field in &mut fields {
            (*field, rest) = rest.trim_start().split_once(' ')?;
        }
        let flags = u32::from_str_radix(fields[3], 16).ok()?;
        let inode = fields[6].parse().ok()?;
        Some((Path::new(rest), Bound { inode, is_listening: flags & LISTENING != 0 }))
    });
    lines.filter_map(move |(found, socket)| {
        let is_same = found == path
            || found.file_name() == path.file_name()
                && canonical.is_some()
                && found.canonicalize().ok() == canonical;
        is_same.then_some(socket)
    })
}

fn unix_sockets() -> String {
    std::fs::read_to_string("/proc/thread-self/net/unix").unwrap_or_default()
}

/// True if this process serves the socket itself, as far as /proc tells.
pub(super) fn is_served_here(path: &str) -> bool {
    let table = unix_sockets();
    let servers: Vec<_> = bound(&table, Path::new(path))
        .filter(|socket| socket.is_listening)
        .map(|socket| format!("socket:[{}]", socket.inode))
        .collect();
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return false };
    let is_server = |target: &Path| servers.iter().any(|server| target == Path::new(server));
    open.flatten()
        .any(|entry| std::fs::read_link(entry.path()).is_ok_and(|target| is_server(&target)))
}

/// Waits until nobody is connected to the server, at most `timeout`: a server may not have noticed
/// yet that its client has gone. False if someone still is, as far as /proc tells.
pub(super) fn wait_for_no_client(path: &str, timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
    loop {
        let table = unix_sockets();
        if bound(&table, Path::new(path)).all(|socket| socket.is_listening) {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn state_of_a_stream_socket_is_found_without_connecting() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a b.sock");
        let text = path.to_str().unwrap();
        let state = || probe(text, SocketType::Stream).unwrap();
        assert_eq!(state(), SocketState::Absent);
        let server = UnixListener::bind(&path).unwrap();
        server.set_nonblocking(true).unwrap();
        assert_eq!(state(), SocketState::Listening);
        assert_eq!(server.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(server);
        assert_eq!(state(), SocketState::Stale);
        remove_stale(text).unwrap();
        assert_eq!(state(), SocketState::Absent);
        std::fs::write(&path, "").unwrap();
        assert_eq!(state(), SocketState::Stale);
        let refused = remove_stale(text).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EEXIST));
    }

    #[test]
    fn client_of_a_socket_is_found() {
        const BRIEF: Duration = Duration::from_millis(30);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a b.sock");
        let text = path.to_str().unwrap();
        assert!(!is_served_here(text) && wait_for_no_client(text, BRIEF));
        let server = UnixListener::bind(&path).unwrap();
        assert!(is_served_here(text) && wait_for_no_client(text, BRIEF));
        let client = UnixStream::connect(&path).unwrap();
        let accepted = server.accept().unwrap();
        assert!(!wait_for_no_client(text, BRIEF));
        // The same file by another name.
        let other = folder.path().join("./a b.sock");
        assert!(!wait_for_no_client(other.to_str().unwrap(), BRIEF));
        assert!(wait_for_no_client(folder.path().join("a").to_str().unwrap(), BRIEF));
        drop((accepted, client));
        assert!(wait_for_no_client(text, BRIEF));
        drop(server);
        assert!(!is_served_here(text));
    }
}
