//! The word more for a peer that overlooked our first one never falls among the segments of a
//! message. When passes take as long as on a busy machine is made by hand: time goes by between
//! two of them.

use std::rc::Rc;

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::time::MILLISECOND;
use ferrowarp_proto::verbs::wc::{CqId, WcStatus};
use ferrowarp_proto::verbs::wr::{Operation, Sge};
use ferrowarp_tests::sim::pairs::{PD, completions, connect, post, signaled_wr};
use ferrowarp_tests::sim::world::{World, WorldOptions};

/// More than a window at first, so that the response takes several passes.
const LEN: u32 = 60_000;

/// One pass of an end; the frames it sent are what the other finds in its next one.
fn poll_end(world: &mut World, end: usize) -> Vec<Vec<u8>> {
    world.ends[end].engine.drive(world.now);
    let device = world.ends[end].engine.device();
    let outbound = Rc::clone(&device.outbound);
    let inbound = Rc::clone(&world.ends[1 - end].engine.device().inbound);
    let frames: Vec<_> = outbound.borrow_mut().drain(..).collect();
    inbound.borrow_mut().extend(frames.iter().cloned());
    frames
}

/// RDMAP's opcodes of the FPDUs that begin the segments of `frames`.
fn opcodes(frames: &[Vec<u8>]) -> Vec<u8> {
    let opcode = |frame: &Vec<u8>| {
        let tcp = 14 + 20;
        let payload = tcp + usize::from(frame.get(tcp + 12)? >> 4) * 4;
        // The FPDU's length and DDP's control byte stand before it.
        Some(frame.get(payload + 3)? & 0x0f)
    };
    frames.iter().filter_map(opcode).collect()
}

// req-test: DDP-109
#[test]
fn siw_wakeup_never_interleaves_with_a_response() {
    const RESPONSE: u8 = 2;
    let mut world = World::new(&WorldOptions::new(12));
    // The initiator has spoken, and is to nudge 10 ms from now.
    let qps = connect(&mut world, 0, None);
    let [source, sink] =
        [0, 1].map(|end| world.ends[end].arena.register(0, LEN.into(), Access::ALL, PD));
    let bytes: Vec<u8> = (0..LEN).map(|at| u8::try_from(at % 251).unwrap()).collect();
    world.ends[0].arena.write(0, &bytes);
    let sink = Sge { addr: 0, len: LEN, lkey: sink };
    let read = Operation::Read { sink, rkey: source, remote: 0 };
    post(&mut world, 1, qps[1], signaled_wr(1, read));
    poll_end(&mut world, 1);
    let first = opcodes(&poll_end(&mut world, 0));
    assert!(!first.is_empty() && first.len() < 30, "a part of the response: {first:?}");
    poll_end(&mut world, 1);
    // In the next pass all that was sent is acknowledged, long ago, and the time has come.
    world.now = world.now + 20 * MILLISECOND;
    let second = opcodes(&poll_end(&mut world, 0));
    for opcode in [&first[..], &second[..]].concat() {
        assert_eq!(opcode, RESPONSE, "{first:?} {second:?}");
    }
    let wc = &completions(&mut world, 1, CqId(0), 1)[0];
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::Success));
    assert_eq!(world.ends[1].arena.read(0, bytes.len()), bytes);
}
