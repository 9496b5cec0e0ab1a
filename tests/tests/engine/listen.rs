//! A listener under load: half-open connections, SYN cookies, backlog, TIME-WAIT.

mod addresses;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use ferrowarp_proto::engine::EngineConfig;
use ferrowarp_proto::time::{MICROSECOND, MILLISECOND, SECOND};
use ferrowarp_proto::verbs::cm::{ConnEvent, ConnParam, ReadDepths};
use ferrowarp_proto::wire::seq::Seq;
use ferrowarp_proto::wire::tcp::{Fields, Flags, FourTuple, Options, Segment};
use ferrowarp_tests::longest_poll::LongestPoll;
use ferrowarp_tests::manual_tcp_peer::TcpPeer;
use ferrowarp_tests::raw::{PORT, SegmentFixture, device, empty_write_fpdu, mpa_request};
use ferrowarp_tests::sim::pairs::qp_init;
use ferrowarp_tests::sim::world::{World, WorldOptions, address};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

fn new_fixture(change: impl FnOnce(&mut EngineConfig)) -> SegmentFixture {
    let mut config = EngineConfig::new(address(1), 24, 7);
    // The engine sends FIN right after a reject, and so closes first.
    config.siw_reject_fin_delay_ns = 0;
    change(&mut config);
    SegmentFixture::with_device(device(256), config)
}

/// SYNs from `count` spoofed addresses and ports.
fn flood(fx: &mut SegmentFixture, from: u32, count: u32) {
    for i in from..from + count {
        let source = Ipv4Addr::from_bits(0x0a00_0000 + i % 60_000);
        let port = 1024 + u16::try_from(i / 60_000).unwrap();
        let peer = Peer::at(source.into(), port, i);
        peer.send_segment(fx, &peer.tcp.fields(Flags::SYN, peer.syn_options()), &[]);
        if i % 64 == 63 {
            // 100,000 SYNs per second.
            fx.now = fx.now + 640 * MICROSECOND;
            fx.process();
            fx.take_sent();
        }
    }
    fx.process();
    fx.take_sent();
}

/// A peer with timestamps.
struct Peer {
    tcp: TcpPeer,
    /// Its timestamp clock, and TSecr.
    ts: (u32, u32),
}

impl Peer {
    fn at(source: IpAddr, port: u16, iss: u32) -> Self {
        Self::to((address(1), PORT).into(), source, port, iss)
    }

    fn to(remote: SocketAddr, source: IpAddr, port: u16, iss: u32) -> Self {
        let tuple = FourTuple { local: (source, port).into(), remote };
        let tcp = TcpPeer { rcv_wnd: 1000, ..TcpPeer::new(tuple, Seq(iss)) };
        Self { tcp, ts: (500, 0) }
    }

    fn well_behaved(port: u16) -> Self {
        Self::at(address(0), port, 0xffff_fff0)
    }

    fn syn_options(&self) -> Options {
        Options {
            mss: Some(1460),
            wscale: Some(7),
            sack_permitted: true,
            ts: Some((self.ts.0, 0)),
            ..Options::default()
        }
    }

    fn send_segment(&self, fx: &SegmentFixture, fields: &Fields, payload: &[u8]) {
        fx.inject(self.tcp.build_frame(fields, payload));
    }

    /// The segments that the engine has sent to this peer; those to others are lost.
    fn take_segments(&self, fx: &SegmentFixture) -> Vec<Segment> {
        let segments = fx.take_segments().into_iter().map(|(segment, _)| segment);
        segments.filter(|segment| segment.tuple.local == self.tcp.tuple.local).collect()
    }

