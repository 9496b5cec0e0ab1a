//! IPv6 flow labels (RFC 6437): one for all segments of a connection, different between peers.

use std::collections::BTreeSet;

use ferrowarp_proto::engine::EngineConfig;
use ferrowarp_proto::time::MILLISECOND;
use ferrowarp_proto::wire::seq::Seq;
use ferrowarp_proto::wire::tcp::{Flags, FourTuple, Options};
use ferrowarp_tests::manual_tcp_peer::TcpPeer;
use ferrowarp_tests::raw::{PORT, SegmentFixture, device, mpa_request};
use ferrowarp_tests::sim::world::address_v6;

/// Flow labels of the engine's replies to segments from a peer's port.
fn labels(half_open_max: usize, port: u16, segments: &[(Flags, &[u8])]) -> BTreeSet<u32> {
    let mut config = EngineConfig::new(address_v6(1), 64, 7);
    config.half_open_max = half_open_max;
    let mut fx = SegmentFixture::with_device(device(64), config);
    let local = (address_v6(0), port).into();
    let tuple = FourTuple { local, remote: (address_v6(1), PORT).into() };
    let mut peer = TcpPeer::new(tuple, Seq(9));
    let mut labels = BTreeSet::new();
    for &(flags, payload) in segments {
        fx.inject(peer.build_frame(&peer.fields(flags, Options::default()), payload));
        peer.snd_nxt += u32::try_from(payload.len()).unwrap() + u32::from(flags.has(Flags::SYN));
        for _ in 0..4 {
            fx.drive();
            fx.now = fx.now + MILLISECOND;
        }
        for (segment, frame) in fx.take_segments() {
            peer.rcv_nxt = segment.seq + segment.seq_len();
            let word = u32::from_be_bytes(frame.bytes[14..18].try_into().unwrap());
            labels.insert(word & 0xf_ffff);
        }
    }
    labels
}

#[test]
fn flow_label_is_constant_per_flow_and_differs_between_flows() {
    let request = mpa_request();
    let whole = [(Flags::SYN, &[][..]), (Flags::ACK, &request[..])];
    let mut all = BTreeSet::new();
    for port in 5000..5032 {
        let of_connection = labels(64, port, &whole);
        assert_eq!(of_connection.len(), 1, "SYN-ACK and ACK: {of_connection:?}");
        assert_eq!(of_connection, labels(0, port, &whole[..1]), "and of a cookie");
        assert_eq!(of_connection, labels(64, port, &[(Flags::ACK, b"stray")]), "and of a RST");
        assert!(!of_connection.contains(&0));
        all.extend(of_connection);
    }
    assert!(all.len() >= 31, "{all:?}");
}
