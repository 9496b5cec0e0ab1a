//! IPv6 flow labels (RFC 6437): one for all segments of a connection, different between peers.

use std::collections::BTreeSet;
use std::rc::Rc;

use ferrowarp_proto::ddp::vec_memory::VecMemory;
use ferrowarp_proto::device::ChecksumMode;
use ferrowarp_proto::engine::{Engine, EngineConfig};
use ferrowarp_proto::time::Instant;
use ferrowarp_proto::wire::seq::Seq;
use ferrowarp_proto::wire::tcp::{Fields, Flags, FourTuple, HeaderTemplate, Segment};
use ferrowarp_tests::frame::Frame;
use ferrowarp_tests::raw::mpa_request;
use ferrowarp_tests::sim::frames::{HeapDevice, PoolSizes};
use ferrowarp_tests::sim::world::{CompletionQueues, address_v6};

const PORT: u16 = 7174;
const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 2]];

/// Flow labels of the engine's replies to segments from a peer's port.
fn labels(half_open_max: usize, port: u16, segments: &[(Flags, &[u8])]) -> BTreeSet<u32> {
    let pools = PoolSizes { data: 64, reserve: 16, control: 64 };
    let device = HeapDevice::new(MACS[1], 1500, pools, usize::MAX);
    let mut config = EngineConfig::new(address_v6(1), 64, 7);
    config.half_open_max = half_open_max;
    let arena = Rc::new(VecMemory::new(1 << 16));
    let mut engine = Engine::new(config, device, arena, CompletionQueues::new(2, 64));
    engine.listen(PORT, 64).unwrap();
    let local = (address_v6(0), port).into();
    let tuple = FourTuple { local, remote: (address_v6(1), PORT).into() };
    let template = HeaderTemplate::new(MACS[0], MACS[1], tuple);
    let (mut seq, mut ack, mut labels) = (Seq(9), Seq(0), BTreeSet::new());
    let mut now = Instant::from_nanos(1000);
    for &(flags, payload) in segments {
        let fields = Fields { seq, ack, flags, window: 1000, ..Fields::default() };
        let at = template.base_len();
        let mut frame = vec![0; at + payload.len()];
        frame[at..].copy_from_slice(payload);
        template.emit(&mut frame, &fields, payload.len(), ChecksumMode::Software);
        engine.device().inbound.borrow_mut().push_back(frame);
        seq += u32::try_from(payload.len()).unwrap() + u32::from(flags.has(Flags::SYN));
        for _ in 0..4 {
            engine.drive(now);
            now = now + 1_000_000;
        }
        let frames: Vec<_> = engine.device().outbound.borrow_mut().drain(..).collect();
        for frame in frames {
            let frame = Frame::from(frame);
            let Ok(segment) = Segment::parse(&frame, ChecksumMode::Software) else { continue };
            ack = segment.seq + segment.seq_len();
            let word = u32::from_be_bytes(frame.bytes[14..18].try_into().unwrap());
            labels.insert(word & 0xf_ffff);
        }
    }
    labels
}

#[test]
fn flow_label_is_constant_per_flow_and_differs_between_flows() {
    let request = mpa_request();
    let whole = [(Flags::SYN, &[][..]), (Flags::ACK, &request[..])];
    let mut all = BTreeSet::new();
    for port in 5000..5032 {
        let of_connection = labels(64, port, &whole);
        assert_eq!(of_connection.len(), 1, "SYN-ACK and ACK: {of_connection:?}");
        assert_eq!(of_connection, labels(0, port, &whole[..1]), "and of a cookie");
        assert_eq!(of_connection, labels(64, port, &[(Flags::ACK, b"stray")]), "and of a RST");
        assert!(!of_connection.contains(&0));
        all.extend(of_connection);
    }
    assert!(all.len() >= 31, "{all:?}");
}
