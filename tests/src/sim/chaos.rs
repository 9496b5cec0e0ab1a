//! Random work on connections that may end at any time, because an end restarts or segments are
//! forged.
//!
//! Each request completes once and in order, whatever its status. Each queue pair reports its end
//! once. Data reported as received or read are correct.

use std::collections::VecDeque;
use std::path::PathBuf;

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::time::SECOND;
use ferrowarp_proto::verbs::cm::Event;
use ferrowarp_proto::verbs::qp::QpInit;
use ferrowarp_proto::verbs::wc::{CqId, QpId, Wc, WcOpcode, WcStatus};
use ferrowarp_proto::verbs::wr::{Operation, Payload, RecvWr, SendWr, Sge};
use rand::Rng;

use super::end_checks::check_nothing_left;
use super::segment_mutator::SegmentMutator;
use super::world::{World, WorldOptions};
use crate::pattern;

const PORT: u16 = 18515;
const PD: u32 = 7;
const DEPTH: usize = 8;
/// Length of the longest message in bytes.
const SLOT_LEN: usize = 12_000;

/// Arena length of an end: sources, receive buffers, sinks, targets, and sources of Reads.
pub const ARENA_LEN: usize = 5 * DEPTH * SLOT_LEN;

#[derive(Clone, Copy)]
enum Area {
    Source,
    Receive,
    Sink,
    Target,
    ReadSource,
}

fn addr_of(area: Area, number: u64) -> usize {
    let slot = usize::try_from(number).expect("small") % DEPTH;
    (area as usize * DEPTH + slot) * SLOT_LEN
}

/// The bytes of message `number` of an end.
fn message(end: usize, number: u64, len: usize) -> Vec<u8> {
    pattern((number + 1) << 1 | end as u64, len)
}

/// Message number whose pattern is in the first slot of the Read sources.
const READ_SOURCE: u64 = 1 << 20;

struct Posted {
    number: u64,
    opcode: WcOpcode,
    len: usize,
}

/// One end of the connection.
struct Side {
    qp: QpId,
    stag: u32,
    posted: VecDeque<Posted>,
    posted_count: u64,
    /// Number and length of each Send posted.
    sends: Vec<(u64, usize)>,
    /// Receives posted.
    receives: u64,
    received: u64,
    succeeded: u64,
    accepted: bool,
    is_up: bool,
    has_ended: bool,
    /// A request has failed; no more are posted.
    has_failed: bool,
}

/// One connection, and the state of its oracle.
pub struct ChaosConnection {
    sides: [Side; 2],
    per_side: u64,
}

/// Registers memory at an end and fills the sources of Reads; returns the STag.
#[must_use]
pub fn register_memory(world: &World, end: usize) -> u32 {
    let arena = &world.ends[end].arena;
    for slot in 0..DEPTH as u64 {
        arena.write(addr_of(Area::ReadSource, slot), &message(end, READ_SOURCE + slot, SLOT_LEN));
    }
    arena.register(0, ARENA_LEN as u64, Access::ALL, PD)
}

/// Listens at end 1.
///
/// # Panics
/// If it listens already.
pub fn listen(world: &mut World) {
    world.ends[1].engine.listen(PORT, 4).expect("the port is free");
}

/// Options for this kind of run: keep-alives detect dead peers.
#[must_use]
pub const fn options(seed: u64) -> WorldOptions {
    let mut options = WorldOptions::new(seed);
    options.arena_len = ARENA_LEN;
    options.keepalive_ns = Some(5 * SECOND);
    options
}

/// Runs one connection whose segments are forged for `lasts_ns`. With `keeps_seq`, all requests
/// complete or both ends report the end of the connection. Otherwise the ends may stay inconsistent
/// forever, until an application timeout ends the connection. Returns true if all requests
/// completed.
///
/// # Panics
/// If an oracle finds an error.
pub fn run_with_forged_segments(
    options: &WorldOptions,
    mutator: SegmentMutator,
    keeps_seq: bool,
    lasts_ns: u64,
    per_side: u64,
    capture: Option<PathBuf>,
) -> bool {
    let mut world = World::new(options);
    if let Some(path) = capture {
        eprintln!("keeps_seq: {keeps_seq}, for {lasts_ns} ns, {options:?}");
        world.capture_to(path);
    }
    let stags = [register_memory(&world, 0), register_memory(&world, 1)];
    listen(&mut world);
    world.mutator = Some(mutator);
    let mut work = ChaosConnection::connect(&mut world, stags, per_side);
    let ends = world.now + lasts_ns;
    world.run_until(lasts_ns, |world| work.step(world) || world.now >= ends);
    world.clear_faults();
    let done = world.run_until(400 * SECOND, |world| work.step(world));
    assert!(done || !keeps_seq, "neither complete nor over");
    let completed = work.is_complete();
    work.finish(&mut world);
    completed
}

