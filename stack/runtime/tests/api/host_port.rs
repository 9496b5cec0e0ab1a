//! Contexts on queues of ports that a host program owns. Each test is in a process of its own, in
//! which the program starts EAL.

use std::time::Duration;

use ferrowarp::device::{ChecksumMode, DeviceSpec, HostPort, PoolNeeds};
use ferrowarp::{Access, Config, ConnParam, Context, DriveMode, Qp, QpState, WcStatus};

use crate::support::host_program::{self, HostPool, HostRingPort};
use crate::support::*;

/// Data room of an mbuf, DPDK's default (`RTE_MBUF_DEFAULT_BUF_SIZE`).
pub(crate) const DATA_ROOM: u16 = 2048 + 128;
/// Mbufs that the stack needs for one queue pair of a `net_ring` port, with the default demands.
pub(crate) const POOL_LEN: u32 = 4095;

pub(crate) fn host_config(
    host: u8,
    port: &HostRingPort,
    queue: u16,
    mempool: &str,
    drive: DriveMode,
) -> Config {
    let (port, mempool) = (port.name.clone(), mempool.to_owned());
    let device = DeviceSpec::HostPort(HostPort { port, queues: queue..queue + 1, mempool });
    let mut config = Config::new(device, address(host), 24);
    config.pools = PoolNeeds::new();
    config.drive = drive;
    // The other end may not be polled any more: then this is how long closing takes.
    config.linger = Duration::from_millis(200);
    config
}

/// Opens an end of the stack at each port, on this queue pair.
fn open(
    ports: &[HostRingPort; 2],
    queue: u16,
    mempools: [&str; 2],
    drive: DriveMode,
) -> (Endpoint, Endpoint) {
    let config = |host: u8, end: usize| host_config(host, &ports[end], queue, mempools[end], drive);
    let context = |config| Endpoint::new(Context::open(config).unwrap());
    (context(config(1, 0)), context(config(2, 1)))
}

/// Connects queue pairs of two contexts that do not poll each other.
fn connect_driving(left: &Endpoint, right: &Endpoint) -> (Qp, Qp) {
    let listener = right.context.listen(PORT, 4).unwrap();
    let (a, b) = (left.qp(), right.qp());
    a.connect(server(), ConnParam::default()).unwrap();
    let mut request = None;
    drive_until(&left.context, &right.context, || {
        request = request.take().or_else(|| listener.next_request());
        request.is_some()
    });
    request.unwrap().accept(&b, ConnParam::default()).unwrap();
    drive_until(&left.context, &right.context, || {
        [&a, &b].iter().all(|qp| qp.state() == QpState::Rts)
    });
    (a, b)
}

/// Writes to the other end and compares; calls `between` after each poll.
fn transfer(left: &Endpoint, right: &Endpoint, mut between: impl FnMut()) {
    let (a, _b) = connect_driving(left, right);
    let len = 200_000;
    let (source, sink) = (left.mr(len, Access::LOCAL_READ), right.mr(len, Access::REMOTE_WRITE));
    for round in 1..=20 {
        source.fill(0, len, round);
        let length = u32::try_from(len).unwrap();
        write(&a, 1, source.sge(0, length), &sink, 0).unwrap();
        drive_until(&left.context, &right.context, || {
            between();
            sink.load_last(len - 1) == round
        });
        assert_eq!(left.completions(right, 1)[0].status, WcStatus::Success);
        assert!(contents(&sink) == vec![round; len], "round {round}");
    }
}

fn close(ends: (Endpoint, Endpoint)) {
    let (left, right) = ends;
    left.context.close();
    right.context.close();
}

#[test]
fn contexts_use_the_queues_that_a_program_lends() {
    isolate!();
    host_program::start_eal();
    let own = HostPool::create("own", 255, 0, DATA_ROOM);
    let pools = ["left", "right"].map(|name| HostPool::create(name, 2 * POOL_LEN, 32, DATA_ROOM));
    let mut ports = host_program::ring_ports(3, own);
    ports.iter().for_each(HostRingPort::start);

    // Two contexts on queues of each port, and the program's own traffic on another.
    let first = open(&ports, 1, ["left", "right"], DriveMode::Inline);
    let second = open(&ports, 2, ["left", "right"], DriveMode::Helper);
    let [left, right] = &mut ports;
    transfer(&first.0, &first.1, || left.exchange(right));
    transfer(&second.0, &second.1, || right.exchange(left));
    let taken = Context::open(host_config(3, left, 2, "left", DriveMode::Inline)).err().unwrap();
    assert!(taken.to_string().contains("queue 2 is open already"), "{taken}");
    close(first);

    // The queues of a context that is closed are lent again while the other goes on.
    let third = open(&ports, 1, ["right", "left"], DriveMode::Inline);
    transfer(&third.0, &third.1, || {});
    transfer(&second.0, &second.1, || {});
    close(third);
    close(second);

    // The ports still run, and all mbufs are back once what is left in the rings is received.
    let [left, right] = &mut ports;
    assert!(left.carries_frames_to(right) && right.carries_frames_to(left));
    left.drain();
    right.drain();
    assert!(own.is_complete() && pools.iter().all(HostPool::is_complete));
    ports.into_iter().for_each(HostRingPort::close);
}

