//! Connection setup and connection events.

use std::collections::VecDeque;

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::verbs::cm::{Event, ReadDepths};
use ferrowarp_proto::verbs::qp::QpInit;
use ferrowarp_proto::verbs::wc::QpId;
use ferrowarp_proto::verbs::wr::{RecvWr, Sge};

use super::{
    Area, COMMON_LEN, ConnSlot, DEPTH, MESSAGE_LEN, OWN_LEN, PD, PORT, SharedWords, Side, addr_of,
    cq, port,
};
use crate::sim::atomic_oracle::{SHARED_COUNT, SharedWord};
use crate::sim::world::World;

/// Handles the events of both ends.
pub(super) fn handle_events(world: &mut World, seats: &mut [ConnSlot], contests: &mut SharedWords) {
    for end in 0..2 {
        while let Some(event) = world.ends[end].engine.next_event() {
            let find = |qp| seats.iter().position(|seat| seat.sides[end].qp == qp);
            match event {
                Event::ConnectRequest { port, request, .. } => {
                    let side = &mut seats[usize::from(port - PORT)].sides[end];
                    let (now, param) = (world.now, world.param(end));
                    let engine = &mut world.ends[end].engine;
                    // The request may be gone, or be left over from an earlier connection.
                    if engine.accept(now, request, side.qp, &param).is_ok() {
                        side.accepted = true;
                    } else {
                        let _ = engine.reject(now, request, ReadDepths::default(), &[]);
                    }
                }
                Event::Established { qp, .. } => {
                    let seat = find(qp).expect("a queue pair of ours");
                    let side = &mut seats[seat].sides[end];
                    assert!(!side.is_up, "end {end} is told twice that the connection is up");
                    side.is_up = true;
                }
                Event::Disconnected { qp, .. } | Event::ConnectFailed { qp, .. } => {
                    let seat = find(qp).expect("a queue pair of ours");
                    let side = &mut seats[seat].sides[end];
                    assert!(!side.has_ended, "end {end} is told twice of the end");
                    side.has_ended = true;
                    // From now on, no operation of the peer takes effect on its words.
                    let users = seats[seat].sides[1 - end].users;
                    for (contest, user) in contests.words[end].iter_mut().zip(users) {
                        contest.close(user);
                    }
                }
                other => panic!("unexpected {other:?}"),
            }
        }
    }
}

impl Side {
    fn new(world: &World, end: usize, conn: usize, qp: QpId) -> Self {
        let arena = &world.ends[end].arena;
        let rights = Access::REMOTE_ATOMIC | Access::REMOTE_READ;
        let start = (COMMON_LEN + conn * OWN_LEN) as u64;
        Self {
            qp,
            common: arena.register(0, COMMON_LEN as u64, rights, PD),
            own: arena.register(start, OWN_LEN as u64, Access::ALL, PD),
            users: [0; SHARED_COUNT],
            posted: VecDeque::new(),
            posted_count: 0,
            messages: Vec::new(),
            receives: 0,
            received: 0,
            accepted: false,
            is_up: false,
            has_ended: false,
            has_failed: false,
            post_refused: false,
        }
    }
}

/// Creates two queue pairs and starts connecting the first to the second.
pub(super) fn connect(world: &mut World, contests: &mut SharedWords, conn: usize) -> [Side; 2] {
    let cq = cq(conn);
    let init = QpInit { pd: PD, send_cq: cq, recv_cq: cq, max_send_wr: DEPTH, max_recv_wr: DEPTH };
    let sides = [0, 1].map(|end: usize| {
        let qp = world.ends[end].engine.create_qp(init).expect("room");
        let mut side = Side::new(world, end, conn, qp);
        side.users = contests.words[1 - end].each_mut().map(SharedWord::add_user);
        for _ in 0..DEPTH {
            post_receive(world, &mut side, end, conn);
        }
        side
    });
    let (now, param) = (world.now, world.param(0));
    let remote = world.socket(1, port(conn));
    world.ends[0].engine.connect(now, sides[0].qp, remote, &param).expect("idle");
    sides
}

pub(super) fn post_receive(world: &mut World, side: &mut Side, end: usize, conn: usize) {
    let addr = addr_of(conn, Area::Receive, side.receives) as u64;
    let len = u32::try_from(MESSAGE_LEN).expect("short");
    let sg_list = [Sge { addr, len, lkey: side.own }].into_iter().collect();
    let wr = RecvWr { wr_id: side.receives, sg_list };
    if world.ends[end].engine.post_recv(side.qp, wr).is_ok() {
        side.receives += 1;
    }
}
