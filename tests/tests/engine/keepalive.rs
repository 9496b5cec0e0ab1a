//! Keepalive and user timeout of single connections, over those of the engine's settings.

use core::time::Duration;

use ferrowarp_proto::tcp::Keepalive;
use ferrowarp_proto::time::{MILLISECOND, SECOND};
use ferrowarp_proto::verbs::cm::{ConnEvent, ConnParam, EndReason};
use ferrowarp_proto::verbs::wc::QpId;
use ferrowarp_tests::raw::{Peer, SegmentFixture, empty_write_fpdu};
use ferrowarp_tests::sim::pairs::send;

/// Connects as many queue pairs as there are parameters; their peers then say no more.
fn silent_peers(fx: &mut SegmentFixture, params: &[ConnParam]) -> Vec<QpId> {
    let ports = 5000..;
    let connect = |(param, port): (&ConnParam, u16)| {
        let mut peer = Peer::connect(fx, port, 1460);
        let qp = peer.start_mpa_with(fx, param);
        peer.send(fx, &empty_write_fpdu());
        peer.settle(fx);
        qp
    };
    params.iter().zip(ports).map(connect).collect()
}

/// Returns the queue pairs that time out in this time, each with the milliseconds passed.
fn timed_out(fx: &mut SegmentFixture, ns: u64) -> Vec<(QpId, u64)> {
    let start = fx.now;
    let mut ended = Vec::new();
    while fx.now.since(start) < ns {
        fx.advance(MILLISECOND);
        while let Some(event) = fx.engine.next_event() {
            let ConnEvent::Disconnected { qp, reason } = event else { panic!("{event:?}") };
            assert_eq!(reason, EndReason::TimedOut);
            ended.push((qp, fx.now.since(start) / MILLISECOND));
        }
    }
    ended
}

const fn keepalive(idle_ms: u64, interval_ms: u64, probes: u8) -> Keepalive {
    Keepalive::new(Duration::from_millis(idle_ms), Duration::from_millis(interval_ms), probes)
}

#[test]
fn connection_with_its_own_keepalive_notices_a_silent_peer() {
    let mut fx = SegmentFixture::new(|_| {});
    let [fast, slow, most] =
        [keepalive(1000, 200, 3), keepalive(2000, 500, 1), keepalive(1000, 50, u8::MAX)];
    let params = [
        ConnParam::new(),
        ConnParam::new().keepalive(fast),
        ConnParam::new().keepalive(slow),
        ConnParam::new().keepalive(most),
        ConnParam::new().keepalive(Keepalive::OFF),
    ];
    let qps = silent_peers(&mut fx, &params);
    let ended = timed_out(&mut fx, 60 * SECOND);
    assert_eq!(ended.iter().map(|(qp, _)| *qp).collect::<Vec<_>>(), [qps[1], qps[2], qps[3]]);
    for ((_, ms), set) in ended.into_iter().zip([fast, slow, most]) {
        let expected = set.notices_after().as_millis();
        assert!((expected - 100..expected + 50).contains(&ms.into()), "{ms} ms, {set:?}");
    }
}

#[test]
fn connection_can_do_without_the_keepalive_of_the_settings() {
    let mut fx = SegmentFixture::new(|config| config.tcp.set_keepalive(keepalive(100, 100, 2)));
    let params = [ConnParam::new().keepalive(Keepalive::OFF), ConnParam::new()];
    // One after the other: the first would end meanwhile.
    let qps = silent_peers(&mut fx, &params);
    let ended = timed_out(&mut fx, SECOND);
    assert_eq!(ended.iter().map(|(qp, _)| *qp).collect::<Vec<_>>(), [qps[1]]);
}

#[test]
fn connection_has_its_own_user_timeout() {
    let mut fx = SegmentFixture::new(|_| {});
    let params = [ConnParam::new().user_timeout(Duration::from_secs(3)), ConnParam::new()];
    let qps = silent_peers(&mut fx, &params);
    for &qp in &qps {
        fx.engine.post_send(qp, send(1, b"is anybody there?", None)).unwrap();
    }
    let ended = timed_out(&mut fx, 110 * SECOND);
    assert!(matches!(ended[..], [(qp, 2900..4000)] if qp == qps[0]), "{ended:?}");
}
