use proptest::prelude::*;

use super::*;
use crate::device::ChecksumMode;
use crate::time::MILLISECOND;
use crate::wire::link::Link;
use crate::wire::seq::Seq;
use crate::wire::tcp::{Fields, Flags, FourTuple, HeaderTemplate, Segment};

const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];

/// A TCP segment with this much payload, counting up.
fn whole(v6: bool, vlan: Option<u16>, payload_len: usize) -> Vec<u8> {
    let (local, remote) =
        if v6 { ("[2001:2::2]:9", "[2001:2::1]:7") } else { ("198.18.0.2:9", "198.18.0.1:7") };
    let tuple = FourTuple { local: local.parse().unwrap(), remote: remote.parse().unwrap() };
    let template = HeaderTemplate::on(Link { mac: MACS[1], vlan }, MACS[0], tuple);
    let fields = Fields { seq: Seq(5), flags: Flags::ACK, window: 77, ..Fields::default() };
    let at = template.base_len();
    let mut frame: Vec<u8> = vec![0; at];
    frame.extend((0..payload_len).map(|at| (at % 251) as u8));
    template.emit(&mut frame, &fields, payload_len, ChecksumMode::Software);
    frame
}

/// Octets `range` of what follows the IP header of `frame`, as a fragment.
fn cut(frame: &[u8], l3: usize, id: u32, range: core::ops::Range<usize>, more: bool) -> Vec<u8> {
    let is_v4 = frame[l3] >> 4 == 4;
    let l4 = l3 + if is_v4 { 20 } else { 40 };
    let mut part = frame[..l4].to_vec();
    let payload = &frame[l4..][range.clone()];
    let ip = &mut part[l3..];
    if is_v4 {
        let total = 20 + payload.len() as u16;
        ip[2..4].copy_from_slice(&total.to_be_bytes());
        ip[4..6].copy_from_slice(&(id as u16).to_be_bytes());
        let place = (range.start / 8) as u16 | if more { 0x2000 } else { 0 };
        ip[6..8].copy_from_slice(&place.to_be_bytes());
        ip[10..12].fill(0);
        let sum = !checksum::sum(ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        let len = 8 + payload.len() as u16;
        ip[4..6].copy_from_slice(&len.to_be_bytes());
        let next = core::mem::replace(&mut ip[6], 44);
        let place = range.start as u16 | u16::from(more);
        part.extend([next, 0]);
        part.extend(place.to_be_bytes());
        part.extend(id.to_be_bytes());
    }
    part.extend(payload);
    part
}

struct Bed {
    fragments: Fragments,
    now: Instant,
}

impl Bed {
    fn new() -> Self {
        Self { fragments: Fragments::new(FragmentConfig::default()), now: Instant::ZERO }
    }

    fn take(&mut self, octets: &[u8]) -> Taken {
        let l3 = if octets[12] == 0x81 { 18 } else { 14 };
        let packet = Packet::parse(octets, octets.len(), l3, true).unwrap();
        let part = packet.fragment.expect("a fragment");
        let taken = self.fragments.take(self.now, &Whole(octets.to_vec()), &packet, &part);
        self.check();
        taken
    }

    /// The bounds hold, and what is counted is there.
    fn check(&self) {
        let Fragments { config, packets, octets, .. } = &self.fragments;
        assert!(packets.len() <= config.packets_max && *octets <= config.octets_max);
        assert_eq!(packets.iter().map(Partial::cost).sum::<usize>(), *octets);
    }
}

fn segment_of(taken: &Taken, tagged: bool) -> Segment {
    let Taken::Whole(whole) = taken else { panic!("{taken:?}") };
    let parsed = if tagged {
        Segment::parse_tagged(whole, ChecksumMode::Software)
    } else {
        Segment::parse(whole, ChecksumMode::Software)
    };
    parsed.unwrap()
}

// req-test: MPA-168, MPA-170
#[test]
fn pieces_in_any_order_make_the_segment() {
    for v6 in [false, true] {
        for vlan in [None, Some(9)] {
            let frame = whole(v6, vlan, 3000);
            let l3 = if vlan.is_some() { 18 } else { 14 };
            let len = frame.len() - l3 - if v6 { 40 } else { 20 };
            let parts = [
                cut(&frame, l3, 7, 0..1480, true),
                cut(&frame, l3, 7, 1480..2960, true),
                cut(&frame, l3, 7, 2960..len, false),
            ];
            for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [1, 0, 2]] {
                let mut bed = Bed::new();
                assert_eq!(bed.take(&parts[order[0]]), Taken::Kept);
                assert_eq!(bed.take(&parts[order[1]]), Taken::Kept);
                // Repeated by the wire.
                assert_eq!(bed.take(&parts[order[0]]), Taken::Kept);
                let taken = bed.take(&parts[order[2]]);
                let segment = segment_of(&taken, vlan.is_some());
                assert_eq!((segment.payload.len(), segment.window), (3000, 77));
                let Taken::Whole(Whole(octets)) = taken else { unreachable!() };
                assert_eq!(octets[l3 + if v6 { 40 } else { 20 }..], frame[frame.len() - len..]);
                assert_eq!((bed.fragments.octets, bed.fragments.packets.len()), (0, 0));
            }
        }
    }
}

