//! DSCP and time to live: of the context in the segments of no connection, of the connection in all
//! of its own, whatever sends them.

use std::net::IpAddr;

use ferrowarp_proto::engine::EngineConfig;
use ferrowarp_proto::time::{MILLISECOND, SECOND};
use ferrowarp_proto::verbs::cm::{Abort, ConnEvent, ConnParam};
use ferrowarp_proto::verbs::qp::QpState;
use ferrowarp_proto::wire::ip::{IpFields, PROTOCOL_TCP, Packet};
use ferrowarp_proto::wire::tcp::{Flags, Segment};
use ferrowarp_tests::frame::Frame;
use ferrowarp_tests::manual_tcp_peer::MACS;
use ferrowarp_tests::raw::{PORT, Peer, SegmentFixture};
use ferrowarp_tests::sim::heap_device::{HeapDevice, PoolSizes};
use ferrowarp_tests::sim::pairs::send;
use ferrowarp_tests::sim::world::{address, address_v6};

/// Fields of two contexts, and of each end of a connection.
const CONTEXTS: [IpFields; 2] = [IpFields { dscp: 8, ttl: 20 }, IpFields { dscp: 16, ttl: 30 }];
const OWN: [IpFields; 2] = [IpFields { dscp: 46, ttl: 1 }, IpFields { dscp: 63, ttl: 255 }];

/// A TCP segment that was sent: its end, fields and flags.
type Sent = (usize, IpFields, Flags);

/// Two engines with a wire between them.
struct Wire {
    ends: [SegmentFixture; 2],
    sent: Vec<Sent>,
    /// Segments of one end that are lost.
    loses: Option<usize>,
}

impl Wire {
    fn new(address: fn(usize) -> IpAddr) -> Self {
        let ends = [0, 1].map(|end| {
            let mut config = EngineConfig::new(address(end), 24, 7 + end as u64);
            config.ip = CONTEXTS[end];
            let pools = PoolSizes { data: 256, reserve: 16, control: 64 };
            let device = HeapDevice::new(MACS[end], 1500, pools, usize::MAX);
            SegmentFixture::with_device(device, config)
        });
        Self { ends, sent: Vec::new(), loses: None }
    }

    fn run(&mut self, ns: u64) {
        for _ in 0..ns.div_ceil(MILLISECOND / 10) {
            for end in [0, 1] {
                let fx = &mut self.ends[end];
                fx.now = fx.now + MILLISECOND / 10;
                fx.drive();
                for bytes in fx.take_sent() {
                    let sent = fields(&bytes).map(|(fields, flags)| (end, fields, flags));
                    self.sent.extend(sent);
                    if sent.is_none() || self.loses != Some(end) {
                        self.ends[1 - end].inject(bytes);
                    }
                }
            }
        }
    }

    /// Takes the segments of one end with these flags among theirs.
    fn of(&self, end: usize, flags: Flags) -> Vec<IpFields> {
        let wanted = self.sent.iter().filter(|(of, _, has)| *of == end && has.has(flags));
        wanted.map(|(_, fields, _)| *fields).collect()
    }
}

/// Returns the fields of a segment's headers, and its flags; `None` for other frames.
fn fields(bytes: &[u8]) -> Option<(IpFields, Flags)> {
    let packet = Packet::parse(bytes, bytes.len(), 14, true).ok()?;
    let fields = IpFields { dscp: packet.traffic_class >> 2, ttl: packet.hop_limit };
    (packet.protocol == PROTOCOL_TCP).then(|| {
        let mode = ferrowarp_proto::device::ChecksumMode::Software;
        (fields, Segment::parse(&Frame::from(bytes.to_vec()), mode).unwrap().flags)
    })
}

#[test]
fn connection_has_its_own_fields_in_every_segment_but_the_syn_ack() {
    for address in [address as fn(usize) -> IpAddr, address_v6] {
        let mut wire = Wire::new(address);
        let [a, b] = [0, 1].map(|end| wire.ends[end].create_qp());
        let param = |end: usize| ConnParam::new().dscp(OWN[end].dscp).ttl(OWN[end].ttl);
        let [active, _] = &mut wire.ends;
        active.engine.connect(active.now, a, (address(1), PORT).into(), &param(0)).unwrap();
        wire.run(5 * MILLISECOND);
        assert_eq!(wire.of(0, Flags::SYN), [OWN[0]]);
        assert_eq!(wire.of(1, Flags::SYN), [CONTEXTS[1]], "the application has not accepted");
        let [_, passive_end] = &mut wire.ends;
        let request = passive_end.connect_request();
        passive_end.engine.accept(passive_end.now, request, b, &param(1)).unwrap();
        wire.sent.clear();
        wire.run(5 * MILLISECOND);
        // Lost, and sent again.
        wire.loses = Some(0);
        wire.ends[0].engine.post_send(a, send(1, b"text", None)).unwrap();
        let before = wire.of(0, Flags::ACK).len();
        wire.run(50 * MILLISECOND);
        assert!(wire.of(0, Flags::ACK).len() > before + 1, "sent again");
        wire.loses = None;
        // The message finds no receive: a Terminate, and the end.
        wire.run(SECOND);
        assert_eq!(wire.ends[1].engine.qp_state(b), QpState::Error);
        let now = wire.ends[0].now;
        let _ = wire.ends[0].engine.terminate(now, a, Abort::Stream);
        wire.run(SECOND);
        for (end, own) in OWN.into_iter().enumerate() {
            let all = wire.of(end, Flags(0));
            assert!(all.len() > 3 && all.iter().all(|fields| *fields == own), "{end}: {all:?}");
        }
        assert!(!wire.of(1, Flags::FIN).is_empty() || !wire.of(1, Flags::RST).is_empty());
    }
}

#[test]
fn context_has_its_fields_in_cookies_resets_and_connections_without_their_own() {
    let mut config = EngineConfig::new(address(1), 24, 7);
    (config.ip, config.half_open_max) = (CONTEXTS[1], 0);
    let mut fx = SegmentFixture::with_device(ferrowarp_tests::raw::device(64), config);
    let peer = Peer::unconnected(5000);
    let syn = peer.tcp.fields(Flags::SYN, Default::default());
    fx.inject(peer.tcp.build_frame(&syn, &[]));
    fx.poll();
    fx.inject(peer.tcp.build_frame(&peer.tcp.fields(Flags::ACK, Default::default()), b"stray"));
    fx.poll();
    let sent: Vec<_> = fx.take_sent().iter().filter_map(|bytes| fields(bytes)).collect();
    assert_eq!(fx.engine.counters().cookies_sent, 1);
    let expected = [Flags::SYN | Flags::ACK, Flags::RST].map(|flags| (CONTEXTS[1], flags));
    assert_eq!(sent, expected);

    let mut wire = Wire::new(address);
    let a = wire.ends[0].create_qp();
    let now = wire.ends[0].now;
    wire.ends[0].engine.connect(now, a, (address(1), PORT + 1).into(), &ConnParam::new()).unwrap();
    wire.run(5 * MILLISECOND);
    let event = wire.ends[0].engine.next_event();
    assert!(matches!(event, Some(ConnEvent::ConnectFailed { .. })), "{event:?}");
    assert_eq!(
        (wire.of(0, Flags::SYN), wire.of(1, Flags::RST)),
        (vec![CONTEXTS[0]], vec![CONTEXTS[1]])
    );
}
