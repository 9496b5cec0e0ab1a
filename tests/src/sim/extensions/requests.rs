//! Posts random requests.

use ferrowarp_proto::ddp::atomic::{ATOMIC_LEN, AtomicOp};
use ferrowarp_proto::verbs::wc::WcOpcode;
use ferrowarp_proto::verbs::wr::{ImmediateData, Operation, Payload, SendWr, Sge};
use rand::Rng;

use super::{Area, ConnSlot, DEPTH, Message, Posted, READ_SOURCE_LEN, SharedWords, Task, addr_of};
use crate::sim::atomic_oracle::SHARED_COUNT;
use crate::sim::world::World;

impl ConnSlot {
    fn sink(&self, end: usize, conn: usize, number: u64, len: usize) -> Sge {
        let addr = addr_of(conn, Area::Sink, number) as u64;
        Sge { addr, len: u32::try_from(len).expect("short"), lkey: self.sides[end].own }
    }

    /// Posts a request if the queue is not full and, for a message, the peer has a receive posted.
    pub(super) fn post(
        &mut self,
        world: &mut World,
        contests: &mut SharedWords,
        (end, conn): (usize, usize),
        per_side: u64,
    ) -> bool {
        let (side, peer) = (&self.sides[end], &self.sides[1 - end]);
        let number = side.posted_count;
        if !side.is_up || side.post_refused || number >= per_side || side.posted.len() == DEPTH {
            return false;
        }
        let kind = world.rng.random_range(0..10);
        let may_tell = peer.receives > side.messages.len() as u64;
        let (operation, task) = match kind {
            0..5 => {
                let word = world.rng.random_range(0..SHARED_COUNT);
                let contest = &mut contests.words[1 - end][word];
                let op = contest.draw(&mut world.rng, word, side.users[word]);
                let sink = self.sink(end, conn, number, ATOMIC_LEN);
                let (rkey, remote) = (peer.common, (ATOMIC_LEN * word) as u64);
                let operation = match op {
                    Some(op) => Operation::Atomic { op, sink, rkey, remote },
                    None => Operation::Read { sink, rkey, remote },
                };
                (operation, Task::AccessWord { word, op })
            }
            5 => {
                let len = world.rng.random_range(0..=READ_SOURCE_LEN);
                let sink = self.sink(end, conn, number, len);
                let (rkey, remote) = (peer.common, (ATOMIC_LEN * SHARED_COUNT) as u64);
                (Operation::Read { sink, rkey, remote }, Task::ReadBlock { len: sink.len })
            }
            _ if !may_tell => return false,
            _ => (self.draw_message(world, end, conn, kind), Task::Message),
        };
        self.submit(world, end, operation, task)
    }

    /// Draws the next message of an end.
    fn draw_message(&self, world: &mut World, end: usize, conn: usize, kind: u32) -> Operation {
        let (side, peer) = (&self.sides[end], &self.sides[1 - end]);
        let data: ImmediateData = world.rng.random();
        let solicited = world.rng.random_bool(0.5);
        match kind {
            6 => {
                let payload = Payload::Inline(data.into_iter().chain(data).collect());
                Operation::Send { payload, solicited, invalidate: None }
            }
            7 => {
                let remote = addr_of(conn, Area::Target, side.messages.len() as u64) as u64;
                let payload = Payload::Inline(data.into_iter().collect());
                Operation::WriteImmediate { payload, rkey: peer.own, remote, data, solicited }
            }
            _ => Operation::Immediate { data, solicited },
        }
    }

    /// Posts a request. False if the connection has ended, or the queue is full.
    fn submit(&mut self, world: &mut World, end: usize, operation: Operation, task: Task) -> bool {
        let side = &mut self.sides[end];
        let (number, opcode) = (side.posted_count, WcOpcode::from(&operation));
        let expected = match &operation {
            Operation::Send { payload: Payload::Inline(bytes), solicited, .. } => {
                bytes.first_chunk().map(|data| (*data, *solicited))
            }
            Operation::WriteImmediate { data, solicited, .. }
            | Operation::Immediate { data, solicited } => Some((*data, *solicited)),
            _ => None,
        };
        let fence = world.rng.random_bool(0.1);
        let wr = SendWr { wr_id: number, operation, signaled: true, fence };
        if world.ends[end].engine.post_send(side.qp, wr).is_err() {
            side.post_refused = true;
            return false;
        }
        if let Some((data, solicited)) = expected {
            side.messages.push(Message { data, opcode, solicited });
        }
        side.posted_count += 1;
        side.posted.push_back(Posted { number, opcode, task });
        true
    }

    /// Posts an atomic operation with an invalid STag. False if the queue is full or the connection
    /// has ended.
    pub(super) fn post_invalid_atomic(
        &mut self,
        world: &mut World,
        end: usize,
        conn: usize,
    ) -> bool {
        let number = self.sides[end].posted_count;
        let sink = self.sink(end, conn, number, ATOMIC_LEN);
        // Same STag index, other key.
        let rkey = self.sides[1 - end].common ^ 1;
        let op = AtomicOp::fetch_add(1);
        let operation = Operation::Atomic { op, sink, rkey, remote: 0 };
        self.submit(world, end, operation, Task::InvalidAtomic)
    }
}
