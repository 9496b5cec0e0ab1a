//! Device names: the syntax of every program's `--dev` option.

use core::fmt;
use core::str::FromStr;

use dpdk_sys::{Bus, netif};

use crate::device::device_error::DeviceError;
use crate::device::host_spec::HostPort;

/// Longest interface name in bytes: the kernel's `IFNAMSIZ` without the NUL.
const INTERFACE_NAME_MAX: usize = 15;

/// Longest socket path in bytes: that of `sockaddr_un` without the NUL.
const SOCKET_PATH_MAX: usize = 107;

/// Role of this process on a memif link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemifRole {
    /// Client if a server listens on the socket, else server.
    #[default]
    Auto,
    /// Creates the socket and listens.
    Server,
    /// Connects, and owns the shared memory.
    Client,
}

/// A device by name.
///
/// The text forms are `ring`, `memif:SOCKET[,server|client]`, `vhost:SOCKET`, `virtio-user:SOCKET`,
/// `tap:NAME`, `af_packet:IFACE`, `af_xdp:IFACE`, `pci:BDF`, `port:NAME`,
/// `port:NAME,queues=FIRST-LAST,mempool=NAME` and `eal:ARGS`; `Display` prints them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceSpec {
    /// Two connected ports inside the process. Needs no privilege.
    Ring,
    /// Shared memory between two processes (memif).
    Memif {
        /// Path of the control socket; `@name` is an abstract socket, without a file.
        socket: String,
        /// Role of this process.
        role: MemifRole,
    },
    /// Back end of a vhost-user socket, which it creates: for one virtio driver at a time, in
    /// another process or a virtual machine.
    Vhost {
        /// Path of the control socket.
        socket: String,
    },
    /// Virtio driver, without a virtual machine, of the vhost-user back end that serves a socket.
    /// The back end maps the memory of this process.
    VirtioUser {
        /// Path of the control socket.
        socket: String,
    },
    /// A new tap interface, whose link partner is the kernel. Needs CAP_NET_ADMIN.
    Tap {
        /// Name of the interface to create.
        name: String,
    },
    /// Packet sockets on an existing interface. Needs CAP_NET_RAW.
    AfPacket {
        /// The interface to use.
        interface: String,
    },
    /// An XDP socket on an existing interface. Needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF.
    AfXdp {
        /// The interface to use.
        interface: String,
    },
    /// A NIC, or any PCI network device.
    Pci {
        /// PCI address in full form, `0000:01:00.0`.
        address: String,
    },
    /// A port that the program has attached itself, in an EAL that it started, and leaves to the
    /// stack, which configures and closes it. The program must neither configure the port nor use
    /// its queues.
    Port {
        /// The port's name, as `rte_eth_dev_get_name_by_port` gives it.
        name: String,
    },
    /// Some queues of a port that the program has also configured and started itself, and keeps:
    /// see [the guide](crate::guide#host-programs).
    HostPort(HostPort),
    /// The port that these EAL arguments create. If EAL already runs with other arguments, they
    /// must name a single device (`--vdev=NAME,..` or `-a ADDRESS`), which is then hotplugged.
    Eal {
        /// EAL arguments, separated by white space.
        arguments: String,
    },
}

impl DeviceSpec {
    /// Returns the name of the kernel's interface that the device is, or is the link partner of:
    /// the zone of its link-local addresses (RFC 4007). `None` if there is none.
    #[must_use]
    pub fn interface(&self) -> Option<&str> {
        match self {
            Self::Tap { name } => Some(name),
            Self::AfPacket { interface } | Self::AfXdp { interface } => Some(interface),
            _ => None,
        }
    }

    /// Returns the index of that interface: the scope ID of its zone. `None` if there is none, or
    /// it does not exist yet.
    #[must_use]
    pub fn interface_index(&self) -> Option<u32> {
        netif::index(self.interface()?)
    }

    /// True if opening yields two connected devices instead of one.
    #[must_use]
    pub fn is_pair(&self) -> bool {
        *self == Self::Ring
    }

    /// Number of queues that the host program lends, if it does.
    pub(crate) fn lent_queues(&self) -> Option<usize> {
        match self {
            Self::HostPort(host) => Some(host.queues.len()),
            _ => None,
        }
    }

