//! Opening of contexts: devices, engines, shards and their threads.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use ferrowarp_proto::ddp::regions::RegionTable;
use ferrowarp_proto::device::Capabilities;
use ferrowarp_proto::engine::{Engine, EngineConfig};
use ferrowarp_proto::steering::mesh::{MeshConfig, SHARD_COUNT_MAX, mesh};
use ferrowarp_proto::time::nanos;
use ferrowarp_proto::verbs::wc::CqId;
use ferrowarp_proto::wire::ip::IpFields;
use rand::TryRng;

use super::{Context, ContextInner};
use crate::clock::Clock;
use crate::config::Config;
use crate::context::link_monitor::{self, PeerLoss};
use crate::context::object_ids::ObjectIds;
use crate::context::shards::Shards;
use crate::context::unbound_qps::UnboundQps;
use crate::device::{self, DeviceError, DeviceSpec, LinkState, Opened, Port};
use crate::error::OpenError;
use crate::events::AsyncEventQueue;
use crate::fork::{self, ForkArc};
use crate::limits::{Limits, ResourceLimits};
use crate::memory::{Arena, HostMemory, opaque, page_faults};
use crate::poller::{self, Poller};
use crate::shard::{CqRings, Shard, ShardEngine, Siblings, TakenEvents};
use crate::threads::ContextThread;

/// Messages that the rings from one shard to all others hold, about: they are frames of the pool of
/// its queue, which has more than twice as many.
const MESH_MESSAGES_MAX: usize = 256;
/// Messages that one of these rings holds, at least.
const MESH_RING_LEN_MIN: usize = 16;

/// IDs of completion queues that are used by turns: with a generation of 12 bits an ID is used
/// again after four million other queues, as long as few exist at a time.
const CQ_IDS_KEPT: usize = 1024;

impl Context {
    /// Opens the device of the configuration.
    ///
    /// # Errors
    /// [`OpenError`]; `Pair` for `ring`, whose two contexts are opened with [`Context::ring_pair`].
    #[doc(alias = "ibv_open_device")]
    pub fn open(config: Config) -> Result<Self, OpenError> {
        check_process()?;
        config.validate()?;
        if config.device.is_pair() {
            return Err(OpenError::Pair);
        }
        match device::open(&config.device, &config.open_config())? {
            Opened::One(queues) => Self::over_queues(queues, config),
            Opened::Pair(..) => Err(OpenError::Pair),
        }
    }

