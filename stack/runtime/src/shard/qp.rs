//! State shared by the application's and the shard's sides of a queue pair: request rings, QP
//! state, events.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

use crossbeam::atomic::AtomicCell;
use crossbeam::queue::ArrayQueue;
use crossbeam::utils::CachePadded;
use ferrowarp_proto::rdmap::operation::MESSAGE_LEN_MAX;
use ferrowarp_proto::verbs::cm::Event;
use ferrowarp_proto::verbs::qp::QpState;
use ferrowarp_proto::verbs::wr::{Operation, Payload, PostError, RecvWr, SendWr};

use crate::events::EventSource;
use crate::spin_lock::SpinLock;
use crate::spsc::Producer;

/// Maximum number of pending events of a queue pair: set-up, end, and an overrun of each completion
/// queue.
const EVENT_COUNT_MAX: usize = 8;

/// State shared by the application's and the shard's sides of a queue pair.
pub(crate) struct QpShared {
    state: AtomicCell<QpState>,
    /// Negotiated ORD: RDMA Reads and atomic operations in flight at a time.
    ord: AtomicU16,
    /// The connection supports the operations of RFC 7306.
    extensions: AtomicBool,
    closed: AtomicBool,
    sends: QueueHandle<SendWr>,
    recvs: QueueHandle<RecvWr>,
    events: ArrayQueue<Event>,
    source: Arc<EventSource>,
}

/// Application's side of one work queue.
struct QueueHandle<T> {
    producer: SpinLock<WqProducer<T>>,
    /// Number of requests that have left the queue; written by the shard.
    retired: CachePadded<AtomicU64>,
}

struct WqProducer<T> {
    ring: Producer<T>,
    posted: u64,
    cached_retired: u64,
    max: u64,
}

impl<T> QueueHandle<T> {
    fn new(ring: Producer<T>, max: usize) -> Self {
        let producer = WqProducer { ring, posted: 0, cached_retired: 0, max: max as u64 };
        Self { producer: SpinLock::new(producer), retired: CachePadded::new(AtomicU64::new(0)) }
    }

    /// Writes requests to the ring until one fails, then publishes them; returns their number, and
    /// that error.
    ///
    /// Requests are checked by reference, so each is moved once, from the iterator to its slot.
    #[inline]
    fn post(
        &self,
        wrs: impl IntoIterator<Item = T>,
        check: impl Fn(&T) -> Result<(), PostError>,
    ) -> (usize, Option<PostError>) {
        let mut producer = self.producer.lock();
        let mut count = 0;
        let mut error = None;
        for wr in wrs {
            if let Err(refused) = check(&wr).and_then(|()| producer.check_not_full(&self.retired)) {
                error = Some(refused);
                break;
            }
            if producer.ring.push(wr).is_err() {
                error = Some(PostError::QueueFull);
                break;
            }
            producer.posted += 1;
            count += 1;
        }
        producer.ring.publish();
        (count, error)
    }
}

impl<T> WqProducer<T> {
    #[inline]
    fn check_not_full(&mut self, retired: &AtomicU64) -> Result<(), PostError> {
        if self.posted - self.cached_retired >= self.max {
            self.cached_retired = retired.load(Ordering::Acquire);
            if self.posted - self.cached_retired >= self.max {
                return Err(PostError::QueueFull);
            }
        }
        // The shard removes a request from the ring before it retires it: the ring has a free slot,
        // too.
        Ok(())
    }
}

impl QpShared {
    pub(crate) fn new(
        sends: Producer<SendWr>,
        max_send_wr: usize,
        recvs: Producer<RecvWr>,
        max_recv_wr: usize,
    ) -> Self {
        Self {
            state: AtomicCell::new(QpState::Idle),
            ord: AtomicU16::new(0),
            extensions: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            sends: QueueHandle::new(sends, max_send_wr),
            recvs: QueueHandle::new(recvs, max_recv_wr),
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

    /// Source of the queue pair's events.
    pub(crate) const fn source(&self) -> &Arc<EventSource> {
        &self.source
    }

    /// Queues an event; dropped if eight are pending.
    pub(crate) fn push_event(&self, event: Event) {
        let _ = self.events.push(event);
    }

    #[inline]
    pub(crate) fn set_retired(&self, sends: u64, recvs: u64) {
        // Stored only when changed, to leave the cache line with the application's core otherwise.
        for (cell, value) in [(&self.sends.retired, sends), (&self.recvs.retired, recvs)] {
            if cell.load(Ordering::Relaxed) != value {
                cell.store(value, Ordering::Release);
            }
        }
    }

    /// Removes and returns the oldest event.
    pub(crate) fn next_event(&self) -> Option<Event> {
        self.events.pop()
    }

    /// Posts send requests to their ring until one fails; returns their number, and that error.
    #[inline]
    pub(crate) fn post_sends(
        &self,
        wrs: impl IntoIterator<Item = SendWr>,
    ) -> (usize, Option<PostError>) {
        self.sends.post(wrs, |wr| self.check_send(wr))
    }

    /// Posts receive requests to their ring until one fails; returns their number, and that error.
    #[inline]
    pub(crate) fn post_recvs(
        &self,
        wrs: impl IntoIterator<Item = RecvWr>,
    ) -> (usize, Option<PostError>) {
        self.recvs.post(wrs, |_| Ok(()))
    }

    #[inline]
    pub(crate) fn state(&self) -> QpState {
        self.state.load()
    }

    /// Checks a send request as far as possible without the engine.
    #[inline]
    fn check_send(&self, wr: &SendWr) -> Result<(), PostError> {
        if wr.operation.is_extension() && !self.extensions.load(Ordering::Relaxed) {
            return Err(PostError::Unsupported);
        }
        match &wr.operation {
            Operation::Send { payload, .. }
            | Operation::Write { payload, .. }
            | Operation::WriteImmediate { payload, .. } => check_len(payload),
            Operation::Immediate { .. } => Ok(()),
            operation if operation.is_misaligned() => Err(PostError::Misaligned),
            Operation::Read { .. } | Operation::Atomic { .. } => {
                if self.ord.load(Ordering::Relaxed) == 0 {
                    return Err(PostError::NoReads);
                }
                Ok(())
            }
            Operation::Bind(_) | Operation::Invalidate { .. } => Ok(()),
            _ => Err(PostError::Unsupported),
        }
    }
}

#[inline]
fn check_len(payload: &Payload) -> Result<(), PostError> {
    if payload.len() > u64::from(MESSAGE_LEN_MAX) { Err(PostError::TooLong) } else { Ok(()) }
}

// A lock would be held by a preempted thread of the application.
const _: () = assert!(AtomicCell::<QpState>::is_lock_free());
