//! Tests of trains: which segments continue one.

use proptest::prelude::*;

use super::TrainHead;
use crate::device::{ChecksumMode, ChecksumState, RxFrame};
use crate::wire::ethernet::{ETHERNET_LEN, EthernetLink, VLAN_ETHERNET_LEN};
use crate::wire::tcp::tests::{Frame, MACS, tuple};
use crate::wire::tcp::{Ecn, Fields, Flags, HeaderTemplate, Options, Segment, Seq};

const PAYLOAD_LEN: usize = 100;

/// Layout of the headers: IPv6, VLAN tag, timestamps.
type Layout = (bool, bool, bool);

fn layouts() -> impl Iterator<Item = Layout> {
    (0..8).map(|bits| (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0))
}

fn fields(seq: u32, ts: bool) -> Fields {
    Fields {
        seq: Seq(seq),
        ack: Seq(77),
        flags: Flags::ACK,
        window: 1000,
        ecn: Ecn::Ect0,
        options: Options::timestamps(ts.then_some((5, 6))),
    }
}

/// Returns a segment of `len` bytes.
fn frame((v6, vlan, _): Layout, fields: &Fields, len: usize) -> Vec<u8> {
    let link = EthernetLink { mac: MACS.0, vlan: vlan.then_some(7) };
    let template = HeaderTemplate::with_link(link, MACS.1, tuple(v6));
    let header_len = template.base_len() + fields.options.wire_len();
    let mut buf = vec![0x5a; header_len + len];
    template.emit(&mut buf, fields, len, ChecksumMode::Software);
    buf
}

/// Returns the payload of `next` if it continues a train that begins with `first`.
fn continues(layout: Layout, mode: ChecksumMode, first: &[u8], next: &[u8]) -> Option<usize> {
    let next = Frame::contiguous(next);
    let first_frame = Frame::contiguous(first);
    let bytes = if layout.1 {
        let segment = Segment::parse_vlan(&first_frame, mode).unwrap();
        let seq = segment.seq + segment.payload_len();
        TrainHead::<VLAN_ETHERNET_LEN>::new(first, &segment, mode)?.payload_of_next(&next, seq)
    } else {
        let segment = Segment::parse(&first_frame, mode).unwrap();
        let seq = segment.seq + segment.payload_len();
        TrainHead::<ETHERNET_LEN>::new(first, &segment, mode)?.payload_of_next(&next, seq)
    };
    bytes.map(|bytes| bytes.len())
}

#[test]
fn next_segment_continues_a_train_in_every_layout() {
    for layout in layouts() {
        let first = frame(layout, &fields(0xffff_ffa0, layout.2), PAYLOAD_LEN);
        for len in [1, PAYLOAD_LEN, 1400] {
            for flags in [Flags::ACK, Flags::ACK | Flags::PSH] {
                let next = Fields { flags, ..fields(4, layout.2) };
                let next = frame(layout, &next, len);
                for mode in [ChecksumMode::NotNeeded, ChecksumMode::Software] {
                    assert_eq!(continues(layout, mode, &first, &next), Some(len), "{layout:?}");
                }
            }
        }
    }
}

#[test]
fn other_segments_end_a_train() {
    for layout in layouts() {
        let first = frame(layout, &fields(4, layout.2), PAYLOAD_LEN);
        let good = fields(104, layout.2);
        let ts = |ts| Options::timestamps(ts);
        let others = [
            ("gap", Fields { seq: Seq(105), ..good.clone() }, 9),
            ("repetition", Fields { seq: Seq(4), ..good.clone() }, 9),
            ("no payload", good.clone(), 0),
            ("acknowledgment", Fields { ack: Seq(78), ..good.clone() }, 9),
            ("window", Fields { window: 999, ..good.clone() }, 9),
            ("FIN", Fields { flags: Flags::ACK | Flags::FIN, ..good.clone() }, 9),
            ("CWR", Fields { flags: Flags::ACK | Flags::CWR, ..good.clone() }, 9),
            ("CE", Fields { ecn: Ecn::Ce, ..good.clone() }, 9),
            ("TSval", Fields { options: ts(Some((6, 6))), ..good.clone() }, 9),
            ("TSecr", Fields { options: ts(Some((5, 7))), ..good.clone() }, 9),
            ("SACK", Fields { options: sack(layout.2), ..good }, 9),
        ];
        for (name, fields, len) in others {
            let next = frame(layout, &fields, len);
            assert_eq!(continues(layout, ChecksumMode::NotNeeded, &first, &next), None, "{name}");
        }
    }
}

