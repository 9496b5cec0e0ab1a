//! Handling of ICMP errors: which connection attempts they abort, their effect on an established
//! connection, and which are rejected.

use std::rc::Rc;

use ferrowarp_proto::ddp::memory::Access;
use ferrowarp_proto::time::{MICROSECOND, SECOND};
use ferrowarp_proto::verbs::cm::{ConnEvent, ConnParam, ConnectError};
use ferrowarp_proto::verbs::qp::QpState;
use ferrowarp_proto::verbs::wc::QpId;
use ferrowarp_proto::verbs::wr::{Operation, Payload, SendWr, Sge};
use ferrowarp_tests::ip;
use ferrowarp_tests::sim::pairs::{PD, PORT, qp_init};
use ferrowarp_tests::sim::world::{World, WorldOptions};

/// Offset of the IP header in a frame.
const L3: usize = 14;

/// Host unreachable, of either family.
const HOST: [(u8, u8); 2] = [(3, 1), (1, 3)];
/// Port unreachable.
const NO_PORT: [(u8, u8); 2] = [(3, 3), (1, 4)];
const TOO_BIG: [(u8, u8); 2] = [(3, 4), (2, 0)];

/// A world whose left end has a queue pair that connects to the right one.
struct IcmpFixture {
    world: World,
    qp: QpId,
    v6: bool,
}

impl IcmpFixture {
    fn new(v6: bool) -> Self {
        Self::with_options(&WorldOptions { ipv6: v6, ..WorldOptions::new(7) })
    }

    fn with_options(options: &WorldOptions) -> Self {
        let v6 = options.ipv6;
        let mut world = World::new(options);
        let (now, remote) = (world.now, world.socket(1, PORT));
        let qp = world.ends[0].engine.create_qp(qp_init(8, 8)).unwrap();
        world.ends[0].engine.connect(now, qp, remote, &ConnParam::default()).unwrap();
        Self { world, qp, v6 }
    }

