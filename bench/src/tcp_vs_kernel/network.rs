//! Two ends in namespaces of their own, and the emulated link between them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use ferrowarp_tests::netns::{Namespace, ip};
use ferrowarp_tests::process::{self, Running, TempDir};
use serde_json::Value;

use super::plan::{LinkParams, Pairing, Plan};
use super::sample::{ExchangeSample, Sample};

/// Addresses of sender and receiver (benchmark range).
const ADDRESSES: [&str; 2] = ["198.18.64.1", "198.18.64.2"];
const PORT: u16 = 4791;
/// The kernel's interfaces, of sender and receiver.
const INTERFACES: [&str; 2] = ["fwl0", "fwr0"];
/// Congestion control of the kernel: the default of Linux.
const CONGESTION_CONTROL: &str = "cubic";
/// Queue length of the tap in frames, too large to overflow: drops must be those of the emulator,
/// which counts them.
const TAP_QUEUE: &str = "10000";
/// Exchanges of a connection before the measurement.
const EXCHANGES_WARM_UP: usize = 50;
/// Time allowed for a run beyond its measured time.
const RUN_TIMEOUT_MARGIN: Duration = Duration::from_secs(60);
/// Timeout until a program is ready.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// An end of the link.
enum Endpoint {
    /// The kernel, in a namespace of its own.
    Kernel(Namespace),
    /// Ours, connected by this memif socket.
    Ours(PathBuf),
}

impl Endpoint {
    /// Returns the device of `iwlink` for this end.
    fn device(&self, index: usize) -> String {
        match self {
            Self::Kernel(_) => format!("tap:{}", INTERFACES[index]),
            Self::Ours(socket) => format!("memif:{},server", socket.display()),
        }
    }

    /// Builds the command line of `tcp-end` at this end.
    fn program(
        &self,
        plan: &Plan,
        link_netns: &Namespace,
        index: usize,
        arguments: &[&str],
    ) -> Command {
        let namespace = match self {
            Self::Kernel(namespace) => namespace,
            Self::Ours(_) => link_netns,
        };
        let mut command = netns_command(namespace, &plan.tcp_end, Some(CoreRole::Ends));
        command.args(arguments).arg(format!("{}:{PORT}", ADDRESSES[1]));
        if let Self::Ours(socket) = self {
            command.arg("--dev").arg(format!("memif:{},client", socket.display()));
            command.args(["--ip", ADDRESSES[index]]);
        }
        command
    }
}

/// Core assigned to a program.
#[derive(Clone, Copy)]
enum CoreRole {
    /// Core of both ends.
    Ends,
    /// Core of the emulator.
    Emulator,
}

fn netns_command(namespace: &Namespace, program: &Path, role: Option<CoreRole>) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace.name()]);
    if let (Some(role), Some([ends, emulator])) = (role, cores()) {
        let core = match role {
            CoreRole::Ends => ends,
            CoreRole::Emulator => emulator,
        };
        command.args(["taskset", "-c", &core.to_string()]);
    }
    command.arg(program);
    command
}

/// Returns a core for the ends and one for the emulator. The emulator busy-polls, so that a device
/// without interrupts is as fast as one with them. A polling end yields its core to the other end,
/// which needs no share of the emulator's core.
#[must_use]
pub fn cores() -> Option<[usize; 2]> {
    static CORES: LazyLock<Option<[usize; 2]>> = LazyLock::new(|| {
        let ids = core_affinity::get_core_ids().filter(|_| process::is_installed("taskset"))?;
        let [ends, emulator, ..] = ids[..] else { return None };
        Some([ends.id, emulator.id])
    });
    *CORES
}

/// An emulated link with its two ends, without any traffic yet.
struct TestNetwork {
    dir: TempDir,
    link_netns: Namespace,
    ends: [Endpoint; 2],
    iwlink: Running,
}

