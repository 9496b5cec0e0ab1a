//! Connections of all kinds of ends, on all shards of two contexts: for seconds, or for hours with
//! `FERROWARP_SOAK_SECONDS`.
//!
//! Each shard of each end has a thread that drives it. Workers, threads of their own too, make
//! connections in batches, use them and end them ([`worker`]); from time to time a context
//! disappears while its peers write to it ([`lost_peer`]).

mod life;
mod lost_peer;
mod requests;
mod tallies;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use ferrowarp::device::{DeviceSpec, FramesFree, register_current_thread};
use ferrowarp::{Access, Config, Context, CreateError, QpOptions};
use ferrowarp_tests::process;

use self::tallies::Tallies;
use self::worker::Worker;

/// Seconds without the variable.
const SECONDS_DEFAULT: f64 = 5.0;
/// Least time in which memory has grown to what the traffic needs, so that it has to be flat. Run
/// such a soak alone: `--test device soak::`.
const FLAT_AFTER: Duration = Duration::from_secs(60);
/// Queue pairs at a time, and regions.
const OBJECTS_MAX: usize = 1024;
/// Time from one lost peer to the next.
const LOST_PEER_INTERVAL: Duration = Duration::from_secs(10);
/// Time until nothing is left at the end.
const END_TIMEOUT: Duration = Duration::from_secs(60);
/// Time in which memory grows to what the traffic needs: half of the whole, if that is less.
const WARM_UP_MAX: Duration = Duration::from_secs(30);
/// Resident memory is flat if it grows by no more than the larger of these: share, bytes.
const GROWTH_MAX: (f64, u64) = (0.02, 2 << 20);

/// Length and load of a soak.
#[derive(Clone, Debug)]
struct Setup {
    /// Time.
    duration: Duration,
    /// Shards of each context.
    shards: usize,
    /// Threads that make connections.
    workers: usize,
}

impl Setup {
    /// Returns the time after which memory is compared.
    fn warm_up(&self) -> Duration {
        WARM_UP_MAX.min(self.duration / 2)
    }
}

/// State of a soak at one time.
#[derive(Clone, Debug)]
struct Line {
    /// Time since the start.
    seconds: f64,
    /// Tallies: made, ended, broken, refused, lost peers.
    counts: [u64; 5],
    /// Bytes verified.
    verified: u64,
    /// Resident bytes.
    resident: u64,
    /// Connections of both contexts, those in TIME-WAIT included.
    connections: usize,
    /// Free frames of both contexts, all pools.
    frames_free: u64,
    /// Frames dropped, CRC errors, out-of-order segments dropped, shortages of frames and overruns
    /// of completion queues, in both contexts.
    losses: [u64; 5],
}

/// Results.
#[derive(Clone, Debug)]
struct Soak {
    /// A line for each minute.
    lines: Vec<Line>,
    /// Resident bytes, each second after the warm-up.
    resident: Vec<u64>,
    /// Failures of the workers.
    failures: Vec<String>,
}

impl Soak {
    /// Returns the medians of resident memory in the second and in the last tenth of the time after
    /// the warm-up; `None` if there are too few samples.
    fn residents(&self) -> Option<(f64, f64)> {
        let tenth = self.resident.len() / 10;
        let median = |from: usize| {
            let mut values = self.resident.get(from..from + tenth)?.to_vec();
            values.sort_unstable();
            values.get(tenth / 2).map(|&bytes| bytes as f64)
        };
        Some((median(tenth)?, median(self.resident.len() - tenth)?))
    }

    /// Returns whether resident memory is flat; `None` if there are too few samples.
    fn is_flat(&self) -> Option<bool> {
        let (second, last) = self.residents()?;
        let (share, bytes) = GROWTH_MAX;
        Some(last - second <= f64::max(second * share, bytes as f64))
    }
}

/// Configuration of the host 198.18.0.`host` for so many connections at a time.
fn config(host: u8, connections: usize) -> Config {
    let mut config = Config::new(DeviceSpec::Ring, [198, 18, 0, host].into(), 24);
    config.source_ports = 10_000..=65_534;
    config.qps_max = connections;
    // As many again may be in TIME-WAIT.
    config.limits.connections_max = 2 * connections;
    config.drop_linger = Duration::ZERO;
    config
}

/// Objects that a context can make: what is lost lacks.
fn capacity(context: &Context) -> Result<[usize; 2]> {
    let (cq, pd) = (context.create_cq(1)?, context.alloc_pd());
    let options = QpOptions::new(&cq).max_send_wr(1).max_recv_wr(1);
    let mut qps = Vec::new();
    loop {
        match pd.create_qp(&options) {
            Ok(qp) => qps.push(qp),
            Err(CreateError::Limit(_)) => break,
            Err(error) => return Err(error.into()),
        }
    }
    let mut regions = Vec::new();
    while let Ok(region) = pd.register(context.allocate(1)?, Access::LOCAL_READ) {
        regions.push(region);
    }
    Ok([qps.len(), regions.len()])
}

