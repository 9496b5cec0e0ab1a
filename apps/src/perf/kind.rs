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
        }
    }

    /// Measures latency.
    #[must_use]
    pub const fn is_latency(self) -> bool {
        matches!(self, Self::WriteLat | Self::ReadLat | Self::SendLat)
    }

    /// What its messages travel as.
    #[must_use]
    pub const fn transfer(self) -> Transfer {
        match self {
            Self::WriteBw | Self::WriteLat => Transfer::Write,
            Self::ReadBw | Self::ReadLat => Transfer::Read,
            Self::SendBw | Self::SendLat => Transfer::Send,
        }
    }
}
