//! Active opens on a port whose steering is unknown: the shard tries source ports until a SYN-ACK
//! arrives at its own queue.

use std::net::SocketAddr;

use ferrowarp_proto::engine::EngineConfig;
use ferrowarp_proto::steering::mesh::source_ports_max;
use ferrowarp_proto::time::{MILLISECOND, SECOND};
use ferrowarp_proto::verbs::cm::{ConnEvent, ConnectError};
use ferrowarp_proto::verbs::qp::QpState;
use ferrowarp_proto::verbs::wc::QpId;
use ferrowarp_proto::wire::tcp::{Flags, Segment};
use ferrowarp_tests::ip;
use ferrowarp_tests::manual_tcp_peer::MACS;
use ferrowarp_tests::raw::mpa_reply;
use ferrowarp_tests::sim::sim_port::ShardOptions;
use ferrowarp_tests::sim::world::address;

use super::{COUNT, Peer, ShardsFixture};

/// Port of the peer.
const REMOTE: u16 = 9;
/// Shard that connects, and one that its replies may arrive at instead.
const OWN: usize = 1;
const OTHER: usize = 3;

/// A shard that has sent a SYN, and the peer that it was sent to.
struct Open {
    fx: ShardsFixture,
    qp: QpId,
    peer: Peer,
}

impl Open {
    fn new() -> Self {
        Self::with(|_, _| {})
    }

    fn with(change: impl FnOnce(&mut EngineConfig, &mut ShardOptions)) -> Self {
        let mut fx = ShardsFixture::with(COUNT, change);
        let qp = fx.connect(OWN, SocketAddr::new(address(0), REMOTE));
        let sent = fx.process();
        let (_, request) = sent.iter().find(|(_, frame)| frame[12..14] == [8, 6]).unwrap();
        fx.inject(0, ip::arp_reply(request, MACS[0]).unwrap());
        let syn = fx.segments().remove(0);
        Self { fx, qp, peer: answering(&syn) }
    }

    /// Answers the SYN, by the queue of a shard; returns what the host sends.
    fn answer(&mut self, shard: usize) -> Vec<Segment> {
        self.fx.inject(shard, self.peer.frame(Flags::SYN | Flags::ACK, &[]));
        self.fx.segments()
    }

    /// As [`Open::answer`], by another shard, from which the host tries another port.
    fn answer_elsewhere(&mut self) {
        let sent = self.answer(OTHER);
        let [rst, syn] = &*sent else { panic!("{sent:?}") };
        assert_eq!((rst.flags, rst.seq), (Flags::RST, self.peer.tcp.rcv_nxt));
        assert_eq!(rst.tuple, self.peer.tcp.tuple);
        assert_eq!((syn.flags, syn.tuple.local), (Flags::SYN, rst.tuple.local));
        assert_ne!(syn.tuple.remote, rst.tuple.remote, "another port");
        self.peer = answering(syn);
    }

    /// Answers the SYN, by the queue of a shard. The host stays with the port, and completes the
    /// exchange whatever the shard.
    fn establish(&mut self, shard: usize) {
        let sent = self.answer(shard);
        assert!(sent.iter().all(|segment| segment.flags.has(Flags::ACK)), "{sent:?}");
        assert!(sent.iter().all(|segment| segment.tuple == self.peer.tcp.tuple), "{sent:?}");
        self.peer.tcp.snd_nxt += 1;
        self.peer.tcp.rcv_nxt = sent.last().map(|last| last.seq + last.seq_len()).unwrap();
        assert!(sent.iter().any(|segment| segment.seq_len() > 0), "the MPA request");
        assert!(self.fx.end.next_event().is_none());
        self.peer.send(&mut self.fx, shard, Flags::PSH, &mpa_reply());
        match self.fx.end.next_event() {
            Some((OWN, ConnEvent::Established { qp, info })) => {
                assert_eq!((qp, info.local), (self.qp, self.peer.tcp.tuple.remote));
            }
            other => panic!("{other:?}"),
        }
    }

    fn abandoned(&self) -> u64 {
        self.fx.end.count(|of| of.source_ports_abandoned)
    }