/// With several shards, each has one of the queues.
#[test]
fn shards_use_consecutive_queues_of_a_program() {
    isolate!();
    host_program::start_eal();
    let own = HostPool::create("own", 255, 0, DATA_ROOM);
    let pools = ["left", "right"].map(|name| HostPool::create(name, 3 * POOL_LEN, 0, DATA_ROOM));
    let mut ports = host_program::ring_ports(3, own);
    ports.iter().for_each(HostRingPort::start);
    let end = |host: u8, end: usize, mempool: &str| {
        let device = format!("port:{},queues=1-2,mempool={mempool}", ports[end].id);
        let mut config = Config::new(device.parse().unwrap(), address(host), 24);
        config.pools = PoolNeeds::new();
        config.linger = Duration::from_millis(200);
        assert_eq!(config.shards, 2, "as many as queues");
        Endpoint::new(Context::open(config).unwrap())
    };
    let (left, right) = (end(1, 0, "left"), end(2, 1, "right"));
    let connections: Vec<_> = (0..4).map(|_| connect_driving(&left, &right)).collect();
    let mut shards: Vec<_> = connections.iter().map(|(_, qp)| qp.shard()).collect();
    shards.sort_unstable();
    assert_eq!(shards, [Some(0), Some(0), Some(1), Some(1)]);
    drop(connections);
    close((left, right));
    let [left, right] = &mut ports;
    left.drain();
    right.drain();
    assert!(left.carries_frames_to(right));
    assert!(pools.iter().all(HostPool::is_complete));
    ports.into_iter().for_each(HostRingPort::close);
}

#[test]
fn what_a_program_lends_is_checked() {
    isolate!();
    let refusal = |device: &str, change: &dyn Fn(&mut Config)| {
        let mut config = Config::new(device.parse().unwrap(), address(1), 24);
        config.pools = PoolNeeds::new();
        change(&mut config);
        match Context::open(config) {
            Ok(_) => "none".to_owned(),
            Err(error) => error.to_string(),
        }
    };
    let check = |device: &str, change: &dyn Fn(&mut Config), expected: &str| {
        let text = refusal(device, change);
        assert!(text.contains(expected), "{device}: {text}");
        assert!(!text.contains('\n') && text.starts_with(device), "{text}");
    };
    let good = "port:net_ring_host_left,queues=1,mempool=large";
    let same = |_: &mut Config| {};
    check(good, &same, "call rte_eal_init before");

    host_program::start_eal();
    let own = HostPool::create("own", 255, 0, DATA_ROOM);
    HostPool::create("large", POOL_LEN, 32, DATA_ROOM);
    HostPool::create("few", 500, 32, DATA_ROOM);
    HostPool::create("small", POOL_LEN, 32, 128 + 1500);
    check(good, &same, "attached no port of this name");
    let ports = host_program::ring_ports(3, own);
    check(good, &same, "not started (start it first)");
    ports.iter().for_each(HostRingPort::start);
    let table = [
        ("port:net_ring_other,queues=1,mempool=large", "attached no port of this name"),
        ("port:30,queues=1,mempool=large", "attached no port of this name"),
        ("port:net_ring_host_left,queues=3,mempool=large", "no queue 3: it was set up with 3"),
        ("port:net_ring_host_left,queues=9999,mempool=large", "no queue 9999"),
        ("port:net_ring_host_left,queues=1,mempool=none", "mempool none: there is no mempool"),
        ("port:net_ring_host_left,queues=1,mempool=few", "mempool few has 500 mbufs,"),
        ("port:net_ring_host_left,queues=1,mempool=small", "holds 1500 bytes of frame, an MTU of"),
    ];
    for (device, expected) in table {
        check(device, &same, expected);
    }
    check(good, &|config| config.shards = 2, "1 queues are lent, and 2 are to be opened");
    check(good, &|config| config.mtu = 9000, "needs 9018 (create it with a data room of 9018");
    check(good, &|config| config.pools.windows = 64, "(create it with as many, or");
    let offload = Some(ChecksumMode::Offload);
    check(good, &|config| config.checksum = offload, "RTE_ETH_TX_OFFLOAD_TCP_CKSUM, or leave");
    // Nothing is kept after a refusal.
    assert_eq!(refusal(good, &same), "none");
    ports.into_iter().for_each(HostRingPort::close);
}
