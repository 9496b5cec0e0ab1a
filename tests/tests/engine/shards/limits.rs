//! Limits of the host, whatever its number of shards.

use std::net::Ipv4Addr;
use std::time::Duration;

use ferrowarp_proto::verbs::cm::{CmError, ConnParam, ReadDepths};
use ferrowarp_proto::wire::tcp::Flags;
use ferrowarp_tests::longest_poll::LongestPoll;
use ferrowarp_tests::raw::mpa_request;
use ferrowarp_tests::sim::pairs::{PORT, qp_init};
use ferrowarp_tests::sim::world::address;

use super::{COUNT, Peer, ShardsFixture};

/// SYNs from `count` peers, spread over the shards.
fn flood(fx: &mut ShardsFixture, count: u32) {
    let shards = fx.end.shard_count();
    for number in 0..count {
        let source = Ipv4Addr::from_bits(0x0a00_0000 + number).into();
        let peer = Peer::at(source, 9, PORT);
        fx.inject(number as usize % shards, peer.syn_frame());
        fx.process();
    }
}

#[test]
fn half_open_connections_are_limited_over_all_shards() {
    for shards in [1, COUNT] {
        for of_listener in [false, true] {
            let mut fx = ShardsFixture::with(shards, |config, _| {
                let limit = if of_listener {
                    &mut config.half_open_per_listener_max
                } else {
                    &mut config.half_open_max
                };
                *limit = 8;
            });
            flood(&mut fx, 40);
            assert_eq!(fx.connection_counts().iter().sum::<usize>(), 8);
            assert_eq!(fx.end.count(|of| of.cookies_sent), 32);
        }
    }
}

#[test]
fn cookies_are_limited_over_all_shards() {
    let count = |shards| {
        let mut fx = ShardsFixture::with(shards, |config, _| {
            config.half_open_max = 0;
            config.cookies_per_second = 100;
        });
        flood(&mut fx, 200);
        fx.end.count(|of| of.cookies_sent)
    };
    let [one, several] = [1, COUNT].map(count);
    assert_eq!(one, several);
    assert!((5..=10).contains(&one), "of a tenth of a second: {one}");
}

#[test]
fn backlog_is_shared_by_the_shards() {
    for shards in [1, COUNT] {
        let mut fx = ShardsFixture::with(shards, |_, _| {});
        let last = shards - 1;
        for shard in 0..shards {
            fx.end.shard_mut(shard).unlisten(PORT);
        }
        fx.end.listen(PORT, 2);
        let mut peers = [5000, 5001, 5002].map(Peer::new);
        for (at, peer) in peers.iter_mut().enumerate() {
            peer.syn(&mut fx, at % shards);
        }
        for (at, peer) in peers.iter_mut().enumerate() {
            peer.send(&mut fx, at % shards, Flags::default(), &[]);
        }
        for (at, peer) in peers.iter_mut().enumerate() {
            peer.send(&mut fx, at % shards, Flags::default(), &mpa_request());
        }
        let first = [fx.connect_request(), fx.connect_request()];
        assert!(fx.end.next_event().is_none(), "no more than the application can decide on");
        assert!(Peer::new(5003).send_syn(&mut fx, last).is_empty(), "the backlog is full");
        // A slot that one shard frees is taken by the request that waits in another.
        let (shard, request) = first[0];
        let engine = fx.end.shard_mut(shard);
        engine.reject(fx.now, request, ReadDepths::default(), b"").unwrap();
        fx.process();
        assert_eq!(fx.connect_request().0, 2 % shards);
    }
}

#[test]
fn rsts_are_limited_over_all_shards() {
    let count = |shards| {
        let mut fx = ShardsFixture::with(shards, |_, _| {});
        let mut resets = 0;
        for number in 0..500 {
            let mut stray = Peer::at(address(0), 6000, PORT + 1);
            resets += stray.send(&mut fx, number % shards, Flags::default(), &[]).len();
        }
        resets
    };
    let [one, several] = [1, COUNT].map(count);
    assert_eq!(one, several);
    assert!((50..=100).contains(&one), "{one}");
}

#[test]
fn connections_are_limited_over_all_shards() {
    let mut fx = ShardsFixture::with(COUNT, |_, options| options.connections_max = 5);
    for shard in 0..COUNT {
        fx.connect(shard, (address(0), 9).into());
    }
    Peer::new(5000).syn(&mut fx, 1);
    let qp = fx.end.create_qp(2, qp_init(16, 16));
    let engine = fx.end.shard_mut(2);
    let refused = engine.connect(fx.now, qp, (address(0), 10).into(), &ConnParam::default());
    assert_eq!(refused, Err(CmError::TooManyConnections));
    assert!(Peer::new(5001).send_syn(&mut fx, 3).is_empty());
    assert_eq!(fx.end.owned_count(), Some(5));
}

