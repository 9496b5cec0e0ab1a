//! Memory that this process has allocated, and that is resident.

use std::fs;
use std::ops::{AddAssign, Sub};

use anyhow::{Context as _, Result};

/// Memory that is allocated and not freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allocated {
    /// Bytes, as asked for.
    pub bytes: i64,
    /// Number of allocations.
    pub count: i64,
}

impl AddAssign for Allocated {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.count += other.count;
    }
}

impl Sub for Allocated {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self { bytes: self.bytes - other.bytes, count: self.count - other.count }
    }
}

/// Executes something, and returns what it has allocated and not freed; less if it has freed what
/// was allocated before.
pub type CountAllocations = fn(&mut dyn FnMut()) -> Allocated;

/// Executes it, and counts nothing.
pub fn uncounted(act: &mut dyn FnMut()) -> Allocated {
    act();
    Allocated::default()
}

/// Bytes of anonymous memory of this process that are resident: frames in hugepages are not among
/// them.
///
/// # Errors
/// If the system does not tell.
pub fn resident() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).context("no RssAnon")?;
    Ok(kib.parse::<u64>()? << 10)
}