    /// Sends a SYN and processes the SYN-ACK.
    fn syn(&mut self, fx: &mut SegmentFixture) -> Segment {
        self.send_segment(fx, &self.tcp.fields(Flags::SYN, self.syn_options()), &[]);
        fx.process();
        let answer = self.take_segments(fx).pop().expect("an answer");
        assert_eq!(answer.flags, Flags::SYN | Flags::ACK);
        assert_eq!(answer.ack, self.tcp.snd_nxt + 1);
        self.tcp.snd_nxt += 1;
        self.tcp.rcv_nxt = answer.seq + 1;
        self.ts.1 = answer.options.ts.map_or(0, |(val, _)| val);
        answer
    }

    /// Sends bytes in order with an ACK.
    fn send(&mut self, fx: &mut SegmentFixture, flags: Flags, payload: &[u8]) -> Vec<Segment> {
        self.ts.0 += 1;
        let options = Options::timestamps(Some(self.ts));
        self.send_segment(fx, &self.tcp.fields(Flags::ACK | flags, options), payload);
        self.tcp.snd_nxt +=
            u32::try_from(payload.len()).unwrap() + u32::from(flags.has(Flags::FIN));
        fx.process();
        let sent = self.take_segments(fx);
        for segment in &sent {
            self.tcp.rcv_nxt = self.tcp.rcv_nxt.max(segment.seq + segment.seq_len());
            self.ts.1 = segment.options.ts.map_or(self.ts.1, |(val, _)| val);
        }
        sent
    }

    /// Connects, sends the MPA request, and is accepted.
    fn connect(&mut self, fx: &mut SegmentFixture) -> Segment {
        let answer = self.syn(fx);
        self.start_mpa(fx);
        answer
    }

    fn start_mpa(&mut self, fx: &mut SegmentFixture) {
        self.send(fx, Flags::default(), &mpa_request());
        let request = fx.connect_request();
        let qp = fx.engine.create_qp(qp_init(16, 16)).unwrap();
        fx.engine.accept(fx.now, request, qp, &ConnParam::default()).unwrap();
        assert!(matches!(fx.engine.next_event(), Some(ConnEvent::Established { .. })));
    }

    /// The negotiated options are in effect: window scale, SACK, timestamps.
    fn check_negotiated_options(&mut self, fx: &mut SegmentFixture, answer: &Segment) {
        fx.process();
        let opened = self.take_segments(fx);
        let shift = answer.options.wscale.expect("the engine scales");
        let window = opened.iter().map(|segment| u32::from(segment.window) << shift).max();
        assert!(window.unwrap() >= 256 * 1024, "{window:?}");
        self.tcp.rcv_nxt =
            opened.iter().fold(self.tcp.rcv_nxt, |ack, s| ack.max(s.seq + s.seq_len()));
        let early = Fields {
            seq: self.tcp.snd_nxt + 1000,
            ..self.tcp.fields(Flags::ACK, Options::timestamps(Some(self.ts)))
        };
        self.send_segment(fx, &early, &[7; 100]);
        fx.process();
        let report = self.take_segments(fx).pop().expect("a report");
        assert_eq!(report.options.sack[..], [(early.seq, early.seq + 100)]);
        assert!(report.options.ts.is_some());
    }
}

fn under_pressure() -> SegmentFixture {
    let mut fx = new_fixture(|config| {
        config.half_open_per_listener_max = 8;
        config.startup_timeout_ns = 2 * SECOND;
    });
    flood(&mut fx, 0, 100);
    assert!(fx.engine.counters().cookies_sent > 0);
    fx
}

#[test]
fn syn_flood_is_bounded_and_cookies_keep_all_options() {
    let mut fx = new_fixture(|_| {});
    let mut most = 0;
    for part in 0..10 {
        flood(&mut fx, part * 10_000, 10_000);
        most = most.max(fx.engine.connection_count());
    }
    let counters = *fx.engine.counters();
    assert_eq!(most, 512, "half open, per listener");
    // The TX queue was full at times.
    let answered = counters.cookies_sent + counters.cookies_rate_limited;
    assert!((98_000..=100_000 - 512).contains(&answered), "{answered}");
    assert!(counters.cookies_sent > 49_000, "half of the limit at least");
    fx.advance(100 * MILLISECOND);
    let mut peer = Peer::well_behaved(5000);
    let answer = peer.connect(&mut fx);
    assert_eq!(fx.engine.counters().cookies_accepted, 1);
    let options = &answer.options;
    assert_eq!((options.mss, options.sack_permitted), (Some(1460), true));
    peer.check_negotiated_options(&mut fx, &answer);
    // Half-open connections have timed out.
    fx.advance(60 * SECOND);
    assert!(fx.engine.connection_count() <= 1);
}

