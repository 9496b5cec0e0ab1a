//! Neighbor Unreachability Detection (RFC 4861 section 7.3) with connections that depend on it.

use super::*;

/// The peer's end of a connection that it initiated.
struct Peer {
    tcp: TcpPeer,
    /// An MPA startup frame, sent byte by byte.
    startup: Vec<u8>,
}

impl Peer {
    fn connect(fx: &mut NeighborFixture, v6: bool) -> Self {
        let tuple =
            FourTuple { local: (near(v6, 2), 5000).into(), remote: (ours(v6), PORT).into() };
        let options = Options { mss: Some(1440), sack_permitted: true, ..Options::default() };
        let mut tcp = fx.peer(tuple, PEER);
        fx.base.inject(tcp.build_frame(&tcp.fields(Flags::SYN, options), &[]));
        let sent = fx.sent();
        let (syn, to) = syn_of(&sent).expect("the SYN-ACK at once, though nobody was asked");
        assert_eq!((to, sent.len()), (PEER, 1));
        tcp.rcv_nxt = syn.seq + 1;
        tcp.snd_nxt += 1;
        fx.inject(&tcp, Flags::ACK);
        fx.sent();
        let frame = startup::build_request(
            Offer { ird: 1, ord: 1, crc: true, ..Offer::default() },
            1,
            [7; 500].into(),
        );
        let mut startup = vec![0; frame.wire_len()];
        frame.emit(&mut startup);
        startup.reverse();
        Self { tcp, startup }
    }

    /// Sends from another MAC address from now on.
    fn move_to(&mut self, fx: &NeighborFixture, mac: [u8; 6]) {
        let TcpPeer { tuple, snd_nxt, rcv_nxt, .. } = self.tcp;
        self.tcp = TcpPeer { snd_nxt, rcv_nxt, ..fx.peer(tuple, mac) };
    }

    /// Sends the next byte; returns what the engine sent in response.
    fn send_next(&mut self, fx: &mut NeighborFixture) -> Vec<Sent> {
        let byte = self.startup.pop().expect("enough bytes");
        let fields = self.tcp.fields(Flags::ACK, Options::default());
        fx.base.inject(self.tcp.build_frame(&fields, &[byte]));
        self.tcp.snd_nxt += 1;
        let mut sent = fx.sent();
        // Delayed ACK.
        fx.advance(MILLISECOND);
        sent.extend(fx.sent());
        sent
    }
}

/// Destination MAC addresses of the ACKs, the only segments of a live connection.
fn ack_macs(sent: &[Sent]) -> Vec<[u8; 6]> {
    let to = |sent: &Sent| match sent {
        Sent::Tcp(segment, to) if segment.flags == Flags::ACK => Some(*to),
        Sent::Tcp(segment, _) => panic!("unexpected {segment:?}"),
        _ => None,
    };
    sent.iter().filter_map(to).collect()
}

#[test]
fn connections_follow_a_changed_link_address() {
    for v6 in [false, true] {
        let mut fx = NeighborFixture::announced(|config| config.startup_timeout_ns = 1000 * SECOND);
        let mut peer = Peer::connect(&mut fx, v6);
        fx.advance(SECOND);
        // From here on the connection follows the cache; this ACK still goes to the cached address.
        let sent = peer.send_next(&mut fx);
        assert_eq!((ack_macs(&sent), solicited(&sent)), (vec![PEER], vec![near(v6, 2)]));
        fx.advertise(near(v6, 2), PEER, true);
        assert!(fx.sent().is_empty());
        // It announces a new MAC address.
        fx.advertise(near(v6, 2), MOVED, false);
        peer.move_to(&fx, MOVED);
        assert_eq!(ack_macs(&peer.send_next(&mut fx)), [MOVED]);
        assert_eq!(fx.base.engine.counters().neighbor_mac_changes, 1);
        // Forward progress confirms reachability for minutes, without a solicitation.
        for _ in 0..200 {
            fx.advance(SECOND);
            let sent = peer.send_next(&mut fx);
            assert_eq!((ack_macs(&sent), sent.len()), (vec![MOVED], 1), "{sent:?}");
        }
    }
}

#[test]
fn unsolicited_adverts_create_and_redirect_nothing() {
    for v6 in [false, true] {
        let mut fx = NeighborFixture::announced(|_| {});
        // Advertisements before any solicitation of ours.
        fx.advertise(near(v6, 2), MOVED, false);
        fx.advertise(near(v6, 2), MOVED, true);
        fx.sent();
        fx.connect(near(v6, 2));
        assert_eq!(solicited(&fx.sent()), [near(v6, 2)]);
        fx.advertise(near(v6, 2), PEER, true);
        assert_eq!(syn_of(&fx.sent()).map(|(_, to)| to), Some(PEER));
        // An advertisement of our own address by another MAC: counted and ignored.
        let conflicts = fx.base.engine.counters().address_conflicts;
        fx.advertise(ours(v6), MOVED, false);
        fx.sent();
        assert_eq!(fx.base.engine.counters().address_conflicts, conflicts + 1);
        // From a group address, or from our own MAC address.
        for mac in [[0xff; 6], [0x33, 0x33, 0, 0, 0, 1], MAC] {
            fx.advertise(near(v6, 2), mac, false);
        }
        fx.sent();
        fx.connect(near(v6, 2));
        assert_eq!(syn_of(&fx.sent()).map(|(_, to)| to), Some(PEER));
    }
}

#[test]
fn unreachable_neighbor_is_probed_and_connections_resume() {
    for v6 in [false, true] {
        let mut fx = NeighborFixture::announced(|config| config.startup_timeout_ns = 1000 * SECOND);
        let mut peer = Peer::connect(&mut fx, v6);
        fx.advance(SECOND);
        peer.send_next(&mut fx);
        fx.sent();
        fx.advertise(near(v6, 2), PEER, true);
        fx.sent();
        let (mut solicits, mut answers) = (Vec::new(), 0);
        for _ in 0..80 {
            fx.advance(SECOND);
            // Old data is acknowledged, but is no forward progress.
            let mut fields = peer.tcp.fields(Flags::ACK, Options::default());
            fields.seq = fields.seq - 1;
            fx.base.inject(peer.tcp.build_frame(&fields, &[0]));
            let sent = fx.sent();
            solicits.extend(sent.iter().filter_map(|sent| match sent {
                Sent::Solicit(_, to) => Some(*to),
                _ => None,
            }));
            answers += ack_macs(&sent).len();
        }
        assert_eq!(solicits[..3], [PEER; 3], "first where it was");
        assert!(solicits[3..8].iter().all(|to| to[0] & 1 == 1), "then everywhere");
        assert!((20..62).contains(&answers), "nothing goes to one that was given up: {answers}");
        // The neighbor is back at another MAC address: pending segments go there.
        fx.advertise(near(v6, 2), MOVED, true);
        let due = ack_macs(&fx.sent());
        assert!(!due.is_empty() && due.iter().all(|to| *to == MOVED), "{due:?}");
        fx.sent();
        peer.move_to(&fx, MOVED);
        assert_eq!(ack_macs(&peer.send_next(&mut fx)), [MOVED]);
    }
}
