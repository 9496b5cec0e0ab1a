//! Contexts: an address on a device, and all that belongs to it.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use ferrowarp_proto::ddp::regions::RegionTable;
use ferrowarp_proto::engine::{Engine, EngineConfig};
use ferrowarp_proto::net::routing::{self, InterfaceAddress, Route, RoutingTable};
use ferrowarp_proto::verbs::cm::CmError;
use ferrowarp_proto::wire::ethernet::VLAN_MAX;
use rand::TryRngCore;

use crate::arena::{Arena, Buffer};
use crate::comp_channel::CompChannel;
use crate::config::{Config, DriveMode};
use crate::counters::{Counters, Port, Usage};
use crate::cq::{Cq, CqRings};
use crate::device::{self, DeviceSpec, Opened};
use crate::error::{CreateError, MemoryError, OpenError};
use crate::events::{AsyncEventQueue, EventChannel};
use crate::limits::ResourceLimits;
use crate::listener::Listener;
use crate::machine::EngineMachine;
use crate::memory::HostMemory;
use crate::pd::Pd;
use crate::shard::Shard;
use crate::thread::DriveThread;

/// Least MTU of a link that IPv6 goes over (RFC 8200 section 5).
const MTU_MIN_V6: u16 = 1280;

/// An open device with an address: where everything else is made. Clones name the same one.
///
/// When the last clone and everything made from it are gone, closes as [`Context::close`] does, but
/// waits for the peers for [`Config::drop_linger`] at most: mostly a round trip, one second if a
/// peer does not acknowledge what has completed. Call `close` to wait for [`Config::linger`].
///
/// # Fork
///
/// A context belongs to the process that opened it. In a child made by `fork` nothing works any
/// more: calls answer as after closing, nothing is received or sent, and dropping the handles
/// leaves the parent's device and connections alone. Contents of registered memory are a copy. A
/// child opens devices of its own after executing a program anew, or if its parent had opened none.
#[derive(Clone)]
pub struct Context {
    inner: Arc<ContextInner>,
}

/// What all handles share.
pub(crate) struct ContextInner {
    pub(crate) shard: Arc<Shard>,
    pub(crate) regions: Arc<RegionTable>,
    pub(crate) limits: Arc<ResourceLimits>,
    pub(crate) events: Arc<AsyncEventQueue>,
    arena: Arena,
    pd_next: AtomicU32,
    drive_thread: Mutex<Option<DriveThread>>,
    /// The other end of a pair inside the process: one thread may be all that drives both.
    partner: OnceLock<(Weak<Shard>, DriveMode)>,
    config: Config,
}

impl Context {
    /// Opens the device that the configuration names.
    ///
    /// # Errors
    /// [`OpenError`]; `Pair` for `ring`, whose two ends are opened with [`Context::ring_pair`].
    pub fn open(config: Config) -> Result<Self, OpenError> {
        validate(&config)?;
        if config.device.is_pair() {
            return Err(OpenError::Pair);
        }
        match device::open(&config.device, &config.open_config())? {
            Opened::One(device) => Self::over(device, config),
            Opened::Pair(..) => Err(OpenError::Pair),
        }
    }

