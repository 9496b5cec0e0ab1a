//! State shared by the application's and the shard's sides of a queue pair: the producers of the
//! work queues, QP state, events.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Instant;

use crossbeam::atomic::AtomicCell;
use ferrowarp_lockfree::binding::Binding;
use ferrowarp_lockfree::doorbell::hot::HotFlag;
use ferrowarp_lockfree::spin_lock::SpinLock;
use ferrowarp_lockfree::sync::Backoff;
use ferrowarp_proto::ddp::recv_queue::RqProducer;
use ferrowarp_proto::rdmap::send_queue::SqProducer;
use ferrowarp_proto::verbs::cm::Event;
use ferrowarp_proto::verbs::qp::QpState;
use ferrowarp_proto::verbs::wc::QpId;
use ferrowarp_proto::verbs::wr::{PostError, RecvWr, SendRights, SendWr};

use crate::events::EventSource;
use crate::shard::qp_events::{EventCount, QpEvents, TakenEvents};

/// State shared by the application's and the shard's sides of a queue pair.
///
/// `repr(C)`: the first cache line is what posting a send reads and writes, the second what posting
/// a receive does; of many queue pairs each line is a miss.
#[repr(C, align(64))]
pub(crate) struct QpShared {
    state: AtomicCell<QpState>,
    hot: HotFlag,
    binding: Binding,
    /// Rights of the connection: [`READS`], [`EXTENSIONS`]; [`ABANDONED`].
    rights: AtomicU8,
    closed: AtomicBool,
    source: EventSource,
    event_count: EventCount,
    sends: SpinLock<SqProducer>,

    recvs: SpinLock<RqProducer>,
    events: QpEvents,
}

/// RDMA Reads and atomic operations: the negotiated ORD is not zero.
const READS: u8 = 1;
/// The operations of RFC 7306.
const EXTENSIONS: u8 = 2;
/// Nothing, not even what a thread is posting now: nobody will take it.
const ABANDONED: u8 = 4;

const _: () = assert!(
    core::mem::offset_of!(QpShared, recvs) == 64 && size_of::<QpShared>() == 128,
    "a line of the sends, and one of the receives"
);

impl QpShared {
    pub(crate) fn new(sends: SqProducer, recvs: RqProducer) -> Self {
        Self {
            state: AtomicCell::new(QpState::Idle),
            hot: HotFlag::default(),
            binding: Binding::default(),
            rights: AtomicU8::new(0),
            closed: AtomicBool::new(false),
            source: EventSource::default(),
            event_count: EventCount::default(),
            sends: SpinLock::new(sends),
            recvs: SpinLock::new(recvs),
            events: QpEvents::default(),
        }
    }

    pub(crate) fn set_state(&self, state: QpState, rights: SendRights) {
        let reads = if rights.reads { READS } else { 0 };
        let extensions = if rights.extensions { EXTENSIONS } else { 0 };
        // First: a thread that finds the queue pair connected finds what it may post.
        self.rights.store(reads | extensions, Ordering::Release);
        if !self.closed.load(Ordering::Relaxed) {
            self.state.store(state);
        }
    }

