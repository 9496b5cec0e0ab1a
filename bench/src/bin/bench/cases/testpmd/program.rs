//! One end of testpmd: a process on a core, controlled through its prompt.

use std::io::Write as _;
use std::path::Path;
use std::process::{ChildStdin, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ferrowarp_proto::device::frame_capacity;
use ferrowarp_tests::process::Running;

use crate::iwperf::last_line;

pub(crate) const PROGRAM: &str = "dpdk-testpmd";
/// Buffers of a process: few, so that they stay in the cache.
const MBUF_COUNT: &str = "2048";
/// Bytes of a buffer before the frame.
const HEADROOM: usize = 128;
/// Time until the program does what it is told.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

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
    process: Running,
    prompt: ChildStdin,
}

impl Testpmd {
    /// Starts testpmd, without traffic. Its files go to `folder`.
    pub(crate) fn start(role: Role<'_>, folder: &Path) -> Result<Self> {
        let Role { mode, vdev, mtu, core, namespace } = role;
        let mut command = Command::new("stdbuf");
        if let Some(name) = namespace {
            command = Command::new("ip");
            command.args(["netns", "exec", name, "stdbuf"]);
        }
        // DPDK leaves its runtime folder behind: beside the log it is removed with that.
        command.env("RUNTIME_DIRECTORY", folder);
        // Its main thread only reads the prompt; it shares the core with the one that forwards.
        command.args(["-oL", PROGRAM, "--lcores", &format!("0@{core},1@{core}"), "--in-memory"]);
        command.args(["--no-pci", "--no-telemetry", "--iova-mode=va", &format!("--vdev={vdev}")]);
        command.args(["--", "-i", &format!("--forward-mode={mode}")]);
        command.arg(format!("--total-num-mbufs={MBUF_COUNT}"));
        command.arg(format!("--mbuf-size={}", HEADROOM + frame_capacity(mtu)));
        if mode == "txonly" {
            // After the size of the buffers, with which it is compared at once.
            command.arg(format!("--txpkts={}", mtu + 14));
        }
        // No --max-pkt-len: the driver of memif, which carries what fits a buffer, refuses it.
        let log = folder.join(mode).with_extension("log");
        let (mut process, prompt) =
            Running::start_with_input(&mut command, log).context("cannot start testpmd")?;
        // It goes on without its port if that cannot be started, and does not print this then.
        process.wait_for("Checking link statuses...\nDone\n", TIMEOUT)?;
        Ok(Self { process, prompt })
    }

    pub(crate) fn command(&mut self, command: &str) -> Result<()> {
        writeln!(self.prompt, "{command}").with_context(|| format!("testpmd: {command}"))
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns the bits of whole frames received per second since the last call.
    pub(crate) fn received_per_second(&mut self) -> Result<u64> {
        let printed = self.process.output()?.len();
        self.command("show port stats 0")?;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let output = self.process.output()?;
            if let Some(rate) = received_rate(&output[printed..]) {
                return Ok(rate);
            }
            ensure!(Instant::now() < deadline, "testpmd: no statistics: {}", last_line(&output));
            sleep(Duration::from_millis(2));
        }
    }

    /// Stops and ends receiver and sender.
    pub(crate) fn end(mut sink: Self, mut source: Self) -> Result<()> {
        // Both before one ends: its driver would unmap the rings that the other still polls.
        for end in [&mut source, &mut sink] {
            end.command("stop")?;
            // The last line of its statistics.
            end.process.wait_for("\nDone.\n", TIMEOUT)?;
        }
        for mut end in [source, sink] {
            end.command("quit")?;
            ensure!(end.process.finish(TIMEOUT)?.status.is_some(), "testpmd does not end");
        }
        Ok(())
    }
}

/// Parses testpmd's statistics, once the line after that of the rate is printed.
fn received_rate(output: &str) -> Option<u64> {
    let (_, rate) = output.split_once("Rx-bps:")?;
    let (rate, _) = rate.split_once("Tx-pps:")?;
    rate.trim().parse().ok()
}