#[test]
fn packets_do_not_mix() {
    let (a, b) = (whole(false, None, 100), whole(false, None, 100));
    let mut bed = Bed::new();
    assert_eq!(bed.take(&cut(&a, 14, 1, 0..64, true)), Taken::Kept);
    assert_eq!(bed.take(&cut(&b, 14, 2, 64..120, false)), Taken::Kept);
    let mut other = a.clone();
    other[29] = 3;
    assert_eq!(bed.take(&cut(&other, 14, 1, 64..120, false)), Taken::Kept);
    segment_of(&bed.take(&cut(&a, 14, 1, 64..120, false)), false);
    segment_of(&bed.take(&cut(&b, 14, 2, 0..64, true)), false);
}

#[test]
fn overlaps_give_the_packet_up_for_good() {
    for v6 in [false, true] {
        let frame = whole(v6, None, 300);
        let part = |range, more| cut(&frame, 14, 7, range, more);
        let clashes = [
            // Teardrop, a piece across a border, within another, around others.
            [part(0..80, true), part(40..320, false)],
            [part(40..120, true), part(0..48, true)],
            [part(0..160, true), part(80..88, true)],
            [part(80..88, true), part(0..160, true)],
            // Two ends, and something behind the end.
            [part(80..160, false), part(160..320, false)],
            [part(80..160, false), part(160..240, true)],
            [part(160..240, true), part(80..100, false)],
        ];
        for [first, second] in clashes {
            let mut bed = Bed::new();
            assert_eq!(bed.take(&first), Taken::Kept);
            assert_eq!(bed.take(&second), Taken::Refused);
            // Nothing of it comes together later.
            for range in [0..80, 80..160, 160..320] {
                let more = range.end < 320;
                assert_eq!(bed.take(&part(range, more)), Taken::Refused);
            }
            assert_eq!((bed.fragments.given_up(), bed.fragments.octets), (1, PACKET_OVERHEAD));
            bed.now = bed.now + 15 * SECOND;
            assert_eq!(bed.take(&part(0..80, true)), Taken::Kept, "its name is free again");
        }
        // The same place with other octets.
        let mut bed = Bed::new();
        assert_eq!(bed.take(&part(80..160, true)), Taken::Kept);
        let mut other = part(80..160, true);
        *other.last_mut().unwrap() ^= 1;
        assert_eq!(bed.take(&other), Taken::Refused);
    }
}

