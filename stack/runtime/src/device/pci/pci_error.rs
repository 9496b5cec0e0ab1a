//! Errors of PCI devices. Each message is one line that names the step that is missing.

use std::io;

/// A PCI device cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PciError {
    /// No PCI device has this address.
    #[error("no PCI device has this address (`lspci -D` lists them)")]
    Absent,
    /// The PCI device has no network interface.
    #[error("the PCI device is not a network card: its class is {class:06x} (see `lspci -D -nn`)")]
    NotNetwork {
        /// Class code: base class, subclass and programming interface.
        class: u32,
    },
    /// The card is bound to no kernel driver; DPDK does not find such cards.
    #[error("the card is bound to no kernel driver ({remedy})")]
    Unbound {
        /// Command that binds it.
        remedy: String,
    },
    /// The kernel uses the card.
    #[error("the card is bound to the kernel's driver {driver} ({remedy})")]
    KernelDriver {
        /// The driver.
        driver: String,
        /// Command that binds it to another driver, and the interfaces that the kernel then loses.
        remedy: String,
    },
    /// DPDK needs the kernel's driver of this card, and it is bound to another.
    #[error("DPDK drives this card through the kernel's driver {needed}, not {driver} ({remedy})")]
    NotSharedDriver {
        /// The driver to which it is bound.
        driver: String,
        /// The driver to which it has to be bound.
        needed: &'static str,
        /// Command that binds it to that driver.
        remedy: String,
    },
    /// The kernel has no RDMA device for the card.
    #[error(
        "the kernel has no RDMA device for the card, through which DPDK drives it (`modprobe -a \
         {modules}`)"
    )]
    NoVerbs {
        /// The kernel modules that make one.
        modules: &'static str,
    },
    /// The kernel has no IOMMU group for the card.
    #[error(
        "the card has no IOMMU group, as the IOMMU is off (turn it on: in the firmware, and with \
         intel_iommu=on on an Intel machine's kernel command line)"
    )]
    NoIommuGroup,
    /// A device node of VFIO does not exist.
    #[error("there is no {path} (`modprobe vfio-pci`; a container has to be given the file)")]
    NoVfio {
        /// The device node.
        path: String,
    },
    /// A device node of VFIO cannot be opened.
    #[error("{path} cannot be opened: {source} (run as root, or `chown USER {path}`)")]
    VfioAccess {
        /// The device node.
        path: String,
        /// Error of the system call.
        source: io::Error,
    },
    /// Another process uses the card.
    #[error("the card is in use by {user} (end it, or choose another card)")]
    InUse {
        /// The process, as far as it is known.
        user: String,
    },
    /// VFIO hands out a group only if the kernel uses none of its devices.
    #[error(
        "IOMMU group {group} holds {other} too, which is bound to {driver} (bind that to vfio-pci \
         as well, or to none)"
    )]
    GroupNotViable {
        /// The group's number.
        group: String,
        /// Address of the other device.
        other: String,
        /// Driver of the other device.
        driver: String,
    },
    /// Without an IOMMU cards need memory whose physical addresses are known.
    #[error(
        "without an IOMMU ({driver}) it needs {mib} MiB of free hugepages (`sysctl \
         vm.nr_hugepages={pages}`, with pages of 2 MiB; and do not turn them off)"
    )]
    NoHugepages {
        /// The driver to which the card is bound.
        driver: String,
        /// MiB needed.
        mib: u32,
        /// The same in pages of 2 MiB.
        pages: u32,
    },
    /// Without hugepages EAL's memory is ordinary, and VFIO locks all of it: the kernel ends
    /// processes if it has not as much.
    #[error(
        "without hugepages the card needs {needed} MiB of ordinary memory, and {available} MiB are \
         available (`sysctl vm.nr_hugepages={pages}`, with pages of 2 MiB)"
    )]
    NoMemory {
        /// MiB needed.
        needed: u32,
        /// MiB that processes can still have.
        available: u64,
        /// Pages of 2 MiB that suffice instead.
        pages: u32,
    },
    /// EAL runs with virtual addresses, which need an IOMMU.
    #[error(
        "DPDK's environment already runs with virtual addresses, and without an IOMMU ({driver}) \
         the card needs physical ones (open this device first, or in a process of its own)"
    )]
    VirtualAddresses {
        /// The driver to which the card is bound.
        driver: String,
    },
    /// VFIO locks the memory that the card may access.
    #[error(
        "this process may lock {limit} KiB of memory, and the card needs {needed} KiB or more \
         (`ulimit -l unlimited`, LimitMEMLOCK=infinity of systemd, or CAP_IPC_LOCK)"
    )]
    MemlockLimit {
        /// RLIMIT_MEMLOCK, KiB.
        limit: u64,
        /// KiB that DPDK's memory has at least.
        needed: u64,
    },
    /// No poll-mode driver claims the card.
    #[error(
        "no poll-mode driver that is loaded takes the card {vendor:04x}:{device:04x} (a shared \
         build loads plug-ins, {packages}; a static build has those of CARDS.md)"
    )]
    NoPollModeDriver {
        /// PCI vendor.
        vendor: u16,
        /// PCI device of that vendor.
        device: u16,
        /// Distribution packages that may have one.
        packages: String,
    },
    /// The card has no port left.
    #[error("the card has no unused port: it is open already, or its driver makes none")]
    NoPort,
}
