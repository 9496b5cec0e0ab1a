//! Every number of the public settings: at its bounds it works, outside of them it is refused with
//! its range.

use std::time::Duration;

use ferrowarp::cm::ReadDepths;
use ferrowarp::{
    Access, CmError, Config, ConnParam, Context, DriveMode, Keepalive, QpOptions, WcStatus,
};

use crate::support::*;

type Set = fn(&mut Config);
type SetParam = fn(&mut ConnParam);

/// Configurations that are refused: the setting, by its name, and a value outside of its range.
const REFUSED: [(&str, Set); 27] = [
    ("MTU", |c| c.mtu = 0),
    ("MTU", |c| c.mtu = u16::MAX),
    ("ring_slots", |c| c.ring_slots = 0),
    ("ring_slots", |c| c.ring_slots = 1 << 21),
    ("shards", |c| c.shards = 0),
    ("shards", |c| c.shards = usize::MAX),
    ("qps_max", |c| c.qps_max = 0),
    ("qps_max", |c| c.qps_max = usize::MAX),
    ("regions_max", |c| c.regions_max = usize::MAX),
    ("limits.connections_max", |c| c.limits.connections_max = 0),
    ("limits.connections_max", |c| c.limits.connections_max = (1 << 20) + 1),
    ("limits.awaiting_request_max", |c| c.limits.awaiting_request_max = 0),
    ("limits.partial_bytes_max", |c| c.limits.partial_bytes_max = 0),
    ("tcp.recv_window", |c| c.tcp.recv_window = (1 << 30) + 1),
    ("tcp.recv_window_max", |c| c.tcp.recv_window_max = u32::MAX),
    ("tcp.keepalive.idle", |c| c.tcp.keepalive = Some(keepalive(0, 1, 1))),
    ("tcp.keepalive.interval", |c| c.tcp.keepalive = Some(keepalive(1, 0, 1))),
    ("tcp.keepalive.probes", |c| c.tcp.keepalive = Some(keepalive(1, 1, 0))),
    ("dscp", |c| c.dscp = 64),
    ("ttl", |c| c.ttl = 0),
    ("tcp.user_timeout", |c| c.tcp.user_timeout = Duration::from_micros(999)),
    ("tcp.stall_timeout", |c| c.tcp.stall_timeout = Some(Duration::ZERO)),
    ("pools.windows", |c| c.pools.windows = u32::MAX),
    ("pools.threads", |c| c.pools.threads = u32::MAX),
    ("pools.tx_queue", |c| c.pools.tx_queue = 0),
    ("pools.tx_queue", |c| c.pools.tx_queue = u32::MAX),
    ("window_bytes", |c| (c.pools.window_bytes, c.pools.windows) = (u32::MAX, 1 << 16)),
];

/// Keepalive after so many milliseconds, with probes at so many.
const fn keepalive(idle: u64, interval: u64, probes: u8) -> Keepalive {
    Keepalive::new(Duration::from_millis(idle), Duration::from_millis(interval), probes)
}

/// Configurations that work, at the bounds of the settings.
const WORKS: [Set; 36] = [
    |c| c.mtu = ferrowarp::device::MTU_MIN,
    |c| c.mtu = ferrowarp::device::MTU_MAX,
    |c| c.ring_slots = 2,
    |c| c.ring_slots = 1 << 20,
    |c| c.qps_max = 1,
    |c| c.qps_max = 1 << 20,
    |c| c.limits.connections_max = 1,
    |c| c.limits.connections_max = 1 << 20,
    |c| c.limits.half_open_max = 0,
    |c| c.limits.half_open_max = usize::MAX,
    |c| c.limits.awaiting_request_max = 1,
    |c| c.limits.awaiting_request_max = usize::MAX,
    |c| c.limits.ooo_bytes_max = 0,
    |c| c.limits.ooo_bytes_max = usize::MAX,
    |c| c.limits.partial_bytes_max = usize::MAX,
    |c| c.limits.registered_bytes_max = u64::MAX,
    |c| c.limits.cq_entries_max = u64::MAX,
    |c| c.limits.queue_entries_max = u64::MAX,
    |c| c.tcp.recv_window = 0,
    |c| c.tcp.recv_window = 1 << 30,
    |c| c.tcp.recv_window_max = 0,
    |c| c.tcp.recv_window_max = 1 << 30,
    |c| c.tcp.window_growth_max = 0,
    |c| c.tcp.window_growth_max = u64::MAX,
    |c| c.tcp.keepalive = Some(Keepalive::OFF),
    |c| c.tcp.keepalive = Some(keepalive(1, 1, 1)),
    |c| (c.dscp, c.ttl) = (63, 255),
    |c| c.ttl = 1,
    |c| c.tcp.user_timeout = Duration::MAX,
    |c| c.tcp.stall_timeout = Some(Duration::MAX),
    |c| (c.linger, c.drop_linger) = (Duration::ZERO, Duration::ZERO),
    |c| (c.linger, c.drop_linger) = (Duration::MAX, Duration::MAX),
    |c| c.pools.tx_queue = 1,
    |c| c.pools.threads = 0,
    |c| c.pools.windows = 0,
    |c| c.pools.window_bytes = 0,
];

fn open(set: Set) -> Result<(Context, Context), String> {
    let (mut left, mut right) = (config(1, DriveMode::Inline), config(2, DriveMode::Inline));
    set(&mut left);
    set(&mut right);
    ring_pair(left, right).map_err(|error| error.to_string())
}

#[test]
fn configurations_outside_of_ranges_are_refused_by_name() {
    for (number, (setting, set)) in REFUSED.into_iter().enumerate() {
        let refused = open(set).err().unwrap_or_else(|| panic!("{setting}, row {number}"));
        assert!(refused.contains(setting), "{setting}, row {number}: {refused}");
    }
}

