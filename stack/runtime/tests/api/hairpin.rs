//! Connections of a context to its own addresses.

use std::net::{IpAddr, SocketAddr};

use ferrowarp::device::ChecksumMode;
use ferrowarp::{
    Access, AtomicOp, CmError, Config, ConnEvent, ConnParam, ConnectError, Context, CqOptions,
    DriveMode, InterfaceAddress, Mr, QpOptions, WcStatus,
};

use crate::support::*;

/// A context with this configuration, at a link whose other end nobody polls.
fn lone(config: Config) -> (Endpoint, Context) {
    let other = Config::new(config.device.clone(), address(2), 24).shards(config.shards);
    let (context, other) = ring_pair(config, other).unwrap();
    (Endpoint::new(context), other)
}

/// Connects queue pairs of one context to each other, at this address of it.
fn connect_to_self(end: &Endpoint, ip: IpAddr) -> [Link; 2] {
    let listener = end.context.listen(PORT, 4).unwrap();
    let active = Link::new(end, None);
    active.qp.connect(SocketAddr::new(ip, PORT), param(b"to myself")).unwrap();
    let request = listener.accept_timeout(TIMEOUT).expect("a request");
    assert_eq!(request.offer().private_data.as_slice(), b"to myself");
    let passive = Link::new(end, Some(request.shard()));
    request.accept(&passive.qp, param(b"welcome")).unwrap();
    let established = active.qp.wait_established(TIMEOUT).unwrap();
    assert_eq!(established.private_data.as_slice(), b"welcome");
    passive.qp.wait_established(TIMEOUT).unwrap();
    [active, passive]
}

/// A queue pair with a completion queue of its own.
struct Link {
    qp: ferrowarp::Qp,
    cq: ferrowarp::Cq,
}

impl Link {
    fn new(end: &Endpoint, shard: Option<usize>) -> Self {
        let options = CqOptions::new(64);
        let options = shard.map_or(options, |shard| options.shard(shard));
        let cq = end.context.create_cq_with(&options).unwrap();
        let qp = end.pd.create_qp(&QpOptions::new(&cq)).unwrap();
        Self { qp, cq }
    }
}

/// Each end writes, reads, sends and adds to the memory of the other.
fn exchange(end: &Endpoint, links: &[Link; 2]) {
    const LEN: usize = 200_000;
    let all_of = |mr: &Mr| mr.sge(0, 200_000);
    for (number, (from, to)) in (0..).zip([(0, 1), (1, 0)]) {
        let (from, to) = (&links[from], &links[to]);
        let source = end.mr(LEN, Access::LOCAL_READ);
        source.write(0, &pattern(LEN, number));
        let target = end.mr(LEN, Access::REMOTE_WRITE | Access::REMOTE_READ);
        let [read_back, received] = [(); 2].map(|()| end.mr(LEN, Access::LOCAL_WRITE));
        let (word, before) = (end.mr(8, Access::REMOTE_ATOMIC), end.mr(8, Access::LOCAL_WRITE));
        word.atomic(0, AtomicOp::fetch_add(40));
        to.qp.post_recv(9, all_of(&received)).unwrap();
        let mut post = from.qp.post();
        post.write(all_of(&source), target.remote()).wr_id(1).signaled();
        post.read(all_of(&read_back), target.remote()).wr_id(2).signaled();
        post.send(all_of(&source)).wr_id(3).signaled();
        post.atomic(AtomicOp::fetch_add(2), before.sge(0, 8), word.remote()).wr_id(4).signaled();
        post.ring().unwrap();
        let (mut sent, mut taken) = (Vec::new(), Vec::new());
        drive_until(&end.context, &end.context, || {
            from.cq.poll_with(8, |wc| sent.push(wc));
            to.cq.poll_with(8, |wc| taken.push(wc));
            sent.len() == 4 && !taken.is_empty()
        });
        sent.sort_by_key(|wc| wc.wr_id);
        assert_eq!(outcomes(&sent), all(1..=4, WcStatus::Success));
        assert_eq!(outcomes(&taken), all([9], WcStatus::Success));
        for sink in [&target, &read_back, &received] {
            assert!(contents(sink) == pattern(LEN, number));
        }
        assert_eq!((before.load_word(0), word.load_word(0)), (40, 42));
    }
}

/// Closes both ends in an orderly way.
fn close(links: &[Link; 2]) {
    links[0].qp.close().unwrap();
    for link in links {
        assert!(matches!(expect_event(&link.qp), ConnEvent::Disconnected { .. }));
    }
}