    fn assert_failed(&mut self, with: ConnectError) {
        match self.fx.end.next_event() {
            Some((OWN, ConnEvent::ConnectFailed { qp, error, .. })) => {
                assert_eq!((qp, error), (self.qp, with));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(self.fx.end.shard(OWN).qp_state(self.qp), QpState::Error);
        assert!(self.fx.end.next_event().is_none());
        assert_eq!((self.fx.end.connection_count(), self.fx.end.owned_count()), (0, Some(0)));
    }
}

/// The peer that answers a SYN.
fn answering(syn: &Segment) -> Peer {
    assert_eq!(syn.flags, Flags::SYN);
    let mut peer = Peer::at(address(0), REMOTE, syn.tuple.remote.port());
    peer.tcp.rcv_nxt = syn.seq + 1;
    peer.ts.1 = syn.options.ts.map_or(0, |(val, _)| val);
    peer
}

#[test]
fn ports_are_tried_until_the_syn_ack_arrives_at_the_own_shard() {
    let mut open = Open::new();
    for tried in 0..5 {
        assert_eq!(open.abandoned(), tried);
        // The application sees nothing, and the four-tuple before is free.
        assert!(open.fx.end.next_event().is_none());
        assert_eq!(open.fx.end.shard(OWN).qp_state(open.qp), QpState::Connecting);
        assert_eq!(
            (open.fx.connection_counts(), open.fx.end.owned_count()),
            (vec![0, 1, 0, 0], Some(1))
        );
        open.answer_elsewhere();
    }
    open.establish(OWN);
    assert_eq!((open.abandoned(), open.fx.end.count(|of| of.frames_forwarded)), (5, 5));
}

#[test]
fn last_port_is_kept_and_its_connection_lives_on_the_mesh() {
    let mut open = Open::new();
    for _ in 1..source_ports_max(COUNT) {
        open.answer_elsewhere();
    }
    open.establish(OTHER);
    assert_eq!(open.abandoned(), 4 * COUNT as u64 - 1);
}

#[test]
fn port_is_kept_if_there_is_no_other() {
    let one_port = |config: &mut EngineConfig, _: &mut ShardOptions| {
        config.source_ports = 50_000..=50_000;
    };
    let one_connection =
        |_: &mut EngineConfig, options: &mut ShardOptions| options.connections_max = 1;
    for mut open in [Open::with(one_port), Open::with(one_connection)] {
        open.establish(OTHER);
        assert_eq!((open.abandoned(), open.fx.end.owned_count()), (0, Some(1)));
    }
}

/// An RST that is lost is sent again when the peer repeats its SYN-ACK.
#[test]
fn repeated_syn_ack_to_a_port_given_up_is_answered_with_rst() {
    let mut open = Open::new();
    let first = open.peer.frame(Flags::SYN | Flags::ACK, &[]);
    open.answer_elsewhere();
    for shard in [OTHER, OWN] {
        open.fx.advance(SECOND / 2);
        open.fx.inject(shard, first.clone());
        let sent = open.fx.segments();
        assert_eq!(sent.iter().map(|segment| segment.flags).collect::<Vec<_>>(), [Flags::RST]);
    }
    open.establish(OWN);
    assert_eq!(open.abandoned(), 1);
}

/// Two copies in one burst: the second finds the connection gone from that port.
#[test]
fn duplicate_syn_ack_gives_up_one_port() {
    let mut open = Open::new();
    let frame = open.peer.frame(Flags::SYN | Flags::ACK, &[]);
    open.fx.inject(OTHER, frame.clone());
    open.fx.inject(OTHER, frame);
    let sent = open.fx.segments();
    let syns: Vec<_> = sent.iter().filter(|segment| segment.flags == Flags::SYN).collect();
    assert_eq!((syns.len(), open.abandoned()), (1, 1), "{sent:?}");
    assert!(sent.iter().all(|segment| segment.flags != Flags::ACK), "{sent:?}");
    open.peer = answering(syns[0]);
    open.establish(OWN);
}

#[test]
fn syn_ack_for_another_sequence_number_gives_up_no_port() {
    let mut open = Open::new();
    let iss = open.peer.tcp.rcv_nxt;
    open.peer.tcp.rcv_nxt = iss + 7;
    let sent = open.answer(OTHER);
    assert_eq!((sent.len(), sent[0].flags, sent[0].seq), (1, Flags::RST, iss + 7), "{sent:?}");
    assert_eq!((open.abandoned(), open.fx.end.owned_count()), (0, Some(1)));
    open.peer.tcp.rcv_nxt = iss;
    open.establish(OWN);
}

#[test]
fn refusal_at_another_shard_fails_the_open() {
    let mut open = Open::new();
    open.answer_elsewhere();
    open.fx.inject(OTHER, open.peer.frame(Flags::RST | Flags::ACK, &[]));
    assert!(open.fx.segments().is_empty());
    open.assert_failed(ConnectError::Refused);
    assert_eq!(open.abandoned(), 1);
}

#[test]
fn simultaneous_open_at_another_shard_keeps_the_port() {
    let mut open = Open::new();
    let sent = open.peer.send_syn(&mut open.fx, OTHER);
    assert_eq!(
        sent.iter().map(|segment| segment.flags).collect::<Vec<_>>(),
        [Flags::SYN | Flags::ACK]
    );
    open.establish(OTHER);
    assert_eq!(open.abandoned(), 0);
}

#[test]
fn open_is_cancelled_between_two_ports() {
    let mut open = Open::new();
    open.answer_elsewhere();
    let engine = open.fx.end.shard_mut(OWN);
    engine.disconnect(open.fx.now, open.qp).unwrap();
    open.fx.process();
    open.assert_failed(ConnectError::Local);
    let sent = open.answer(OWN);
    assert_eq!(sent.iter().map(|segment| segment.flags).collect::<Vec<_>>(), [Flags::RST]);
}

/// Each port that answers late does not extend the time for all of them.
#[test]
fn all_ports_have_one_deadline() {
    let mut open = Open::with(|config, _| config.startup_timeout_ns = 2 * SECOND);
    for _ in 0..3 {
        open.fx.advance(600 * MILLISECOND);
        open.answer_elsewhere();
    }
    open.fx.advance(190 * MILLISECOND);
    assert!(open.fx.end.next_event().is_none());
    open.fx.advance(20 * MILLISECOND);
    open.assert_failed(ConnectError::TimedOut);
}

#[test]
fn lost_syn_is_retransmitted_from_the_port_in_use() {
    let mut open = Open::new();
    open.answer_elsewhere();
    let mut sent = Vec::new();
    while sent.is_empty() {
        open.fx.now = open.fx.now + 50 * MILLISECOND;
        sent = open.fx.segments();
    }
    assert_eq!((sent.len(), sent[0].tuple), (1, open.peer.tcp.tuple), "{sent:?}");
    open.peer = answering(&sent[0]);
    open.answer_elsewhere();
    open.establish(OWN);
}

#[test]
fn shard_that_opens_dies_between_two_ports() {
    let mut open = Open::new();
    open.answer_elsewhere();
    open.fx.end.kill_shard(OWN);
    assert_eq!(open.fx.end.owned_count(), Some(0));
    let sent = open.answer(OTHER);
    assert_eq!(sent.iter().map(|segment| segment.flags).collect::<Vec<_>>(), [Flags::RST]);
}
