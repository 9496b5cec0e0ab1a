//! Graceful close between two engines, also of both at the same time.

use ferrowarp_proto::time::SECOND;
use ferrowarp_proto::verbs::cm::{ConnEvent, EndReason};
use ferrowarp_proto::verbs::qp::QpState;
use ferrowarp_proto::verbs::wc::{Wc, WcStatus};
use ferrowarp_proto::verbs::wr::{AtomicOp, Operation, Payload, RecvWr, SendWr, Sge};
use ferrowarp_tests::sim::link::Faults;
use ferrowarp_tests::sim::pairs::{CQ, Connected};
use ferrowarp_tests::sim::world::WorldOptions;

/// Requests of each end.
const COUNT: u32 = 50;
/// Bytes of each.
const LEN: u32 = 3000;
/// Offsets for the peer's Sends and Writes, and for Read Responses.
const RECEIVED: usize = 1 << 20;
const WRITTEN: usize = 2 << 20;
const READ: usize = 3 << 20;

/// Two ends with work posted on each that the test chooses, none of it sent yet.
struct Pair(Connected);

impl Pair {
    fn new(seed: u64, faults: Faults) -> Self {
        let Connected { mut world, qps, stags } = Connected::ready(&WorldOptions::new(seed));
        for end in 0..2 {
            let library: Vec<u8> = (0..LEN).map(|at| u8::try_from(at % 251).unwrap()).collect();
            world.ends[end].arena.write(0, &library);
            for slot in 0..u64::from(COUNT) {
                let addr = RECEIVED as u64 + slot * u64::from(LEN);
                let sge = Sge { addr, len: LEN, lkey: stags[end] };
                let wr = RecvWr { wr_id: 1000 + slot, sg_list: [sge].into() };
                world.ends[end].engine.post_recv(qps[end], wr).unwrap();
            }
        }
        world.set_faults(faults);
        Self(Connected { world, qps, stags })
    }

    /// Posts 50 requests of every kind on an end, without Reads unless `asks`; returns the number
    /// of Sends, which consume receives of the peer.
    fn post(&mut self, end: usize, asks: bool) -> usize {
        let (lkey, rkey) = (self.0.stags[end], self.0.stags[1 - end]);
        let mut sends = 0;
        for wr_id in 0..COUNT {
            let gathered = Sge { addr: 0, len: LEN, lkey };
            let payload = Payload::Gather([gathered].into());
            let offset = u64::from(wr_id) * u64::from(LEN);
            let sink = Sge { addr: READ as u64 + offset, len: LEN, lkey };
            let operation = match wr_id % 5 {
                0 if asks => Operation::Read { sink: [sink].into(), rkey, remote: 0 },
                1 => Operation::Write { payload, rkey, remote: WRITTEN as u64 + offset },
                2 if asks => {
                    let sink = Sge { addr: READ as u64 + offset + offset % 8, len: 8, lkey };
                    let op = AtomicOp::fetch_add(1);
                    Operation::Atomic { op, sink, rkey, remote: (4 << 20) - 8 }
                }
                _ => Operation::Send { payload, solicited: false, invalidate: None },
            };
            sends += usize::from(matches!(operation, Operation::Send { .. }));
            let wr = SendWr {
                wr_id: u64::from(wr_id),
                operation,
                signaled: true,
                fence: wr_id % 7 == 0,
            };
            self.0.world.ends[end].engine.post_send(self.0.qps[end], wr).unwrap();
        }
        sends
    }

    fn close(&mut self, end: usize) {
        let now = self.0.world.now;
        self.0.world.ends[end].engine.close(now, self.0.qps[end]).unwrap();
    }

    /// Runs until both ends report the disconnect: its reason, and the completions.
    fn run_to_end(&mut self) -> [(EndReason, Vec<Wc>); 2] {
        let mut reasons = [None; 2];
        let mut done = [const { Vec::new() }; 2];
        self.0.world.run_until(100 * SECOND, |world| {
            for end in 0..2 {
                done[end].extend(std::iter::from_fn(|| world.ends[end].queues.poll(CQ)));
                match world.ends[end].engine.next_event() {
                    Some(ConnEvent::Disconnected { reason, .. }) => {
                        assert_eq!(reasons[end].replace(reason), None, "reported once");
                    }
                    Some(other) => panic!("{other:?}"),
                    None => {}
                }
            }
            reasons.iter().all(Option::is_some)
                && world.ends.iter().all(|end| end.engine.connection_count() == 0)
        });
        let [left, right] = done;
        [(reasons[0].expect("reported"), left), (reasons[1].expect("reported"), right)]
    }

    /// Checks that the work posted by an end took effect at the other.
    fn check(&self, end: usize, sends: usize, asks: bool) {
        let [ours, theirs] = [end, 1 - end].map(|end| &self.0.world.ends[end].arena);
        let library = ours.read(0, LEN as usize);
        for slot in 0..sends {
            let at = RECEIVED + slot * LEN as usize;
            assert_eq!(theirs.read(at, LEN as usize), library, "Send {slot} of end {end}");
        }
        for wr_id in 0..COUNT as usize {
            let offset = wr_id * LEN as usize;
            match wr_id % 5 {
                0 if asks => assert_eq!(ours.read(READ + offset, LEN as usize), library),
                1 => assert_eq!(theirs.read(WRITTEN + offset, LEN as usize), library),
                _ => {}
            }
        }
    }
}

