//! The stack beside its peers: UCX, libfabric, iperf3 and sockperf over the kernel's loopback,
//! smoltcp's sockets over the same `ring`, Linux's siw in a guest.
//!
//! A [`Peer`] runs one [`Test`] at a time and returns a [`Sample`]; ours ([`iwperf`]) are peers as
//! the others are. [`rounds`] runs all peers of a [`Setting`] one after the other, test by test and
//! round by round, so that a disturbance of the machine affects neighboring runs of all of them.
//! [`report`], [`json`] and [`plot`] format the results. A file for each peer says how it is
//! started and how its output is read.

pub mod guest;
pub mod iperf3;
pub mod iwperf;
pub mod json;
pub mod launch;
pub mod libfabric;
pub mod plot;
pub mod report;
pub mod results;
pub mod rounds;
pub mod sample;
pub mod smoltcp_loop;
pub mod sockperf;
pub mod ucx;

use anyhow::Result;
pub use sample::Sample;

/// What is compared with each other: same machine, same placement on cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Two processes, a core each: ours over `memif`, the peers over the kernel's loopback.
    TwoProcesses,
    /// Both ends in one process on one core over `ring`, without CRC and checksums.
    OneCore {
        /// MTU in bytes, of both.
        mtu: u16,
    },
    /// Both ends in an emulated Linux guest with one processor, whose time counts instructions.
    Guest {
        /// MTU in bytes, of both.
        mtu: u16,
    },
}

impl Setting {
    /// Returns the heading.
    #[must_use]
    pub fn title(self) -> String {
        match self {
            Self::TwoProcesses => "Two processes on two cores".to_owned(),
            Self::OneCore { mtu } => format!("smoltcp: one core, MTU {mtu}, no CRC"),
            Self::Guest { mtu } => format!("siw: inside the same guest, MTU {mtu}, no CRC"),
        }
    }

    /// Returns what the names of its files end with, before the extension.
    #[must_use]
    pub fn suffix(self) -> String {
        match self {
            Self::TwoProcesses => String::new(),
            Self::OneCore { mtu } => format!("-one-core-{mtu}"),
            Self::Guest { mtu } => format!("-guest-{mtu}"),
        }
    }
}

/// What one run measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Test {
    /// Messages of `size` bytes in one direction, as many outstanding as the program likes.
    Stream {
        /// Bytes per message.
        size: u64,
        /// Queue pairs, or connections.
        connections: u16,
    },
    /// Ping-pong of messages of `size` bytes, one at a time.
    PingPong {
        /// Bytes per message.
        size: u64,
    },
}

/// A program, or a way to run it, that is measured.
pub trait Peer {
    /// Name in tables and plots.
    fn name(&self) -> &'static str;

    /// What runs: program, operation, transport, options.
    fn description(&self) -> String;

    /// True if it is ours.
    fn is_ours(&self) -> bool {
        false
    }

    /// Returns the version, or why it cannot run: the package to install.
    ///
    /// # Errors
    /// The reason, as one line.
    fn version(&self) -> Result<String, String>;

    /// True if it can run the test.
    fn supports(&self, test: Test) -> bool;

    /// Runs the test for about `seconds`.
    ///
    /// # Errors
    /// If the program fails, hangs, or prints something else than a result.
    fn run(&mut self, test: Test, seconds: f64) -> Result<Sample>;
}