#[test]
fn connect_succeeds_during_a_syn_flood() {
    connect_during_a_syn_flood(false);
    connect_during_a_syn_flood(true);
}

fn connect_during_a_syn_flood(ipv6: bool) {
    let mut world = World::new(&WorldOptions { ipv6, ..WorldOptions::new(9) });
    world.polls = Some(LongestPoll::default());
    world.ends[1].engine.listen(PORT, 8).unwrap();
    let mut flood = 0;
    let mut next = world.now;
    // 50,000 SYNs per second, half the rate of cookies.
    let mut send_flood = |world: &World| {
        if world.now < next {
            return;
        }
        next = world.now + MILLISECOND;
        let inbound = &world.ends[1].engine.device().inbound;
        for _ in 0..50 {
            flood += 1;
            let source = if ipv6 {
                Ipv6Addr::from_bits(0x2001_0002 << 96 | 1 << 64 | u128::from(flood)).into()
            } else {
                Ipv4Addr::from_bits(0x0a00_0000 + flood).into()
            };
            let peer = Peer::to(world.socket(1, PORT), source, 9, flood);
            let fields = peer.tcp.fields(Flags::SYN, peer.syn_options());
            inbound.borrow_mut().push_back(peer.tcp.build_frame(&fields, &[]));
        }
    };
    world.run_until(100 * MILLISECOND, |world| {
        send_flood(world);
        false
    });
    for round in 0..20 {
        let (now, remote) = (world.now, world.socket(1, PORT));
        let qp = world.ends[0].engine.create_qp(qp_init(16, 16)).unwrap();
        world.ends[0].engine.connect(now, qp, remote, &ConnParam::default()).unwrap();
        let mut asked = None;
        let found = world.run_until(10 * SECOND, |world| {
            send_flood(world);
            asked = world.ends[1].engine.next_event();
            asked.is_some()
        });
        assert!(found, "round {round}");
        let Some(ConnEvent::ConnectRequest { request, .. }) = asked else { panic!("{asked:?}") };
        let now = world.now;
        let passive = world.ends[1].engine.create_qp(qp_init(16, 16)).unwrap();
        world.ends[1].engine.accept(now, request, passive, &ConnParam::default()).unwrap();
        for end in 0..2 {
            let mut event = None;
            world.run_until(10 * SECOND, |world| {
                event = world.ends[end].engine.next_event();
                event.is_some()
            });
            assert!(matches!(event, Some(ConnEvent::Established { .. })), "{event:?}");
        }
    }
    assert_eq!(world.ends[1].engine.counters().cookies_accepted, 20);
}

#[test]
fn cookie_without_timestamps_keeps_only_the_mss() {
    let mut fx = under_pressure();
    let mut peer = Peer::well_behaved(5000);
    let options = Options { ts: None, ..peer.syn_options() };
    peer.send_segment(&fx, &peer.tcp.fields(Flags::SYN, options), &[]);
    fx.process();
    let answer = peer.take_segments(&fx).pop().unwrap();
    let options = &answer.options;
    assert_eq!((options.mss, options.wscale, options.sack_permitted), (Some(1460), None, false));
    peer.tcp.snd_nxt += 1;
    peer.tcp.rcv_nxt = answer.seq + 1;
    peer.send_segment(&fx, &peer.tcp.fields(Flags::ACK, Options::default()), &mpa_request());
    fx.process();
    fx.connect_request();
}

