//! Cost of many connections: to a busy one beside them, in memory, in set-up and end, to control
//! calls of several shards.

mod control;

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use ferrowarp::{Context, Qp};

use super::{Case, Setup};
use crate::cores::on_core;
use crate::model::Limit::{self, AtLeast, AtMost, EachAtMost};
use crate::ring::{End, Pair, config};
use crate::runner::{Figures, Group};

pub(crate) const CASE: Case = Case {
    name: "connections",
    title: "Cost of connections",
    rounds: 9,
    seconds: 1.0,
    quick: (6, 0.3),
};

#[derive(Args)]
pub(crate) struct Options {
    /// Open connections beside the measured ones, and those of each step of the memory
    #[arg(long, default_value_t = 10_000, value_parser = count_up_to(50_000))]
    idle: u32,
    /// Connections of many-connections
    #[arg(long, default_value_t = 100_000, value_parser = count_up_to(1_000_000))]
    many: u32,
    /// Messages on each connection of many-connections
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    messages: u8,
    /// Connections that are set up and ended for their rate
    #[arg(long, default_value_t = 4000, value_parser = count_up_to(50_000))]
    set_ups: u32,
    /// Shards of each context of control-calls, compared with one
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u8).range(1..=64))]
    shards: u8,
    /// Control calls of each kind in a round
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    calls: u32,
}

fn count_up_to(max: i64) -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=max)
}

/// Time of a Write beside idle connections, as a multiple of the time alone.
const IDLE_LIMIT: Limit = AtMost(1.03);
/// Bytes of an idle connected queue pair beside its slots.
const BYTES_LIMIT: Limit = EachAtMost(2048.0);
/// Rate of set-ups and ends beside other connections, as a share of the rate without.
const RATE_LIMIT: Limit = AtLeast(0.9);
/// Writes that are measured: name, bytes, outstanding at a time.
const WRITES: [(&str, u32, usize); 2] = [("64K", 65_536, 16), ("64", 64, 64)];
/// Time before each measurement of Writes, with the same traffic.
const WARM_UP: Duration = Duration::from_millis(20);
/// Time after which a connection has freed what it needed for its set-up, by timers.
const IDLE_TIME: Duration = Duration::from_millis(1500);
/// Time without an end of TIME-WAIT.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Requests in each queue, of the two kinds of queue pairs whose memory is measured.
const DEPTHS: [usize; 2] = [1, 64];
/// Bytes of a slot of a work queue: a request in both queues has whole slots.
const SLOT_LEN: i64 = 64;
const MESSAGE_LEN: usize = 16;
const WINDOW: usize = 256;

const RATES: [&str; 2] = ["set-ups per second", "ends per second"];
const WRITE: &str = "ns per Write";
const BYTES: [&str; 2] = ["bytes resident", "bytes allocated"];
const MANY: [&str; 5] =
    [RATES[0], "messages per second", RATES[1], "MiB resident before", "MiB resident with all"];

pub(crate) fn groups(setup: &Setup, options: &Options) -> Vec<Group> {
    let core = setup.cores[0];
    let (idle, set_ups) = (options.idle as usize, options.set_ups as usize);
    // Memory first: what later parts free would be used again.
    let mut groups: Vec<Group> = Vec::new();
    for depth in DEPTHS {
        let table = "Memory of an idle queue pair beside its slots";
        let group = Group::new(table, format!("memory-{depth}-requests"))
            .contender("ours", move |_| on_core(core, move || memory(idle, depth)))
            .show("ours", &BYTES, Some(BYTES_LIMIT));
        groups.push(group.once());
    }
    for (name, size, depth) in WRITES {
        let measure =
            |count| move |seconds| on_core(core, move || write_beside(count, size, depth, seconds));
        let beside = format!("beside {idle}");
        let table = "A busy queue pair beside idle connections";
        let group = Group::new(table, format!("write-{name}-beside-idle"))
            .contender("alone", measure(0))
            .contender(&beside, measure(idle))
            .compare(&beside, "alone", WRITE, Some(IDLE_LIMIT));
        groups.push(group);
    }
    let (many, messages) = (options.many as usize, options.messages);
    let group = Group::new("Many connections", format!("many-connections-{many}"))
        .contender("ours", move |_| on_core(core, move || many_connections(many, messages)))
        .show("ours", &MANY, None);
    groups.push(group.once());
    let measure = |open| move |_| on_core(core, move || set_ups_and_ends(open, set_ups));
    let (name, beside) = (format!("set-up-rate-{set_ups}"), format!("beside {idle}"));
    let mut group = Group::new("Rate of set-ups and ends", name)
        .contender("alone", measure(0))
        .contender(&beside, measure(idle));
    for figure in RATES {
        group = group.compare(&beside, "alone", figure, Some(RATE_LIMIT));
    }
    groups.push(group);
    groups.push(control_calls(setup, options));
    groups
}

