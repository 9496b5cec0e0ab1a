//! Contexts: an open device with its addresses, and the objects created on it.

mod link_monitor;
mod object_ids;
mod open;
pub(crate) mod open_listeners;
mod shards;
mod unbound_qps;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use ferrowarp_proto::ddp::regions::RegionTable;
use ferrowarp_proto::device::Capabilities;
use ferrowarp_proto::ended::Ended;
use ferrowarp_proto::engine::ConnectionStatus;
use ferrowarp_proto::verbs::cm::CmError;

use crate::clock::{Clock, ClockInfo};
use crate::config::{Config, DriveMode};
use crate::context::object_ids::ObjectIds;
use crate::context::open_listeners::OpenListeners;
use crate::context::shards::Shards;
use crate::context::unbound_qps::UnboundQps;
use crate::device::LinkState;
use crate::error::MemoryError;
use crate::events::{AsyncEvent, AsyncEventQueue, EventSource};
use crate::fork::{ForkArc, check_process, is_child};
use crate::limits::ResourceLimits;
use crate::memory::{Arena, Buffer};
use crate::poller::Poller;
use crate::shard::{InterruptSleep, Shard, ShardControl, TakenEvents};
use crate::stats::{Counters, Usage};
use crate::threads::{ContextThread, PollBackoff};

/// Open device with its addresses; all other objects are created from it. Clones refer to the same
/// context.
///
/// When the last clone and everything made from it are dropped, closes as [`Context::close`] does,
/// but waits for the peers for [`Config::drop_linger`] at most: usually one round trip, one second
/// if a peer does not acknowledge what has completed. Call `close` to wait for [`Config::linger`].
///
/// # Fork
///
/// A context belongs to the process that opened it. A child made by `fork` should do nothing with
/// the stack but call `exec` or `_exit`. If it does call something, that returns at once, whatever
/// locks other threads held at the fork: with an error ([`Ended::Forked`]), or with nothing (no
/// completion, event or request). Nothing is sent or received, and the parent's device, connections
/// and event descriptors stay as they are. Handles can be dropped; their memory is not freed.
/// Registered memory, which [`Region::read`](crate::Region::read) and the like still access, is a
/// copy as of the fork: peers write to the parent's. A child opens contexts of its own after
/// `exec`, or if its parent had opened none.
///
/// The child is recognized by a handler of `pthread_atfork`: `_Fork` and a bare system call do not
/// run it.
#[doc(alias = "ibv_context")]
#[derive(Clone)]
pub struct Context {
    inner: ForkArc<ContextInner>,
}

/// State shared by all handles.
pub(crate) struct ContextInner {
    pub(crate) shards: Shards,
    /// IDs of queue pairs, completion queues and shared receive queues.
    pub(crate) qp_ids: ObjectIds,
    pub(crate) cq_ids: ObjectIds,
    pub(crate) srq_ids: ObjectIds,
    /// IDs of protection domains.
    pub(crate) pd_ids: ObjectIds,
    /// Queue pairs that belong to no shard yet.
    pub(crate) unbound: Arc<UnboundQps>,
    /// Held while listeners are opened and closed.
    listeners: Mutex<OpenListeners>,
    pub(crate) regions: Arc<RegionTable>,
    pub(crate) limits: Arc<ResourceLimits>,
    pub(crate) events: Arc<AsyncEventQueue>,
    pub(crate) taken_events: TakenEvents,
    arena: Arena,
    clock: Clock,
    /// Threads that poll the shards, and the one that watches the link.
    threads: Mutex<Vec<ContextThread>>,
    pub(crate) link: LinkState,
    pub(crate) poller: Poller,
    /// Shards of the other context of a pair in this process: one thread may have to poll both.
    paired: OnceLock<(Vec<Weak<Shard>>, Poller)>,
    config: Config,
    capabilities: Capabilities,
}

impl Context {
    pub(crate) const fn inner(&self) -> &ForkArc<ContextInner> {
        &self.inner
    }

    /// Configuration with which the context was opened.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// Thread that polls the shards: [`Config::drive`], or the mode that was chosen for
    /// [`DriveMode::Auto`].
    #[must_use]
    pub fn drive_mode(&self) -> DriveMode {
        self.inner.config.drive
    }

