//! A thread that makes connections in batches, uses them, and ends them in different ways.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ferrowarp::device::register_current_thread;
use ferrowarp::{
    Access, Buffer, ConnEvent, ConnParam, ConnectError, Context, Cq, CqOptions, Listener, Mr, Pd,
    Qp, QpOptions, Wc,
};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use super::life::{DEPTH, Ending, Life, STRIDE};
use super::requests::Requests;
use super::tallies::Tallies;

/// Port of the first worker.
const PORT: u16 = 4791;
/// Connections of a batch at most.
const BATCH_MAX: usize = 16;
/// Exchanges of each connection at most.
const EXCHANGES_MAX: usize = 3;
/// In the private data of an attempt that is to be rejected.
const REJECTED: u32 = u32::MAX;
/// In that of an attempt whose queue pair is dropped at once.
const ABANDONED: u32 = u32::MAX - 1;
/// Time without progress after which something is lost.
const TIMEOUT: Duration = Duration::from_secs(60);

/// One end of a worker's connections.
struct Side {
    // Before what they use: fields are dropped in their order.
    /// For any shard at the left end, for each shard at the right one.
    cqs: Vec<Cq>,
    pd: Pd,
    context: Context,
    /// Buffer of a batch, registered again for each.
    buffer: Option<Buffer>,
}

impl Side {
    fn register(&mut self) -> Result<Mr> {
        let buffer = self.buffer.take().context("the buffer is registered")?;
        Ok(self.pd.register(buffer, Access::ALL)?)
    }

    fn create_qp(&self, cq: usize, shard: Option<usize>) -> Result<Qp> {
        let mut options = QpOptions::new(&self.cqs[cq]).max_send_wr(DEPTH).max_recv_wr(DEPTH);
        options.shard = shard;
        Ok(self.pd.create_qp(&options)?)
    }
}

/// A worker.
pub(crate) struct Worker {
    number: usize,
    listener: Listener,
    left: Side,
    right: Side,
    requests: Requests,
    rng: SmallRng,
    /// Those of a poll.
    completions: Box<[Wc]>,
    tallies: Arc<Tallies>,
}

impl Worker {
    /// Creates the worker of this number, with a port of its own.
    pub(crate) fn new(number: usize, ends: &[Context; 2], tallies: &Arc<Tallies>) -> Result<Self> {
        let port = PORT + u16::try_from(number)?;
        let [left, right] = ends;
        let capacity = 4 * BATCH_MAX * DEPTH;
        let side = |context: &Context, cqs| -> Result<Side> {
            let buffer = Some(context.allocate(BATCH_MAX * STRIDE)?);
            Ok(Side { cqs, pd: context.alloc_pd(), context: context.clone(), buffer })
        };
        let of_shard = |shard| right.create_cq_with(&CqOptions::new(capacity).shard(shard));
        let right_cqs = (0..right.shard_count()).map(of_shard).collect::<Result<_, _>>()?;
        Ok(Self {
            number,
            listener: right.listen(port, 2 * BATCH_MAX)?,
            left: side(left, vec![left.create_cq(capacity)?])?,
            right: side(right, right_cqs)?,
            requests: Requests::default(),
            rng: SmallRng::seed_from_u64(number as u64),
            completions: vec![Wc::default(); capacity].into(),
            tallies: Arc::clone(tallies),
        })
    }

    /// Makes batches until it is told to stop.
    pub(crate) fn run(mut self, stops: &AtomicBool) -> Result<()> {
        register_current_thread();
        let mut number = 0;
        while !stops.load(Ordering::Relaxed) {
            number += 1;
            let name = self.number;
            self.batch().with_context(|| format!("worker {name}, batch {number}"))?;
        }
        Ok(())
    }

    fn batch(&mut self) -> Result<()> {
        let regions = [self.left.register()?, self.right.register()?];
        let both = regions.each_ref();
        let mut lives = self.set_up()?;
        for _ in 0..self.rng.random_range(0..=EXCHANGES_MAX) {
            self.exchange(&mut lives, both)?;
        }
        self.end(lives, both)?;
        let [left, right] = regions;
        // The right one first: the left one waits for nothing of its peer.
        self.right.buffer = right.deregister();
        self.left.buffer = left.deregister();
        Ok(())
    }

    /// Polls the completion queues, which drives shards as well.
    fn poll(&mut self) -> Result<()> {
        let Self { left, right, requests, completions, .. } = self;
        for cq in left.cqs.iter().chain(&right.cqs) {
            cq.poll(completions).iter().try_for_each(|wc| requests.complete(wc))?;
        }
        Ok(())
    }

    /// Polls until `is_done`.
    fn poll_until(
        &mut self,
        what: &str,
        mut is_done: impl FnMut(&mut Self) -> Result<bool>,
    ) -> Result<()> {
        let start = Instant::now();
        loop {
            self.poll()?;
            if is_done(self).with_context(|| what.to_owned())? {
                return Ok(());
            }
            let outstanding = self.requests.outstanding();
            ensure!(start.elapsed() < TIMEOUT, "{what}: {outstanding} requests outstanding");
            thread::yield_now();
        }
    }