/// Two contexts over `ring`, and connections between them.
struct Ends {
    left: End,
    right: End,
}

impl Ends {
    /// Opens contexts for so many connections, with a region of so many bytes each.
    fn open(connections: usize, len: usize) -> Result<Self> {
        let of_host = |host| {
            let mut config = config(host, 1500, connections);
            // Graceful ends are measured.
            config.linger = TIMEOUT;
            config
        };
        let (left, right) = Context::ring_pair(of_host(1), of_host(2))?;
        let end = |context, host| End::new(context, host, 0, connections.min(1 << 14), len);
        Ok(Self { left: end(left, 1)?, right: end(right, 2)? })
    }

    /// Creates and connects `count` queue pairs of so many requests at each end.
    fn set_up(&mut self, count: usize, send: usize, recv: usize) -> Result<()> {
        self.left.add_qps(count, send, recv)?;
        self.right.add_qps(count, send, recv)?;
        self.connect_last(count)
    }

    fn connect_last(&mut self, count: usize) -> Result<()> {
        let all = self.left.qp_count();
        (all - count..all).try_for_each(|index| self.left.connect(index, &mut self.right, index))
    }

    fn end(&mut self, count: usize) -> Result<()> {
        (0..count).try_for_each(|_| self.left.end_last(&mut self.right))
    }

    /// Polls both ends once; returns the number of completions at the left one.
    #[inline]
    fn poll(&mut self) -> Result<usize> {
        let mut completed = 0;
        self.left.poll(|_, _, count| {
            completed += count;
            Ok(())
        })?;
        self.right.poll(|_, _, _| Ok(()))?;
        Ok(completed)
    }

    fn poll_for(&mut self, duration: Duration) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < duration {
            self.poll()?;
        }
        Ok(())
    }

    /// Waits for the end of TIME-WAIT, and fails unless both ends are as before the first
    /// connection.
    fn check_nothing_left(&mut self) -> Result<()> {
        let start = Instant::now();
        let count = |end: &End| end.context().connection_count();
        while count(&self.left) + count(&self.right) > 0 {
            self.poll()?;
            ensure!(start.elapsed() < TIMEOUT, "connections are left");
        }
        for end in [&self.left, &self.right] {
            let usage = end.context().usage().engine;
            let waiting = [usage.half_open, usage.awaiting_request, usage.awaiting_decision];
            let held =
                [usage.tuples, usage.retained_segments, usage.partial_fpdus, usage.ooo_frames];
            ensure!(waiting == [0; 3] && held == [0; 4], "left over: {usage:?}");
        }
        Ok(())
    }
}

/// Returns the bytes of anonymous memory of this process that are resident: frames in hugepages are
/// not among them.
fn resident() -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).context("no RssAnon")?;
    Ok(kib.parse::<f64>()? * 1024.0)
}

/// Executes `act`; returns the bytes that it has allocated and not freed.
fn allocated(act: impl FnOnce() -> Result<()>) -> Result<i64> {
    let (mut act, mut result) = (Some(act), Ok(()));
    let info = allocation_counter::measure(|| {
        result = act.take().map_or(Ok(()), |act| act());
    });
    result.map(|()| info.bytes_current)
}

/// Measures the memory of `count` queue pairs of so many requests in each queue, beside as many
/// that are there already: those that are measured find tables and pages as large as they need.
fn memory(count: usize, depth: usize) -> Result<Figures> {
    let mut ends = Ends::open(2 * count + 2, 64)?;
    ends.set_up(count, depth, depth)?;
    // What is not whole slots belongs to the stack's tables of requests.
    let [small, large] = DEPTHS;
    let mut probe = |depth| allocated(|| ends.left.add_qps(1, depth, depth));
    let bytes = (probe(large)? - probe(small)?) / i64::try_from(large - small)?;
    let slots = (bytes / SLOT_LEN * SLOT_LEN) as f64 * depth as f64;
    ends.right.add_qps(2, 1, 1)?;
    ends.poll_for(IDLE_TIME)?;
    let before = resident()?;
    let created = allocated(|| ends.left.add_qps(count, depth, depth))?
        + allocated(|| ends.right.add_qps(count, depth, depth))?;
    let connected = allocated(|| {
        ends.connect_last(count)?;
        ends.poll_for(IDLE_TIME)
    })?;
    let each = |bytes: f64| bytes / (2 * count) as f64 - slots;
    // The application holds the handle.
    let allocated = each((created + connected) as f64) + size_of::<Qp>() as f64;
    Ok(Figures::from([(BYTES[0], each(resident()? - before)), (BYTES[1], allocated)]))
}

