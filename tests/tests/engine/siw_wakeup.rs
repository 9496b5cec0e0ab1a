//! siw wakeup messages (workaround for a peer that overlooks our first FPDU) are never sent between
//! the segments of a message. The slow polls of a busy machine are emulated: time advances between
//! two of them.

use std::rc::Rc;

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::time::MILLISECOND;
use ferrowarp_proto::verbs::wc::{CqId, WcStatus};
use ferrowarp_proto::verbs::wr::{Operation, Sge};
use ferrowarp_tests::sim::pairs::{PD, completions, connect, post, signaled_wr};
use ferrowarp_tests::sim::world::{World, WorldOptions};

/// More than the initial congestion window, so that the response takes several polls.
const LEN: u32 = 60_000;

/// Polls an end once; the frames it sent are input for the next poll of the other.
fn poll_end(world: &mut World, end: usize) -> Vec<Vec<u8>> {
    world.ends[end].engine.drive(world.now);
    let device = world.ends[end].engine.device();
    let outbound = Rc::clone(&device.outbound);
    let inbound = Rc::clone(&world.ends[1 - end].engine.device().inbound);
    let frames: Vec<_> = outbound.borrow_mut().drain(..).collect();
    inbound.borrow_mut().extend(frames.iter().cloned());
    frames
}

/// RDMAP opcodes of the FPDUs at the start of the segments in `frames`.
fn opcodes(frames: &[Vec<u8>]) -> Vec<u8> {
    let opcode = |frame: &Vec<u8>| {
        let tcp = 14 + 20;
        let payload = tcp + usize::from(frame.get(tcp + 12)? >> 4) * 4;
        // After ULPDU_Length and the DDP control byte.
        Some(frame.get(payload + 3)? & 0x0f)
    };
    frames.iter().filter_map(opcode).collect()
}

// req-test: DDP-109
#[test]
fn siw_wakeup_never_interleaves_with_a_response() {
    const RESPONSE: u8 = 2;
    let mut world = World::new(&WorldOptions::new(12));
    // The initiator has sent its first FPDU, and a siw wakeup is due in 10 ms.
    let qps = connect(&mut world, 0, None);
    let [source, sink] =
        [0, 1].map(|end| world.ends[end].arena.register(0, LEN.into(), Access::ALL, PD));
    let bytes: Vec<u8> = (0..LEN).map(|at| u8::try_from(at % 251).unwrap()).collect();
    world.ends[0].arena.write(0, &bytes);
    let sink = Sge { addr: 0, len: LEN, lkey: sink };
    let read = Operation::Read { sink: [sink].into(), rkey: source, remote: 0 };
    post(&mut world, 1, qps[1], signaled_wr(1, read));
    poll_end(&mut world, 1);
    let first = opcodes(&poll_end(&mut world, 0));
    assert!(!first.is_empty() && first.len() < 30, "a part of the response: {first:?}");
    poll_end(&mut world, 1);
    // In the next poll all sent data has long been acknowledged, and the wakeup is due.
    world.now = world.now + 20 * MILLISECOND;
    let second = opcodes(&poll_end(&mut world, 0));
    for opcode in [&first[..], &second[..]].concat() {
        assert_eq!(opcode, RESPONSE, "{first:?} {second:?}");
    }
    let wc = &completions(&mut world, 1, CqId(0), 1)[0];
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::Success));
    assert_eq!(world.ends[1].arena.read(0, bytes.len()), bytes);
}
