//! Connects: source address and port, and the time that they may take.

use std::time::{Duration, Instant};

use ferrowarp::{CmError, Config, ConnParam, ConnectError, Context, DriveMode, QpOptions};

use crate::shards::sharded;
use crate::support::*;

const LOCAL: u16 = 7777;

/// Also if the replies arrive at another shard.
#[test]
fn connection_has_the_chosen_source() {
    let (left, right) = sharded(4, DriveMode::Inline);
    let listener = right.context.listen(PORT, 8).unwrap();
    for shard in 0..4 {
        let local_port = LOCAL + u16::try_from(shard).unwrap();
        let qp = left.pd.create_qp(&QpOptions::new(&left.cq).shard(shard)).unwrap();
        let param = ConnParam::new().local_address(address(1)).local_port(local_port);
        qp.connect(server(), param.clone()).unwrap();
        let request = listener.accept_timeout(TIMEOUT).unwrap();
        assert_eq!(request.offer().peer, (address(1), local_port).into());
        let passive = right.qp();
        request.accept(&passive, ConnParam::new()).unwrap();
        assert_eq!(qp.wait_established(TIMEOUT).unwrap().local, (address(1), local_port).into());
        // Whatever the shard.
        for shard in 0..4 {
            let other = left.pd.create_qp(&QpOptions::new(&left.cq).shard(shard)).unwrap();
            let refused = other.connect(server(), param.clone());
            assert_eq!(refused, Err(CmError::ConnectionExists(local_port)));
        }
    }
    let _listener = left.context.listen((address(1), LOCAL - 1), 1).unwrap();
    let refused = left.qp().connect(server(), ConnParam::new().local_port(LOCAL - 1));
    assert_eq!(refused, Err(CmError::PortInUse(LOCAL - 1)));
    let foreign = left.qp().connect(server(), ConnParam::new().local_address(address(2)));
    assert_eq!(foreign, Err(CmError::NotLocal));
}

#[test]
fn thousands_of_connects_time_out_in_a_millisecond_each() {
    const COUNT: usize = 10_000;
    let many = config(1, DriveMode::Inline).qps_max(COUNT + 1);
    let (left, right) = ring_pair(many, config(2, DriveMode::Inline)).unwrap();
    let (left, right) = (Endpoint::new(left), Endpoint::new(right));
    // The address is resolved; then nobody drives the peer.
    let first = left.qp();
    first.connect(server(), ConnParam::new()).unwrap();
    drive_until(&left.context, &right.context, || first.next_event().is_some());
    let param = ConnParam::new().connect_timeout(Duration::from_millis(1));
    for _ in 0..2 {
        let start = Instant::now();
        let qps: Vec<_> = (0..COUNT).map(|_| left.qp_with(1, 1)).collect();
        for qp in &qps {
            qp.connect(server(), param.clone()).unwrap();
        }
        for qp in &qps {
            assert_eq!(qp.wait_established(TIMEOUT), Err(ConnectError::TimedOut));
        }
        assert!(start.elapsed() < TIMEOUT / 3, "{:?}", start.elapsed());
        assert_eq!(left.context.connection_count(), 0);
    }
}

#[test]
fn refused_connect_finds_a_listener_that_is_late() {
    let (left, right) = endpoints(DriveMode::Inline);
    let connect = |time| {
        let qp = left.qp();
        qp.connect(server(), ConnParam::new().refusal_retry(time)).unwrap();
        qp
    };
    let qp = connect(TIMEOUT);
    let refusals = || right.context.counters().engine.segments_unmatched;
    drive_until(&left.context, &right.context, || refusals() >= 3);
    assert!(qp.next_event().is_none());
    let listener = right.context.listen(PORT, 8).unwrap();
    let request = listener.accept_timeout(TIMEOUT).unwrap();
    let passive = right.qp();
    request.accept(&passive, ConnParam::new()).unwrap();
    qp.wait_established(TIMEOUT).unwrap();
    drop(listener);
    let refused = connect(Duration::from_millis(20)).wait_established(TIMEOUT);
    assert_eq!(refused, Err(ConnectError::Refused));
}

/// The table of this port has queue 0 alone. Nobody answers.
#[test]
fn queue_pair_takes_the_shard_to_which_rss_brings_a_chosen_port() {
    isolate!();
    let device = "eal:--vdev=net_null0".parse().unwrap();
    let context = Context::open(Config::new(device, address(1), 24).shards(2)).unwrap();
    let (pd, cq) = (context.alloc_pd(), context.create_cq(4).unwrap());
    let shard_of = |options: &QpOptions<'_>, local_port| {
        let qp = pd.create_qp(options).unwrap();
        qp.connect(server(), ConnParam::new().local_port(local_port)).unwrap();
        qp.shard().unwrap()
    };
    let options = QpOptions::new(&cq);
    for port in LOCAL..LOCAL + 8 {
        assert_eq!(shard_of(&options, port), 0, "{port}");
    }
    assert_eq!(shard_of(&options, 0) + shard_of(&options, 0), 1, "in turn");
    // One that belongs to a shard stays there.
    assert_eq!(shard_of(&QpOptions::new(&cq).shard(1), LOCAL), 1);
}

/// An own address with the port of the peer's listener: the stack itself refuses, and the peer sees
/// nothing.
#[test]
fn port_of_the_peer_at_an_own_address_is_refused() {
    let (left, right) = endpoints(DriveMode::Inline);
    let listener = right.context.listen(PORT, 8).unwrap();
    // They announce themselves.
    drive_for(&left.context, &right.context, Duration::from_millis(20));
    let received = right.context.counters().device.rx_frames;
    let qp = left.qp();
    qp.connect((address(1), PORT).into(), ConnParam::new()).unwrap();
    assert_eq!(qp.wait_established(TIMEOUT), Err(ConnectError::Refused));
    drive_for(&left.context, &right.context, Duration::from_millis(20));
    assert_eq!(right.context.counters().device.rx_frames, received);
    assert!(listener.poll().is_none());
    // Nor does the peer's own address as the source lead to the peer.
    let param = ConnParam::new().local_address(address(2));
    assert_eq!(left.qp().connect((address(1), PORT).into(), param), Err(CmError::NotLocal));
}

#[test]
fn connect_timeout_that_is_too_short_is_refused() {
    let (left, _right) = endpoints(DriveMode::Inline);
    let (qp, min) = (left.qp(), Duration::from_millis(1));
    for value in [Duration::ZERO, Duration::from_nanos(999_999)] {
        let refused = qp.connect(server(), ConnParam::new().connect_timeout(value)).unwrap_err();
        assert_eq!(refused, CmError::TooShort { setting: "connect_timeout", value, min });
        assert!(refused.to_string().contains("give 1ms or more"), "{refused}");
    }
    qp.connect(server(), ConnParam::new().connect_timeout(Duration::MAX)).unwrap();
}
