//! Latency of control calls of a context whose shards are all under load.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use core_affinity::CoreId;
use ferrowarp::device::register_current_thread;
use ferrowarp::{
    Access, ConnParam, Context, Cq, CqOptions, Event, Listener, Mr, Operation, Payload, Pd, Qp,
    QpOptions, SendWr, ShardHandle, Wc, WcStatus,
};
use hdrhistogram::Histogram;

use super::ends::config;

/// Port of the loaded connections, and of the measured ones.
const PORTS: [u16; 2] = [4791, 4792];
/// Bytes of the Writes that are the load, and how many each shard has outstanding.
pub const LOAD: (u32, usize) = (65_536, 4);
/// Bytes of the regions that are deregistered.
pub const REGION_LEN: usize = 65_536;
/// Queue pairs and connections at a time, those in TIME-WAIT included.
const CONNECTIONS: usize = 8192;
/// Time until a connection is established or has ended.
const TIMEOUT: Duration = Duration::from_secs(20);

/// What is measured.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Shards of each context.
    pub shards: usize,
    /// Control calls of each kind.
    pub samples: usize,
    /// Cores: the last one has the thread that calls, the others drive the shards.
    pub cores: Vec<usize>,
}

impl Setup {
    /// Returns the number of threads that drive shards, each of both contexts.
    #[must_use]
    pub fn driver_count(&self) -> usize {
        self.shards.min(self.cores.len().saturating_sub(1)).max(1)
    }

    fn core(&self, driver: usize) -> Result<usize> {
        self.cores.get(driver).copied().context("a driver has a core")
    }
}

/// Latencies in nanoseconds.
#[derive(Clone, Debug)]
pub struct Latencies {
    /// From `connect` to the event of the establishment at the initiator.
    pub connect: Histogram<u64>,
    /// Of the deregistration of a region.
    pub deregister: Histogram<u64>,
    /// Writes of the load that have completed on each shard meanwhile.
    pub load: Vec<u64>,
    /// Mean time in which a thread drives each of its shards once, in nanoseconds: the longest of
    /// these threads. The handshake of `connect` takes at least two.
    pub drive_round: f64,
    /// Time for which threads were ready to run and had no core, in nanoseconds: the one that
    /// calls, and those that drive the shards together. `None` if the kernel does not count it.
    pub core_waits: Option<[u64; 2]>,
}

