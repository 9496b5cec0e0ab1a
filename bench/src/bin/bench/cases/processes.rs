//! Two processes over `memif`, next to the kernel's TCP, to UCX over shared memory, and to itself
//! with other MTUs.

use std::rc::Rc;

use anyhow::{Context as _, Result};
use ferrowarp_tests::netns;

use super::peers::kernel::{self, Program};
use super::peers::{Peer, Test, group, ours, present};
use super::{Case, Setup};
use crate::interval::MedianInterval;
use crate::iwperf::Place;
use crate::launch::Network;
use crate::model::Limit::{self, AtLeast, EachAtLeast};
use crate::model::row_name;
use crate::runner::{Figures, Group};

pub(crate) const CASE: Case =
    Case { name: "processes", title: "Two processes", rounds: 9, seconds: 1.0, quick: (3, 0.3) };

const RATE: Test = stream(64);
const LATENCY: Test = Test::PingPong { size: 64 };
const LONG: [u64; 2] = [65_536, 1 << 20];
/// Runs of which the slowest is compared with the median.
const RUNS: usize = 20;
const SLOWEST: &str = "Gb/s, slowest run";
const MEDIAN: &str = "Gb/s, median run";

const fn stream(size: u64) -> Test {
    Test::Stream { size, connections: 1 }
}

pub(crate) fn groups(setup: &Setup) -> Result<(Vec<Group>, Vec<String>)> {
    let (iwperf, cores) = (setup.iwperf()?, setup.two_cores());
    let ours = |mtu| ours::peer(&iwperf, Place::Memif(cores), mtu, true);
    let mut notes = Vec::new();
    let mut groups = match netns::missing_prerequisite() {
        None => next_to_others(&ours, cores, &mut notes)?,
        Some(reason) => {
            notes.push(format!("The kernel's TCP and UCX were not measured: {reason}."));
            vec![]
        }
    };
    for size in LONG {
        let pair = [ours::LARGEST_MTU, 9000].map(|mtu| ours(Some(mtu)));
        let [subject, reference] = [pair[0].name, pair[1].name];
        let mut group = Group::new("MTU of memif", row_name("write-bw", size, ours::LARGEST_MTU));
        for peer in pair {
            group = group.contender(peer.name, move |seconds| (peer.run)(stream(size), seconds));
        }
        groups.push(group.compare(subject, reference, "Gb/s", Some(AtLeast(1.0))));
    }
    groups.push(runs(ours(Some(1500)), if setup.quick { 3 } else { RUNS }));
    Ok((groups, notes))
}

/// Peers of one setting, of which ours is the first.
struct Peers<'a> {
    table: &'a str,
    all: Vec<Rc<Peer>>,
}

impl<'a> Peers<'a> {
    fn over(
        table: &'a str,
        own: Peer,
        programs: &[Program],
        network: Network,
        notes: &mut Vec<String>,
    ) -> Result<Self> {
        let read_back = network.read_back().context("ethtool: apt-get install ethtool")?;
        notes.push(format!("{table}: the kernel reports {read_back}."));
        let network = Rc::new(network);
        let others = programs.iter().map(|&program| kernel::peer(program, &network));
        Ok(Self { table, all: present(table, std::iter::once(own).chain(others), notes) })
    }

    /// Returns a row of ours next to one of the others, if it is installed.
    fn row(&self, name: &str, test: Test, other: &str, limit: Option<Limit>) -> Option<Group> {
        let other = self.all.iter().find(|peer| peer.name == other)?;
        let name = format!("{name}-{}", other.name.replace([' ', ','], "-").replace("--", "-"));
        let pair = [Rc::clone(&self.all[0]), Rc::clone(other)];
        Some(group(self.table, &name, test, &pair, |_| limit))
    }
}

fn next_to_others(
    ours: &dyn Fn(Option<u16>) -> Peer,
    cores: [usize; 2],
    notes: &mut Vec<String>,
) -> Result<Vec<Group>> {
    let mut groups = Vec::new();
    for mtu in [1500, 9000] {
        let table = format!("Next to the kernel's TCP over veth, MTU {mtu} at both");
        let programs = [Program::Iperf3, Program::Sockperf];
        let network = Network::veth(cores, mtu)?;
        let peers = Peers::over(&table, ours(Some(mtu)), &programs, network, notes)?;
        for size in LONG {
            let name = row_name("write-bw", size, mtu);
            groups.extend(peers.row(&name, stream(size), "iperf3", Some(AtLeast(2.0))));
        }
        for (name, test) in [("write-bw", RATE), ("write-lat", LATENCY)] {
            groups.extend(peers.row(&row_name(name, 64, mtu), test, "sockperf", None));
        }
    }
    let table = "Default MTU of memif next to the kernel's TCP over loopback, MTU 65536";
    let programs = [Program::Iperf3, Program::Sockperf];
    let network = Network::loopback(cores)?;
    let peers = Peers::over(table, ours(None), &programs, network, notes)?;
    for (name, size, limit) in [("write-bw-64K", LONG[0], 1.5), ("write-bw-1M", LONG[1], 1.1)] {
        for other in ["iperf3", "sockperf"] {
            groups.extend(peers.row(name, stream(size), other, Some(AtLeast(limit))));
        }
    }
    let table = "Default MTU of memif next to UCX over shared memory";
    let network = Network::loopback(cores)?;
    let peers = Peers::over(table, ours(None), &[Program::UcxShm], network, notes)?;
    let tests = [
        ("write-bw-64K", stream(LONG[0])),
        ("write-bw-1M", stream(LONG[1])),
        ("write-bw-64", RATE),
        ("write-lat-64", LATENCY),
    ];
    for (name, test) in tests {
        groups.extend(peers.row(name, test, "UCX shm, put", None));
    }
    Ok(groups)
}

/// Slowest of many runs next to their median.
fn runs(peer: Peer, count: usize) -> Group {
    let name = format!("{}-{count}-runs", row_name("write-bw", LONG[1], 1500));
    let own = peer.name;
    Group::new("From run to run", name)
        .contender(own, move |seconds| {
            let run = |_| Ok((peer.run)(stream(LONG[1]), seconds)?["Gb/s"]);
            let rates = (0..count).map(run).collect::<Result<Vec<f64>>>()?;
            let slowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
            let median = MedianInterval::of(&rates).context("a run")?.median;
            Ok(Figures::from([(SLOWEST, slowest), (MEDIAN, median)]))
        })
        .compare_figures((own, SLOWEST), (own, MEDIAN), Some(EachAtLeast(0.75)))
        .once()
}