/// Runs it. A line goes to `progress` each minute, or each sixth of a shorter time.
fn run(setup: &Setup, mut progress: impl FnMut(&str)) -> Result<Soak> {
    let with_shards = |host| {
        let mut config = config(host, OBJECTS_MAX);
        (config.shards, config.regions_max) = (setup.shards, OBJECTS_MAX);
        config.limits.connections_max = 1 << 14;
        // An end that the peer does not acknowledge is given up after a while.
        config.linger = Duration::from_secs(2);
        config
    };
    let (left, right) = Context::ring_pair(with_shards(1), with_shards(2))?;
    let ends = [left, right];
    let capacities = [capacity(&ends[0])?, capacity(&ends[1])?];
    let mut soak = Soak { lines: vec![], resident: vec![], failures: vec![] };
    let tallies = Arc::new(Tallies::default());
    let (workers_stop, drivers_stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut frames_before = None;
    thread::scope(|scope| -> Result<()> {
        for shard in ends.iter().flat_map(|end| (0..setup.shards).map(|index| end.shard(index))) {
            let (shard, stops) = (shard.ok_or_else(|| anyhow!("no such shard"))?, &drivers_stop);
            scope.spawn(move || {
                register_current_thread();
                while !stops.load(Ordering::Relaxed) {
                    if !shard.drive() {
                        thread::yield_now();
                    }
                }
            });
        }
        let mut workers = Vec::new();
        for number in 0..setup.workers {
            let worker = Worker::new(number, &ends, &tallies)?;
            let stops = &workers_stop;
            workers.push(scope.spawn(move || worker.run(stops)));
        }
        frames_before = Some(frames_free(&ends));
        let is_over = || workers.iter().any(thread::ScopedJoinHandle::is_finished);
        watch(setup, &ends, &tallies, is_over, &mut soak, &mut progress);
        workers_stop.store(true, Ordering::Relaxed);
        for worker in workers {
            let result = worker.join().unwrap_or_else(|_| Err(anyhow!("a worker has panicked")));
            soak.failures.extend(result.err().map(|error| format!("{error:#}")));
        }
        let left = await_nothing_left(&ends);
        soak.failures.extend(left.err().map(|error| format!("{error:#}")));
        drivers_stop.store(true, Ordering::Relaxed);
        Ok(())
    })
    .inspect_err(|_| drivers_stop.store(true, Ordering::Relaxed))?;
    let capacities_left = [capacity(&ends[0])?, capacity(&ends[1])?];
    if capacities_left != capacities {
        soak.failures.push(format!(
            "queue pairs and regions of each end: {capacities:?} at the start, {capacities_left:?} \
             at the end"
        ));
    }
    let frames = frames_free(&ends);
    if frames_before.is_some_and(|before| frames < before) {
        soak.failures.push(format!("free frames: {frames_before:?} at the start, {frames} left"));
    }
    if setup.duration >= FLAT_AFTER && soak.is_flat() == Some(false) {
        soak.failures.push(format!("resident memory has grown: {:?}", soak.residents()));
    }
    soak.lines.push(line(setup.duration, &ends, &tallies)?);
    Ok(soak)
}

/// Samples memory each second, and loses a peer from time to time, until the time is over or a
/// worker has failed.
fn watch(
    setup: &Setup,
    ends: &[Context; 2],
    tallies: &Tallies,
    is_over: impl Fn() -> bool,
    soak: &mut Soak,
    progress: &mut impl FnMut(&str),
) {
    let start = Instant::now();
    let interval = Duration::from_secs(60).min(setup.duration / 6);
    let (mut next_sample, mut next_line, mut next_lost) =
        (setup.warm_up(), interval, LOST_PEER_INTERVAL.min(setup.duration / 4));
    let sample_interval = Duration::from_secs(1).min(setup.duration / 100);
    while start.elapsed() < setup.duration && !is_over() {
        let elapsed = start.elapsed();
        let result = (|| {
            if elapsed >= next_sample {
                soak.resident.push(process::resident_bytes() as u64);
                next_sample = elapsed + sample_interval;
            }
            if elapsed >= next_lost {
                lost_peer::run(tallies)?;
                next_lost = elapsed + LOST_PEER_INTERVAL;
            }
            if elapsed >= next_line {
                let line = line(elapsed, ends, tallies)?;
                progress(&line.describe());
                soak.lines.push(line);
                next_line = elapsed + interval;
            }
            Ok::<_, anyhow::Error>(())
        })();
        if let Err(error) = result {
            soak.failures.push(format!("{error:#}"));
            return;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn line(elapsed: Duration, ends: &[Context; 2], tallies: &Tallies) -> Result<Line> {
    let Tallies { made, ended, broken, refused, verified, peers_lost } = tallies;
    let counters = ends.each_ref().map(Context::counters);
    let sum = |of: fn(&ferrowarp::stats::EngineCounters) -> u64| {
        counters.iter().map(|counters| of(&counters.engine)).sum()
    };
    Ok(Line {
        seconds: elapsed.as_secs_f64(),
        counts: [made, ended, broken, refused, peers_lost].map(|it| it.load(Ordering::Relaxed)),
        verified: verified.load(Ordering::Relaxed),
        resident: process::resident_bytes() as u64,
        connections: ends.iter().map(Context::connection_count).sum(),
        frames_free: frames_free(ends),
        losses: [
            sum(|counters| counters.frames_dropped),
            sum(|counters| counters.crc_errors),
            sum(|counters| counters.ooo_dropped),
            sum(|counters| counters.frame_shortages),
            sum(|counters| counters.cq_overruns),
        ],
    })
}

impl Line {
    /// Describes it in one line.
    fn describe(&self) -> String {
        let Self { seconds, counts, verified, resident, connections, frames_free, losses } = self;
        let [made, ended, broken, refused, peers_lost] = counts;
        let [dropped, crc, ooo, shortages, overruns] = losses;
        format!(
            "soak, {seconds:.0} s: {made} connections made, {ended} ended, {broken} broken, \
             {refused} attempts refused, {peers_lost} peers lost; {:.1} MiB verified; {:.1} MiB \
             resident; {connections} connections, {frames_free} frames free; dropped: {dropped} \
             frames, {ooo} segments out of order; {crc} CRC errors, {shortages} shortages of \
             frames, {overruns} overruns",
            *verified as f64 / f64::from(1 << 20),
            *resident as f64 / f64::from(1 << 20),
        )
    }
}

/// Free frames of both contexts, all pools.
fn frames_free(ends: &[Context; 2]) -> u64 {
    let free = ends.iter().filter_map(|end| end.usage().frames_free);
    free.map(|FramesFree { data, control, reserve, .. }| u64::from(data + control + reserve)).sum()
}

/// Waits until the contexts, which others drive, are as before the first connection.
fn await_nothing_left(ends: &[Context; 2]) -> Result<()> {
    let start = Instant::now();
    while ends.iter().any(|end| end.connection_count() > 0) {
        let usages = ends.each_ref().map(|end| end.usage().engine);
        ensure!(start.elapsed() < END_TIMEOUT, "connections are left: {usages:?}");
        thread::sleep(Duration::from_millis(10));
    }
    for usage in ends.iter().map(|end| end.usage().engine) {
        let counts = [usage.half_open, usage.awaiting_request, usage.awaiting_decision];
        let held = [usage.tuples, usage.retained_segments, usage.partial_fpdus, usage.ooo_frames];
        ensure!(counts == [0; 3] && held == [0; 4], "left over: {usage:?}");
    }
    Ok(())
}

#[test]
fn connections_of_all_kinds_of_ends_leave_nothing_behind() {
    let seconds = std::env::var("FERROWARP_SOAK_SECONDS");
    let seconds =
        seconds.map_or(SECONDS_DEFAULT, |text| text.parse().expect("a number of seconds"));
    let setup = Setup { duration: Duration::from_secs_f64(seconds), shards: 2, workers: 2 };
    let soak = run(&setup, |line| println!("{line}")).unwrap();
    assert!(soak.failures.is_empty(), "{:#?}", soak.failures);
    let last = soak.lines.last().expect("a line at the end");
    let [made, ended, broken, ..] = last.counts;
    assert_eq!(made, ended + broken, "{}", last.describe());
    assert!(last.verified > 0 && last.connections == 0, "{}", last.describe());
}

#[test]
fn memory_that_grows_is_not_flat() {
    let soak = |last| {
        let mut resident = vec![50 << 20; 90];
        // The first tenth does not count.
        resident[..10].fill(1 << 20);
        resident.extend([last; 10]);
        Soak { lines: vec![], resident, failures: vec![] }
    };
    assert_eq!(soak(52 << 20).is_flat(), Some(true));
    assert_eq!(soak(53 << 20).is_flat(), Some(false));
    assert_eq!(Soak { resident: vec![1; 9], ..soak(1) }.is_flat(), None);
}
