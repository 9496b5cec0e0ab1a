//! The stack next to its peers: UCX, libfabric, iperf3 and sockperf over the kernel's TCP,
//! smoltcp's sockets over the same `ring`, Linux's siw in a guest.
//!
//! A [`Peer`] runs one [`Test`] at a time; ours are peers as the others are. Each has a file, which
//! starts it and reads its output.

mod guest;
pub(crate) mod kernel;
pub(crate) mod ours;
mod smoltcp;
mod smoltcp_device;

use std::rc::Rc;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use ferrowarp_tests::netns;

use self::guest::Stack;
use self::kernel::Program;
use super::{Case, Setup};
use crate::iwperf::Place;
use crate::launch::Network;
use crate::model::Limit::{self, AtLeast, AtMost};
use crate::model::{Report, size_name};
use crate::plot::Panel;
use crate::runner::{Figures, Group};

pub(crate) const CASE: Case =
    Case { name: "peers", title: "Next to other stacks", rounds: 5, seconds: 1.0, quick: (3, 0.3) };

#[derive(Args)]
pub(crate) struct Options {
    /// Peers to measure; ours is always next to them
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [
        Family::Ucx, Family::Libfabric, Family::Iperf3, Family::Sockperf, Family::Smoltcp,
        Family::Siw,
    ])]
    peers: Vec<Family>,
    /// Networks of the kernel's TCP: its loopback, veth pairs with the MTUs of ours
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Wire::Loopback, Wire::Veth])]
    networks: Vec<Wire>,
    /// Bytes per message, the shortest first [default: 64 to 1 MiB; quick: four of them]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..))]
    sizes: Vec<u64>,
    /// Numbers of queue pairs or connections for the shortest message [default: 1,4,16,64; quick:
    /// 1,16]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    connections: Vec<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Family {
    /// ucx_perftest over TCP and shared memory
    Ucx,
    Libfabric,
    Iperf3,
    /// Messages and ping-pong over the kernel's TCP
    Sockperf,
    /// smoltcp's sockets over ring, on one core
    Smoltcp,
    /// Linux's software iWARP, in a guest
    Siw,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Wire {
    /// Loopback interface: MTU 65,536, neither segments nor checksums
    Loopback,
    /// veth pair between two namespaces, MTU 1,500 and 9,000, offloads off
    Veth,
}

/// What one run measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Test {
    /// Messages of `size` bytes in one direction by so many queue pairs or connections, as many
    /// outstanding as the program likes.
    Stream { size: u64, connections: u16 },
    /// Ping-pong of messages of `size` bytes, one at a time.
    PingPong { size: u64 },
}

impl Test {
    fn name(self) -> String {
        match self {
            Self::Stream { size, connections: 1 } => format!("stream of {}", size_name(size)),
            Self::Stream { size, connections } => {
                format!("stream of {} by {connections}", size_name(size))
            }
            Self::PingPong { size } => format!("ping-pong of {}", size_name(size)),
        }
    }

    /// Returns the figures that are compared.
    fn figures(self) -> &'static [&'static str] {
        match self {
            Self::Stream { size: 0..1024, .. } => &["M/s"],
            Self::Stream { .. } => &["Gb/s"],
            Self::PingPong { .. } => &LATENCIES,
        }
    }
}

/// Half a round trip.
const LATENCIES: [&str; 3] = ["us, p50", "us, p99", "us, p99.9"];

/// A program, or a way to run it, that is measured.
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    /// Program, operation, transport and options.
    pub(crate) about: String,
    pub(crate) is_ours: bool,
    /// Version, or the reason why it cannot run: the package to install.
    pub(crate) version: Result<String, String>,
    pub(crate) supports: Box<dyn Fn(Test) -> bool>,
    /// Runs a test for about so many seconds.
    pub(crate) run: Box<dyn Fn(Test, f64) -> Result<Figures>>,
}

/// Returns the version of this stack.
pub(crate) fn own_version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}

/// Returns the figures of a stream: messages per second, of `size` bytes.
pub(crate) fn rate(per_second: f64, size: u64) -> Figures {
    Figures::from([("Gb/s", per_second * size as f64 * 8e-9), ("M/s", per_second * 1e-6)])
}

