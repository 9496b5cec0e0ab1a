//! Ours, by `iwperf`: RDMA Writes.

use std::rc::Rc;

use anyhow::Result;

use super::{Peer, Test};
use crate::iwperf::{self, Iwperf, Place};
use crate::runner::Figures;

/// Largest MTU of the library, next to the loopback's 65,536.
pub(crate) const LARGEST_MTU: u16 = 65_280;

/// `iwperf` with an MTU: two processes over `memif` with CRC, or one over `ring` without.
pub(crate) struct Ours {
    pub(crate) program: Rc<Iwperf>,
    pub(crate) place: Place,
    pub(crate) mtu: u16,
    /// Whether it runs all tests, or long messages of one queue pair alone.
    pub(crate) runs_all: bool,
}

impl Ours {
    fn is_memif(&self) -> bool {
        matches!(self.place, Place::Memif(_))
    }
}

impl Peer for Ours {
    fn name(&self) -> &'static str {
        match self.mtu {
            9000 if self.is_memif() => "ferrowarp, MTU 9000",
            LARGEST_MTU => "ferrowarp, MTU 65280",
            _ => "ferrowarp",
        }
    }

    fn about(&self) -> String {
        let place = if self.is_memif() {
            "two processes over `memif`, checksums in software, CRC on"
        } else {
            "`loop` over `ring`, no checksums, no CRC"
        };
        format!("`iwperf write-bw`, `write-lat`: RDMA Writes, {place}, MTU {}", self.mtu)
    }

    fn is_ours(&self) -> bool {
        true
    }

    fn version(&self) -> Result<String, String> {
        let mut command = std::process::Command::new(&self.program.program);
        command.args(["loop", "write-bw", "--iters", "1", "--mtu", &self.mtu.to_string()]);
        // The programs may take no MTU as large as the library does.
        let takes_mtu = self.mtu <= 9000 || command.output().is_ok_and(|out| out.status.success());
        let refused = || format!("iwperf refuses --mtu {}", self.mtu);
        takes_mtu.then(|| env!("CARGO_PKG_VERSION").to_owned()).ok_or_else(refused)
    }

    fn supports(&self, test: Test) -> bool {
        let is_long = matches!(test, Test::Stream { size: 4096.., connections: 1 });
        self.runs_all || is_long
    }

    fn run(&self, test: Test, seconds: f64) -> Result<Figures> {
        let (name, size, qps) = match test {
            Test::Stream { size, connections } => ("write-bw", size, connections),
            Test::PingPong { size } => ("write-lat", size, 1),
        };
        let mut options = vec!["--qps".to_owned(), qps.to_string()];
        options.extend((!self.is_memif()).then(|| "--no-crc".to_owned()));
        let test = iwperf::Test { name, mtu: self.mtu, size, options, checksum: None };
        self.program.run(&self.place, &test, seconds)
    }
}