#[test]
fn what_no_packet_can_have_is_refused() {
    let frame = whole(false, None, 300);
    let mut bed = Bed::new();
    // Shorter than the TCP header; not a multiple of eight; beyond the largest packet; empty.
    assert_eq!(bed.take(&cut(&frame, 14, 1, 0..16, true)), Taken::Refused);
    assert_eq!(bed.take(&cut(&frame, 14, 2, 0..81, true)), Taken::Refused);
    let mut beyond = cut(&frame, 14, 3, 0..80, false);
    beyond[20..22].copy_from_slice(&0x1fff_u16.to_be_bytes());
    let sum = {
        beyond[24..26].fill(0);
        !checksum::sum(&beyond[14..34])
    };
    beyond[24..26].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(bed.take(&beyond), Taken::Refused);
    assert_eq!(bed.take(&cut(&frame, 14, 4, 80..80, true)), Taken::Refused);
    assert!(bed.fragments.packets.is_empty());
    // A TCP header said to be longer than the first piece.
    let mut long = frame.clone();
    long[14 + 20 + 12] = 0xf0;
    assert_eq!(bed.take(&cut(&long, 14, 5, 0..56, true)), Taken::Refused);
    // Pieces that would make it longer than an IPv4 packet with its header.
    let large = whole(false, None, 1000);
    for start in (0..65_536 - 1024).step_by(1024) {
        let mut part = cut(&large, 14, 6, 0..1016, true);
        let place = (start as u16 / 8) | 0x2000;
        part[20..22].copy_from_slice(&place.to_be_bytes());
        part[24..26].fill(0);
        let sum = !checksum::sum(&part[14..34]);
        part[24..26].copy_from_slice(&sum.to_be_bytes());
        let _ = bed.take(&part);
    }
}

#[test]
fn a_fragment_alone_stands_for_itself() {
    let frame = whole(true, None, 100);
    let mut bed = Bed::new();
    assert_eq!(bed.take(&cut(&frame, 14, 7, 0..64, true)), Taken::Kept);
    let taken = bed.take(&cut(&frame, 14, 7, 0..120, false));
    assert_eq!(taken, Taken::Whole(Whole(frame.clone())));
    segment_of(&bed.take(&cut(&frame, 14, 7, 64..120, false)), false);
}

#[test]
fn too_late_is_too_late() {
    let frame = whole(false, None, 100);
    let mut bed = Bed::new();
    assert_eq!(bed.take(&cut(&frame, 14, 7, 0..64, true)), Taken::Kept);
    bed.now = bed.now + (15 * SECOND - 1);
    let mut in_time = Bed { now: bed.now, ..Bed::new() };
    assert_eq!(in_time.take(&cut(&frame, 14, 7, 0..64, true)), Taken::Kept);
    segment_of(&in_time.take(&cut(&frame, 14, 7, 64..120, false)), false);
    bed.now = bed.now + 1;
    assert_eq!(bed.take(&cut(&frame, 14, 7, 64..120, false)), Taken::Kept);
    assert_eq!(bed.fragments.given_up(), 1);
}

#[test]
fn congestion_of_one_is_congestion_of_all() {
    for (v6, at, capable, marked) in [(false, 15, 2, 3), (true, 15, 0x20, 0x30)] {
        let frame = whole(v6, None, 100);
        for (class, expected) in [(capable, marked), (0, 0)] {
            let mut bed = Bed::new();
            let mut first = frame.clone();
            first[at] |= class;
            let mut second = frame.clone();
            second[at] |= marked;
            assert_eq!(bed.take(&cut(&first, 14, 7, 0..64, true)), Taken::Kept);
            let Taken::Whole(whole) = bed.take(&cut(&second, 14, 7, 64..120, false)) else {
                panic!("not whole");
            };
            assert_eq!(whole.0[at] & marked, expected);
        }
    }
}