/// Nothing is to be reached next to the other peers.
const fn no_limit(_: Test, _: &str) -> Option<Limit> {
    None
}

/// Returns the title of the table of two processes over a network.
fn two_processes(network: &str) -> String {
    format!("Two processes on two cores next to peers over {network}")
}

/// Returns the groups of a setting, a test each, and appends which peers were compared. `limit`
/// returns the limit of a figure of a test.
fn compare(
    table: &str,
    tests: &[Test],
    peers: Vec<Peer>,
    limit: fn(Test, &str) -> Option<Limit>,
    notes: &mut Vec<String>,
) -> Vec<Group> {
    let peers = present(table, peers, notes);
    let group =
        |&test: &Test| group(table, &test.name(), test, &peers, |figure| limit(test, figure));
    tests.iter().map(group).collect()
}

/// Returns the peers that are installed, and appends which those are.
pub(crate) fn present(
    table: &str,
    peers: impl IntoIterator<Item = Peer>,
    notes: &mut Vec<String>,
) -> Vec<Rc<Peer>> {
    let peers = peers.into_iter().inspect(|Peer { name, about, version, .. }| {
        notes.push(match version {
            Ok(version) => format!("{table}: {name} is {about}; version {version}."),
            Err(reason) => format!("{table}: {name} was not measured: {reason}."),
        });
    });
    peers.filter(|peer| peer.version.is_ok()).map(Rc::new).collect()
}

/// Returns the group of a test: each of ours next to each of the others, of those that support it.
pub(crate) fn group(
    table: &str,
    name: &str,
    test: Test,
    peers: &[Rc<Peer>],
    limit: impl Fn(&str) -> Option<Limit>,
) -> Group {
    let able: Vec<_> = peers.iter().filter(|peer| (peer.supports)(test)).collect();
    let mut group = Group::new(table, name);
    for &peer in &able {
        let own = Rc::clone(peer);
        group = group.contender(peer.name, move |seconds| (own.run)(test, seconds));
    }
    let (ours, others): (Vec<_>, Vec<_>) = able.into_iter().partition(|peer| peer.is_ours);
    for figure in test.figures() {
        for own in &ours {
            for other in &others {
                group = group.compare(own.name, other.name, figure, limit(figure));
            }
        }
    }
    group
}

/// Returns the limit next to smoltcp's sockets, for 64 bytes.
fn next_to_smoltcp(test: Test, figure: &str) -> Option<Limit> {
    match (test, figure) {
        (Test::Stream { size: 64, .. }, "M/s") => Some(AtLeast(1.0)),
        (Test::PingPong { size: 64 }, "us, p50" | "us, p99") => Some(AtMost(1.2)),
        _ => None,
    }
}

pub(crate) fn groups(setup: &Setup, options: &Options) -> Result<(Vec<Group>, Vec<String>)> {
    let or = |given: &[u64], full: &[u64], short: &[u64]| match (given, setup.quick) {
        ([], true) => short.to_vec(),
        ([], false) => full.to_vec(),
        _ => given.to_vec(),
    };
    let full = [64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576];
    let sizes = or(&options.sizes, &full, &[64, 4096, 65_536, 1_048_576]);
    let counts: &[u16] = match (&*options.connections, setup.quick) {
        ([], true) => &[1, 16],
        ([], false) => &[1, 4, 16, 64],
        (given, _) => given,
    };
    let mut streams: Vec<Test> =
        sizes.iter().map(|&size| Test::Stream { size, connections: 1 }).collect();
    let ping_pong = Test::PingPong { size: 64 };
    let (mut groups, mut notes) = (Vec::new(), Vec::new());
    if options.peers.contains(&Family::Smoltcp) {
        let core = setup.cores[0];
        let iwperf = setup.iwperf()?;
        for mtu in [1500, 9000] {
            let table = format!("smoltcp: one core over ring, MTU {mtu} without CRC and checksums");
            let ours = ours::peer(&iwperf, Place::Ring(vec![core]), Some(mtu), true);
            let peers = vec![ours, smoltcp::peer(core, mtu)];
            let tests = [&streams[..], &[ping_pong]].concat();
            groups.extend(compare(&table, &tests, peers, next_to_smoltcp, &mut notes));
        }
    }
    let connections = counts.iter().copied().filter(|&count| count > 1);
    let size = sizes[0];
    streams.extend(connections.map(|connections| Test::Stream { size, connections }));
    streams.push(ping_pong);
    let mut kernel = over_kernel(setup, options, &streams, &mut notes)?;
    kernel.append(&mut groups);
    if options.peers.contains(&Family::Siw) {
        kernel.extend(in_guest(setup, &mut notes)?);
    }
    Ok((kernel, notes))
}