#[test]
fn forged_cookie_acks_are_reset() {
    let mut fx = under_pressure();
    let before = fx.engine.connection_count();
    let mut rng = SmallRng::seed_from_u64(3);
    let mut resets = 0;
    for round in 0..200 {
        for _ in 0..500 {
            let mut peer = Peer::at(Ipv4Addr::from_bits(rng.random()).into(), 7, rng.random());
            if peer.tcp.tuple.local.ip().is_multicast() || round % 2 == 0 {
                peer = Peer::at(address(0), 5000, rng.random());
            }
            peer.tcp.rcv_nxt = Seq(rng.random());
            let ts = rng.random::<bool>().then(|| (rng.random(), rng.random()));
            peer.send_segment(&fx, &peer.tcp.fields(Flags::ACK, Options::timestamps(ts)), &[1; 10]);
        }
        fx.process();
        for (segment, _) in fx.take_segments() {
            resets += u32::from(segment.flags.has(Flags::RST));
        }
    }
    let counters = fx.engine.counters();
    assert_eq!((counters.cookies_accepted, fx.engine.connection_count()), (0, before));
    assert!(counters.cookies_invalid > 90_000);
    assert!(resets > 0, "within their rate");
}

#[test]
fn expired_cookie_is_reset() {
    let mut fx = under_pressure();
    let mut peer = Peer::well_behaved(5000);
    peer.syn(&mut fx);
    // The listener still sends cookies; this one has expired.
    fx.advance(100 * SECOND);
    flood(&mut fx, 1000, 100);
    fx.advance(60 * SECOND);
    let sent = peer.send(&mut fx, Flags::default(), &mpa_request());
    assert_eq!((sent.len(), sent[0].flags, sent[0].seq), (1, Flags::RST, peer.tcp.rcv_nxt));
    assert_eq!(fx.engine.counters().cookies_accepted, 0);
}

#[test]
fn cookie_survives_the_timestamp_wrap() {
    let mut fx = under_pressure();
    let mut peer = Peer::well_behaved(5000);
    let clock = peer.syn(&mut fx).options.ts.unwrap().0;
    // To 30 ms before the timestamp clock of this four-tuple wraps.
    let to_wrap = u64::from(u32::MAX - clock) * MICROSECOND;
    fx.advance(to_wrap - 30 * MILLISECOND);
    flood(&mut fx, 1000, 100);
    let mut peer = Peer::well_behaved(5000);
    let answer = peer.syn(&mut fx);
    assert!(answer.options.ts.unwrap().0 > 0xffff_0000, "{:?}", answer.options.ts);
    fx.advance(100 * MILLISECOND);
    peer.start_mpa(&mut fx);
    assert_eq!(fx.engine.counters().cookies_accepted, 1);
    peer.check_negotiated_options(&mut fx, &answer);
    let sent = peer.send(&mut fx, Flags::default(), &[0; 10]);
    assert!(sent.iter().all(|segment| segment.options.ts.unwrap().0 < 0x10_0000));
}

#[test]
fn earlier_cookie_completes_a_half_open_connection() {
    let mut fx = under_pressure();
    let mut peer = Peer::well_behaved(5000);
    let first = peer.syn(&mut fx);
    // The flood's half-open connections time out; a new SYN creates a half-open connection.
    fx.advance(5 * SECOND);
    peer.tcp.snd_nxt = peer.tcp.snd_nxt - 1;
    let second = peer.syn(&mut fx);
    assert_ne!(first.seq, second.seq);
    assert_eq!(fx.engine.counters().cookies_accepted, 0);
    peer.tcp.rcv_nxt = first.seq + 1;
    peer.ts.1 = first.options.ts.unwrap().0;
    peer.start_mpa(&mut fx);
    assert_eq!(fx.engine.counters().cookies_accepted, 1);
    assert_eq!(fx.engine.connection_count(), 1);
}

