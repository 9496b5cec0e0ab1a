//! Our TCP next to the kernel's over the same emulated link: goodput by loss and round trip.
//!
//! Ours: two contexts on one thread over `memif`. The kernel: iperf3 in a namespace for each end,
//! over taps. `iwlink` is between the ends.

use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use ferrowarp::Context;
use ferrowarp_tests::netns::{self, Namespace, ip};
use ferrowarp_tests::process::{self, Running};
use serde_json::Value;

use super::peers::{Test, kernel};
use super::{Case, Setup};
use crate::cores::on_core;
use crate::iwperf::finish;
use crate::launch::{self, Network};
use crate::ring::{Pair, STREAM, config};
use crate::runner::{Figures, Group};

pub(crate) const CASE: Case = Case {
    name: "tcp-vs-kernel",
    title: "Our TCP next to the kernel's",
    rounds: 5,
    seconds: 4.0,
    quick: (1, 1.0),
};

#[derive(Args)]
pub(crate) struct Options {
    /// Frame loss in each direction, in percent
    #[arg(long, value_delimiter = ',', default_values_t = [0.0, 0.01, 0.1, 1.0, 3.0])]
    loss: Vec<f64>,
    /// RTTs in milliseconds
    #[arg(long, value_delimiter = ',', default_values_t = [1.0, 20.0])]
    rtt: Vec<f64>,
}

/// Queue limit of the link in bytes.
const LINK_QUEUE: &str = "256K";
/// Minimum warm-up of each connection in seconds, and in round trips: with fewer a CUBIC that left
/// slow start early does not find the rate.
const WARM_UP: f64 = 3.0;
const WARM_UP_ROUND_TRIPS: f64 = 600.0;
/// Addresses of sender and receiver (benchmark range).
const ADDRESSES: [&str; 2] = ["198.18.64.2", "198.18.64.1"];
/// The kernel's interfaces, of sender and receiver.
const INTERFACES: [&str; 2] = ["fwl0", "fwr0"];
/// Queue length of the tap in frames, too large to overflow: drops must be those of the emulator,
/// which counts them.
const TAP_QUEUE: &str = "10000";
/// Most bytes of ours in flight: `memif` leads to a link with a delay here.
const PATH_BYTES: u32 = 8 << 20;
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Frames that announce the addresses of an end: they are dropped while the other end is not
/// connected yet.
const ANNOUNCED_MAX: u64 = 8;
/// Maximum fraction of late frames of a valid run.
const LATE_FRACTION_MAX: f64 = 0.02;

/// An emulated link that is to be made.
#[derive(Clone)]
struct LinkPlan {
    iwlink: PathBuf,
    /// Core of the ends, and of the emulator, which busy-polls.
    cores: [usize; 2],
    loss: f64,
    rtt_ms: f64,
    /// Link rate.
    rate: &'static str,
    /// Seconds of the warm-up.
    warm_up: f64,
}

pub(crate) fn groups(setup: &Setup, options: &Options) -> Result<Vec<Group>> {
    if let Some(reason) = netns::missing_prerequisite() {
        bail!("{reason}");
    }
    let iwlink = setup.bin.join("iwlink");
    ensure!(iwlink.exists(), "{} is absent: build it first", iwlink.display());
    let cores =
        setup.distinct_cores().context("iwlink needs a core of its own, the ends another")?;
    let (losses, rtts) = match setup.quick {
        true => (&[0.1][..], &[1.0][..]),
        false => (&*options.loss, &*options.rtt),
    };
    let mut groups = Vec::new();
    for &rtt_ms in rtts {
        let (rate, warm_up) = match setup.quick {
            true => ("200mbit", 0.2),
            false => ("1gbit", WARM_UP.max(WARM_UP_ROUND_TRIPS * rtt_ms / 1000.0)),
        };
        for &loss in losses {
            let iwlink = iwlink.clone();
            groups.push(LinkPlan { iwlink, cores, loss, rtt_ms, rate, warm_up }.group());
        }
    }
    Ok(groups)
}

impl LinkPlan {
    fn group(self) -> Group {
        let measure = |is_ours: bool| {
            let (plan, mut seed) = (self.clone(), 0);
            move |seconds| {
                seed += 1;
                plan.measure(is_ours, seed, seconds)
            }
        };
        let table = format!("Goodput, round trip {} ms", self.rtt_ms);
        Group::new(table, format!("loss of {} %", self.loss))
            .contender("ours", measure(true))
            .contender("kernel", measure(false))
            .compare("ours", "kernel", "Gb/s", None)
    }

