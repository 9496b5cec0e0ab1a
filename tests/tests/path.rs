//! What an engine makes of ICMP errors: which attempts to connect they end, what an established
//! connection heeds, and what is refused.

use std::rc::Rc;

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::time::{MICROSECOND, SECOND};
use ferrowarp_proto::verbs::cm::{ConnParam, ConnectError, Event};
use ferrowarp_proto::verbs::qp::{QpInit, QpState};
use ferrowarp_proto::verbs::wc::{CqId, QpId};
use ferrowarp_proto::verbs::wr::{Operation, Payload, SendWr, Sge};
use ferrowarp_tests::sim::router::error_about;
use ferrowarp_tests::sim::world::{World, WorldOptions};

const PORT: u16 = 7174;
/// Where the IP header lies in a frame.
const L3: usize = 14;

/// Host unreachable, in either family.
const HOST: [(u8, u8); 2] = [(3, 1), (1, 3)];
/// Nobody at the port.
const NO_PORT: [(u8, u8); 2] = [(3, 3), (1, 4)];
const TOO_BIG: [(u8, u8); 2] = [(3, 4), (2, 0)];

/// A world whose left end has a queue pair that connects to the right one.
struct Bed {
    world: World,
    qp: QpId,
    v6: bool,
}

impl Bed {
    fn new(v6: bool) -> Self {
        Self::over(&WorldOptions { ipv6: v6, ..WorldOptions::new(7) })
    }

    fn over(options: &WorldOptions) -> Self {
        let v6 = options.ipv6;
        let mut world = World::new(options);
        let init =
            || QpInit { pd: 1, send_cq: CqId(0), recv_cq: CqId(0), max_send_wr: 8, max_recv_wr: 8 };
        let (now, remote) = (world.now, world.socket(1, PORT));
        let qp = world.ends[0].engine.create_qp(init()).unwrap();
        world.ends[0].engine.connect(now, qp, remote, &ConnParam::default()).unwrap();
        Self { world, qp, v6 }
    }

    /// Moves frames by hand until the left end sends a TCP segment, which goes no further.
    fn segment(&mut self) -> Vec<u8> {
        let queues = [0, 1].map(|end| {
            let device = self.world.ends[end].engine.device();
            (Rc::clone(&device.inbound), Rc::clone(&device.outbound))
        });
        for _ in 0..1000 {
            for end in 0..2 {
                self.world.ends[end].engine.drive(self.world.now);
                while let Some(frame) = queues[end].1.borrow_mut().pop_front() {
                    let protocol = frame[L3 + if self.v6 { 6 } else { 9 }];
                    let is_ip = frame[12..14] != [8, 6];
                    if end == 0 && is_ip && protocol == 6 {
                        return frame;
                    }
                    queues[1 - end].0.borrow_mut().push_back(frame);
                }
            }
            self.world.now = self.world.now + 10 * MICROSECOND;
        }
        panic!("nothing is sent");
    }

    /// The left end receives the message about `frame`; returns what it reports.
    fn hear(&mut self, frame: &[u8], kind: [(u8, u8); 2], word: u32) -> Option<Event> {
        let error = error_about(frame, L3, kind[usize::from(self.v6)], word);
        let end = &mut self.world.ends[0];
        end.engine.device().inbound.borrow_mut().push_back(error);
        end.engine.drive(self.world.now);
        end.engine.next_event()
    }

    fn counted(&self) -> (u64, u64) {
        let counters = self.world.ends[0].engine.counters();
        (counters.icmp_errors_in, counters.icmp_errors_ignored)
    }

    /// Posts a Write of so many octets.
    fn write(&mut self, len: usize) {
        let [left, right] = [0, 1].map(|end| {
            let arena = &self.world.ends[end].arena;
            arena.register(0, 1 << 16, Access::ALL, 1)
        });
        let octets: Vec<u8> =
            (0..len).map(|at| u8::try_from((at * 7 + len) % 251).unwrap()).collect();
        self.world.ends[0].arena.write(0, &octets);
        let source = Sge { addr: 0, len: u32::try_from(len).unwrap(), lkey: left };
        let payload = Payload::Gather([source].into_iter().collect());
        let operation = Operation::Write { payload, rkey: right, remote: 0 };
        let wr = SendWr { wr_id: 1, operation, signaled: true, fence: false };
        self.world.ends[0].engine.post_send(self.qp, wr).unwrap();
    }

