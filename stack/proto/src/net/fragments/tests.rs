use proptest::prelude::*;

use super::*;
use crate::device::ChecksumMode;
use crate::time::MILLISECOND;
use crate::wire::checksum;
use crate::wire::ethernet::EthernetLink;
use crate::wire::seq::Seq;
use crate::wire::tcp::{Fields, Flags, FourTuple, HeaderTemplate, Segment};

const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];

/// A TCP segment with `payload_len` bytes of payload that count up.
fn tcp_frame(v6: bool, vlan: Option<u16>, payload_len: usize) -> Vec<u8> {
    let (local, remote) =
        if v6 { ("[2001:2::2]:9", "[2001:2::1]:7") } else { ("198.18.0.2:9", "198.18.0.1:7") };
    let tuple = FourTuple { local: local.parse().unwrap(), remote: remote.parse().unwrap() };
    let template = HeaderTemplate::with_link(EthernetLink { mac: MACS[1], vlan }, MACS[0], tuple);
    let fields = Fields { seq: Seq(5), flags: Flags::ACK, window: 77, ..Fields::default() };
    let at = template.base_len();
    let mut frame: Vec<u8> = vec![0; at];
    frame.extend((0..payload_len).map(|at| (at % 251) as u8));
    template.emit(&mut frame, &fields, payload_len, ChecksumMode::Software);
    frame
}

/// Bytes `range` of the IP payload of `frame`, as a fragment.
fn fragment_of(
    frame: &[u8],
    l3: usize,
    id: u32,
    range: core::ops::Range<usize>,
    more: bool,
) -> Vec<u8> {
    let is_v4 = frame[l3] >> 4 == 4;
    let l4 = l3 + if is_v4 { 20 } else { 40 };
    let mut part = frame[..l4].to_vec();
    let payload = &frame[l4..][range.clone()];
    let ip = &mut part[l3..];
    if is_v4 {
        let total = 20 + payload.len() as u16;
        ip[2..4].copy_from_slice(&total.to_be_bytes());
        ip[4..6].copy_from_slice(&(id as u16).to_be_bytes());
        let frag_field = (range.start / 8) as u16 | if more { 0x2000 } else { 0 };
        ip[6..8].copy_from_slice(&frag_field.to_be_bytes());
        ip[10..12].fill(0);
        let sum = !checksum::sum(ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        let len = 8 + payload.len() as u16;
        ip[4..6].copy_from_slice(&len.to_be_bytes());
        let next = core::mem::replace(&mut ip[6], 44);
        let frag_field = range.start as u16 | u16::from(more);
        part.extend([next, 0]);
        part.extend(frag_field.to_be_bytes());
        part.extend(id.to_be_bytes());
    }
    part.extend(payload);
    part
}

struct Fixture {
    fragments: Reassembler,
    now: Instant,
}

impl Fixture {
    fn new() -> Self {
        Self { fragments: Reassembler::new(ReassemblyConfig::default()), now: Instant::ZERO }
    }

    fn on_fragment(&mut self, bytes: &[u8]) -> FragmentOutcome {
        let l3 = if bytes[12] == 0x81 { 18 } else { 14 };
        let packet = Packet::parse(bytes, bytes.len(), l3, true).unwrap();
        let part = packet.fragment.expect("a fragment");
        let outcome =
            self.fragments.on_fragment(self.now, &Reassembled(bytes.to_vec()), &packet, &part);
        self.check_limits();
        outcome
    }

    /// Checks the limits, and that the memory charged is that in use.
    fn check_limits(&self) {
        let Reassembler { config, queues: packets, bytes, .. } = &self.fragments;
        assert!(packets.len() <= config.packets_max && *bytes <= config.bytes_max);
        assert_eq!(packets.iter().map(FragmentQueue::cost).sum::<usize>(), *bytes);
    }
}

fn parse_reassembled(outcome: &FragmentOutcome, tagged: bool) -> Segment {
    let FragmentOutcome::Complete(reassembled) = outcome else { panic!("{outcome:?}") };
    let parsed = if tagged {
        Segment::parse_vlan(reassembled, ChecksumMode::Software)
    } else {
        Segment::parse(reassembled, ChecksumMode::Software)
    };
    parsed.unwrap()
}

// req-test: MPA-168, MPA-170
#[test]
fn fragments_in_any_order_are_reassembled() {
    for v6 in [false, true] {
        for vlan in [None, Some(9)] {
            let frame = tcp_frame(v6, vlan, 3000);
            let l3 = if vlan.is_some() { 18 } else { 14 };
            let len = frame.len() - l3 - if v6 { 40 } else { 20 };
            let parts = [
                fragment_of(&frame, l3, 7, 0..1480, true),
                fragment_of(&frame, l3, 7, 1480..2960, true),
                fragment_of(&frame, l3, 7, 2960..len, false),
            ];
            for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [1, 0, 2]] {
                let mut fx = Fixture::new();
                assert_eq!(fx.on_fragment(&parts[order[0]]), FragmentOutcome::Buffered);
                assert_eq!(fx.on_fragment(&parts[order[1]]), FragmentOutcome::Buffered);
                // Duplicated by the network.
                assert_eq!(fx.on_fragment(&parts[order[0]]), FragmentOutcome::Buffered);
                let outcome = fx.on_fragment(&parts[order[2]]);
                let segment = parse_reassembled(&outcome, vlan.is_some());
                assert_eq!((segment.payload.len(), segment.window), (3000, 77));
                let FragmentOutcome::Complete(Reassembled(bytes)) = outcome else { unreachable!() };
                assert_eq!(bytes[l3 + if v6 { 40 } else { 20 }..], frame[frame.len() - len..]);
                assert_eq!((fx.fragments.bytes, fx.fragments.queues.len()), (0, 0));
            }
        }
    }
}

