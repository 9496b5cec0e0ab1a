//! What can go wrong on the control path. The data path has no errors: it takes fewer frames.

use core::fmt;

/// An error number of the operating system, positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// From what DPDK calls return: a negative number, or -1 with the reason elsewhere.
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
            // Many drivers answer a bare -1, which is no error number.
            return write!(f, "the driver refused");
        }
        write!(f, "{}", std::io::Error::from_raw_os_error(self.0))
    }
}

/// A failed call of the control path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// `rte_eal_init` failed. It cannot be tried again in this process.
    EalInit(Errno),
    /// EAL runs already, with other extra arguments.
    EalArgumentsDiffer,
    /// This process was forked from one in which EAL runs.
    Forked,
    /// No huge page is free and the configuration insists on them.
    NoHugepages,
    /// All of DPDK's thread slots are taken.
    ThreadRegister(Errno),
    /// A mempool could not be made: too little memory behind EAL.
    PoolCreate(Errno),
    /// A ring could not be made.
    RingCreate(Errno),
    /// The `net_ring` driver refused to make a port.
    PortFromRings(Errno),
    /// No driver claims the device: its plug-in is not loaded or not linked.
    NoDriver,
    /// The bus or the driver refused the device.
    Hotplug(Errno),
    /// The device was taken but made no port, or all ports are in use.
    NoPort,
    /// Facts about a port could not be read.
    PortInfo(Errno),
    /// The port refused its configuration.
    PortConfigure(Errno),
    /// DPDK's log could not be listened to.
    Log(Errno),
    /// The port carries at most this many bytes of IP packet.
    MtuTooLarge {
        /// What the port can do.
        max: u16,
    },
    /// A receive queue could not be set up.
    RxQueue(Errno),
    /// A transmit queue could not be set up.
    TxQueue(Errno),
    /// The port did not start.
    PortStart(Errno),
    /// A name holds a NUL byte or is too long.
    BadName,
}

/// What helps when DPDK's heap is used up.
const NO_MEMORY_HINT: &str =
    "(raise /proc/sys/vm/nr_hugepages, or use a smaller MTU or fewer devices)";

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EalInit(errno) => write!(
                f,
                "DPDK's environment did not start: {errno} (EAL's argument --log-level=debug makes \
                 it say why; it starts once in a process)"
            ),
            Self::EalArgumentsDiffer => write!(
                f,
                "DPDK's environment already runs with other arguments (open this device first, or \
                 in a process of its own)"
            ),
            Self::Forked => write!(
                f,
                "DPDK runs in the process that this one was forked from (open devices after fork, \
                 or in a program that is executed anew)"
            ),
            Self::NoHugepages => {
                write!(f, "too few huge pages are free (raise /proc/sys/vm/nr_hugepages)")
            }
            Self::ThreadRegister(errno) => {
                write!(f, "no thread slot is left: {errno} (let other threads end)")
            }
            Self::PoolCreate(errno) => {
                write!(f, "no memory for an mbuf pool: {errno} {NO_MEMORY_HINT}")
            }
            Self::RingCreate(errno) => write!(f, "no memory for a ring: {errno} {NO_MEMORY_HINT}"),
            Self::PortFromRings(errno) => write!(f, "net_ring made no port: {errno}"),
            Self::NoDriver => write!(f, "no poll-mode driver for it is loaded"),
            Self::Hotplug(errno) => write!(f, "the device could not be attached: {errno}"),
            Self::NoPort => write!(
                f,
                "no unused port was found (at most {} can be open: close some)",
                crate::sys::RTE_MAX_ETHPORTS
            ),
            Self::Log(errno) => write!(f, "the log of DPDK cannot be listened to: {errno}"),
            Self::PortInfo(errno) => write!(f, "the port tells nothing about itself: {errno}"),
            Self::PortConfigure(errno) => write!(f, "the port refused its set-up: {errno}"),
            Self::MtuTooLarge { max } => write!(f, "the port's largest MTU is {max}"),
            Self::RxQueue(errno) => write!(f, "no receive queue: {errno}"),
            Self::TxQueue(errno) => write!(f, "no transmit queue: {errno}"),
            Self::PortStart(errno) => write!(f, "the port did not start: {errno}"),
            Self::BadName => write!(f, "a name is too long or holds a NUL octet"),
        }
    }
}

impl std::error::Error for Error {}
