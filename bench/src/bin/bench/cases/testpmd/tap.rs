//! Over `tap`: packets per second through two interfaces and a bridge of the kernel.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ferrowarp_tests::netns::{Namespace, ip};
use ferrowarp_tests::process::Running;

use super::program::{Role, TIMEOUT, Testpmd};
use crate::iwperf;
use crate::runner::Figures;

/// The interfaces: of the receiver, of the sender.
const INTERFACES: [&str; 2] = ["fwb0", "fwb1"];
const BRIDGE: &str = "fwbr";
/// Destination of testpmd's frames unless told otherwise: the peer of its port 0.
const TESTPMD_PEER: &str = "02:00:00:00:00:00";
/// Addresses of server and client (benchmark range).
const ADDRESSES: [&str; 2] = ["198.18.65.1", "198.18.65.2"];
/// DPDK's tap driver sends no longer packets.
pub(crate) const MTU: u16 = 1500;
/// Packets that show that traffic flows.
const FLOWING: u64 = 1000;
/// Time before the measurement, when traffic flows.
const WARM_UP: Duration = Duration::from_millis(300);
/// Time for which the stack transmits beyond the measurement. On a busy machine that begins late,
/// and with the end of the transfer the interfaces are gone.
const MARGIN: Duration = Duration::from_secs(3);

/// Packets at the receiver's interface: both directions, to the receiver; bytes of frames to the
/// receiver; payload of the stack.
pub(crate) const PACKETS: &str = "M packets/s, both directions";
pub(crate) const TO_RECEIVER: &str = "M packets/s to the receiver";
pub(crate) const FRAMES: &str = "Gb/s, frames";
pub(crate) const PAYLOAD: &str = "Gb/s, payload";

/// A namespace with a bridge.
struct Network(Namespace);

impl Network {
    fn new() -> Result<Self> {
        let namespace = Namespace::new()?;
        let name = namespace.name();
        let ipv6 = ["all", "default"].map(|it| format!("net.ipv6.conf.{it}.disable_ipv6=1"));
        let mut command = Command::new("ip");
        command.args(["netns", "exec", name, "sysctl", "-qw", &ipv6[0], &ipv6[1]]);
        // A kernel without IPv6 needs no switching off.
        let _ = ferrowarp_tests::process::run(&mut command, TIMEOUT);
        ip(&["-n", name, "link", "add", BRIDGE, "type", "bridge"])?;
        ip(&["-n", name, "link", "set", BRIDGE, "up"])?;
        Ok(Self(namespace))
    }

    /// Waits for the interface of an end, and adds it to the bridge.
    fn attach(&self, end: usize) -> Result<()> {
        let name = self.0.name();
        let deadline = Instant::now() + TIMEOUT;
        let master = ["link", "set", INTERFACES[end], "master", BRIDGE, "up"];
        while let Err(error) = ip(&[&["-n", name], &master[..]].concat()) {
            ensure!(Instant::now() < deadline, "no interface: {error}");
            sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn program(&self, program: &Path, core: usize) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.0.name(), "taskset", "-c", &core.to_string()]);
        command.arg(program);
        command
    }
}

/// Measures testpmd, receiver and sender on these cores.
pub(crate) fn measure_testpmd(folder: &Path, cores: [usize; 2], seconds: f64) -> Result<Figures> {
    let network = Network::new()?;
    let namespace = Some(network.0.name());
    let vdevs = INTERFACES.map(|name| format!("net_tap0,iface={name}"));
    let start = |end: usize, mode, log| {
        let role = Role { mode, vdev: &vdevs[end], mtu: MTU, core: cores[end], namespace };
        Testpmd::start(role, &folder.join(log))
    };
    let mut sink = start(0, "rxonly", "rxonly.log")?;
    let mut source = start(1, "txonly", "txonly.log")?;
    network.attach(0)?;
    network.attach(1)?;
    // The bridge knows where the receiver is, as it learns from the stack's ARP.
    let mut command = Command::new("ip");
    command.args(["netns", "exec", network.0.name(), "bridge", "fdb", "replace", TESTPMD_PEER]);
    command.args(["dev", INTERFACES[0], "master", "static"]);
    let result = ferrowarp_tests::process::run(&mut command, TIMEOUT)?;
    ensure!(result.success(), "bridge fdb: {}", result.output.trim());
    sink.command("start")?;
    source.command("start")?;
    let rates = measure_flow(sink.id(), seconds)?;
    Testpmd::end(sink, source)?;
    Ok(rates)
}

