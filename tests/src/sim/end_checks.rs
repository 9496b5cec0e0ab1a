//! Checks at the end of a run: the counters of both ends agree, and no resource stays in use.

use ferrowarp_proto::engine::Usage;
use ferrowarp_proto::time::SECOND;
use ferrowarp_proto::verbs::cm::Event;
use ferrowarp_proto::verbs::wc::{CqId, WcOpcode, WcStatus};

use super::workload::Side;
use super::world::World;

/// Checks that each end counts as received what the other counts as sent.
pub(super) fn check_byte_counters(world: &mut World, sides: &[[Side; 2]]) {
    let agreed = world.run_until(100 * SECOND, |world| {
        sides.iter().all(|pair| {
            let stats = |end: usize| {
                world.ends[end].engine.tcp_stats(pair[end].qp).expect("still connected")
            };
            let (a, b) = (stats(0), stats(1));
            (a.bytes_out, b.bytes_out) == (b.bytes_in, a.bytes_in)
        })
    });
    assert!(agreed, "octets sent and octets received differ");
    let counted: u64 = world.ends.iter().map(|end| end.engine.counters().frames_out).sum();
    assert_eq!(counted, world.frames, "frames");
}

/// Disconnects every connection: nothing is lost, and all buffers are returned.
pub(super) fn disconnect_all(world: &mut World, sides: &[[Side; 2]]) {
    world.clear_faults();
    let now = world.now;
    for pair in sides {
        world.ends[0].engine.disconnect(now, pair[0].qp).expect("connected");
    }
    check_disconnects(world, sides);
}

/// Checks that each queue pair reports its end once, and that each open receive is flushed once.
pub(super) fn check_disconnects(world: &mut World, sides: &[[Side; 2]]) {
    let gone = world.run_until(100 * SECOND, |world| {
        world.ends.iter().all(|end| end.engine.connection_count() == 0)
    });
    assert!(gone, "connections stay after the end");
    for (index, end) in world.ends.iter_mut().enumerate() {
        let mut ended = 0;
        while let Some(event) = end.engine.next_event() {
            assert!(matches!(event, Event::Disconnected { .. }), "unexpected {event:?}");
            ended += 1;
        }
        assert_eq!(ended, sides.len(), "each queue pair of end {index} learns of its end once");
        let mut flushed: usize = sides.iter().map(|pair| pair[index].flushed).sum();
        for cq in 0..16 {
            while let Some(wc) = end.queues.poll(CqId(cq)) {
                assert_eq!((wc.status, wc.opcode), (WcStatus::Flushed, WcOpcode::Recv));
                flushed += 1;
            }
        }
        let open: usize =
            sides.iter().map(|pair| pair[index].receives - pair[index].received).sum();
        assert_eq!(flushed, open, "each buffer of end {index} is flushed once");
    }
    check_nothing_left(world);
}

/// Checks that nothing is in use once no connection is left.
///
/// # Panics
/// If something is in use.
pub fn check_nothing_left(world: &mut World) {
    // Longer than any timer.
    let now = world.now + 700 * SECOND;
    for (index, end) in world.ends.iter_mut().enumerate() {
        assert_eq!(
            end.engine.device().frames_in_use(),
            0,
            "frames of end {index} did not come home"
        );
        let usage = end.engine.usage();
        assert_eq!(usage, Usage { timers: usage.timers, ..Usage::default() }, "end {index}");
        for _ in 0..4 {
            end.engine.drive(now);
        }
        assert_eq!(end.engine.usage(), Usage::default(), "end {index}");
    }
}
