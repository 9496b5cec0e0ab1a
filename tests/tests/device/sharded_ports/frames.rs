//! Packets over `tap` that a kernel's TCP does not send: pings, fragments and ICMP errors. Their
//! queue is not a connection's.

use ferrowarp::{Access, ConnectError, QpState};
use ferrowarp_proto::wire::tcp::{Flags, Options, Segment};
use ferrowarp_tests::peer::{Header, Role, fpdu};
use ferrowarp_tests::{ip, netns, test_name};

use super::station::{HOSTS, Station, address};
use super::*;
use crate::tap::ready;

const INTERFACE: &str = "fw0";
const PORT: u16 = 4791;

/// Runs `test` with two and with four shards.
fn with_shards(name: &str, test: impl Fn(&Stack, &mut Station)) {
    if !ready(name) {
        return;
    }
    for shards in [2, 4] {
        let stack = Stack::on_tap_with(INTERFACE, |config| config.shards = shards);
        test(&stack, &mut Station::new(INTERFACE));
        drop(stack);
        wait_until("the interface is gone", || netns::ip(&["link", "show", INTERFACE]).is_err());
    }
}

#[test]
fn pings_whole_and_in_fragments_are_answered_once() {
    with_shards(test_name!(), |stack, station| {
        let before = stack.context.counters().engine;
        station.ping(&pattern(1, 56), 1500);
        station.ping(&pattern(2, 1400), 576);
        let after = stack.context.counters().engine;
        let hosts = u64::from(HOSTS);
        assert_eq!(after.echo_replies_out - before.echo_replies_out, 2 * hosts);
        let reassembled = after.packets_reassembled - before.packets_reassembled;
        assert_eq!((reassembled, after.reassembly_failures), (hosts, 0), "{after:?}");
        // The packet decides their shard, not the queue.
        assert!(after.frames_from_shards > before.frames_from_shards, "{after:?}");
        assert_undisturbed(stack);
    });
}

/// The hosts never retransmit: each packet has to arrive.
#[test]
fn segments_in_fragments_and_errors_reach_their_shard() {
    const MTU: u32 = 1000;
    const FROM: u16 = 2000;
    with_shards(test_name!(), |stack, station| {
        let listener = stack.context.listen(PORT, 4).unwrap();
        let region = stack.alloc_mr(4096, Access::LOCAL_WRITE);
        for host in 0..16 {
            let mut tcp = station.open(host, FROM, PORT);
            let local = tcp.tuple.local;
            station.send_bytes(&mut tcp, &Startup::default().encode(Role::Initiator));
            let request = listener.accept_timeout(TIMEOUT).expect("a request in fragments");
            let qp = stack.create_qp();
            for wr_id in 0..4 {
                post_recv(&qp, wr_id, region.sge(0, 100));
            }
            request.accept(&qp, ConnParam::default()).unwrap();
            qp.wait_established(TIMEOUT).unwrap();
            let has_data = |segment: &Segment| !segment.payload.is_empty();
            let (reply, _) = station.segment(local, has_data);
            tcp.rcv_nxt = reply.seq + reply.seq_len();
            for msn in 1..=4 {
                let send = Header::send(msn, 0, true).encode(&pattern(u64::from(msn), 100));
                station.send_bytes(&mut tcp, &fpdu(&send, true));
                let wc = stack.expect_success();
                assert_eq!((wc.wr_id + 1, wc.byte_len), (u64::from(msn), 100));
                let mut found = vec![0; 100];
                region.read(0, &mut found);
                assert!(found == pattern(u64::from(msn), 100));
            }
            // The answer is longer than a link on the way allows, says a router.
            post_send_inline(&qp, 9, &pattern(9, 60));
            post_send(&qp, 10, region.sge(0, 1400));
            let is_long = |segment: &Segment| segment.payload.len() > 1000;
            let (_, frame) = station.segment(local, is_long);
            let router = address(HOSTS - 1 - host).octets();
            let before = stack.context.counters().engine.emss_changes;
            station.send(&ip::icmp_error_from(&router, 28, &frame, 14, (3, 4), MTU));
            wait_until("the path MTU is lowered", || {
                stack.context.counters().engine.emss_changes > before
            });
            let is_short = |segment: &Segment| (900..=960).contains(&segment.payload.len());
            station.segment(local, is_short);
            let rst = tcp.fields(Flags::RST, Options::default());
            station.send(&tcp.build_frame(&rst, &[]));
            wait_until("the connection is reset", || qp.state() == QpState::Error);
            assert_eq!(stack.completions(2).len(), 2, "both are flushed");
        }
        let counters = stack.context.counters().engine;
        assert_eq!((counters.segments_unmatched, counters.shard_messages_dropped), (0, 0));
    });
}

#[test]
fn icmp_errors_end_attempts_to_connect() {
    with_shards(test_name!(), |stack, station| {
        for host in 0..HOSTS {
            let remote = (address(host), 9).into();
            let qp = stack.create_qp();
            qp.connect(remote, ConnParam::default()).unwrap();
            let (_, frame) = station.segment(remote, |segment| segment.flags.has(Flags::SYN));
            // Port unreachable, from any host.
            let from = address(HOSTS - 1 - host).octets();
            station.send(&ip::icmp_error_from(&from, 28, &frame, 14, (3, 3), 0));
            assert_eq!(qp.wait_established(TIMEOUT), Err(ConnectError::Unreachable));
        }
        let counters = stack.context.counters().engine;
        assert_eq!(counters.icmp_errors_in, u64::from(HOSTS), "{counters:?}");
    });
}