#[test]
fn fragments_of_different_packets_do_not_mix() {
    let (a, b) = (tcp_frame(false, None, 100), tcp_frame(false, None, 100));
    let mut fx = Fixture::new();
    assert_eq!(fx.on_fragment(&fragment_of(&a, 14, 1, 0..64, true)), FragmentOutcome::Buffered);
    assert_eq!(fx.on_fragment(&fragment_of(&b, 14, 2, 64..120, false)), FragmentOutcome::Buffered);
    let mut other = a.clone();
    other[29] = 3;
    assert_eq!(
        fx.on_fragment(&fragment_of(&other, 14, 1, 64..120, false)),
        FragmentOutcome::Buffered
    );
    parse_reassembled(&fx.on_fragment(&fragment_of(&a, 14, 1, 64..120, false)), false);
    parse_reassembled(&fx.on_fragment(&fragment_of(&b, 14, 2, 0..64, true)), false);
}

#[test]
fn overlapping_fragments_discard_packet_until_timeout() {
    for v6 in [false, true] {
        let frame = tcp_frame(v6, None, 300);
        let part = |range, more| fragment_of(&frame, 14, 7, range, more);
        let clashes = [
            // Teardrop: overlaps of an end, of a start, inside another, around another.
            [part(0..80, true), part(40..320, false)],
            [part(40..120, true), part(0..48, true)],
            [part(0..160, true), part(80..88, true)],
            [part(80..88, true), part(0..160, true)],
            // Two last fragments; fragments after the last.
            [part(80..160, false), part(160..320, false)],
            [part(80..160, false), part(160..240, true)],
            [part(160..240, true), part(80..100, false)],
        ];
        for [first, second] in clashes {
            let mut fx = Fixture::new();
            assert_eq!(fx.on_fragment(&first), FragmentOutcome::Buffered);
            assert_eq!(fx.on_fragment(&second), FragmentOutcome::Rejected);
            // Later fragments do not complete the packet.
            for range in [0..80, 80..160, 160..320] {
                let more = range.end < 320;
                assert_eq!(fx.on_fragment(&part(range, more)), FragmentOutcome::Rejected);
            }
            assert_eq!((fx.fragments.failure_count(), fx.fragments.bytes), (1, PACKET_OVERHEAD));
            fx.now = fx.now + 15 * SECOND;
            assert_eq!(
                fx.on_fragment(&part(0..80, true)),
                FragmentOutcome::Buffered,
                "its key is free again"
            );
        }
        // Same offset, other bytes.
        let mut fx = Fixture::new();
        assert_eq!(fx.on_fragment(&part(80..160, true)), FragmentOutcome::Buffered);
        let mut other = part(80..160, true);
        *other.last_mut().unwrap() ^= 1;
        assert_eq!(fx.on_fragment(&other), FragmentOutcome::Rejected);
    }
}