    /// Opens two contexts connected inside the process, whatever the devices in their
    /// configurations; MTU, checksums, pools and the number of shards are those of `left`.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn ring_pair(left: Config, right: Config) -> Result<(Self, Self), OpenError> {
        check_process()?;
        left.validate()?;
        right.validate()?;
        let Opened::Pair(left_queues, right_queues) =
            device::open(&DeviceSpec::Ring, &left.open_config())?
        else {
            return Err(OpenError::Pair);
        };
        Self::joined_queues((left_queues, left), (right_queues, right))
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
        Self::joined_queues((vec![left.0], left.1), (vec![right.0], right.1))
    }

    /// As [`Context::joined`], each with as many shards as there are devices: the queues of one
    /// port, of which queue `i` is connected to the other's queue `i`.
    ///
    /// # Errors
    /// As [`Context::over`].
    pub fn joined_queues<D>(
        left: (Vec<D>, Config),
        right: (Vec<D>, Config),
    ) -> Result<(Self, Self), OpenError>
    where
        D: Port + Send + 'static,
        D::Rx: Send,
        D::Retained: Send,
    {
        let left = Self::over_queues(left.0, left.1)?;
        let right = Self::over_queues(right.0, right.1)?;
        // Set once, only here.
        let name = |inner: &ContextInner| {
            (inner.shards.iter().map(Arc::downgrade).collect(), inner.poller)
        };
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
        Self::over_queues(vec![device], config)
    }

    /// As [`Context::over`], with a shard for each of these devices: the queues of one port. Their
    /// number is [`Config::shards`] from then on.
    ///
    /// # Errors
    /// As [`Context::over`].
    pub fn over_queues<D>(queues: Vec<D>, mut config: Config) -> Result<Self, OpenError>
    where
        D: Port + Send + 'static,
        D::Rx: Send,
        D::Retained: Send,
    {
        check_process()?;
        config.shards = queues.len();
        config.validate()?;
        config.drive = poller::resolve(&config);
        let poller = Poller::of(config.drive, config.hot_time);
        let none = OpenError::Shards { shards: 0, max: SHARD_COUNT_MAX };
        let capabilities = queues.first().map(D::capabilities).ok_or(none)?;
        let link = queues.first().and_then(D::link);
        dpdk_sys::fork::install_atfork();
        opaque::select();
        if config.catch_page_faults {
            page_faults::catch().map_err(OpenError::PageFaults)?;
        }
        let seeds = match config.seed {
            Some(seed) => [seed, seed.rotate_left(32) ^ 0x5bd1_e995],
            None => [random_seed()?, random_seed()?],
        };
        let regions = Arc::new(RegionTable::new(config.regions_max, seeds[0]));
        let events = AsyncEventQueue::new();
        let clock = match config.virtual_time {
            None => Clock::start(),
            Some(step) => Clock::virtual_time(nanos(step)),
        };
        let running = Arc::new(AtomicUsize::new(queues.len()));
        let unbound = Arc::new(UnboundQps::new(Arc::clone(&running), Arc::clone(&events)));
        let state = LinkState::new();
        let shared =
            SharedByShards { regions: &regions, events: &events, unbound: &unbound, link: &state };
        // It takes DPDK's control lock, for which no holder of a shard's lock may wait.
        let interrupt = |queue: &D| if poller.may_sleep() { queue.rx_interrupt() } else { None };
        let interrupts: Vec<_> = queues.iter().map(interrupt).collect();
        let shards = open_shards(queues, &config, seeds[1], &shared, &clock, &running);
        for shard in &shards {
            let observer: Weak<UnboundQps> = Arc::downgrade(&unbound);
            shard.observe_end(observer);
        }
        let mut threads = Vec::new();
        let cores = config.shard_cores();
        for (index, (shard, interrupt)) in shards.iter().zip(interrupts).enumerate() {
            // There is a core for each that is to be pinned: see `validate`.
            let core = cores.get(index).copied();
            let thread = ContextThread::drive(shard, poller, core, interrupt);
            threads.extend(thread.map_err(OpenError::Thread)?);
        }
        let weak: Vec<Weak<Shard>> = shards.iter().map(Arc::downgrade).collect();
        let sleepers = weak.clone();
        let wake = move || {
            let shards = sleepers.iter().filter_map(Weak::upgrade);
            shards.for_each(|shard| shard.helper_wakeup().interrupt_sleep());
        };
        let end_connections = move || {
            for shard in weak.iter().filter_map(Weak::upgrade) {
                let _ = shard.control(|engine, now| engine.on_link_lost(now));
                // Flushes the requests, whoever polls otherwise and may sleep.
                shard.poll();
                shard.helper_wakeup().on_app_change();
            }
        };
        let loss =
            PeerLoss { grace: config.link_down_grace, end_connections: Box::new(end_connections) };
        let thread = link_monitor::start(link, &state, &events, wake, loss);
        threads.extend(thread.map_err(OpenError::Thread)?);
        let qps_max = config.qps_max;
        let inner = ContextInner {
            shards: Shards::new(shards),
            qp_ids: ObjectIds::new(qps_max),
            cq_ids: ObjectIds::by_turns(CqId::COUNT_MAX, CQ_IDS_KEPT),
            srq_ids: ObjectIds::new(u32::MAX as usize),
            pd_ids: ObjectIds::new(u32::MAX as usize),
            unbound,
            listeners: Mutex::default(),
            regions,
            limits: ResourceLimits::new(config.limits),
            events,
            taken_events: TakenEvents::default(),
            arena: Arena::default(),
            clock,
            threads: Mutex::new(threads),
            link: state,
            poller,
            paired: OnceLock::new(),
            config,
            capabilities,
        };
        Ok(Self { inner: ForkArc::new(inner) })
    }
}

/// Fails in a child of a process that has opened a context.
fn check_process() -> Result<(), OpenError> {
    let forked = || DeviceError::Environment(dpdk_sys::Error::Forked);
    fork::check_process().map_err(|_| forked().into())
}

/// State of a context that its shards use.
struct SharedByShards<'a> {
    regions: &'a Arc<RegionTable>,
    events: &'a Arc<AsyncEventQueue>,
    unbound: &'a Arc<UnboundQps>,
    link: &'a LinkState,
}

