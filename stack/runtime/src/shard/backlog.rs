//! Pending connection requests of a listener.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use ferrowarp_proto::verbs::cm::{ConnInfo, ListenAddr, RequestId};

use crate::events::{AsyncEvent, EventSource};

/// Number of requests at which those that are gone are removed first.
const SWEEP_AT_MIN: usize = 64;

/// Connection request, with the shard that has its connection.
pub(crate) struct PendingRequest {
    pub(crate) shard: usize,
    pub(crate) id: RequestId,
    pub(crate) offer: Box<ConnInfo>,
}

/// Pending connection requests of a listener, which shares them with the shards.
pub(crate) struct Backlog {
    queue: Mutex<Queue>,
    capacity: usize,
    addr: ListenAddr,
    source: EventSource,
}

#[derive(Default)]
struct Queue {
    /// Oldest first.
    requests: VecDeque<PendingRequest>,
    /// Number of them, by shard.
    counts: Vec<usize>,
    /// Number of requests at which those that are gone are removed next.
    sweep_at: usize,
}

/// Result of [`Backlog::try_push`].
pub(crate) enum Pushed {
    Done,
    /// The queue is full.
    Full,
    /// Another thread holds the lock: the next poll is to try again.
    Busy(PendingRequest),
}

impl Queue {
    /// Removes the requests of a shard for which `is_alive` returns false.
    fn sweep(&mut self, shard: usize, is_alive: impl Fn(RequestId) -> bool) {
        let Self { requests, counts, sweep_at } = self;
        requests.retain(|pending| {
            let is_kept = pending.shard != shard || is_alive(pending.id);
            counts[shard] -= usize::from(!is_kept);
            is_kept
        });
        *sweep_at = 2 * requests.len();
    }
}

impl Backlog {
    pub(crate) fn new(addr: ListenAddr, capacity: usize) -> Self {
        let source = EventSource::default();
        Self { queue: Mutex::default(), capacity: capacity.max(1), addr, source }
    }

    /// Addresses and port of the listener.
    pub(crate) const fn addr(&self) -> ListenAddr {
        self.addr
    }

    pub(crate) const fn source(&self) -> &EventSource {
        &self.source
    }

    /// Event that names the listener.
    pub(crate) const fn event(&self) -> AsyncEvent {
        AsyncEvent::ConnectRequest { listener: self.addr }
    }

