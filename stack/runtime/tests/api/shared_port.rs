//! Connections between contexts that borrow queues of one and the same port: they share its
//! hardware address, and no frame of theirs reaches the link.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use ferrowarp::device::ChecksumMode;
use ferrowarp::{
    Access, Config, ConnEvent, ConnParam, ConnectError, Context, CqOptions, DriveMode,
    InterfaceAddress, Mr, Qp, QpOptions, WcStatus,
};

use crate::host_port::{DATA_ROOM, POOL_LEN, host_config};
use crate::support::host_program::{self, HostPool, HostRingPort};
use crate::support::*;

/// Starts EAL, and creates the port and its mempool.
fn host(queues: u16) -> [HostRingPort; 2] {
    host_program::start_eal();
    HostPool::create("stack", u32::from(queues) * POOL_LEN, 0, DATA_ROOM);
    let ports = host_program::ring_ports(queues + 1, HostPool::create("own", 255, 0, DATA_ROOM));
    ports.iter().for_each(HostRingPort::start);
    ports
}

/// Configuration of a context on one of its queues.
fn config(port: &HostRingPort, host: u8, queue: u16, drive: DriveMode) -> Config {
    host_config(host, port, queue, "stack", drive)
}

fn open(port: &HostRingPort, host: u8, queue: u16) -> Endpoint {
    Endpoint::new(Context::open(config(port, host, queue, DriveMode::Inline)).unwrap())
}

/// A queue pair of a context, at this shard.
fn qp(end: &Endpoint, shard: Option<usize>) -> Qp {
    let options = CqOptions::new(64);
    let options = shard.map_or(options, |shard| options.shard(shard));
    end.pd.create_qp(&QpOptions::new(&end.context.create_cq_with(&options).unwrap())).unwrap()
}

/// Connects from `left` to a listener of `right` at this address and port.
fn connect_at(left: &Endpoint, right: &Endpoint, remote: SocketAddr) -> (Qp, Qp) {
    connect_with(left, right, remote, ConnParam::new())
}

/// As [`connect_at`], with these parameters.
fn connect_with(
    left: &Endpoint,
    right: &Endpoint,
    remote: SocketAddr,
    param: ConnParam,
) -> (Qp, Qp) {
    let listener = right.context.listen(remote.port(), 4).unwrap();
    let a = qp(left, None);
    a.connect(remote, param).unwrap();
    let mut request = None;
    drive_until(&left.context, &right.context, || {
        request = request.take().or_else(|| listener.next_request());
        request.is_some()
    });
    let request = request.unwrap();
    let b = qp(right, Some(request.shard()));
    request.accept(&b, ConnParam::new()).unwrap();
    for event in next_events((left, &a), (right, &b)) {
        assert!(matches!(event, ConnEvent::Established { .. }), "{event:?}");
    }
    (a, b)
}

/// Returns the next event of each queue pair.
fn next_events(left: (&Endpoint, &Qp), right: (&Endpoint, &Qp)) -> [ConnEvent; 2] {
    let mut events = [None, None];
    drive_until(&left.0.context, &right.0.context, || {
        for (qp, event) in [left.1, right.1].into_iter().zip(&mut events) {
            *event = event.take().or_else(|| qp.next_event());
        }
        events.iter().all(Option::is_some)
    });
    events.map(Option::unwrap)
}