    /// Completes the handshake and the start-up exchange.
    fn establish(&mut self) {
        self.world.ends[1].engine.listen(PORT, 8).unwrap();
        let param = ConnParam::default();
        let init =
            QpInit { pd: 1, send_cq: CqId(0), recv_cq: CqId(0), max_send_wr: 8, max_recv_wr: 8 };
        let peer = self.world.ends[1].engine.create_qp(init).unwrap();
        let up = self.world.run_until(SECOND, |world| {
            if let Some(Event::ConnectRequest { request, .. }) = world.ends[1].engine.next_event() {
                let now = world.now;
                world.ends[1].engine.accept(now, request, peer, &param).unwrap();
            }
            matches!(world.ends[0].engine.next_event(), Some(Event::Established { .. }))
        });
        assert!(up);
    }
}

/// A sequence number far away, and another port.
fn forgeries(frame: &[u8], v6: bool) -> [Vec<u8>; 2] {
    let l4 = L3 + if v6 { 40 } else { 20 };
    [l4 + 5, l4 + 1].map(|at| {
        let mut forged = frame.to_vec();
        forged[at] ^= 0x40;
        forged
    })
}

#[test]
fn nobody_at_the_port_ends_an_attempt_to_connect() {
    for v6 in [false, true] {
        let mut bed = Bed::new(v6);
        let syn = bed.segment();
        for forged in forgeries(&syn, v6) {
            assert_eq!(bed.hear(&forged, NO_PORT, 0), None);
        }
        assert_eq!(bed.counted(), (0, 2));
        let event = bed.hear(&syn, NO_PORT, 0);
        let expected = ConnectError::Unreachable;
        assert!(
            matches!(event, Some(Event::ConnectFailed { qp, error, .. })
                if qp == bed.qp && error == expected),
            "{event:?}"
        );
        assert_eq!(bed.world.ends[0].engine.qp_state(bed.qp), QpState::Error);
        assert_eq!(bed.world.ends[0].engine.connection_count(), 0);
        assert_eq!(bed.hear(&syn, NO_PORT, 0), None);
        assert_eq!(bed.counted(), (1, 3));
    }
}

#[test]
fn an_unreachable_host_may_come_back() {
    for v6 in [false, true] {
        let mut bed = Bed::new(v6);
        let syn = bed.segment();
        assert_eq!(bed.hear(&syn, HOST, 0), None);
        assert_eq!(bed.counted(), (1, 0));
        bed.establish();
        // Or it does not, and then the reason is known.
        let mut bed = Bed::new(v6);
        let syn = bed.segment();
        assert_eq!(bed.hear(&syn, HOST, 0), None);
        bed.world.cut();
        let failed = bed.world.run_until(120 * SECOND, |world| {
            let event = world.ends[0].engine.next_event();
            let expected = ConnectError::Unreachable;
            matches!(event, Some(Event::ConnectFailed { error, .. }) if error == expected)
        });
        assert!(failed);
    }
}

#[test]
fn an_established_connection_only_fits_its_segments() {
    for v6 in [false, true] {
        let mut bed = Bed::new(v6);
        bed.establish();
        let emss = if v6 { 1428 } else { 1448 };
        assert_eq!(bed.world.ends[0].engine.emss(bed.qp), Some(emss));
        bed.write(60);
        let frame = bed.segment();
        for kind in [HOST, NO_PORT] {
            assert_eq!(bed.hear(&frame, kind, 0), None);
            assert_eq!(bed.world.ends[0].engine.qp_state(bed.qp), QpState::Rts);
        }
        assert_eq!(bed.counted(), (2, 0));
        // Too big for what would have passed it, forged, and damaged.
        assert_eq!(bed.hear(&frame, TOO_BIG, 1280), None);
        for forged in forgeries(&frame, v6) {
            assert_eq!(bed.hear(&forged, TOO_BIG, 100), None);
        }
        let mut error = error_about(&frame, L3, TOO_BIG[usize::from(v6)], 100);
        *error.last_mut().unwrap() ^= 1;
        bed.world.ends[0].engine.device().inbound.borrow_mut().push_back(error);
        bed.world.ends[0].engine.drive(bed.world.now);
        assert_eq!(bed.counted(), (2, 4));
        assert_eq!(bed.world.ends[0].engine.emss(bed.qp), Some(emss));
        // A small packet refused for its size: to the floor. IPv6 knows no such link.
        assert_eq!(bed.hear(&frame, TOO_BIG, 100), None);
        let counters = *bed.world.ends[0].engine.counters();
        if v6 {
            assert_eq!((bed.counted(), counters.emss_changes), ((2, 5), 0));
        } else {
            assert_eq!((bed.counted(), counters.emss_changes), ((3, 4), 1));
            assert_eq!(bed.world.ends[0].engine.emss(bed.qp), Some(576 - 52));
        }
    }
}

