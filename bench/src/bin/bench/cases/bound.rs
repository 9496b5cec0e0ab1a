//! `iwperf` next to the bound of this machine, or to another `iwperf`.

use std::cell::OnceCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use super::{Case, Setup};
use crate::bound::layout::Target;
use crate::bound::transfer::{Transfer, WorkingSet};
use crate::bound::{ping_pong, rate};
use crate::iwperf::{Iwperf, Place, TAIL, Test};
use crate::model::Limit::{self, AtLeast, AtMost};
use crate::model::row_name;
use crate::runner::{Figures, Group};

pub(crate) const CASE: Case =
    Case { name: "bound", title: "Share of the bound", rounds: 9, seconds: 1.0, quick: (3, 0.2) };

#[derive(Args)]
pub(crate) struct Options {
    /// Another iwperf, such as one built from an earlier commit, measured in the same rounds with
    /// the same options
    #[arg(long, value_name = "PATH")]
    before: Option<PathBuf>,
}

const FROZEN: &str = "frozen bound";
const BEST: &str = "best bound";
const PING_PONG: &str = "bare ping-pong";
/// Figures of a second core: on the first one alone, and the gain.
const ON_ONE: [&str; 2] = ["Gb/s on one core", "M/s on one core"];
const GAIN: [&str; 2] = ["gain in Gb/s", "gain in M/s"];
/// Requests outstanding per queue pair where there are many of them.
const QPS_DEPTH: u32 = 4;

/// Messages of one size over one MTU.
#[derive(Clone, Copy)]
struct Messages {
    test: &'static str,
    size: u64,
    mtu: u16,
    qps: u32,
    depth: u32,
    /// The queue pairs use one buffer at each end, instead of one each.
    is_buffer_shared: bool,
}

impl Messages {
    fn new(test: &'static str, size: u64, mtu: u16) -> Self {
        Self { test, size, mtu, qps: 1, depth: 128, is_buffer_shared: false }
    }

    fn name(&self, place: &str) -> String {
        format!("{}-{place}", row_name(self.test, self.size, self.mtu))
    }

    fn run(&self, iwperf: &Rc<Iwperf>, place: Place) -> impl FnMut(f64) -> Result<Figures> + use<> {
        let Self { test: name, size, mtu, .. } = *self;
        let mut options = vec![format!("-q{}", self.qps), format!("-t{}", self.depth)];
        options.extend(self.is_buffer_shared.then(|| "--shared-buffer".to_owned()));
        iwperf.measure(place, Test { name, mtu: Some(mtu), size, options, checksum: None })
    }

    /// Returns the working set of each of so many bounds.
    fn working_set(&self, bounds: usize) -> WorkingSet {
        let qps = if self.is_buffer_shared { 1 } else { self.qps as usize };
        WorkingSet { slots: qps.div_ceil(bounds), depth: self.depth as usize }
    }

    fn figures(&self, gbit_s: f64) -> Figures {
        Figures::from([("Gb/s", gbit_s), ("M/s", gbit_s * 1e3 / 8.0 / self.size as f64)])
    }
}

/// The frozen (0) and the best bound (1) of messages. Their CRCs are chosen once: all rounds have
/// the same bound.
#[derive(Clone)]
struct Bound {
    messages: Messages,
    transfers: Rc<OnceCell<[Arc<Transfer>; 2]>>,
}

impl Bound {
    fn new(messages: Messages) -> Self {
        Self { messages, transfers: Rc::default() }
    }

    fn transfer(&self, which: usize) -> &Arc<Transfer> {
        let Messages { mtu, size, .. } = self.messages;
        let len = usize::try_from(size).expect("a message fits the memory");
        let target = Target { stag: 1, to: 0 };
        &self.transfers.get_or_init(|| Transfer::frozen_and_best(mtu, len, target))[which]
    }

    /// Returns a measurement: both ends on one core or one on each of two.
    fn measure(&self, which: usize, cores: &[usize]) -> impl FnMut(f64) -> Result<Figures> + use<> {
        let (bound, cores) = (self.clone(), cores.to_vec());
        move |seconds| {
            let (set, duration) = (bound.messages.working_set(1), Duration::from_secs_f64(seconds));
            let gbit_s = rate::measure(bound.transfer(which), set, &cores, duration)?;
            Ok(bound.messages.figures(gbit_s))
        }
    }

