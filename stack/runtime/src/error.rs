//! Errors of calls outside the data path.

use std::fmt;
use std::io;
use std::time::Duration;

use ferrowarp_proto::ddp::regions::RegisterError;
use ferrowarp_proto::ended::Ended;
use ferrowarp_proto::verbs::srq::SrqError;

use crate::device::DeviceError;
use crate::memory::Buffer;

/// A hardware address as text: `02:00:00:00:00:01`.
struct Mac([u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Error of opening a context.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The device could not be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device name stands for a pair of devices.
    #[error("`ring` has both its ends inside this process: open them with `ring_pair`")]
    Pair,
    /// The prefix is longer than an address of its family.
    #[error("a prefix of {prefix_len} bits does not fit the address {address}")]
    Prefix {
        /// The address.
        address: std::net::IpAddr,
        /// The length given.
        prefix_len: u8,
    },
    /// The configuration has no address.
    #[error("no address is given: one at least is needed")]
    NoAddress,
    /// No host can have the address: it is unspecified, loopback, multicast, reserved, or an IPv4
    /// address in IPv6 form.
    #[error("no host has the address {address}: give a unicast address, IPv4 ones as 198.18.0.1")]
    Address {
        /// The address.
        address: std::net::IpAddr,
    },
    /// The address is the network or broadcast address of its own IPv4 link, or the Subnet-Router
    /// anycast address of its IPv6 link.
    #[error(
        "{address}/{prefix_len} is the address of a whole link, not of a host on it: give another \
         address or prefix length"
    )]
    LinkAddress {
        /// The address.
        address: std::net::IpAddr,
        /// Prefix length of the link.
        prefix_len: u8,
    },
    /// The MTU is below the minimum of IPv6.
    #[error("an MTU of {mtu} is too small for the IPv6 address {address}: IPv6 requires 1280")]
    MtuV6 {
        /// The MTU given.
        mtu: u16,
        /// The address.
        address: std::net::IpAddr,
    },
    /// The router of a route is not on-link, or is of another family than the destination.
    #[error(
        "the router {via} is not another host on the link of any address (give an address whose \
         prefix covers it)"
    )]
    Router {
        /// The router.
        via: std::net::IpAddr,
    },
    /// The MTU of a route is below the minimum of its address family.
    #[error(
        "an MTU of {mtu} for the route to {destination}/{prefix_len} is not possible: give {min} \
         or more"
    )]
    RouteMtu {
        /// Destination of the route.
        destination: std::net::IpAddr,
        /// Its prefix length.
        prefix_len: u8,
        /// The MTU given.
        mtu: u16,
        /// Least MTU.
        min: u16,
    },
    /// A static neighbor is not on-link, or is this host.
    #[error(
        "the neighbor {ip} is not another host on the link of any address (give an address whose \
         prefix covers it, or a route through a neighbor)"
    )]
    Neighbor {
        /// The address of the neighbor.
        ip: std::net::IpAddr,
    },
    /// The hardware address of a static neighbor is a group address or all zeros.
    #[error("{} is not the hardware address of one host: give a unicast one for {ip}", Mac(*mac))]
    NeighborMac {
        /// The address of the neighbor.
        ip: std::net::IpAddr,
        /// The hardware address given.
        mac: [u8; 6],
    },
    /// The VLAN ID is out of range.
    #[error("{vlan} is not a VLAN ID: give 1 to 4094")]
    Vlan {
        /// The VLAN ID given.
        vlan: u16,
    },
    /// The number of shards is out of range.
    #[error("{shards} shards are not possible: give 1 to {max}")]
    Shards {
        /// The number given.
        shards: usize,
        /// Maximum number.
        max: usize,
    },
    /// There are not as many cores as shards.
    #[error(
        "{cores} cores for the threads of {shards} shards: give as many cores as shards, or fewer \
         shards"
    )]
    Cores {
        /// Number of shards.
        shards: usize,
        /// Number of cores given, or that the process may use.
        cores: usize,
    },
    /// The limit on incomplete FPDUs is too small for the FPDUs of jumbo frames.
    #[error(
        "`limits.partial_bytes_max` of {limit} bytes is too small for {shards} shards: give {min} \
         or more"
    )]
    PartialBytes {
        /// The limit given, in bytes.
        limit: usize,
        /// Number of shards.
        shards: usize,
        /// Lowest limit for this many shards, in bytes.
        min: usize,
    },
    /// Page faults in registered memory cannot be caught
    /// ([`Config::catch_page_faults`](crate::Config::catch_page_faults)).
    #[error("page faults in registered memory cannot be caught")]
    PageFaults(#[source] io::Error),
    /// A number of the configuration is outside the range that works.
    #[error("{setting} of {value} is not possible: give {min} to {max}")]
    OutOfRange {
        /// The setting.
        setting: &'static str,
        /// The value given.
        value: usize,
        /// Smallest value.
        min: usize,
        /// Largest value.
        max: usize,
    },
    /// A time of the configuration is too short to work.
    #[error("{setting} of {value:?} is not possible: give {min:?} or more")]
    TooShort {
        /// The setting.
        setting: &'static str,
        /// The value given.
        value: Duration,
        /// Smallest value.
        min: Duration,
    },
    /// The range of ports to connect from is empty, or begins with 0.
    #[error("source_ports {first} to {last} are not possible: give a range in 1 to 65535")]
    SourcePorts {
        /// First port.
        first: u16,
        /// Last port.
        last: u16,
    },
    /// Virtual time that does not advance, or by too much at a time.
    #[error("virtual_time is a step of 1 ns to 1 s")]
    VirtualTime,
    /// The operating system returned no random seed.
    #[error("the operating system gave no random numbers: {0}")]
    Seed(#[source] io::Error),
    /// The polling thread could not be started.
    #[error("the driving thread could not be started: {0}")]
    Thread(#[source] io::Error),
}

/// A configured limit is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{wanted} {what} more would be over the limit of {limit}, of which {used} are taken: raise \
     `{setting}` of the configuration, or release some"
)]
#[non_exhaustive]
pub struct LimitError {
    /// Name of the resource.
    pub what: &'static str,
    /// Setting that limits it.
    pub setting: &'static str,
    /// The limit.
    pub limit: u64,
    /// Amount in use.
    pub used: u64,
    /// Amount requested.
    pub wanted: u64,
}

