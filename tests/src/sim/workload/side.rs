//! One end of a connection: its memory, queue pair and requests.

use std::collections::VecDeque;
use std::ops::Range;

use ferrowarp_proto::ddp::memory::{Access, Memory};
use ferrowarp_proto::verbs::qp::{QpCap, QpInit};
use ferrowarp_proto::verbs::wc::{CqId, QpId, WcOpcode};
use ferrowarp_proto::verbs::wr::{ImmediateData, RecvWr, SgList, Sge};
use rand::RngExt;

use super::plan::Plan;
use crate::sim::atomic_oracle::{Expected, SHARED_LEN, WORDS_LEN};
use crate::sim::mw_workload::MemoryWindow;
use crate::sim::world::{SimEngine, World};
use crate::{pattern, pattern_of};

/// Port of the first connection; each has its own.
pub(super) const PORT: u16 = 18515;
const PD: u32 = 7;
/// Slot length in bytes: the longest message.
pub(super) const SLOT_LEN: usize = 24 * 1024;
/// Slots in each area of a connection; requests and receives outstanding.
pub(super) const DEPTH: usize = 16;
/// Slots used of the targets, and of the sources of Reads.
pub(super) const TARGET_COUNT: usize = 8;

/// Areas of connection `conn` in the arena of an end.
#[derive(Clone, Copy)]
pub(super) enum Area {
    /// Sources of Sends and Writes.
    Source,
    /// Targets of the peer's Writes.
    Target,
    /// Buffers for the peer's Sends.
    Receive,
    /// Sinks of Reads.
    Sink,
    /// Data that the peer reads; never changes.
    ReadSource,
}

pub(super) fn addr_of(conn: usize, area: Area, number: usize) -> usize {
    WORDS_LEN + ((conn * 5 + area as usize) * DEPTH + number % DEPTH) * SLOT_LEN
}

/// Arena length in bytes for `conns` connections.
#[must_use]
pub const fn arena_len(conns: usize) -> usize {
    WORDS_LEN + conns * 5 * DEPTH * SLOT_LEN
}

/// This range of the contents of a source of Reads.
pub(super) fn read_source(end: usize, conn: usize, slot: usize, range: Range<usize>) -> Vec<u8> {
    pattern_of(1 << 43 | (conn << 8 | slot << 1 | end) as u64, range)
}

/// Expected effect of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Effect {
    /// None at the end that posts it.
    Nothing,
    /// A Read returns the bytes at this offset in this slot of the peer's sources of Reads.
    Fetches { slot: usize, offset: usize },
    /// An access to a word has this result.
    Word(Expected),
    /// The memory window changes its state.
    Window,
    /// The peer refuses it.
    Refused,
}

/// A posted request.
pub(super) struct Posted {
    pub(super) number: usize,
    pub(super) signaled: bool,
    pub(super) opcode: WcOpcode,
    pub(super) len: usize,
    pub(super) effect: Effect,
}

/// A message that consumes a receive of the peer.
#[derive(Clone, Copy)]
pub(super) struct Message {
    pub(super) number: usize,
    /// Of Immediate Data the bytes of the Write before it, or 0 if a Write that the stack itself
    /// sends may have come between them.
    pub(super) len: usize,
    pub(super) is_len_sure: bool,
    pub(super) immediate: Option<ImmediateData>,
    pub(super) invalidate: Option<u32>,
    pub(super) solicited: bool,
}

/// One end of one connection, and the state of its oracle.
pub(super) struct Side {
    /// Shard of its queue pair.
    pub(super) shard: usize,
    pub(super) qp: QpId,
    /// STag of the whole arena.
    pub(super) stag: u32,
    /// STag of the shared words alone, with the access rights they need.
    pub(super) words_stag: u32,
    /// Chooses the contents of its messages.
    pub(super) salt: u32,
    pub(super) posted: VecDeque<Posted>,
    pub(super) posted_count: usize,
    /// Messages in flight to the peer.
    pub(super) sends: VecDeque<Message>,
    /// Bytes of its last Write after the last of those.
    pub(super) written: usize,
    /// Latest Write to each slot of the peer: number and bytes.
    pub(super) writes: [Option<(usize, Vec<u8>)>; TARGET_COUNT],
    /// Number of receives posted so far.
    pub(super) receives: usize,
    /// Completed receives to be posted again.
    pub(super) to_repost: usize,
    pub(super) received: usize,
    /// Number of receives that completed without a message.
    pub(super) flushed: usize,
    /// Number of its latest delivered message, plus one.
    pub(super) delivered: usize,
    /// Memory window over the targets, in runs with windows.
    pub(super) window: Option<MemoryWindow>,
    pub(super) accepted: bool,
    pub(super) is_up: bool,
    pub(super) has_ended: bool,
    /// A request failed.
    pub(super) has_failed: bool,
    /// An atomic operation or Read failed: no later one may complete.
    pub(super) has_failed_read: bool,
    /// A request was refused: the connection ends.
    pub(super) post_refused: bool,
}

