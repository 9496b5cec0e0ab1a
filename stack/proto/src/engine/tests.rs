use core::net::SocketAddr;

use crate::config::EngineConfig;
use crate::ddp::vec_memory::VecMemory;
use crate::device::ChecksumMode;
use crate::device::test_device::{self, HeapFrame, TestDevice};
use crate::engine::Engine;
use crate::time::{Instant, MILLISECOND};
use crate::verbs::cm::ConnParam;
use crate::verbs::qp::{QpCap, QpInit};
use crate::verbs::wc::{Completions, CqId, Wc};
use crate::wire::tcp::{Fields, Flags, FourTuple, HeaderTemplate, MAX_HEADER_LEN, Segment};

struct NoCompletions;

impl Completions for NoCompletions {
    fn push(&mut self, _: CqId, _: Wc) -> bool {
        true
    }
}

/// Segment of a peer's port to a local one.
fn segment(from: u16, to: u16, flags: Flags) -> HeapFrame {
    let tuple = FourTuple {
        local: SocketAddr::from(([198, 18, 0, 2], from)),
        remote: SocketAddr::from(([198, 18, 0, 1], to)),
    };
    let template = HeaderTemplate::new([2, 0, 0, 0, 0, 2], test_device::MAC, tuple);
    let fields = Fields { flags, ..Fields::default() };
    let mut buf = [0; MAX_HEADER_LEN];
    let len = template.emit(&mut buf, &fields, 0, ChecksumMode::Software);
    HeapFrame::new(&buf[..len])
}

/// Segments of no connection are answered with RST, in the order in which the burst is processed.
#[test]
fn burst_is_processed_flow_by_flow() {
    let config = EngineConfig::new("198.18.0.1".parse().unwrap(), 24, 7);
    let mut engine = Engine::new(config, TestDevice::new(), VecMemory::new(64), NoCompletions);
    for port in [1, 2, 1, 3, 2] {
        engine.burst.push(segment(port, 4420, Flags::ACK));
    }
    engine.drive(Instant::from_nanos(1));
    let parse =
        |frame: &Vec<u8>| Segment::parse(&HeapFrame::new(frame), ChecksumMode::Software).ok();
    let segments = engine.cx.device.sent.iter().filter_map(parse);
    let resets = segments.filter(|segment| segment.flags.has(Flags::RST));
    let ports: Vec<u16> = resets.map(|segment| segment.tuple.local.port()).collect();
    assert_eq!(ports, [1, 1, 2, 2, 3]);
}

/// Returned segments that a listener ignores or refuses may be of another user of the port.
#[test]
fn returned_segments_of_no_use_to_a_listener_are_passed_on() {
    let config = EngineConfig::new("198.18.0.1".parse().unwrap(), 24, 7);
    let mut engine = Engine::new(config, TestDevice::new(), VecMemory::new(64), NoCompletions);
    engine.listen(4420, 8).unwrap();
    let of_others = [Flags::RST, Flags::RST | Flags::ACK, Flags::FIN, Flags::ACK];
    for (from, flags) in (1..).zip(of_others) {
        engine.burst.push(segment(from, 4420, flags).hairpinned());
        // What the link has brought is of nobody else.
        engine.burst.push(segment(from + 10, 4420, flags));
    }
    engine.burst.push(segment(20, 4420, Flags::SYN).hairpinned());
    engine.drive(Instant::from_nanos(1));
    let passed = engine.cx.device.passed.iter().map(|frame| {
        let segment = Segment::parse(frame, ChecksumMode::Software).unwrap();
        (segment.tuple.remote.port(), segment.flags)
    });
    assert!(passed.eq((1..).zip(of_others)));
    assert_eq!(engine.connections.iter().count(), 1, "the SYN is for the listener");
}