    /// Capabilities of the device in use: its MAC address and MTU, and where checksums are computed
    /// and messages are cut into TCP segments.
    #[doc(alias = "ibv_query_device")]
    #[doc(alias = "ibv_query_port")]
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.inner.capabilities
    }

    /// The clock that the shards read, and what a reading of it costs now: for reports, as it takes
    /// some microseconds. It is the TSC where the kernel's clocksource is; elsewhere, and after the
    /// TSC has jumped again and again, it is `CLOCK_MONOTONIC`.
    #[must_use]
    pub fn clock(&self) -> ClockInfo {
        self.inner.clock.info()
    }

    /// Reads that clock: nanoseconds since the context was opened, as in
    /// [`Wc::timestamp_ns`](crate::Wc::timestamp_ns). Costs some 10 to 30 ns. Virtual time advances
    /// with each reading ([`Config::virtual_time`]).
    #[doc(alias = "ibv_query_rt_values_ex")]
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.inner.clock.now().as_nanos()
    }

    /// Allocates a zeroed buffer to register, in hugepages if available.
    ///
    /// # Errors
    /// [`MemoryError::Map`]; [`MemoryError::Ended`] in a child made by `fork`.
    pub fn allocate(&self, len: usize) -> Result<Buffer, MemoryError> {
        check_process()?;
        Ok(self.inner.arena.allocate(len)?)
    }

    /// Polls the shards once, if the drive mode leaves that to the application, each unless another
    /// thread is polling it. True if there was anything to do. With several shards each thread
    /// drives one of them instead: [`ShardHandle::drive`](crate::ShardHandle::drive).
    #[inline]
    pub fn drive(&self) -> bool {
        self.inner.shards.drive()
    }

    /// Number of shards: [`Config::shards`].
    #[must_use]
    pub fn shard_count(&self) -> usize {
        self.inner.shards.len()
    }

    /// Counters since opening, of all shards together; zeros after closing.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        self.inner.shards.control(|engine, _| sum += engine.counters());
        sum
    }

    /// Resources in use now: connections by state, frames and bytes held out of order, segments
    /// retained until they are acknowledged, free frames. Zeros after closing. Each shard is locked
    /// while its connections are visited: for reports, not for a loop.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let mut sum = Usage::default();
        self.inner.shards.control(|engine, _| sum += engine.usage());
        sum
    }

    /// All connections: those of queue pairs, requests that wait to be accepted, and those that
    /// linger after their queue pair is gone, because the peer has not acknowledged or closed, or
    /// for stray segments (TIME-WAIT). In no order; empty after closing. Each shard is locked while
    /// its connections are visited: for reports, not for a loop.
    ///
    /// ```
    /// # fn report(context: &ferrowarp::Context) {
    /// for each in context.connections() {
    ///     println!("{} {} {:?} {:?}", each.local, each.peer, each.tcp_state, each.age);
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionStatus> {
        let lists = self.inner.shards.control(|engine, now| engine.connections(now));
        lists.into_iter().flatten().collect()
    }

    /// Number of connections, including those that only wait for acknowledgments.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.inner.shards.control(|engine, _| engine.connection_count()).into_iter().sum()
    }

    /// True if the link of the port is up (verbs: the port is active), as it was at most 0.1 s ago;
    /// events report its changes ([`AsyncEvent::PortError`], [`AsyncEvent::PortActive`]). Over
    /// `memif` and `vhost`: if a peer is connected. Over `tap`, `af_packet` and `af_xdp`: if the
    /// kernel's interface is set up and has a carrier, whatever its name is now. Always true where
    /// the link is memory of the process (`ring`), and over queues of a port that a host program
    /// owns, which watches it itself. False after closing, and once the
    /// context has failed. Some loads.
    ///
    /// [`AsyncEvent::PortError`]: crate::AsyncEvent::PortError
    /// [`AsyncEvent::PortActive`]: crate::AsyncEvent::PortActive
    #[doc(alias = "ibv_query_port")]
    #[must_use]
    pub fn link_is_up(&self) -> bool {
        self.inner.link.is_up() && !self.inner.shards.have_ended()
    }

    /// True if the process at the other end of the link has gone (`memif`, `vhost`, `virtio-user`):
    /// one was connected, and none is now. Also if it has not served this end for a second: a
    /// second client of a `memif` server. Its connections end with it
    /// ([`Config::link_down_grace`]). Always false on other devices, whose link may fail and work
    /// again. Some loads.
    #[must_use]
    pub fn peer_is_gone(&self) -> bool {
        self.inner.link.peer_is_gone()
    }

    /// True once a panic inside the stack, or the removal of the device, has ended the context. A
    /// device is removed when the kernel asks for the card, or its interface is deleted. Its
    /// queue pairs are in error, those that had a connection report [`ConnEvent::Disconnected`]
    /// with [`EndReason::LocalError`] or [`EndReason::DeviceRemoved`], outstanding requests are
    /// flushed as far as their completion queues have space, and waiting threads are woken. Calls
    /// that need the stack fail with [`Ended::Failed`]. Nothing is sent to the peers. A panic does
    /// not unwind the thread that was polling. A device that is bound to vfio-pci can be removed
    /// once the context is closed: the kernel waits for that.
    ///
    /// With several shards a panic ends one of them ([`ShardHandle::has_failed`],
    /// [`AsyncEvent::ShardFailed`]), and the others go on; the context has failed once all have.
    ///
    /// [`ConnEvent::Disconnected`]: crate::ConnEvent::Disconnected
    /// [`EndReason::DeviceRemoved`]: crate::EndReason::DeviceRemoved
    /// [`EndReason::LocalError`]: crate::EndReason::LocalError
    /// [`AsyncEvent::ShardFailed`]: crate::AsyncEvent::ShardFailed
    /// [`ShardHandle::has_failed`]: crate::ShardHandle::has_failed
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.inner.shards.have_failed()
    }

    /// Disconnects all queue pairs and waits until the peers have acknowledged all completed work
    /// (at most [`Config::linger`]), then closes the device. All objects made from the context are
    /// inert from then on. If a process exits without closing or dropping, completed work may not
    /// reach the peer.
    ///
    /// A request that is posted meanwhile is flushed or refused. Closing waits a second for a
    /// thread that is posting. Only a thread that the system stops for longer within a call that
    /// posts may post a request that never completes.
    #[doc(alias = "ibv_close_device")]
    pub fn close(self) {
        self.inner.close_within(self.inner.config.linger);
    }
}