    fn measure(&self, is_ours: bool, seed: u64, seconds: f64) -> Result<Figures> {
        let (dir, link) = (process::temp_dir()?, Namespace::new()?);
        disable_ipv6(link.name())?;
        let sockets = INTERFACES.map(|name| dir.path().join(name).display().to_string());
        let [left, right] = match is_ours {
            true => sockets.each_ref().map(|socket| format!("memif:{socket},client")),
            false => INTERFACES.map(|name| format!("tap:{name}")),
        };
        let counters = dir.path().join("wire.json");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", link.name(), "taskset", "-c", &self.cores[1].to_string()]);
        let options = format!(
            "--left {left} --right {right} --delay {}us --loss {}% --seed {seed} --rate {} --queue \
             {LINK_QUEUE} --poll 0 --late 500us",
            self.rtt_ms * 500.0,
            self.loss,
            self.rate
        );
        command.arg(&self.iwlink).args(options.split(' ')).arg("--json").arg(&counters);
        let log = dir.path().join("wire");
        let start = move || -> Result<Running> {
            let mut iwlink = Running::start(&mut command, log)?;
            iwlink.wait_for("seed", READY_TIMEOUT).context("iwlink")?;
            Ok(iwlink)
        };
        // The ends outlive iwlink: it counts frames to one that is not there as dropped.
        let figures = if is_ours {
            self.ours(sockets, seconds, start)?
        } else {
            let iwlink = start()?;
            let network = self.network(&link)?;
            let test = Test::Stream { size: STREAM.0.into(), connections: 1 };
            let whole = seconds.ceil().max(1.0);
            let figures = kernel::iperf3(&network, test, whole, self.warm_up.ceil())?;
            end(iwlink)?;
            figures
        };
        check(&serde_json::from_str(&std::fs::read_to_string(counters).context("no counters")?)?)?;
        Ok(figures)
    }

    /// Opens two contexts on a thread of their own, has iwlink connect to them, and measures.
    fn ours(
        &self,
        sockets: [String; 2],
        seconds: f64,
        start: impl FnOnce() -> Result<Running> + Send,
    ) -> Result<Figures> {
        let (core, warm_up) = (self.cores[0], Duration::from_secs_f64(self.warm_up));
        on_core(core, || {
            let open = |host, socket: String| -> Result<Context> {
                let mut config = config(host, 1500, 1);
                config.device = format!("memif:{socket},server").parse()?;
                config.pools.path_bytes = PATH_BYTES;
                Ok(Context::open(config)?)
            };
            let [left, right] = sockets;
            let [left, right] = [open(1, left)?, open(2, right)?];
            let iwlink = start()?;
            let mut pair = Pair::connect(left, right)?;
            pair.run(warm_up)?;
            let gbit_s = pair.run(Duration::from_secs_f64(seconds))?;
            end(iwlink)?;
            Ok(Figures::from([("Gb/s", gbit_s)]))
        })
    }

    /// Returns the network of the kernel, each end in a fresh namespace without metrics of earlier
    /// runs; both share a core.
    fn network(&self, link: &Namespace) -> Result<Network> {
        let ends = [Rc::new(Namespace::new()?), Rc::new(Namespace::new()?)];
        for (end, (name, address)) in ends.iter().zip(INTERFACES.into_iter().zip(ADDRESSES)) {
            ip(&["-n", link.name(), "link", "set", name, "netns", end.name()])?;
            disable_ipv6(end.name())?;
            let options = ["gso_max_segs", "1", "txqueuelen", TAP_QUEUE];
            launch::configure(end.name(), name, address, &options)?;
        }
        let [sender, receiver] = ends;
        let [at_sender, at_receiver] = INTERFACES;
        let cores = [self.cores[0]; 2];
        let interfaces = [at_receiver, at_sender];
        Network::new([receiver, sender], interfaces, ADDRESSES[1], cores)
    }
}

fn end(iwlink: Running) -> Result<()> {
    iwlink.interrupt()?;
    finish(iwlink, READY_TIMEOUT).context("iwlink")?;
    Ok(())
}

/// Checks the counters of the emulator: frames that it dropped or sent late invalidate a run.
fn check(wire: &Value) -> Result<()> {
    let total = |name: &str| -> u64 {
        (0..2).filter_map(|way| wire.pointer(&format!("/{way}/{name}"))?.as_u64()).sum()
    };
    let dropped = total("own/no_buffer") + total("own/port_full") + total("own/port_lost");
    let late = total("own/late") as f64 / total("frames_out").max(1) as f64;
    ensure!(dropped <= ANNOUNCED_MAX, "the emulator dropped {dropped} frames");
    ensure!(late <= LATE_FRACTION_MAX, "the emulator sent {:.2} % late", late * 100.0);
    Ok(())
}

/// Disables IPv6 on future interfaces: its solicitations would shift the random faults of the
/// measured frames.
fn disable_ipv6(namespace: &str) -> Result<()> {
    let script = "for space in default all; do \
                      echo 1 >/proc/sys/net/ipv6/conf/$space/disable_ipv6 || true; done";
    launch::in_namespace(namespace, "sh", &["-c", script])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_or_dropped_frames_invalidate_a_run() {
        let way = |late: u64, dropped: u64| {
            serde_json::json!({"frames_out": 1000, "own": {
                "late": late, "no_buffer": 0, "port_full": 0, "port_lost": dropped,
            }})
        };
        assert!(check(&serde_json::json!([way(0, 8), way(10, 0)])).is_ok());
        for wire in [[way(0, 0), way(100, 0)], [way(0, 8), way(0, 1)]] {
            assert!(check(&serde_json::json!(wire)).is_err());
        }
    }
}