impl ChaosConnection {
    /// Starts connecting; each end will post `per_side` requests.
    ///
    /// # Panics
    /// If no queue pair can be created.
    #[must_use]
    pub fn connect(world: &mut World, stags: [u32; 2], per_side: u64) -> Self {
        let cq = CqId(0);
        let init =
            QpInit { pd: PD, send_cq: cq, recv_cq: cq, max_send_wr: DEPTH, max_recv_wr: DEPTH };
        let sides = [0, 1].map(|end| Side {
            qp: world.ends[end].engine.create_qp(init).expect("room"),
            stag: stags[end],
            posted: VecDeque::new(),
            posted_count: 0,
            sends: Vec::new(),
            receives: 0,
            received: 0,
            succeeded: 0,
            accepted: false,
            is_up: false,
            has_ended: false,
            has_failed: false,
        });
        let mut connection = Self { sides, per_side };
        for end in 0..2 {
            for _ in 0..DEPTH {
                connection.post_receive(world, end);
            }
        }
        let (now, remote) = (world.now, world.socket(1, PORT));
        let (qp, param) = (connection.sides[0].qp, world.param(0));
        world.ends[0].engine.connect(now, qp, remote, &param).expect("idle");
        connection
    }

    fn post_receive(&mut self, world: &mut World, end: usize) {
        let side = &mut self.sides[end];
        let addr = addr_of(Area::Receive, side.receives) as u64;
        let len = u32::try_from(SLOT_LEN).expect("short");
        let sg_list = [Sge { addr, len, lkey: side.stag }].into_iter().collect();
        let wr = RecvWr { wr_id: side.receives, sg_list };
        if world.ends[end].engine.post_recv(side.qp, wr).is_ok() {
            side.receives += 1;
        }
    }

    /// Handles events, polls and posts. True once all is complete, or both ends know of the end.
    ///
    /// # Panics
    /// If an oracle finds an error.
    pub fn step(&mut self, world: &mut World) -> bool {
        for end in 0..2 {
            self.step_end(world, end);
        }
        self.is_complete() || self.is_over()
    }

    /// Like [`Self::step`], at one end only.
    ///
    /// # Panics
    /// If an oracle finds an error.
    pub fn step_end(&mut self, world: &mut World, end: usize) {
        self.handle_events(world, end);
        self.poll(world, end);
        while self.post(world, end) {}
    }

