//! Checks of a PCI device before DPDK uses it, from /sys, /dev and /proc.
//!
//! They run before EAL starts. If EAL cannot probe a card, it cannot be started again in this
//! process, and it reports the same failure for all causes.
//!
//! Nothing is bound, reserved or written here. The card's VFIO group is opened for a moment; the
//! kernel refuses that while another process has it.

mod drivers;
mod host;
mod pci_error;

use dpdk_sys::{Eal, EalConfig, Errno, Hugepages, Memory};

use crate::device::capability::{Capability, IPC_LOCK, NET_RAW, SYS_ADMIN, SYS_RAWIO};
use crate::device::device_error::DeviceError;
use crate::device::spec::DeviceSpec;
use drivers::{packages, shared_driver};
use host::{Host, User};
pub use pci_error::PciError;

/// `ENOTSUP`, which EAL returns if no driver has taken a device.
const NO_DRIVER: Errno = Errno(95);

/// `EINVAL`, by which EAL refuses a card that needs physical addresses where it uses virtual ones.
const OTHER_ADDRESSES: Errno = Errno(22);

/// MiB of ordinary memory that EAL has from the start, all of which the card may access.
const ORDINARY_MIB: u32 = 1024;

/// An attempt to open a PCI device: what was found before it, which explains its failure.
#[derive(Debug)]
pub(super) struct Probe<'a> {
    host: Host,
    /// The device as named.
    name: String,
    address: &'a str,
    /// The memory of EAL, if that ran before.
    memory: Option<Memory>,
    /// Hugepages may be used.
    may_use_hugepages: bool,
}

/// Why the device cannot be used: a step specific to PCI, or a missing capability.
#[derive(Debug)]
enum Refusal {
    Pci(PciError),
    Capability(&'static Capability),
}

impl From<PciError> for Refusal {
    fn from(error: PciError) -> Self {
        Self::Pci(error)
    }
}

impl<'a> Probe<'a> {
    /// Checks that the device can be probed, as far as that is certain, without EAL.
    ///
    /// # Errors
    /// [`DeviceError::Pci`] and [`DeviceError::NoPermission`] with the step that is missing.
    pub(super) fn begin(
        spec: &DeviceSpec,
        address: &'a str,
        hugepages: Hugepages,
    ) -> Result<Self, DeviceError> {
        let probe = Self {
            host: Host::this(),
            name: spec.to_string(),
            address,
            memory: Eal::running().map(Eal::memory),
            may_use_hugepages: hugepages != Hugepages::Never,
        };
        probe.check().map_err(|refusal| probe.error(refusal))?;
        Ok(probe)
    }

    /// Replaces the error of DPDK by its cause, if that can be found out.
    pub(super) fn explain(&self, error: DeviceError) -> DeviceError {
        let source = match &error {
            DeviceError::Environment(source) | DeviceError::Port { source, .. } => *source,
            _ => return error,
        };
        // The device may have been bound again, or taken, since it was checked.
        let cause = self.check().err().or_else(|| self.cause(source));
        cause.map_or(error, |cause| self.error(cause))
    }

    fn error(&self, refusal: Refusal) -> DeviceError {
        match refusal {
            Refusal::Pci(source) => DeviceError::Pci { device: self.name.clone(), source },
            Refusal::Capability(capability) => capability.missing(self.name.clone()),
        }
    }

    fn check(&self) -> Result<(), Refusal> {
        if !self.host.has_device(self.address) {
            return Err(PciError::Absent.into());
        }
        let driver = self.host.driver(self.address);
        let shared = self.shared_driver();
        // A device of another class that was bound for DPDK on purpose is tried: some cards are
        // accelerators to the bus.
        let is_for_dpdk = matches!(driver.as_deref(), Some(VFIO_PCI | UIO_PCI_GENERIC | IGB_UIO));
        match self.host.class(self.address) {
            Some(class) if class >> 16 != NETWORK && !is_for_dpdk => {
                return Err(PciError::NotNetwork { class }.into());
            }
            _ => {}
        }
        let Some(driver) = driver else {
            return Err(PciError::Unbound { remedy: self.bind_steps() }.into());
        };
        if let Some(shared) = shared {
            if driver != shared.name {
                let (needed, remedy) = (shared.name, self.bind_steps());
                return Err(PciError::NotSharedDriver { driver, needed, remedy }.into());
            }
            if !self.host.has_verbs(self.address) {
                return Err(PciError::NoVerbs { modules: shared.modules }.into());
            }
            return Ok(());
        }
        match driver.as_str() {
            VFIO_PCI => self.check_vfio(),
            UIO_PCI_GENERIC | IGB_UIO => self.check_uio(driver),
            _ => Err(PciError::KernelDriver { driver, remedy: self.rebind_steps() }.into()),
        }
    }

