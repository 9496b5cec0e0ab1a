//! The kinds of tests.

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

/// What a message travels as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// RDMA Write.
    Write,
    /// RDMA Read.
    Read,
    /// Send.
    Send,
    /// Atomic operation on a word of eight bytes, one for each queue pair.
    Atomic,
}

impl Transfer {
    /// The other end's memory comes to this one, in answer to each request.
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
    /// Compares with what the word is, and swaps in 1 more: always swaps.
    #[value(name = "CMP_AND_SWAP")]
    CmpSwap,
}

impl Test {
    /// Number in the control exchange.
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

    /// The test of a number in the control exchange.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::value_variants().iter().copied().find(|test| test.code() == code)
    }

    /// Name on the command line and in results.
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

    /// Measures latency.
    #[must_use]
    pub const fn is_latency(self) -> bool {
        matches!(self, Self::WriteLat | Self::ReadLat | Self::SendLat | Self::AtomicLat)
    }

    /// What its messages travel as.
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
