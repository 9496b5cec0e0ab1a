//! One end of the simulated network: an engine, or the engines of several shards.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use ferrowarp_proto::ddp::memory::Memory;
use ferrowarp_proto::ddp::untagged::BufferQueue;
use ferrowarp_proto::ddp::vec_memory::VecMemory;
use ferrowarp_proto::engine::{Counters, Engine, EngineConfig};
use ferrowarp_proto::rdmap::requester::Requester;
use ferrowarp_proto::steering::mesh::{MeshConfig, MeshMonitor, PortSteering, mesh};
use ferrowarp_proto::steering::owners::ShardId;
use ferrowarp_proto::time::Instant;
use ferrowarp_proto::verbs::cm::ConnEvent;
use ferrowarp_proto::verbs::qp::QpInit;
use ferrowarp_proto::verbs::wc::{Completions, CqId, QpId, Wc};

use super::heap_device::HeapDevice;
use super::sim_port::{ShardOptions, SimPort};

/// Completion queues of bounded length.
#[derive(Clone)]
pub struct CompletionQueues {
    queues: Rc<RefCell<Vec<CompletionQueue>>>,
    len_max: usize,
}

#[derive(Clone, Default)]
struct CompletionQueue {
    completions: VecDeque<Wc>,
    /// It has overrun, and its queue pairs are being ended.
    is_ending: bool,
}

impl CompletionQueues {
    /// `count` queues of `len_max` completions each.
    #[must_use]
    pub fn new(count: usize, len_max: usize) -> Self {
        Self { queues: Rc::new(RefCell::new(vec![Default::default(); count])), len_max }
    }

    /// Removes and returns the oldest completion of a queue.
    pub fn poll(&self, cq: CqId) -> Option<Wc> {
        self.queues.borrow_mut()[cq.0 as usize].completions.pop_front()
    }
}

impl Completions for CompletionQueues {
    fn push(&mut self, cq: CqId, wc: Wc) -> bool {
        let queue = &mut self.queues.borrow_mut()[cq.0 as usize];
        let fits = !queue.is_ending && queue.completions.len() < self.len_max;
        if fits {
            queue.completions.push_back(wc);
        }
        fits
    }

    fn claim_overrun(&mut self, cq: CqId) -> bool {
        self.queues.borrow_mut()[cq.0 as usize].is_ending = true;
        true
    }

    fn on_qps_ended(&mut self, cq: CqId) {
        self.queues.borrow_mut()[cq.0 as usize].is_ending = false;
    }
}

/// Connections with which they are visited after each pass.
const VISITED_MAX: usize = 64;

/// Engine type of the simulation.
pub type SimEngine = Engine<HeapDevice, Rc<VecMemory>, CompletionQueues>;

/// One end of the link.
pub struct End {
    /// The engine; with several shards the first one's.
    pub engine: SimEngine,
    /// Registered memory of all its shards.
    pub arena: Rc<VecMemory>,
    /// Completion queues of all its shards.
    pub queues: CompletionQueues,
    /// Engines of the other shards.
    others: Vec<SimEngine>,
    mesh: Option<EndMesh>,
}

/// Further state of an end with shards.
struct EndMesh {
    monitor: MeshMonitor,
    port: SimPort,
    /// By shard.
    is_dead: Vec<bool>,
    /// Index of the next queue pair: unique over all shards.
    next_qp: u32,
}

impl End {
    /// Creates an end, with a number of shards if given. `make_device` makes the port queue of a
    /// shard.
    ///
    /// # Panics
    /// If the number of shards is 0.
    #[must_use]
    pub fn new(
        config: EngineConfig,
        arena_len: usize,
        cq_len: usize,
        shards: Option<(usize, &ShardOptions)>,
        mut make_device: impl FnMut() -> HeapDevice,
    ) -> Self {
        let arena = Rc::new(VecMemory::new(arena_len));
        let queues = CompletionQueues::new(16, cq_len);
        let Some((count, options)) = shards else {
            let engine = Engine::new(config, make_device(), Rc::clone(&arena), queues.clone());
            return Self { engine, arena, queues, others: Vec::new(), mesh: None };
        };
        let seed = config.seed;
        let port = SimPort::new(options.steering, count, seed ^ 0x57ee);
        let meshed = mesh(MeshConfig {
            shards: count,
            ring_len: options.ring_len,
            connections_max: options.connections_max,
            cookies_per_second: config.cookies_per_second,
            seed,
            steering: match options.is_rss_known {
                true => PortSteering::Predicted(port.predicted().clone()),
                false => PortSteering::Unknown,
            },
        });
        let monitor = meshed[0].monitor();
        let make = |mesh_port| {
            let (memory, cqs) = (Rc::clone(&arena), queues.clone());
            Engine::in_mesh(config.clone(), make_device(), memory, cqs, mesh_port)
        };
        let mut others: Vec<SimEngine> = meshed.into_iter().map(make).collect();
        let engine = others.remove(0);
        let mesh = EndMesh { monitor, port, is_dead: vec![false; count], next_qp: 0 };
        Self { engine, arena, queues, others, mesh: Some(mesh) }
    }