#[test]
fn cookies_are_rate_limited() {
    let mut fx = new_fixture(|config| {
        config.half_open_per_listener_max = 0;
        config.cookies_per_second = 100;
    });
    for second in 0..10 {
        flood(&mut fx, second * 1000, 1000);
        let now = fx.now;
        fx.advance((SECOND * u64::from(second + 1)).saturating_sub(now.as_nanos()));
    }
    let counters = fx.engine.counters();
    assert!((10..=1000).contains(&counters.cookies_sent), "{}", counters.cookies_sent);
    assert_eq!(counters.cookies_sent + counters.cookies_rate_limited, 10_000);
    assert_eq!(fx.engine.connection_count(), 0);
}

#[test]
fn half_open_connections_are_bounded_globally_and_expire() {
    let mut fx = new_fixture(|config| config.half_open_max = 20);
    fx.engine.listen(PORT + 1, 64).unwrap();
    flood(&mut fx, 0, 100);
    assert_eq!(fx.engine.connection_count(), 20);
    fx.advance(30 * SECOND);
    assert_eq!(fx.engine.connection_count(), 0);
    // There is space again.
    let sent = fx.engine.counters().cookies_sent;
    Peer::well_behaved(5000).connect(&mut fx);
    assert_eq!(fx.engine.counters().cookies_sent, sent);
}

#[test]
fn full_backlog_defers_the_handshake() {
    let mut fx = new_fixture(|_| {});
    fx.engine.unlisten(PORT);
    fx.engine.listen(PORT, 1).unwrap();
    let mut peers = [5000, 5001].map(Peer::well_behaved);
    // Both are half-open before either completes.
    for peer in &mut peers {
        peer.syn(&mut fx);
    }
    for peer in &mut peers {
        peer.send(&mut fx, Flags::default(), &mpa_request());
    }
    let first = fx.connect_request();
    assert!(fx.engine.next_event().is_none());
    assert_eq!(fx.engine.counters().backlog_overflows, 1);
    let third = Peer::well_behaved(5002);
    third.send_segment(&fx, &third.tcp.fields(Flags::SYN, third.syn_options()), &[]);
    fx.process();
    assert!(third.take_segments(&fx).is_empty(), "nor are new ones begun");
    // Another listener has a backlog of its own.
    fx.engine.listen(PORT + 1, 1).unwrap();
    Peer::to((address(1), PORT + 1).into(), address(0), 5003, 1).connect(&mut fx);
    // Once there is space, the peer's retransmission completes the handshake.
    fx.engine.reject(fx.now, first, ReadDepths::default(), b"").unwrap();
    peers[1].tcp.snd_nxt = peers[1].tcp.snd_nxt - u32::try_from(mpa_request().len()).unwrap();
    peers[1].send(&mut fx, Flags::default(), &mpa_request());
    fx.connect_request();
}

#[test]
fn stray_rsts_do_not_consume_the_rst_limit() {
    let mut fx = new_fixture(|_| {});
    let stray = Peer::to((address(1), PORT + 1).into(), address(0), 5000, 1);
    for _ in 0..50 {
        for _ in 0..64 {
            stray.send_segment(
                &fx,
                &stray.tcp.fields(Flags::RST | Flags::ACK, Options::default()),
                &[],
            );
        }
        fx.drive();
        fx.drive();
    }
    assert!(stray.take_segments(&fx).is_empty(), "a RST is not answered");
    stray.send_segment(&fx, &stray.tcp.fields(Flags::ACK, Options::default()), &[]);
    fx.drive();
    let sent = stray.take_segments(&fx);
    assert_eq!((sent.len(), sent[0].flags), (1, Flags::RST), "within the same tenth of a second");
}

