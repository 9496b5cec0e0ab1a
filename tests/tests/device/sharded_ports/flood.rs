//! A flood of SYNs at a stack with two shards, over `tap`.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};

use ferrowarp::stats::EngineCounters;
use ferrowarp_proto::device::ChecksumMode;
use ferrowarp_proto::wire::seq::Seq;
use ferrowarp_proto::wire::tcp::{Fields, Flags, FourTuple, HeaderTemplate, Options};
use ferrowarp_tests::peer::Role;
use ferrowarp_tests::test_name;

use super::station::{HOSTS, Station};
use super::*;
use crate::attacks::host::Host;
use crate::attacks::server::{self, Running};
use crate::tap::ready;

const INTERFACE: &str = "fw0";
const PORT: u16 = server::PORT;
const SHARDS: usize = 2;
const HALF_OPEN_MAX: u16 = 8;
const CLIENTS: usize = 10;
/// Time within which a client is served, although SYNs may be lost, on a busy machine.
const SERVED_WITHIN: Duration = Duration::from_secs(10);

/// Returns the shard of which a counter is higher than before.
fn raised(
    stack: &Stack,
    before: &[EngineCounters],
    counter: impl Fn(&EngineCounters) -> u64,
) -> Option<usize> {
    let now = by_shard_counters(stack);
    (0..SHARDS).find(|&shard| counter(&now[shard]) > counter(&before[shard]))
}

fn by_shard_counters(stack: &Stack) -> Vec<EngineCounters> {
    (0..SHARDS).map(|shard| stack.context.shard(shard).unwrap().counters().engine).collect()
}

/// An ACK in fragments arrives at the shard of its packet, not of its four-tuple.
#[test]
fn cookies_of_one_shard_are_accepted_by_the_other() {
    if !ready(test_name!()) {
        return;
    }
    let stack = Stack::on_tap_with(INTERFACE, |config| {
        config.shards = SHARDS;
        config.limits.half_open_max = usize::from(HALF_OPEN_MAX);
    });
    let listener = stack.context.listen(PORT, 64).unwrap();
    let mut station = Station::new(INTERFACE);
    for port in 1..=HALF_OPEN_MAX {
        station.open(HOSTS - 1, port, PORT);
    }
    assert_eq!(stack.context.counters().engine.cookies_sent, 0);
    let mut pairs = [[0; SHARDS]; SHARDS];
    for host in 0..24 {
        let before = by_shard_counters(&stack);
        let mut tcp = station.open(host, 3000, PORT);
        let sent_by = raised(&stack, &before, |found| found.cookies_sent).expect("a cookie");
        station.send_bytes(&mut tcp, &Startup::default().encode(Role::Initiator));
        let request = listener.accept_timeout(TIMEOUT).expect("a request");
        let by = raised(&stack, &before, |found| found.cookies_accepted).expect("accepted");
        assert_eq!(request.shard(), by);
        pairs[sent_by][by] += 1;
        let qp = stack.create_qp();
        request.accept(&qp, ConnParam::default()).unwrap();
        qp.wait_established(TIMEOUT).unwrap();
        station.segment(tcp.tuple.local, |segment| !segment.payload.is_empty());
        let rst = tcp.fields(Flags::RST, Options::default());
        station.send(&tcp.build_frame(&rst, &[]));
    }
    println!("cookies by the shards that sent and accepted them: {pairs:?}");
    assert!(pairs[0][1] + pairs[1][0] > 0, "{pairs:?}");
    let counters = stack.context.counters().engine;
    assert_eq!((counters.cookies_invalid, counters.segments_unmatched), (0, 0), "{counters:?}");
}

/// The kernel remembers the queues of 4,096 flows, so that others live on the mesh meanwhile.
#[test]
fn peers_are_served_during_a_flood() {
    if !ready(test_name!()) {
        return;
    }
    let running = Running::new(INTERFACE, |config| {
        config.shards = SHARDS;
        config.limits.half_open_max = 64;
    });
    server::client().expect("served without a flood");
    let context = running.context.clone();
    let (pd, cq) = (context.alloc_pd(), context.create_cq(256).unwrap());
    let stack = Stack { context, pd, cq };
    let is_over = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let context = stack.context.clone();
        let flood = scope.spawn(move || {
            let received = move || context.counters().engine.frames_in;
            flood(&mut Host::new(INTERFACE, PORT, Box::new(received)), is_over)
        });
        let over = SetOnDrop(is_over);
        wait_until("cookies", || stack.context.counters().engine.cookies_sent > 5000);
        for client in 0..CLIENTS {
            let time = server::client().unwrap_or_else(|error| panic!("client {client}: {error}"));
            assert!(time < SERVED_WITHIN, "client {client}: {time:?}");
        }
        let before = stack.context.counters().engine.frames_forwarded;
        let mut links = connect_many(&stack, 5000, 4);
        exchange(&stack, &mut links, 1);
        let counters = stack.context.counters().engine;
        println!("{} frames forwarded", counters.frames_forwarded - before);
        close_all(links);
        drop(over);
        println!("{} SYNs; {counters:?}", flood.join().unwrap());
        assert!(counters.cookies_accepted > 0 && counters.connections_failed == 0, "{counters:?}");
    });
    assert_none_reset();
}

/// Sends SYNs from hosts that do not exist, until it is over; returns their number.
fn flood(host: &mut Host, is_over: &AtomicBool) -> u32 {
    let macs = host.macs();
    let mut count = 0_u32;
    while !is_over.load(Ordering::Relaxed) {
        for _ in 0..16 {
            let [.., high, low] = count.to_be_bytes();
            let from = Ipv4Addr::new(198, 18, 7, 100 + low % 128);
            let port = u16::from_be_bytes([high, low]) | 1024;
            let tuple = FourTuple { local: (from, port).into(), remote: (STACK, PORT).into() };
            let options = Options { mss: Some(1460), ..Options::default() };
            let fields =
                Fields { seq: Seq(count), flags: Flags::SYN, options, ..Fields::default() };
            let mut frame = vec![0; 54 + fields.options.wire_len()];
            let template = HeaderTemplate::new(macs[0], macs[1], tuple);
            template.emit(&mut frame, &fields, 0, ChecksumMode::Software);
            host.send_frame(&frame);
            count += 1;
        }
        // The host has to read what it is sent.
        host.poll_and_sleep();
    }
    count
}