#[test]
fn time_wait_of_another_shard_makes_room() {
    let mut fx = ShardsFixture::with(COUNT, |_, options| options.connections_max = 2);
    for port in 5000..5002 {
        Peer::in_time_wait(&mut fx, port, 1, 1);
    }
    // The peer repeats its SYN.
    let mut peer = Peer::new(6000);
    assert!(peer.send_syn(&mut fx, 2).is_empty());
    peer.syn(&mut fx, 2);
    assert_eq!(fx.connection_counts(), [0, 1, 1, 0]);
    let qp = fx.end.create_qp(3, qp_init(16, 16));
    let remote = (address(0), 9).into();
    let connect = |fx: &mut ShardsFixture| {
        let engine = fx.end.shard_mut(3);
        engine.connect(fx.now, qp, remote, &ConnParam::default())
    };
    assert_eq!(connect(&mut fx), Err(CmError::TooManyConnections));
    fx.process();
    assert_eq!(connect(&mut fx), Ok(()));
    assert_eq!(fx.connection_counts(), [0, 0, 1, 1]);
    assert_eq!(fx.end.shard(1).counters().time_waits_recycled, 2);
}

/// Neither half-open connections nor requests of a dead shard count any longer.
#[test]
fn dead_shard_leaves_the_backlog() {
    let mut fx = ShardsFixture::new(|config| config.half_open_max = 4);
    for shard in 0..COUNT {
        fx.end.shard_mut(shard).unlisten(PORT);
    }
    fx.end.listen(PORT, 2);
    for port in 5000..5002 {
        let mut peer = Peer::new(port);
        peer.syn(&mut fx, 1);
        peer.send(&mut fx, 1, Flags::default(), &mpa_request());
        fx.connect_request();
    }
    assert!(Peer::new(5002).send_syn(&mut fx, 2).is_empty(), "the backlog is full");
    fx.end.kill_shard(1);
    let mut peer = Peer::new(5002);
    peer.connect(&mut fx, 2, 3);
    flood(&mut fx, 3);
    assert_eq!(fx.end.shard(3).usage().half_open, 0);
}

#[test]
fn half_open_connections_of_a_dead_shard_do_not_count() {
    let mut fx = ShardsFixture::new(|config| config.half_open_max = 4);
    for port in 5000..5004 {
        Peer::new(port).syn(&mut fx, 1);
    }
    Peer::new(6000).syn(&mut fx, 2);
    assert_eq!(fx.end.count(|of| of.cookies_sent), 1);
    fx.end.kill_shard(1);
    Peer::new(6001).syn(&mut fx, 2);
    assert_eq!(fx.end.count(|of| of.cookies_sent), 1);
    assert_eq!(fx.end.shard(2).usage().half_open, 1);
}

/// A shard that stops to listen frees the slots of the requests that it resets.
#[test]
fn unlisten_of_one_shard_frees_its_slots() {
    let mut fx = ShardsFixture::new(|_| {});
    for shard in 0..COUNT {
        fx.end.shard_mut(shard).unlisten(PORT);
    }
    fx.end.listen(PORT, 1);
    let mut peer = Peer::new(5000);
    peer.syn(&mut fx, 1);
    peer.send(&mut fx, 1, Flags::default(), &mpa_request());
    fx.connect_request();
    assert!(Peer::new(5001).send_syn(&mut fx, 2).is_empty(), "the backlog is full");
    fx.end.shard_mut(1).unlisten(PORT);
    fx.process();
    Peer::new(5001).connect(&mut fx, 2, 3);
}

/// A shard that stops to listen frees many slots at once. The requests that wait in another are
/// offered in several passes.
#[test]
fn requests_for_freed_slots_are_offered_over_several_passes() {
    const BACKLOG: u16 = 300;
    const PASS_MAX: usize = 64;
    let mut fx = ShardsFixture::with(2, |_, _| {});
    for shard in 0..2 {
        fx.end.shard_mut(shard).unlisten(PORT);
    }
    fx.end.listen(PORT, usize::from(BACKLOG));
    let mut waiting: Vec<_> = (0..BACKLOG).map(|at| Peer::new(6000 + at)).collect();
    for peer in &mut waiting {
        peer.syn(&mut fx, 1);
        peer.send(&mut fx, 1, Flags::default(), &[]);
    }
    for at in 0..BACKLOG {
        let mut peer = Peer::new(5000 + at);
        peer.syn(&mut fx, 0);
        peer.send(&mut fx, 0, Flags::default(), &mpa_request());
        assert_eq!(fx.connect_request().0, 0);
    }
    for peer in &mut waiting {
        peer.send(&mut fx, 1, Flags::default(), &mpa_request());
    }
    assert!(fx.end.next_event().is_none(), "the backlog is full");
    fx.end.shard_mut(0).unlisten(PORT);
    while fx.end.shard_mut(0).drive(fx.now) {}
    let (mut offered, mut passes, mut polls) = (0, 0, LongestPoll::default());
    while offered < usize::from(BACKLOG) {
        let before = offered;
        polls.time(|| fx.end.shard_mut(1).drive(fx.now));
        offered += std::iter::from_fn(|| fx.end.shard_mut(1).next_event()).count();
        assert!((1..=PASS_MAX).contains(&(offered - before)), "{}", offered - before);
        let has_more = fx.end.shard(1).deadline().is_some_and(|at| at <= fx.now);
        assert!(has_more || offered == usize::from(BACKLOG));
        passes += 1;
    }
    assert_eq!(passes, usize::from(BACKLOG).div_ceil(PASS_MAX));
    polls.assert_below("requests for freed slots", Duration::from_millis(50));
}
