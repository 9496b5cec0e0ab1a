//! smoltcp's sockets, by the program `smoltcp-loop`: over the same `ring` as ours.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ferrowarp_tests::process;

use super::{Peer, Sample, Test};

/// Time allowed for a run beyond its measured time.
const RUN_TIMEOUT_MARGIN: Duration = Duration::from_secs(30);

/// `smoltcp-loop`.
pub struct SmoltcpLoop {
    program: PathBuf,
    core: usize,
    mtu: u16,
}

impl SmoltcpLoop {
    /// Creates the peer.
    #[must_use]
    pub const fn new(program: PathBuf, core: usize, mtu: u16) -> Self {
        Self { program, core, mtu }
    }
}

impl Peer for SmoltcpLoop {
    fn name(&self) -> &'static str {
        "smoltcp"
    }

    fn description(&self) -> String {
        format!(
            "`smoltcp-loop`: two interfaces of smoltcp over `ring`, a TCP socket each, no \
             checksums, MTU {}; a stream, of which a message is one call",
            self.mtu
        )
    }

    fn version(&self) -> Result<String, String> {
        let lock = include_str!("../../../Cargo.lock");
        Ok(locked_version(lock, "smoltcp").unwrap_or("unknown").to_owned())
    }

    fn supports(&self, test: Test) -> bool {
        matches!(test, Test::Stream { connections: 1, .. } | Test::PingPong { .. })
    }

    fn run(&mut self, test: Test, seconds: f64) -> Result<Sample> {
        let (kind, size) = match test {
            Test::Stream { size, .. } => ("bw", size),
            Test::PingPong { size } => ("lat", size),
        };
        let mut command = Command::new(&self.program);
        command.arg(kind).args(["--size", &size.to_string(), "--mtu", &self.mtu.to_string()]);
        command.args(["--seconds", &seconds.to_string(), "--core", &self.core.to_string()]);
        let limit = RUN_TIMEOUT_MARGIN + Duration::from_secs_f64(seconds);
        let result = process::run(&mut command, limit)?;
        ensure!(result.success(), "{:?}: {}", result.status, result.output.trim());
        let json = result.output.lines().find(|line| line.starts_with('{'));
        Sample::from_iwperf(json.context("no result")?)
    }
}

/// Returns the version of a package in `Cargo.lock`.
fn locked_version<'a>(lock: &'a str, package: &str) -> Option<&'a str> {
    let name = format!("name = \"{package}\"");
    let mut lines = lock.lines().skip_while(|line| *line != name);
    lines.nth(1)?.strip_prefix("version = \"")?.strip_suffix('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_that_of_the_lock_file() {
        let lock = "[[package]]\nname = \"smoltcp-x\"\nversion = \"1.0.0\"\n\n\
            [[package]]\nname = \"smoltcp\"\nversion = \"0.14.1\"\nsource = \"x\"\n";
        assert_eq!(locked_version(lock, "smoltcp"), Some("0.14.1"));
        assert_eq!(locked_version(lock, "absent"), None);
        let peer = SmoltcpLoop::new(PathBuf::new(), 0, 1500);
        assert!(peer.version().unwrap().contains('.'));
    }
}