    /// True if all requests have succeeded and all Sends were received.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        (0..2).all(|end| {
            let (side, peer) = (&self.sides[end], &self.sides[1 - end]);
            side.succeeded == self.per_side && peer.received == side.sends.len() as u64
        })
    }

    /// True if both ends know that the connection has ended, or never had it.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.sides[0].has_ended && (self.sides[1].has_ended || !self.sides[1].accepted)
    }

    /// True if an end knows that the connection has ended.
    #[must_use]
    pub fn has_ended(&self, end: usize) -> bool {
        self.sides[end].has_ended
    }

    fn handle_events(&mut self, world: &mut World, end: usize) {
        let side = &mut self.sides[end];
        while let Some(event) = world.ends[end].engine.next_event() {
            match event {
                Event::ConnectRequest { request, .. } => {
                    let (now, param) = (world.now, world.param(end));
                    // The request may be gone, or be a second one from a forged SYN.
                    let engine = &mut world.ends[end].engine;
                    side.accepted |= engine.accept(now, request, side.qp, &param).is_ok();
                }
                Event::Established { qp, .. } => {
                    assert_eq!(qp, side.qp);
                    assert!(!side.is_up, "end {end} is told twice that the connection is up");
                    side.is_up = true;
                }
                Event::Disconnected { qp, .. } | Event::ConnectFailed { qp, .. } => {
                    assert_eq!(qp, side.qp);
                    assert!(!side.has_ended, "end {end} is told twice of the end");
                    side.has_ended = true;
                }
                Event::TerminateReceived { qp, terminate } => {
                    assert_eq!((qp, side.has_ended), (side.qp, true));
                    assert!(terminate.is_some(), "end {end}: a Terminate that breaks the rules");
                }
                event => panic!("nobody asked for {event:?}"),
            }
        }
    }

    /// Posts a request if the queue is not full and, for a Send, the peer has a receive posted.
    fn post(&mut self, world: &mut World, end: usize) -> bool {
        let peer = &self.sides[1 - end];
        let (peer_stag, buffers) = (peer.stag, peer.receives);
        let side = &mut self.sides[end];
        if !side.is_up || side.has_ended || side.has_failed {
            return false;
        }
        if side.posted_count == self.per_side || side.posted.len() == DEPTH {
            return false;
        }
        let number = side.posted_count;
        let len = world.rng.random_range(0..=SLOT_LEN);
        let local = |area| Sge {
            addr: addr_of(area, number) as u64,
            len: u32::try_from(len).expect("short"),
            lkey: side.stag,
        };
        let gather = Payload::Gather([local(Area::Source)].into_iter().collect());
        let bytes = message(end, number, len);
        let (opcode, operation) = match world.rng.random_range(0..4) {
            0 => {
                let remote = addr_of(Area::ReadSource, number) as u64;
                let sink = local(Area::Sink);
                (WcOpcode::Read, Operation::Read { sink, rkey: peer_stag, remote })
            }
            1 => {
                let remote = addr_of(Area::Target, number) as u64;
                let payload = gather;
                (WcOpcode::Write, Operation::Write { payload, rkey: peer_stag, remote })
            }
            _ if buffers > side.sends.len() as u64 => {
                let payload = gather;
                (WcOpcode::Send, Operation::Send { payload, solicited: false, invalidate: None })
            }
            _ => return false,
        };
        if opcode != WcOpcode::Read {
            world.ends[end].arena.write(addr_of(Area::Source, number), &bytes);
        }
        let wr = SendWr { wr_id: number, operation, signaled: true, fence: false };
        if world.ends[end].engine.post_send(side.qp, wr).is_err() {
            // The connection has ended; its event is still queued.
            return false;
        }
        if opcode == WcOpcode::Send {
            side.sends.push((number, len));
        }
        side.posted_count += 1;
        side.posted.push_back(Posted { number, opcode, len });
        true
    }

    fn poll(&mut self, world: &mut World, end: usize) {
        while let Some(wc) = world.ends[end].queues.poll(CqId(0)) {
            if wc.qp != self.sides[end].qp {
                continue;
            }
            if wc.opcode == WcOpcode::Recv {
                self.check_receive(world, end, &wc);
            } else {
                self.check_request(world, end, &wc);
            }
        }
    }

    fn check_request(&mut self, world: &World, end: usize, wc: &Wc) {
        let side = &mut self.sides[end];
        let posted = side.posted.pop_front().expect("a completion without a request");
        assert_eq!((posted.number, posted.opcode), (wc.wr_id, wc.opcode), "out of order");
        if wc.status != WcStatus::Success {
            side.has_failed = true;
            return;
        }
        // Requests done before the end succeed, even those posted after a Read that failed.
        side.succeeded += 1;
        if posted.opcode == WcOpcode::Read {
            let slot = posted.number % DEPTH as u64;
            let expected = message(1 - end, READ_SOURCE + slot, SLOT_LEN);
            let got = world.ends[end].arena.read(addr_of(Area::Sink, posted.number), posted.len);
            assert!(got == expected[..posted.len], "octets of Read {} differ", posted.number);
        }
    }

    fn check_receive(&mut self, world: &mut World, end: usize, wc: &Wc) {
        if wc.status != WcStatus::Success {
            return;
        }
        let received = self.sides[end].received;
        assert_eq!(wc.wr_id, received, "receive buffers complete in order");
        let index = usize::try_from(received).expect("small");
        let sent = self.sides[1 - end].sends.get(index);
        let &(number, len) = sent.expect("a Send that nobody sent");
        assert_eq!(wc.byte_len as usize, len, "length of message {number}");
        let got = world.ends[end].arena.read(addr_of(Area::Receive, received), len);
        assert!(got == message(1 - end, number, len), "octets of message {number} differ");
        self.sides[end].received += 1;
        self.post_receive(world, end);
    }

    /// Disconnects, and checks that no resource stays in use.
    ///
    /// # Panics
    /// If one does, or a request has not completed.
    pub fn finish(mut self, world: &mut World) {
        world.clear_faults();
        let now = world.now;
        for (end, side) in self.sides.iter().enumerate() {
            let _ = world.ends[end].engine.disconnect(now, side.qp);
        }
        let gone = world.run_until(200 * SECOND, |world| {
            for end in 0..2 {
                self.handle_events(world, end);
                self.poll(world, end);
            }
            world.ends.iter().all(|end| end.engine.connection_count() == 0)
        });
        assert!(gone, "connections stay after the end");
        for (end, side) in self.sides.iter().enumerate() {
            assert!(side.has_ended || !side.is_up, "end {end} was not told of the end");
            assert!(side.posted.is_empty(), "requests of end {end} never completed");
            world.ends[end].engine.destroy_qp(world.now, side.qp);
        }
        check_nothing_left(world);
    }

    /// Destroys the queue pair of an end after the other end was restarted.
    ///
    /// # Panics
    /// If it has requests that never completed.
    pub fn destroy_survivor(mut self, world: &mut World, end: usize) {
        self.poll(world, end);
        assert!(self.sides[end].posted.is_empty(), "requests of end {end} never completed");
        world.ends[end].engine.destroy_qp(world.now, self.sides[end].qp);
    }
}