/// Ours over `memif`, and the peers over the kernel's TCP.
fn over_kernel(
    setup: &Setup,
    options: &Options,
    tests: &[Test],
    notes: &mut Vec<String>,
) -> Result<Vec<Group>> {
    let has = |family| options.peers.contains(&family);
    let families = [Family::Ucx, Family::Libfabric, Family::Iperf3, Family::Sockperf];
    if !families.into_iter().any(has) {
        return Ok(vec![]);
    }
    if let Some(reason) = netns::missing_prerequisite() {
        notes.push(format!("The peers over the kernel's TCP were not measured: {reason}."));
        return Ok(vec![]);
    }
    let (iwperf, cores) = (setup.iwperf()?, setup.two_cores());
    let mut groups = Vec::new();
    let mut over = |name: &str, network: Network, mut peers: Vec<Peer>| -> Result<()> {
        let table = two_processes(name);
        let read_back = network.read_back().context("ethtool: apt-get install ethtool")?;
        eprintln!("{name}: {read_back}");
        notes.push(format!("{table}: the kernel reports {read_back}."));
        let network = Rc::new(network);
        let programs = [
            (Family::Ucx, Program::UcxPut),
            (Family::Ucx, Program::UcxTag),
            (Family::Ucx, Program::UcxShm),
            (Family::Libfabric, Program::Libfabric),
            (Family::Iperf3, Program::Iperf3),
            (Family::Sockperf, Program::Sockperf),
        ];
        for (family, program) in programs {
            // Shared memory has no network.
            if has(family) && (program != Program::UcxShm || name == LOOPBACK) {
                peers.push(kernel::peer(program, &network));
            }
        }
        groups.extend(compare(&table, tests, peers, no_limit, notes));
        Ok(())
    };
    let ours = |mtu, runs_all| ours::peer(&iwperf, Place::Memif(cores), Some(mtu), runs_all);
    if options.networks.contains(&Wire::Loopback) {
        // The MTU matters for long messages.
        let mtus = [(1500, true), (9000, false), (ours::LARGEST_MTU, false)];
        let all = mtus.map(|(mtu, runs_all)| ours(mtu, runs_all)).into();
        over(LOOPBACK, Network::loopback(cores)?, all)?;
    }
    if options.networks.contains(&Wire::Veth) {
        for (name, mtu) in [(VETH, 1500), ("veth, MTU 9000", 9000)] {
            over(name, Network::veth(cores, mtu)?, vec![ours(mtu, true)])?;
        }
    }
    Ok(groups)
}

const LOOPBACK: &str = "loopback, MTU 65536";
const VETH: &str = "veth, MTU 1500";

/// Ours and siw in the guest, which is booted once.
fn in_guest(setup: &Setup, notes: &mut Vec<String>) -> Result<Vec<Group>> {
    // With several queue pairs ib_send_bw ends in a fault, or does not end.
    let mut tests = [64, 4096, 65_536].map(|size| Test::Stream { size, connections: 1 }).to_vec();
    tests.push(Test::PingPong { size: 64 });
    let guest = match netns::missing_prerequisite() {
        Some(reason) => Err(anyhow::anyhow!(reason)),
        None => guest::boot(&setup.iwperf()?.program, &setup.scratch.path().join("guest.log")),
    };
    let guest = match guest {
        Ok(guest) => Rc::new(guest),
        Err(error) => {
            notes.push(format!("siw was not measured: {error:#}."));
            return Ok(vec![]);
        }
    };
    let mut groups = Vec::new();
    for mtu in [1500, 9000] {
        let stacks = [Stack::Ours, Stack::OursWithCrc, Stack::Siw];
        let peers = stacks.map(|stack| guest::peer(stack, &guest, mtu)).into();
        let table = format!("siw: inside the same guest, MTU {mtu} without CRC");
        groups.extend(compare(&table, &tests, peers, no_limit, notes));
    }
    Ok(groups)
}