impl ContextInner {
    /// Why nothing new can begin: the context closes or is closed, all its shards have failed, or
    /// it is the parent's. `None` while it is open.
    #[cold]
    pub(crate) fn ended(&self) -> Option<Ended> {
        // In a child the lock of the unbound queue pairs may have been held at the fork.
        self.shards.ended().or_else(|| self.unbound.ended())
    }

    /// Why a call found no shard to execute it.
    pub(crate) fn why_no_shard(&self) -> Ended {
        self.ended().unwrap_or(Ended::Failed)
    }

    /// Fails once nothing new can begin.
    pub(crate) fn check_open(&self) -> Result<(), Ended> {
        self.ended().map_or(Ok(()), Err)
    }

    /// Calls `ready` until it returns a value or `timeout` has passed, and polls the shard in
    /// between. Does not wait in a child made by `fork`, where nothing is received.
    pub(crate) fn wait<T>(
        &self,
        timeout: Duration,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        // `None`: the deadline is beyond the range of the clock.
        let deadline = Instant::now().checked_add(timeout);
        let mut backoff = PollBackoff::new();
        loop {
            if let Some(value) = ready() {
                return Some(value);
            }
            if self.shards.have_ended() {
                // Results from just before the end.
                return ready();
            }
            let busy = self.shards.drive() | self.drive_paired();
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return ready();
            }
            if busy {
                backoff.on_busy();
            } else if self.has_virtual_time() {
                backoff.on_idle_awake();
            } else {
                let mut value = None;
                backoff.on_idle(now, deadline, |limit| {
                    self.sleep_on_port(limit, || {
                        value = ready();
                        value.is_some()
                    })
                });
                if value.is_some() {
                    return value;
                }
            }
        }
    }

    /// True if each poll advances virtual time: nothing comes to a thread that sleeps.
    pub(crate) fn has_virtual_time(&self) -> bool {
        self.config.virtual_time.is_some()
    }

    /// Sleeps on the port, if only the application polls, and it has one shard.
    pub(crate) fn sleep_on_port(
        &self,
        limit: Duration,
        has_result: impl FnOnce() -> bool,
    ) -> InterruptSleep {
        match self.shards.iter().next() {
            Some(shard) if self.shards.len() == 1 && !self.is_paired() => {
                shard.sleep_on_port(limit, has_result)
            }
            _ => InterruptSleep::Unsupported,
        }
    }

    /// True for a context of a pair: the other one may have to be polled as well.
    pub(crate) fn is_paired(&self) -> bool {
        self.paired.get().is_some()
    }

    /// Waits until `ready` returns a value, for `timeout` at most; `source`, which `event` names,
    /// signals its events. Sleeps if it may, otherwise polls the shard while it waits.
    pub(crate) fn wait_for<T>(
        &self,
        event: AsyncEvent,
        source: &EventSource,
        timeout: Duration,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if !self.can_sleep() || is_child() {
            return self.wait(timeout, ready);
        }
        let spin = timeout.min(SPIN_BEFORE_SLEEP);
        self.wait(spin, &mut ready).or_else(|| {
            if spin == timeout {
                return None;
            }
            if self.shards.have_ended() {
                return ready();
            }
            // The thread that polls instead of this one polls often for a while.
            let _awaiting = self.shards.add_waiters();
            self.events.wait_for(event, source, timeout - spin, ready)
        })
    }

    /// True if a blocking call may sleep: other threads poll this shard, and the shard of the
    /// other context of a pair.
    pub(crate) fn can_sleep(&self) -> bool {
        self.poller.has_thread()
            && self.paired.get().is_none_or(|(shards, poller)| {
                poller.has_thread() || shards.iter().all(|shard| shard.strong_count() == 0)
            })
    }

    /// Polls the other context of a pair, as far as that is left to the application.
    pub(crate) fn drive_paired(&self) -> bool {
        let Some((shards, _)) = self.paired.get() else { return false };
        shards.iter().filter_map(Weak::upgrade).fold(false, |busy, shard| busy | shard.drive())
    }

    pub(crate) const fn config(&self) -> &Config {
        &self.config
    }

    /// Fails if an address has the scope ID of another link than the device.
    pub(crate) fn check_zone(&self, scope_id: u32) -> Result<(), CmError> {
        if scope_id == 0 || self.config.device.interface_index() == Some(scope_id) {
            return Ok(());
        }
        Err(CmError::OtherZone(scope_id))
    }

    /// Locks the set of listeners.
    pub(crate) fn lock_listeners(&self) -> MutexGuard<'_, OpenListeners> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls both contexts of a pair from this thread while `more` holds, for at most `limit`.
    fn drive_while(&self, limit: Duration, more: impl Fn() -> bool) {
        let start = Instant::now();
        let mut idle = 0;
        while start.elapsed() < limit && more() {
            let busy = self.shards.poll() | self.drive_paired();
            backoff(busy, &mut idle);
        }
    }

    /// Implements [`Context::close`] with `linger` as its limit. A second call has no effect.
    fn close_within(&self, linger: Duration) {
        if is_child() {
            return;
        }
        // From here on this thread polls, whatever the mode.
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        drop(threads);
        self.unbound.refuse_new();
        // One shard flushes what was posted to queue pairs that belong to none.
        let adopt = |shard: &Arc<Shard>| shard.control(|engine, _| engine.adopt_unbound()).is_ok();
        let _ = self.shards.iter().any(adopt);
        self.unbound.end(Ended::Closed);
        self.shards.control(|engine, now| engine.disconnect_all(now));
        let count = |what: fn(&mut dyn ShardControl) -> usize| {
            self.shards.control(|engine, _| what(engine)).into_iter().sum::<usize>()
        };
        self.drive_while(linger, || count(|engine| engine.unfinished_count()) > 0);
        // If the last ACK was lost, the peer retransmits its FIN: stay in TIME-WAIT to answer.
        let grace = CLOSE_GRACE.min(linger);
        self.drive_while(grace, || count(|engine| engine.connection_count()) > 0);
        self.shards.iter().for_each(|shard| shard.stop());
        self.events.close();
    }
}

impl Drop for ContextInner {
    fn drop(&mut self) {
        self.close_within(self.config.drop_linger.min(self.config.linger));
    }
}

/// Time for which a waiting call spins before it sleeps: most responses arrive sooner than a thread
/// falls asleep and wakes again.
const SPIN_BEFORE_SLEEP: Duration = Duration::from_micros(50);

/// Time for which closing still answers peers after everything is acknowledged: twice the minimum
/// retransmission timeout.
const CLOSE_GRACE: Duration = Duration::from_millis(10);

/// Consecutive polls without work after which a waiting call yields between two of them.
const IDLE_POLLS_BEFORE_YIELD: u32 = 64;

/// Spins, then yields, after polls without work: what it waits for may be up to another thread.
fn backoff(busy: bool, idle: &mut u32) {
    if busy {
        *idle = 0;
    } else if *idle < IDLE_POLLS_BEFORE_YIELD {
        *idle += 1;
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}
