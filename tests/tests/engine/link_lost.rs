//! The link to the only peer has ended: nothing waits for it.

use ferrowarp_proto::tcp::State;
use ferrowarp_proto::time::MILLISECOND;
use ferrowarp_proto::verbs::cm::{ConnEvent, ConnParam, ConnectError, EndReason};
use ferrowarp_proto::verbs::qp::QpState;
use ferrowarp_proto::wire::tcp::Flags;
use ferrowarp_tests::raw::{Peer, SegmentFixture, empty_write_fpdu, mpa_request};
use ferrowarp_tests::sim::pairs::{PORT, send};
use ferrowarp_tests::sim::world::address;

#[test]
fn lost_link_ends_connections_of_every_state_without_a_segment() {
    let mut fx = SegmentFixture::new(|_| {});
    // Established with a message outstanding, graceful close under way, request, half-open.
    let mut peers: Vec<_> = (0..2).map(|each| Peer::connect(&mut fx, 5000 + each, 1460)).collect();
    let qps: Vec<_> = peers
        .iter_mut()
        .map(|peer| {
            let qp = peer.start_mpa(&mut fx);
            peer.send(&mut fx, &empty_write_fpdu());
            peer.settle(&mut fx);
            qp
        })
        .collect();
    fx.engine.post_send(qps[0], send(1, b"text", None)).unwrap();
    fx.engine.close(fx.now, qps[1]).unwrap();
    let mut asking = Peer::connect(&mut fx, 5002, 1460);
    asking.send(&mut fx, &mpa_request());
    let request = fx.connect_request();
    let syn = Peer::unconnected(5003).tcp;
    fx.inject(syn.build_frame(&syn.fields(Flags::SYN, Default::default()), &[]));
    let connecting = fx.create_qp();
    fx.engine.connect(fx.now, connecting, (address(9), PORT).into(), &ConnParam::new()).unwrap();
    fx.settle();
    let list = fx.engine.connections(fx.now);
    let mut states: Vec<_> = list.iter().map(|each| (each.qp, each.tcp_state)).collect();
    states.sort_unstable_by_key(|(_, state)| format!("{state:?}"));
    assert_eq!(states[0].1, State::Established);
    assert_eq!(list.len(), 5, "{list:?}");
    assert_eq!(list.iter().filter(|each| each.is_passive).count(), 4);
    fx.take_sent();

    fx.engine.on_link_lost(fx.now);
    fx.settle();
    fx.advance(MILLISECOND);
    assert_eq!(fx.take_segments().len(), 0, "nobody is there");
    assert_eq!((fx.engine.connection_count(), fx.engine.usage().tuples), (0, 0));
    assert_eq!(fx.engine.usage().half_open + fx.engine.usage().awaiting_request, 0);
    let mut ended = Vec::new();
    while let Some(event) = fx.engine.next_event() {
        match event {
            ConnEvent::Disconnected { qp, reason } => {
                assert_eq!(reason, EndReason::LinkDown);
                ended.push(qp);
            }
            ConnEvent::ConnectFailed { qp, error, .. } => {
                assert_eq!((qp, error), (connecting, ConnectError::LinkDown));
                ended.push(qp);
            }
            event => panic!("{event:?}"),
        }
    }
    ended.sort_unstable_by_key(|qp| qp.index);
    assert_eq!(ended, [qps[0], qps[1], connecting]);
    assert!(ended.iter().all(|&qp| fx.engine.qp_state(qp) == QpState::Error));
    let accepted = fx.create_qp();
    assert!(fx.engine.accept(fx.now, request, accepted, &ConnParam::new()).is_err());

    // The next process is served, from the same address and port.
    let mut next = Peer::connect(&mut fx, 5000, 1460);
    let qp = next.start_mpa(&mut fx);
    assert_eq!(fx.engine.qp_state(qp), QpState::Rts);
}
