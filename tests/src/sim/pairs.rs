//! Connected queue pairs of both ends, for scripted tests with a few requests.

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::time::SECOND;
use ferrowarp_proto::verbs::cm::{ConnEvent, ConnParam, EndReason};
use ferrowarp_proto::verbs::qp::{QpCap, QpInit};
use ferrowarp_proto::verbs::srq::SrqId;
use ferrowarp_proto::verbs::wc::{CqId, QpId, Wc};
use ferrowarp_proto::verbs::wr::{Operation, Payload, RecvWr, SendWr, Sge};

use super::world::{World, WorldOptions};

/// Protection domain of the queue pairs.
pub const PD: u32 = 3;
/// Completion queue of [`Connected`].
pub const CQ: CqId = CqId(0);
/// Port that end 1 listens on.
pub const PORT: u16 = 7174;

/// Creates queue pairs at end 0 and end 1 and connects them. Pair `number` uses the completion
/// queue of that number. The queue pair of end 1 receives from `srq`, if given.
///
/// # Panics
/// If they cannot be connected.
pub fn connect(world: &mut World, number: u32, srq: Option<SrqId>) -> [QpId; 2] {
    let params = [0, 1].map(|end| world.param(end));
    let cq = CqId(number);
    let init = QpInit { pd: PD, send_cq: cq, recv_cq: cq, cap: QpCap::new(64, 64) };
    let qps =
        [0, 1].map(|end: usize| world.ends[end].engine.create_qp(init).expect("a free queue pair"));
    if let Some(srq) = srq {
        world.ends[1].engine.attach_srq(qps[1], srq).expect("it is idle");
    }
    handshake(world, qps, &params);
    // The responder must not send before the initiator's first FPDU.
    let hello =
        signaled_wr(u64::MAX, Operation::Write { payload: Payload::empty(), rkey: 0, remote: 0 });
    post(world, 0, qps[0], hello);
    completions(world, 0, cq, 1);
    world.run_until(SECOND, |world| {
        let [sent, received] = [0, 1].map(|end: usize| *world.ends[end].engine.counters());
        received.fpdus_in == sent.fpdus_out
    });
    qps
}

/// Connects idle queue pairs of end 0 and end 1, up to the `Established` events.
///
/// # Panics
/// If they cannot be connected.
pub fn handshake(world: &mut World, qps: [QpId; 2], params: &[ConnParam; 2]) {
    // Fails if the port is bound from an earlier call.
    let _ = world.ends[1].engine.listen(PORT, 8);
    let (now, remote) = (world.now, world.socket(1, PORT));
    world.ends[0].engine.connect(now, qps[0], remote, &params[0]).expect("idle");
    let ConnEvent::ConnectRequest { request, .. } = event(world, 1) else {
        panic!("no request");
    };
    let now = world.now;
    world.ends[1].engine.accept(now, request, qps[1], &params[1]).expect("the request is new");
    for end in 0..2 {
        assert!(matches!(event(world, end), ConnEvent::Established { .. }));
    }
}

/// Creates queue pairs at both ends and connects them.
///
/// # Panics
/// If they cannot be connected.
pub fn connect_new(world: &mut World, init: QpInit, params: &[ConnParam; 2]) -> [QpId; 2] {
    let qps =
        [0, 1].map(|end: usize| world.ends[end].engine.create_qp(init).expect("a free queue pair"));
    handshake(world, qps, params);
    qps
}

/// Two ends with one connection, and a memory region at each.
pub struct Connected {
    /// The ends.
    pub world: World,
    /// Their queue pairs.
    pub qps: [QpId; 2],
    /// STags of their whole arenas.
    pub stags: [u32; 2],
}

impl Connected {
    /// Connects new queue pairs. The responder must not send before the initiator's first FPDU.
    ///
    /// # Panics
    /// If they cannot be connected.
    #[must_use]
    pub fn new(options: &WorldOptions, init: QpInit, params: &[ConnParam; 2]) -> Self {
        Self::with(options, |world| connect_new(world, init, params))
    }

    /// Connects queue pairs of 64 requests as [`connect`] does; both may send.
    ///
    /// # Panics
    /// If they cannot be connected.
    #[must_use]
    pub fn ready(options: &WorldOptions) -> Self {
        Self::with(options, |world| connect(world, 0, None))
    }

    fn with(options: &WorldOptions, connect: impl FnOnce(&mut World) -> [QpId; 2]) -> Self {
        let mut world = World::new(options);
        let stags = [0, 1].map(|end| register(&world, end, 0, options.arena_len as u64));
        let qps = connect(&mut world);
        Self { world, qps, stags }
    }