/// Measures on threads of their own.
///
/// # Errors
/// Errors of the device and the verbs, and if a shard had no load.
pub fn run(setup: &Setup) -> Result<Latencies> {
    ensure!(!setup.cores.is_empty(), "no cores");
    thread::scope(|scope| {
        let thread = scope.spawn(|| measure(setup));
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn measure(setup: &Setup) -> Result<Latencies> {
    let with_shards = |host| {
        let mut config = config(host, CONNECTIONS);
        config.shards = setup.shards;
        config
    };
    let (left, right) = Context::ring_pair(with_shards(1), with_shards(2))?;
    let loads = connect_loads(&left, &right)?;
    let counts: Vec<AtomicU64> = loads.iter().map(|_| AtomicU64::new(0)).collect();
    let mut of_drivers: Vec<Vec<(Load, &AtomicU64)>> = Vec::new();
    of_drivers.resize_with(setup.driver_count(), Vec::new);
    for (index, load) in loads.into_iter().enumerate() {
        of_drivers[index % setup.driver_count()].push((load, &counts[index]));
    }
    let shares_core = setup.cores.len() == 1;
    let control = Control::new(&left, &right, shares_core)?;
    let stops = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut drivers = Vec::new();
        for (number, loads) in of_drivers.into_iter().enumerate() {
            let core = setup.core(number)?;
            let stops = &stops;
            drivers.push(scope.spawn(move || drive(loads, core, shares_core, stops)));
        }
        let result = (|| {
            pin(*setup.cores.last().context("a core")?)?;
            register_current_thread();
            while counts.iter().any(|count| count.load(Ordering::Relaxed) == 0) {
                ensure!(!drivers.iter().any(thread::ScopedJoinHandle::is_finished), "no load");
                thread::yield_now();
            }
            let before: Vec<u64> = counts.iter().map(|it| it.load(Ordering::Relaxed)).collect();
            let waited_before = core_wait();
            let mut latencies = control.measure(setup.samples)?;
            let waited = core_wait().zip(waited_before).map(|(after, before)| after - before);
            latencies.core_waits = waited.map(|waited| [waited, 0]);
            let load = |(count, before): (&AtomicU64, &u64)| count.load(Ordering::Relaxed) - before;
            latencies.load = counts.iter().zip(&before).map(load).collect();
            ensure!(latencies.load.iter().all(|&count| count > 0), "{:?}", latencies.load);
            Ok(latencies)
        })();
        stops.store(true, Ordering::Relaxed);
        let mut latencies = result;
        for driver in drivers {
            let driven = driver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            if let Ok(latencies) = &mut latencies {
                latencies.drive_round = latencies.drive_round.max(driven.round);
                latencies.core_waits = latencies
                    .core_waits
                    .zip(driven.core_wait)
                    .map(|([calling, driving], more)| [calling, driving + more]);
            }
        }
        latencies
    })
}

fn pin(core: usize) -> Result<()> {
    ensure!(core_affinity::set_for_current(CoreId { id: core }), "cannot pin to core {core}");
    Ok(())
}

/// The Writes of one shard.
struct Load {
    // Before what they use: fields are dropped in their order.
    active: Qp,
    _passive: Qp,
    source: Mr,
    sink: Mr,
    cq: Cq,
    /// The shard at the other end.
    peer: ShardHandle,
    completions: Vec<Wc>,
    outstanding: usize,
}

fn connect_loads(left: &Context, right: &Context) -> Result<Vec<Load>> {
    let (len, depth) = LOAD;
    let listener = right.listen(PORTS[0], 1)?;
    let (pd_l, pd_r) = (left.alloc_pd(), right.alloc_pd());
    let cq_r = right.create_cq(64)?;
    let load = |shard| {
        let cq = left.create_cq_with(&CqOptions::new(64).shard(shard))?;
        let active = pd_l.create_qp(&QpOptions::new(&cq).max_send_wr(depth))?;
        let passive = pd_r.create_qp(&QpOptions::new(&cq_r).max_recv_wr(1))?;
        active.connect(([198, 18, 0, 2], PORTS[0]).into(), ConnParam::default())?;
        let request = listener.accept_timeout(TIMEOUT).context("no request")?;
        request.accept(&passive, ConnParam::default())?;
        active.wait_established(TIMEOUT)?;
        passive.wait_established(TIMEOUT)?;
        let peer = passive.shard().and_then(|shard| right.shard(shard)).context("no shard")?;
        let source = pd_l.register(left.allocate(len as usize)?, Access::LOCAL_READ)?;
        let sink = pd_r.register(right.allocate(len as usize)?, Access::REMOTE_WRITE)?;
        let completions = Vec::with_capacity(64);
        Ok(Load { active, _passive: passive, source, sink, cq, peer, completions, outstanding: 0 })
    };
    (0..left.shard_count()).map(load).collect()
}

impl Load {
    /// Keeps the Writes outstanding, and polls both ends; returns how many have completed.
    fn step(&mut self) -> Result<u64> {
        let (len, depth) = LOAD;
        let (rkey, remote) = (self.sink.rkey(), self.sink.addr());
        let wrs = (self.outstanding..depth).map(|_| {
            let payload = Payload::Gather([self.source.sge(0, len)].into());
            let operation = Operation::Write { payload, rkey, remote };
            SendWr { wr_id: 0, operation, signaled: true, fence: false }
        });
        let (posted, error) = self.active.post_sends(wrs);
        self.outstanding += posted;
        ensure!(error.is_none(), "a Write of the load: {error:?}");
        let count = self.cq.poll(&mut self.completions);
        self.outstanding -= count;
        if let Some(wc) = self.completions.drain(..).find(|wc| wc.status != WcStatus::Success) {
            bail!("the load: {wc:?}");
        }
        self.peer.drive();
        Ok(count as u64)
    }
}

/// Time for which this thread was ready to run and had no core since its start, in nanoseconds.
fn core_wait() -> Option<u64> {
    // Time on a core, time waiting for one, time slices (linux Documentation/scheduler/
    // sched-stats.rst).
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().nth(1)?.parse().ok()
}

/// What a thread that drives shards reports.
struct Driven {
    /// Mean time for each of its shards once, in nanoseconds.
    round: f64,
    /// See [`core_wait`].
    core_wait: Option<u64>,
}

/// Drives some shards of both ends, until it is told to stop.
fn drive(
    mut loads: Vec<(Load, &AtomicU64)>,
    core: usize,
    shares_core: bool,
    stops: &AtomicBool,
) -> Result<Driven> {
    pin(core)?;
    register_current_thread();
    let (start, mut rounds) = (Instant::now(), 0_u64);
    while !stops.load(Ordering::Relaxed) {
        for (load, count) in &mut loads {
            count.fetch_add(load.step()?, Ordering::Relaxed);
        }
        rounds += 1;
        if shares_core {
            thread::yield_now();
        }
    }
    let round = start.elapsed().as_nanos() as f64 / rounds.max(1) as f64;
    Ok(Driven { round, core_wait: core_wait() })
}

/// The thread that makes control calls, and drives no shard in between.
struct Control<'a> {
    listener: Listener,
    left: &'a Context,
    pds: [Pd; 2],
    cqs: [Cq; 2],
    /// The shards are driven on the core of this thread.
    shares_core: bool,
}

