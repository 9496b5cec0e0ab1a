//! The list of all settings.

use ferrowarp_proto::device::MTU_MAX;
use ferrowarp_proto::wire::ethernet::VLAN_MAX;

use crate::address::{self, MTU_MIN};
use crate::settings::{Hugepages, LogLevel, Poller, Settings};
use crate::value::{choice, hex_or_decimal, milliseconds, number, ports, seconds, switch};

/// Variable that names the file of settings.
pub const CONFIG_VARIABLE: &str = "FERROWARP_CONFIG";

/// Cores that an affinity mask of the C library has (`CPU_SETSIZE`).
const CORES: u64 = 1024;

/// Group of settings, as a heading of `iwarp-run --help`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// The device and its memory.
    Device,
    /// Addresses and routes.
    Network,
    /// The thread that polls.
    Poller,
    /// TCP and MPA.
    Connections,
    /// What programs see of the device.
    Verbs,
}

impl Topic {
    /// Returns the heading.
    #[must_use]
    pub const fn heading(self) -> &'static str {
        match self {
            Self::Device => "Device",
            Self::Network => "Network",
            Self::Poller => "Poller",
            Self::Connections => "Connections",
            Self::Verbs => "Verbs and log",
        }
    }
}

/// Function that parses a value, and stores it.
pub(crate) type Store = fn(&mut Settings, &str) -> Result<(), String>;

/// Kind of a setting, and the function that stores its value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// One value.
    One(Store),
    /// Any number of values: `clear` removes those of the file, `add` adds one.
    List { clear: fn(&mut Settings), add: Store },
}

/// A setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Name in the file. The variable is FERROWARP_ and this name in upper case, with an underscore
    /// instead of each hyphen.
    pub name: &'static str,
    /// Name of the option of `iwarp-run`, without hyphens: that of `iwperf`.
    pub option: &'static str,
    /// Names of the words of a value.
    pub words: &'static [&'static str],
    /// Group.
    pub topic: Topic,
    /// Meaning, in a sentence or two.
    pub help: &'static str,
    /// Default value, as in the file; empty if there is none.
    pub default: &'static str,
    pub(crate) kind: Kind,
}

impl Setting {
    /// Returns the name of its variable of the environment.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("FERROWARP_{}", self.name.to_ascii_uppercase().replace('-', "_"))
    }

    /// True if it may have several values: an array in the file, elements with commas between them
    /// in the environment, an option that may be given several times.
    #[must_use]
    pub const fn is_list(&self) -> bool {
        matches!(self.kind, Kind::List { .. })
    }
}

/// Stores a value that was parsed.
fn put<T>(place: &mut T, parsed: Result<T, String>) -> Result<(), String> {
    *place = parsed?;
    Ok(())
}

/// Kinds of devices that a verbs program can open; each has an argument after a colon.
pub const DEVICE_KINDS: [&str; 8] =
    ["memif", "vhost", "virtio-user", "tap", "af_packet", "af_xdp", "pci", "eal"];

/// Checks the kind of a device; the runtime parses the rest.
fn device(text: &str) -> Result<String, String> {
    let (kind, argument) = text.split_once(':').unwrap_or((text, ""));
    match kind {
        "ring" => Err("ring joins two ends of one process: give memif:SOCKET".to_owned()),
        "port" => Err("a port belongs to a program that owns the EAL".to_owned()),
        _ if DEVICE_KINDS.contains(&kind) && argument.is_empty() => {
            Err(format!("the argument is missing after {kind}:"))
        }
        _ if DEVICE_KINDS.contains(&kind) => Ok(text.to_owned()),
        _ => {
            let kinds = DEVICE_KINDS.join(":, ");
            Err(format!("give a device of one of the kinds {kinds}:"))
        }
    }
}

