//! Transmit checksum offload: every TCP frame, of any kind and from any code path, requests it. A
//! frame without the TX checksum flag leaves with a wrong checksum and fails the test.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use ferrowarp_proto::device::ChecksumMode;
use ferrowarp_proto::engine::EngineConfig;
use ferrowarp_proto::time::{MILLISECOND, SECOND};
use ferrowarp_proto::verbs::cm::{ConnEvent, ConnParam};
use ferrowarp_proto::wire::ethernet::EthernetLink;
use ferrowarp_proto::wire::seq::Seq;
use ferrowarp_proto::wire::tcp::{Fields, Flags, FourTuple, Options, Segment};
use ferrowarp_tests::frame::Frame;
use ferrowarp_tests::manual_tcp_peer::{MACS, TcpPeer};
use ferrowarp_tests::raw::{PORT, SegmentFixture, device, mpa_request};
use ferrowarp_tests::sim::heap_device::PortOffload;
use ferrowarp_tests::sim::pairs::qp_init;
use ferrowarp_tests::sim::world::{World, WorldOptions, address, address_v6};

/// An engine on a port with checksum offload, and a hand-made peer.
struct OffloadFixture {
    base: SegmentFixture,
    peer: TcpPeer,
    tagged: bool,
    /// Flags of the frames sent, and whether each had payload.
    kinds: BTreeSet<(u8, bool)>,
    /// The last frame.
    last: Option<Segment>,
}

impl OffloadFixture {
    fn new(case: Case, change: impl FnOnce(&mut EngineConfig)) -> Self {
        let Case { ipv6, vlan, offload } = case;
        let mut device = device(64);
        device.set_offload(offload);
        let ip = |index| if ipv6 { address_v6(index) } else { address(index) };
        let mut config = EngineConfig::new(ip(1), if ipv6 { 64 } else { 24 }, 7);
        config.vlan = vlan;
        change(&mut config);
        let base = SegmentFixture::with_device(device, config);
        let remote = SocketAddr::new(ip(1), PORT);
        let tuple = FourTuple { local: SocketAddr::new(ip(0), 5000), remote };
        let link = EthernetLink { mac: MACS[0], vlan };
        let peer = TcpPeer::with_link(link, tuple, Seq(9));
        Self { base, peer, tagged: vlan.is_some(), kinds: BTreeSet::new(), last: None }
    }

    /// Sends a segment and checks what the engine sends in response.
    fn send_segment(&mut self, fields: &Fields, payload: &[u8]) {
        self.base.inject(self.peer.build_frame(fields, payload));
        self.advance(MILLISECOND);
    }

    /// Advances time; every TCP frame sent has to be correct.
    fn advance(&mut self, ns: u64) {
        let end = self.base.now + ns;
        while self.base.now < end {
            self.base.engine.drive(self.base.now);
            for frame in self.base.take_sent() {
                let frame = Frame::from(frame);
                let parsed = if self.tagged {
                    Segment::parse_vlan(&frame, ChecksumMode::Software)
                } else {
                    Segment::parse(&frame, ChecksumMode::Software)
                };
                let is_tcp =
                    frame.bytes.windows(2).take(40).any(|ports| ports == PORT.to_be_bytes());
                assert!(parsed.is_ok() || !is_tcp, "{parsed:?} {:02x?}", frame.bytes);
                let Ok(segment) = parsed else { continue };
                self.kinds.insert((segment.flags.0, !segment.payload.is_empty()));
                self.last = Some(segment);
            }
            self.base.now = self.base.now + ns.div_ceil(50);
        }
    }

    fn syn(&mut self) -> Segment {
        let options = Options { mss: Some(1460), ts: Some((1, 0)), ..Options::default() };
        self.send_segment(&self.peer.fields(Flags::SYN, options), &[]);
        self.last.take().expect("an answer")
    }
}

