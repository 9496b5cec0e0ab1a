//! Workload of an instruction count: messages from one end to the other, and the link.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use clap::ArgAction;
use ferrowarp_proto::device::ChecksumMode;
use ferrowarp_proto::tcp::EcnMode;
use ferrowarp_proto::verbs::wc::WcOpcode;

/// Operation that moves the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Transfer {
    /// RDMA Writes, posted by the source.
    Write,
    /// Sends, posted by the source.
    Send,
    /// RDMA Reads, posted by the sink.
    Read,
    /// Sends, posted by source and sink in turn: each answers the one before.
    PingPong,
}

/// Index of the end at which transfers begin.
pub const SOURCE: usize = 0;
/// Index of the other end.
pub const SINK: usize = 1;

impl Transfer {
    /// Returns the end that posts the message of this number.
    #[inline]
    pub const fn poster(self, number: u64) -> usize {
        match self {
            Self::Write | Self::Send => SOURCE,
            Self::Read => SINK,
            Self::PingPong => match number % 2 {
                0 => SOURCE,
                _ => SINK,
            },
        }
    }

    /// Returns the slot of the message of this number; an answer is sent from the slot of the
    /// message that it answers, and to the same slot.
    #[inline]
    pub const fn slot(self, number: u64) -> u64 {
        if matches!(self, Self::PingPong) { number / 2 } else { number }
    }

    /// Returns the limit of outstanding messages.
    #[inline]
    pub const fn depth(self, depth: usize) -> u64 {
        if matches!(self, Self::PingPong) { 1 } else { depth as u64 }
    }

    /// True if a completion ends a message: the answer may be posted, or the next message.
    #[inline]
    pub const fn is_ended_by(self, opcode: WcOpcode) -> bool {
        matches!(opcode, WcOpcode::Recv) == matches!(self, Self::PingPong)
    }
}

/// Parameters of the messages and of the link; also options of the programs that run them.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Workload {
    /// MTU in bytes
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u16).range(576..))]
    pub mtu: u16,
    /// No TCP timestamps: 12 bytes more payload per segment
    #[arg(long = "no-timestamps", action = ArgAction::SetFalse)]
    pub timestamps: bool,
    /// No CRC
    #[arg(long = "no-crc", action = ArgAction::SetFalse)]
    pub crc: bool,
    /// ECN, requested by the source
    #[arg(long)]
    pub ecn: bool,
    /// IPv6 in place of IPv4; an MTU of at least 1280
    #[arg(long)]
    pub ipv6: bool,
    /// TCP and IPv4 checksums in software; otherwise there are none
    #[arg(long)]
    pub software_checksums: bool,
    /// Bytes per message
    #[arg(long, default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..))]
    pub size: u32,
    /// Outstanding requests per queue pair, at least 1
    #[arg(long, default_value_t = 64)]
    pub depth: usize,
    /// Queue pairs, at least 1; several with messages of their own, and between two contexts only
    #[arg(long, default_value_t = 1)]
    pub qps: usize,
}

impl Workload {
    /// Returns the checksum mode of the ports.
    pub const fn checksum(&self) -> ChecksumMode {
        if self.software_checksums { ChecksumMode::Software } else { ChecksumMode::NotNeeded }
    }

    /// Returns the ECN setting of the source; the sink accepts what is requested.
    pub fn ecn_mode(&self) -> EcnMode {
        if self.ecn { EcnMode::Request } else { EcnMode::default() }
    }

    /// Returns the address of host 1 or 2, of a range for benchmarks (RFC 2544, RFC 5180).
    pub fn address(&self, host: u8) -> IpAddr {
        if self.ipv6 {
            Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, host.into()).into()
        } else {
            Ipv4Addr::new(198, 18, 0, host).into()
        }
    }

    /// Returns the length of the prefix of the addresses.
    pub const fn prefix_len(&self) -> u8 {
        if self.ipv6 { 64 } else { 24 }
    }
}

/// Returns bytes to transfer, which are not constant.
pub fn payload(len: u32) -> Vec<u8> {
    (0..len).map(|at| at.wrapping_mul(0x9e37_79b1).to_be_bytes()[0]).collect()
}