/// A connection that ends on a list leaves its entry there, which must not serve the next one in
/// its slot.
#[test]
fn connection_in_a_reused_slot_is_listed_once() {
    let config = EngineConfig::new("198.18.0.1".parse().unwrap(), 24, 7);
    let mut engine = Engine::new(config, TestDevice::new(), VecMemory::new(64), NoCompletions);
    let (now, cq) = (Instant::ZERO, CqId(0));
    let init = QpInit { pd: 1, send_cq: cq, recv_cq: cq, cap: QpCap::new(4, 4) };
    for is_replaced in [true, false] {
        let qp = engine.create_qp(init).unwrap();
        let remote = "198.18.0.2:4420".parse().unwrap();
        engine.connect(now, qp, remote, &ConnParam::default()).unwrap();
        let (conn, cx) = engine.at(0).unwrap();
        conn.make_ready(&mut cx.schedule);
        if is_replaced {
            engine.disconnect(now, qp).unwrap();
        }
    }
    let schedule = &engine.cx.schedule;
    for list in [schedule.ready.clone(), schedule.unresolved.clone()] {
        assert_eq!(list.into_iter().filter(|&entry| engine.by_id(entry).is_some()).count(), 1);
    }
}

/// Entries of ended connections do not pile up while the transmit queue is full and no pass needs
/// to visit a connection.
#[test]
fn full_transmit_queue_keeps_no_entries_of_ended_connections() {
    let config = EngineConfig::new("198.18.0.1".parse().unwrap(), 24, 7);
    let mut engine = Engine::new(config, TestDevice::new(), VecMemory::new(64), NoCompletions);
    engine.cx.device.tx_free = 0;
    let (mut now, cq) = (Instant::ZERO, CqId(0));
    let init = QpInit { pd: 1, send_cq: cq, recv_cq: cq, cap: QpCap::new(4, 4) };
    for _ in 0..1000 {
        let qp = engine.create_qp(init).unwrap();
        engine.connect(now, qp, "198.18.0.2:4420".parse().unwrap(), &ConnParam::default()).unwrap();
        let (conn, cx) = engine.at(0).unwrap();
        conn.make_ready(&mut cx.schedule);
        engine.drive(now);
        engine.disconnect(now, qp).unwrap();
        engine.destroy_qp(now, qp);
        now = now + MILLISECOND;
    }
    let count = engine.cx.schedule.ready.len();
    assert!(count <= 10, "{count}");
}

/// A listener that ends concerns its connections in setup alone, and these are those that it lists.
#[test]
fn ended_listener_resets_the_connections_in_its_setup() {
    const PORTS: [u16; 2] = [4420, 4421];
    let config = EngineConfig::new("198.18.0.1".parse().unwrap(), 24, 7);
    let mut engine = Engine::new(config, TestDevice::new(), VecMemory::new(64), NoCompletions);
    for port in PORTS {
        engine.listen(port, 8).unwrap();
    }
    for (from, to) in [(1, 0), (2, 1), (3, 0), (4, 1), (5, 0)] {
        engine.burst.push(segment(from, PORTS[to], Flags::SYN));
    }
    engine.drive(Instant::from_nanos(1));
    let listeners = PORTS.map(|port| {
        let local = SocketAddr::from(([198, 18, 0, 1], port));
        engine.cx.listeners.find(local).unwrap()
    });
    let in_setup =
        |engine: &Engine<_, _, _>| listeners.map(|listener| engine.cx.listeners.in_setup(listener));
    let listed = in_setup(&engine);
    assert_eq!(listed.each_ref().map(Vec::len), [3, 2]);
    engine.remove_connection(listed[0][1]);
    assert_eq!(in_setup(&engine), [vec![listed[0][0], listed[0][2]], listed[1].clone()]);
    engine.unlisten(PORTS[0]);
    assert_eq!(in_setup(&engine), [vec![], listed[1].clone()]);
    engine.drive(Instant::from_nanos(2));
    let left: Vec<u32> = engine.connections.iter().map(|conn| conn.id.index).collect();
    assert_eq!(left, listed[1]);
}
