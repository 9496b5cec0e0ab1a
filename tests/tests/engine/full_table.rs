//! A full table of connections: which of them make room for others, and when.

use std::net::{IpAddr, Ipv4Addr};

use ferrowarp_proto::time::SECOND;
use ferrowarp_proto::verbs::cm::Abort;
use ferrowarp_proto::verbs::qp::QpState;
use ferrowarp_proto::verbs::wc::{QpId, WcStatus};
use ferrowarp_proto::wire::tcp::{Flags, Options};
use ferrowarp_tests::raw::{CQ, Peer, SegmentFixture, empty_write_fpdu};
use ferrowarp_tests::sim::pairs::send;

const MSS: u16 = 1460;

/// Puts SYNs from forged sources on the wire, and polls.
fn forge_syns(fx: &mut SegmentFixture) {
    for host in 1..=20 {
        let source: IpAddr = Ipv4Addr::new(198, 18, 7, host).into();
        let forged = Peer::at(source, 7000);
        let options = Options { mss: Some(MSS), ..Options::default() };
        fx.inject(forged.tcp.build_frame(&forged.tcp.fields(Flags::SYN, options), &[]));
    }
    fx.poll();
}

/// A table for two connections that is full. The second one may send.
fn full_table() -> (SegmentFixture, [(Peer, QpId); 2]) {
    let mut fx = SegmentFixture::new(|config| config.connections_max = 2);
    let ends = [5000, 5001].map(|port| {
        let mut peer = Peer::connect(&mut fx, port, MSS);
        let qp = peer.start_mpa(&mut fx);
        peer.send(&mut fx, &empty_write_fpdu());
        (peer, qp)
    });
    fx.take_sent();
    (fx, ends)
}

/// Lets the engine retransmit to a peer that acknowledges.
fn retransmit(fx: &mut SegmentFixture, peer: &mut Peer) {
    let end = fx.now + SECOND;
    while fx.now < end {
        fx.now = fx.engine.deadline().map_or(end, |at| at.clamp(fx.now, end));
        fx.poll();
        if peer.receive(fx) {
            peer.send_segment(fx, Flags::ACK, peer.tcp.snd_nxt, &[]);
        }
    }
}

#[test]
fn full_table_keeps_ended_connections_until_the_peer_has_all_data() {
    let ends: [fn(&mut SegmentFixture, QpId); 3] = [
        |fx, qp| fx.engine.disconnect(fx.now, qp).unwrap(),
        |fx, qp| fx.engine.destroy_qp(fx.now, qp),
        |fx, qp| fx.engine.terminate(fx.now, qp, Abort::Stream).unwrap(),
    ];
    for (at, end) in ends.into_iter().enumerate() {
        println!("end {at}");
        let (mut fx, [(_other, other_qp), (mut peer, qp)]) = full_table();
        fx.engine.post_send(qp, send(1, b"the last message", None)).unwrap();
        fx.poll();
        let done = fx.queues.poll(CQ).expect("it is TCP's now");
        assert_eq!((done.wr_id, done.status), (1, WcStatus::Success));
        // The message is lost on the way, and what follows is not sent yet.
        fx.take_sent();
        end(&mut fx, qp);
        for _ in 0..3 {
            forge_syns(&mut fx);
            // Nor is a peer admitted that exists.
            Peer::connect(&mut fx, 6000, MSS);
        }
        assert_eq!(fx.engine.connection_count(), 2);
        assert_eq!(fx.engine.counters().lingering_evicted, 0);
        retransmit(&mut fx, &mut peer);
        assert!(peer.received.windows(16).any(|bytes| bytes == b"the last message"));
        assert!(peer.fin_received && !peer.rst_received);
        // All that is left to wait for is the peer's FIN. A SYN alone does not end that.
        forge_syns(&mut fx);
        assert_eq!(fx.engine.counters().lingering_evicted, 0);
        fx.take_sent();
        while fx.engine.next_event().is_some() {}
        let mut late = Peer::connect(&mut fx, 6001, MSS);
        late.start_mpa(&mut fx);
        assert_eq!(fx.engine.counters().lingering_evicted, 1);
        assert_eq!(fx.engine.qp_state(other_qp), QpState::Rts);
    }
}