/// Each end writes to the memory of the other, reads it back, and sends.
fn exchange(left: (&Endpoint, &Qp), right: (&Endpoint, &Qp)) {
    const LEN: u32 = 200_000;
    for (number, ((from, from_qp), (to, to_qp))) in (0..).zip([(left, right), (right, left)]) {
        let mr = |end: &Endpoint, access| end.mr(LEN as usize, access);
        let all_of = |mr: &Mr| mr.sge(0, LEN);
        let source = mr(from, Access::LOCAL_READ);
        source.write(0, &pattern(LEN as usize, number));
        let target = mr(to, Access::REMOTE_WRITE | Access::REMOTE_READ);
        let (read_back, received) = (mr(from, Access::LOCAL_WRITE), mr(to, Access::LOCAL_WRITE));
        to_qp.post_recv(9, all_of(&received)).unwrap();
        let mut post = from_qp.post();
        post.write(all_of(&source), target.remote()).wr_id(1).signaled();
        post.read(all_of(&read_back), target.remote()).wr_id(2).signaled();
        post.send(all_of(&source)).wr_id(3).signaled();
        post.ring().unwrap();
        let (mut sent, mut taken) = (Vec::new(), Vec::new());
        drive_until(&from.context, &to.context, || {
            from_qp.send_cq().poll_with(8, |wc| sent.push(wc));
            to_qp.recv_cq().poll_with(8, |wc| taken.push(wc));
            sent.len() == 3 && !taken.is_empty()
        });
        assert_eq!(outcomes(&sent), all(1..=3, WcStatus::Success));
        assert_eq!(outcomes(&taken), all([9], WcStatus::Success));
        for sink in [&target, &read_back, &received] {
            assert!(contents(sink) == pattern(LEN as usize, number));
        }
    }
}

/// Connects each of the two to the other, exchanges data and closes.
fn connect_both_ways(left: (&Endpoint, IpAddr), right: (&Endpoint, IpAddr)) {
    for ((from, _), (to, ip)) in [(left, right), (right, left)] {
        let before = from.context.counters().device;
        let (a, b) = connect_at(from, to, SocketAddr::new(ip, PORT));
        exchange((from, &a), (to, &b));
        a.close().unwrap();
        for event in next_events((from, &a), (to, &b)) {
            assert!(matches!(event, ConnEvent::Disconnected { .. }), "{event:?}");
        }
        let after = from.context.counters().device;
        assert!(after.hairpin_frames - before.hairpin_frames > 100, "{after:?}");
        assert_eq!(after.hairpin_dropped, 0);
        assert!(after.tx_frames - before.tx_frames < 10, "the link has announcements only");
    }
}

/// Tries to connect, until that fails.
fn refusal(from: &Endpoint, to: &Endpoint, remote: SocketAddr) -> ConnectError {
    let qp = from.qp();
    qp.connect(remote, ConnParam::new()).unwrap();
    let mut event = None;
    drive_until(&from.context, &to.context, || {
        event = event.take().or_else(|| qp.next_event());
        event.is_some()
    });
    match event {
        Some(ConnEvent::ConnectFailed { error, .. }) => error,
        other => panic!("{other:?}"),
    }
}

/// Two contexts on a port, with different addresses of both families, and these changes.
fn open_two(
    port: &HostRingPort,
    change: impl Fn(Config) -> Config,
) -> [(Endpoint, [IpAddr; 2]); 2] {
    [1, 2].map(|host: u8| {
        let v6 = InterfaceAddress {
            ip: Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, host.into()).into(),
            prefix_len: 64,
        };
        let config = change(config(port, host, host.into(), DriveMode::Inline).address(v6));
        (Endpoint::new(Context::open(config).unwrap()), [address(host), v6.ip])
    })
}

#[test]
fn contexts_with_different_addresses_reach_each_other() {
    isolate!();
    let [port, _other] = host(2);
    let [(left, of_left), (right, of_right)] = open_two(&port, |config| config);
    assert_eq!(left.context.capabilities().mac, right.context.capabilities().mac);
    for (left_ip, right_ip) in of_left.into_iter().zip(of_right) {
        connect_both_ways((&left, left_ip), (&right, right_ip));
    }
    // Each reaches itself as before.
    for (end, ip) in [(&left, of_left[0]), (&right, of_right[1])] {
        let (a, b) = connect_at(end, end, SocketAddr::new(ip, PORT));
        exchange((end, &a), (end, &b));
    }
    // Nobody listens there.
    for (from, to, ip) in [(&left, &right, of_right[0]), (&right, &left, of_left[1])] {
        let start = Instant::now();
        for (from, to) in [(from, to), (to, from)] {
            assert_eq!(refusal(from, to, SocketAddr::new(ip, PORT)), ConnectError::Refused);
        }
        assert!(start.elapsed() < Duration::from_secs(1), "at once");
    }
}

