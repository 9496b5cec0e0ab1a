//! The stack next to DPDK's own traffic generator, `dpdk-testpmd`, over the same device: what the
//! device and its driver leave to whoever uses it.

mod memif;
pub(crate) mod program;
mod tap;

use std::path::Path;
use std::rc::Rc;

use anyhow::{Result, ensure};
use ferrowarp_tests::netns;

use super::{Case, Setup, case};
use crate::iwperf::{Place, Test};
use crate::model::Limit::AtLeast;
use crate::runner::{Figures, Group};

pub(crate) const CASE: Case =
    case!("testpmd", "Next to testpmd", rounds: 9, seconds: 1.5, quick: (3, 0.5));

const SIZE: u64 = 65_536;

pub(crate) fn groups(setup: &Setup) -> Result<Vec<Group>> {
    let is_installed = ferrowarp_tests::process::is_installed(program::PROGRAM);
    ensure!(is_installed, "{} is absent: apt-get install {}", program::PROGRAM, program::PACKAGE);
    let iwperf = setup.iwperf()?;
    let cores = setup.two_cores();
    let mut groups = Vec::new();
    for mtu in [1500, 9000] {
        let (own, folder) = (Rc::clone(&iwperf), iwperf.scratch.clone());
        let test = Test { name: "write-bw", mtu, size: SIZE, ..Test::default() };
        let group = Group::new("", format!("memif-{mtu}"))
            .contender("stack", move |seconds| own.run(&Place::Memif(cores), &test, seconds))
            .contender("testpmd", move |seconds| {
                let gbit_s = memif::measure(&folder, mtu, cores, seconds)?;
                Ok(Figures::from([("Gb/s", gbit_s)]))
            })
            .compare("stack", "testpmd", "Gb/s", Some(AtLeast(0.8)));
        groups.push(group);
    }
    let lacks_tap = netns::missing_prerequisite();
    if let Some(reason) =
        lacks_tap.or((!Path::new("/dev/net/tun").exists()).then_some("no tap devices"))
    {
        eprintln!("left out: tap: {reason}");
        return Ok(groups);
    }
    let (own, folder) = (Rc::clone(&iwperf), iwperf.scratch.clone());
    let group = Group::new("", "tap-1500")
        .contender("stack", move |seconds| {
            tap::measure_iwperf(&own.program, &own.scratch, cores, seconds)
        })
        .contender("testpmd", move |seconds| tap::measure_testpmd(&folder, cores, seconds))
        .compare("stack", "testpmd", tap::PACKETS, Some(AtLeast(0.95)));
    groups.push(group);
    Ok(groups)
}
