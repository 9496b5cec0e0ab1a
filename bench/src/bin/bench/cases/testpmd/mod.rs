//! The stack next to DPDK's own traffic generator, `dpdk-testpmd`, over the same device: what the
//! device and its driver leave to whoever uses it.

mod program;
mod tap;

use std::path::Path;
use std::rc::Rc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use ferrowarp_proto::device::frame_capacity;
use ferrowarp_tests::{netns, process};

use self::program::{PROGRAM, Role, TIMEOUT, Testpmd};
use super::{Case, Setup};
use crate::iwperf::{Place, Test};
use crate::model::Limit::AtLeast;
use crate::runner::{Figures, Group};

pub(crate) const CASE: Case =
    Case { name: "testpmd", title: "Next to testpmd", rounds: 9, seconds: 1.5, quick: (3, 0.5) };

const SIZE: u64 = 65_536;
/// Base 2 logarithm of the ring size in frames, as the stack's `memif`.
const RING_LOG2: u32 = 9;
/// Time before a measurement, when frames arrive.
const WARM_UP: Duration = Duration::from_millis(300);

pub(crate) fn groups(setup: &Setup) -> Result<Vec<Group>> {
    ensure!(process::is_installed(PROGRAM), "{PROGRAM} is absent: apt-get install dpdk-dev");
    let iwperf = setup.iwperf()?;
    let cores = setup.two_cores();
    let mut groups = Vec::new();
    for mtu in [1500, 9000] {
        let (own, folder) = (Rc::clone(&iwperf), iwperf.scratch.clone());
        let test = Test { name: "write-bw", mtu: Some(mtu), size: SIZE, ..Test::default() };
        let group = Group::new("", format!("memif-{mtu}"))
            .contender("stack", move |seconds| own.run(&Place::Memif(cores), &test, seconds))
            .contender("testpmd", move |seconds| measure_memif(&folder, mtu, cores, seconds))
            .compare("stack", "testpmd", "Gb/s", Some(AtLeast(0.8)));
        groups.push(group);
    }
    let lacks_tap = (!Path::new("/dev/net/tun").exists()).then_some("no tap devices");
    if let Some(reason) = netns::missing_prerequisite().or(lacks_tap) {
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

/// Measures testpmd over `memif`, receiver and sender on these cores: bits of whole frames.
fn measure_memif(folder: &Path, mtu: u16, cores: [usize; 2], seconds: f64) -> Result<Figures> {
    let socket = folder.join("testpmd.sock");
    let _ = std::fs::remove_file(&socket);
    let start = |mode, role, core| {
        let vdev = &format!(
            "net_memif0,role={role},id=0,socket={},socket-abstract=no,rsize={RING_LOG2},bsize={}",
            socket.display(),
            frame_capacity(mtu)
        );
        Testpmd::start(Role { mode, vdev, mtu, core, namespace: None }, folder)
    };
    let mut sink = start("rxonly", "server", cores[0])?;
    let mut source = start("txonly", "client", cores[1])?;
    sink.command("start")?;
    source.command("start")?;
    // The driver of the client connects when its alarms run.
    let deadline = Instant::now() + TIMEOUT;
    while sink.received_per_second()? == 0 {
        ensure!(Instant::now() < deadline, "frames of {} bytes do not arrive", mtu + 14);
        sleep(Duration::from_millis(20));
    }
    sleep(WARM_UP);
    sink.received_per_second()?;
    sleep(Duration::from_secs_f64(seconds));
    let rate = sink.received_per_second()?;
    Testpmd::end(sink, source)?;
    ensure!(rate > 0, "frames of {} bytes no longer arrive", mtu + 14);
    Ok(Figures::from([("Gb/s", rate as f64 * 1e-9)]))
}
