//! One end of testpmd: a process on a core, controlled through its prompt.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ferrowarp_proto::device::frame_capacity;

use crate::iwperf::last_line;

pub(crate) const PROGRAM: &str = "dpdk-testpmd";
pub(crate) const PACKAGE: &str = "dpdk-dev";
/// Buffers of a process: few, so that they stay in the cache.
const MBUF_COUNT: &str = "2048";
/// Bytes of a buffer before the frame.
const HEADROOM: usize = 128;
/// Time until the program does what it is told.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// Returns the reason why testpmd cannot run, if it cannot.
pub(crate) fn missing_prerequisite() -> Option<String> {
    (!ferrowarp_tests::process::is_installed(PROGRAM))
        .then(|| format!("{PROGRAM} is absent: apt-get install {PACKAGE}"))
}

/// How an end runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Role<'a> {
    pub(crate) mode: &'a str,
    pub(crate) vdev: &'a str,
    /// MTU in bytes; frames are longer by the Ethernet header.
    pub(crate) mtu: u16,
    pub(crate) core: usize,
    pub(crate) namespace: Option<&'a str>,
}

/// A running testpmd, killed on drop.
pub(crate) struct Testpmd {
    child: Child,
    prompt: ChildStdin,
    log: PathBuf,
}

impl Testpmd {
    /// Starts testpmd, without traffic. Its output goes to `log`.
    pub(crate) fn start(role: Role<'_>, log: &Path) -> Result<Self> {
        let Role { mode, vdev, mtu, core, namespace } = role;
        let mut command = match namespace {
            None => Command::new("stdbuf"),
            Some(name) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", name, "stdbuf"]);
                command
            }
        };
        // DPDK leaves its runtime folder behind: beside the log it is removed with that.
        if let Some(folder) = log.parent() {
            command.env("RUNTIME_DIRECTORY", folder);
        }
        // Its main thread only reads the prompt; it shares the core with the one that forwards.
        let frame = mtu + 14;
        command.args(["-oL", PROGRAM, "--lcores", &format!("0@{core},1@{core}"), "--in-memory"]);
        command.args(["--no-pci", "--no-telemetry", "--iova-mode=va", &format!("--vdev={vdev}")]);
        command.args(["--", "-i", &format!("--forward-mode={mode}")]);
        command.arg(format!("--total-num-mbufs={MBUF_COUNT}"));
        command.arg(format!("--mbuf-size={}", HEADROOM + frame_capacity(mtu)));
        if mode == "txonly" {
            // After the size of the buffers, with which it is compared at once.
            command.arg(format!("--txpkts={frame}"));
        }
        // No --max-pkt-len: the driver of memif, which carries what fits a buffer, refuses it.
        let file = File::create(log)?;
        command.stdin(Stdio::piped()).stdout(file.try_clone()?).stderr(file);
        let mut child = command.spawn().context("cannot start testpmd")?;
        let prompt = child.stdin.take().context("the input is a pipe")?;
        let mut testpmd = Self { child, prompt, log: log.to_owned() };
        // It goes on without its port if that cannot be started, and does not print this then.
        testpmd.wait_for("Checking link statuses...\nDone\n", 1)?;
        Ok(testpmd)
    }

    pub(crate) fn command(&mut self, command: &str) -> Result<()> {
        writeln!(self.prompt, "{command}").with_context(|| format!("testpmd: {command}"))
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the packets and bytes received so far, and the time at which they were.
    pub(crate) fn received(&mut self) -> Result<Received> {
        let count = self.output().matches(RX_PACKETS).count();
        let at = Instant::now();
        self.command("show port stats 0")?;
        // The line of the rates is printed after those of the counts.
        self.wait_for("Tx-pps:", count + 1)?;
        let (packets, bytes) =
            parse_received(&self.output()).context("testpmd printed no statistics")?;
        Ok(Received { at, packets, bytes })
    }

    fn output(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until the output has `text` so many times.
    fn wait_for(&mut self, text: &str, count: usize) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        while self.output().matches(text).count() < count {
            let ended = self.child.try_wait()?;
            let output = self.output();
            let last = last_line(&output);
            ensure!(ended.is_none(), "testpmd ended: {last}");
            ensure!(Instant::now() < deadline, "testpmd printed no {text:?}: {last}");
            sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Stops and ends receiver and sender.
    pub(crate) fn end(mut sink: Self, mut source: Self) -> Result<()> {
        // Both before one ends: its driver would unmap the rings that the other still polls.
        for end in [&mut source, &mut sink] {
            end.command("stop")?;
            // The last line of its statistics.
            end.wait_for("\nDone.\n", 1)?;
        }
        for end in [&mut source, &mut sink] {
            end.command("quit")?;
            let deadline = Instant::now() + TIMEOUT;
            while end.child.try_wait()?.is_none() {
                ensure!(Instant::now() < deadline, "testpmd does not end");
                sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        // No effect on a process that has exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a port has received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub(crate) at: Instant,
    pub(crate) packets: u64,
    /// Bytes of frames, Ethernet headers included.
    pub(crate) bytes: u64,
}

const RX_PACKETS: &str = "RX-missed";

/// Parses the last statistics in testpmd's output.
fn parse_received(output: &str) -> Option<(u64, u64)> {
    let line = output.lines().rfind(|line| line.contains(RX_PACKETS))?;
    let mut words = line.split_whitespace();
    let mut after =
        |name: &str| words.by_ref().skip_while(|word| *word != name).nth(1)?.parse().ok();
    Some((after("RX-packets:")?, after("RX-bytes:")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_statistics_are_parsed() {
        let output = "  RX-packets: 1    RX-missed: 0          RX-bytes:  2\n\
                      testpmd> show port stats 0\n\
                      \x20 RX-packets: 9076352    RX-missed: 0          RX-bytes:  13741596928\n";
        assert_eq!(parse_received(output), Some((9_076_352, 13_741_596_928)));
        assert_eq!(parse_received("testpmd> start\n"), None);
    }
}