impl TestNetwork {
    fn create(plan: &Plan, link: LinkParams, pairing: Pairing, seed: u64) -> Result<Self> {
        let dir = process::temp_dir()?;
        // Fresh namespaces, so that the kernel has no cached metrics of earlier runs.
        let link_netns = Namespace::new()?;
        disable_ipv6(&link_netns)?;
        let end = |index: usize| -> Result<Endpoint> {
            Ok(if pairing.ours()[index] {
                Endpoint::Ours(dir.path().join(INTERFACES[index]))
            } else {
                Endpoint::Kernel(Namespace::new()?)
            })
        };
        let ends = [end(0)?, end(1)?];
        let iwlink = start_iwlink(plan, link, seed, &link_netns, &ends, &dir)?;
        for (index, end) in ends.iter().enumerate() {
            if let Endpoint::Kernel(namespace) = end {
                move_tap(&link_netns, namespace, index)?;
            }
        }
        Ok(Self { dir, link_netns, ends, iwlink })
    }

    /// Starts `tcp-end` at one end.
    fn start(&self, plan: &Plan, index: usize, name: &str, arguments: &[&str]) -> Result<Running> {
        let mut command = self.ends[index].program(plan, &self.link_netns, index, arguments);
        Ok(Running::start(&mut command, self.dir.path().join(name))?)
    }

    /// Stops the emulator, and returns its counters.
    fn shut_down(self, programs: [Running; 2]) -> Result<Value> {
        // It stops while both ends still receive, so that it has nothing to drop.
        self.iwlink.interrupt()?;
        let result = self.iwlink.finish(READY_TIMEOUT)?;
        ensure!(result.success(), "iwlink: {}", result.output.trim());
        drop(programs);
        let counters =
            std::fs::read_to_string(self.dir.path().join("wire.json")).context("no counters")?;
        Ok(serde_json::from_str(&counters)?)
    }
}

/// Runs a sender and a receiver once.
///
/// # Errors
/// If a program fails, hangs, or prints no result.
pub fn measure(plan: &Plan, link: LinkParams, pairing: Pairing, seed: u64) -> Result<Sample> {
    let network = TestNetwork::create(plan, link, pairing, seed)?;
    let warm_up_s = plan.warm_up_s(link);
    let window = ["--warm-up", &warm_up_s.to_string(), "--seconds", &plan.seconds.to_string()];
    let receive = [&["receive"], &window[..]].concat();
    let mut receiver = network.start(plan, 1, "receiver", &receive)?;
    receiver.wait_for("listening", READY_TIMEOUT).context("the receiver")?;
    let sender = network.start(plan, 0, "sender", &["send"])?;
    let timeout = RUN_TIMEOUT_MARGIN + Duration::from_secs_f64(warm_up_s + plan.seconds);
    let error_text = || format!("sender: {}", sender.output().unwrap_or_default().trim());
    receiver.wait_for("octets", timeout).with_context(error_text)?;
    let line = last_json(&receiver.output()?)?;
    sample(&line, network.shut_down([sender, receiver])?)
}

/// Runs a requester and a responder once, and returns the time of each exchange in microseconds.
///
/// # Errors
/// If a program fails, hangs, or prints no result.
pub fn exchanges(
    plan: &Plan,
    link: LinkParams,
    pairing: Pairing,
    seed: u64,
) -> Result<ExchangeSample> {
    let network = TestNetwork::create(plan, link, pairing, seed)?;
    let mut responder = network.start(plan, 1, "responder", &["respond"])?;
    responder.wait_for("listening", READY_TIMEOUT).context("the responder")?;
    let (warm_up, count) = (EXCHANGES_WARM_UP.to_string(), plan.exchanges.to_string());
    let request = ["request", "--warm-up", &warm_up, "--count", &count];
    let mut requester = network.start(plan, 0, "requester", &request)?;
    // A second per exchange is far more than needed.
    let timeout =
        RUN_TIMEOUT_MARGIN + Duration::from_secs((EXCHANGES_WARM_UP + plan.exchanges) as u64);
    let error_text = || format!("responder: {}", responder.output().unwrap_or_default().trim());
    requester.wait_for("us", timeout).with_context(error_text)?;
    let line = last_json(&requester.output()?)?;
    let us = line["us"].as_array().context("no times")?;
    let us = us.iter().map(|us| us.as_f64().context("no number")).collect::<Result<_>>()?;
    let stats = EmulatorStats::of(&network.shut_down([requester, responder])?);
    Ok(ExchangeSample {
        us,
        late_fraction: stats.late_fraction,
        latest_ms: stats.latest_ms,
        dropped: stats.dropped,
    })
}