/// Error of creating a queue pair, a completion queue or a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// A limit is reached.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A queue or a channel belongs to another context.
    #[error("a queue or a channel is of another context: create it in the same")]
    OtherContext,
    /// The shared receive queue belongs to another protection domain.
    #[error("the shared receive queue is of another protection domain: create it in the same")]
    OtherDomain,
    /// The context does nothing any more, or the shards that were asked for.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// A context has as many completion queues as it can.
    #[error("a context has at most {0} completion queues at a time: drop some first")]
    TooManyCqs(usize),
    /// A queue is to have more requests or completions than one can.
    #[error("a queue of {wanted} entries is too long: ask for {limit} or fewer")]
    QueueTooLong {
        /// Number of requests or completions asked for.
        wanted: usize,
        /// The most that a queue can have.
        limit: usize,
    },
    /// Requests are to have more elements or inline bytes than any can.
    #[error("{option} of {wanted} is not possible: ask for {limit} or less")]
    RequestTooLong {
        /// Name of the option.
        option: &'static str,
        /// What was asked for.
        wanted: usize,
        /// The most that a request can have.
        limit: usize,
    },
    /// The context has no shard of that number.
    #[error(
        "there is no shard {shard}: the context has {count}, numbered from 0; raise `shards` of \
         its configuration, or name another"
    )]
    NoShard {
        /// The number.
        shard: usize,
        /// Number of shards.
        count: usize,
    },
    /// The queues and the shard of a queue pair are not of one shard.
    #[error(
        "the completion queues, the shared receive queue and the shard of a queue pair belong to \
         different shards: make the queues for the same shard, or for all of them"
    )]
    DifferentShards,
    /// Error of the shared receive queue.
    #[error(transparent)]
    Srq(#[from] SrqError),
}

/// Error of resizing a completion queue. Its capacity is what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeError {
    /// A limit is reached.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The queue holds more completions.
    #[error(
        "the completion queue holds {held} completions of shard {shard}, and {entries} entries are \
         too few for them: poll some first, or ask for more"
    )]
    TooFew {
        /// Shard by which it was found out; others may hold too many as well.
        shard: usize,
        /// Number of its completions in the queue.
        held: usize,
        /// Entries asked for.
        entries: usize,
    },
    /// The queue is to have more entries than one can.
    #[error("a completion queue of {wanted} entries is too long: ask for {limit} or fewer")]
    TooLong {
        /// Entries asked for.
        wanted: usize,
        /// The most that a queue can have.
        limit: usize,
    },
    /// Nothing feeds the queue any more.
    #[error(transparent)]
    Ended(#[from] Ended),
}

/// Error of arming a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReqNotifyError {
    /// The queue was created without a completion channel.
    #[error("the completion queue has no channel: make it with `create_cq_on`")]
    NoChannel,
    /// Nothing feeds the queue any more.
    #[error(transparent)]
    Ended(#[from] Ended),
}

/// Error of allocating or registering memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The operating system could not map memory.
    #[error("no memory could be mapped: {0} (ask for less, or deregister some)")]
    Map(#[from] io::Error),
    /// Error of the region table.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// A limit is reached.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A part of the memory is not mapped (verbs: `EFAULT`).
    #[error(
        "the {len} bytes at {addr:#x} are not all mapped: give the address and length of memory \
         that this process has"
    )]
    NotMapped {
        /// Address of the first byte.
        addr: usize,
        /// Length in bytes.
        len: usize,
    },
    /// The memory is shared, and a right to write was asked for.
    #[error(
        "the memory is shared, so nobody may write it: ask for no right but LOCAL_READ, \
         REMOTE_READ and WINDOW_BIND, or use `register_owned`"
    )]
    ReadOnly,
    /// A memory window is bound to the region (verbs: `EBUSY`).
    #[error("a memory window is bound to the region: invalidate it, or revoke it, first")]
    WindowsBound,
    /// The queue pair is of another protection domain or context, or the domain is of another
    /// context.
    #[error(
        "the queue pair or the protection domain does not belong to this one: use one of the same \
         context, and for a region of one queue pair the same domain"
    )]
    Foreign,
    /// The context does nothing any more.
    #[error(transparent)]
    Ended(#[from] Ended),
}

/// Error of registering a buffer, or memory that another value owns; returns that.
#[derive(thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct RegisterRefused<T = Buffer> {
    /// The error.
    pub error: MemoryError,
    /// The buffer or the owner, unchanged.
    pub buffer: T,
}

impl<T> From<RegisterRefused<T>> for MemoryError {
    fn from(refused: RegisterRefused<T>) -> Self {
        refused.error
    }
}

/// Without the bytes, of which there may be many.
impl<T> fmt::Debug for RegisterRefused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisterRefused").field("error", &self.error).finish_non_exhaustive()
    }
}
