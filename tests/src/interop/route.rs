//! Path between the stack and the guest.

use std::fmt;

/// IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// 198.18.0.1 and 198.18.0.2.
    V4,
    /// 2001:2::1 and 2001:2::2.
    V6,
}

/// Path between the stack and the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// IP version.
    pub version: Version,
    /// MTU of both ends, in bytes.
    pub mtu: u16,
    /// Options of netem at the guest's egress, in tc's syntax; empty for none.
    pub netem: &'static str,
}

impl Route {
    /// IPv4 with MTU 1500, without faults.
    pub const PLAIN: Self = Self { version: Version::V4, mtu: 1500, netem: "" };

    /// Returns the route with another MTU.
    #[must_use]
    pub const fn mtu(self, mtu: u16) -> Self {
        Self { mtu, ..self }
    }

    /// Returns the route over IPv6.
    #[must_use]
    pub const fn v6(self) -> Self {
        Self { version: Version::V6, ..self }
    }

    /// Returns the route with the netem options `netem`.
    #[must_use]
    pub const fn netem(self, netem: &'static str) -> Self {
        Self { netem, ..self }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = if self.version == Version::V4 { "IPv4" } else { "IPv6" };
        write!(f, "{version} {}", self.mtu)
    }
}
