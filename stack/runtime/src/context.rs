//! Contexts: an open device with its addresses, and the objects created on it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use ferrowarp_proto::ddp::regions::RegionTable;
use ferrowarp_proto::engine::{Engine, EngineConfig};
use rand::TryRngCore;

use crate::arena::{Arena, Buffer};
use crate::clock::{Clock, nanos};
use crate::config::{Config, DriveMode};
use crate::counters::{Counters, Port, Usage};
use crate::device::{self, DeviceSpec, Opened};
use crate::error::{MemoryError, OpenError};
use crate::events::{AsyncEventQueue, EventSource};
use crate::limits::ResourceLimits;
use crate::memory::HostMemory;
use crate::shard::{CqRings, Shard, ShardEngine};
use crate::thread::DriveThread;

/// Open device with its addresses; all other objects are created from it. Clones refer to the same
/// context.
///
/// When the last clone and everything made from it are dropped, closes as [`Context::close`] does,
/// but waits for the peers for [`Config::drop_linger`] at most: usually one round trip, one second
/// if a peer does not acknowledge what has completed. Call `close` to wait for [`Config::linger`].
///
/// # Fork
///
/// A context belongs to the process that opened it. In a child made by `fork` it does not work:
/// calls fail as after closing, nothing is received or sent, and dropping the handles leaves the
/// parent's device and connections alone. Registered memory is a copy. A child opens devices of its
/// own after `exec`, or if its parent had opened none.
#[derive(Clone)]
pub struct Context {
    inner: Arc<ContextInner>,
}

/// State shared by all handles.
pub(crate) struct ContextInner {
    pub(crate) shard: Arc<Shard>,
    pub(crate) regions: Arc<RegionTable>,
    pub(crate) limits: Arc<ResourceLimits>,
    pub(crate) events: Arc<AsyncEventQueue>,
    arena: Arena,
    pd_next: AtomicU32,
    drive_thread: Mutex<Option<DriveThread>>,
    /// Other context of a pair in this process: one thread may have to poll both.
    paired: OnceLock<(Weak<Shard>, DriveMode)>,
    config: Config,
}

impl Context {
    /// Opens the device of the configuration.
    ///
    /// # Errors
    /// [`OpenError`]; `Pair` for `ring`, whose two contexts are opened with [`Context::ring_pair`].
    pub fn open(config: Config) -> Result<Self, OpenError> {
        config.validate()?;
        if config.device.is_pair() {
            return Err(OpenError::Pair);
        }
        match device::open(&config.device, &config.open_config())? {
            Opened::One(device) => Self::over(device, config),
            Opened::Pair(..) => Err(OpenError::Pair),
        }
    }

