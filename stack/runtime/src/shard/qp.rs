//! State shared by the application's and the shard's sides of a queue pair: the producers of the
//! work queues, QP state, events.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use crossbeam::atomic::AtomicCell;
use ferrowarp_lockfree::binding::Binding;
use ferrowarp_lockfree::doorbell::hot::HotFlag;
use ferrowarp_lockfree::spin_lock::{LockGuard, SpinLock};
use ferrowarp_lockfree::sync::Backoff;
use ferrowarp_proto::ddp::recv_queue::RqProducer;
use ferrowarp_proto::ended::Ended;
use ferrowarp_proto::rdmap::send_queue::SqProducer;
use ferrowarp_proto::verbs::cm::ConnEvent;
use ferrowarp_proto::verbs::qp::QpState;
use ferrowarp_proto::verbs::wc::QpId;
use ferrowarp_proto::verbs::wr::{PostError, SendRights};

use crate::events::EventSource;
use crate::fork::check_process;
use crate::shard::qp_events::{EventCount, QpEvents, TakenEvents};
use crate::threads::thread_number;

/// State shared by the application's and the shard's sides of a queue pair.
///
/// `repr(C)`: the first cache line is what posting a send reads and writes, the second what posting
/// a receive does; of many queue pairs each line is a miss.
#[repr(C, align(64))]
pub(crate) struct QpShared {
    state: AtomicCell<QpState>,
    hot: HotFlag,
    binding: Binding,
    /// Rights of the connection: [`READS`], [`EXTENSIONS`]; flags of the end: [`CLOSED`],
    /// [`ABANDONED`], [`FAILED`].
    rights: AtomicU8,
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
/// Nothing: the context is closed, or the shard has failed.
const CLOSED: u8 = 4;
/// Nothing, not even what a thread is posting now: nobody will take it.
const ABANDONED: u8 = 8;
/// With [`CLOSED`]: the shard has failed.
const FAILED: u8 = 16;

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
            rights: AtomicU8::new(READS | EXTENSIONS),
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
        let update = |old| Some(old & (CLOSED | ABANDONED | FAILED) | reads | extensions);
        // First: a thread that finds the queue pair connected finds what it may post.
        let old = self.rights.fetch_update(Ordering::Release, Ordering::Relaxed, update);
        if old.is_ok_and(|old| old & CLOSED == 0) {
            self.state.store(state);
        }
    }

    /// No more requests can be posted, for this cause.
    pub(crate) fn close(&self, cause: Ended) {
        let failed = if cause == Ended::Failed { FAILED } else { 0 };
        self.rights.fetch_or(CLOSED | failed, Ordering::Relaxed);
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
    pub(crate) fn push_event(&self, event: ConnEvent) {
        self.events.push(&self.event_count, event);
    }

    /// True if there are events. One load.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        self.event_count.any()
    }

    /// Removes and returns the oldest event. `qp`: the queue pair; `taken`: of its context.
    pub(crate) fn next_event(&self, qp: QpId, taken: &TakenEvents) -> Option<ConnEvent> {
        self.events.pop(&self.event_count, qp, taken)
    }

    /// Locks the send queue for posting; returns the rights of the connection too.
    #[inline(always)]
    pub(crate) fn lock_sends(&self) -> Result<(LockGuard<'_, SqProducer>, SendRights), PostError> {
        let (producer, rights) = self.lock(&self.sends)?;
        let (reads, extensions) = (rights & READS != 0, rights & EXTENSIONS != 0);
        Ok((producer, SendRights { reads, extensions }))
    }

    /// Locks the receive queue for posting.
    #[inline(always)]
    pub(crate) fn lock_recvs(&self) -> Result<LockGuard<'_, RqProducer>, PostError> {
        self.lock(&self.recvs).map(|(producer, _)| producer)
    }

    #[inline(always)]
    fn lock<'a, T>(&self, queue: &'a SpinLock<T>) -> Result<(LockGuard<'a, T>, u8), PostError> {
        // In a child of `fork` another thread may have held the lock.
        check_process()?;
        let Some(producer) = queue.lock_once(thread_number()) else {
            return Err(PostError::Reentered);
        };
        // With the lock, so that closing can wait for those that found it open.
        let rights = self.rights.load(Ordering::Relaxed);
        if rights & CLOSED != 0 {
            return Err(cause_of(rights).into());
        }
        Ok((producer, rights))
    }

    /// Why no more requests can be posted; `None` while they can.
    pub(crate) fn ended(&self) -> Option<Ended> {
        let rights = self.rights.load(Ordering::Relaxed);
        (rights & CLOSED != 0).then(|| cause_of(rights))
    }

    /// True if nobody takes what was posted: it has taken long, and the context is closed.
    #[inline]
    pub(crate) fn is_abandoned(&self) -> bool {
        self.rights.load(Ordering::Relaxed) & ABANDONED != 0
    }

    #[inline]
    pub(crate) fn state(&self) -> QpState {
        self.state.load()
    }
}

/// Returns the cause of the end, from the flags of a queue pair that is closed.
#[cold]
const fn cause_of(rights: u8) -> Ended {
    if rights & FAILED != 0 { Ended::Failed } else { Ended::Closed }
}

// A lock would be held by a preempted thread of the application.
const _: () = assert!(AtomicCell::<QpState>::is_lock_free());