#[test]
fn listener_drops_invalid_flag_combinations() {
    let mut fx = new_fixture(|_| {});
    let peer = Peer::well_behaved(5000);
    for (flags, answers) in [
        (Flags::default(), 0),
        (Flags::FIN, 0),
        (Flags::PSH | Flags::URG, 0),
        (Flags::RST, 0),
        (Flags::RST | Flags::ACK, 0),
        (Flags::RST | Flags::SYN, 0),
        (Flags::ACK, 1),
        (Flags::SYN | Flags::ACK, 1),
        (Flags::FIN | Flags::ACK, 1),
    ] {
        peer.send_segment(&fx, &peer.tcp.fields(flags, Options::default()), &[]);
        fx.process();
        let sent = peer.take_segments(&fx);
        assert_eq!(sent.len(), answers, "{flags:?}");
        assert!(sent.iter().all(|segment| segment.flags == Flags::RST));
    }
    assert_eq!(fx.engine.connection_count(), 0);
}

/// Brings the engine's end of a connection to TIME-WAIT: it rejects, and closes first.
fn to_time_wait(fx: &mut SegmentFixture, port: u16) -> Peer {
    let mut peer = Peer::well_behaved(port);
    peer.syn(fx);
    peer.send(fx, Flags::default(), &mpa_request());
    let request = fx.connect_request();
    fx.engine.reject(fx.now, request, ReadDepths::default(), b"").unwrap();
    fx.process();
    let last = peer.take_segments(fx).pop().unwrap();
    assert!(last.flags.has(Flags::FIN));
    peer.tcp.rcv_nxt = last.seq + last.seq_len();
    peer.send(fx, Flags::FIN, &[]);
    peer
}

#[test]
fn time_wait_is_bounded_and_evicts_the_oldest() {
    let mut fx = new_fixture(|config| config.time_wait_max = 4);
    for port in 0..20 {
        to_time_wait(&mut fx, 5000 + port);
        assert_eq!(fx.engine.connection_count(), usize::from(port + 1).min(4));
    }
    assert_eq!(fx.engine.counters().time_waits_recycled, 16);
    // The oldest was evicted: the youngest still acknowledges its peer's FIN.
    let mut young = Peer::well_behaved(5019);
    young.tcp.snd_nxt += u32::try_from(mpa_request().len()).unwrap() + 1;
    fx.advance(2 * SECOND);
    assert_eq!(fx.engine.connection_count(), 0);
    to_time_wait(&mut fx, 5000);
    assert_eq!(fx.engine.counters().time_waits_recycled, 16, "what ended by itself is not counted");
}

#[test]
fn full_connection_table_recycles_time_wait() {
    let mut fx = new_fixture(|config| config.connections_max = 4);
    for port in 0..4 {
        to_time_wait(&mut fx, 5000 + port);
    }
    let mut running = [6000, 6001, 6002, 6003].map(Peer::well_behaved);
    for peer in &mut running {
        peer.connect(&mut fx);
    }
    assert_eq!(fx.engine.connection_count(), 4);
    let peer = Peer::well_behaved(7000);
    peer.send_segment(&fx, &peer.tcp.fields(Flags::SYN, peer.syn_options()), &[]);
    fx.process();
    assert!(peer.take_segments(&fx).is_empty());
    // Those that run are not ended for it.
    for peer in &mut running {
        peer.send(&mut fx, Flags::default(), &empty_write_fpdu());
    }
    fx.advance(SECOND);
    assert_eq!((fx.engine.connection_count(), fx.engine.counters().fpdus_in), (4, 4));
}

/// A peer is rejected and never closes; so are others, until the table is full. Each new connection
/// removes one of them.
#[test]
fn rejected_connections_make_room_in_a_full_table() {
    for delay_ns in [0, 100 * MILLISECOND] {
        let mut fx = new_fixture(|config| {
            config.connections_max = 8;
            config.siw_reject_fin_delay_ns = delay_ns;
        });
        let mut polls = LongestPoll::default();
        let mut first = Peer::well_behaved(4000);
        first.connect(&mut fx);
        for port in 5000..5020 {
            let mut peer = Peer::well_behaved(port);
            polls.time(|| peer.syn(&mut fx));
            peer.send(&mut fx, Flags::default(), &mpa_request());
            let request = fx.connect_request();
            fx.engine.reject(fx.now, request, ReadDepths::default(), b"").unwrap();
            fx.process();
        }
        assert_eq!(fx.engine.connection_count(), 8);
        assert_eq!(fx.engine.counters().lingering_evicted, 13);
        Peer::well_behaved(6000).connect(&mut fx);
        let answer = first.send(&mut fx, Flags::FIN, &[]);
        assert!(!answer.is_empty() && !answer[0].flags.has(Flags::RST), "the first is still there");
        polls.assert_below("a full table", Duration::from_millis(50));
    }
}