    /// Opens two contexts connected inside the process, whatever the devices in their
    /// configurations; MTU, checksums and pools are those of `left`.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn ring_pair(left: Config, right: Config) -> Result<(Self, Self), OpenError> {
        left.validate()?;
        right.validate()?;
        let Opened::Pair(left_device, right_device) =
            device::open(&DeviceSpec::Ring, &left.open_config())?
        else {
            return Err(OpenError::Pair);
        };
        Self::joined((left_device, left), (right_device, right))
    }

    /// Opens two contexts over devices that are connected to each other. Calls that wait on one of
    /// them poll the other as well.
    ///
    /// # Errors
    /// As [`Context::over`].
    pub fn joined<D>(left: (D, Config), right: (D, Config)) -> Result<(Self, Self), OpenError>
    where
        D: Port + Send + 'static,
        D::Rx: Send,
        D::Retained: Send,
    {
        let left = Self::over(left.0, left.1)?;
        let right = Self::over(right.0, right.1)?;
        // Set once, only here.
        let name = |inner: &ContextInner| (Arc::downgrade(&inner.shard), inner.drive_mode());
        let _ = left.inner.paired.set(name(&right.inner));
        let _ = right.inner.paired.set(name(&left.inner));
        Ok((left, right))
    }

    /// Opens a context over any device, such as one that wraps another.
    ///
    /// # Errors
    /// [`OpenError`], except for errors of opening the device.
    pub fn over<D>(device: D, config: Config) -> Result<Self, OpenError>
    where
        D: Port + Send + 'static,
        D::Rx: Send,
        D::Retained: Send,
    {
        config.validate()?;
        dpdk_sys::fork::install_atfork();
        let seeds = match config.seed {
            Some(seed) => [seed, seed.rotate_left(32) ^ 0x5bd1_e995],
            None => [random_seed()?, random_seed()?],
        };
        let regions = Arc::new(RegionTable::new(config.regions_max, seeds[0]));
        let first = config.addresses[0];
        let mut engine_config = EngineConfig::new(first.ip, first.prefix_len, seeds[1]);
        engine_config.addresses.clone_from(&config.addresses);
        engine_config.routes.clone_from(&config.routes);
        engine_config.vlan = config.vlan;
        engine_config.extensions = config.extensions;
        config.tcp.apply(&mut engine_config);
        engine_config.linger_ns = nanos(config.linger);
        // Receive frames beyond the port's descriptors.
        let held = config.pools.in_flight(device.capabilities().mtu);
        engine_config.ooo_frames_max = usize::try_from(held).unwrap_or(usize::MAX);
        let qps_max = config.qps_max.max(1);
        engine_config.qps_max = qps_max;
        engine_config.connections_max = config.limits.connections_max;
        engine_config.half_open_max = config.limits.half_open_max;
        engine_config.awaiting_request_max = config.limits.awaiting_request_max;
        engine_config.partial_bytes_max = config.limits.partial_bytes_max;
        engine_config.ooo_bytes_max = config.limits.ooo_bytes_max;
        let memory = HostMemory::new(Arc::clone(&regions));
        let engine = Engine::new(engine_config, device, memory, CqRings::new(qps_max));
        let events = AsyncEventQueue::new();
        let engine = Box::new(ShardEngine::new(engine, Arc::clone(&events)));
        let clock = match config.virtual_time {
            None => Clock::start(),
            Some(step) => Clock::virtual_time(nanos(step)),
        };
        let shard = Arc::new(Shard::new(engine, clock, config.drive, qps_max));
        let driver = DriveThread::start(&shard, config.drive).map_err(OpenError::Thread)?;
        let inner = ContextInner {
            shard,
            regions,
            limits: ResourceLimits::new(config.limits),
            events,
            arena: Arena::default(),
            pd_next: AtomicU32::new(1),
            drive_thread: Mutex::new(driver),
            paired: OnceLock::new(),
            config,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    pub(crate) const fn inner(&self) -> &Arc<ContextInner> {
        &self.inner
    }

    /// Configuration with which the context was opened.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// Allocates a zeroed buffer to register, in hugepages if available.
    ///
    /// # Errors
    /// [`MemoryError::Map`].
    pub fn allocate(&self, len: usize) -> Result<Buffer, MemoryError> {
        Ok(self.inner.arena.allocate(len)?)
    }

    /// Polls the shard once, if the drive mode leaves that to the application and no other thread
    /// is polling it. True if there was anything to do.
    #[inline]
    pub fn drive(&self) -> bool {
        self.inner.shard.drive()
    }

    /// Counters since opening; zeros after closing.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.inner.shard.control(|engine, _| engine.counters()).unwrap_or_default()
    }

    /// Resources in use now: connections by state, frames and bytes held out of order, segments
    /// retained until they are acknowledged, free frames. Zeros after closing. The shard is locked
    /// while its connections are visited: for reports, not for a loop.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.inner.shard.control(|engine, _| engine.usage()).unwrap_or_default()
    }

    /// Number of connections, including those that only wait for acknowledgments.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.inner.shard.control(|engine, _| engine.connection_count()).unwrap_or_default()
    }

    /// True once a panic inside the stack has ended the context. Its queue pairs are in error,
    /// those that had a connection report [`Event::Disconnected`] with [`EndReason::LocalError`],
    /// outstanding requests are flushed as far as their completion queues have space, and waiting
    /// threads are woken. Calls that need the stack fail as after closing. Nothing is sent to the
    /// peers. The panic does not unwind the thread that was polling.
    ///
    /// [`Event::Disconnected`]: crate::Event::Disconnected
    /// [`EndReason::LocalError`]: crate::EndReason::LocalError
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.inner.shard.has_failed()
    }

    /// Disconnects all queue pairs and waits until the peers have acknowledged all completed work
    /// (at most [`Config::linger`]), then closes the device. All objects made from the context are
    /// inert from then on. If a process exits without closing or dropping, completed work may not
    /// reach the peer.
    pub fn close(self) {
        self.inner.close_within(self.inner.config.linger);
    }
}