    /// Two contexts joined inside the process, whatever devices their configurations name; MTU,
    /// checksums and pools are those of `left`.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn ring_pair(left: Config, right: Config) -> Result<(Self, Self), OpenError> {
        validate(&left)?;
        validate(&right)?;
        let Opened::Pair(left_device, right_device) =
            device::open(&DeviceSpec::Ring, &left.open_config())?
        else {
            return Err(OpenError::Pair);
        };
        Self::joined((left_device, left), (right_device, right))
    }

    /// Two contexts over devices that are joined to each other. Calls that wait on one of them
    /// drive the other as well.
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
        // Set once, just here.
        let name = |inner: &ContextInner| (Arc::downgrade(&inner.shard), inner.drive_mode());
        let _ = left.inner.partner.set(name(&right.inner));
        let _ = right.inner.partner.set(name(&left.inner));
        Ok((left, right))
    }

    /// A context over any device, such as one that wraps another.
    ///
    /// # Errors
    /// [`OpenError`], but for what concerns opening the device.
    pub fn over<D>(device: D, config: Config) -> Result<Self, OpenError>
    where
        D: Port + Send + 'static,
        D::Rx: Send,
        D::Retained: Send,
    {
        validate(&config)?;
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
        engine_config.linger_ns = u64::try_from(config.linger.as_nanos()).unwrap_or(u64::MAX);
        // What the receive pool has beyond the port's own.
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
        let machine = Box::new(EngineMachine::new(engine, Arc::clone(&events)));
        let shard = Arc::new(Shard::new(machine, config.drive, qps_max));
        let driver = DriveThread::start(&shard, config.drive).map_err(OpenError::Thread)?;
        let inner = ContextInner {
            shard,
            regions,
            limits: ResourceLimits::new(config.limits),
            events,
            arena: Arena::default(),
            pd_next: AtomicU32::new(1),
            drive_thread: Mutex::new(driver),
            partner: OnceLock::new(),
            config,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    pub(crate) const fn inner(&self) -> &Arc<ContextInner> {
        &self.inner
    }

    /// What it was opened with.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// A new protection domain.
    #[must_use]
    pub fn alloc_pd(&self) -> Pd {
        let id = self.inner.pd_next.fetch_add(1, Ordering::Relaxed);
        Pd::new(Arc::clone(&self.inner), id)
    }

    /// A completion queue for at least `capacity` completions. Choose as many as requests can be
    /// outstanding on all its queue pairs: if it overruns, those end in error.
    ///
    /// # Errors
    /// `Limit` if all queues together would hold more than the configuration allows; `Gone` after
    /// closing.
    pub fn create_cq(&self, capacity: usize) -> Result<Cq, CreateError> {
        Cq::new(&self.inner, capacity, None)
    }

    /// A channel on which completion queues can tell of completions.
    ///
    /// # Errors
    /// The operating system has no file descriptor left.
    pub fn create_comp_channel(&self) -> std::io::Result<CompChannel> {
        CompChannel::new(&self.inner)
    }

    /// The channel that tells of everything but completions: of connection events, connection
    /// requests, limits of shared receive queues and asynchronous errors. There is one.
    ///
    /// # Errors
    /// The operating system has no file descriptor left.
    pub fn event_channel(&self) -> std::io::Result<EventChannel> {
        EventChannel::open(&self.inner)
    }

    /// As [`Context::create_cq`], and the queue can be armed ([`Cq::req_notify`]) to tell of
    /// completions on `channel`, which is one of this context.
    ///
    /// # Errors
    /// As [`Context::create_cq`]; `Gone` also if the channel is of another context.
    pub fn create_cq_on(&self, channel: &CompChannel, capacity: usize) -> Result<Cq, CreateError> {
        Cq::new(&self.inner, capacity, Some(channel))
    }

    /// A zeroed buffer to register, in huge pages if there are any.
    ///
    /// # Errors
    /// [`MemoryError::Map`].
    pub fn allocate(&self, len: usize) -> Result<Buffer, MemoryError> {
        Ok(self.inner.arena.allocate(len)?)
    }

    /// Listens on a port; at most `backlog` requests wait to be answered.
    ///
    /// # Errors
    /// `PortInUse`; `Gone` after closing.
    pub fn listen(&self, port: u16, backlog: usize) -> Result<Listener, CmError> {
        Listener::open(&self.inner, port, backlog, false)
    }

    /// As [`Context::listen`], for connections without start-up frames: each is offered as soon as
    /// it is up, and accepted with [`Start::Immediate`] or [`Start::Streaming`].
    ///
    /// # Errors
    /// As [`Context::listen`].
    ///
    /// [`Start::Immediate`]: crate::Start::Immediate
    /// [`Start::Streaming`]: crate::Start::Streaming
    pub fn listen_unframed(&self, port: u16, backlog: usize) -> Result<Listener, CmError> {
        Listener::open(&self.inner, port, backlog, true)
    }

    /// One pass of the shard, if the drive mode leaves that to the application and nobody is at
    /// it. True if there was anything to do.
    #[inline]
    pub fn drive(&self) -> bool {
        self.inner.shard.drive()
    }

    /// What was counted so far; zeros after closing.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.inner.shard.control(|machine, _| machine.counters()).unwrap_or_default()
    }

    /// What is in use at present: connections by what they wait for, frames and bytes held out of
    /// order, segments retained until they are acknowledged, frames left. Zeros after closing. The
    /// shard stands still while its connections are visited: for reports, not for a loop.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.inner.shard.control(|machine, _| machine.usage()).unwrap_or_default()
    }

    /// Connections that exist, also those of which only acknowledgements are awaited.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.inner.shard.control(|machine, _| machine.connection_count()).unwrap_or_default()
    }

    /// True once a panic inside the stack has ended the context: the queue pairs are in error,
    /// those that had a connection are told with [`Event::Disconnected`] and
    /// [`EndReason::LocalError`], outstanding requests are flushed as far as their completion
    /// queues have room, and those who wait are woken. Calls that need the stack fail as after
    /// closing. Peers are not told. The panic does not reach the thread that happened to drive.
    ///
    /// [`Event::Disconnected`]: crate::Event::Disconnected
    /// [`EndReason::LocalError`]: crate::EndReason::LocalError
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.inner.shard.has_failed()
    }

    /// Ends all connections in good order, waits until the peers have acknowledged all completed
    /// work (at most [`Config::linger`]), then closes the device. Whatever was made from the
    /// context does nothing from then on. A process that exits without closing or dropping breaks
    /// the promise that completed work arrives.
    pub fn close(self) {
        self.inner.close_within(self.inner.config.linger);
    }
}