    /// An SGE at the start of an end's arena.
    #[must_use]
    pub const fn sge(&self, end: usize, len: u32) -> Sge {
        Sge { addr: 0, len, lkey: self.stags[end] }
    }

    /// Posts a Write of the first `len` bytes of an end's arena to the other's, at `remote`.
    ///
    /// # Panics
    /// If it is refused.
    pub fn write(&mut self, end: usize, wr_id: u64, len: u32, remote: u64, signaled: bool) {
        let payload = Payload::Gather([self.sge(end, len)].into());
        let operation = Operation::Write { payload, rkey: self.stags[1 - end], remote };
        let wr = SendWr { wr_id, operation, signaled, fence: false };
        post(&mut self.world, end, self.qps[end], wr);
    }
}

/// Settings of queue pairs with this many requests in each queue.
#[must_use]
pub const fn qp_init(max_send_wr: usize, max_recv_wr: usize) -> QpInit {
    QpInit { pd: PD, send_cq: CQ, recv_cq: CQ, cap: QpCap::new(max_send_wr, max_recv_wr) }
}

/// Returns the next event of an end, within 30 seconds.
///
/// # Panics
/// If there is none.
pub fn event(world: &mut World, end: usize) -> ConnEvent {
    let mut event = None;
    world.run_until(30 * SECOND, |world| {
        event = world.ends[end].engine.next_event();
        event.is_some()
    });
    event.expect("an event within 30 s")
}

/// Waits for the next `Disconnected` event of an end. Returns the queue pair, and layer, type and
/// code of the Terminate sent or received, if there was one.
///
/// # Panics
/// If there is another event.
pub fn disconnect_cause(world: &mut World, end: usize) -> (QpId, Option<(u8, u8, u8)>) {
    let ConnEvent::Disconnected { qp, reason } = event(world, end) else {
        panic!("something else happened");
    };
    match reason {
        EndReason::TerminateSent(terminate) | EndReason::TerminateReceived(terminate) => {
            (qp, Some((terminate.layer, terminate.error_type, terminate.code)))
        }
        _ => (qp, None),
    }
}

/// Waits for `count` completions of a queue.
///
/// # Panics
/// If there are fewer within 30 seconds.
pub fn completions(world: &mut World, end: usize, cq: CqId, count: usize) -> Vec<Wc> {
    let mut found = Vec::new();
    world.run_until(30 * SECOND, |world| {
        while found.len() < count
            && let Some(wc) = world.ends[end].queues.poll(cq)
        {
            found.push(wc);
        }
        found.len() >= count
    });
    assert_eq!(found.len(), count, "{found:?}");
    found
}

/// Runs for one second of virtual time, so that everything in flight arrives.
pub fn settle(world: &mut World) {
    world.run_for(SECOND);
}

/// Posts a request.
///
/// # Panics
/// If it is refused.
pub fn post(world: &mut World, end: usize, qp: QpId, wr: SendWr) {
    world.ends[end].engine.post_send(qp, wr).expect("a free slot of the send queue");
}

/// A signaled request.
#[must_use]
pub const fn signaled_wr(wr_id: u64, operation: Operation) -> SendWr {
    SendWr { wr_id, operation, signaled: true, fence: false }
}

/// A Send of `bytes`.
#[must_use]
pub fn send(wr_id: u64, bytes: &[u8], invalidate: Option<u32>) -> SendWr {
    let payload = Payload::inline(bytes).unwrap();
    signaled_wr(wr_id, Operation::Send { payload, solicited: false, invalidate })
}

/// A Write of `bytes`.
#[must_use]
pub fn write(wr_id: u64, bytes: &[u8], rkey: u32, remote: u64) -> SendWr {
    let payload = Payload::inline(bytes).unwrap();
    signaled_wr(wr_id, Operation::Write { payload, rkey, remote })
}

/// A receive request with one SGE.
#[must_use]
pub fn receive(wr_id: u64, lkey: u32, addr: u64, len: u32) -> RecvWr {
    RecvWr { wr_id, sg_list: [Sge { addr, len, lkey }].into() }
}

/// Registers a range of the arena of an end for all queue pairs; returns the STag.
#[must_use]
pub fn register(world: &World, end: usize, start: u64, len: u64) -> u32 {
    world.ends[end].arena.register(start, len, Access::ALL, PD)
}