    /// Names the CRCs of a row.
    fn crc_note(self, row: String) -> impl Fn() -> String {
        move || {
            let [frozen, best] = [0, 1].map(|which| self.transfer(which).crc_names());
            format!("{row}: the CRC of the frozen bound is {frozen}; of the best bound {best}.")
        }
    }
}

struct Rows {
    iwperf: Rc<Iwperf>,
    before: Option<Rc<Iwperf>>,
    groups: Vec<Group>,
}

pub(crate) fn groups(setup: &Setup, options: &Options) -> Result<Vec<Group>> {
    let before = options.before.as_ref();
    let before = before.map(|path| Iwperf::new(path, setup.scratch.path()).map(Rc::new));
    let iwperf = setup.iwperf()?;
    let mut rows = Rows { iwperf, before: before.transpose()?, groups: Vec::new() };
    let one = vec![setup.cores[0]];
    for (size, mtu, share) in
        [(65_536, 1500, 0.8), (65_536, 9000, 0.95), (4096, 1500, 0.65), (4096, 9000, 0.85)]
    {
        rows.write_bw(size, mtu, &one, [None, Some(share)]);
    }
    for mtu in [1500, 9000] {
        for test in ["read-bw", "send-bw"] {
            let messages = Messages::new(test, 65_536, mtu);
            let writes = Messages::new("write-bw", 65_536, mtu);
            let place = Place::Ring(one.clone());
            let group = Group::new("", messages.name("one"))
                .contender("write-bw", writes.run(&rows.iwperf, place.clone()))
                .contender(test, messages.run(&rows.iwperf, place.clone()))
                .compare(test, "write-bw", "Gb/s", Some(AtLeast(0.98)));
            rows.push_beside_before(group, messages, place, "Gb/s", None);
        }
    }
    for (mtu, of_most) in [(1500, 0.8), (9000, 0.85)] {
        for (qps, share) in [(1, None), (16, Some(0.95)), (256, Some(0.9)), (10_000, Some(of_most))]
        {
            rows.many_qps(mtu, &one, (qps, false), share.map(AtLeast));
        }
        rows.many_qps(mtu, &one, (10_000, true), Some(AtLeast(0.5)));
    }
    if let Some(two) = setup.distinct_cores() {
        rows.gain(65_536, two, 0);
        rows.gain(64, two, 1);
        rows.write_bw(1 << 20, 1500, &two, [Some(0.9), None]);
        rows.write_bw(1 << 20, 9000, &two, [Some(0.95), None]);
        rows.latency("write-lat", two, 3.0, Some(0.3));
        rows.latency("read-lat", two, 5.0, None);
    } else {
        eprintln!("one core: no rows over two");
    }
    if rows.before.is_some() {
        let messages = Messages::new("write-bw", 64, 1500);
        let place = Place::Ring(one);
        let group = Group::new("", messages.name("one"))
            .contender("write-bw", messages.run(&rows.iwperf, place.clone()));
        rows.push_beside_before(group, messages, place, "M/s", Some(AtLeast(2.3)));
    }
    Ok(rows.groups)
}

impl Rows {
    /// Adds the other `iwperf` to a row, if there is one.
    fn push_beside_before(
        &mut self,
        mut group: Group,
        messages: Messages,
        place: Place,
        figure: &'static str,
        limit: Option<Limit>,
    ) {
        if let Some(before) = &self.before {
            let name = format!("{} of the other iwperf", messages.test);
            let run = messages.run(before, place);
            group = group.contender(&name, run).compare(messages.test, &name, figure, limit);
        }
        self.groups.push(group);
    }

    /// Bandwidth of RDMA Writes as a share of the bounds, with the limit for each.
    fn write_bw(&mut self, size: u64, mtu: u16, cores: &[usize], shares: [Option<f64>; 2]) {
        let messages = Messages::new("write-bw", size, mtu);
        let (bound, limits) = (Bound::new(messages), shares.map(|share| share.map(AtLeast)));
        let name = messages.name(if cores.len() == 1 { "one" } else { "two" });
        let place = Place::Ring(cores.to_vec());
        let group = Group::new("", &name)
            .contender(FROZEN, bound.measure(0, cores))
            .contender("write-bw", messages.run(&self.iwperf, place.clone()))
            .contender(BEST, bound.measure(1, cores))
            .compare("write-bw", FROZEN, "Gb/s", limits[0])
            .compare("write-bw", BEST, "Gb/s", limits[1])
            .note(bound.crc_note(name));
        self.push_beside_before(group, messages, place, "Gb/s", None);
    }

