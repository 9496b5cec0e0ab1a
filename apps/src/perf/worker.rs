//! The workers of a client: one for each shard, with a session and a thread of its own. They start
//! and end each run together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A worker of a client.
#[derive(Clone, Debug)]
pub struct Worker {
    /// Its shard.
    pub shard: usize,
    /// Its place among the workers.
    pub index: usize,
    /// Index, over all workers, of its first data connection.
    pub first_qp: u32,
    /// Number of its data connections.
    pub qps: u32,
    /// The others, if there are any.
    pub team: Option<Team>,
    /// Messages of all workers that have completed, counted for the lines of intervals.
    pub completed: Arc<AtomicU64>,
}

/// State that the workers of a client share.
#[derive(Clone, Debug)]
pub struct Team {
    /// Number of workers.
    pub count: u32,
    /// Token of the first worker's session.
    pub token: u32,
    arrived: Arc<AtomicU64>,
}

impl Worker {
    /// The only worker, with `qps` data connections.
    #[must_use]
    pub fn single(qps: u32) -> Self {
        Self { shard: 0, index: 0, first_qp: 0, qps, team: None, completed: Arc::default() }
    }

    /// Workers for these shards, over which `qps` data connections are spread evenly.
    #[must_use]
    pub fn spread(shards: &[usize], qps: u32, token: u32) -> Vec<Self> {
        let count = u32::try_from(shards.len()).unwrap_or(u32::MAX).max(1);
        let team = Team { count, token, arrived: Arc::default() };
        let completed = Arc::default();
        let mut first_qp = 0;
        let worker = |(index, &shard)| {
            let earlier = u32::try_from(index).unwrap_or(u32::MAX);
            let qps = qps / count + u32::from(earlier < qps % count);
            let first = first_qp;
            first_qp += qps;
            let team = (count > 1).then(|| team.clone());
            let completed = Arc::clone(&completed);
            Self { shard, index, first_qp: first, qps, team, completed }
        };
        shards.iter().enumerate().map(worker).collect()
    }
}

/// Phase of a barrier, which no worker passes before all have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarrierPhase(u64);

impl Team {
    /// Arrives at the phase after `previous`; every worker passes the phases in the same order.
    #[must_use]
    pub fn arrive(&self, previous: BarrierPhase) -> BarrierPhase {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        BarrierPhase(previous.0 + u64::from(self.count))
    }

    /// True once all workers have arrived.
    #[must_use]
    pub fn have_arrived(&self, barrier: BarrierPhase) -> bool {
        self.arrived.load(Ordering::Acquire) >= barrier.0
    }
}

impl BarrierPhase {
    /// Before the first one.
    pub const NONE: Self = Self(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_spread_evenly() {
        let workers = Worker::spread(&[0, 1, 4], 8, 7);
        let shares: Vec<_> = workers.iter().map(|w| (w.shard, w.first_qp, w.qps)).collect();
        assert_eq!(shares, [(0, 0, 3), (1, 3, 3), (4, 6, 2)]);
        assert!(workers.iter().all(|worker| worker.team.as_ref().unwrap().count == 3));
        let single = Worker::spread(&[2], 5, 7);
        assert_eq!((single.len(), single[0].shard, single[0].qps), (1, 2, 5));
        assert!(single[0].team.is_none());
    }

    #[test]
    fn workers_pass_a_barrier_once_all_have_arrived() {
        let workers = Worker::spread(&[0, 1], 2, 7);
        let [a, b] = [0, 1].map(|index: usize| workers[index].team.as_ref().unwrap());
        let first = a.arrive(BarrierPhase::NONE);
        assert!(!a.have_arrived(first));
        assert_eq!(b.arrive(BarrierPhase::NONE), first);
        assert!(a.have_arrived(first) && b.have_arrived(first));
        let second = b.arrive(first);
        assert!(!b.have_arrived(second) && a.have_arrived(first));
        assert_eq!(a.arrive(first), second);
        assert!(b.have_arrived(second));
    }
}
