use ferrowarp_proto::time::MICROSECOND;
use ferrowarp_tests::sim::pairs::{Connected, settle};
use ferrowarp_tests::sim::world::WorldOptions;

use super::super::frames::BURST_LEN;
use super::super::layout::FRAME_HEADER_LEN;
use super::*;

/// Address of the messages at the Data Sink.
const REMOTE: u64 = 8192;
/// Most passes of the two engines.
const PASSES_MAX: usize = 10_000;

/// What an engine sends for RDMA Writes.
struct Sent {
    stag: u32,
    /// The payloads of the TCP segments.
    payloads: Vec<Vec<u8>>,
    /// Most segments in a pass; the sink acknowledges them in its next.
    burst_len_max: usize,
}

/// Returns what an engine sends for `count` RDMA Writes of `message`, as the two ends of `iwperf`
/// do that take turns on one core.
fn engine_segments(mtu: u16, message: &[u8], count: u64) -> Sent {
    let mut connected = Connected::ready(&WorldOptions { mtu, ..WorldOptions::new(1) });
    settle(&mut connected.world);
    connected.world.ends[0].arena.write(0, message);
    let len = u32::try_from(message.len()).unwrap();
    for number in 0..count {
        connected.write(0, number, len, REMOTE, true);
    }
    let mut payloads = Vec::new();
    let mut burst_len_max = 0;
    let [source, sink] = &mut connected.world.ends;
    let mut now = connected.world.now;
    for _ in 0..PASSES_MAX {
        source.engine.drive(now);
        let sent_before = payloads.len();
        for frame in source.engine.device().outbound.borrow_mut().drain(..) {
            // Ethernet, IPv4, data offset of TCP (RFC 9293 section 3.1).
            let header_len = 14 + 20 + usize::from(frame[14 + 20 + 12] >> 4) * 4;
            assert_eq!(header_len, FRAME_HEADER_LEN);
            if frame.len() > header_len {
                payloads.push(frame[header_len..].to_vec());
            }
            sink.engine.device().inbound.borrow_mut().push_back(frame);
        }
        burst_len_max = burst_len_max.max(payloads.len() - sent_before);
        sink.engine.drive(now);
        let acks = std::mem::take(&mut *sink.engine.device().outbound.borrow_mut());
        source.engine.device().inbound.borrow_mut().extend(acks);
        now = now + MICROSECOND;
    }
    Sent { stag: connected.stags[1], payloads, burst_len_max }
}

fn transfers(mtu: u16, message_len: usize, stag: u32) -> [Arc<Transfer>; 2] {
    Transfer::frozen_and_best(mtu, message_len, Target { stag, to: REMOTE })
}

#[test]
fn segments_are_those_that_the_engine_sends() {
    for mtu in [1500, 9000] {
        for (message_len, count) in [(64, 60), (4096, 20), (65_536, 4), (1 << 20, 1)] {
            if mtu == 9000 && message_len == 64 {
                // More of them in a segment than the queue pair has requests.
                continue;
            }
            let [frozen, _] = transfers(mtu, message_len, 0);
            let message =
                Source::new(&frozen, WorkingSet::SINGLE).unwrap().0.memory.bytes(0).to_vec();
            let Sent { stag, payloads: sent, .. } = engine_segments(mtu, &message, count);
            let cycles = usize::try_from(count).unwrap() / frozen.messages_per_round();
            let segments = cycles * frozen.segments.len();
            assert!(cycles > 0 && sent.len() >= segments, "MTU {mtu}, {message_len} bytes");
            for transfer in transfers(mtu, message_len, stag) {
                let mut source = Source::new(&transfer, WorkingSet::SINGLE).unwrap();
                let mut frame = vec![0; usize::from(mtu) + 14];
                for (index, expected) in sent[..segments].iter().enumerate() {
                    source.build(&mut frame);
                    let built = &frame[FRAME_HEADER_LEN..][..expected.len()];
                    assert!(built == expected, "MTU {mtu}, {message_len} bytes, segment {index}");
                }
            }
        }
    }
}

/// An engine that sends more per pass has more frames in flight, and the bound follows.
#[test]
fn bursts_are_as_long_as_those_of_the_engine() {
    for mtu in [1500, 9000] {
        let sent = engine_segments(mtu, &vec![1; 1 << 20], 2);
        assert_eq!(sent.burst_len_max, BURST_LEN, "MTU {mtu}");
    }
}

/// Queue pairs take turns with as many messages as each has outstanding.
#[test]
fn slots_take_turns_with_their_outstanding_messages() {
    let cases = [(1500, 4096, 4, 4), (1500, 4096, 128, 5), (1500, 64, 4, 1), (1500, 65_536, 9, 1)];
    for (mtu, message_len, depth, rounds) in cases {
        for transfer in transfers(mtu, message_len, 1) {
            let set = WorkingSet { slots: 3, depth };
            let mut source = Source::new(&transfer, set).unwrap();
            let mut sink = Sink::new(&transfer, set).unwrap();
            let mut frame = vec![0; usize::from(mtu) + 14];
            let to_at = FRAME_HEADER_LEN + TO_AT..FRAME_HEADER_LEN + FPDU_HEADER_LEN;
            let mut offsets = Vec::new();
            for _ in 0..3 {
                for _ in 0..rounds * transfer.segments.len() {
                    source.build(&mut frame);
                    sink.place(&frame);
                    offsets.push(u64::from_be_bytes(frame[to_at.clone()].try_into().unwrap()));
                }
            }
            let per_slot = offsets.len() / 3;
            for (slot, offsets) in offsets.chunks(per_slot).enumerate() {
                assert_eq!(offsets.iter().min(), Some(&(REMOTE + (slot * message_len) as u64)));
                assert_eq!(source.0.memory.bytes(slot), sink.end.memory.bytes(slot));
            }
            assert_ne!(source.0.memory.bytes(0), source.0.memory.bytes(1));
        }
    }
}

#[test]
fn corruption_of_any_covered_byte_is_detected() {
    for transfer in transfers(1500, 200, 1) {
        let fpdus = transfer.segments[0].fpdus.iter();
        let covered: Vec<_> =
            fpdus.flat_map(|fpdu| fpdu.covered.start..fpdu.covered.end + CRC_LEN).collect();
        for &at in &covered {
            let mut frame = vec![0; 1514];
            Source::new(&transfer, WorkingSet::SINGLE).unwrap().build(&mut frame);
            frame[at] ^= 1;
            let placed = std::panic::catch_unwind(|| {
                Sink::new(&transfer, WorkingSet::SINGLE).unwrap().place(&frame)
            });
            assert!(placed.is_err(), "byte {at}");
        }
    }
}