    /// Name of the driver, as `rte_eth_dev_info` gives it; `None` if any driver may serve the
    /// device.
    pub(super) const fn driver(&self) -> Option<&'static str> {
        match self {
            Self::Ring => Some("net_ring"),
            Self::Memif { .. } => Some("net_memif"),
            Self::Vhost { .. } => Some("net_vhost"),
            Self::VirtioUser { .. } => Some("net_virtio_user"),
            Self::Tap { .. } => Some("net_tap"),
            Self::AfPacket { .. } => Some("net_af_packet"),
            Self::AfXdp { .. } => Some("net_af_xdp"),
            Self::Pci { .. } | Self::Port { .. } | Self::HostPort(_) | Self::Eal { .. } => None,
        }
    }

    /// Bus, name and driver arguments of the device to hotplug if EAL was started without it.
    pub(super) fn hotplug_device(&self) -> Option<(Bus, &str, &str)> {
        match self {
            Self::Eal { arguments } => single_device(arguments),
            _ => None,
        }
    }
}

/// True for the options with which EAL prints its options and exits.
fn is_help(word: &str) -> bool {
    word == "-h" || word.len() > 3 && "--help".starts_with(word)
}

/// Returns bus, name and driver arguments of the device that EAL arguments name, if they name one
/// device and nothing else.
fn single_device(arguments: &str) -> Option<(Bus, &str, &str)> {
    const OPTIONS: [(&str, Bus); 3] =
        [("--vdev", Bus::Virtual), ("--allow", Bus::Pci), ("-a", Bus::Pci)];
    let arguments = arguments.trim();
    OPTIONS.into_iter().find_map(|(option, bus)| {
        let device = arguments.strip_prefix(option)?;
        let device = device.strip_prefix('=').unwrap_or(device).trim_start();
        let (name, rest) = device.split_once(',').unwrap_or((device, ""));
        let is_one = !name.is_empty() && !device.contains(char::is_whitespace);
        is_one.then_some((bus, name, rest))
    })
}

fn parse_interface(name: &str) -> Result<String, &'static str> {
    if name.is_empty() {
        Err("the interface's name is missing")
    } else if name.len() > INTERFACE_NAME_MAX {
        Err("an interface's name has at most 15 bytes")
    } else if [".", ".."].contains(&name) {
        Err("`.` and `..` are no names of interfaces")
    } else if name.contains('%') {
        // The kernel replaces %d by a number: the interface would have another name.
        Err("an interface's name has no percent sign: give the whole name")
    } else if name.contains(|c: char| c.is_whitespace() || c.is_control() || "/,:=[]\"".contains(c))
    {
        Err("an interface's name has no blank, slash, comma, colon, bracket, quotation mark or \
             equals sign")
    } else {
        Ok(name.to_owned())
    }
}

fn parse_memif(rest: &str) -> Result<DeviceSpec, &'static str> {
    let (socket, role) = match rest.split_once(',') {
        None => (rest, MemifRole::Auto),
        Some((socket, "server")) => (socket, MemifRole::Server),
        Some((socket, "client")) => (socket, MemifRole::Client),
        Some(_) => return Err("give `server` or `client` after the socket"),
    };
    Ok(DeviceSpec::Memif { socket: parse_socket(socket)?, role })
}

fn parse_socket(path: &str) -> Result<String, &'static str> {
    if path.is_empty() || path == "@" {
        return Err("the socket's path is missing");
    }
    if path.len() > SOCKET_PATH_MAX {
        return Err("a socket's path has at most 107 bytes");
    }
    if path.contains(['\0', '=', '[', ']', '"']) {
        return Err("a socket's path has no equals sign, bracket or quotation mark here");
    }
    Ok(path.to_owned())
}

/// Parses the path of a vhost-user socket.
fn parse_vhost_socket(path: &str) -> Result<String, &'static str> {
    if path.starts_with('@') {
        return Err("the socket is a file: its path does not begin with @");
    }
    if path.contains(',') {
        return Err("the socket's path has no comma, and nothing follows it");
    }
    parse_socket(path)
}