    /// Number of shards, those that have died included.
    #[must_use]
    pub const fn shard_count(&self) -> usize {
        1 + self.others.len()
    }

    /// The engine of a shard.
    #[must_use]
    pub fn shard(&self, shard: usize) -> &SimEngine {
        if shard == 0 { &self.engine } else { &self.others[shard - 1] }
    }

    /// The engine of a shard.
    pub fn shard_mut(&mut self, shard: usize) -> &mut SimEngine {
        if shard == 0 { &mut self.engine } else { &mut self.others[shard - 1] }
    }

    /// Checks the count of connections not in TIME-WAIT, which the engine keeps, by visiting them.
    /// Not with many, whose visit would take longer than the pass.
    ///
    /// # Panics
    /// If the count is wrong.
    pub fn check_unfinished_count(&self, shard: usize) {
        let engine = self.shard(shard);
        if engine.connection_count() <= VISITED_MAX {
            let usage = engine.usage();
            assert_eq!(engine.unfinished_count(), usage.connections - usage.time_waits);
        }
    }

    /// The engines of all shards, those that have died included.
    pub fn shards(&self) -> impl Iterator<Item = &SimEngine> {
        std::iter::once(&self.engine).chain(&self.others)
    }

    /// True if a shard has died.
    #[must_use]
    pub fn is_dead(&self, shard: usize) -> bool {
        self.mesh.as_ref().is_some_and(|mesh| mesh.is_dead[shard])
    }

    /// The numbers of the shards that live.
    pub fn live_shards(&self) -> impl Iterator<Item = usize> {
        (0..self.shard_count()).filter(|&shard| !self.is_dead(shard))
    }

    /// Ends a shard: its engine is not driven any more, and the other shards are told so.
    ///
    /// # Panics
    /// If the end has only one engine.
    pub fn kill_shard(&mut self, shard: usize) {
        let mesh = self.mesh.as_mut().expect("an end with shards");
        mesh.is_dead[shard] = true;
        mesh.monitor.on_shard_death(ShardId(u16::try_from(shard).expect("few shards")));
    }

    /// Creates a queue pair in a shard. Its handle is unique over all shards.
    ///
    /// # Panics
    /// If the limit is reached.
    pub fn create_qp(&mut self, shard: usize, init: QpInit) -> QpId {
        let Some(mesh) = &mut self.mesh else {
            return self.engine.create_qp(init).expect("a free queue pair");
        };
        let id = QpId { index: mesh.next_qp, generation: 0 };
        mesh.next_qp += 1;
        self.create_qp_as(shard, id, init);
        id
    }

    /// Moves a queue pair that was never connected to another shard. What was posted to it is lost.
    pub fn move_qp(&mut self, now: Instant, (from, to): (usize, usize), qp: QpId, init: QpInit) {
        self.shard_mut(from).destroy_qp(now, qp);
        self.create_qp_as(to, qp, init);
    }

    fn create_qp_as(&mut self, shard: usize, id: QpId, init: QpInit) {
        let queues = (Requester::new(init.cap.sends), BufferQueue::new(init.cap.recvs));
        let stream = self.arena.regions().new_stream_id();
        let created = self.shard_mut(shard).create_qp_as(id, stream, init, queues.0, queues.1);
        created.expect("a free queue pair");
    }

    /// Listens on a port with all shards that live.
    ///
    /// # Panics
    /// If one listens already.
    pub fn listen(&mut self, port: u16, backlog: usize) {
        for shard in self.live_shards().collect::<Vec<_>>() {
            self.shard_mut(shard).listen(port, backlog).expect("the port is free");
        }
    }

    /// Stops listening on a port.
    pub fn unlisten(&mut self, port: u16) {
        for shard in self.live_shards().collect::<Vec<_>>() {
            self.shard_mut(shard).unlisten(port);
        }
    }

    /// Returns the next event of a shard that lives, and the shard.
    pub fn next_event(&mut self) -> Option<(usize, ConnEvent)> {
        let live: Vec<usize> = self.live_shards().collect();
        live.into_iter().find_map(|shard| Some((shard, self.shard_mut(shard).next_event()?)))
    }

    /// Number of connections over all shards that live.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.live_shards().map(|shard| self.shard(shard).connection_count()).sum()
    }

    /// Number of four-tuples that shards own; `None` for an end without shards.
    #[must_use]
    pub fn owned_count(&self) -> Option<usize> {
        self.mesh.as_ref().map(|mesh| mesh.monitor.connection_count())
    }

    /// Sum of a counter over all shards.
    #[must_use]
    pub fn count(&self, counter: impl Fn(&Counters) -> u64) -> u64 {
        self.shards().map(|engine| counter(engine.counters())).sum()
    }

    /// Returns the shard whose queue gets a frame: instead of one that has died, the next one.
    ///
    /// # Panics
    /// If all have died.
    pub fn steer(&mut self, now: Instant, frame: &[u8]) -> usize {
        let count = self.shard_count();
        let Some(mesh) = &mut self.mesh else { return 0 };
        let queue = mesh.port.queue_of(now, frame);
        (queue..queue + count)
            .map(|shard| shard % count)
            .find(|&shard| !mesh.is_dead[shard])
            .expect("a shard lives")
    }
}
