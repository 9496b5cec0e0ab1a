//! Posts random requests.

use std::array;

use ferrowarp_proto::verbs::wc::WcOpcode;
use ferrowarp_proto::verbs::wr::{AtomicOp, Operation, Payload, SendWr};
use rand::RngExt;

use super::Workload;
use super::plan::{EndPlan, Kind};
use super::side::{Area, DEPTH, Effect, Message, Posted, SLOT_LEN, TARGET_COUNT, addr_of};
use crate::sim::atomic_oracle::WordAccess;
use crate::sim::mw_workload::MemoryWindow;
use crate::sim::world::World;

impl Workload {
    /// Posts as many requests as flow control between the two ends permits.
    pub(super) fn post(&mut self, world: &mut World, (end, conn): (usize, usize)) {
        loop {
            let side = &self.slots[conn].sides[end];
            let has_room = side.posted.len() < DEPTH && side.posted_count < self.plan.per_side;
            // Every other initiator posts before it is connected. After the end of the connection
            // requests are flushed.
            let is_early = end == 0 && side.salt.is_multiple_of(2) && !side.has_ended;
            let may_post = (side.is_up || is_early) && !side.post_refused && has_room;
            if !may_post || !self.post_next(world, (end, conn)) {
                return;
            }
        }
    }

    /// Posts the next request. False if the peer has no receive for it, or it is refused.
    fn post_next(&mut self, world: &mut World, (end, conn): (usize, usize)) -> bool {
        // The additions of RFC 7306 exist only in the IETF version of the protocols.
        let has_rfc7306 = world.param(0).revision != 0;
        let mut kind = (self.plan.draw)(&mut world.rng, has_rfc7306);
        let [side, peer] = self.slots[conn].ends(end);
        let number = side.posted_count;
        let slot = number % TARGET_COUNT;
        // Of two Writes to the same place in flight together, the older may be placed last.
        let is_settled = side.writes[slot].as_ref().is_none_or(|&(last, _)| last < side.delivered);
        if kind.writes() && world.allows_ooo_placement() && !is_settled {
            kind = Kind::Send;
        }
        let window = side.window.as_mut().filter(|_| world.rng.random_bool(0.2));
        if let Some(operation) = window.and_then(MemoryWindow::next_request) {
            let fence = world.rng.random_bool(0.1);
            return self.submit(world, (end, conn), operation, Effect::Window, fence);
        }
        // A receive must be available: those posted by the peer, minus messages in flight.
        if kind.consumes_recv() && peer.receives - peer.received <= side.sends.len() {
            return false;
        }
        let len = match world.rng.random_range(0..4) {
            0 => world.rng.random_range(0..64),
            1 => world.rng.random_range(0..2_000),
            _ => world.rng.random_range(0..=SLOT_LEN),
        };
        let bytes = side.message(number, len);
        let payload = if len <= 64 && kind != Kind::SgWrite && world.rng.random_bool(0.5) {
            Payload::inline(&bytes).unwrap()
        } else {
            let source = addr_of(conn, Area::Source, number);
            world.ends[end].arena.write(source, &bytes);
            let cut = len / 3;
            let sg_list = [side.sge(source, cut), side.sge(source + cut, len - cut)];
            Payload::gather(&sg_list).unwrap()
        };
        if kind.writes() {
            side.writes[slot] = Some((number, bytes));
        }
        let sink = |len| side.sge(addr_of(conn, Area::Sink, number), len);
        let (rkey, remote) = (peer.stag, addr_of(conn, Area::Target, slot) as u64);
        let data = world.rng.random();
        let solicited = world.rng.random_bool(0.5);
        let mut fence = world.rng.random_bool(0.1);
        let mut effect = Effect::Nothing;
        let mut operation = match kind {
            Kind::Send => Operation::Send { payload, solicited, invalidate: None },
            Kind::Read => {
                let slot = world.rng.random_range(0..TARGET_COUNT);
                let offset = world.rng.random_range(0..=SLOT_LEN - len);
                effect = Effect::Fetches { slot, offset };
                let remote = (addr_of(conn, Area::ReadSource, slot) + offset) as u64;
                let start = addr_of(conn, Area::Sink, number);
                let mut cuts: [usize; 3] = array::from_fn(|_| world.rng.random_range(0..=len));
                cuts.sort_unstable();
                let [a, b, c] = cuts;
                // Empty ones among them.
                let pieces = [0..a, a..b, b..c, c..len];
                let sink = pieces.map(|piece| side.sge(start + piece.start, piece.len()));
                Operation::Read { sink: sink.into(), rkey, remote }
            }
            Kind::Write | Kind::SgWrite => Operation::Write { payload, rkey, remote },
            Kind::OwnWord | Kind::SharedWord => {
                let rng = &mut world.rng;
                let (rkey, (access, remote, expected)) = if kind == Kind::OwnWord {
                    (rkey, self.words.draw_own(rng, end, conn))
                } else {
                    (peer.words_stag, self.words.draw_shared(rng, end, conn))
                };
                effect = Effect::Word(expected);
                match access {
                    WordAccess::Atomic(op) => Operation::Atomic { op, sink: sink(8), rkey, remote },
                    WordAccess::Read => Operation::Read { sink: [sink(8)].into(), rkey, remote },
                    WordAccess::Write(word) => {
                        fence = true;
                        let payload = Payload::Inline(word.to_ne_bytes().into());
                        Operation::Write { payload, rkey, remote }
                    }
                }
            }
            Kind::Immediate => Operation::Immediate { data, solicited },
            Kind::WriteImmediate => {
                Operation::WriteImmediate { payload, rkey, remote, data, solicited }
            }
        };
        if let Some(window) = &mut peer.window
            && !matches!(effect, Effect::Word(_))
            && world.rng.random_bool(0.3)
        {
            window.use_for(&mut operation, number, slot * SLOT_LEN);
        }
        self.submit(world, (end, conn), operation, effect, fence)
    }

