//! State shared by the application's and the shard's sides of a queue pair: the send queue's
//! producer, the ring of receives, QP state, events.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

use crossbeam::atomic::AtomicCell;
use crossbeam::queue::ArrayQueue;
use crossbeam::utils::CachePadded;
use ferrowarp_proto::rdmap::send_queue::SqProducer;
use ferrowarp_proto::verbs::cm::Event;
use ferrowarp_proto::verbs::qp::QpState;
use ferrowarp_proto::verbs::wr::{PostError, RecvWr, SendRights, SendWr};

use crate::doorbell::hot::HotFlag;
use crate::events::EventSource;
use crate::spin_lock::SpinLock;
use crate::spsc::Producer;

/// Maximum number of pending events of a queue pair: set-up, end, and an overrun of each completion
/// queue.
const EVENT_COUNT_MAX: usize = 8;

/// State shared by the application's and the shard's sides of a queue pair.
pub(crate) struct QpShared {
    state: AtomicCell<QpState>,
    hot: HotFlag,
    /// Negotiated ORD: RDMA Reads and atomic operations in flight at a time.
    ord: AtomicU16,
    /// The connection supports the operations of RFC 7306.
    extensions: AtomicBool,
    closed: AtomicBool,
    sends: SpinLock<SqProducer>,
    recvs: RecvQueueHandle,
    events: ArrayQueue<Event>,
    source: Arc<EventSource>,
}

/// Application's side of the receive queue.
struct RecvQueueHandle {
    producer: SpinLock<RqProducer>,
    /// Number of requests that have left the queue; written by the shard.
    retired: CachePadded<AtomicU64>,
}

struct RqProducer {
    ring: Producer<RecvWr>,
    posted: u64,
    cached_retired: u64,
    max: u64,
}

impl RqProducer {
    #[inline]
    fn has_space(&mut self, retired: &AtomicU64) -> bool {
        if self.posted - self.cached_retired >= self.max {
            self.cached_retired = retired.load(Ordering::Acquire);
        }
        // The shard removes a request from the ring before it retires it: the ring has a free slot,
        // too.
        self.posted - self.cached_retired < self.max
    }
}

impl QpShared {
    pub(crate) fn new(sends: SqProducer, recvs: Producer<RecvWr>, max_recv_wr: usize) -> Self {
        let max = max_recv_wr as u64;
        let recvs = RqProducer { ring: recvs, posted: 0, cached_retired: 0, max };
        Self {
            state: AtomicCell::new(QpState::Idle),
            hot: HotFlag::default(),
            ord: AtomicU16::new(0),
            extensions: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            sends: SpinLock::new(sends),
            recvs: RecvQueueHandle {
                producer: SpinLock::new(recvs),
                retired: CachePadded::new(AtomicU64::new(0)),
            },
            events: ArrayQueue::new(EVENT_COUNT_MAX),
            source: EventSource::new(),
        }
    }

    pub(crate) fn set_state(&self, state: QpState) {
        if !self.closed.load(Ordering::Relaxed) {
            self.state.store(state);
        }
    }

    /// Sets the ORD and the RFC 7306 support negotiated for the connection.
    pub(crate) fn set_negotiated(&self, ord: u16, extensions: bool) {
        self.extensions.store(extensions, Ordering::Release);
        self.ord.store(ord, Ordering::Release);
    }

    /// The peer sends no more responses, so Reads and atomic operations fail when posted.
    pub(crate) fn disable_reads(&self) {
        self.ord.store(0, Ordering::Release);
    }

    /// The context closes: no more requests can be posted.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.state.store(QpState::Error);
    }

    /// Whether the shard polls the tails of its queues.
    #[inline]
    pub(crate) const fn hot(&self) -> &HotFlag {
        &self.hot
    }

    /// Source of the queue pair's events.
    pub(crate) const fn source(&self) -> &Arc<EventSource> {
        &self.source
    }

    /// Queues an event; dropped if eight are pending.
    pub(crate) fn push_event(&self, event: Event) {
        let _ = self.events.push(event);
    }

    #[inline]
    pub(crate) fn set_retired_recvs(&self, count: u64) {
        // Stored only when changed, to leave the cache line with the application's core otherwise.
        let retired = &self.recvs.retired;
        if retired.load(Ordering::Relaxed) != count {
            retired.store(count, Ordering::Release);
        }
    }

    /// Removes and returns the oldest event.
    pub(crate) fn next_event(&self) -> Option<Event> {
        self.events.pop()
    }

    /// Posts send requests until one fails, then publishes them; returns their number, and that
    /// error.
    #[inline]
    pub(crate) fn post_sends(
        &self,
        wrs: impl IntoIterator<Item = SendWr>,
    ) -> (usize, Option<PostError>) {
        let rights = SendRights {
            reads: self.ord.load(Ordering::Relaxed) > 0,
            extensions: self.extensions.load(Ordering::Relaxed),
        };
        let mut producer = self.sends.lock();
        let posted = post_until_error(wrs, |wr| {
            wr.check(rights)?;
            if producer.post(&wr) { Ok(()) } else { Err(PostError::QueueFull) }
        });
        producer.publish();
        posted
    }

    /// Posts receive requests until one fails, then publishes them; returns their number, and that
    /// error.
    #[inline]
    pub(crate) fn post_recvs(
        &self,
        wrs: impl IntoIterator<Item = RecvWr>,
    ) -> (usize, Option<PostError>) {
        let mut producer = self.recvs.producer.lock();
        let posted = post_until_error(wrs, |wr| {
            if !producer.has_space(&self.recvs.retired) || producer.ring.push(wr).is_err() {
                return Err(PostError::QueueFull);
            }
            producer.posted += 1;
            Ok(())
        });
        producer.ring.publish();
        posted
    }

    #[inline]
    pub(crate) fn state(&self) -> QpState {
        self.state.load()
    }
}

/// Posts requests until one fails; returns the number posted, and that error.
#[inline(always)]
fn post_until_error<T>(
    wrs: impl IntoIterator<Item = T>,
    mut post: impl FnMut(T) -> Result<(), PostError>,
) -> (usize, Option<PostError>) {
    let mut count = 0;
    for wr in wrs {
        if let Err(error) = post(wr) {
            return (count, Some(error));
        }
        count += 1;
    }
    (count, None)
}

// A lock would be held by a preempted thread of the application.
const _: () = assert!(AtomicCell::<QpState>::is_lock_free());
