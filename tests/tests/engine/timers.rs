//! Timers of many connections that are due at the same time.

use std::net::Ipv4Addr;

use ferrowarp_proto::engine::EngineConfig;
use ferrowarp_proto::time::MILLISECOND;
use ferrowarp_proto::wire::tcp::{Flags, Options};
use ferrowarp_tests::raw::{Peer, SegmentFixture, device};
use ferrowarp_tests::sim::world::address;

/// Half-open connections.
const COUNT: usize = 4096;
/// Timers that a pass fires, at most.
const PASS_MAX: usize = 256;
/// Time until a connection that sends no request is given up.
const STARTUP_TIMEOUT_NS: u64 = 100 * MILLISECOND;

/// A flood of SYNs at one moment makes as many connections to be given up at one moment. Each pass
/// gives up some of them; the others follow in the next passes, before none of which anybody may
/// sleep. A client that connects meanwhile is answered in the first.
#[test]
fn pass_fires_a_bounded_number_of_timers() {
    let mut config = EngineConfig::new(address(1), 24, 7);
    config.startup_timeout_ns = STARTUP_TIMEOUT_NS;
    config.half_open_max = 2 * COUNT;
    config.half_open_per_listener_max = 2 * COUNT;
    config.connections_max = 2 * COUNT;
    let mut fx = SegmentFixture::with_device(device(2 * COUNT), config);
    let syn = |fx: &SegmentFixture, source: u32| {
        let peer = Peer::at(Ipv4Addr::from_bits(source).into(), 5000);
        fx.inject(peer.tcp.build_frame(&peer.tcp.fields(Flags::SYN, Options::default()), &[]));
        peer.tcp.tuple
    };
    for index in 0..COUNT {
        syn(&fx, 0x0a00_0000 + u32::try_from(index).unwrap());
    }
    let mut answered = 0;
    while answered < COUNT {
        fx.drive();
        answered += fx.take_segments().len();
    }
    fx.now = fx.now + STARTUP_TIMEOUT_NS + MILLISECOND;
    let late = syn(&fx, 0x0b00_0000);
    let mut passes = 0;
    let mut left = fx.engine.usage().half_open;
    assert_eq!(left, COUNT);
    while left > 1 {
        assert!(fx.engine.deadline().is_some_and(|at| at <= fx.now), "{left} are left");
        fx.drive();
        passes += 1;
        let sent = fx.take_segments();
        let is_answered = sent.iter().any(|(segment, _)| segment.tuple.local == late.local);
        assert!(passes > 1 || is_answered, "the client waits for the timers of others");
        let before = left + usize::from(passes == 1);
        left = fx.engine.usage().half_open;
        assert!(before - left <= PASS_MAX, "{} timers in a pass", before - left);
    }
    println!("{COUNT} timers in {passes} passes");
    assert!(passes <= COUNT / PASS_MAX + 1);
}