/// Requests that succeeded, in order.
fn succeeded(done: &[Wc]) -> Vec<u64> {
    let sent = done.iter().filter(|wc| !wc.opcode.is_receive());
    sent.map(|wc| {
        assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
        wc.wr_id
    })
    .collect()
}

fn received(done: &[Wc]) -> usize {
    let good = |wc: &&Wc| wc.opcode.is_receive() && wc.status == WcStatus::Success;
    done.iter().filter(good).count()
}

const BAD: Faults = Faults { loss: 0.05, delay_ns: 50_000, ..Faults::NONE };

// req-test: RDMAP-239
#[test]
fn close_completes_all_posted_work() {
    for (seed, faults) in [(1, Faults::NONE), (2, BAD), (3, BAD), (4, BAD)] {
        let mut pair = Pair::new(seed, faults);
        let sends = pair.post(0, true);
        pair.close(0);
        let [(left, ours), (right, theirs)] = pair.run_to_end();
        assert_eq!((left, right), (EndReason::Local, EndReason::PeerClosed));
        assert_eq!(succeeded(&ours), (0..u64::from(COUNT)).collect::<Vec<_>>());
        assert_eq!(received(&theirs), sends);
        assert_eq!(ours.len() + theirs.len(), 3 * COUNT as usize, "each once");
        pair.check(0, sends, true);
    }
}

#[test]
fn simultaneous_close_completes_all_posted_work() {
    for (seed, faults) in [(1, Faults::NONE), (2, BAD), (3, BAD), (4, BAD)] {
        let mut pair = Pair::new(seed, faults);
        let sends = [0, 1].map(|end| pair.post(end, false));
        pair.close(0);
        pair.close(1);
        let ended = pair.run_to_end();
        for (end, (reason, done)) in ended.iter().enumerate() {
            assert_eq!(*reason, EndReason::Local);
            assert_eq!(succeeded(done), (0..u64::from(COUNT)).collect::<Vec<_>>());
            assert_eq!(received(done), sends[1 - end]);
            pair.check(end, sends[end], false);
        }
    }
}

#[test]
fn passive_closer_completes_its_writes() {
    let mut pair = Pair::new(5, Faults::NONE);
    let (qp, lkey, rkey) = (pair.0.qps[1], pair.0.stags[1], pair.0.stags[0]);
    for wr_id in 0..COUNT {
        let payload = Payload::Gather([Sge { addr: 0, len: LEN, lkey }].into());
        let remote = WRITTEN as u64 + u64::from(wr_id) * u64::from(LEN);
        let operation = Operation::Write { payload, rkey, remote };
        let wr = SendWr { wr_id: u64::from(wr_id), operation, signaled: true, fence: false };
        pair.0.world.ends[1].engine.post_send(qp, wr).unwrap();
    }
    pair.close(0);
    let [(left, _), (right, theirs)] = pair.run_to_end();
    assert_eq!((left, right), (EndReason::Local, EndReason::PeerClosed));
    assert_eq!(succeeded(&theirs).len(), COUNT as usize);
    let [library, written] = [(1, 0), (0, WRITTEN + 49 * LEN as usize)]
        .map(|(end, at)| pair.0.world.ends[end].arena.read(at, LEN as usize));
    assert_eq!(library, written);
}

#[test]
fn reads_crossing_a_close_are_flushed_without_delay() {
    let mut flushed = 0;
    for seed in 0..20 {
        let mut pair = Pair::new(seed, Faults { delay_ns: 100_000, ..Faults::NONE });
        pair.post(0, true);
        pair.close(0);
        pair.0.world.run_for(100_000 * seed);
        if pair.0.world.ends[1].engine.qp_state(pair.0.qps[1]) != QpState::Rts {
            // The peer's FIN has arrived already.
            break;
        }
        pair.post(1, true);
        pair.close(1);
        let begun = pair.0.world.now;
        let ended = pair.run_to_end();
        // Before any timeout.
        assert!(pair.0.world.now.since(begun) < 3 * SECOND, "{seed}");
        for (reason, done) in ended {
            let sent: Vec<_> = done.iter().filter(|wc| !wc.opcode.is_receive()).collect();
            assert_eq!(reason, EndReason::Local, "{seed}");
            assert!(sent.iter().map(|wc| wc.wr_id).eq(0..u64::from(COUNT)), "each once, in order");
            let good = |wc: &&Wc| wc.status == WcStatus::Success;
            let first = sent.iter().take_while(|wc| good(wc)).count();
            assert!(sent[first..].iter().all(|wc| wc.status == WcStatus::Flushed));
            flushed += sent.len() - first;
        }
    }
    assert!(flushed > 0, "none crossed it");
}
