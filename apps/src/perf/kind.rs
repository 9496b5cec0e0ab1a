//! Kinds of tests.

use clap::ValueEnum;

/// The test to run. Names as in perftest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Test {
    /// Bandwidth of RDMA Writes.
    WriteBw,
    /// Bandwidth of RDMA Reads.
    ReadBw,
    /// Bandwidth of Sends.
    SendBw,
    /// Latency of RDMA Writes.
    WriteLat,
    /// Latency of RDMA Reads.
    ReadLat,
    /// Latency of Sends.
    SendLat,
    /// Rate of atomic operations.
    AtomicBw,
    /// Latency of atomic operations.
    AtomicLat,
}

/// RDMA operation that transfers a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// RDMA Write.
    Write,
    /// RDMA Read.
    Read,
    /// Send.
    Send,
    /// Atomic operation on an 8-byte word, one word per queue pair.
    Atomic,
}

impl Transfer {
    /// True if the requester fetches remote memory: RDMA Read and atomic operations.
    #[must_use]
    pub const fn is_fetch(self) -> bool {
        matches!(self, Self::Read | Self::Atomic)
    }
}

/// The atomic operation to test. Names as in perftest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AtomicType {
    /// Adds 1.
    #[default]
    #[value(name = "FETCH_AND_ADD")]
    FetchAdd,
    /// Compares with the current value and swaps in the value plus 1: always swaps.
    #[value(name = "CMP_AND_SWAP")]
    CmpSwap,
}

impl Test {
    /// Returns the test's number in the control exchange.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::WriteBw => 1,
            Self::ReadBw => 2,
            Self::SendBw => 3,
            Self::WriteLat => 4,
            Self::ReadLat => 5,
            Self::SendLat => 6,
            Self::AtomicBw => 7,
            Self::AtomicLat => 8,
        }
    }

    /// Returns the test with this number in the control exchange.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::value_variants().iter().copied().find(|test| test.code() == code)
    }

    /// Returns the name on the command line and in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::WriteBw => "write-bw",
            Self::ReadBw => "read-bw",
            Self::SendBw => "send-bw",
            Self::WriteLat => "write-lat",
            Self::ReadLat => "read-lat",
            Self::SendLat => "send-lat",
            Self::AtomicBw => "atomic-bw",
            Self::AtomicLat => "atomic-lat",
        }
    }

    /// True if the test measures latency.
    #[must_use]
    pub const fn is_latency(self) -> bool {
        matches!(self, Self::WriteLat | Self::ReadLat | Self::SendLat | Self::AtomicLat)
    }

    /// Returns the RDMA operation of the test.
    #[must_use]
    pub const fn transfer(self) -> Transfer {
        match self {
            Self::WriteBw | Self::WriteLat => Transfer::Write,
            Self::ReadBw | Self::ReadLat => Transfer::Read,
            Self::SendBw | Self::SendLat => Transfer::Send,
            Self::AtomicBw | Self::AtomicLat => Transfer::Atomic,
        }
    }
}