#[test]
fn queue_pairs_of_one_context_exchange_data() {
    let v6 = InterfaceAddress { ip: "2001:2::1".parse().unwrap(), prefix_len: 64 };
    for mode in [None, Some(ChecksumMode::Software)] {
        let mut config = config(1, DriveMode::Inline).address(v6);
        config.checksum = mode;
        let (end, _other) = lone(config);
        for ip in [address(1), v6.ip] {
            let sent = end.context.counters().device.tx_frames;
            let links = connect_to_self(&end, ip);
            exchange(&end, &links);
            close(&links);
            let counters = end.context.counters().device;
            assert!(counters.hairpin_frames > 100, "{counters:?}");
            assert!(counters.tx_frames - sent < 10, "the link has announcements only");
        }
    }
}

#[test]
fn helper_moves_both_ends() {
    let (end, _other) = lone(config(1, DriveMode::Helper));
    exchange(&end, &connect_to_self(&end, address(1)));
}

#[test]
fn dedicated_thread_moves_both_ends() {
    let (end, _other) = lone(config(1, DriveMode::Dedicated));
    exchange(&end, &connect_to_self(&end, address(1)));
}

#[test]
fn ends_are_at_one_shard_where_the_link_has_mirrored_queues() {
    for drive in [DriveMode::Inline, DriveMode::Helper] {
        let (end, _other) = lone(config(1, drive).shards(3));
        for shard in [0, 1, 2] {
            let links = connect_to_self(&end, address(1));
            assert_eq!([&links[0], &links[1]].map(|link| link.qp.shard()), [Some(shard); 2]);
            exchange(&end, &links);
        }
        assert_eq!(end.context.counters().engine.frames_forwarded, 0);
    }
}

/// Local connections and those to another host share a shard and its queues.
#[test]
fn local_and_remote_connections_go_on_side_by_side() {
    let (left, right) = endpoints(DriveMode::Inline);
    let (a, b) = connect(&left, &right);
    let links = connect_to_self(&left, address(1));
    let remote = connect(&left, &right);
    exchange(&left, &links);
    let source = left.mr(100_000, Access::LOCAL_READ);
    let sink = right.mr(100_000, Access::REMOTE_WRITE);
    source.write(0, &pattern(100_000, 7));
    for qp in [&a, &remote.0] {
        sink.fill(0, 100_000, 0);
        write(qp, 1, source.sge(0, 100_000), &sink, 0).unwrap();
        assert_eq!(left.completions(&right, 1)[0].status, WcStatus::Success);
        drive_until(&left.context, &right.context, || contents(&sink) == pattern(100_000, 7));
    }
    drop(b);
}

#[test]
fn hairpin_mtu_may_exceed_the_mtu_of_the_port() {
    let (end, _other) = lone(config(1, DriveMode::Inline).hairpin_mtu(9000));
    assert_eq!(end.context.capabilities().hairpin_mtu, 9000);
    let links = connect_to_self(&end, address(1));
    let before = end.context.counters().device.hairpin_frames;
    exchange(&end, &links);
    // Three times 200,000 bytes each way.
    let frames = end.context.counters().device.hairpin_frames - before;
    assert!(frames < 2 * 3 * 200_000 / 1500, "{frames} frames");
}

#[test]
fn closed_port_of_an_own_address_refuses() {
    let (end, _other) = lone(config(1, DriveMode::Inline).source_ports(50_000..=50_001));
    for port in [PORT, 50_000] {
        let qp = end.qp();
        qp.connect(SocketAddr::new(address(1), port), ConnParam::new()).unwrap();
        match qp.wait_established(TIMEOUT) {
            Err(error) => assert_eq!(error, ConnectError::Refused),
            Ok(info) => panic!("{info:?}"),
        }
    }
    // Both ends would be one and the same.
    let (end, _other) = lone(config(1, DriveMode::Inline).source_ports(50_000..=50_000));
    let own = end.qp().connect(SocketAddr::new(address(1), 50_000), ConnParam::new());
    assert_eq!(own, Err(CmError::NoResources));
}

/// The link of a context whose peer has not come yet is down. The context reaches itself.
#[test]
fn link_that_is_down_does_not_matter() {
    isolate!();
    let socket = std::env::temp_dir().join(format!("fw-hairpin-{}.sock", std::process::id()));
    let device = format!("memif:{},server", socket.display()).parse().unwrap();
    let end = Endpoint::new(Context::open(Config::new(device, address(1), 24)).unwrap());
    assert!(!end.context.link_is_up());
    let links = connect_to_self(&end, address(1));
    exchange(&end, &links);
    close(&links);
}