/// SYNs from forged sources, each followed by a RST that frees its place.
#[test]
fn syn_acks_to_sources_that_reset_are_limited() {
    const COOKIES_PER_SECOND: u32 = 2000;
    let mut fx = new_fixture(|config| config.cookies_per_second = COOKIES_PER_SECOND);
    let mut replies = 0;
    let mut polls = LongestPoll::default();
    for at in 0..20_000 {
        let source = Ipv4Addr::from_bits(0x0a00_0000 + at);
        let mut peer = Peer::at(source.into(), 1024, at);
        peer.send_segment(&fx, &peer.tcp.fields(Flags::SYN, peer.syn_options()), &[]);
        polls.time(|| fx.process());
        replies += peer.take_segments(&fx).len();
        peer.tcp.snd_nxt += 1;
        peer.send_segment(&fx, &peer.tcp.fields(Flags::RST, Options::default()), &[]);
        polls.time(|| fx.process());
        if at % 20 == 0 {
            fx.now = fx.now + MILLISECOND;
        }
    }
    // A second: the cookies, and what is admitted before in each tenth of it.
    assert!(replies <= 2000 + 10 * 160, "{replies}");
    // A client sends its SYN again if it is not answered.
    let mut peer = Peer::well_behaved(5000);
    fx.now = fx.now + SECOND;
    peer.connect(&mut fx);
    polls.assert_below("SYNs and RSTs", Duration::from_millis(50));
}

#[test]
fn connection_out_of_time_wait_uses_higher_sequence_numbers() {
    let mut fx = new_fixture(|_| {});
    let old = to_time_wait(&mut fx, 5000);
    let mut new = Peer::well_behaved(5000);
    new.tcp.snd_nxt = old.tcp.snd_nxt - 500;
    new.ts.0 = old.ts.0 + 1;
    let answer = new.syn(&mut fx);
    assert!(answer.seq > old.tcp.rcv_nxt, "{:?} {:?}", answer.seq, old.tcp.rcv_nxt);
    new.start_mpa(&mut fx);
    assert_eq!(fx.engine.connection_count(), 1);
}

#[test]
fn time_wait_is_recycled_only_with_a_listener() {
    let mut fx = new_fixture(|_| {});
    let old = to_time_wait(&mut fx, 5000);
    fx.engine.unlisten(PORT);
    let mut new = Peer::well_behaved(5000);
    new.tcp.snd_nxt = old.tcp.snd_nxt + 500;
    new.ts.0 = old.ts.0 + 1;
    new.send_segment(&fx, &new.tcp.fields(Flags::SYN, new.syn_options()), &[]);
    fx.process();
    let sent = new.take_segments(&fx);
    assert_eq!((sent.len(), sent[0].flags, sent[0].ack), (1, Flags::ACK, old.tcp.snd_nxt));
    assert_eq!(fx.engine.connection_count(), 1);
}

#[test]
fn time_wait_is_kept_while_the_backlog_is_full() {
    let mut fx = new_fixture(|_| {});
    fx.engine.unlisten(PORT);
    fx.engine.listen(PORT, 1).unwrap();
    let old = to_time_wait(&mut fx, 5000);
    // Fill the backlog.
    let mut other = Peer::well_behaved(6000);
    other.syn(&mut fx);
    other.send(&mut fx, Flags::default(), &mpa_request());
    let mut new = Peer::well_behaved(5000);
    new.tcp.snd_nxt = old.tcp.snd_nxt + 500;
    new.ts.0 = old.ts.0 + 1;
    new.send_segment(&fx, &new.tcp.fields(Flags::SYN, new.syn_options()), &[]);
    fx.process();
    assert!(new.take_segments(&fx).is_empty());
    assert_eq!(fx.engine.connection_count(), 2);
}