impl Side {
    pub(super) fn new(world: &mut World, plan: &Plan, end: usize, conn: usize) -> Self {
        let shard = some_shard(world, end);
        let qp = world.ends[end].create_qp(shard, qp_init(conn));
        let arena = &world.ends[end].arena;
        let stag = arena.register(0, arena_len(plan.conns) as u64, Access::ALL, PD);
        let rights = Access::REMOTE_ATOMIC | Access::REMOTE_READ;
        let targets = (addr_of(conn, Area::Target, 0) as u64, (TARGET_COUNT * SLOT_LEN) as u64);
        let engine = world.ends[end].shard(shard);
        let window = || MemoryWindow::new(engine, PD, qp, stag, targets);
        let mut side = Self {
            shard,
            qp,
            stag,
            words_stag: arena.register(0, SHARED_LEN as u64, rights, PD),
            window: plan.windows.then(window),
            salt: world.rng.random(),
            posted: VecDeque::new(),
            posted_count: 0,
            sends: VecDeque::new(),
            written: 0,
            writes: Default::default(),
            receives: 0,
            to_repost: 0,
            received: 0,
            flushed: 0,
            delivered: 0,
            accepted: false,
            is_up: false,
            has_ended: false,
            has_failed: false,
            has_failed_read: false,
            post_refused: false,
        };
        side.post_receives(world, end, conn);
        side
    }

    fn post_receives(&mut self, world: &mut World, end: usize, conn: usize) {
        for _ in 0..DEPTH {
            assert!(post_receive(world, self, end, conn), "the receive queue is full");
        }
    }

    /// Moves the queue pair, which was never connected, to another shard.
    pub(super) fn move_to(&mut self, world: &mut World, end: usize, conn: usize, shard: usize) {
        let now = world.now;
        world.ends[end].move_qp(now, (self.shard, shard), self.qp, qp_init(conn));
        self.shard = shard;
        if let Some(window) = &mut self.window {
            window.set_qp(world.ends[end].shard(shard), self.qp);
        }
        self.receives = 0;
        self.post_receives(world, end, conn);
    }

    /// The engine of its queue pair.
    pub(super) fn engine<'w>(&self, world: &'w mut World, end: usize) -> &'w mut SimEngine {
        world.ends[end].shard_mut(self.shard)
    }

    pub(super) fn destroy(&self, world: &mut World, end: usize) {
        let now = world.now;
        self.engine(world, end).destroy_qp(now, self.qp);
        let regions = world.ends[end].arena.regions();
        for stag in [self.words_stag, self.stag] {
            regions.invalidate(stag);
            regions.release(stag);
        }
    }

    /// The bytes of message `number`.
    pub(super) fn message(&self, number: usize, len: usize) -> Vec<u8> {
        pattern(u64::from(self.salt) << 12 | number as u64, len)
    }

    /// True if each receive has completed, with a message or flushed.
    pub(super) const fn has_all_receives(&self) -> bool {
        !self.is_up || self.flushed == self.receives - self.received
    }

    pub(super) fn sge(&self, addr: usize, len: usize) -> Sge {
        let len = u32::try_from(len).expect("a slot");
        Sge { addr: addr as u64, len, lkey: self.stag }
    }
}

pub(super) fn port(conn: usize) -> u16 {
    PORT + u16::try_from(conn).expect("few connections")
}

pub(super) fn cq(conn: usize) -> CqId {
    CqId(u32::try_from(conn).expect("few connections"))
}

fn qp_init(conn: usize) -> QpInit {
    let cq = cq(conn);
    QpInit { pd: PD, send_cq: cq, recv_cq: cq, cap: QpCap::new(DEPTH, DEPTH) }
}

/// A shard of an end that lives. Without a random number if there is only one.
fn some_shard(world: &mut World, end: usize) -> usize {
    let live: Vec<usize> = world.ends[end].live_shards().collect();
    if live.len() == 1 { live[0] } else { live[world.rng.random_range(0..live.len())] }
}

/// Posts the next receive of an end. False if the connection has ended.
pub(super) fn post_receive(world: &mut World, side: &mut Side, end: usize, conn: usize) -> bool {
    let start = addr_of(conn, Area::Receive, side.receives);
    // Two SGEs, to exercise scattering.
    let cut = world.rng.random_range(0..=SLOT_LEN);
    let sg_list = [side.sge(start, cut), side.sge(start + cut, SLOT_LEN - cut)];
    let wr =
        RecvWr { wr_id: side.receives as u64, sg_list: SgList::try_from(&sg_list[..]).unwrap() };
    let is_posted = side.engine(world, end).post_recv(side.qp, wr).is_ok();
    side.receives += usize::from(is_posted);
    is_posted
}