impl ContextInner {
    /// Polls `ready` until it has something or `timeout` has passed, driving between. Does not wait
    /// in a child of the process, where nothing happens.
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
                // What came just before the end.
                return ready();
            }
            let mut busy = self.shard.drive();
            if let Some(partner) = self.partner() {
                busy |= partner.drive();
            }
            backoff(busy, &mut idle);
            if start.elapsed() > timeout {
                return ready();
            }
        }
    }

    pub(crate) const fn drive_mode(&self) -> DriveMode {
        self.config.drive
    }

    /// A call that waits may sleep: others drive this end, and the other end if it is in this
    /// process.
    pub(crate) fn can_sleep(&self) -> bool {
        let is_driven = |mode| mode != DriveMode::Inline;
        is_driven(self.drive_mode())
            && self
                .partner
                .get()
                .is_none_or(|(shard, mode)| is_driven(*mode) || shard.strong_count() == 0)
    }

    fn partner(&self) -> Option<Arc<Shard>> {
        self.partner.get().and_then(|(shard, _)| shard.upgrade())
    }

    /// Drives both ends from this thread as long as `more` holds, for at most `limit`.
    fn drive_while(&self, limit: Duration, more: impl Fn() -> bool) {
        let start = Instant::now();
        let mut idle = 0;
        while start.elapsed() < limit && more() {
            let mut busy = self.shard.poll();
            if let Some(partner) = self.partner() {
                busy |= partner.drive();
            }
            backoff(busy, &mut idle);
        }
    }

    /// See [`Context::close`], with so long to linger. Does nothing the second time.
    fn close_within(&self, linger: Duration) {
        if dpdk_sys::is_child() {
            // The device is the parent's: it must not be closed with the last handle here.
            std::mem::forget(Arc::clone(&self.shard));
            return;
        }
        // From here on this thread drives, whatever the mode.
        let driver = self.drive_thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(driver);
        self.shard.control(|machine, now| machine.disconnect_all(now));
        let unfinished = || self.shard.control(|machine, _| machine.unfinished_count()) > Some(0);
        self.drive_while(linger, unfinished);
        // The peer may not have got the last acknowledgement and send its FIN again.
        let known = || self.shard.control(|machine, _| machine.connection_count()) > Some(0);
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

/// How long closing goes on to answer peers when everything is acknowledged: two of the shortest
/// retransmission timeouts.
const CLOSE_GRACE: Duration = Duration::from_millis(10);

/// Lets others run after a while of nothing to do.
fn backoff(busy: bool, idle: &mut u32) {
    if busy {
        *idle = 0;
    } else {
        crate::sync::relax(idle);
    }
}

fn validate(config: &Config) -> Result<(), OpenError> {
    if config.addresses.is_empty() {
        return Err(OpenError::NoAddress);
    }
    let fits = |ip: IpAddr, prefix_len| prefix_len <= if ip.is_ipv4() { 32 } else { 128 };
    for &InterfaceAddress { ip, prefix_len } in &config.addresses {
        if !routing::is_unicast_host(ip) {
            return Err(OpenError::Address { address: ip });
        }
        if !fits(ip, prefix_len) {
            return Err(OpenError::Prefix { address: ip, prefix_len });
        }
        if ip.is_ipv6() && config.mtu < MTU_MIN_V6 {
            return Err(OpenError::MtuV6 { mtu: config.mtu, address: ip });
        }
    }
    let routing = RoutingTable::new(&config.addresses, &[]);
    for &Route { destination, prefix_len, via } in &config.routes {
        if !fits(destination, prefix_len) {
            return Err(OpenError::Prefix { address: destination, prefix_len });
        }
        if destination.is_ipv4() != via.is_ipv4() || routing.next_hop(via).is_none() {
            return Err(OpenError::Router { via });
        }
    }
    match config.vlan {
        Some(vlan) if !(1..=VLAN_MAX).contains(&vlan) => Err(OpenError::Vlan { vlan }),
        _ => Ok(()),
    }
}

/// A seed that nobody can guess.
fn random_seed() -> Result<u64, OpenError> {
    rand::rngs::OsRng.try_next_u64().map_err(|error| OpenError::Seed(std::io::Error::other(error)))
}