/// Parses `0000:01:00.0` or `01:00.0` and returns the former, in lower case.
fn parse_pci(text: &str) -> Result<String, &'static str> {
    const REASON: &str = "a PCI address looks like 0000:01:00.0";
    let fields: Vec<&str> = text.split([':', '.']).collect();
    let (domain, rest) = match fields.as_slice() {
        [domain, rest @ ..] if rest.len() == 3 => (*domain, rest),
        rest if rest.len() == 3 => ("0000", rest),
        _ => return Err(REASON),
    };
    let hex = |field: &str, digits: usize| {
        field.len() == digits && field.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let separators: String = text.chars().filter(|c| ":.".contains(*c)).collect();
    let right = hex(domain, 4) && hex(rest[0], 2) && hex(rest[1], 2) && hex(rest[2], 1);
    if !right || !["::.", ":."].contains(&separators.as_str()) {
        return Err(REASON);
    }
    Ok(format!("{domain}:{}:{}.{}", rest[0], rest[1], rest[2]).to_ascii_lowercase())
}

impl FromStr for DeviceSpec {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let parsed = match text.split_once(':') {
            None if text == "ring" => Ok(Self::Ring),
            None => Err("unknown kind, or its argument is missing"),
            Some(("ring", _)) => Err("`ring` takes no argument"),
            Some(("memif", rest)) => parse_memif(rest),
            Some(("vhost", rest)) => parse_vhost_socket(rest).map(|socket| Self::Vhost { socket }),
            Some(("virtio-user", rest)) => {
                parse_vhost_socket(rest).map(|socket| Self::VirtioUser { socket })
            }
            Some(("tap", rest)) => parse_interface(rest).map(|name| Self::Tap { name }),
            Some(("af_packet", rest)) => {
                parse_interface(rest).map(|interface| Self::AfPacket { interface })
            }
            Some(("af_xdp", rest)) => {
                parse_interface(rest).map(|interface| Self::AfXdp { interface })
            }
            Some(("pci", rest)) => parse_pci(rest).map(|address| Self::Pci { address }),
            Some(("port", "")) => Err("the port's name is missing"),
            Some(("port", rest)) if rest.contains(',') => HostPort::parse(rest).map(Self::HostPort),
            Some(("port", name)) => Ok(Self::Port { name: name.to_owned() }),
            Some(("eal", rest)) if rest.trim().is_empty() => Err("the arguments are missing"),
            Some(("eal", rest)) if rest.split_whitespace().any(is_help) => {
                Err("EAL's help ends the program: see DPDK's documentation")
            }
            Some(("eal", rest)) => Ok(Self::Eal { arguments: rest.trim().to_owned() }),
            Some(_) => Err("unknown kind"),
        };
        parsed.map_err(|reason| DeviceError::BadSpec { text: text.to_owned(), reason })
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ring => write!(f, "ring"),
            Self::Memif { socket, role: MemifRole::Auto } => write!(f, "memif:{socket}"),
            Self::Memif { socket, role: MemifRole::Server } => write!(f, "memif:{socket},server"),
            Self::Memif { socket, role: MemifRole::Client } => write!(f, "memif:{socket},client"),
            Self::Vhost { socket } => write!(f, "vhost:{socket}"),
            Self::VirtioUser { socket } => write!(f, "virtio-user:{socket}"),
            Self::Tap { name } => write!(f, "tap:{name}"),
            Self::AfPacket { interface } => write!(f, "af_packet:{interface}"),
            Self::AfXdp { interface } => write!(f, "af_xdp:{interface}"),
            Self::Pci { address } => write!(f, "pci:{address}"),
            Self::Port { name } => write!(f, "port:{name}"),
            Self::HostPort(host) => write!(f, "{host}"),
            Self::Eal { arguments } => write!(f, "eal:{arguments}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_parses_and_displays_back() {
        let memif = |role| DeviceSpec::Memif { socket: "/run/a.sock".into(), role };
        let host = |port: &str, queues| {
            DeviceSpec::HostPort(HostPort { port: port.into(), queues, mempool: "tx".into() })
        };
        let table = [
            ("ring", DeviceSpec::Ring),
            ("memif:/run/a.sock", memif(MemifRole::Auto)),
            ("memif:/run/a.sock,server", memif(MemifRole::Server)),
            ("memif:/run/a.sock,client", memif(MemifRole::Client)),
            ("memif:@x", DeviceSpec::Memif { socket: "@x".into(), role: MemifRole::Auto }),
            ("vhost:/run/v.sock", DeviceSpec::Vhost { socket: "/run/v.sock".into() }),
            ("virtio-user:v.sock", DeviceSpec::VirtioUser { socket: "v.sock".into() }),
            ("tap:iw0", DeviceSpec::Tap { name: "iw0".into() }),
            ("af_packet:veth1", DeviceSpec::AfPacket { interface: "veth1".into() }),
            ("af_xdp:veth1", DeviceSpec::AfXdp { interface: "veth1".into() }),
            ("pci:0000:01:00.0", DeviceSpec::Pci { address: "0000:01:00.0".into() }),
            ("port:0000:01:00.0", DeviceSpec::Port { name: "0000:01:00.0".into() }),
            ("port:0000:01:00.0,queues=2-3,mempool=tx", host("0000:01:00.0", 2..4)),
            ("port:net_ring0,queues=0,mempool=tx", host("net_ring0", 0..1)),
            ("port:7,queues=65534,mempool=tx", host("7", 65_534..65_535)),
            (
                "eal:--vdev=net_null0 -l 1",
                DeviceSpec::Eal { arguments: "--vdev=net_null0 -l 1".into() },
            ),
        ];
        for (text, spec) in table {
            assert_eq!(text.parse::<DeviceSpec>().unwrap(), spec);
            assert_eq!(spec.to_string(), text);
        }
        let short: DeviceSpec = "pci:0A:00.1".parse().unwrap();
        assert_eq!(short.to_string(), "pci:0000:0a:00.1");
    }

