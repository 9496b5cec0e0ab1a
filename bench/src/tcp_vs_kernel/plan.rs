//! Plan of the measurement: links, pairings, number of rounds.

use std::path::PathBuf;

/// TCP of the sender and of the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// The kernel to the kernel.
    KernelToKernel,
    /// Ours to the kernel.
    OursToKernel,
    /// The kernel to ours.
    KernelToOurs,
    /// Ours to ours.
    OursToOurs,
}

impl Pairing {
    /// Pairings measured with data in one direction.
    pub const ONE_WAY: [Self; 3] = [Self::KernelToKernel, Self::OursToKernel, Self::KernelToOurs];
    /// Pairings measured with data in both directions.
    pub const BOTH_WAYS: [Self; 3] = [Self::KernelToKernel, Self::OursToOurs, Self::OursToKernel];

    /// Returns the title for headings.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::KernelToKernel => "kernel to kernel",
            Self::OursToKernel => "ours to kernel",
            Self::KernelToOurs => "kernel to ours",
            Self::OursToOurs => "ours to ours",
        }
    }

    /// Returns whether ours is the sender, and whether it is the receiver.
    pub(super) const fn ours(self) -> [bool; 2] {
        match self {
            Self::KernelToKernel => [false, false],
            Self::OursToKernel => [true, false],
            Self::KernelToOurs => [false, true],
            Self::OursToOurs => [true, true],
        }
    }
}

/// Parameters of an emulated link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkParams {
    /// Frame loss in each direction, in percent.
    pub loss_percent: f64,
    /// RTT in milliseconds.
    pub rtt_ms: f64,
}

/// Parameters of all measurements.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Links of the goodput measurements.
    pub links: Vec<LinkParams>,
    /// Number of runs of each link and pairing.
    pub rounds: usize,
    /// Minimum warm-up of each connection in seconds.
    pub warm_up_s: f64,
    /// Minimum warm-up of each connection in round trips: congestion control that left slow start
    /// early takes hundreds of them to find the rate of a long path.
    pub warm_up_rounds: f64,
    /// Measured time in seconds.
    pub seconds: f64,
    /// Link rate, in the syntax of `iwlink`.
    pub rate: String,
    /// Queue limit in bytes, in the syntax of `iwlink`.
    pub queue: String,
    /// Seed of the faults; round n uses `seed + n`.
    pub seed: u64,
    /// Links of the exchanges.
    pub exchange_links: Vec<LinkParams>,
    /// Measured exchanges per run; 0: not measured.
    pub exchanges: usize,
    /// Connections set up to measure their rate; 0: not measured.
    pub connections: usize,
    /// The program `tcp-end`.
    pub tcp_end: PathBuf,
    /// Link.
    pub iwlink: PathBuf,
}

impl Plan {
    /// Returns the warm-up of a connection over this link in seconds.
    #[must_use]
    pub fn warm_up_s(&self, link: LinkParams) -> f64 {
        self.warm_up_s.max(self.warm_up_rounds * link.rtt_ms / 1000.0)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::tcp_vs_kernel) fn plan() -> Plan {
        let link = |loss_percent, rtt_ms| LinkParams { loss_percent, rtt_ms };
        Plan {
            links: vec![link(0.0, 1.0), link(1.0, 1.0), link(0.0, 20.0)],
            rounds: 3,
            warm_up_s: 1.0,
            warm_up_rounds: 100.0,
            seconds: 2.0,
            rate: "1gbit".to_owned(),
            queue: "256K".to_owned(),
            seed: 1,
            exchange_links: vec![link(0.1, 1.0)],
            exchanges: 100,
            connections: 10,
            tcp_end: PathBuf::new(),
            iwlink: PathBuf::new(),
        }
    }
}