    /// Moves frames by hand until the left end sends a TCP segment, which is not delivered.
    fn next_segment(&mut self) -> Vec<u8> {
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

    /// Injects an ICMP error about `frame` into the left end; returns the event it reports.
    fn inject_icmp(&mut self, frame: &[u8], kind: [(u8, u8); 2], word: u32) -> Option<ConnEvent> {
        let error = ip::icmp_error(frame, L3, kind[usize::from(self.v6)], word);
        let end = &mut self.world.ends[0];
        end.engine.device().inbound.borrow_mut().push_back(error);
        end.engine.drive(self.world.now);
        end.engine.next_event()
    }

    fn icmp_counters(&self) -> (u64, u64) {
        let counters = self.world.ends[0].engine.counters();
        (counters.icmp_errors_in, counters.icmp_errors_ignored)
    }

    /// Posts an RDMA Write of `len` bytes.
    fn write(&mut self, len: usize) {
        let [left, right] = [0, 1].map(|end| {
            let arena = &self.world.ends[end].arena;
            arena.register(0, 1 << 16, Access::ALL, PD)
        });
        let bytes: Vec<u8> =
            (0..len).map(|at| u8::try_from((at * 7 + len) % 251).unwrap()).collect();
        self.world.ends[0].arena.write(0, &bytes);
        let source = Sge { addr: 0, len: u32::try_from(len).unwrap(), lkey: left };
        let payload = Payload::Gather([source].into());
        let operation = Operation::Write { payload, rkey: right, remote: 0 };
        let wr = SendWr { wr_id: 1, operation, signaled: true, fence: false };
        self.world.ends[0].engine.post_send(self.qp, wr).unwrap();
    }

    /// Completes the TCP handshake and the MPA startup exchange.
    fn establish(&mut self) {
        self.world.ends[1].engine.listen(PORT, 8).unwrap();
        let param = ConnParam::default();
        let peer = self.world.ends[1].engine.create_qp(qp_init(8, 8)).unwrap();
        let up = self.world.run_until(SECOND, |world| {
            if let Some(ConnEvent::ConnectRequest { request, .. }) =
                world.ends[1].engine.next_event()
            {
                let now = world.now;
                world.ends[1].engine.accept(now, request, peer, &param).unwrap();
            }
            matches!(world.ends[0].engine.next_event(), Some(ConnEvent::Established { .. }))
        });
        assert!(up);
    }
}

/// The frame with a wrong sequence number, and with a wrong port.
fn forgeries(frame: &[u8], v6: bool) -> [Vec<u8>; 2] {
    let l4 = L3 + if v6 { 40 } else { 20 };
    [l4 + 5, l4 + 1].map(|at| {
        let mut forged = frame.to_vec();
        forged[at] ^= 0x40;
        forged
    })
}

#[test]
fn icmp_port_unreachable_fails_the_connect() {
    for v6 in [false, true] {
        let mut fx = IcmpFixture::new(v6);
        let syn = fx.next_segment();
        for forged in forgeries(&syn, v6) {
            assert_eq!(fx.inject_icmp(&forged, NO_PORT, 0), None);
        }
        assert_eq!(fx.icmp_counters(), (0, 2));
        let event = fx.inject_icmp(&syn, NO_PORT, 0);
        let expected = ConnectError::Unreachable;
        assert!(
            matches!(event, Some(ConnEvent::ConnectFailed { qp, error, .. })
                if qp == fx.qp && error == expected),
            "{event:?}"
        );
        assert_eq!(fx.world.ends[0].engine.qp_state(fx.qp), QpState::Error);
        assert_eq!(fx.world.ends[0].engine.connection_count(), 0);
        assert_eq!(fx.inject_icmp(&syn, NO_PORT, 0), None);
        assert_eq!(fx.icmp_counters(), (1, 3));
    }
}

#[test]
fn icmp_host_unreachable_is_a_soft_error() {
    for v6 in [false, true] {
        let mut fx = IcmpFixture::new(v6);
        let syn = fx.next_segment();
        assert_eq!(fx.inject_icmp(&syn, HOST, 0), None);
        assert_eq!(fx.icmp_counters(), (1, 0));
        fx.establish();
        // If the handshake times out, the ICMP error is reported as the reason.
        let mut fx = IcmpFixture::new(v6);
        let syn = fx.next_segment();
        assert_eq!(fx.inject_icmp(&syn, HOST, 0), None);
        fx.world.partition();
        let failed = fx.world.run_until(120 * SECOND, |world| {
            let event = world.ends[0].engine.next_event();
            let expected = ConnectError::Unreachable;
            matches!(event, Some(ConnEvent::ConnectFailed { error, .. }) if error == expected)
        });
        assert!(failed);
    }
}

#[test]
fn established_connection_acts_only_on_packet_too_big() {
    for v6 in [false, true] {
        let mut fx = IcmpFixture::new(v6);
        fx.establish();
        let emss = if v6 { 1428 } else { 1448 };
        assert_eq!(fx.world.ends[0].engine.emss(fx.qp), Some(emss));
        fx.write(60);
        let frame = fx.next_segment();
        for kind in [HOST, NO_PORT] {
            assert_eq!(fx.inject_icmp(&frame, kind, 0), None);
            assert_eq!(fx.world.ends[0].engine.qp_state(fx.qp), QpState::Rts);
        }
        assert_eq!(fx.icmp_counters(), (2, 0));
        // Packet Too Big with an MTU that the packet fits, forged, and damaged.
        assert_eq!(fx.inject_icmp(&frame, TOO_BIG, 1280), None);
        for forged in forgeries(&frame, v6) {
            assert_eq!(fx.inject_icmp(&forged, TOO_BIG, 100), None);
        }
        let mut error = ip::icmp_error(&frame, L3, TOO_BIG[usize::from(v6)], 100);
        *error.last_mut().unwrap() ^= 1;
        fx.world.ends[0].engine.device().inbound.borrow_mut().push_back(error);
        fx.world.ends[0].engine.drive(fx.world.now);
        assert_eq!(fx.icmp_counters(), (2, 4));
        assert_eq!(fx.world.ends[0].engine.emss(fx.qp), Some(emss));
        // A small packet reported as too big: the MSS falls to its minimum. IPv6 has no such links.
        assert_eq!(fx.inject_icmp(&frame, TOO_BIG, 100), None);
        let counters = *fx.world.ends[0].engine.counters();
        if v6 {
            assert_eq!((fx.icmp_counters(), counters.emss_changes), ((2, 5), 0));
        } else {
            assert_eq!((fx.icmp_counters(), counters.emss_changes), ((3, 4), 1));
            assert_eq!(fx.world.ends[0].engine.emss(fx.qp), Some(576 - 52));
        }
    }
}

#[test]
fn icmp_errors_without_connection_do_not_consume_the_limit() {
    for v6 in [false, true] {
        let mut fx = IcmpFixture::new(v6);
        fx.establish();
        fx.write(5000);
        let frame = fx.next_segment();
        let mut other = frame.clone();
        // Another local port, with the checksum adjusted.
        let l4 = L3 + if v6 { 40 } else { 20 };
        other[l4] ^= 0x10;
        other[l4 + 16] ^= 0x10;
        for _ in 0..3000 {
            assert_eq!(fx.inject_icmp(&other, TOO_BIG, 1400), None);
        }
        let (accepted, refused) = fx.icmp_counters();
        assert_eq!((accepted, refused), (0, 3000));
        let emss = fx.world.ends[0].engine.emss(fx.qp).unwrap();
        assert_eq!(fx.inject_icmp(&frame, TOO_BIG, 1400), None);
        assert_eq!(fx.icmp_counters(), (1, 3000), "accepted in the same second");
        assert!(fx.world.ends[0].engine.emss(fx.qp).unwrap() < emss);
    }
}

#[test]
fn smaller_send_mtu_limits_emss_but_not_the_advertised_mss() {
    for v6 in [false, true] {
        let options = WorldOptions { ipv6: v6, mtu: 9000, ..WorldOptions::new(7) };
        let mut fx = IcmpFixture::with_options(&WorldOptions { send_mtu: 1500, ..options });
        let syn = fx.next_segment();
        let l4 = L3 + if v6 { 40 } else { 20 };
        let mss: u16 = if v6 { 8940 } else { 8960 };
        assert_eq!(syn[l4 + 20..l4 + 24], [&[2, 4][..], &mss.to_be_bytes()].concat());
        fx.establish();
        // PMTU probing does not change it.
        for len in [30_000, 30_001] {
            fx.write(len);
            let bytes = fx.world.ends[0].arena.read(0, len);
            assert!(fx.world.run_until(120 * SECOND, |world| {
                world.ends[1].arena.read(0, len) == bytes && !world.step()
            }));
            let emss = fx.world.ends[0].engine.emss(fx.qp);
            assert_eq!(emss, Some(if v6 { 1428 } else { 1448 }));
            fx.world.now = fx.world.now + 600 * SECOND;
        }
    }
}

#[test]
fn path_mtu_is_raised_after_ten_minutes_with_whole_fpdus() {
    let mut fx = IcmpFixture::new(false);
    fx.establish();
    fx.write(1000);
    let frame = fx.next_segment();
    assert_eq!(fx.inject_icmp(&frame, TOO_BIG, 600), None);
    let written = |fx: &mut IcmpFixture, len: usize| {
        fx.write(len);
        let bytes = fx.world.ends[0].arena.read(0, len);
        let done = fx.world.run_until(120 * SECOND, |world| {
            world.ends[1].arena.read(0, len) == bytes && !world.step()
        });
        assert!(done);
        fx.world.ends[0].engine.emss(fx.qp)
    };
    assert_eq!(written(&mut fx, 20_000), Some(600 - 52), "the MTU of the ICMP error");
    let assembled = |fx: &IcmpFixture| fx.world.ends[1].engine.counters().fpdus_assembled;
    assert_eq!(assembled(&fx), 1, "the one that was too big, in two pieces");
    assert_eq!(written(&mut fx, 20_001), Some(600 - 52));
    fx.world.now = fx.world.now + 600 * SECOND;
    written(&mut fx, 20_002);
    assert_eq!(written(&mut fx, 20_003), Some(1448));
    let [left, right] = [0, 1].map(|end| *fx.world.ends[end].engine.counters());
    assert_eq!((left.emss_changes, left.fpdus_out), (2, right.fpdus_in));
    assert_eq!(assembled(&fx), 1, "all others came whole in a segment");
}
