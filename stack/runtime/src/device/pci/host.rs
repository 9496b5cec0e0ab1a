//! Kernel's information about PCI devices, VFIO and processes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The machine as its files show it, below a root.
pub(super) struct Host {
    root: PathBuf,
    /// Opens a device node for reading and writing, and closes it.
    try_open: fn(&Path) -> io::Result<()>,
}

/// An IOMMU group.
pub(super) struct IommuGroup {
    pub(super) number: String,
    /// False if the group was made by VFIO's mode without an IOMMU.
    pub(super) has_iommu: bool,
}

/// A process that has a device node open.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum User {
    This,
    Other { pid: u32, name: String },
}

impl core::fmt::Debug for Host {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Host").field("root", &self.root).finish_non_exhaustive()
    }
}

impl Host {
    /// This machine.
    pub(super) fn this() -> Self {
        let try_open =
            |path: &Path| fs::OpenOptions::new().read(true).write(true).open(path).map(|_| ());
        Self { root: PathBuf::from("/"), try_open }
    }

    /// A machine of made-up files.
    #[cfg(test)]
    pub(super) fn made_up(root: &Path, try_open: fn(&Path) -> io::Result<()>) -> Self {
        Self { root: root.to_owned(), try_open }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// The file of an absolute path.
    fn file(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.file(path).exists()
    }

    pub(super) fn open(&self, path: &str) -> io::Result<()> {
        (self.try_open)(&self.file(path))
    }

    fn device(&self, address: &str) -> PathBuf {
        self.file("/sys/bus/pci/devices").join(address)
    }

    pub(super) fn has_device(&self, address: &str) -> bool {
        self.device(address).exists()
    }

    /// Returns the kernel driver to which a device is bound.
    pub(super) fn driver(&self, address: &str) -> Option<String> {
        last_of_link(&self.device(address).join("driver"))
    }

    /// Returns the class code of a device.
    pub(super) fn class(&self, address: &str) -> Option<u32> {
        read_hex(&self.device(address).join("class"))
    }

    /// Returns the PCI vendor and device of a device.
    pub(super) fn ids(&self, address: &str) -> Option<(u16, u16)> {
        let read = |name| read_hex(&self.device(address).join(name));
        Some((u16::try_from(read("vendor")?).ok()?, u16::try_from(read("device")?).ok()?))
    }

    /// True if the kernel has a verbs device of the card.
    pub(super) fn has_verbs(&self, address: &str) -> bool {
        !names(&self.device(address).join("infiniband_verbs")).is_empty()
    }

    /// Returns the kernel's network interfaces of a device, in order.
    pub(super) fn interfaces(&self, address: &str) -> Vec<String> {
        let device = self.device(address);
        let mut found = names(&device.join("net"));
        // The interface of a virtio card belongs to its device on the virtio bus.
        for child in names(&device).into_iter().filter(|name| name.starts_with("virtio")) {
            found.extend(names(&device.join(child).join("net")));
        }
        found.sort();
        found
    }

    /// Returns the IOMMU group of a device.
    pub(super) fn iommu_group(&self, address: &str) -> Option<IommuGroup> {
        let number = last_of_link(&self.device(address).join("iommu_group"))?;
        let name =
            fs::read_to_string(self.file("/sys/kernel/iommu_groups").join(&number).join("name"));
        let has_iommu = name.map_or(true, |name| name.trim() != "vfio-noiommu");
        Some(IommuGroup { number, has_iommu })
    }

    /// Returns another device of a group that the kernel uses, and its driver. Bridges may be in
    /// use: they pass on what the devices behind them do.
    pub(super) fn kernel_neighbor(
        &self,
        group: &IommuGroup,
        address: &str,
    ) -> Option<(String, String)> {
        // VFIO has drivers for some families of cards besides vfio-pci (mlx5_vfio_pci).
        let allows =
            |driver: &str| driver.contains("vfio") || matches!(driver, "pci-stub" | "pcieport");
        let devices = self.file("/sys/kernel/iommu_groups").join(&group.number).join("devices");
        let mut others = names(&devices);
        others.sort();
        others.into_iter().filter(|other| other != address).find_map(|other| {
            let driver = self.driver(&other)?;
            (!allows(&driver)).then_some((other, driver))
        })
    }

    /// True if vfio-pci takes devices without an IOMMU.
    pub(super) fn allows_no_iommu(&self) -> bool {
        let mode = self.file("/sys/module/vfio/parameters/enable_unsafe_noiommu_mode");
        fs::read_to_string(mode).is_ok_and(|mode| mode.trim() == "Y")
    }

    /// Returns the device node of a device that is bound to a UIO driver.
    pub(super) fn uio_node(&self, address: &str) -> Option<String> {
        let node = names(&self.device(address).join("uio")).into_iter().next()?;
        Some(format!("/dev/{node}"))
    }

    /// Returns a process that has a device node open, as far as this one may see that.
    pub(super) fn user(&self, node: &str) -> Option<User> {
        let processes = self.file("/proc");
        let this = std::process::id();
        names(&processes).into_iter().filter_map(|name| name.parse().ok()).find_map(|pid: u32| {
            let process = processes.join(pid.to_string());
            let files = process.join("fd");
            let has_it = names(&files)
                .into_iter()
                .any(|fd| fs::read_link(files.join(fd)).is_ok_and(|path| path == Path::new(node)));
            if !has_it {
                return None;
            }
            let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
            let other = User::Other { pid, name: name.trim().to_owned() };
            Some(if pid == this { User::This } else { other })
        })
    }

    /// True if `mib` MiB of hugepages of one size are free, or may be made on demand.
    pub(super) fn has_free_hugepages(&self, mib: u32) -> bool {
        [2048_u64, 1 << 20].into_iter().any(|kib| {
            let folder = self.file("/sys/kernel/mm/hugepages").join(format!("hugepages-{kib}kB"));
            let read = |name| -> u64 {
                let text = fs::read_to_string(folder.join(name)).unwrap_or_default();
                text.trim().parse().unwrap_or(0)
            };
            let on_demand =
                read("nr_overcommit_hugepages").saturating_sub(read("surplus_hugepages"));
            read("free_hugepages") + on_demand >= (u64::from(mib) * 1024).div_ceil(kib)
        })
    }

    /// Returns the MiB of memory that processes can still have.
    pub(super) fn available_mib(&self) -> Option<u64> {
        let text = fs::read_to_string(self.file("/proc/meminfo")).ok()?;
        let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        Some(kib.split_whitespace().next()?.parse::<u64>().ok()? / 1024)
    }

    /// Returns the bytes that this process may lock; `None` if there is no limit.
    pub(super) fn memlock_limit(&self) -> Option<u64> {
        let limits = fs::read_to_string(self.file("/proc/self/limits")).ok()?;
        let limit = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
        limit.split_whitespace().next()?.parse().ok()
    }
}

/// Returns the last component of the path to which a symbolic link points.
fn last_of_link(link: &Path) -> Option<String> {
    let target = fs::read_link(link).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

/// Reads a number such as `0x020000`.
fn read_hex(path: &Path) -> Option<u32> {
    let text = fs::read_to_string(path).ok()?;
    u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
}

/// Returns the names in a folder, none if it cannot be read.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}