    /// Bandwidth of RDMA Writes of 4 KiB over many queue pairs as a share of the bound with as many
    /// messages.
    fn many_qps(
        &mut self,
        mtu: u16,
        cores: &[usize],
        (qps, is_buffer_shared): (u32, bool),
        limit: Option<Limit>,
    ) {
        let plain = Messages::new("write-bw", 4096, mtu);
        let messages = Messages { qps, depth: QPS_DEPTH, is_buffer_shared, ..plain };
        let shared = if is_buffer_shared { "-shared" } else { "" };
        let place = Place::Ring(cores.to_vec());
        let group = Group::new("", format!("{}-q{qps}{shared}", messages.name("one")))
            .contender(FROZEN, Bound::new(messages).measure(0, cores))
            .contender("write-bw", messages.run(&self.iwperf, place.clone()))
            .compare("write-bw", FROZEN, "Gb/s", limit);
        self.push_beside_before(group, messages, place, "Gb/s", None);
    }

    /// Gain of RDMA Writes from a second core, with a shard on each, next to the gain of the bound.
    fn gain(&mut self, size: u64, two: [usize; 2], which: usize) {
        let messages = Messages { qps: 8, ..Messages::new("write-bw", size, 1500) };
        let bound = Bound::new(messages);
        let figure = ["Gb/s", "M/s"][which];
        let with_gain = move |mut both: Figures, one: &Figures| {
            let gain = both[figure] / one[figure];
            both.extend([(ON_ONE[which], one[figure]), (GAIN[which], gain)]);
            both
        };
        let mut run_on_one = messages.run(&self.iwperf, Place::Ring(vec![two[0]]));
        let mut run_on_both = messages.run(&self.iwperf, Place::Shards(two.into()));
        let mut bound_on_one = bound.measure(0, &two[..1]);
        let mut group = Group::new("", format!("{}-q8", messages.name("shards")))
            .contender(FROZEN, move |seconds| {
                let one = bound_on_one(seconds)?;
                let (set, duration) = (messages.working_set(2), Duration::from_secs_f64(seconds));
                let gbit_s = rate::measure_each(bound.transfer(0), set, &two, duration)?;
                Ok(with_gain(messages.figures(gbit_s), &one))
            })
            .contender("write-bw", move |seconds| {
                let one = run_on_one(seconds)?;
                Ok(with_gain(run_on_both(seconds)?, &one))
            })
            .compare("write-bw", FROZEN, GAIN[which], Some(AtLeast(0.95)));
        for name in ["write-bw", FROZEN] {
            group = group.compare_figures((name, figure), (name, ON_ONE[which]), None);
        }
        self.groups.push(group);
    }

    /// Latency of 64 bytes between two cores next to the bare ping-pong.
    fn latency(&mut self, test: &'static str, two: [usize; 2], ratio: f64, tail: Option<f64>) {
        let messages = Messages::new(test, 64, 1500);
        let bound = Bound::new(messages);
        let place = Place::Ring(two.into());
        let mut group = Group::new("", messages.name("two"))
            .contender(PING_PONG, move |seconds| {
                let duration = Duration::from_secs_f64(seconds);
                ping_pong::measure(&bound.transfer(0).alone(), two, duration)
            })
            .contender(test, messages.run(&self.iwperf, place.clone()))
            .compare(test, PING_PONG, "us, p50", Some(AtMost(ratio)));
        if let Some(tail) = tail {
            group = group.compare(test, PING_PONG, TAIL, Some(AtMost(tail))).by_difference();
        }
        self.push_beside_before(group, messages, place, "us, p50", None);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use ferrowarp_tests::process::temp_dir;

    use super::*;

    #[test]
    fn names_are_distinct_and_tell_size_mtu_and_cores() {
        let (folder, scratch) = (temp_dir().unwrap(), temp_dir().unwrap());
        let program = folder.path().join("iwperf");
        std::fs::write(&program, "").unwrap();
        let setup = Setup { bin: folder.path().into(), cores: vec![0, 1], scratch, quick: false };
        let groups = groups(&setup, &Options { before: Some(program) }).unwrap();
        let names: HashSet<&str> = groups.iter().map(|group| &*group.name).collect();
        assert_eq!(names.len(), groups.len());
        for name in ["write-bw-1M-9000-two", "write-bw-4K-9000-one-q10000-shared"] {
            assert!(names.contains(name), "{name} in {names:?}");
        }
    }
}
