//! Latency of control calls of a context whose shards are all under load.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ferrowarp::device::register_current_thread;
use ferrowarp::{Access, ConnEvent, ConnParam, Context, CqOptions, Qp, QpOptions, ShardHandle};
use hdrhistogram::Histogram;

use crate::cores::{Work, on_each};
use crate::ring::{End, Write, config};
use crate::runner::{Figures, us};

/// Port of the measured connections.
const PORT: u16 = 5000;
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

/// Measures so many control calls with so many shards, on threads of their own: one on the first
/// core drives the shards, each of both ends, another on the second core calls.
pub(crate) fn run(shards: usize, samples: usize, cores: [usize; 2]) -> Result<Figures> {
    let with_shards = |host| {
        let mut config = config(host, 1500, CONNECTIONS);
        config.shards = shards;
        config
    };
    let (left, right) = Context::ring_pair(with_shards(1), with_shards(2))?;
    let shares_core = cores[0] == cores[1];
    let (loads, _sink) = start_loads(&left, &right)?;
    let stops = &AtomicBool::new(false);
    let driver: Work<'_, Figures> = Box::new(|| {
        let driven = drive(loads, shares_core, stops);
        stops.store(true, Ordering::Relaxed);
        Ok(Figures::from([(DRIVE_ROUND, driven?)]))
    });
    let caller: Work<'_, Figures> = Box::new(|| {
        register_current_thread();
        let measured = measure(&left, &right, samples, shares_core);
        stops.store(true, Ordering::Relaxed);
        measured
    });
    Ok(on_each(&cores, vec![driver, caller])?.into_iter().flatten().collect())
}

/// The Writes of one shard.
struct Load {
    source: End,
    write: Write,
    /// The shard at the other end.
    peer: ShardHandle,
}

/// Connects each shard to the one at the other end, and begins to write. Returns the sink as well.
fn start_loads(left: &Context, right: &Context) -> Result<(Vec<Load>, End)> {
    let (len, depth) = LOAD;
    let shards = left.shard_count();
    let region_len = shards * len as usize;
    let mut sink = End::new(right.clone(), 2, shards, 1, region_len)?;
    let load = |shard| {
        let cq = left.create_cq_with(&CqOptions::new(64).shard(shard))?;
        let mut source = End::with_cq(left.clone(), cq, 1, 1, depth, region_len)?;
        source.connect(0, &mut sink, shard)?;
        let write = sink.write_to(shard * len as usize, len);
        source.write(0, depth, &write)?;
        Ok(Load { source, write, peer: right.shard(shard).context("no shard")? })
    };
    Ok(((0..shards).map(load).collect::<Result<_>>()?, sink))
}

impl Load {
    /// Polls both ends, and posts as many Writes as have completed; returns their number.
    fn step(&mut self) -> Result<usize> {
        let mut completed = 0;
        self.source.poll(|source, index, count| {
            completed += count;
            source.write(index, count, &self.write)
        })?;
        self.peer.drive();
        Ok(completed)
    }
}

/// Drives the shards of both ends until it is told to stop; returns the mean time for each of them
/// once, in microseconds.
fn drive(mut loads: Vec<Load>, shares_core: bool, stops: &AtomicBool) -> Result<f64> {
    register_current_thread();
    let (start, mut rounds, mut completed) = (Instant::now(), 0_u64, 0);
    while !stops.load(Ordering::Relaxed) {
        for load in &mut loads {
            completed += load.step()?;
        }
        rounds += 1;
        if shares_core {
            thread::yield_now();
        }
    }
    ensure!(completed > 0, "no Write of the load has completed");
    Ok(start.elapsed().as_secs_f64() * 1e6 / rounds.max(1) as f64)
}

/// Connects, and deregisters a region, again and again; drives no shard in between.
fn measure(left: &Context, right: &Context, samples: usize, shares_core: bool) -> Result<Figures> {
    let listener = right.listen(PORT, 4)?;
    let pds = [left, right].map(Context::alloc_pd);
    let cqs = [left.create_cq(64)?, right.create_cq(64)?];
    let qp =
        |end: usize| pds[end].create_qp(&QpOptions::new(&cqs[end]).max_send_wr(1).max_recv_wr(1));
    let await_event = |qp: &Qp, is_expected: fn(&ConnEvent) -> bool| {
        let event = until(shares_core, || qp.next_event())?;
        ensure!(is_expected(&event), "{event:?}");
        Ok(())
    };
    let is_established = |event: &ConnEvent| matches!(event, ConnEvent::Established { .. });
    let has_ended = |event: &ConnEvent| matches!(event, ConnEvent::Disconnected { .. });
    let [mut connect, mut deregister] = [Histogram::<u64>::new(3)?, Histogram::new(3)?];
    let mut buffer = left.allocate(REGION_LEN)?;
    for _ in 0..samples {
        let (active, passive) = (qp(0)?, qp(1)?);
        let start = Instant::now();
        active.connect(([198, 18, 0, 2], PORT).into(), ConnParam::new())?;
        let request = until(shares_core, || listener.next_request())?;
        request.accept(&passive, ConnParam::new())?;
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