    pub(crate) const fn capacity(&self) -> usize {
        self.capacity
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if there are requests; their peers may have given up.
    pub(crate) fn has_requests(&self) -> bool {
        !self.lock().requests.is_empty()
    }

    /// Removes and returns the oldest request.
    pub(crate) fn pop(&self) -> Option<PendingRequest> {
        let mut queue = self.lock();
        let request = queue.requests.pop_front()?;
        queue.counts[request.shard] -= 1;
        Some(request)
    }

    /// Adds a request. Those for which `is_alive` returns false are removed whenever the queue has
    /// doubled: requests of peers that have given up take no memory for long, and the cost is
    /// constant, amortized. The engine lets no more than the capacity be alive; if as many of its
    /// shard were left then, the queue would be full. Never waits.
    pub(crate) fn try_push(
        &self,
        request: PendingRequest,
        is_alive: impl Fn(RequestId) -> bool,
    ) -> Pushed {
        let mut queue = match self.queue.try_lock() {
            Ok(queue) => queue,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return Pushed::Busy(request),
        };
        let shard = request.shard;
        if shard >= queue.counts.len() {
            queue.counts.resize(shard + 1, 0);
        }
        if queue.requests.len() >= queue.sweep_at.max(SWEEP_AT_MIN) {
            queue.sweep(shard, is_alive);
            if queue.counts[shard] >= self.capacity {
                return Pushed::Full;
            }
        }
        queue.counts[shard] += 1;
        queue.requests.push_back(request);
        Pushed::Done
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::LazyLock;
    use std::time::Duration;

    use super::*;
    use crate::config::Config;
    use crate::context::Context;
    use crate::device::DeviceSpec;
    use crate::handle::qp::QpOptions;

    /// Offer of a peer, from a connection of its own.
    static OFFER: LazyLock<ConnInfo> = LazyLock::new(|| {
        let address = |host| Ipv4Addr::new(198, 18, 0, host).into();
        let config = |host| Config::new(DeviceSpec::Ring, address(host), 24);
        let (context, peer) = Context::ring_pair(config(1), config(2)).unwrap();
        let listener = peer.listen(18515, 1).unwrap();
        let cq = context.create_cq(1).unwrap();
        let qp = context.alloc_pd().create_qp(&QpOptions::new(&cq)).unwrap();
        qp.connect(SocketAddr::new(address(2), 18515), Default::default()).unwrap();
        let request = listener.accept_timeout(Duration::from_secs(60)).unwrap();
        request.offer().clone()
    });

    fn request(shard: usize, index: u32) -> PendingRequest {
        let offer = Box::new(OFFER.clone());
        PendingRequest { shard, id: RequestId { index, generation: 0 }, offer }
    }

    #[test]
    fn dead_requests_keep_nobody_out_and_are_looked_at_seldom() {
        const ROUNDS: u32 = 10_000;
        let (backlog, looks) = (Backlog::new(1.into(), 100_000), Cell::new(0));
        for index in 0..ROUNDS {
            let is_alive = |id: RequestId| {
                looks.set(looks.get() + 1);
                id.index >= index - index % 500
            };
            assert!(matches!(backlog.try_push(request(0, index), is_alive), Pushed::Done));
            let held = backlog.lock().requests.len();
            assert!(held <= 2 * 500, "{held} of 500 that are alive");
        }
        let looks = looks.get();
        println!("{looks} looks at requests for {ROUNDS} new ones");
        assert!(looks <= 4 * ROUNDS, "{looks}");
    }

    /// A peer connects and gives up, again and again, while the others wait for the application.
    #[test]
    fn dead_request_beside_many_live_ones_costs_no_look_at_each() {
        const LIVE: u32 = 1000;
        const ROUNDS: u32 = 10_000;
        let (backlog, looks) = (Backlog::new(1.into(), LIVE as usize + 1), Cell::new(0));
        for index in 0..LIVE + ROUNDS {
            let is_alive = |id: RequestId| {
                looks.set(looks.get() + 1);
                id.index < LIVE
            };
            assert!(matches!(backlog.try_push(request(0, index), is_alive), Pushed::Done));
        }
        let (looks, held) = (looks.get(), backlog.lock().requests.len());
        println!("{looks} looks at requests for {ROUNDS} new ones");
        assert!(looks <= 4 * ROUNDS && held <= 2 * (LIVE as usize + 1), "{looks}, {held}");
    }

    #[test]
    fn backlog_drops_dead_requests_of_its_shard_alone_and_then_may_be_full() {
        const COUNT: usize = SWEEP_AT_MIN;
        let backlog = Backlog::new(1.into(), COUNT);
        let push = |shard, index| backlog.try_push(request(shard, index), |id| id.index != 1);
        assert!(matches!(push(1, 1), Pushed::Done));
        for index in (1..).take(COUNT - 1) {
            assert!(matches!(push(0, index), Pushed::Done));
        }
        assert!(matches!(push(0, 1), Pushed::Done), "instead of the dead one");
        assert_eq!(backlog.lock().counts, [COUNT - 1, 1]);
        let sweep_at = backlog.lock().sweep_at;
        while backlog.lock().requests.len() < sweep_at {
            assert!(matches!(push(0, 2), Pushed::Done));
        }
        assert!(matches!(push(0, 2), Pushed::Full));
        let left = std::iter::from_fn(|| backlog.pop()).filter(|found| found.id.index == 1);
        assert_eq!(left.map(|found| found.shard).collect::<Vec<_>>(), [1]);
    }

    /// A thread of the application that holds the lock may have been preempted.
    #[test]
    fn shard_does_not_wait_for_the_lock() {
        let backlog = Backlog::new(1.into(), 2);
        let held = backlog.lock();
        let Pushed::Busy(returned) = backlog.try_push(request(0, 7), |_| true) else {
            panic!("pushed under the lock of another")
        };
        assert_eq!(returned.id.index, 7);
        drop(held);
        assert!(matches!(backlog.try_push(returned, |_| true), Pushed::Done));
        assert_eq!(backlog.pop().map(|found| found.id.index), Some(7));
    }
}