    /// Posts a request. False if the connection has ended, or the queue is full.
    pub(super) fn submit(
        &mut self,
        world: &mut World,
        (end, conn): (usize, usize),
        operation: Operation,
        effect: Effect,
        fence: bool,
    ) -> bool {
        let side = &mut self.slots[conn].sides[end];
        let (number, opcode) = (side.posted_count, wc_opcode(&operation));
        let len = usize::try_from(operation.len()).expect("a slot");
        let message = match operation {
            Operation::Send { solicited, invalidate, .. } => Some((solicited, None, invalidate)),
            Operation::WriteImmediate { data, solicited, .. }
            | Operation::Immediate { data, solicited } => Some((solicited, Some(data), None)),
            _ => None,
        };
        // Requests that the end of a connection may overtake are all signaled: none is forgotten.
        let must_complete = self.plan.ends == EndPlan::Completes;
        let signaled =
            !must_complete || number + 1 == self.plan.per_side || world.rng.random_bool(0.7);
        let wr = SendWr { wr_id: number as u64, operation, signaled, fence };
        if side.engine(world, end).post_send(side.qp, wr).is_err() {
            assert!(!must_complete, "the send queue of end {end} refused request {number}");
            side.post_refused = true;
            return false;
        }
        if let Some((solicited, immediate, invalidate)) = message {
            let written = std::mem::take(&mut side.written);
            let is_alone = opcode == WcOpcode::Immediate;
            let len = if is_alone { written } else { len };
            let is_len_sure = !is_alone && (immediate.is_none() || !world.allows_ooo_placement());
            let message = Message { number, len, is_len_sure, immediate, invalidate, solicited };
            side.sends.push_back(message);
        } else if opcode == WcOpcode::Write {
            side.written = len;
        }
        side.posted_count += 1;
        side.posted.push_back(Posted { number, signaled, opcode, len, effect });
        true
    }
}

/// Opcode of the completion of a request.
fn wc_opcode(operation: &Operation) -> WcOpcode {
    match operation {
        Operation::Send { .. } => WcOpcode::Send,
        Operation::Write { .. } | Operation::WriteImmediate { .. } => WcOpcode::Write,
        Operation::Read { .. } => WcOpcode::Read,
        Operation::Atomic { op: AtomicOp::FetchAdd { .. }, .. } => WcOpcode::FetchAdd,
        Operation::Atomic { op: AtomicOp::Swap { .. }, .. } => WcOpcode::Swap,
        Operation::Atomic { op: AtomicOp::CmpSwap { .. }, .. } => WcOpcode::CmpSwap,
        Operation::Immediate { .. } => WcOpcode::Immediate,
        Operation::Bind(_) => WcOpcode::Bind,
        Operation::Invalidate { .. } => WcOpcode::Invalidate,
        other => unreachable!("{other:?} is not posted"),
    }
}
