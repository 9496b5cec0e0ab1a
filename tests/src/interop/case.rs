//! What a case of the matrix is: a path between both ends, and what they do over it.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::interop::testbed::Testbed;

/// Version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// 198.18.0.1 and 198.18.0.2.
    V4,
    /// 2001:2::1 and 2001:2::2.
    V6,
}

/// What lies between both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Version of IP.
    pub version: Version,
    /// Bytes of the largest IP packet, at both ends.
    pub mtu: u16,
    /// What netem does to the packets that leave the guest, in tc's words; nothing if empty.
    pub netem: &'static str,
}

impl Route {
    /// IPv4 over Ethernet's usual MTU, without faults.
    pub const PLAIN: Self = Self { version: Version::V4, mtu: 1500, netem: "" };

    /// The same with another MTU.
    #[must_use]
    pub const fn mtu(self, mtu: u16) -> Self {
        Self { mtu, ..self }
    }

    /// The same over IPv6.
    #[must_use]
    pub const fn v6(self) -> Self {
        Self { version: Version::V6, ..self }
    }

    /// The same with faults.
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

/// What both ends do: what came of it in a few words, or why it failed.
pub type Body = Box<dyn Fn(&mut Testbed) -> io::Result<String>>;

/// One case of the matrix.
pub struct Case {
    /// `group/what/how`, in lower case; every case has a name of its own.
    pub name: String,
    /// Also part of the small matrix.
    pub is_quick: bool,
    /// The path.
    pub route: Route,
    /// What Wireshark's analysis may say of our segments, because this case brings it about: the
    /// ends of names such as `tcp.analysis.retransmission`.
    pub expected_analysis: Vec<&'static str>,
    /// Packets that are captured, from the first on.
    pub packets_max: u32,
    /// An FPDU of ours has to be in the capture, and all of them have to have a good CRC. Without,
    /// whatever is there must still be well-formed.
    pub has_fpdus: bool,
    /// What is done.
    pub body: Body,
}

impl Case {
    /// A case over `route`, part of the big matrix alone, with nothing to explain.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        route: Route,
        body: impl Fn(&mut Testbed) -> io::Result<String> + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            is_quick: false,
            route,
            expected_analysis: Vec::new(),
            packets_max: 8000,
            has_fpdus: true,
            body: Box::new(body),
        }
    }

    /// Part of the small matrix, too, if `quick`.
    #[must_use]
    pub fn quick(self, quick: bool) -> Self {
        Self { is_quick: quick, ..self }
    }

    /// What the case brings about, too, in the analysis of our segments.
    #[must_use]
    pub fn expects_analysis(mut self, flags: &[&'static str]) -> Self {
        self.expected_analysis.extend(flags);
        self
    }

    /// No FPDU is expected: the connection does not come to that.
    #[must_use]
    pub fn without_fpdus(self) -> Self {
        Self { has_fpdus: false, ..self }
    }
}

/// How long a case waits for anything that takes no time on a quiet machine.
pub const CASE_TIMEOUT: Duration = Duration::from_secs(30);

/// An error in words.
pub fn failure(reason: impl Into<String>) -> io::Error {
    io::Error::other(reason.into())
}