#[test]
fn errors_about_no_connection_take_nothing_of_the_limit_on_errors() {
    for v6 in [false, true] {
        let mut bed = Bed::new(v6);
        bed.establish();
        bed.write(5000);
        let frame = bed.segment();
        let mut other = frame.clone();
        // Another port of ours, and the checksum that goes with it.
        let l4 = L3 + if v6 { 40 } else { 20 };
        other[l4] ^= 0x10;
        other[l4 + 16] ^= 0x10;
        for _ in 0..3000 {
            assert_eq!(bed.hear(&other, TOO_BIG, 1400), None);
        }
        let (heeded, refused) = bed.counted();
        assert_eq!((heeded, refused), (0, 3000));
        let emss = bed.world.ends[0].engine.emss(bed.qp).unwrap();
        assert_eq!(bed.hear(&frame, TOO_BIG, 1400), None);
        assert_eq!(bed.counted(), (1, 3000), "heard in the same second");
        assert!(bed.world.ends[0].engine.emss(bed.qp).unwrap() < emss);
    }
}

#[test]
fn a_port_that_sends_less_than_it_receives_asks_for_the_most_and_sends_less() {
    for v6 in [false, true] {
        let options = WorldOptions { ipv6: v6, mtu: 9000, ..WorldOptions::new(7) };
        let mut bed = Bed::over(&WorldOptions { send_mtu: 1500, ..options });
        let syn = bed.segment();
        let l4 = L3 + if v6 { 40 } else { 20 };
        let mss: u16 = if v6 { 8940 } else { 8960 };
        assert_eq!(syn[l4 + 20..l4 + 24], [&[2, 4][..], &mss.to_be_bytes()].concat());
        bed.establish();
        // No search for a larger path changes it.
        for len in [30_000, 30_001] {
            bed.write(len);
            let octets = bed.world.ends[0].arena.read(0, len);
            assert!(bed.world.run_until(120 * SECOND, |world| {
                world.ends[1].arena.read(0, len) == octets && !world.step()
            }));
            let emss = bed.world.ends[0].engine.emss(bed.qp);
            assert_eq!(emss, Some(if v6 { 1428 } else { 1448 }));
            bed.world.now = bed.world.now + 600 * SECOND;
        }
    }
}

#[test]
fn after_ten_minutes_a_larger_size_is_found_with_fpdus_kept_whole() {
    let mut bed = Bed::new(false);
    bed.establish();
    bed.write(1000);
    let frame = bed.segment();
    assert_eq!(bed.hear(&frame, TOO_BIG, 600), None);
    let written = |bed: &mut Bed, len: usize| {
        bed.write(len);
        let octets = bed.world.ends[0].arena.read(0, len);
        let done = bed.world.run_until(120 * SECOND, |world| {
            world.ends[1].arena.read(0, len) == octets && !world.step()
        });
        assert!(done);
        bed.world.ends[0].engine.emss(bed.qp)
    };
    assert_eq!(written(&mut bed, 20_000), Some(600 - 52), "what the router told");
    let assembled = |bed: &Bed| bed.world.ends[1].engine.counters().fpdus_assembled;
    assert_eq!(assembled(&bed), 1, "the one that was too big, in two pieces");
    assert_eq!(written(&mut bed, 20_001), Some(600 - 52));
    bed.world.now = bed.world.now + 600 * SECOND;
    written(&mut bed, 20_002);
    assert_eq!(written(&mut bed, 20_003), Some(1448));
    let [left, right] = [0, 1].map(|end| *bed.world.ends[end].engine.counters());
    assert_eq!((left.emss_changes, left.fpdus_out), (2, right.fpdus_in));
    assert_eq!(assembled(&bed), 1, "all others came whole in a segment");
}
