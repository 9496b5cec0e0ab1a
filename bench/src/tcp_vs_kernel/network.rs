//! Two ends in namespaces of their own, and the wire between them.

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
/// What Linux uses unless its distributor or owner chose otherwise.
const CONGESTION_CONTROL: &str = "cubic";
/// Frames that may wait in the kernel for the wire to take them: it counts what it drops, the
/// kernel would drop in silence.
const TAP_QUEUE: &str = "10000";
/// Exchanges of a connection that are not measured.
const EXCHANGES_WARM_UP: usize = 50;
/// What a run may take beyond its measured time.
const RUN_TIMEOUT_MARGIN: Duration = Duration::from_secs(60);
/// How long a program may take to get ready.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// What stands at an end of the wire.
enum Endpoint {
    /// The kernel, in a namespace of its own.
    Kernel(Namespace),
    /// Ours, which meets the wire at this socket.
    Ours(PathBuf),
}

impl Endpoint {
    /// The wire's device for it.
    fn device(&self, index: usize) -> String {
        match self {
            Self::Kernel(_) => format!("tap:{}", INTERFACES[index]),
            Self::Ours(socket) => format!("memif:{},server", socket.display()),
        }
    }

    /// `tcp-end` there, up to its own arguments.
    fn program(&self, plan: &Plan, wire: &Namespace, index: usize, arguments: &[&str]) -> Command {
        let namespace = match self {
            Self::Kernel(namespace) => namespace,
            Self::Ours(_) => wire,
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

/// Which core a program is to have.
#[derive(Clone, Copy)]
enum CoreRole {
    /// That of both ends.
    Ends,
    /// The wire's own.
    Wire,
}

fn netns_command(namespace: &Namespace, program: &Path, place: Option<CoreRole>) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace.name()]);
    if let (Some(place), Some([ends, wire])) = (place, cores()) {
        let core = match place {
            CoreRole::Ends => ends,
            CoreRole::Wire => wire,
        };
        command.args(["taskset", "-c", &core.to_string()]);
    }
    command.arg(program);
    command
}

/// A core for the ends and one for the wire. The wire always watches, so that a device that wakes
/// nobody is as fast as one that does; and an end that polls leaves its core to the other end,
/// which would otherwise wait for the wire's.
#[must_use]
pub fn cores() -> Option<[usize; 2]> {
    static CORES: LazyLock<Option<[usize; 2]>> = LazyLock::new(|| {
        let ids = core_affinity::get_core_ids().filter(|_| process::is_installed("taskset"))?;
        let [ends, wire, ..] = ids[..] else { return None };
        Some([ends.id, wire.id])
    });
    *CORES
}

/// A wire with an end on either side, nothing of which speaks yet.
struct TestNetwork {
    dir: TempDir,
    link_netns: Namespace,
    ends: [Endpoint; 2],
    iwlink: Running,
}

impl TestNetwork {
    fn create(plan: &Plan, cell: LinkParams, pairing: Pairing, seed: u64) -> Result<Self> {
        let dir = TempDir::new()?;
        // Namespaces of their own, also so that the kernel remembers nothing of earlier runs.
        let link_netns = Namespace::new()?;
        disable_ipv6(&link_netns)?;
        let end = |index: usize| -> Result<Endpoint> {
            Ok(if pairing.ours()[index] {
                Endpoint::Ours(dir.file(INTERFACES[index]))
            } else {
                Endpoint::Kernel(Namespace::new()?)
            })
        };
        let ends = [end(0)?, end(1)?];
        let wire = start_iwlink(plan, cell, seed, &link_netns, &ends, &dir)?;
        for (index, end) in ends.iter().enumerate() {
            if let Endpoint::Kernel(namespace) = end {
                move_tap(&link_netns, namespace, index)?;
            }
        }
        Ok(Self { dir, link_netns, ends, iwlink: wire })
    }

    /// Starts `tcp-end` at an end.
    fn start(&self, plan: &Plan, index: usize, name: &str, arguments: &[&str]) -> Result<Running> {
        let mut command = self.ends[index].program(plan, &self.link_netns, index, arguments);
        Ok(Running::start(&mut command, self.dir.file(name))?)
    }

    /// Ends the wire; what it counted.
    fn shut_down(self, programs: [Running; 2]) -> Result<Value> {
        // The wire ends while both still take what it brings: it has nothing to drop then.
        self.iwlink.interrupt()?;
        let ended = self.iwlink.finish(READY_TIMEOUT)?;
        ensure!(ended.success(), "iwlink: {}", ended.output.trim());
        drop(programs);
        let counters =
            std::fs::read_to_string(self.dir.file("wire.json")).context("no counters")?;
        Ok(serde_json::from_str(&counters)?)
    }
}

