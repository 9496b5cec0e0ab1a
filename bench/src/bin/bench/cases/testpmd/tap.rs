//! Over `tap`: packets per second through two interfaces and a bridge of the kernel.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ferrowarp_tests::netns::{Namespace, ip};
use ferrowarp_tests::process::Running;

use super::WARM_UP;
use super::program::{Role, TIMEOUT, Testpmd};
use crate::iwperf::last_line;
use crate::launch::in_namespace;
use crate::runner::Figures;

/// The interfaces: of the receiver, of the sender.
const INTERFACES: [&str; 2] = ["fwb0", "fwb1"];
const BRIDGE: &str = "fwbr";
/// Destination of testpmd's frames unless told otherwise: the peer of its port 0.
const TESTPMD_PEER: &str = "02:00:00:00:00:00";
/// Addresses of server and client (benchmark range).
const ADDRESSES: [&str; 2] = ["198.18.65.1", "198.18.65.2"];
/// DPDK's tap driver sends no longer packets.
const MTU: u16 = 1500;
/// Packets that show that traffic flows.
const FLOWING: u64 = 1000;
/// Time for which the stack transmits beyond the measurement. On a busy machine that begins late,
/// and with the end of the transfer the interfaces are gone.
const MARGIN: Duration = Duration::from_secs(3);

/// Packets at the receiver's interface.
pub(crate) const PACKETS: &str = "M packets/s, both directions";

/// Creates a namespace with a bridge.
fn bridged() -> Result<Namespace> {
    let namespace = Namespace::new()?;
    ip(&["-n", namespace.name(), "link", "add", BRIDGE, "up", "type", "bridge"])?;
    Ok(namespace)
}

/// Waits for the interface of an end, and adds it to the bridge.
fn attach(namespace: &Namespace, end: usize) -> Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    let link = ["link", "set", INTERFACES[end], "master", BRIDGE, "up"];
    while let Err(error) = ip(&[&["-n", namespace.name()], &link[..]].concat()) {
        ensure!(Instant::now() < deadline, "no interface: {error}");
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Measures testpmd, receiver and sender on these cores.
pub(crate) fn measure_testpmd(folder: &Path, cores: [usize; 2], seconds: f64) -> Result<Figures> {
    let network = bridged()?;
    let name = network.name();
    let start = |mode, end: usize| {
        let vdev = &format!("net_tap0,iface={}", INTERFACES[end]);
        Testpmd::start(
            Role { mode, vdev, mtu: MTU, core: cores[end], namespace: Some(name) },
            folder,
        )
    };
    let mut sink = start("rxonly", 0)?;
    let mut source = start("txonly", 1)?;
    attach(&network, 0)?;
    attach(&network, 1)?;
    // The bridge knows where the receiver is, as it learns from the stack's ARP.
    let entry = ["fdb", "replace", TESTPMD_PEER, "dev", INTERFACES[0], "master", "static"];
    in_namespace(name, "bridge", &entry)?;
    sink.command("start")?;
    source.command("start")?;
    let rate = measure_flow(sink.id(), seconds)?;
    Testpmd::end(sink, source)?;
    Ok(rate)
}

/// Measures `iwperf write-bw`, server and client on these cores.
pub(crate) fn measure_iwperf(
    program: &Path,
    folder: &Path,
    cores: [usize; 2],
    seconds: f64,
) -> Result<Figures> {
    let network = bridged()?;
    let duration = Duration::from_secs_f64(seconds) + WARM_UP + MARGIN;
    let start = |end: usize, arguments: &[&str]| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", network.name(), "taskset", "-c", &cores[end].to_string()]);
        command.arg(program).args(arguments).arg(format!("--dev=tap:{}", INTERFACES[end]));
        command.arg(format!("--ip={}/24", ADDRESSES[end]));
        let process =
            Running::start(&mut command, folder.join(arguments[0]).with_extension("log"))?;
        attach(&network, end)?;
        anyhow::Ok(process)
    };
    let server = start(0, &["server", "--once"])?;
    let for_seconds = duration.as_secs_f64().to_string();
    let client = start(1, &["write-bw", ADDRESSES[0], "--duration", &for_seconds])?;
    let rate = measure_flow(server.id(), seconds);
    for (end, timeout) in [(client, TIMEOUT + duration), (server, TIMEOUT)] {
        let ended = end.finish(timeout)?;
        ensure!(ended.success(), "iwperf: {}", last_line(&ended.output));
    }
    rate
}

/// Measures the packets at the receiver's interface, in the namespace of the process `pid`, once
/// they flow.
fn measure_flow(pid: u32, seconds: f64) -> Result<Figures> {
    let read = || -> Result<(Instant, u64)> {
        let table = fs::read_to_string(format!("/proc/{pid}/net/dev"))?;
        Ok((Instant::now(), packets(&table, INTERFACES[0]).context("the interface is gone")?))
    };
    let (begun, first) = read()?;
    while read()?.1 < first + FLOWING {
        ensure!(begun.elapsed() < TIMEOUT, "no packets arrive");
        sleep(Duration::from_millis(5));
    }
    sleep(WARM_UP);
    let (start, before) = read()?;
    sleep(Duration::from_secs_f64(seconds));
    let (end, after) = read()?;
    let per_second = (after - before) as f64 / (end - start).as_secs_f64();
    Ok(Figures::from([(PACKETS, per_second * 1e-6)]))
}

/// Returns the packets of an interface in both directions, from `/proc/net/dev` (proc_pid_net(5)).
fn packets(table: &str, interface: &str) -> Option<u64> {
    let row =
        table.lines().find_map(|line| line.trim().strip_prefix(interface)?.strip_prefix(':'))?;
    // Received: bytes, packets and six others; sent: bytes, packets.
    let number = |index| row.split_whitespace().nth(index)?.parse::<u64>().ok();
    Some(number(1)? + number(9)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_an_interface_are_found() {
        let table = "Inter-|   Receive            |  Transmit\n face |bytes packets\n\
            \x20 fwb0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n\
            \x20 fwb1: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n";
        assert_eq!(packets(table, "fwb0"), Some(12));
        assert_eq!(packets(table, "fwb2"), None);
    }
}