/// Kind of the packets, and what the port does with them.
#[derive(Clone, Copy, Debug)]
struct Case {
    ipv6: bool,
    vlan: Option<u16>,
    offload: PortOffload,
}

fn for_each_case(mut run: impl FnMut(Case)) {
    for ipv6 in [false, true] {
        for vlan in [None, Some(7)] {
            for offload in [PortOffload::Tcp, PortOffload::TcpIpv4] {
                run(Case { ipv6, vlan, offload });
            }
        }
    }
}

#[test]
fn rst_without_connection_has_a_valid_checksum() {
    for_each_case(|case| {
        let mut fx = OffloadFixture::new(case, |_| {});
        fx.send_segment(&Fields { seq: Seq(9), flags: Flags::ACK, ..Fields::default() }, b"stray");
        assert_eq!(fx.last.expect("an answer").flags, Flags::RST);
    });
}

#[test]
fn cookie_syn_ack_has_a_valid_checksum() {
    for_each_case(|case| {
        let mut fx = OffloadFixture::new(case, |config| config.half_open_max = 0);
        assert_eq!(fx.syn().flags, Flags::SYN | Flags::ACK);
        assert_eq!(fx.base.engine.counters().cookies_sent, 1);
    });
}

#[test]
fn all_frames_of_a_connection_have_valid_checksums() {
    for_each_case(|case| {
        let mut fx = OffloadFixture::new(case, |_| {});
        let answer = fx.syn();
        let ts = answer.options.ts.expect("negotiated");
        fx.peer.snd_nxt += 1;
        fx.peer.rcv_nxt = answer.seq + 1;
        let mut fields = fx.peer.fields(Flags::ACK, Options::timestamps(Some((2, ts.0))));
        fx.send_segment(&fields, &mpa_request());
        let Some(ConnEvent::ConnectRequest { request: asked, .. }) = fx.base.engine.next_event()
        else {
            panic!("no request")
        };
        let qp = fx.base.engine.create_qp(qp_init(16, 16)).unwrap();
        fx.base.engine.accept(fx.base.now, asked, qp, &ConnParam::default()).unwrap();
        // The reply, and its retransmission as it is not acknowledged; then FIN, and at last RST.
        fx.advance(SECOND);
        fields.seq += u32::try_from(mpa_request().len()).unwrap();
        fx.send_segment(&fields, &[]);
        fx.base.engine.disconnect(fx.base.now, qp).unwrap();
        fx.advance(60 * SECOND);
        let (ack, psh, fin, rst) = (Flags::ACK, Flags::PSH, Flags::FIN, Flags::RST);
        let has = |flags: Flags, payload| fx.kinds.contains(&(flags.0, payload));
        assert!(has(Flags::SYN | ack, false) && has(ack, false), "{:?}", fx.kinds);
        assert!(has(ack | psh, true), "{:?}", fx.kinds);
        assert!(fx.kinds.iter().any(|(flags, _)| flags & fin.0 != 0));
        assert!(fx.kinds.iter().any(|(flags, _)| flags & rst.0 != 0));
        assert_eq!(fx.peer.tuple.remote.port(), PORT);
    });
}

#[test]
fn connect_with_offload_is_refused_without_listener() {
    for_each_case(|Case { ipv6, vlan, offload }| {
        let options = WorldOptions { offload, vlan, ipv6, ..WorldOptions::new(5) };
        let mut world = World::new(&options);
        let (now, remote) = (world.now, world.socket(1, PORT));
        let qp = world.ends[0].engine.create_qp(qp_init(16, 16)).unwrap();
        world.ends[0].engine.connect(now, qp, remote, &ConnParam::default()).unwrap();
        let mut event = None;
        let done = world.run_until(SECOND, |world| {
            event = world.ends[0].engine.next_event();
            event.is_some()
        });
        assert!(done, "the SYN and the RST were right");
        assert!(matches!(event, Some(ConnEvent::ConnectFailed { .. })), "{event:?}");
    });
}