/// Measures the Writes of one queue pair beside `idle` idle connections of the same contexts.
fn write_beside(idle: usize, size: u32, depth: usize, seconds: f64) -> Result<Figures> {
    let mut ends = Ends::open(idle + 1, size as usize)?;
    ends.set_up(1, depth, 1)?;
    ends.set_up(idle, 1, 1)?;
    let mut pair = Pair::new(ends.left, ends.right, size, depth)?;
    pair.run(WARM_UP)?;
    let gbit_s = pair.run(Duration::from_secs_f64(seconds))?;
    ensure!(gbit_s > 0.0, "no Write has completed: more --seconds");
    Ok(Figures::from([(WRITE, f64::from(size) * 8.0 / gbit_s)]))
}

/// Returns the rate at which `act` does `count` things.
fn per_second(count: usize, act: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    act()?;
    Ok(count as f64 / start.elapsed().as_secs_f64())
}

/// Sets up `count` connections, writes messages on each, which are compared, and ends them. All
/// have to succeed, and nothing may be left.
fn many_connections(count: usize, rounds: u8) -> Result<Figures> {
    let mut ends = Ends::open(count, count * MESSAGE_LEN)?;
    let mib = || Ok::<_, anyhow::Error>(resident()? / f64::from(1 << 20));
    let before = mib()?;
    let set_ups = per_second(count, || ends.set_up(count, 1, 1))?;
    let mut messages = 0.0;
    for round in 1..=rounds {
        let bytes: Vec<u8> = (0..count)
            .flat_map(|index| ((index as u128) << 8 | u128::from(round)).to_le_bytes())
            .collect();
        ends.left.mr().write(0, &bytes);
        let (mut posted, mut completed) = (0, 0);
        messages = per_second(count, || {
            while completed < count {
                while posted < count && posted - completed < WINDOW {
                    let len = u32::try_from(MESSAGE_LEN)?;
                    let write = ends.right.write_to(posted * MESSAGE_LEN, len);
                    ends.left.write(posted, 1, &write)?;
                    posted += 1;
                }
                completed += ends.poll()?;
            }
            Ok(())
        })?;
        ends.poll_for(WARM_UP)?;
        let mut placed = vec![0; bytes.len()];
        ends.right.mr().read(0, &mut placed);
        ensure!(placed == bytes, "round {round}: other bytes were placed");
    }
    let with_all = mib()?;
    let ended = per_second(count, || ends.end(count))?;
    ends.check_nothing_left()?;
    Ok(MANY.into_iter().zip([set_ups, messages, ended, before, with_all]).collect())
}

/// Sets up and ends `count` connections beside `open` others.
fn set_ups_and_ends(open: usize, count: usize) -> Result<Figures> {
    let mut ends = Ends::open(open + count, 64)?;
    ends.set_up(open, 1, 1)?;
    let set_ups = per_second(count, || ends.set_up(count, 1, 1))?;
    let ended = per_second(count, || ends.end(count))?;
    Ok(Figures::from([(RATES[0], set_ups), (RATES[1], ended)]))
}

/// Latency of control calls with many shards under load next to the latency with one.
fn control_calls(setup: &Setup, options: &Options) -> Group {
    let measure = |shards: usize| {
        let (samples, cores) = (options.calls as usize, setup.two_cores());
        move |_| control::run(shards, samples, cores)
    };
    let shards = usize::from(options.shards);
    let many = format!("{shards} shards");
    let mut group = Group::new("Control calls beside traffic", "control-calls")
        .contender("1 shard", measure(1))
        .contender(&many, measure(shards));
    for figure in control::CALLS.into_iter().chain([control::DRIVE_ROUND]) {
        group = group.compare(&many, "1 shard", figure, None);
    }
    group
}