#[test]
fn configurations_at_the_bounds_carry_a_message() {
    for (row, set) in WORKS.into_iter().enumerate() {
        let (left, right) = open(set).unwrap_or_else(|error| panic!("row {row}: {error}"));
        let (left, right) = (Endpoint::new(left), Endpoint::new(right));
        let (a, b) = connect(&left, &right);
        let buffer = right.mr(64, Access::LOCAL_WRITE);
        b.post_recv(1, buffer.sge(0, 64)).unwrap();
        send(&a, 2, b"works").unwrap();
        let found = right.completions(&left, 1);
        assert_eq!((found[0].status, found[0].byte_len), (WcStatus::Success, 5), "row {row}");
        drop((a, b));
    }
}

#[test]
fn numbers_of_connections_are_refused_at_the_call() {
    let refused =
        |setting, value: u16, max: u16| CmError::OutOfRange { setting, value, min: 0, max };
    let zero = |setting| CmError::OutOfRange { setting, value: 0, min: 1, max: 255 };
    let (value, min) = (Duration::ZERO, Duration::from_millis(1));
    let too_short = |setting| CmError::TooShort { setting, value, min };
    let outside: [(SetParam, CmError); 11] = [
        (|p| p.ird = 129, refused("ird", 129, 128)),
        (|p| p.ird_max = u16::MAX, refused("ird_max", u16::MAX, 128)),
        (|p| p.ord = 129, refused("ord", 129, 128)),
        (|p| p.revision = 3, refused("revision", 3, 2)),
        (|p| p.revision = u8::MAX, refused("revision", 255, 2)),
        (|p| p.dscp = Some(64), refused("dscp", 64, 63)),
        (|p| p.ttl = Some(0), zero("ttl")),
        (|p| p.keepalive = Some(keepalive(1, 1, 0)), zero("keepalive.probes")),
        (|p| p.keepalive = Some(keepalive(0, 1, 1)), too_short("keepalive.idle")),
        (|p| p.keepalive = Some(keepalive(1, 0, 1)), too_short("keepalive.interval")),
        (|p| p.user_timeout = Some(Duration::ZERO), too_short("user_timeout")),
    ];
    let (left, right) = endpoints(DriveMode::Inline);
    for (set, error) in outside {
        let mut param = ConnParam::default();
        set(&mut param);
        assert_eq!(left.qp().connect(server(), param.clone()), Err(error));
        let listener = right.context.listen(PORT, 1).unwrap();
        let a = left.qp();
        a.connect(server(), ConnParam::default()).unwrap();
        let request = listener.accept_timeout(TIMEOUT).unwrap();
        assert_eq!(request.accept(&right.qp(), param), Err(error));
    }
    for reads in [ReadDepths { ird: 129, ord: 0 }, ReadDepths { ird: 0, ord: 129 }] {
        let listener = right.context.listen(PORT, 1).unwrap();
        let a = left.qp();
        a.connect(server(), ConnParam::default()).unwrap();
        let request = listener.accept_timeout(TIMEOUT).unwrap();
        let error = request.reject_for_reads(reads, &[]).unwrap_err();
        assert!(matches!(error, CmError::OutOfRange { value: 129, max: 128, .. }), "{error}");
    }
    assert_eq!(ConnParam::new().tos(0xfc).unwrap().dscp, Some(63));
    assert_eq!(ConnParam::new().tos(0x2e).unwrap_err(), CmError::EcnBits { tos: 0x2e });
    let bounds: [SetParam; 6] = [
        |p| (p.dscp, p.ttl) = (Some(63), Some(255)),
        |p| (p.keepalive, p.user_timeout) = (Some(Keepalive::OFF), Some(Duration::MAX)),
        |p| (p.ird, p.ird_max, p.ord) = (0, 0, 0),
        |p| (p.ird, p.ird_max, p.ord) = (128, 128, 128),
        |p| p.revision = 0,
        |p| p.revision = 2,
    ];
    for set in bounds {
        let mut param = ConnParam::default();
        set(&mut param);
        let (a, b) = (left.qp(), right.qp());
        let listener = right.context.listen(PORT, 1).unwrap();
        a.connect(server(), param.clone()).unwrap();
        listener.accept_timeout(TIMEOUT).unwrap().accept(&b, param).unwrap();
        a.wait_established(TIMEOUT).unwrap();
    }
}

#[test]
fn numbers_of_queues_are_refused_at_the_call() {
    let (left, _right) = endpoints(DriveMode::Inline);
    for count in [usize::MAX, (1 << 26) + 1] {
        assert!(left.context.create_cq(count).is_err());
        assert!(left.cq.resize(count).is_err());
        assert!(left.pd.create_srq(count).is_err());
        let options = QpOptions::new(&left.cq);
        assert!(left.pd.create_qp(&options.max_send_wr(count)).is_err());
        assert!(left.pd.create_qp(&QpOptions::new(&left.cq).max_recv_wr(count)).is_err());
    }
    assert!(left.context.allocate(usize::MAX).is_err());
    let (cq, srq) = (left.context.create_cq(0).unwrap(), left.pd.create_srq(0).unwrap());
    left.pd.create_qp(&QpOptions::new(&cq).max_send_wr(0).max_recv_wr(0)).unwrap();
    for limit in [0, 1, usize::MAX] {
        srq.arm(limit).unwrap();
        srq.cap(limit).unwrap();
    }
    for backlog in [0, usize::MAX] {
        left.context.listen(PORT, backlog).unwrap();
    }
    assert!(left.context.shard(1).is_none() && left.context.shard(usize::MAX).is_none());
}
