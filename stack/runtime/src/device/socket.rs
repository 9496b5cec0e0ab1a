//! State of a control socket before a port is attached to it. DPDK's drivers return -1 for every
//! failure, and never remove the socket of a killed server.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::device::device_error::DeviceError;
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

/// Fails if this process may not create a socket file: drivers do not report that.
pub(super) fn check_creatable(spec: &DeviceSpec, path: &str) -> Result<(), DeviceError> {
    if path.starts_with('@') {
        return Ok(());
    }
    let folder = Path::new(path).parent().filter(|folder| *folder != Path::new(""));
    let folder = folder.unwrap_or(Path::new("."));
    dpdk_sys::check_writable(folder).map_err(|error| {
        let text = format!("none can be created in {}: {error}", folder.display());
        let source = io::Error::new(error.kind(), format!("{text} (choose another folder)"));
        DeviceError::Socket { device: spec.to_string(), source }
    })
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
            if abstract_name.is_none() && !is_socket(path) {
                return Err(io::Error::other("the file is no socket: give another path"));
            }
            Ok(if abstract_name.is_some() { SocketState::Absent } else { SocketState::Stale })
        }
        Err(error) => Err(error),
    }
}

/// True for a socket, and for what cannot be examined.
fn is_socket(path: &str) -> bool {
    std::fs::metadata(path).map_or(true, |file| file.file_type().is_socket())
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
///
/// The table has paths as they were bound. A relative one is resolved in the working directory of
/// the processes that have the socket, which `cwds_of` returns for its inode: another file of the
/// same name is not taken for this one. If they cannot be found the socket is not returned.
fn bound<'a>(
    table: &'a str,
    path: &Path,
    cwds_of: impl Fn(u64) -> Vec<PathBuf> + 'a,
) -> impl Iterator<Item = Bound> + 'a {
    /// `__SO_ACCEPTCON` (linux include/linux/net.h).
    const LISTENING: u32 = 1 << 16;
    let file = file_id(path);
    let path = path.to_owned();
    let is_it = move |found: &Path, inode| {
        if is_abstract(&path) || found == path && found.is_absolute() {
            return found == path;
        }
        let is_file = |candidate: &Path| file.is_some() && file_id(candidate) == file;
        found.file_name() == path.file_name()
            && if found.is_absolute() {
                is_file(found)
            } else {
                cwds_of(inode).iter().any(|cwd| is_file(&cwd.join(found)))
            }
    };
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
    lines.filter_map(move |(found, socket)| is_it(found, socket.inode).then_some(socket))
}

fn is_abstract(path: &Path) -> bool {
    path.to_str().is_some_and(|path| path.starts_with('@'))
}

/// Returns the device and the inode of a file; `None` if it cannot be found.
fn file_id(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// Returns the working directories of the processes that have a socket open, as far as this one may
/// see that. Visits the descriptors of all processes.
fn cwds_of(inode: u64) -> Vec<PathBuf> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let is_process = |folder: &PathBuf| {
        let name = folder.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.parse::<u32>().is_ok())
    };
    let processes = processes.flatten().map(|entry| entry.path()).filter(is_process);
    let owners = processes.filter(|folder| has_socket(&folder.join("fd"), &[inode]));
    // A link that leads there also where the process sees other file systems.
    owners.map(|folder| folder.join("cwd")).collect()
}

/// True if one of these sockets is among the descriptors that a folder of /proc lists.
fn has_socket(descriptors: &Path, inodes: &[u64]) -> bool {
    let targets: Vec<_> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let Ok(open) = std::fs::read_dir(descriptors) else { return false };
    let is_socket = |target: &Path| targets.iter().any(|socket| target == Path::new(socket));
    open.flatten()
        .any(|entry| std::fs::read_link(entry.path()).is_ok_and(|target| is_socket(&target)))
}

fn unix_sockets() -> String {
    std::fs::read_to_string("/proc/thread-self/net/unix").unwrap_or_default()
}

/// True if this process serves the socket itself, as far as /proc shows.
pub(super) fn is_served_here(path: &str) -> bool {
    let table = unix_sockets();
    let servers: Vec<_> = bound(&table, Path::new(path), cwds_of)
        .filter(|socket| socket.is_listening)
        .map(|socket| socket.inode)
        .collect();
    has_socket(Path::new("/proc/self/fd"), &servers)
}

/// Waits until nobody is connected to the server, at most `timeout`: a server may not have noticed
/// yet that its client has gone. False if someone still is, as far as /proc shows.
pub(super) fn wait_for_no_client(path: &str, timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
    loop {
        let table = unix_sockets();
        if bound(&table, Path::new(path), cwds_of).all(|socket| socket.is_listening) {
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
        let error = probe(text, SocketType::Stream).unwrap_err();
        assert_eq!(error.to_string(), "the file is no socket: give another path");
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

    /// A server of another process in another directory, bound by a relative path.
    #[test]
    fn relative_path_is_that_of_the_process_that_bound_it() {
        let [ours, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        for folder in [&ours, &other] {
            std::fs::write(folder.path().join("a b.sock"), "").unwrap();
        }
        let path = ours.path().join("a b.sock");
        let line = |inode: u32, name: &str| {
            format!("0000000000000000: 00000002 00000000 00010000 0005 01 {inode} {name}\n")
        };
        let table = "Num RefCount Protocol Flags Type St Inode Path\n".to_owned()
            + &line(71, "a b.sock")
            + &line(72, "./a b.sock")
            + &line(73, "a b.sock")
            + &line(74, "b.sock")
            + &line(75, path.to_str().unwrap())
            + &line(76, "@a b.sock");
        let cwds_of = |inode| match inode {
            71 => vec![other.path().to_owned()],
            72 => vec![other.path().to_owned(), ours.path().to_owned()],
            // Of a process of which this one sees nothing.
            _ => Vec::new(),
        };
        let inodes = |path: &Path| {
            bound(&table, path, cwds_of).map(|socket| socket.inode).collect::<Vec<_>>()
        };
        assert_eq!(inodes(&path), [72, 75]);
        assert_eq!(inodes(Path::new("@a b.sock")), [76]);
        assert_eq!(inodes(Path::new("a b.sock")), [0; 0], "no such file here");
    }

    #[test]
    fn working_directory_of_a_sockets_owner_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let _server = UnixListener::bind(&path).unwrap();
        let table = unix_sockets();
        let socket = bound(&table, &path, cwds_of).next().unwrap();
        let here = file_id(&std::env::current_dir().unwrap());
        assert!(here.is_some() && cwds_of(socket.inode).iter().any(|cwd| file_id(cwd) == here));
    }
}