/// Options of the usual length, but with a SACK block.
fn sack(ts: bool) -> Options {
    let mut options = Options::timestamps(ts.then_some((5, 6)));
    options.sack.push((Seq(1), Seq(2)));
    options
}

#[test]
fn frame_in_several_parts_and_marked_frame_end_a_train() {
    let layout = (false, false, true);
    let first = frame(layout, &fields(4, true), PAYLOAD_LEN);
    let next = frame(layout, &fields(104, true), PAYLOAD_LEN);
    let mode = ChecksumMode::Offload;
    let segment = Segment::parse(&Frame::contiguous(&first), mode).unwrap();
    let head = TrainHead::<ETHERNET_LEN>::new(&first, &segment, mode).unwrap();
    let whole = Frame::contiguous(&next);
    assert!(head.payload_of_next(&whole, Seq(104)).is_some());
    let chained = Frame { head: next.len() - 1, ..Frame::contiguous(&next) };
    assert_eq!(head.payload_of_next(&chained, Seq(104)), None);
    let bad = Frame { checksum: ChecksumState::Bad, ..Frame::contiguous(&next) };
    assert_eq!(head.payload_of_next(&bad, Seq(104)), None);
    let padded = [&next[..], &[0; 6]].concat();
    let padded = head.payload_of_next(&Frame::contiguous(&padded), Seq(104));
    assert_eq!(padded.map(|bytes| bytes.len()), Some(PAYLOAD_LEN), "Ethernet padding");
    assert!(whole.len() > chained.head);
}

proptest! {
    /// Whatever changes in a frame: if it still continues the train, then the parser accepts it,
    /// too, and finds nothing changed that matters.
    #[test]
    fn changed_frame_continues_a_train_only_if_nothing_else_changed(
        layout in any::<Layout>(),
        at in 0usize..200,
        value in any::<u8>(),
    ) {
        let first = frame(layout, &fields(4, layout.2), PAYLOAD_LEN);
        let good = frame(layout, &fields(104, layout.2), PAYLOAD_LEN);
        let parse = |bytes: &[u8], mode| {
            let frame = Frame::contiguous(bytes);
            if layout.1 { Segment::parse_vlan(&frame, mode) } else { Segment::parse(&frame, mode) }
        };
        let mut changed = good.clone();
        let at = at % changed.len();
        changed[at] = value;
        for mode in [ChecksumMode::NotNeeded, ChecksumMode::Software] {
            let Some(len) = continues(layout, mode, &first, &changed) else { continue };
            let (expected, found) = (parse(&good, mode).unwrap(), parse(&changed, mode).unwrap());
            prop_assert_eq!(found.payload.len(), len);
            let flags = Flags(found.flags.0 & !Flags::PSH.0);
            let payload = expected.payload.clone();
            prop_assert_eq!(Segment { flags, payload, ..found }, expected);
            if mode == ChecksumMode::Software {
                // What the checksums do not cover: link header, hop limit and the like.
                prop_assert!(changed[..12] == good[..12]);
            }
        }
        // A train is not missed: an unchanged frame continues it.
        if changed == good {
            prop_assert!(continues(layout, ChecksumMode::Software, &first, &changed).is_some());
        }
    }
}
