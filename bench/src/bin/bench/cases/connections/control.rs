//! Latency of control calls of a context whose shards are all under load.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ferrowarp::device::register_current_thread;
use ferrowarp::{
    Access, ConnParam, Context, Cq, CqOptions, Event, Mr, Operation, Payload, Qp, QpOptions,
    SendWr, ShardHandle, Wc, WcStatus,
};
use hdrhistogram::Histogram;

use crate::cases::pin;
use crate::ring::config;
use crate::runner::Figures;

/// Port of the loaded connections, and of the measured ones.
const PORTS: [u16; 2] = [4791, 4792];
/// Bytes of the Writes that are the load, and how many each shard has outstanding.
const LOAD: (u32, usize) = (65_536, 4);
/// Bytes of the regions that are deregistered.
const REGION_LEN: usize = 65_536;
/// Queue pairs and connections at a time, those in TIME-WAIT included.
const CONNECTIONS: usize = 8192;
/// Time until a connection is established or has ended.
const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) const CALLS: [&str; 4] =
    ["us, p50 of connect", "us, p99 of connect", "us, p50 of deregister", "us, p99 of deregister"];
/// Mean time in which a thread drives each of its shards once. The handshake takes at least two.
pub(crate) const DRIVE_ROUND: &str = "us to drive each shard of a thread once";

/// Measures so many control calls with so many shards, on threads of their own: the last core has
/// the thread that calls, the others drive the shards, each of both ends.
pub(crate) fn run(shards: usize, samples: usize, cores: &[usize]) -> Result<Figures> {
    let with_shards = |host| {
        let mut config = config(host, 1500, CONNECTIONS);
        config.shards = shards;
        config
    };
    let (left, right) = Context::ring_pair(with_shards(1), with_shards(2))?;
    let driver_count = shards.min(cores.len().saturating_sub(1)).max(1);
    let mut of_drivers: Vec<Vec<Load>> = (0..driver_count).map(|_| Vec::new()).collect();
    for (index, load) in connect_loads(&left, &right)?.into_iter().enumerate() {
        of_drivers[index % driver_count].push(load);
    }
    let shares_core = cores.len() == 1;
    let (stops, loaded) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let (stops, loaded) = (&stops, &loaded);
        let drivers: Vec<_> = of_drivers
            .into_iter()
            .zip(cores)
            .map(|(loads, &core)| {
                scope.spawn(move || {
                    let driven = drive(loads, core, shares_core, loaded, stops);
                    stops.store(true, Ordering::Relaxed);
                    driven
                })
            })
            .collect();
        let caller = scope.spawn(move || {
            pin(*cores.last().context("a core")?)?;
            register_current_thread();
            while loaded.load(Ordering::Relaxed) < shards as u64 {
                ensure!(!stops.load(Ordering::Relaxed), "no load");
                thread::yield_now();
            }
            measure(&left, &right, samples, shares_core)
        });
        let result = caller.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        stops.store(true, Ordering::Relaxed);
        let mut longest: f64 = 0.0;
        for driver in drivers {
            let round = driver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            longest = longest.max(round);
        }
        let mut figures = result?;
        figures.insert(DRIVE_ROUND, longest);
        Ok(figures)
    })
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
    has_completed: bool,
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
        Ok(Load {
            active,
            _passive: passive,
            source,
            sink,
            cq,
            peer,
            completions: Vec::with_capacity(64),
            outstanding: 0,
            has_completed: false,
        })
    };
    (0..left.shard_count()).map(load).collect()
}

impl Load {
    /// Keeps the Writes outstanding, and polls both ends; true when the first has completed.
    fn step(&mut self) -> Result<bool> {
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
        let is_first = count > 0 && !self.has_completed;
        self.has_completed |= is_first;
        Ok(is_first)
    }
}

/// Drives some shards of both ends until it is told to stop; returns the mean time for each of them
/// once, in microseconds.
fn drive(
    mut loads: Vec<Load>,
    core: usize,
    shares_core: bool,
    loaded: &AtomicU64,
    stops: &AtomicBool,
) -> Result<f64> {
    pin(core)?;
    register_current_thread();
    let (start, mut rounds) = (Instant::now(), 0_u64);
    while !stops.load(Ordering::Relaxed) {
        for load in &mut loads {
            loaded.fetch_add(load.step()?.into(), Ordering::Relaxed);
        }
        rounds += 1;
        if shares_core {
            thread::yield_now();
        }
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / rounds.max(1) as f64)
}

/// Connects, and deregisters a region, again and again; drives no shard in between.
fn measure(left: &Context, right: &Context, samples: usize, shares_core: bool) -> Result<Figures> {
    let listener = right.listen(PORTS[1], 4)?;
    let pds = [left, right].map(Context::alloc_pd);
    let cqs = [left.create_cq(64)?, right.create_cq(64)?];
    let qp =
        |end: usize| pds[end].create_qp(&QpOptions::new(&cqs[end]).max_send_wr(1).max_recv_wr(1));
    let await_event = |qp: &Qp, is_expected: fn(&Event) -> bool| {
        let event = until(shares_core, || qp.next_event())?;
        ensure!(is_expected(&event), "{event:?}");
        Ok(())
    };
    let is_established = |event: &Event| matches!(event, Event::Established { .. });
    let has_ended = |event: &Event| matches!(event, Event::Disconnected { .. });
    let [mut connect, mut deregister] = [Histogram::<u64>::new(3)?, Histogram::new(3)?];
    let mut buffer = left.allocate(REGION_LEN)?;
    for _ in 0..samples {
        let (active, passive) = (qp(0)?, qp(1)?);
        let start = Instant::now();
        active.connect(([198, 18, 0, 2], PORTS[1]).into(), ConnParam::default())?;
        let request = until(shares_core, || listener.next_request())?;
        request.accept(&passive, ConnParam::default())?;
        await_event(&active, is_established)?;
        connect.record(u64::try_from(start.elapsed().as_nanos())?)?;
        await_event(&passive, is_established)?;
        active.close()?;
        await_event(&active, has_ended)?;
        await_event(&passive, has_ended)?;
        let region = pds[0].register(buffer, Access::ALL)?;
        let start = Instant::now();
        let returned = region.deregister();
        deregister.record(u64::try_from(start.elapsed().as_nanos())?)?;
        buffer = returned.context("the region has a buffer")?;
    }
    let us = |of: &Histogram<u64>, quantile| of.value_at_quantile(quantile) as f64 / 1e3;
    let of = |latencies| [us(latencies, 0.5), us(latencies, 0.99)];
    Ok(CALLS.into_iter().zip([of(&connect), of(&deregister)].concat()).collect())
}

/// Calls `ready` until it returns something.
fn until<T>(shares_core: bool, mut ready: impl FnMut() -> Option<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(value) = ready() {
            return Ok(value);
        }
        ensure!(start.elapsed() < TIMEOUT, "no event in {TIMEOUT:?}");
        if shares_core {
            thread::yield_now();
        } else {
            // Not a yield, which beside other tasks would cost time slices.
            std::hint::spin_loop();
        }
    }
}