#[test]
fn settings_of_the_contexts_may_differ() {
    isolate!();
    let [port, _other] = host(2);
    let large = |mut config: Config| {
        let is_left = config.addresses[0].ip == address(1);
        config.hairpin_mtu = Some(if is_left { 2000 } else { 1400 });
        config.checksum = is_left.then_some(ChecksumMode::NotNeeded);
        config.vlan(7)
    };
    let [(left, of_left), (right, of_right)] = open_two(&port, large);
    for (left_ip, right_ip) in of_left.into_iter().zip(of_right) {
        connect_both_ways((&left, left_ip), (&right, right_ip));
    }
}

/// The same addresses and ports in two VLANs.
#[test]
fn contexts_in_different_vlans_are_apart() {
    isolate!();
    let [port, _other] = host(4);
    let open = |host: u8, queue, vlan| {
        let mut config = config(&port, host, queue, DriveMode::Inline);
        config.vlan = vlan;
        Endpoint::new(Context::open(config).unwrap())
    };
    let remote = SocketAddr::new(address(2), PORT);
    let [(left, right), (_, other)] = [(1, Some(7)), (3, None)].map(|(queue, vlan)| {
        let (left, right) = (open(1, queue, vlan), open(2, queue + 1, vlan));
        let param = ConnParam::new().local_port(50_000);
        let (a, b) = connect_with(&left, &right, remote, param);
        exchange((&left, &a), (&right, &b));
        (left, right)
    });
    right.context.close();
    let _listener = other.context.listen(PORT, 1).unwrap();
    let error = refusal(&left, &other, remote);
    assert_eq!(error, ConnectError::Unreachable, "nobody answers ARP");
}

#[test]
fn contexts_without_a_route_reach_each_other() {
    isolate!();
    let [port, _other] = host(2);
    let mut config = config(&port, 2, 2, DriveMode::Inline);
    let ip = IpAddr::from([203, 0, 113, 2]);
    config.addresses[0].ip = ip;
    let (left, right) = (open(&port, 1, 1), Endpoint::new(Context::open(config).unwrap()));
    connect_both_ways((&left, address(1)), (&right, ip));
}

/// A peer on the link that takes the address of a context gets no answer of another one.
#[test]
fn segments_of_the_link_are_not_taken_for_those_of_another_context() {
    isolate!();
    let [port, other] = host(2);
    let (left, right) = (open(&port, 1, 1), open(&port, 2, 2));
    let forger = open(&other, 2, 1);
    let listener = left.context.listen(PORT, 4).unwrap();
    let connect = || {
        let qp = forger.qp();
        let param = ConnParam::new().connect_timeout(Duration::from_millis(500));
        qp.connect(SocketAddr::new(address(1), PORT), param).unwrap();
        let mut event = None;
        drive_until(&left.context, &forger.context, || {
            event = event.take().or_else(|| qp.next_event());
            event.is_some() || listener.next_request().is_some()
        });
        event
    };
    let dropped = || left.context.counters().engine.frames_dropped;
    let before = dropped();
    let event = connect();
    let is_timeout = |event: &ConnEvent| {
        matches!(event, ConnEvent::ConnectFailed { error: ConnectError::TimedOut, .. })
    };
    assert!(event.as_ref().is_some_and(is_timeout), "{event:?}");
    assert!(dropped() > before);
    // Once the context has ended, the address may be that of a host on the link.
    right.context.close();
    let event = connect();
    assert!(event.is_none(), "the request arrives: {event:?}");
}

/// A context that is not polled loses what does not fit its ring, as over a link.
#[test]
fn frames_to_a_context_that_nobody_polls_are_dropped_and_sent_again() {
    isolate!();
    let [port, _other] = host(2);
    let (left, right) = (open(&port, 1, 1), open(&port, 2, 2));
    let connections: Vec<_> = (0..4)
        .map(|number| connect_at(&left, &right, SocketAddr::new(address(2), PORT + number)))
        .collect();
    const LEN: usize = 1 << 20;
    let source = left.mr(LEN, Access::LOCAL_READ);
    let sink = right.mr(LEN, Access::REMOTE_WRITE);
    // The first round opens the congestion windows.
    for (round, stalls) in [(1, false), (2, true)] {
        source.fill(0, LEN, round);
        for (a, _) in &connections {
            write(a, 1, source.sge(0, 1 << 20), &sink, 0).unwrap();
        }
        if stalls {
            drive_for(&left.context, &left.context, Duration::from_millis(100));
            assert!(left.context.counters().device.hairpin_dropped > 0);
        }
        for (a, _) in &connections {
            drive_until(&left.context, &right.context, || !poll_once(a.send_cq()).is_empty());
        }
        assert!(contents(&sink) == vec![round; LEN], "round {round}");
    }
}