fn start_iwlink(
    plan: &Plan,
    link: LinkParams,
    seed: u64,
    namespace: &Namespace,
    ends: &[Endpoint; 2],
    dir: &TempDir,
) -> Result<Running> {
    let mut command = netns_command(namespace, &plan.iwlink, Some(CoreRole::Emulator));
    if cores().is_some() {
        command.args(["--poll", "0"]);
    }
    command.args(["--left", &ends[0].device(0), "--right", &ends[1].device(1)]);
    command.args(["--delay", &format!("{}us", link.rtt_ms * 500.0)]);
    command.args(["--loss", &format!("{}%", link.loss_percent)]);
    command.args(["--rate", &plan.rate, "--queue", &plan.queue, "--seed", &seed.to_string()]);
    command.args(["--late", "500us"]);
    command.arg("--json").arg(dir.path().join("wire.json"));
    let mut iwlink = Running::start(&mut command, dir.path().join("wire"))?;
    iwlink.wait_for("seed", READY_TIMEOUT).context("iwlink")?;
    Ok(iwlink)
}

/// Disables IPv6 on future interfaces: its solicitations would reach the emulator before it has its
/// second end, and shift the random faults of the measured frames.
fn disable_ipv6(namespace: &Namespace) -> Result<()> {
    let mut shell = netns_command(namespace, Path::new("sh"), None);
    let command = "for space in default all; do \
                       echo 1 > /proc/sys/net/ipv6/conf/$space/disable_ipv6; done";
    // Without IPv6 in the kernel there is nothing to silence.
    process::run(shell.args(["-c", command]), READY_TIMEOUT)?;
    Ok(())
}

/// Moves the tap that iwlink created into the namespace of an end, and configures it.
fn move_tap(link_netns: &Namespace, namespace: &Namespace, index: usize) -> Result<()> {
    let (name, space) = (INTERFACES[index], namespace.name());
    ip(&["-n", link_netns.name(), "link", "set", name, "netns", space])?;
    disable_ipv6(namespace)?;
    for setting in offload_commands(namespace, name) {
        setting.apply()?;
    }
    ip(&["-n", space, "link", "set", name, "txqueuelen", TAP_QUEUE])?;
    ip(&["-n", space, "addr", "add", &format!("{}/24", ADDRESSES[index]), "dev", name])?;
    ip(&["-n", space, "link", "set", name, "up"])?;
    // On the route: a namespace may not set every congestion control as its default.
    let route = ["route", "replace", "198.18.64.0/24", "dev", name, "proto", "kernel"];
    let control = ["scope", "link", "src", ADDRESSES[index], "congctl", CONGESTION_CONTROL];
    ip(&[&["-n", space], &route[..], &control[..]].concat())?;
    Ok(())
}

/// A command that disables segmentation offloads of the kernel.
struct OffloadCommand {
    command: Command,
}

impl OffloadCommand {
    fn apply(mut self) -> Result<()> {
        let result = process::run(&mut self.command, READY_TIMEOUT)?;
        ensure!(result.success(), "offloads: {}", result.output.trim());
        Ok(())
    }
}

/// Returns all such commands available on this machine.
fn offload_commands(namespace: &Namespace, name: &str) -> Vec<OffloadCommand> {
    let mut commands = Vec::new();
    if process::is_installed("ethtool") {
        let mut command = netns_command(namespace, Path::new("ethtool"), None);
        command.args(["-K", name, "tso", "off", "gso", "off", "gro", "off"]);
        commands.push(OffloadCommand { command });
    }
    let mut command = Command::new("ip");
    command.args(["-n", namespace.name(), "link", "set", name, "gso_max_segs", "1"]);
    commands.push(OffloadCommand { command });
    commands
}

/// Returns how offloads are disabled, for the report.
#[must_use]
pub fn offload_description() -> &'static str {
    if process::is_installed("ethtool") {
        "off (ethtool: tso, gso, gro; gso_max_segs 1)"
    } else {
        "gso_max_segs 1 (ethtool is absent; a tap offers no TSO, and makes no GRO)"
    }
}

/// Parses the last line that is a JSON object.
fn last_json(output: &str) -> Result<Value> {
    let line = output.lines().rfind(|line| line.starts_with('{'));
    let line = line.ok_or_else(|| anyhow!("no results in: {}", output.trim()))?;
    Ok(serde_json::from_str(line)?)
}