#[test]
fn impossible_fragments_are_rejected() {
    let frame = tcp_frame(false, None, 300);
    let mut fx = Fixture::new();
    // Shorter than the TCP header; not a multiple of eight; beyond the largest packet; empty.
    assert_eq!(fx.on_fragment(&fragment_of(&frame, 14, 1, 0..16, true)), FragmentOutcome::Rejected);
    assert_eq!(fx.on_fragment(&fragment_of(&frame, 14, 2, 0..81, true)), FragmentOutcome::Rejected);
    let mut beyond = fragment_of(&frame, 14, 3, 0..80, false);
    beyond[20..22].copy_from_slice(&0x1fff_u16.to_be_bytes());
    let sum = {
        beyond[24..26].fill(0);
        !checksum::sum(&beyond[14..34])
    };
    beyond[24..26].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(fx.on_fragment(&beyond), FragmentOutcome::Rejected);
    assert_eq!(
        fx.on_fragment(&fragment_of(&frame, 14, 4, 80..80, true)),
        FragmentOutcome::Rejected
    );
    assert!(fx.fragments.queues.is_empty());
    // TCP header longer than the first fragment.
    let mut long = frame.clone();
    long[14 + 20 + 12] = 0xf0;
    assert_eq!(fx.on_fragment(&fragment_of(&long, 14, 5, 0..56, true)), FragmentOutcome::Rejected);
    // Fragments that would exceed the length of an IPv4 packet with its header.
    let large = tcp_frame(false, None, 1000);
    for start in (0..65_536 - 1024).step_by(1024) {
        let mut part = fragment_of(&large, 14, 6, 0..1016, true);
        let frag_field = (start as u16 / 8) | 0x2000;
        part[20..22].copy_from_slice(&frag_field.to_be_bytes());
        part[24..26].fill(0);
        let sum = !checksum::sum(&part[14..34]);
        part[24..26].copy_from_slice(&sum.to_be_bytes());
        let _ = fx.on_fragment(&part);
    }
}

#[test]
fn atomic_fragment_is_processed_on_its_own() {
    let frame = tcp_frame(true, None, 100);
    let mut fx = Fixture::new();
    assert_eq!(fx.on_fragment(&fragment_of(&frame, 14, 7, 0..64, true)), FragmentOutcome::Buffered);
    let outcome = fx.on_fragment(&fragment_of(&frame, 14, 7, 0..120, false));
    assert_eq!(outcome, FragmentOutcome::Complete(Reassembled(frame.clone())));
    parse_reassembled(&fx.on_fragment(&fragment_of(&frame, 14, 7, 64..120, false)), false);
}

#[test]
fn fragment_after_timeout_starts_new_packet() {
    let frame = tcp_frame(false, None, 100);
    let mut fx = Fixture::new();
    assert_eq!(fx.on_fragment(&fragment_of(&frame, 14, 7, 0..64, true)), FragmentOutcome::Buffered);
    fx.now = fx.now + (15 * SECOND - 1);
    let mut in_time = Fixture { now: fx.now, ..Fixture::new() };
    assert_eq!(
        in_time.on_fragment(&fragment_of(&frame, 14, 7, 0..64, true)),
        FragmentOutcome::Buffered
    );
    parse_reassembled(&in_time.on_fragment(&fragment_of(&frame, 14, 7, 64..120, false)), false);
    fx.now = fx.now + 1;
    assert_eq!(
        fx.on_fragment(&fragment_of(&frame, 14, 7, 64..120, false)),
        FragmentOutcome::Buffered
    );
    assert_eq!(fx.fragments.failure_count(), 1);
}

#[test]
fn ce_on_any_fragment_marks_reassembled_packet() {
    for (v6, at, capable, marked) in [(false, 15, 2, 3), (true, 15, 0x20, 0x30)] {
        let frame = tcp_frame(v6, None, 100);
        for (class, expected) in [(capable, marked), (0, 0)] {
            let mut fx = Fixture::new();
            let mut first = frame.clone();
            first[at] |= class;
            let mut second = frame.clone();
            second[at] |= marked;
            assert_eq!(
                fx.on_fragment(&fragment_of(&first, 14, 7, 0..64, true)),
                FragmentOutcome::Buffered
            );
            let FragmentOutcome::Complete(reassembled) =
                fx.on_fragment(&fragment_of(&second, 14, 7, 64..120, false))
            else {
                panic!("not whole");
            };
            assert_eq!(reassembled.0[at] & marked, expected);
        }
    }
}

