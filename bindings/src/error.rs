//! Errors of the control path. The data path has none: it accepts or returns fewer frames.

use core::fmt;
use std::sync::OnceLock;

pub use crate::eal_needs::EalNeed;
use crate::{eal_needs, version};

/// Error number of the operating system, positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// From the return value of a DPDK call: a negative error number, or a bare -1.
    pub(crate) fn from_return(value: i32) -> Self {
        Self(value.wrapping_neg())
    }

    /// From `rte_errno` of the calling thread.
    pub(crate) fn last() -> Self {
        // SAFETY: reads a thread-local variable of a library that is linked and loaded.
        Self(unsafe { crate::sys::fw_errno() })
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 <= 1 {
            // Many drivers return a bare -1, which is no error number.
            return write!(f, "the driver refused");
        }
        write!(f, "{}", std::io::Error::from_raw_os_error(self.0))
    }
}

/// A failed call of the control path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// `rte_eal_init` failed. It cannot be retried in this process.
    EalInit(Errno),
    /// The system lacks something that EAL needs. It cannot be retried in this process.
    EalNeeds(EalNeed),
    /// The DPDK that is loaded is of another release than the headers of the build.
    OtherRelease,
    /// EAL already runs with other extra arguments.
    EalArgumentsDiffer,
    /// This process was forked from one in which EAL runs.
    Forked,
    /// Too few hugepages are free, and the configuration requires them.
    NoHugepages,
    /// No lcore slot is free for the thread.
    ThreadRegister(Errno),
    /// A mempool could not be created: EAL has too little memory.
    PoolCreate(Errno),
    /// A ring could not be created.
    RingCreate(Errno),
    /// The `net_ring` driver did not create a port.
    PortFromRings(Errno),
    /// No driver claims the device: its plug-in is not loaded or not linked.
    NoDriver,
    /// The bus or the driver failed to attach the device.
    Hotplug(Errno),
    /// The device was attached but has no port, the port has an owner, or there is no port left.
    NoPort,
    /// The port, or one of its queues, is in use here already.
    PortInUse,
    /// The port is not started.
    PortNotStarted,
    /// The port was configured with fewer queues, or this one was not set up.
    NoQueue {
        /// The queue's number, from 0.
        queue: u16,
        /// Number of queue pairs with which the port was configured.
        count: u16,
    },
    /// The queue is in use here already.
    QueueInUse {
        /// The queue's number, from 0.
        queue: u16,
    },
    /// There is no mempool of this name.
    NoPool,
    /// The objects of the mempool are not mbufs.
    NotMbufs,
    /// Port information could not be read.
    PortInfo(Errno),
    /// The port rejected its configuration.
    PortConfigure(Errno),
    /// DPDK's log could not be hooked.
    Log(Errno),
    /// The MTU is larger than the port supports.
    MtuTooLarge {
        /// Largest MTU of the port, bytes.
        max: u16,
    },
    /// A receive queue could not be set up.
    RxQueue(Errno),
    /// A transmit queue could not be set up.
    TxQueue(Errno),
    /// The port did not start.
    PortStart(Errno),
    /// A name contains a NUL byte or is too long.
    BadName,
}

/// The reason that EAL gave for [`Error::EalInit`].
pub(crate) static EAL_REASON: OnceLock<String> = OnceLock::new();

/// Remedy when DPDK's heap is exhausted.
const NO_MEMORY_HINT: &str =
    "(raise /proc/sys/vm/nr_hugepages or the control group's limit, or use a smaller MTU)";

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EalInit(errno) => {
                write!(f, "DPDK's environment did not start: ")?;
                let reason = EAL_REASON.get().map_or("", String::as_str);
                match reason {
                    "" => write!(f, "{errno}")?,
                    // With its remedy.
                    reason if reason.ends_with(')') => return write!(f, "{reason}"),
                    reason => write!(f, "{reason}")?,
                }
                match eal_needs::limits_in_the_way(errno.0 == libc::EAGAIN).as_str() {
                    "" => write!(
                        f,
                        " (EAL's argument --log-level=debug makes it say more; it starts once in \
                         a process)"
                    ),
                    limits => write!(f, " (raise the limits: ulimit{limits})"),
                }
            }
            Self::EalNeeds(need) => write!(f, "DPDK's environment cannot start: {need}"),
            Self::OtherRelease => write!(
                f,
                "this program was built with the headers of DPDK {}, but {} is loaded (build it \
                 again after cargo clean -p ferrowarp-dpdk-sys; see LD_LIBRARY_PATH)",
                version::of_headers(),
                version::version()
            ),
            Self::EalArgumentsDiffer => write!(
                f,
                "DPDK's environment already runs with other arguments (open this device first, or \
                 in a process of its own)"
            ),
            Self::Forked => write!(
                f,
                "DPDK runs in the process that this one was forked from (open devices after fork, \
                 or in a program started by exec)"
            ),
            Self::NoHugepages => {
                write!(f, "too few hugepages are free (raise /proc/sys/vm/nr_hugepages)")
            }
            Self::ThreadRegister(errno) => {
                write!(f, "no thread slot is left: {errno} (let other threads end)")
            }
            Self::PoolCreate(errno) => {
                write!(f, "no memory for an mbuf pool: {errno} {NO_MEMORY_HINT}")
            }
            Self::RingCreate(errno) => write!(f, "no memory for a ring: {errno} {NO_MEMORY_HINT}"),
            Self::PortFromRings(errno) => write!(f, "net_ring created no port: {errno}"),
            Self::NoDriver => write!(f, "no poll-mode driver for it is loaded"),
            Self::Hotplug(errno) => write!(f, "the device could not be attached: {errno}"),
            Self::NoPort => write!(
                f,
                "no unused port was found (at most {} can be open: close some)",
                crate::sys::RTE_MAX_ETHPORTS
            ),
            Self::PortInUse => write!(f, "the port is open already (close the other device)"),
            Self::PortNotStarted => write!(f, "the port is not started (start it first)"),
            Self::NoQueue { queue, count } => write!(
                f,
                "the port has no queue {queue}: it was set up with {count} queue pairs (name \
                 others, or configure more)"
            ),
            Self::QueueInUse { queue } => {
                write!(f, "queue {queue} is open already (close the other device)")
            }
            Self::NoPool => write!(f, "there is no mempool of this name (create it first)"),
            Self::NotMbufs => write!(
                f,
                "the objects of the mempool are not mbufs (create it with rte_pktmbuf_pool_create)"
            ),
            Self::Log(errno) => write!(f, "the log of DPDK cannot be redirected: {errno}"),
            Self::PortInfo(errno) => {
                write!(f, "the information of the port cannot be read: {errno}")
            }
            Self::PortConfigure(errno) => write!(f, "the port refused its set-up: {errno}"),
            Self::MtuTooLarge { max } => write!(f, "the port's largest MTU is {max}"),
            Self::RxQueue(errno) => write!(f, "no receive queue: {errno}"),
            Self::TxQueue(errno) => write!(f, "no transmit queue: {errno}"),
            Self::PortStart(errno) => write!(f, "the port did not start: {errno}"),
            Self::BadName => write!(f, "a name is too long or holds a NUL byte"),
        }
    }
}

impl std::error::Error for Error {}

/// Checks the return value of a DPDK call: 0, or a negative errno.
pub(crate) fn check(status: i32, error: impl FnOnce(Errno) -> Error) -> Result<(), Error> {
    if status == 0 { Ok(()) } else { Err(error(Errno::from_return(status))) }
}