    #[test]
    fn invalid_spec_is_refused_with_its_reason() {
        let long = format!("memif:/{}", "x".repeat(107));
        let table = [
            ("", "unknown kind"),
            ("tap", "argument is missing"),
            ("rings", "unknown kind"),
            ("ring:2", "takes no argument"),
            ("nic:eth0", "unknown kind"),
            ("tap:", "name is missing"),
            ("tap:abcdefghijklmnop", "at most 15"),
            ("tap:a,b=c", "no blank"),
            ("af_packet:a b", "no blank"),
            ("memif:", "path is missing"),
            ("memif:@", "path is missing"),
            ("memif:/a,master", "`server` or `client`"),
            ("memif:/a=b", "equals sign"),
            (long.as_str(), "at most 107"),
            ("vhost", "argument is missing"),
            ("vhost:", "path is missing"),
            ("vhost:/a,client", "no comma"),
            ("virtio-user:@a", "begin with @"),
            ("virtio-user:/a=b", "equals sign"),
            ("virtio:/a", "unknown kind"),
            ("pci:1:0.0", "0000:01:00.0"),
            ("pci:00.00:00:0", "0000:01:00.0"),
            ("pci:eth0", "0000:01:00.0"),
            ("port:", "name is missing"),
            ("port:,queues=1,mempool=a", "name is missing"),
            ("port:a,queues=1", "give a mempool"),
            ("port:a,mempool=b", "give the queues"),
            ("port:a,queues=1,mempool=", "mempool's name is missing"),
            ("port:a,queues=1,mempool=b,queues=2", "after the port, once"),
            ("port:a,queues=1,mempool=b,rss", "after the port, once"),
            ("port:a,queues=3-2,mempool=b", "look like 2-3"),
            ("port:a,queues=-1,mempool=b", "look like 2-3"),
            ("port:a,queues=1-65535,mempool=b", "look like 2-3"),
            ("port:a,queues=x,mempool=b", "look like 2-3"),
            ("eal:  ", "arguments are missing"),
            ("eal:-l 1 -h", "help ends the program"),
            ("eal:--hel", "help ends the program"),
        ];
        for (text, reason) in table {
            let error = text.parse::<DeviceSpec>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
            assert!(!error.contains('\n'), "one line: {error}");
        }
    }

    #[test]
    fn eal_arguments_of_a_single_device_are_recognized() {
        let table = [
            ("--vdev=net_null0", Some((Bus::Virtual, "net_null0", ""))),
            ("--vdev net_tap1,iface=x,y=z", Some((Bus::Virtual, "net_tap1", "iface=x,y=z"))),
            (" -a 0000:01:00.0 ", Some((Bus::Pci, "0000:01:00.0", ""))),
            ("-a0000:01:00.0,rx=1", Some((Bus::Pci, "0000:01:00.0", "rx=1"))),
            ("--allow=0000:01:00.0", Some((Bus::Pci, "0000:01:00.0", ""))),
            ("--vdev=net_null0 -l 1", None),
            ("--vdev=", None),
            ("--no-huge", None),
            ("", None),
        ];
        for (arguments, expected) in table {
            assert_eq!(single_device(arguments), expected, "{arguments}");
        }
    }
}