impl ContextInner {
    /// Calls `ready` until it returns a value or `timeout` has passed, and polls the shard in
    /// between. Does not wait in a child made by `fork`, where nothing is received.
    pub(crate) fn wait<T>(
        &self,
        timeout: Duration,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let start = Instant::now();
        let mut idle = 0;
        loop {
            if let Some(value) = ready() {
                return Some(value);
            }
            if dpdk_sys::is_child() {
                return None;
            }
            if self.shard.has_ended() {
                // Results from just before the end.
                return ready();
            }
            let mut busy = self.shard.drive();
            if let Some(shard) = self.paired_shard() {
                busy |= shard.drive();
            }
            backoff(busy, &mut idle);
            if start.elapsed() > timeout {
                return ready();
            }
        }
    }

    /// Waits until `ready` returns a value, for `timeout` at most; `source` signals its events.
    /// Sleeps if it may, otherwise polls the shard while it waits.
    pub(crate) fn wait_for<T>(
        &self,
        source: &EventSource,
        timeout: Duration,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if !self.can_sleep() || dpdk_sys::is_child() {
            return self.wait(timeout, ready);
        }
        let spin = timeout.min(SPIN_BEFORE_SLEEP);
        self.wait(spin, &mut ready).or_else(|| {
            if spin == timeout {
                return None;
            }
            // The thread that polls instead of this one polls often for a while.
            let _awaiting = self.shard.add_waiter();
            source.wait(timeout - spin, ready)
        })
    }

    /// Returns the ID of a new protection domain.
    pub(crate) fn next_pd(&self) -> u32 {
        self.pd_next.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) const fn drive_mode(&self) -> DriveMode {
        self.config.drive
    }

    /// True if a blocking call may sleep: other threads poll this shard, and the shard of the
    /// other context of a pair.
    pub(crate) fn can_sleep(&self) -> bool {
        let is_driven = |mode| mode != DriveMode::Inline;
        is_driven(self.drive_mode())
            && self
                .paired
                .get()
                .is_none_or(|(shard, mode)| is_driven(*mode) || shard.strong_count() == 0)
    }

    fn paired_shard(&self) -> Option<Arc<Shard>> {
        self.paired.get().and_then(|(shard, _)| shard.upgrade())
    }

    /// Polls both contexts of a pair from this thread while `more` holds, for at most `limit`.
    fn drive_while(&self, limit: Duration, more: impl Fn() -> bool) {
        let start = Instant::now();
        let mut idle = 0;
        while start.elapsed() < limit && more() {
            let mut busy = self.shard.poll();
            if let Some(shard) = self.paired_shard() {
                busy |= shard.drive();
            }
            backoff(busy, &mut idle);
        }
    }

    /// Implements [`Context::close`] with `linger` as its limit. A second call has no effect.
    fn close_within(&self, linger: Duration) {
        if dpdk_sys::is_child() {
            // The device belongs to the parent: it must not be closed with the last handle here.
            std::mem::forget(Arc::clone(&self.shard));
            return;
        }
        // From here on this thread polls, whatever the mode.
        let driver = self.drive_thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(driver);
        self.shard.control(|engine, now| engine.disconnect_all(now));
        let unfinished = || self.shard.control(|engine, _| engine.unfinished_count()) > Some(0);
        self.drive_while(linger, unfinished);
        // If the last ACK was lost, the peer retransmits its FIN: stay in TIME-WAIT to answer.
        let known = || self.shard.control(|engine, _| engine.connection_count()) > Some(0);
        self.drive_while(CLOSE_GRACE.min(linger), known);
        self.shard.stop();
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

/// Spins, then yields, after polls without work.
fn backoff(busy: bool, idle: &mut u32) {
    if busy {
        *idle = 0;
    } else {
        crate::sync::relax(idle);
    }
}

/// Returns an unpredictable seed.
fn random_seed() -> Result<u64, OpenError> {
    rand::rngs::OsRng.try_next_u64().map_err(|error| OpenError::Seed(std::io::Error::other(error)))
}
