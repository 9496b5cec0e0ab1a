//! Simultaneous errors at both ends of a connection, in virtual time: each end sends a Terminate,
//! and each reports both.

use ferrowarp_proto::time::{MICROSECOND, SECOND};
use ferrowarp_proto::verbs::cm::{ConnEvent, EndReason, Terminate};
use ferrowarp_proto::verbs::wc::{CqId, WcStatus};
use ferrowarp_tests::sim::link::Faults;
use ferrowarp_tests::sim::pairs::*;
use ferrowarp_tests::sim::world::{EndOptions, WorldOptions};

/// Bytes of each RDMA Write.
const LEN: u32 = 10_000;
/// Target offset of Writes that must not be placed.
const LATE: usize = 1 << 20;

/// Two connected ends with receives posted.
struct Pair(Connected);

impl Pair {
    fn new(options: &WorldOptions) -> Self {
        let Connected { mut world, qps, stags } = Connected::ready(options);
        for end in 0..2 {
            // No zeros: what is not placed reads as zeros.
            let bytes: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8 + 1).collect();
            world.ends[end].arena.write(0, &bytes);
            for wr_id in 100..104 {
                let wr = receive(wr_id, stags[end], 1 << 19, 4096);
                world.ends[end].engine.post_recv(qps[end], wr).unwrap();
            }
        }
        Self(Connected { world, qps, stags })
    }

    /// Posts a valid Write, an invalid message, and another Write.
    fn inject_error(&mut self, end: usize, in_rdmap: bool) {
        self.0.write(end, 1, LEN, 1 << 18, true);
        let bad = if in_rdmap { send(2, b"x", Some(7)) } else { write(2, b"x", 7, 0) };
        post(&mut self.0.world, end, self.0.qps[end], bad);
        self.0.write(end, 3, LEN, LATE as u64, true);
    }

    /// Per end: the reason of its disconnect event, and a Terminate reported after it.
    fn outcomes(&mut self) -> [(EndReason, Option<Terminate>); 2] {
        let world = &mut self.0.world;
        let gone = world.run_until(60 * SECOND, |world| {
            world.ends.iter().all(|end| end.engine.unfinished_count() == 0)
        });
        assert!(gone, "a connection stays");
        [0, 1].map(|end| {
            let ConnEvent::Disconnected { reason, .. } = event(world, end) else {
                panic!("no end")
            };
            let more = world.ends[end].engine.next_event().map(|event| match event {
                ConnEvent::TerminateReceived { qp, terminate } if qp == self.0.qps[end] => {
                    terminate.unwrap()
                }
                other => panic!("{other:?}"),
            });
            assert_eq!(world.ends[end].engine.next_event(), None);
            (reason, more)
        })
    }

    /// Every request has completed once, and nothing was placed after an error.
    fn check(&mut self, end: usize) {
        let mut seen: Vec<_> = std::iter::from_fn(|| self.0.world.ends[end].queues.poll(CqId(0)))
            .map(|wc| (wc.wr_id, wc.status))
            .collect();
        seen.sort_by_key(|(wr_id, _)| *wr_id);
        let wr_ids: Vec<_> = seen.iter().map(|(wr_id, _)| *wr_id).collect();
        assert_eq!(wr_ids, [1, 2, 3, 100, 101, 102, 103]);
        assert!(seen[3..].iter().all(|(_, status)| *status == WcStatus::Flushed), "{seen:?}");
        let late = self.0.world.ends[end].arena.read(LATE, LEN as usize);
        assert!(late.iter().all(|&byte| byte == 0), "placed behind an error");
    }
}

// req-test: RDMAP-192, RDMAP-253
#[test]
fn crossing_terminates_are_both_reported() {
    for errs_in_rdmap in [[false, false], [true, true], [true, false]] {
        let mut pair = Pair::new(&WorldOptions::new(3));
        for (end, in_rdmap) in errs_in_rdmap.into_iter().enumerate() {
            pair.inject_error(end, in_rdmap);
        }
        let [(left, to_left), (right, to_right)] = pair.outcomes();
        let [left, right] = [left, right].map(|reason| match reason {
            EndReason::TerminateSent(terminate) => terminate,
            other => panic!("{other:?}"),
        });
        assert_eq!((to_left, to_right), (Some(right), Some(left)));
        for (end, found) in [(1, left), (0, right)] {
            let cause = if errs_in_rdmap[end] { (0, 2, 9) } else { (1, 1, 0) };
            assert_eq!((found.cause(), found.segment_len.is_some()), (cause, true));
        }
        (0..2).for_each(|end| pair.check(end));
    }
}

#[test]
fn crossing_terminates_are_reported_on_a_lossy_wire() {
    let faults = Faults {
        loss: 0.05,
        duplicate: 0.02,
        delay_ns: 50 * MICROSECOND,
        jitter_ns: 50 * MICROSECOND,
        ..Faults::NONE
    };
    let mut crossed = 0;
    for seed in 0..100 {
        let has_markers = seed % 2 == 0;
        let end = EndOptions { markers: has_markers, ..EndOptions::DEFAULT };
        let options =
            WorldOptions { tcp: [end; 2], ooo_placement: has_markers, ..WorldOptions::new(seed) };
        let mut pair = Pair::new(&options);
        pair.0.world.set_faults(faults);
        pair.inject_error(0, seed % 3 == 0);
        // The later the second error, the fewer Terminates cross.
        pair.0.world.run_for(seed * MICROSECOND);
        pair.inject_error(1, seed % 5 == 0);
        let [left, right] = pair.outcomes();
        for ((reason, late), (other, _)) in [(left, right), (right, left)] {
            match (reason, other) {
                (EndReason::TerminateSent(_), EndReason::TerminateSent(terminate)) => {
                    assert_eq!(late, Some(terminate), "{seed}");
                    crossed += 1;
                }
                (EndReason::TerminateSent(sent), EndReason::TerminateReceived(terminate))
                | (EndReason::TerminateReceived(terminate), EndReason::TerminateSent(sent)) => {
                    assert_eq!((sent, late), (terminate, None), "{seed}");
                }
                other => panic!("{seed}: {other:?}"),
            }
        }
    }
    assert!(crossed > 20, "{crossed} of 200");
}