    fn add<const N: usize>(&self, tally: [u64; N], to: [&std::sync::atomic::AtomicU64; N]) {
        for (count, tally) in tally.into_iter().zip(to) {
            tally.fetch_add(count, Ordering::Relaxed);
        }
    }

    fn connect(&mut self, number: u32) -> Result<Qp> {
        let shard = self.rng.random_range(0..=self.left.context.shard_count());
        // One more than there are: `connect` chooses.
        let shard = (shard < self.left.context.shard_count()).then_some(shard);
        let qp = self.left.create_qp(0, shard)?;
        let mut param = ConnParam::default();
        param.private_data.extend_from_slice(&number.to_be_bytes())?;
        qp.connect(([198, 18, 0, 2], self.listener.port()).into(), param)?;
        Ok(qp)
    }

    /// Connects a batch, with an attempt that is rejected and one that is abandoned.
    fn set_up(&mut self) -> Result<Vec<Life>> {
        let mut lives = Vec::new();
        for index in 0..self.rng.random_range(1..=BATCH_MAX) {
            let active = self.connect(u32::try_from(index)?)?;
            lives.push(Life::new(active, index));
        }
        drop(self.connect(ABANDONED)?);
        let rejected = self.connect(REJECTED)?;
        let mut is_rejected = false;
        self.poll_until("set-up", |worker| {
            while let Some(request) = worker.listener.next_request() {
                let number = request.offer().private_data.first_chunk().copied();
                match number.map(u32::from_be_bytes) {
                    Some(ABANDONED) => drop(request),
                    // It fails if the initiator has given up.
                    Some(REJECTED) => request.reject(b"no")?,
                    Some(index) => {
                        let life = lives.get_mut(index as usize).context("no such number")?;
                        let passive = worker.right.create_qp(request.shard(), None)?;
                        request.accept(&passive, ConnParam::default())?;
                        life.qps[1] = Some(passive);
                    }
                    None => bail!("a request without a number"),
                }
            }
            match rejected.next_event() {
                None => {}
                Some(ConnEvent::ConnectFailed { error: ConnectError::Rejected, .. }) => {
                    is_rejected = true;
                }
                Some(other) => bail!("instead of the rejection: {other:?}"),
            }
            let mut are_established = true;
            for life in &mut lives {
                are_established &= life.is_established()?;
            }
            Ok(are_established && is_rejected)
        })?;
        self.add([lives.len() as u64, 2], [&self.tallies.made, &self.tallies.refused]);
        Ok(lives)
    }

    /// Writes, replies and reads on each connection, and compares everything.
    fn exchange(&mut self, lives: &mut [Life], regions: [&Mr; 2]) -> Result<()> {
        let mut wr_ids = Vec::new();
        for life in &mut *lives {
            wr_ids.extend(life.post_write(&mut self.rng, regions, &mut self.requests)?);
        }
        self.poll_until("RDMA Writes", |worker| Ok(worker.requests.are_done(&wr_ids)))?;
        wr_ids.clear();
        for life in &mut *lives {
            wr_ids.extend(life.post_reply(regions, &mut self.requests)?);
        }
        self.poll_until("Sends", |worker| Ok(worker.requests.are_done(&wr_ids)))?;
        wr_ids.clear();
        for life in &mut *lives {
            wr_ids.extend(life.post_read(regions, &mut self.requests)?);
        }
        self.poll_until("RDMA Reads", |worker| Ok(worker.requests.are_done(&wr_ids)))?;
        let verified = lives.iter().map(|life| life.check_read(regions)).sum::<Result<u64>>()?;
        self.add([verified], [&self.tallies.verified]);
        Ok(())
    }

    /// Ends each connection in some way, and waits until everything has ended.
    fn end(&mut self, mut lives: Vec<Life>, regions: [&Mr; 2]) -> Result<()> {
        let (mut ended, mut broken) = (0, 0);
        for life in &mut lives {
            let ending = Ending::any(&mut self.rng);
            *(if ending.is_graceful() { &mut ended } else { &mut broken }) += 1;
            let begun = life.begin_end(ending, &mut self.rng, regions, &mut self.requests);
            begun.with_context(|| format!("{ending:?}"))?;
        }
        self.poll_until("end", |worker| {
            let mut have_ended = true;
            for life in &mut lives {
                have_ended &= life.has_ended(&worker.requests)?;
            }
            Ok(have_ended)
        })?;
        let verified = lives.iter().map(|life| life.check_last_writes(regions));
        let verified = verified.sum::<Result<u64>>()?;
        drop(lives);
        // What was discarded with its queue pair is out of the queues after this poll.
        self.poll()?;
        self.requests.end_discarded();
        let outstanding = self.requests.outstanding();
        ensure!(outstanding == 0, "{outstanding} requests have never completed");
        let Tallies { ended: ends, broken: breaks, verified: bytes, .. } = &*self.tallies;
        self.add([ended, broken, verified], [ends, breaks, bytes]);
        Ok(())
    }
}
