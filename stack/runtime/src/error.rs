//! What can go wrong outside the data path.

use std::io;

use ferrowarp_proto::ddp::regions::RegisterError;
use ferrowarp_proto::verbs::qp::SrqError;

use crate::arena::Buffer;
use crate::device::DeviceError;

/// Why a context could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The device could not be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// One device was wanted and the name stands for two.
    #[error("`ring` has both its ends inside this process: open them with `ring_pair`")]
    Pair,
    /// The prefix is longer than an address.
    #[error("a prefix of {prefix_len} bits does not fit the address {address}")]
    Prefix {
        /// The address.
        address: std::net::IpAddr,
        /// The length given.
        prefix_len: u8,
    },
    /// There is no address at all.
    #[error("no address is given: one at least is needed")]
    NoAddress,
    /// An address that no host can have.
    #[error("{address} is no address of a single host")]
    Address {
        /// The address.
        address: std::net::IpAddr,
    },
    /// IPv6 asks more of a link.
    #[error("an MTU of {mtu} is too small for the IPv6 address {address}: IPv6 asks for 1280")]
    MtuV6 {
        /// The MTU given.
        mtu: u16,
        /// The address.
        address: std::net::IpAddr,
    },
    /// A route's router is not on the link, or of another family than the destination.
    #[error(
        "the router {via} is not on the link of any address (give an address whose prefix \
             covers it)"
    )]
    Router {
        /// The router.
        via: std::net::IpAddr,
    },
    /// No such VLAN.
    #[error("{vlan} names no VLAN: 1 to 4094 do")]
    Vlan {
        /// The number given.
        vlan: u16,
    },
    /// The operating system gave no random seed.
    #[error("the operating system gave no random numbers: {0}")]
    Seed(#[source] io::Error),
    /// The thread that drives the shard could not be started.
    #[error("the driving thread could not be started: {0}")]
    Thread(#[source] io::Error),
}

/// A limit of the configuration is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{wanted} {what} more would be over the limit of {limit}, of which {used} are taken: raise \
     `{setting}` of the configuration, or give some back"
)]
pub struct LimitError {
    /// What is limited.
    pub what: &'static str,
    /// The setting that limits it.
    pub setting: &'static str,
    /// The limit.
    pub limit: u64,
    /// What is taken of it.
    pub used: u64,
    /// What was asked for.
    pub wanted: u64,
}

/// Why a queue pair, a completion queue or a shared receive queue could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// A limit is reached.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// Something that was named is of another context or domain, or the context is closed.
    #[error(
        "a queue, a channel or a domain is of another context or domain, or the context is closed"
    )]
    Gone,
    /// The shared receive queue does not take it.
    #[error(transparent)]
    Srq(#[from] SrqError),
}

/// Why a completion queue could not be armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReqNotifyError {
    /// It has nowhere to tell.
    #[error("the completion queue has no channel: make it with `create_cq_on`")]
    NoChannel,
    /// The context was closed.
    #[error("the context is closed")]
    Gone,
}

/// Why memory could not be allocated or registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The operating system maps no more memory.
    #[error("no memory could be mapped: {0} (ask for less, or deregister some)")]
    Map(#[from] io::Error),
    /// The table of regions does not take it.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// A limit is reached.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The queue pair is of another protection domain or context, or the context is closed.
    #[error("the queue pair is of another protection domain or context, or the context is closed")]
    Foreign,
}

/// A buffer was not registered: why, and the buffer.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct RegisterRefused {
    /// Why.
    pub error: MemoryError,
    /// The buffer, as it was.
    pub buffer: Buffer,
}

impl From<RegisterRefused> for MemoryError {
    fn from(refused: RegisterRefused) -> Self {
        refused.error
    }
}