/// Measures `iwperf write-bw`, server and client on these cores.
pub(crate) fn measure_iwperf(
    program: &Path,
    folder: &Path,
    cores: [usize; 2],
    seconds: f64,
) -> Result<Figures> {
    let network = Network::new()?;
    let device = |end: usize| format!("tap:{}", INTERFACES[end]);
    let address = |end: usize| format!("{}/24", ADDRESSES[end]);
    let mut server = network.program(program, cores[0]);
    server.args(["server", "--once", "--dev", &device(0), "--ip", &address(0)]);
    let server = Running::start(&mut server, folder.join("server.log"))?;
    network.attach(0)?;
    let json = folder.join("tap.json");
    let _ = fs::remove_file(&json);
    let mut client = network.program(program, cores[1]);
    client.args(["write-bw", ADDRESSES[0], "--dev", &device(1), "--ip", &address(1)]);
    let duration = Duration::from_secs_f64(seconds) + WARM_UP + MARGIN;
    let seconds_of_client = duration.as_secs_f64().to_string();
    client.args(["--duration", &seconds_of_client]).arg("--json").arg(&json);
    let client = Running::start(&mut client, folder.join("client.log"))?;
    network.attach(1)?;
    let rates = measure_flow(server.id(), seconds);
    let result = client.finish(TIMEOUT + duration)?;
    ensure!(result.success(), "iwperf: {}", iwperf::last_line(&result.output));
    let served = server.finish(TIMEOUT)?;
    ensure!(served.success(), "iwperf server: {}", iwperf::last_line(&served.output));
    let mut rates = rates?;
    rates.insert(PAYLOAD, iwperf::parse(&fs::read_to_string(&json)?, None)?["Gb/s"]);
    Ok(rates)
}

/// Measures the packets at the receiver's interface, in the namespace of the process `pid`, once
/// they flow.
fn measure_flow(pid: u32, seconds: f64) -> Result<Figures> {
    let read = || -> Result<(Instant, [u64; 3])> {
        let table = fs::read_to_string(format!("/proc/{pid}/net/dev"))?;
        let counters = counters(&table, INTERFACES[0]).context("the interface is gone")?;
        Ok((Instant::now(), counters))
    };
    let first = read()?.1;
    let deadline = Instant::now() + TIMEOUT;
    while read()?.1[0] < first[0] + FLOWING {
        ensure!(Instant::now() < deadline, "no packets arrive");
        sleep(Duration::from_millis(5));
    }
    sleep(WARM_UP);
    let (start, before) = read()?;
    sleep(Duration::from_secs_f64(seconds));
    let (end, after) = read()?;
    let per_us =
        |index: usize| (after[index] - before[index]) as f64 * 1e-6 / (end - start).as_secs_f64();
    Ok(Figures::from([
        (PACKETS, per_us(0) + per_us(1)),
        (TO_RECEIVER, per_us(0)),
        (FRAMES, per_us(2) * 8e-3),
    ]))
}

/// Returns what an interface has sent to its program in packets, received from it in packets, and
/// sent in bytes, from `/proc/net/dev` (`man 5 proc`).
fn counters(table: &str, interface: &str) -> Option<[u64; 3]> {
    let line = table.lines().find_map(|line| {
        let (name, rest) = line.split_once(':')?;
        (name.trim() == interface).then_some(rest)
    })?;
    // Received: bytes, packets and six others; sent: bytes, packets.
    let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    Some([*numbers.get(9)?, *numbers.get(1)?, *numbers.get(8)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_an_interface_are_found() {
        let table = "Inter-|   Receive            |  Transmit\n face |bytes packets\n\
            \x20 fwb0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n\
            \x20 fwb1: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n";
        assert_eq!(counters(table, "fwb0"), Some([10, 2, 9]));
        assert_eq!(counters(table, "fwb2"), None);
    }
}