/// All settings.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "device",
        option: "dev",
        words: &["DEVICE"],
        topic: Topic::Device,
        help: "DPDK port: memif:SOCKET[,server|client], vhost:SOCKET (back end), \
               virtio-user:SOCKET, tap:NAME, af_packet:IFACE, af_xdp:IFACE, pci:BDF or eal:ARGS.",
        default: "",
        kind: Kind::One(|all, text| put(&mut all.device, device(text))),
    },
    Setting {
        name: "mtu",
        option: "mtu",
        words: &["BYTES"],
        topic: Topic::Device,
        help: "Largest IP packet in bytes, 576 to 65280, with an IPv6 address 1280 or more. \
               Devices may support less.",
        default: "1500",
        kind: Kind::One(|all, text| {
            put(&mut all.mtu, number(text, MTU_MIN.into()..=MTU_MAX.into()))
        }),
    },
    Setting {
        name: "hugepages",
        option: "hugepages",
        words: &["USE"],
        topic: Topic::Device,
        help: "Use of hugepages for frames: auto (if enough are free), never or always.",
        default: "auto",
        kind: Kind::One(|all, text| {
            let choices = [
                ("auto", Hugepages::Auto),
                ("never", Hugepages::Never),
                ("always", Hugepages::Always),
            ];
            put(&mut all.hugepages, choice(text, &choices))
        }),
    },
    Setting {
        name: "address",
        option: "ip",
        words: &["ADDRESS/LEN"],
        topic: Topic::Network,
        help: "Local address and prefix length, such as 198.18.0.1/24 or 2001:2::1/64.",
        default: "",
        kind: Kind::List {
            clear: |all| all.addresses.clear(),
            add: |all, text| {
                let cidr = address::parse_local(text)?;
                cidr.address.without_zone()?;
                let added = cidr.on_interface();
                if all.addresses.iter().any(|own| own.ip == added.ip) {
                    return Err("give each address once".to_owned());
                }
                all.addresses.push(added);
                Ok(())
            },
        },
    },
    Setting {
        name: "route",
        option: "route",
        words: &["DEST/LEN", "via", "HOP"],
        topic: Topic::Network,
        help: "Static route: 203.0.113.0/24 via 198.18.0.254, or default via 198.18.0.254; with \
               the MTU of the route behind it if that is less: 198.18.0.254,mtu=1400.",
        default: "",
        kind: Kind::List {
            clear: |all| all.routes.clear(),
            add: |all, text| {
                let words: Vec<&str> = text.split_whitespace().collect();
                let hop = address::parse_route(&words)?;
                hop.router.address.without_zone()?;
                all.routes.push(hop.route());
                Ok(())
            },
        },
    },
    Setting {
        name: "neighbor",
        option: "neighbor",
        words: &["ADDRESS=MAC"],
        topic: Topic::Network,
        help: "Hardware address of a host or router on the link, which is not asked for it by ARP \
               or neighbor discovery: 198.18.0.2=02:00:00:00:00:02.",
        default: "",
        kind: Kind::List {
            clear: |all| all.neighbors.clear(),
            add: |all, text| {
                let neighbor = address::parse_neighbor(text)?;
                neighbor.address.without_zone()?;
                all.neighbors.push(neighbor.entry());
                Ok(())
            },
        },
    },
    Setting {
        name: "vlan",
        option: "vlan",
        words: &["ID"],
        topic: Topic::Network,
        help: "VLAN ID of all frames (802.1Q), 1 to 4094.",
        default: "",
        kind: Kind::One(|all, text| {
            put(&mut all.vlan, number(text, 1..=VLAN_MAX.into()).map(Some))
        }),
    },
    Setting {
        name: "source-ports",
        option: "source-ports",
        words: &["FIRST-LAST"],
        topic: Topic::Network,
        help: "Ports from which connections are opened, and that a listener on port 0 gets.",
        default: "49152-65534",
        kind: Kind::One(|all, text| put(&mut all.source_ports, ports(text))),
    },
    Setting {
        name: "poller",
        option: "poller",
        words: &["MODE"],
        topic: Topic::Poller,
        help: "Polls the device while the program does not: a thread that sleeps when there is \
               nothing to do (park), or first spins for the hot time after traffic (hot); with \
               off, only the thread that passes on events, each millisecond or more often; auto \
               is hot if the program may use more cores than it needs, else park.",
        default: "auto",
        kind: Kind::One(|all, text| {
            let choices = [
                ("auto", Poller::Auto),
                ("hot", Poller::Hot),
                ("park", Poller::Park),
                ("off", Poller::Off),
            ];
            put(&mut all.poller, choice(text, &choices))
        }),
    },
    Setting {
        name: "poller-cpu",
        option: "poller-cpu",
        words: &["CORE"],
        topic: Topic::Poller,
        help: "Core to which that thread is pinned.",
        default: "",
        kind: Kind::One(|all, text| {
            put(&mut all.poller_cpu, number(text, 0..=CORES - 1).map(Some))
        }),
    },
    Setting {
        name: "hot-time",
        option: "hot-time",
        words: &["MS"],
        topic: Topic::Poller,
        help: "Milliseconds for which a hot poller spins after traffic.",
        default: "50",
        kind: Kind::One(|all, text| put(&mut all.hot_time, milliseconds(text))),
    },
    Setting {
        name: "keepalive-idle",
        option: "keepalive-idle",
        words: &["SECONDS"],
        topic: Topic::Connections,
        help: "Idle time after which TCP probes whether the peer is still there, or off.",
        default: "10",
        kind: Kind::One(|all, text| {
            let idle = if text == "off" { Ok(std::time::Duration::MAX) } else { seconds(text) };
            put(&mut all.keepalive.idle, idle.map_err(|error| format!("{error}, or off")))
        }),
    },
    Setting {
        name: "keepalive-interval",
        option: "keepalive-interval",
        words: &["SECONDS"],
        topic: Topic::Connections,
        help: "Interval of these probes.",
        default: "2",
        kind: Kind::One(|all, text| put(&mut all.keepalive.interval, seconds(text))),
    },
    Setting {
        name: "keepalive-probes",
        option: "keepalive-probes",
        words: &["COUNT"],
        topic: Topic::Connections,
        help: "Unanswered probes after which the connection ends, 1 to 255.",
        default: "3",
        kind: Kind::One(|all, text| put(&mut all.keepalive.probes, number(text, 1..=255))),
    },
    Setting {
        name: "linger",
        option: "linger",
        words: &["MS"],
        topic: Topic::Connections,
        help: "Milliseconds for which the end of the program waits for the peers to acknowledge \
               its data.",
        default: "5000",
        kind: Kind::One(|all, text| put(&mut all.linger, milliseconds(text))),
    },
    Setting {
        name: "peer-to-peer",
        option: "peer-to-peer",
        words: &["BOOL"],
        topic: Topic::Connections,
        help: "Peer-to-peer mode of MPA (RFC 6581), in which either end may send first.",
        default: "true",
        kind: Kind::One(|all, text| put(&mut all.peer_to_peer, switch(text))),
    },
    Setting {
        name: "crc",
        option: "crc",
        words: &["BOOL"],
        topic: Topic::Connections,
        help: "CRC of each FPDU. It is omitted only if both ends can do without.",
        default: "true",
        kind: Kind::One(|all, text| put(&mut all.crc, switch(text))),
    },
    Setting {
        name: "qps",
        option: "qps",
        words: &["COUNT"],
        topic: Topic::Verbs,
        help: "Queue pairs at a time, at most: 1 to 1048576.",
        default: "4096",
        kind: Kind::One(|all, text| put(&mut all.qps_max, number(text, 1..=1 << 20))),
    },
    Setting {
        name: "regions",
        option: "regions",
        words: &["COUNT"],
        topic: Topic::Verbs,
        help: "Memory regions and windows at a time, at most: 1 to 1048576.",
        default: "16384",
        kind: Kind::One(|all, text| put(&mut all.regions_max, number(text, 1..=1 << 20))),
    },
    Setting {
        name: "vendor-id",
        option: "vendor-id",
        words: &["ID"],
        topic: Topic::Verbs,
        help: "Vendor ID that programs see; some choose their settings by it, such as 0x1425.",
        default: "0x26677",
        kind: Kind::One(|all, text| {
            // Some programs take 0 and 0xffffff for Soft-RoCE.
            put(&mut all.vendor_id, hex_or_decimal(text, 1..=0xff_fffe))
        }),
    },
    Setting {
        name: "vendor-part-id",
        option: "vendor-part-id",
        words: &["ID"],
        topic: Topic::Verbs,
        help: "Part ID of that vendor that programs see.",
        default: "1",
        kind: Kind::One(|all, text| {
            put(&mut all.vendor_part_id, hex_or_decimal(text, 0..=u32::MAX))
        }),
    },
    Setting {
        name: "log",
        option: "log",
        words: &["LEVEL"],
        topic: Topic::Verbs,
        help: "Messages of the stack on standard error: off, error, warn, info, debug or trace.",
        default: "warn",
        kind: Kind::One(|all, text| {
            let choices = [
                ("off", LogLevel::Off),
                ("error", LogLevel::Error),
                ("warn", LogLevel::Warn),
                ("info", LogLevel::Info),
                ("debug", LogLevel::Debug),
                ("trace", LogLevel::Trace),
            ];
            put(&mut all.log, choice(text, &choices))
        }),
    },
];