    /// Checks a card that is bound to vfio-pci.
    fn check_vfio(&self) -> Result<(), Refusal> {
        let Some(group) = self.host.iommu_group(self.address) else {
            return Err(PciError::NoIommuGroup.into());
        };
        let node = if group.has_iommu {
            format!("/dev/vfio/{}", group.number)
        } else {
            format!("/dev/vfio/noiommu-{}", group.number)
        };
        for path in ["/dev/vfio/vfio", &node] {
            if !self.host.exists(path) {
                return Err(PciError::NoVfio { path: path.to_owned() }.into());
            }
        }
        if group.has_iommu {
            self.check_memory()?;
        } else {
            self.check_physical_addresses(VFIO_PCI, &[&SYS_RAWIO, &SYS_ADMIN])?;
        }
        let no_access = |path: &str, source| PciError::VfioAccess { path: path.to_owned(), source };
        self.host.open("/dev/vfio/vfio").map_err(|source| no_access("/dev/vfio/vfio", source))?;
        match self.host.open(&node) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                match self.host.user(&node) {
                    // EAL keeps the group from the first device of it on.
                    Some(User::This) => {}
                    user => return Err(in_use(user)),
                }
            }
            Err(source) => return Err(no_access(&node, source).into()),
        }
        if let Some((other, driver)) = self.host.kernel_neighbor(&group, self.address) {
            return Err(PciError::GroupNotViable { group: group.number, other, driver }.into());
        }
        Ok(())
    }

    /// Checks a card that is bound to a driver without an IOMMU. The kernel opens its device node
    /// for any number of processes, but the card's registers serve one.
    fn check_uio(&self, driver: String) -> Result<(), Refusal> {
        self.check_physical_addresses(&driver, &[&SYS_ADMIN])?;
        match self.host.uio_node(self.address).and_then(|node| self.host.user(&node)) {
            None | Some(User::This) => Ok(()),
            user => Err(in_use(user)),
        }
    }

    /// Checks that physical addresses can be used: of hugepages, which do not move, and by a
    /// process that may know them.
    fn check_physical_addresses(
        &self,
        driver: &str,
        capabilities: &[&'static Capability],
    ) -> Result<(), Refusal> {
        for capability in capabilities {
            if !capability.is_effective_below(self.host.root()) {
                return Err(Refusal::Capability(capability));
            }
        }
        if self.has_hugepages() {
            return Ok(());
        }
        let mib = EalConfig::default().memory_mib;
        let driver = driver.to_owned();
        Err(PciError::NoHugepages { driver, mib, pages: mib.div_ceil(2) }.into())
    }

    /// Checks that there is as much memory as VFIO locks for EAL.
    fn check_memory(&self) -> Result<(), Refusal> {
        if self.memory.is_some() || self.has_hugepages() {
            return Ok(());
        }
        match self.host.available_mib() {
            Some(available) if available < u64::from(ORDINARY_MIB) => {
                let pages = EalConfig::default().memory_mib.div_ceil(2);
                Err(PciError::NoMemory { needed: ORDINARY_MIB, available, pages }.into())
            }
            _ => Ok(()),
        }
    }

    /// True if the memory of EAL is hugepages, or will be.
    fn has_hugepages(&self) -> bool {
        match self.memory {
            None => {
                let mib = EalConfig::default().memory_mib;
                self.may_use_hugepages && self.host.has_free_hugepages(mib)
            }
            Some(memory) => memory != Memory::Ordinary,
        }
    }

    /// Returns the cause of a failure that no check before has found.
    fn cause(&self, source: dpdk_sys::Error) -> Option<Refusal> {
        let driver = self.host.driver(self.address)?;
        match source {
            dpdk_sys::Error::Hotplug(NO_DRIVER) | dpdk_sys::Error::NoDriver => {
                if let Some(class) = self.host.class(self.address)
                    && class >> 16 != NETWORK
                {
                    return Some(PciError::NotNetwork { class }.into());
                }
                let (vendor, device) = self.host.ids(self.address)?;
                let packages = packages(vendor);
                return Some(PciError::NoPollModeDriver { vendor, device, packages }.into());
            }
            dpdk_sys::Error::NoPort => return Some(PciError::NoPort.into()),
            // A running EAL has chosen between physical and virtual addresses.
            dpdk_sys::Error::Hotplug(OTHER_ADDRESSES)
                if self.memory.is_some() && !self.has_iommu() =>
            {
                return Some(PciError::VirtualAddresses { driver }.into());
            }
            dpdk_sys::Error::EalInit(_)
            | dpdk_sys::Error::Hotplug(_)
            | dpdk_sys::Error::PoolCreate(_) => {}
            _ => return None,
        }
        let root = self.host.root();
        if self.shared_driver().is_some() {
            // Raw packet queue pairs of verbs.
            return (!NET_RAW.is_effective_below(root)).then_some(Refusal::Capability(&NET_RAW));
        }
        if self.has_iommu() {
            let mib =
                if self.has_hugepages() { EalConfig::default().memory_mib } else { ORDINARY_MIB };
            let needed = u64::from(mib) * 1024;
            let limit = self.host.memlock_limit()?.checked_div(1024)?;
            let is_low = limit < needed && !IPC_LOCK.is_effective_below(root);
            return is_low.then(|| PciError::MemlockLimit { limit, needed }.into());
        }
        None
    }

    /// True if an IOMMU translates the addresses that the card uses.
    fn has_iommu(&self) -> bool {
        self.host.driver(self.address).as_deref() == Some(VFIO_PCI)
            && self.host.iommu_group(self.address).is_some_and(|group| group.has_iommu)
    }

    fn shared_driver(&self) -> Option<&'static drivers::SharedDriver> {
        let (vendor, device) = self.host.ids(self.address)?;
        shared_driver(vendor, device)
    }

    /// Returns how to bind the device to the driver with which DPDK works, from what is missing.
    fn bind_steps(&self) -> String {
        let address = self.address;
        if let Some(shared) = self.shared_driver() {
            let name = shared.name;
            return format!("`modprobe {name}`, then `driverctl unset-override {address}`");
        }
        let mut steps = Vec::new();
        if self.host.iommu_group(address).is_none() && !self.host.allows_no_iommu() {
            steps.push(
                "turn the IOMMU on, which is off: in the firmware, and with intel_iommu=on on an \
                 Intel machine's kernel command line"
                    .to_owned(),
            );
        }
        if !self.host.exists("/sys/bus/pci/drivers/vfio-pci") {
            steps.push("`modprobe vfio-pci`".to_owned());
        }
        steps.push(format!(
            "`driverctl set-override {address} vfio-pci` or `dpdk-devbind.py -b vfio-pci {address}`"
        ));
        steps.join(", then ")
    }

    /// As [`Probe::bind_steps`], for a card of the kernel.
    fn rebind_steps(&self) -> String {
        let steps = self.bind_steps();
        match self.host.interfaces(self.address).as_slice() {
            [] => steps,
            [only] => format!("{steps}; the kernel then loses the interface {only}"),
            several => format!("{steps}; the kernel then loses {}", several.join(", ")),
        }
    }
}

const VFIO_PCI: &str = "vfio-pci";
const UIO_PCI_GENERIC: &str = "uio_pci_generic";
const IGB_UIO: &str = "igb_uio";

/// Base class of network controllers.
const NETWORK: u32 = 0x02;

fn in_use(user: Option<User>) -> Refusal {
    let user = match user {
        Some(User::Other { pid, name }) => format!("process {pid} ({name})"),
        Some(User::This) => "this process".to_owned(),
        None => "another process".to_owned(),
    };
    PciError::InUse { user }.into()
}

#[cfg(test)]
mod tests;