/// One run of a sender and a receiver.
///
/// # Errors
/// If something of it fails, hangs, or says nothing.
pub fn measure(plan: &Plan, cell: LinkParams, pairing: Pairing, seed: u64) -> Result<Sample> {
    let set = TestNetwork::create(plan, cell, pairing, seed)?;
    let warm_up_s = plan.warm_up_s(cell);
    let window = ["--warm-up", &warm_up_s.to_string(), "--seconds", &plan.seconds.to_string()];
    let receive = [&["receive"], &window[..]].concat();
    let mut receiver = set.start(plan, 1, "receiver", &receive)?;
    receiver.wait_for("listening", READY_TIMEOUT).context("the receiver")?;
    let sender = set.start(plan, 0, "sender", &["send"])?;
    let timeout = RUN_TIMEOUT_MARGIN + Duration::from_secs_f64(warm_up_s + plan.seconds);
    let error_text = || format!("sender: {}", sender.output().unwrap_or_default().trim());
    receiver.wait_for("octets", timeout).with_context(error_text)?;
    let line = last_json(&receiver.output()?)?;
    sample(&line, set.shut_down([sender, receiver])?)
}

/// One run of a requester and a responder: the microseconds that each exchange took.
///
/// # Errors
/// If something of it fails, hangs, or says nothing.
pub fn exchanges(
    plan: &Plan,
    cell: LinkParams,
    pairing: Pairing,
    seed: u64,
) -> Result<ExchangeSample> {
    let set = TestNetwork::create(plan, cell, pairing, seed)?;
    let mut responder = set.start(plan, 1, "responder", &["respond"])?;
    responder.wait_for("listening", READY_TIMEOUT).context("the responder")?;
    let (warm_up, count) = (EXCHANGES_WARM_UP.to_string(), plan.exchanges.to_string());
    let request = ["request", "--warm-up", &warm_up, "--count", &count];
    let mut requester = set.start(plan, 0, "requester", &request)?;
    // A second for each would be far too long.
    let timeout =
        RUN_TIMEOUT_MARGIN + Duration::from_secs((EXCHANGES_WARM_UP + plan.exchanges) as u64);
    let error_text = || format!("responder: {}", responder.output().unwrap_or_default().trim());
    requester.wait_for("us", timeout).with_context(error_text)?;
    let line = last_json(&requester.output()?)?;
    let us = line["us"].as_array().context("no times")?;
    let us = us.iter().map(|us| us.as_f64().context("no number")).collect::<Result<_>>()?;
    let wire = EmulatorStats::of(&set.shut_down([requester, responder])?);
    Ok(ExchangeSample {
        us,
        late_fraction: wire.late_fraction,
        latest_ms: wire.latest_ms,
        dropped: wire.dropped,
    })
}

fn start_iwlink(
    plan: &Plan,
    cell: LinkParams,
    seed: u64,
    home: &Namespace,
    ends: &[Endpoint; 2],
    dir: &TempDir,
) -> Result<Running> {
    let mut command = netns_command(home, &plan.iwlink, Some(CoreRole::Wire));
    if cores().is_some() {
        command.args(["--poll", "0"]);
    }
    command.args(["--left", &ends[0].device(0), "--right", &ends[1].device(1)]);
    command.args(["--delay", &format!("{}us", cell.rtt_ms * 500.0)]);
    command.args(["--loss", &format!("{}%", cell.loss_percent)]);
    command.args(["--rate", &plan.rate, "--queue", &plan.queue, "--seed", &seed.to_string()]);
    command.args(["--late", "500us"]);
    command.arg("--json").arg(dir.file("wire.json"));
    let mut wire = Running::start(&mut command, dir.file("wire"))?;
    wire.wait_for("seed", READY_TIMEOUT).context("iwlink")?;
    Ok(wire)
}

/// Keeps IPv6 from asking around on interfaces to come, which would come to the wire before it has
/// another end, and shift what befalls the frames that count.
fn disable_ipv6(namespace: &Namespace) -> Result<()> {
    let mut shell = netns_command(namespace, Path::new("sh"), None);
    let command = "for space in default all; do \
                       echo 1 > /proc/sys/net/ipv6/conf/$space/disable_ipv6; done";
    // Without IPv6 in the kernel there is nothing to silence.
    process::run(shell.args(["-c", command]), READY_TIMEOUT)?;
    Ok(())
}

