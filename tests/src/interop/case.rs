//! Cases of the matrix: a path between the stack and the guest, and a workload over it.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::interop::guest::GuestKind;
use crate::interop::testbed::Testbed;

/// Timeout of operations that take almost no time on an idle machine.
pub const CASE_TIMEOUT: Duration = Duration::from_secs(30);

/// Workload of a case. Returns a short summary, or the reason of the failure.
pub type Body = Box<dyn Fn(&mut Testbed) -> io::Result<String>>;

/// One case of the matrix.
pub struct Case {
    /// `group/what/how`, in lower case; unique.
    pub name: String,
    /// Part of the quick matrix too.
    pub is_quick: bool,
    /// Guest of the case.
    pub guest: GuestKind,
    /// Number of the guest's card that the case is about.
    pub card: usize,
    /// Path of the case.
    pub route: Route,
    /// Flags of Wireshark's TCP analysis that this case may cause for our segments: the last parts
    /// of names such as `tcp.analysis.retransmission`.
    pub expected_analysis: Vec<&'static str>,
    /// Number of packets captured, from the first on.
    pub packets_max: u32,
    /// The capture must contain an FPDU that we sent, and each must have a valid CRC. Without,
    /// captured packets must still be well-formed.
    pub has_fpdus: bool,
    /// Workload.
    pub body: Body,
}

impl Case {
    /// Creates a case over `route`, of the full matrix only, that expects no analysis flag.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        route: Route,
        body: impl Fn(&mut Testbed) -> io::Result<String> + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            is_quick: false,
            guest: GuestKind::Siw,
            card: 0,
            route,
            expected_analysis: Vec::new(),
            packets_max: 8000,
            has_fpdus: true,
            body: Box::new(body),
        }
    }

    /// Adds the case to the quick matrix if `quick`.
    #[must_use]
    pub fn quick(self, quick: bool) -> Self {
        Self { is_quick: quick, ..self }
    }

    /// Is about this card, in the guest that has cards for the stack.
    #[must_use]
    pub fn with_card(self, card: usize) -> Self {
        Self { guest: GuestKind::Cards { has_iommu: true }, card, ..self }
    }

    /// The guest's IOMMU is off, so that none of its cards can be used.
    #[must_use]
    pub fn without_iommu(self) -> Self {
        Self { guest: GuestKind::Cards { has_iommu: false }, ..self }
    }

    /// Adds analysis flags that the case may cause for our segments.
    #[must_use]
    pub fn expects_analysis(mut self, flags: &[&'static str]) -> Self {
        self.expected_analysis.extend(flags);
        self
    }

    /// Expects no FPDU: the connection is not established.
    #[must_use]
    pub fn without_fpdus(self) -> Self {
        Self { has_fpdus: false, ..self }
    }
}

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

/// Returns an I/O error with a message.
pub fn failure(reason: impl Into<String>) -> io::Error {
    io::Error::other(reason.into())
}
