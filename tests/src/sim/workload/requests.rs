//! Posts random requests.

use ferrowarp_proto::verbs::wc::WcOpcode;
use ferrowarp_proto::verbs::wr::{Operation, Payload, SendWr, Sge};
use rand::Rng;

use super::{Area, DEPTH, Message, Posted, SLOT_COUNT, SLOT_LEN, Side, addr_of, message};
use crate::sim::atomic_oracle::{AtomicOracle, WordAccess};
use crate::sim::mw_workload::MemoryWindow;
use crate::sim::world::World;

/// Kind of the next request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Send,
    Read,
    Write,
    /// A Write that is never inline.
    SgWrite,
    /// An atomic operation, Read or Write of a word.
    Word,
    Immediate,
    WriteImmediate,
    /// Bind or invalidation of the end's own memory window.
    WindowOp,
}

impl Kind {
    fn draw(world: &mut World) -> Self {
        // The additions of RFC 7306 exist only in the IETF version of the protocols.
        let count = if world.param(0).revision == 0 { 8 } else { 11 };
        match world.rng.random_range(0..count) {
            0 | 1 => Self::Send,
            2 | 3 => Self::Read,
            4 | 5 => Self::Write,
            6 | 7 => Self::SgWrite,
            8 | 9 => Self::Word,
            _ if world.rng.random_bool(0.5) => Self::Immediate,
            _ => Self::WriteImmediate,
        }
    }

    const fn consumes_recv(self) -> bool {
        matches!(self, Self::Send | Self::Immediate | Self::WriteImmediate)
    }

    const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::SgWrite | Self::WriteImmediate)
    }
}

/// Posts as many requests as flow control between the two ends permits.
pub(super) fn post(
    world: &mut World,
    pair: &mut [Side; 2],
    words: &mut AtomicOracle,
    (end, conn): (usize, usize),
    per_side: usize,
) {
    while pair[end].next_number < per_side && pair[end].posted.len() < DEPTH {
        let (number, slot) = (pair[end].next_number, pair[end].next_number % SLOT_COUNT);
        let mut kind = Kind::draw(world);
        // Of two Writes to the same place in flight together, the older may be placed last.
        let is_settled = pair[end].writes[slot].is_none_or(|(last, _)| last < pair[end].delivered);
        if kind.writes() && world.allows_ooo_placement() && !is_settled {
            kind = Kind::Send;
        }
        let has_pane = pair[end].window.is_some();
        let own = pair[end].window.as_mut().filter(|_| world.rng.random_bool(0.2));
        let own = own.and_then(MemoryWindow::next_request);
        if own.is_some() {
            kind = Kind::WindowOp;
        }
        // A receive must be available: those posted by the peer, minus messages in flight.
        let peer = &pair[1 - end];
        let credit = peer.receives - peer.received > pair[end].sends.len();
        if kind.consumes_recv() && !credit {
            return;
        }
        let len = match world.rng.random_range(0..4) {
            0 => world.rng.random_range(0..64),
            1 => world.rng.random_range(0..2_000),
            _ => world.rng.random_range(0..=SLOT_LEN),
        };
        let source_slot = number % DEPTH;
        let source = addr_of(conn, Area::Source, source_slot);
        let bytes = message(end, conn, number, len);
        let len32 = u32::try_from(len).expect("a slot");
        let stag = pair[end].stag;
        let payload = if len <= 64 && kind != Kind::SgWrite && world.rng.random_bool(0.5) {
            Payload::Inline(bytes.iter().copied().collect())
        } else {
            world.ends[end].arena.write(source, &bytes);
            let cut = len32 / 3;
            Payload::Gather(
                [
                    Sge { addr: source as u64, len: cut, lkey: stag },
                    Sge { addr: source as u64 + u64::from(cut), len: len32 - cut, lkey: stag },
                ]
                .into_iter()
                .collect(),
            )
        };
        let library_slot = world.rng.random_range(0..SLOT_COUNT);
        let library_offset = world.rng.random_range(0..=SLOT_LEN - len);
        let rkey = pair[1 - end].stag;
        let sink = |len| {
            let start = addr_of(conn, Area::Sink, number % DEPTH);
            Sge { addr: start as u64, len, lkey: stag }
        };
        let target = addr_of(conn, Area::Target, slot) as u64;
        let data = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        let solicited = world.rng.random_bool(0.5);
        let mut fence = world.rng.random_bool(0.1);
        let mut touched = None;
        let mut operation = match kind {
            Kind::WindowOp => own.expect("just seen"),
            Kind::Send => Operation::Send { payload, solicited, invalidate: None },
            Kind::Read => {
                let remote =
                    (addr_of(conn, Area::ReadSource, library_slot) + library_offset) as u64;
                Operation::Read { sink: sink(len32), rkey, remote }
            }
            Kind::Write | Kind::SgWrite => Operation::Write { payload, rkey, remote: target },
            Kind::Word => {
                let (touch, remote, expected) = words.draw(&mut world.rng, end, conn);
                touched = Some(expected);
                match touch {
                    WordAccess::Atomic(op) => Operation::Atomic { op, sink: sink(8), rkey, remote },
                    WordAccess::Read => Operation::Read { sink: sink(8), rkey, remote },
                    WordAccess::Write(word) => {
                        fence = true;
                        let payload = Payload::Inline(word.to_ne_bytes().into_iter().collect());
                        Operation::Write { payload, rkey, remote }
                    }
                }
            }
            Kind::Immediate => Operation::Immediate { data, solicited },
            Kind::WriteImmediate => {
                Operation::WriteImmediate { payload, rkey, remote: target, data, solicited }
            }
        };
        if has_pane
            && touched.is_none()
            && world.rng.random_bool(0.3)
            && let Some(window) = &mut pair[1 - end].window
        {
            window.use_for(&mut operation, number, slot * SLOT_LEN);
        }
        let (opcode, len) = (WcOpcode::from(&operation), operation.len());
        let len = usize::try_from(len).expect("a slot");
        if kind.consumes_recv() {
            let immediate = (kind != Kind::Send).then_some(data);
            let invalidate = match operation {
                Operation::Send { invalidate, .. } => invalidate,
                _ => None,
            };
            pair[end].sends.push_back(Message { number, len, immediate, invalidate, solicited });
        }
        if kind.writes() {
            pair[end].writes[slot] = Some((number, len));
        }
        let signaled = world.rng.random_bool(0.7) || number + 1 == per_side;
        let wr = SendWr { wr_id: number as u64, operation, signaled, fence };
        let qp = pair[end].qp;
        if world.ends[end].engine.post_send(qp, wr).is_err() {
            panic!("the send queue of end {end} refused request {number}");
        }
        pair[end].next_number += 1;
        pair[end].posted.push_back(Posted {
            number,
            signaled,
            opcode,
            len,
            slot: number % DEPTH,
            read_slot: library_slot,
            read_offset: library_offset,
            word: touched,
        });
    }
}