    /// The context closes: no more requests can be posted.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.state.store(QpState::Error);
    }

    /// After [`QpShared::close`]: waits until `deadline` for threads that had found the queue pair
    /// in order and are posting. True if nothing more will be posted; otherwise such a thread finds
    /// out at its end that nothing was.
    pub(crate) fn wait_for_posting(&self, deadline: Instant) -> bool {
        let mut backoff = Backoff::default();
        // Whoever locks after this sees the state.
        while self.sends.try_lock().is_none() || self.recvs.try_lock().is_none() {
            if Instant::now() >= deadline {
                self.rights.fetch_or(ABANDONED, Ordering::Relaxed);
                return false;
            }
            backoff.wait();
        }
        true
    }

    /// Shard of the queue pair.
    #[inline]
    pub(crate) const fn binding(&self) -> &Binding {
        &self.binding
    }

    /// Flag of a hot queue pair: the shard polls the tails of its queues.
    #[inline]
    pub(crate) const fn hot(&self) -> &HotFlag {
        &self.hot
    }

    /// Source of the queue pair's events.
    pub(crate) const fn source(&self) -> &EventSource {
        &self.source
    }

    /// Queues an event; dropped if eight are pending. Called by the holder of the shard's lock.
    pub(crate) fn push_event(&self, event: Event) {
        self.events.push(&self.event_count, event);
    }

    /// True if there are events. One load.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        self.event_count.any()
    }

    /// Removes and returns the oldest event. `qp`: the queue pair; `taken`: of its context.
    pub(crate) fn next_event(&self, qp: QpId, taken: &TakenEvents) -> Option<Event> {
        self.events.pop(&self.event_count, qp, taken)
    }

    /// Posts a send request.
    #[inline]
    pub(crate) fn post_send(&self, wr: &SendWr) -> Result<(), PostError> {
        let mut producer = self.sends.lock();
        // With the lock, so that closing can wait for those that found it open.
        if self.state() != QpState::Rts {
            return Err(PostError::WrongState);
        }
        wr.check(self.rights())?;
        let is_posted = producer.post(wr);
        // If it was full, too: an iterator that panicked left requests unpublished.
        producer.publish();
        if is_posted { Ok(()) } else { Err(PostError::QueueFull) }
    }

    /// Posts send requests until one fails, then publishes them; returns their number, and that
    /// error.
    #[inline]
    pub(crate) fn post_sends(
        &self,
        wrs: impl IntoIterator<Item = SendWr>,
    ) -> (usize, Option<PostError>) {
        let mut producer = self.sends.lock();
        // As in `post_send`.
        if self.state() != QpState::Rts {
            return (0, Some(PostError::WrongState));
        }
        let rights = self.rights();
        let posted = post_until_error(wrs, |wr| {
            wr.check(rights)?;
            if producer.post(&wr) { Ok(()) } else { Err(PostError::QueueFull) }
        });
        producer.publish();
        self.unless_abandoned(posted)
    }

    /// Rights of the connection.
    #[inline]
    fn rights(&self) -> SendRights {
        let rights = self.rights.load(Ordering::Relaxed);
        SendRights { reads: rights & READS != 0, extensions: rights & EXTENSIONS != 0 }
    }

    /// Posts a receive request.
    #[inline]
    pub(crate) fn post_recv(&self, wr: &RecvWr) -> Result<(), PostError> {
        let mut producer = self.recvs.lock();
        if self.state() == QpState::Error {
            return Err(PostError::WrongState);
        }
        let is_posted = producer.post(wr.wr_id, &wr.sg_list);
        producer.publish();
        if is_posted { Ok(()) } else { Err(PostError::QueueFull) }
    }

    /// Posts receive requests until one fails, then publishes them; returns their number, and that
    /// error.
    #[inline]
    pub(crate) fn post_recvs(
        &self,
        wrs: impl IntoIterator<Item = RecvWr>,
    ) -> (usize, Option<PostError>) {
        let mut producer = self.recvs.lock();
        if self.state() == QpState::Error {
            return (0, Some(PostError::WrongState));
        }
        let posted = post_until_error(wrs, |wr| {
            if producer.post(wr.wr_id, &wr.sg_list) { Ok(()) } else { Err(PostError::QueueFull) }
        });
        producer.publish();
        self.unless_abandoned(posted)
    }

    /// Returns the result of posting several requests, which may have taken long.
    #[inline]
    fn unless_abandoned(&self, posted: (usize, Option<PostError>)) -> (usize, Option<PostError>) {
        let is_abandoned = self.rights.load(Ordering::Relaxed) & ABANDONED != 0;
        if is_abandoned { (0, Some(PostError::WrongState)) } else { posted }
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