/// Gives an end its interface, which the wire has made in its own namespace.
fn move_tap(home: &Namespace, namespace: &Namespace, index: usize) -> Result<()> {
    let (name, space) = (INTERFACES[index], namespace.name());
    ip(&["-n", home.name(), "link", "set", name, "netns", space])?;
    disable_ipv6(namespace)?;
    for setting in offload_commands(namespace, name) {
        setting.apply()?;
    }
    ip(&["-n", space, "link", "set", name, "txqueuelen", TAP_QUEUE])?;
    ip(&["-n", space, "addr", "add", &format!("{}/24", ADDRESSES[index]), "dev", name])?;
    ip(&["-n", space, "link", "set", name, "up"])?;
    // On the route: a namespace may not choose its default among all that the kernel has.
    let route = ["route", "replace", "198.18.64.0/24", "dev", name, "proto", "kernel"];
    let control = ["scope", "link", "src", ADDRESSES[index], "congctl", CONGESTION_CONTROL];
    ip(&[&["-n", space], &route[..], &control[..]].concat())?;
    Ok(())
}

/// One way to have the kernel send segments as they go over the wire.
struct OffloadCommand {
    command: Command,
}

impl OffloadCommand {
    fn apply(mut self) -> Result<()> {
        let ended = process::run(&mut self.command, READY_TIMEOUT)?;
        ensure!(ended.success(), "offloads: {}", ended.output.trim());
        Ok(())
    }
}

/// All ways there are on this machine.
fn offload_commands(namespace: &Namespace, name: &str) -> Vec<OffloadCommand> {
    let mut ways = Vec::new();
    if process::is_installed("ethtool") {
        let mut command = netns_command(namespace, Path::new("ethtool"), None);
        command.args(["-K", name, "tso", "off", "gso", "off", "gro", "off"]);
        ways.push(OffloadCommand { command });
    }
    let mut command = Command::new("ip");
    command.args(["-n", namespace.name(), "link", "set", name, "gso_max_segs", "1"]);
    ways.push(OffloadCommand { command });
    ways
}

/// How offloads are turned off, for the report.
#[must_use]
pub fn offload_description() -> &'static str {
    if process::is_installed("ethtool") {
        "off (ethtool: tso, gso, gro; gso_max_segs 1)"
    } else {
        "gso_max_segs 1 (ethtool is absent; a tap offers no TSO, and makes no GRO)"
    }
}

/// The last line that is an object.
fn last_json(output: &str) -> Result<Value> {
    let line = output.lines().rfind(|line| line.starts_with('{'));
    let line = line.ok_or_else(|| anyhow!("no figures in: {}", output.trim()))?;
    Ok(serde_json::from_str(line)?)
}

fn sample(line: &Value, wire: Value) -> Result<Sample> {
    let number = |name: &str| line[name].as_f64().with_context(|| format!("no {name}"));
    let (bytes, seconds) = (number("octets")?, number("seconds")?);
    let EmulatorStats { dropped, late_fraction: late, latest_ms } = EmulatorStats::of(&wire);
    Ok(Sample { gbit_s: bytes * 8e-9 / seconds, dropped, late_fraction: late, latest_ms, wire })
}

/// What the wire says of itself.
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

/// One measurement of connections set up per second, in a namespace of its own.
///
/// # Errors
/// If it fails, hangs, or says nothing.
pub fn connections(plan: &Plan, between: &str, batch: usize) -> Result<f64> {
    let namespace = Namespace::new()?;
    let mut command = netns_command(&namespace, &plan.tcp_end, None);
    command.args(["connections", between, "--count", &plan.connections.to_string()]);
    command.args(["--batch", &batch.to_string()]);
    let ended = process::run(&mut command, 2 * RUN_TIMEOUT_MARGIN)?;
    ensure!(ended.success(), "{}", ended.output.trim());
    last_json(&ended.output)?["connections_s"].as_f64().context("no rate")
}

/// What the kernel of this machine does by itself, name and value; read in a namespace of its
/// own, since that is where the ends live. Their routes say which congestion control.
///
/// # Errors
/// If a namespace cannot be made.
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
            let ended = process::run(command.arg(format!("/proc/sys/net/{name}")), READY_TIMEOUT)?;
            let value = if ended.success() {
                ended.output.split_whitespace().collect::<Vec<_>>().join(" ")
            } else {
                // Some are the same for all namespaces, and shown in the first alone.
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
