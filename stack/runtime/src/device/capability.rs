//! Linux capabilities that drivers need.

use std::path::Path;

use crate::device::device_error::DeviceError;

/// A Linux capability and its bit in the sets of /proc.
#[derive(Debug)]
pub(super) struct Capability {
    name: &'static str,
    bit: u32,
}

pub(super) const NET_ADMIN: Capability = Capability { name: "CAP_NET_ADMIN", bit: 12 };
pub(super) const NET_RAW: Capability = Capability { name: "CAP_NET_RAW", bit: 13 };
pub(super) const IPC_LOCK: Capability = Capability { name: "CAP_IPC_LOCK", bit: 14 };
pub(super) const SYS_RAWIO: Capability = Capability { name: "CAP_SYS_RAWIO", bit: 17 };
pub(super) const SYS_ADMIN: Capability = Capability { name: "CAP_SYS_ADMIN", bit: 21 };

impl Capability {
    /// True if the capability is effective in the calling thread, or if /proc cannot be read: the
    /// driver then reports the failure.
    pub(super) fn is_effective(&self) -> bool {
        self.is_effective_below(Path::new("/"))
    }

    /// As [`Capability::is_effective`], by the /proc below a root.
    pub(super) fn is_effective_below(&self, root: &Path) -> bool {
        let status = std::fs::read_to_string(root.join("proc/thread-self/status"));
        let Ok(status) = status else { return true };
        let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        set.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
            .is_none_or(|set| set & (1 << self.bit) != 0)
    }

    /// The error of a process without it.
    pub(super) fn missing(&self, device: String) -> DeviceError {
        DeviceError::NoPermission { device, capability: self.name }
    }
}