fn sample(line: &Value, wire: Value) -> Result<Sample> {
    let number = |name: &str| line[name].as_f64().with_context(|| format!("no {name}"));
    let (bytes, seconds) = (number("octets")?, number("seconds")?);
    let EmulatorStats { dropped, late_fraction, latest_ms } = EmulatorStats::of(&wire);
    Ok(Sample { gbit_s: bytes * 8e-9 / seconds, dropped, late_fraction, latest_ms, wire })
}

/// Errors of the emulator, from its counters.
struct EmulatorStats {
    dropped: u64,
    late_fraction: f64,
    latest_ms: f64,
}

impl EmulatorStats {
    fn of(wire: &Value) -> Self {
        let total = |pointer: &str| -> u64 {
            (0..2).filter_map(|way| wire.pointer(&format!("/{way}/{pointer}"))?.as_u64()).sum()
        };
        let latest_us = (0..2).filter_map(|way| wire[way]["own"]["latest_us"].as_f64());
        Self {
            dropped: ["no_buffer", "port_full", "port_lost"]
                .map(|name| total(&format!("own/{name}")))
                .into_iter()
                .sum(),
            late_fraction: total("own/late") as f64 / total("frames_out").max(1) as f64,
            latest_ms: latest_us.fold(0.0, f64::max) / 1000.0,
        }
    }
}

/// Measures connections set up per second once, in a namespace of its own.
///
/// # Errors
/// If the program fails, hangs, or prints no result.
pub fn connections(plan: &Plan, between: &str, batch: usize) -> Result<f64> {
    let namespace = Namespace::new()?;
    let mut command = netns_command(&namespace, &plan.tcp_end, None);
    command.args(["connections", between, "--count", &plan.connections.to_string()]);
    command.args(["--batch", &batch.to_string()]);
    let result = process::run(&mut command, 2 * RUN_TIMEOUT_MARGIN)?;
    ensure!(result.success(), "{}", result.output.trim());
    last_json(&result.output)?["connections_s"].as_f64().context("no rate")
}

/// Returns TCP settings of the kernel, name and value, read in a fresh namespace like those of the
/// ends. The congestion control of the ends is set on their routes.
///
/// # Errors
/// If a namespace cannot be created.
pub fn kernel_settings() -> Result<Vec<(String, String)>> {
    const NAMES: [&str; 9] = [
        "ipv4/tcp_congestion_control",
        "ipv4/tcp_sack",
        "ipv4/tcp_dsack",
        "ipv4/tcp_recovery",
        "ipv4/tcp_timestamps",
        "ipv4/tcp_ecn",
        "ipv4/tcp_rmem",
        "ipv4/tcp_wmem",
        "core/default_qdisc",
    ];
    let namespace = Namespace::new()?;
    NAMES
        .into_iter()
        .map(|name| {
            let mut command = netns_command(&namespace, Path::new("cat"), None);
            let result = process::run(command.arg(format!("/proc/sys/net/{name}")), READY_TIMEOUT)?;
            let value = if result.success() {
                result.output.split_whitespace().collect::<Vec<_>>().join(" ")
            } else {
                // Some are global, and exist only in the initial namespace.
                let text = std::fs::read_to_string(format!("/proc/sys/net/{name}"));
                text.unwrap_or_else(|_| "absent".to_owned()).trim().to_owned()
            };
            Ok((name.replace('/', "."), value))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_uses_last_json_line_and_emulator_counters() {
        let line = last_json("listening\n{\"octets\": 250000000, \"seconds\": 2.0}\n").unwrap();
        let way = |late: u64| {
            serde_json::json!({"frames_out": 1000, "own": {
                "late": late, "latest_us": 700 + late,
                "no_buffer": 0, "port_full": 1, "port_lost": 2,
            }})
        };
        let sample = sample(&line, serde_json::json!([way(0), way(100)])).unwrap();
        assert!((sample.gbit_s - 1.0).abs() < 1e-9);
        assert!((sample.late_fraction - 0.05).abs() < 1e-9);
        assert!((sample.latest_ms - 0.8).abs() < 1e-9);
        assert_eq!(sample.dropped, 6);
        assert!(sample.is_invalid());
        assert!(last_json("listening").is_err());
    }
}