#[test]
fn contexts_with_the_same_address_reach_each_other() {
    isolate!();
    let [port, _other] = host(3);
    // A segment of the first to the third passes the second, and so on.
    let [first, second, third] = [1, 2, 3].map(|queue| {
        let context = Context::open(config(&port, 1, queue, DriveMode::Helper));
        Endpoint::new(context.unwrap())
    });
    for (left, right) in [(&first, &second), (&second, &third), (&third, &first)] {
        connect_both_ways((left, address(1)), (right, address(1)));
    }
    // A listener of the context itself comes first.
    let listener = second.context.listen(PORT, 4).unwrap();
    let (a, b) = connect_at(&first, &first, SocketAddr::new(address(1), PORT));
    exchange((&first, &a), (&first, &b));
    assert!(listener.next_request().is_none());
    // All of them are asked before one refuses.
    for closed in [PORT + 1, PORT + 2] {
        let remote = SocketAddr::new(address(1), closed);
        assert_eq!(refusal(&first, &third, remote), ConnectError::Refused);
    }
}

#[test]
fn threads_of_both_contexts_move_the_data() {
    isolate!();
    let [port, _other] = host(2);
    for (left, right) in [
        (DriveMode::Helper, DriveMode::Helper),
        (DriveMode::Dedicated, DriveMode::Helper),
        (DriveMode::Helper, DriveMode::Inline),
    ] {
        let end = |host, drive| {
            let context = Context::open(config(&port, host, host.into(), drive));
            Endpoint::new(context.unwrap())
        };
        let (left, right) = (end(1, left), end(2, right));
        connect_both_ways((&left, address(1)), (&right, address(2)));
    }
}

#[test]
fn contexts_with_several_queues_reach_each_other() {
    isolate!();
    let [port, _other] = host(3);
    let several = || {
        let device = format!("port:{},queues=1-2,mempool=stack", port.id);
        let mut config = config(&port, 1, 1, DriveMode::Inline);
        config.device = device.parse().unwrap();
        config.shards = 2;
        Endpoint::new(Context::open(config).unwrap())
    };
    let (left, right) = (several(), open(&port, 2, 3));
    for _ in 0..4 {
        connect_both_ways((&left, address(1)), (&right, address(2)));
    }
    let counters = left.context.counters().engine;
    assert!(counters.frames_forwarded < 50, "replies go to the queue that asked: {counters:?}");
}

/// The peer of a connection is closed in the middle of a transfer.
#[test]
fn connection_ends_with_the_context_of_its_peer() {
    isolate!();
    let [port, _other] = host(2);
    for ip in [1, 2] {
        let left = open(&port, 1, 1);
        let right = open(&port, ip, 2);
        let remote = SocketAddr::new(address(ip), PORT);
        let (a, _b) = connect_at(&left, &right, remote);
        let source = left.mr(4 << 20, Access::LOCAL_READ);
        let sink = right.mr(4 << 20, Access::REMOTE_WRITE);
        write(&a, 1, source.sge(0, 4 << 20), &sink, 0).unwrap();
        drive_until(&left.context, &right.context, || sink.load_last(0) == 0);
        right.context.close();
        let event = expect_event(&a);
        assert!(matches!(event, ConnEvent::Disconnected { .. }), "{event:?}");
        // Nobody listens any more, or has the address.
        let error = refusal(&left, &left, remote);
        let expected = [ConnectError::Refused, ConnectError::Unreachable];
        assert_eq!(error, expected[usize::from(ip - 1)]);
        // The queue is lent again, and reached again.
        let right = open(&port, ip, 2);
        connect_both_ways((&left, address(1)), (&right, address(ip)));
    }
}