#[test]
fn unlisten_drops_half_open_connections() {
    let mut fx = new_fixture(|config| config.half_open_max = 4);
    for round in 0..3 {
        for port in 0..4 {
            Peer::well_behaved(5000 + 10 * round + port).syn(&mut fx);
        }
        assert_eq!(fx.engine.connection_count(), 4);
        fx.engine.unlisten(PORT);
        fx.process();
        assert_eq!(fx.engine.connection_count(), 0);
        fx.engine.listen(PORT, 64).unwrap();
    }
    assert_eq!(fx.engine.counters().cookies_sent, 0, "the counts came back to nothing");
}

/// A request that the application has taken does not depend on its listener, as with `rdma_cm`.
#[test]
fn taken_requests_outlive_their_listener() {
    for is_accepted in [true, false] {
        let mut fx = new_fixture(|config| config.connections_max = 3);
        let mut peers = [5000, 5001].map(Peer::well_behaved);
        for peer in &mut peers {
            peer.syn(&mut fx);
            peer.send(&mut fx, Flags::default(), &mpa_request());
        }
        let taken = fx.connect_request();
        fx.engine.unlisten(PORT);
        fx.process();
        let sent = peers[1].take_segments(&fx);
        assert!(sent.iter().any(|segment| segment.flags.has(Flags::RST)), "nobody has taken it");
        assert!(fx.engine.next_event().is_none());
        assert_eq!(fx.engine.connection_count(), 1);
        // The next listener does not count it, and a full table does not evict it.
        fx.engine.listen(PORT, 1).unwrap();
        for port in 5002..5008 {
            let mut peer = Peer::well_behaved(port);
            peer.syn(&mut fx);
            peer.send(&mut fx, Flags::default(), &mpa_request());
            let request = fx.connect_request();
            fx.engine.reject(fx.now, request, ReadDepths::default(), b"").unwrap();
        }
        assert!(fx.engine.is_request_pending(taken));
        if is_accepted {
            let qp = fx.engine.create_qp(qp_init(16, 16)).unwrap();
            fx.engine.accept(fx.now, taken, qp, &ConnParam::default()).unwrap();
            assert!(matches!(fx.engine.next_event(), Some(ConnEvent::Established { .. })));
        } else {
            fx.engine.reject(fx.now, taken, ReadDepths::default(), b"").unwrap();
        }
        assert!(!fx.engine.is_request_pending(taken));
        fx.process();
        assert!(!peers[0].take_segments(&fx).is_empty(), "the reply");
    }
}

#[test]
fn ephemeral_ports_are_unrelated_across_destinations() {
    let mut world = World::new(&WorldOptions::new(4));
    let mut ports = [0; 20];
    for (place, port) in ports.iter_mut().enumerate() {
        let service = PORT + u16::try_from(place).unwrap();
        world.ends[1].engine.listen(service, 8).unwrap();
        let (now, remote) = (world.now, world.socket(1, service));
        let qp = world.ends[0].engine.create_qp(qp_init(16, 16)).unwrap();
        world.ends[0].engine.connect(now, qp, remote, &ConnParam::default()).unwrap();
        let mut event = None;
        world.run_until(10 * SECOND, |world| {
            event = world.ends[1].engine.next_event();
            event.is_some()
        });
        let Some(ConnEvent::ConnectRequest { offer, .. }) = event else { panic!("{event:?}") };
        *port = offer.peer.port();
        assert!((49_152..65_535).contains(port));
    }
    let close = ports.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) < 100).count();
    assert!(close <= 2, "{ports:?}");
}
