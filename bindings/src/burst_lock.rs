//! Lock between the bursts of a queue and a driver that unmaps the rings behind it.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// Polls for the end of a burst before it is taken for stuck, and the sleep between them: 20 ms in
/// all at least, and several times that with most timers. A burst takes microseconds, or some
/// milliseconds if it is preempted.
pub(crate) const QUIESCE_POLLS: (u32, Duration) = (1000, Duration::from_micros(20));

/// Longest sleep between polls for a stuck burst.
const STUCK_SLEEP_MAX: Duration = Duration::from_millis(2);

/// For queues of ports that are never quiesced as a whole.
static NEVER: AtomicBool = AtomicBool::new(false);

/// State of the ring of one receive or transmit queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RingState {
    /// There is no connection.
    LinkDown,
    /// The peer has connected without it.
    Absent,
    /// Connected.
    Present,
}

/// State of one receive or transmit queue. On a cache line of its own, written by the queue's
/// owner, and by the driver's thread when a connection begins or ends.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct InFlight {
    /// A burst is in flight.
    pub(crate) is_set: AtomicBool,
    /// [`RingState`], as after the last event.
    ring_state: AtomicU8,
    /// There was a connection after the last event.
    was_connected: AtomicBool,
    /// Number of connections that have ended.
    down_count: AtomicU32,
}

impl InFlight {
    pub(crate) fn new(state: RingState) -> Arc<Self> {
        Arc::new(Self {
            is_set: AtomicBool::new(false),
            ring_state: AtomicU8::new(state as u8),
            was_connected: AtomicBool::new(state != RingState::LinkDown),
            down_count: AtomicU32::new(0),
        })
    }

    /// From now on no burst begins in any state but `Present`; one may be in flight.
    pub(crate) fn set_ring_state(&self, state: RingState) {
        self.ring_state.store(state as u8, Ordering::SeqCst);
    }

    /// As [`InFlight::set_ring_state`], with the state after an event of the connection. By one
    /// thread at a time.
    pub(crate) fn note_ring_state(&self, state: RingState) {
        let is_connected = state != RingState::LinkDown;
        if self.was_connected.swap(is_connected, Ordering::Relaxed) && !is_connected {
            self.down_count.fetch_add(1, Ordering::Release);
        }
        self.set_ring_state(state);
    }

    /// Returns the number of connections that have ended.
    pub(crate) fn down_count(&self) -> u32 {
        self.down_count.load(Ordering::Acquire)
    }

    /// Waits until no burst is in flight, at most `polls` polls, of which it takes those used.
    /// False if one still is.
    pub(crate) fn wait_briefly(&self, polls: &mut u32) -> bool {
        while self.is_set.load(Ordering::SeqCst) {
            if *polls == 0 {
                return false;
            }
            // A preempted burst may be waiting for this core.
            std::thread::sleep(QUIESCE_POLLS.1);
            *polls -= 1;
        }
        true
    }

    /// Waits until no burst is in flight, however long that takes: the thread may be stopped by a
    /// debugger. New bursts are forbidden.
    pub(crate) fn wait(&self) {
        let mut sleep = QUIESCE_POLLS.1;
        while self.is_set.load(Ordering::SeqCst) {
            std::thread::sleep(sleep);
            sleep = (sleep * 2).min(STUCK_SLEEP_MAX);
        }
    }
}

/// Lock that each burst of one receive or transmit queue holds. The bursts are the readers, and
/// the driver's unmapping is the writer.
#[derive(Debug)]
pub(crate) struct BurstLock {
    /// No burst may begin.
    quiesced: &'static AtomicBool,
    pub(crate) in_flight: Arc<InFlight>,
}

/// A burst in flight.
#[derive(Debug)]
pub(crate) struct BurstGuard<'a>(&'a InFlight);

impl BurstLock {
    /// Creates the lock of a port. Bursts are forbidden while `quiesced` is set.
    pub(crate) fn new(quiesced: &'static AtomicBool, in_flight: Arc<InFlight>) -> Self {
        Self { quiesced, in_flight }
    }

    /// Creates the lock of a queue for which the ring's state suffices.
    pub(crate) fn by_ring_state(in_flight: Arc<InFlight>) -> Self {
        Self { quiesced: &NEVER, in_flight }
    }

    /// True if the peer is connected, with a ring for this queue.
    #[inline]
    pub(crate) fn has_ring(&self) -> bool {
        // Sequentially consistent, as in `set_ring_state`; a plain load on most processors.
        self.in_flight.ring_state.load(Ordering::SeqCst) == RingState::Present as u8
    }

    /// True if it is known whether the queue has a ring, in this connection, and of the queues
    /// that were registered after it as well.
    pub(crate) fn is_ring_known(&self) -> bool {
        self.in_flight.ring_state.load(Ordering::Acquire) != RingState::LinkDown as u8
    }

    /// True if the queue has no ring although the peer is connected, or was configured without.
    pub(crate) fn is_ring_absent(&self) -> bool {
        self.in_flight.ring_state.load(Ordering::Relaxed) == RingState::Absent as u8
    }

    /// Begins a burst; `None` while the driver may unmap the rings, or if the queue has none. About
    /// 10 ns.
    #[inline]
    pub(crate) fn try_lock(&mut self) -> Option<BurstGuard<'_>> {
        // Sequentially consistent, as where `quiesced` or the ring's state is stored: either this
        // thread sees that, or the driver's thread sees `is_set`.
        self.in_flight.is_set.store(true, Ordering::SeqCst);
        let guard = BurstGuard(&self.in_flight);
        let is_quiesced = self.quiesced.load(Ordering::SeqCst);
        (!is_quiesced && self.has_ring()).then_some(guard)
    }
}

impl Drop for BurstGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.is_set.store(false, Ordering::Release);
    }
}