impl<'a> Control<'a> {
    fn new(left: &'a Context, right: &'a Context, shares_core: bool) -> Result<Self> {
        let listener = right.listen(PORTS[1], 4)?;
        let pds = [left, right].map(Context::alloc_pd);
        let cqs = [left.create_cq(64)?, right.create_cq(64)?];
        Ok(Self { listener, left, pds, cqs, shares_core })
    }

    fn measure(&self, samples: usize) -> Result<Latencies> {
        let (mut connect, mut deregister) = (Histogram::new(3)?, Histogram::new(3)?);
        let mut buffer = self.left.allocate(REGION_LEN)?;
        for _ in 0..samples {
            connect.record(nanos(self.connect()?))?;
            let region = self.pds[0].register(buffer, Access::ALL)?;
            let start = Instant::now();
            let returned = region.deregister();
            deregister.record(nanos(start.elapsed()))?;
            buffer = returned.context("the region has a buffer")?;
        }
        let (load, drive_round, core_waits) = (Vec::new(), 0.0, None);
        Ok(Latencies { connect, deregister, load, drive_round, core_waits })
    }

    /// Connects, and ends the connection; returns the time until it was established.
    fn connect(&self) -> Result<Duration> {
        let qp = |end: usize| {
            let options = QpOptions::new(&self.cqs[end]).max_send_wr(1).max_recv_wr(1);
            self.pds[end].create_qp(&options)
        };
        let (active, passive) = (qp(0)?, qp(1)?);
        let start = Instant::now();
        active.connect(([198, 18, 0, 2], PORTS[1]).into(), ConnParam::default())?;
        self.await_event(|| {
            let request = self.listener.next_request()?;
            Some(request.accept(&passive, ConnParam::default()))
        })??;
        let event = self.await_event(|| active.next_event())?;
        let elapsed = start.elapsed();
        ensure!(matches!(event, Event::Established { .. }), "{event:?}");
        let event = self.await_event(|| passive.next_event())?;
        ensure!(matches!(event, Event::Established { .. }), "{event:?}");
        active.close()?;
        for qp in [&active, &passive] {
            let event = self.await_event(|| qp.next_event())?;
            ensure!(matches!(event, Event::Disconnected { .. }), "{event:?}");
        }
        Ok(elapsed)
    }

    /// Calls `ready` until it returns something, without driving a shard.
    fn await_event<T>(&self, mut ready: impl FnMut() -> Option<T>) -> Result<T> {
        let start = Instant::now();
        loop {
            if let Some(value) = ready() {
                return Ok(value);
            }
            ensure!(start.elapsed() < TIMEOUT, "no event in {TIMEOUT:?}");
            if self.shares_core {
                thread::yield_now();
            } else {
                // Not a yield, which beside other tasks would cost time slices.
                std::hint::spin_loop();
            }
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