/// Returns the panels of the plot: bandwidth by size, message rate by connections, latency, all at
/// an equal MTU of 1500.
pub(crate) fn panels(report: &Report) -> Vec<Panel> {
    let title = two_processes(VETH);
    let rows: Vec<_> = report.rows.iter().filter(|row| row.table == title).collect();
    let panel = |title: &str, x_title, figures: &[&str], label: &dyn Fn(&str, &str) -> String| {
        let mut points: Vec<(String, String, String)> = Vec::new();
        for row in rows.iter().filter(|row| figures.contains(&&*row.figure)) {
            let point = (label(&row.name, &row.figure), row.name.clone(), row.figure.clone());
            if !points.contains(&point) {
                points.push(point);
            }
        }
        Panel::new(title, x_title, points, &rows)
    };
    let size = |name: &str, _: &str| name.trim_start_matches("stream of ").to_owned();
    let count = |name: &str, _: &str| name.split(" by ").nth(1).unwrap_or("1").to_owned();
    let percentile = |_: &str, figure: &str| figure.trim_start_matches("us, ").to_owned();
    let panels = [
        panel("Bandwidth, Gb/s", "bytes per message", &["Gb/s"], &size),
        panel("Short messages, M/s", "queue pairs or connections", &["M/s"], &count),
        panel("Latency of 64 bytes, us", "percentile", &LATENCIES, &percentile),
    ];
    panels.into_iter().filter(|panel| !panel.lines.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Row;
    use crate::runner;

    /// A peer that is not run.
    fn named(name: &'static str, is_ours: bool) -> Peer {
        let factor = if is_ours { 2.0 } else { 1.0 };
        Peer {
            name,
            about: format!("a program named {name}"),
            is_ours,
            version: if name == "absent" { Err("install it".into()) } else { Ok("1.0".into()) },
            supports: Box::new(|_| true),
            run: Box::new(move |test, _| {
                Ok(match test {
                    Test::Stream { size, .. } => rate(factor * 1e6, size),
                    Test::PingPong { .. } => LATENCIES.map(|name| (name, 4.0 / factor)).into(),
                })
            }),
        }
    }

    #[test]
    fn ours_is_compared_with_each_peer_and_plotted() {
        let stream = |size, connections| Test::Stream { size, connections };
        let tests = [stream(64, 1), stream(65_536, 1), stream(64, 16), Test::PingPong { size: 64 }];
        let peers = vec![named("ferrowarp", true), named("other", false), named("absent", false)];
        let mut notes = Vec::new();
        let table = two_processes(VETH);
        let mut groups = compare(&table, &tests, peers, no_limit, &mut notes);
        assert!(notes[2].ends_with("absent was not measured: install it."), "{notes:?}");
        let rows = runner::run(&mut groups, 2, 0.0, None).rows;
        let ratio = |row: &Row| (row.judged()[0] * 1e3).round() / 1e3;
        let medians: Vec<_> = rows.iter().map(|row| (&*row.figure, ratio(row))).collect();
        let expected = [("M/s", 2.0), ("Gb/s", 2.0), ("M/s", 2.0)];
        assert_eq!(medians[..3], expected);
        assert!(
            medians[3..].iter().all(|(figure, ratio)| figure.starts_with("us") && *ratio == 0.5)
        );
        let panels = panels(&Report { rows, ..Report::default() });
        let labels: Vec<_> = panels.iter().map(|panel| panel.labels.join(" ")).collect();
        assert_eq!(labels, ["64 KiB", "1 16", "p50 p99 p99.9"]);
        let folder = ferrowarp_tests::process::temp_dir().unwrap();
        let path = folder.path().join("plot.svg");
        crate::plot::draw(&path, &panels).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        for text in ["Bandwidth, Gb/s", "Short messages", "p99.9", "64 KiB", "other"] {
            assert!(svg.contains(text), "{text}");
        }
    }
}