// req-test: MPA-172
#[test]
fn fragment_flood_stays_within_packet_and_memory_limits() {
    let frame = tcp_frame(true, None, 1400);
    let mut fx = Fixture::new();
    for id in 0..10_000 {
        fx.now = fx.now + MILLISECOND;
        // Alternately a first fragment, and one that claims a packet of 64 KiB.
        let mut part = fragment_of(&frame, 14, id, 0..1400, true);
        if id % 2 == 1 {
            part[56..58].copy_from_slice(&(0xf000_u16 | 1).to_be_bytes());
        }
        assert_eq!(fx.on_fragment(&part), FragmentOutcome::Buffered);
    }
    assert_eq!(fx.fragments.queues.len(), 64);
    // Many fragments of few packets reach the memory limit first.
    let mut most = 0;
    for start in (1400..64_000).step_by(1400) {
        for id in 20_000..20_040 {
            let mut part = fragment_of(&frame, 14, id, 0..1400, true);
            part[56..58].copy_from_slice(&(start as u16 | 1).to_be_bytes());
            let _ = fx.on_fragment(&part);
            most = most.max(fx.fragments.bytes);
        }
    }
    assert!(most > 1_000_000, "{most}");
    // Tiny fragments are limited by number.
    let mut fx = Fixture::new();
    for start in (8..60_000).step_by(16) {
        let mut part = fragment_of(&frame, 14, 1, 0..8, true);
        part.truncate(62 + 8);
        part[56..58].copy_from_slice(&(start as u16 & 0xfff8 | 1).to_be_bytes());
        let _ = fx.on_fragment(&part);
    }
    assert!(fx.fragments.queues[0].rejected);
    // A packet can still be reassembled.
    parse_reassembled(
        &{
            assert_eq!(
                fx.on_fragment(&fragment_of(&frame, 14, 2, 0..64, true)),
                FragmentOutcome::Buffered
            );
            fx.on_fragment(&fragment_of(&frame, 14, 2, 64..1420, false))
        },
        false,
    );
}

proptest! {
    /// Against a byte map: a reassembled packet has the bytes of its fragments, each byte from one
    /// fragment, and is returned exactly when the map is full.
    #[test]
    fn reassembly_agrees_with_a_byte_map(
        v6: bool,
        parts in prop::collection::vec((0usize..20, 1usize..8, any::<bool>()), 1..40),
        end in 10usize..20,
    ) {
        let frame = tcp_frame(v6, None, end * 8 - 20 + 5);
        let total = end * 8 + 5;
        let mut fx = Fixture::new();
        let mut seen: Vec<(usize, usize)> = Vec::new();
        let (mut clash, mut done) = (false, false);
        for (start, len, to_end) in parts {
            if done {
                break;
            }
            // The first fragment holds the TCP header, and only the last has an odd length.
            let start = (start * 8).min(end * 8);
            let stop = if to_end { total } else { (start + len * 8).min(end * 8) };
            let stop = if start == 0 { stop.max(24) } else { stop };
            if start >= stop || (start == 0 && stop == total) {
                continue;
            }
            let outcome = fx.on_fragment(&fragment_of(&frame, 14, 1, start..stop, stop != total));
            let known = seen.contains(&(start, stop));
            let overlaps = seen.iter().any(|&(from, to)| start < to && from < stop);
            clash |= overlaps && !known;
            if clash {
                prop_assert_eq!(outcome, FragmentOutcome::Rejected);
                continue;
            }
            if !known {
                seen.push((start, stop));
            }
            let covered: usize = seen.iter().map(|(from, to)| to - from).sum();
            if covered == total {
                let FragmentOutcome::Complete(reassembled) = outcome else { panic!("{outcome:?}") };
                let at = if v6 { 54 } else { 34 };
                prop_assert_eq!(&reassembled.0[at..], &frame[frame.len() - total..]);
                Segment::parse(&reassembled, ChecksumMode::Software).unwrap();
                done = true;
            } else {
                prop_assert_eq!(outcome, FragmentOutcome::Buffered);
            }
        }
    }

    #[test]
    fn arbitrary_fragments_do_not_panic(
        packets in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 48), any::<u16>(), 0u32..3, any::<bool>()), 1..30),
        v6: bool,
    ) {
        let mut fx = Fixture::new();
        for (bytes, field, id, last) in packets {
            let mut frame = tcp_frame(v6, None, 28);
            let at = frame.len() - 48;
            frame[at..].copy_from_slice(&bytes);
            let mut part = fragment_of(&frame, 14, id, 0..48, !last);
            let (at, field) = if v6 { (56, field & 0x7f) } else { (20, field & 0x200f) };
            part[at..at + 2].copy_from_slice(&field.to_be_bytes());
            if let Ok(packet) = Packet::parse(&part, part.len(), 14, false)
                && let Some(fragment) = packet.fragment
            {
                let _ = fx.fragments.on_fragment(fx.now, &Reassembled(part), &packet, &fragment);
                fx.check_limits();
            }
        }
    }
}
