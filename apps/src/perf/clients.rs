//! The client of iwperf over any number of shards: its workers, and their results together.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferrowarp::Context;

use crate::output;
use crate::perf::client::Client;
use crate::perf::client_params::random_token;
use crate::perf::hdr::Interval;
use crate::perf::iwperf_options::TestArgs;
use crate::perf::report::{Measurement, OnResult, TestParams};
use crate::perf::shard_report::{Merger, merge, merge_intervals};
use crate::perf::worker::Worker;
use crate::watchdog::Watchdog;

/// Polling interval while the link of a device is not up.
const LINK_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The workers of a client, one for each shard that is used.
pub struct Clients {
    /// The workers. All of them have to run, each on a thread of its own.
    pub workers: Vec<Client>,
    /// With several workers.
    merger: Option<Arc<Mutex<Merger>>>,
    qps: u32,
}

impl Clients {
    /// Prepares the workers; `on_result` as in [`Client::new`], for all of them together.
    ///
    /// # Errors
    /// As [`Client::new`].
    pub fn new(
        context: &Context,
        remote: SocketAddr,
        args: &TestArgs,
        setting: TestParams,
        on_result: OnResult,
    ) -> anyhow::Result<Self> {
        let qps = setting.qps;
        let count = context.shard_count();
        if count == 1 {
            let workers = vec![Client::new(context, remote, args, setting, on_result)?];
            return Ok(Self { workers, merger: None, qps });
        }
        let shards = shards_with_link(context, args.timeout);
        if shards.len() < count {
            output::complain(&format!(
                "the peer has fewer queues: {} of {count} shards are used",
                shards.len()
            ));
        }
        let merger = Arc::new(Mutex::new(Merger::new(shards.len(), on_result)));
        let create = |worker: Worker| {
            let (shared, index) = (Arc::clone(&merger), worker.index);
            let report = Box::new(move |setting: &TestParams, result: Option<&Measurement>| {
                lock(&shared).on_result(index, setting, result);
            });
            Client::on_worker(context, remote, args, setting.clone(), worker, report)
        };
        let workers = Worker::spread(&shards, qps, random_token());
        let workers = workers.into_iter().map(create).collect::<anyhow::Result<_>>()?;
        Ok(Self { workers, merger: Some(merger), qps })
    }

    /// Returns the results of the runs, the partial result of one that has not finished if the
    /// client `has_failed`, and the latencies.
    #[must_use]
    pub fn into_results(
        mut self,
        has_failed: bool,
    ) -> (Vec<Measurement>, Option<Measurement>, Vec<Interval>) {
        let mut unfinished: Vec<_> = match has_failed {
            true => self.workers.iter().filter_map(Client::unfinished).collect(),
            false => Vec::new(),
        };
        let intervals =
            self.workers.iter_mut().map(|worker| core::mem::take(&mut worker.intervals));
        let intervals = merge_intervals(intervals.collect());
        let Some(merger) = &self.merger else {
            let results = self.workers.iter_mut().flat_map(|client| client.results.drain(..));
            return (results.collect(), unfinished.pop(), intervals);
        };
        let partial = (!unfinished.is_empty()).then(|| merge(&unfinished, self.qps));
        (core::mem::take(&mut lock(merger).results), partial, intervals)
    }
}

fn lock(merger: &Mutex<Merger>) -> MutexGuard<'_, Merger> {
    merger.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the shards that have a link, once one has: a peer may have fewer queues (memif, vhost),
/// and nothing is received on the others. All of them if none has one after `timeout`.
fn shards_with_link(context: &Context, timeout: Duration) -> Vec<usize> {
    let all = || (0..context.shard_count()).filter_map(|index| context.shard(index));
    let mut watchdog = Watchdog::new(timeout);
    loop {
        let linked: Vec<_> =
            all().filter(|shard| shard.has_link()).map(|shard| shard.index()).collect();
        if !linked.is_empty() {
            return linked;
        }
        if watchdog.has_expired(Instant::now()) || crate::stop::was_interrupted() {
            return all().map(|shard| shard.index()).collect();
        }
        std::thread::sleep(LINK_POLL_INTERVAL);
    }
}
