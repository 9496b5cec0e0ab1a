//! What to measure: wires, pairings, how often.

use std::path::PathBuf;

/// Whose TCP sends, and whose receives.
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
    /// Those where one end sends and the other takes.
    pub const ONE_WAY: [Self; 3] = [Self::KernelToKernel, Self::OursToKernel, Self::KernelToOurs];
    /// Those where both send: ours beside the kernel's.
    pub const BOTH_WAYS: [Self; 3] = [Self::KernelToKernel, Self::OursToOurs, Self::OursToKernel];

    /// For headings.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::KernelToKernel => "kernel to kernel",
            Self::OursToKernel => "ours to kernel",
            Self::KernelToOurs => "kernel to ours",
            Self::OursToOurs => "ours to ours",
        }
    }

    /// Whether ours is the sender, and whether it is the receiver.
    pub(super) const fn ours(self) -> [bool; 2] {
        match self {
            Self::KernelToKernel => [false, false],
            Self::OursToKernel => [true, false],
            Self::KernelToOurs => [false, true],
            Self::OursToOurs => [true, true],
        }
    }
}

/// A wire.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkParams {
    /// Frames lost, each way, in percent.
    pub loss_percent: f64,
    /// Round trip, in milliseconds.
    pub rtt_ms: f64,
}

/// What to measure, and with what.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The wires.
    pub links: Vec<LinkParams>,
    /// How often each is measured with each pairing.
    pub rounds: usize,
    /// Seconds of each connection before anything is measured, at least.
    pub warm_up_s: f64,
    /// Round trips of each connection before anything is measured, at least: congestion control
    /// that left slow start early takes hundreds of them to find the rate of a long wire.
    pub warm_up_rounds: f64,
    /// Seconds that are measured.
    pub seconds: f64,
    /// Rate of the wire, as `iwlink` takes it.
    pub rate: String,
    /// Bytes that may wait in front of it, as `iwlink` takes them.
    pub queue: String,
    /// Decides the faults; those of round n come from the n-th seed after it.
    pub seed: u64,
    /// The wires of exchanges, and how many exchanges each run measures; none: not measured.
    pub exchange_links: Vec<LinkParams>,
    /// See `exchange_links`.
    pub exchanges: usize,
    /// Connections set up to learn their rate; none: not measured.
    pub connections: usize,
    /// The program that is an end.
    pub tcp_end: PathBuf,
    /// The wire.
    pub iwlink: PathBuf,
}

impl Plan {
    /// Seconds of a connection over this wire before anything is measured.
    #[must_use]
    pub fn warm_up_s(&self, cell: LinkParams) -> f64 {
        self.warm_up_s.max(self.warm_up_rounds * cell.rtt_ms / 1000.0)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::tcp_vs_kernel) fn plan() -> Plan {
        let cell = |loss_percent, rtt_ms| LinkParams { loss_percent, rtt_ms };
        Plan {
            links: vec![cell(0.0, 1.0), cell(1.0, 1.0), cell(0.0, 20.0)],
            rounds: 3,
            warm_up_s: 1.0,
            warm_up_rounds: 100.0,
            seconds: 2.0,
            rate: "1gbit".to_owned(),
            queue: "256K".to_owned(),
            seed: 1,
            exchange_links: vec![cell(0.1, 1.0)],
            exchanges: 100,
            connections: 10,
            tcp_end: PathBuf::new(),
            iwlink: PathBuf::new(),
        }
    }
}