/// Opens the shards over the queues of one port.
fn open_shards<D>(
    queues: Vec<D>,
    config: &Config,
    seed: u64,
    shared: &SharedByShards<'_>,
    clock: &Clock,
    running: &Arc<AtomicUsize>,
) -> Vec<Arc<Shard>>
where
    D: Port + Send + 'static,
    D::Rx: Send,
    D::Retained: Send,
{
    let count = queues.len();
    let qps_max = config.qps_max;
    let engine_config = |device: &D| engine_config(config, seed, count, &device.capabilities());
    let mut meshed = Vec::new();
    if let Some(first) = queues.first().filter(|_| count > 1) {
        let config = engine_config(first);
        meshed = mesh(MeshConfig {
            shards: count,
            ring_len: (MESH_MESSAGES_MAX / (count - 1)).max(MESH_RING_LEN_MIN),
            connections_max: config.connections_max,
            cookies_per_second: config.cookies_per_second,
            seed,
            steering: first.port_steering(),
        });
    }
    let mut mesh_ports = meshed.into_iter();
    let (failing, polled) = (Arc::new(Mutex::default()), Arc::new(AtomicUsize::new(count)));
    let open = |(index, device): (usize, D)| {
        let (config_of, rings) = (engine_config(&device), CqRings::new(qps_max));
        let memory = HostMemory::new(Arc::clone(shared.regions));
        let port = mesh_ports.next();
        let monitor = port.as_ref().map(|port| (port.id(), port.monitor()));
        let engine = match port {
            Some(port) => Engine::in_mesh(config_of, device, memory, rings, port),
            None => Engine::new(config_of, device, memory, rings),
        };
        let unbound: Arc<UnboundQps> = Arc::clone(shared.unbound);
        let (events, link) = (Arc::clone(shared.events), shared.link.clone());
        let mut engine = ShardEngine::new(index, engine, events, unbound, link);
        if config.catch_page_faults {
            engine = engine.keep_catching_page_faults();
        }
        let engine = Box::new(engine);
        let (running, failing) = (Arc::clone(running), Arc::clone(&failing));
        let siblings = Siblings { running, polled: Arc::clone(&polled), failing, monitor };
        let poller = Poller::of(config.drive, config.hot_time);
        let shard = Arc::new(Shard::new(engine, clock.clone(), poller, qps_max, siblings));
        shard.watch_device();
        shard
    };
    queues.into_iter().enumerate().map(open).collect()
}

/// Returns the settings of the engine of each of `count` shards: the limits on memory are the
/// context's, and each shard has its share.
fn engine_config(
    config: &Config,
    seed: u64,
    count: usize,
    capabilities: &Capabilities,
) -> EngineConfig {
    let first = config.addresses[0];
    let mut engine = EngineConfig::new(first.ip, first.prefix_len, seed);
    engine.addresses.clone_from(&config.addresses);
    engine.routes.clone_from(&config.routes);
    engine.static_neighbors.clone_from(&config.neighbors);
    engine.vlan = config.vlan;
    engine.ip = IpFields { dscp: config.dscp, ttl: config.ttl };
    engine.extensions = config.extensions;
    config.tcp.apply(&mut engine);
    engine.linger_ns = nanos(config.linger);
    // Receive frames beyond the port's descriptors; each queue has pools of its own.
    let held = config.pools.in_flight(capabilities.mtu);
    engine.ooo_frames_max = usize::try_from(held).unwrap_or(usize::MAX);
    engine.qps_max = config.qps_max;
    engine.source_ports = config.source_ports.clone();
    let Limits { connections_max, half_open_max, .. } = config.limits;
    (engine.connections_max, engine.half_open_max) = (connections_max, half_open_max);
    let share = |total: usize| total.div_ceil(count);
    engine.awaiting_request_max = share(config.limits.awaiting_request_max);
    engine.partial_bytes_max = share(config.limits.partial_bytes_max);
    engine.ooo_bytes_max = share(config.limits.ooo_bytes_max);
    engine.sent_copies_bytes_max = share(engine.sent_copies_bytes_max);
    engine.time_wait_max = share(engine.time_wait_max);
    engine.window_growth_max = engine.window_growth_max.div_ceil(count as u64);
    engine
}

/// Returns an unpredictable seed.
fn random_seed() -> Result<u64, OpenError> {
    rand::rngs::SysRng.try_next_u64().map_err(|error| OpenError::Seed(std::io::Error::other(error)))
}
