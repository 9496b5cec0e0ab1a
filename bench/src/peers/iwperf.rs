//! Ours, by `iwperf`: RDMA Writes.

use std::rc::Rc;

use anyhow::Result;

use super::{Peer, Sample, Test};
use crate::baseline::plan::Topology;
use crate::baseline::runner;

/// `iwperf` at a place, with an MTU.
pub struct Iwperf {
    name: &'static str,
    program: Rc<runner::Iwperf>,
    topology: Topology,
    mtu: u16,
    crc: bool,
    /// Whether it runs all tests, or only the bandwidth of large messages by one queue pair.
    runs_all: bool,
}

impl Iwperf {
    /// Returns two processes over `memif`, server and client on these cores, with CRC.
    #[must_use]
    pub const fn memif(program: Rc<runner::Iwperf>, cores: [usize; 2]) -> Self {
        let topology = Topology::Memif(cores);
        Self { name: "ferrowarp", program, topology, mtu: 1500, crc: true, runs_all: true }
    }

    /// As [`Iwperf::memif`], with the largest MTU of the programs. It matters for long messages.
    #[must_use]
    pub const fn memif_jumbo(program: Rc<runner::Iwperf>, cores: [usize; 2]) -> Self {
        let (name, topology) = ("ferrowarp, MTU 9000", Topology::Memif(cores));
        Self { name, program, topology, mtu: 9000, crc: true, runs_all: false }
    }

    /// Returns one process on one core over `ring`, without CRC.
    #[must_use]
    pub const fn ring(program: Rc<runner::Iwperf>, core: usize, mtu: u16) -> Self {
        let topology = Topology::OneCore(core);
        Self { name: "ferrowarp", program, topology, mtu, crc: false, runs_all: true }
    }
}

impl Peer for Iwperf {
    fn name(&self) -> &'static str {
        self.name
    }

    fn description(&self) -> String {
        let (crc, mtu) = (if self.crc { "CRC on" } else { "no CRC" }, self.mtu);
        let place = match self.topology {
            Topology::Memif(_) => "two processes over `memif`, checksums in software",
            _ => "`loop` over `ring`, no checksums",
        };
        format!("`iwperf write-bw`, `write-lat`: RDMA Writes, {place}, {crc}, MTU {mtu}")
    }

    fn is_ours(&self) -> bool {
        true
    }

    fn version(&self) -> Result<String, String> {
        Ok(env!("CARGO_PKG_VERSION").to_owned())
    }

    fn supports(&self, test: Test) -> bool {
        self.runs_all || matches!(test, Test::Stream { size: 4096.., connections: 1 })
    }

    fn run(&mut self, test: Test, seconds: f64) -> Result<Sample> {
        let (kind, size, qps) = match test {
            Test::Stream { size, connections } => ("write-bw", size, connections.to_string()),
            Test::PingPong { size } => ("write-lat", size, "1".to_owned()),
        };
        let mut options = vec!["--qps", &qps];
        if !self.crc {
            options.push("--no-crc");
        }
        let run = self.program.run_with(kind, &self.topology, self.mtu, size, seconds, &options);
        Sample::from_iwperf(&run?)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn large_mtu_is_measured_with_long_messages_of_one_queue_pair_only() {
        let program = runner::Iwperf { program: PathBuf::new(), scratch: PathBuf::new() };
        let program = Rc::new(program);
        let stream = |size, connections| Test::Stream { size, connections };
        let jumbo = Iwperf::memif_jumbo(Rc::clone(&program), [0, 1]);
        assert!(jumbo.supports(stream(65_536, 1)) && !jumbo.supports(stream(65_536, 4)));
        assert!(!jumbo.supports(stream(64, 1)) && !jumbo.supports(Test::PingPong { size: 64 }));
        assert!(Iwperf::memif(program, [0, 1]).supports(stream(64, 16)));
    }
}