// req-test: MPA-172
#[test]
fn a_flood_keeps_to_the_bounds_and_ends() {
    let frame = whole(true, None, 1400);
    let mut bed = Bed::new();
    for id in 0..10_000 {
        bed.now = bed.now + MILLISECOND;
        // Now a first piece, now one that claims a packet of 64 KiB.
        let mut part = cut(&frame, 14, id, 0..1400, true);
        if id % 2 == 1 {
            part[56..58].copy_from_slice(&(0xf000_u16 | 1).to_be_bytes());
        }
        assert_eq!(bed.take(&part), Taken::Kept);
    }
    assert_eq!(bed.fragments.packets.len(), 64);
    // Many pieces of few packets reach the bound of memory first.
    let mut most = 0;
    for start in (1400..64_000).step_by(1400) {
        for id in 20_000..20_040 {
            let mut part = cut(&frame, 14, id, 0..1400, true);
            part[56..58].copy_from_slice(&(start as u16 | 1).to_be_bytes());
            let _ = bed.take(&part);
            most = most.max(bed.fragments.octets);
        }
    }
    assert!(most > 1_000_000, "{most}");
    // Tiny pieces are bounded by their number.
    let mut bed = Bed::new();
    for start in (8..60_000).step_by(16) {
        let mut part = cut(&frame, 14, 1, 0..8, true);
        part.truncate(62 + 8);
        part[56..58].copy_from_slice(&(start as u16 & 0xfff8 | 1).to_be_bytes());
        let _ = bed.take(&part);
    }
    assert!(bed.fragments.packets[0].refused);
    // A packet still gets through.
    segment_of(
        &{
            assert_eq!(bed.take(&cut(&frame, 14, 2, 0..64, true)), Taken::Kept);
            bed.take(&cut(&frame, 14, 2, 64..1420, false))
        },
        false,
    );
}

proptest! {
    /// Against a byte map: whatever comes whole has the octets of the pieces, each place said
    /// once, and it comes whole exactly when the map is full.
    #[test]
    fn reassembly_agrees_with_a_byte_map(
        v6: bool,
        parts in prop::collection::vec((0usize..20, 1usize..8, any::<bool>()), 1..40),
        end in 10usize..20,
    ) {
        let frame = whole(v6, None, end * 8 - 20 + 5);
        let total = end * 8 + 5;
        let mut bed = Bed::new();
        let mut seen: Vec<(usize, usize)> = Vec::new();
        let (mut clash, mut done) = (false, false);
        for (start, len, to_end) in parts {
            if done {
                break;
            }
            // The first piece holds the TCP header, and only the last has an odd length.
            let start = (start * 8).min(end * 8);
            let stop = if to_end { total } else { (start + len * 8).min(end * 8) };
            let stop = if start == 0 { stop.max(24) } else { stop };
            if start >= stop || (start == 0 && stop == total) {
                continue;
            }
            let taken = bed.take(&cut(&frame, 14, 1, start..stop, stop != total));
            let known = seen.contains(&(start, stop));
            let overlaps = seen.iter().any(|&(from, to)| start < to && from < stop);
            clash |= overlaps && !known;
            if clash {
                prop_assert_eq!(taken, Taken::Refused);
                continue;
            }
            if !known {
                seen.push((start, stop));
            }
            let covered: usize = seen.iter().map(|(from, to)| to - from).sum();
            if covered == total {
                let Taken::Whole(whole) = taken else { panic!("{taken:?}") };
                let at = if v6 { 54 } else { 34 };
                prop_assert_eq!(&whole.0[at..], &frame[frame.len() - total..]);
                Segment::parse(&whole, ChecksumMode::Software).unwrap();
                done = true;
            } else {
                prop_assert_eq!(taken, Taken::Kept);
            }
        }
    }

    #[test]
    fn any_octets_are_survived(
        packets in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 48), any::<u16>(), 0u32..3, any::<bool>()), 1..30),
        v6: bool,
    ) {
        let mut bed = Bed::new();
        for (octets, place, id, last) in packets {
            let mut frame = whole(v6, None, 28);
            let at = frame.len() - 48;
            frame[at..].copy_from_slice(&octets);
            let mut part = cut(&frame, 14, id, 0..48, !last);
            let (at, place) = if v6 { (56, place & 0x7f) } else { (20, place & 0x200f) };
            part[at..at + 2].copy_from_slice(&place.to_be_bytes());
            if let Ok(packet) = Packet::parse(&part, part.len(), 14, false)
                && let Some(fragment) = packet.fragment
            {
                let _ = bed.fragments.take(bed.now, &Whole(part), &packet, &fragment);
                bed.check();
            }
        }
    }
}
