//! Tests of plain segments: which frames are, and which continue a train.

use core::ops::Range;

use proptest::prelude::*;

use super::{PlainHeader, PlainSegment, plain_ports};
use crate::device::{ChecksumMode, ChecksumState};
use crate::wire::ethernet::EthernetLink;
use crate::wire::tcp::tests::{Frame, MACS, tuple};
use crate::wire::tcp::{
    Ecn, Fields, Flags, FourTuple, HeaderTemplate, Options, ParseError, Segment, Seq,
};

const PAYLOAD_LEN: usize = 100;
const MODES: [ChecksumMode; 2] = [ChecksumMode::NotNeeded, ChecksumMode::Software];

/// Layout of the headers: IPv6, VLAN tag, timestamps.
type Layout = (bool, bool, bool);

fn layouts() -> impl Iterator<Item = Layout> {
    (0..8).map(|bits| (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0))
}

fn header(seq: u32, ts: bool) -> PlainHeader {
    PlainHeader {
        seq: Seq(seq),
        ack: Seq(77),
        flags: Flags::ACK,
        window: 1000,
        ecn: Ecn::Ect0,
        ts: ts.then_some((5, 6)),
    }
}

/// Fields of a plain header.
fn fields(header: &PlainHeader) -> Fields {
    let &PlainHeader { seq, ack, flags, window, ecn, ts } = header;
    Fields { seq, ack, flags, window, ecn, options: Options::timestamps(ts) }
}

/// Templates of the sender and of the receiver.
fn templates((v6, vlan, _): Layout) -> [HeaderTemplate; 2] {
    let FourTuple { local, remote } = tuple(v6);
    let link = |mac| EthernetLink { mac, vlan: vlan.then_some(7) };
    [
        HeaderTemplate::with_link(link(MACS.0), MACS.1, FourTuple { local, remote }),
        HeaderTemplate::with_link(link(MACS.1), MACS.0, FourTuple { local: remote, remote: local }),
    ]
}

/// Returns a segment with `len` bytes of payload.
fn frame(layout: Layout, fields: &Fields, len: usize) -> Vec<u8> {
    let [template, _] = templates(layout);
    let mut buf = vec![0x5a; template.base_len() + fields.options.wire_len() + len];
    template.emit(&mut buf, fields, len, ChecksumMode::Software);
    buf
}

fn parse_plain(layout: Layout, bytes: &[u8], mode: ChecksumMode) -> Option<PlainSegment> {
    let [_, template] = templates(layout);
    template.parse_plain(&Frame::contiguous(bytes), mode)
}

fn payload(segment: &PlainSegment) -> Range<usize> {
    segment.payload_start.into()..segment.payload_end.into()
}

fn parse(layout: Layout, bytes: &[u8], mode: ChecksumMode) -> Option<Segment> {
    let frame = Frame::contiguous(bytes);
    let parsed =
        if layout.1 { Segment::parse_vlan(&frame, mode) } else { Segment::parse(&frame, mode) };
    parsed.ok()
}

#[test]
fn plain_segment_is_emitted_and_parsed_like_any_other() {
    for layout in layouts() {
        for (len, flags) in [(0, Flags::ACK), (1, Flags::ACK | Flags::PSH), (1400, Flags::ACK)] {
            let header = PlainHeader { flags, ..header(4, layout.2) };
            for mode in [MODES[0], MODES[1], ChecksumMode::Offload] {
                let [template, _] = templates(layout);
                let [mut plain, mut general] = [vec![0x5a; 1500], vec![0x5a; 1500]];
                let end = template.emit_plain(&mut plain, &header, len, mode);
                assert_eq!(template.emit(&mut general, &fields(&header), len, mode), end);
                assert_eq!(plain, general, "{layout:?} {mode:?}");
            }
            for mode in MODES {
                let bytes = frame(layout, &fields(&header), len);
                let segment = parse(layout, &bytes, mode).unwrap();
                let found = parse_plain(layout, &bytes, mode).expect("a plain segment");
                assert_eq!(segment.plain_header(), Some(found.header), "{layout:?}");
                let [remote, local] = [segment.tuple.remote, segment.tuple.local];
                let ports = u32::from(remote.port()) << 16 | u32::from(local.port());
                assert_eq!(plain_ports(&bytes), Some(ports));
                let [_, template] = templates(layout);
                assert_eq!(template.segment(&found, &bytes), Ok(segment.clone()));
                assert_eq!((found.header, payload(&found)), (header, segment.payload));
            }
        }
    }
}

#[test]
fn next_segment_continues_a_train_in_every_layout() {
    for layout in layouts() {
        let first = header(0xffff_ffa0, layout.2);
        for flags in [Flags::ACK, Flags::ACK | Flags::PSH] {
            let next = PlainHeader { flags, ..header(4, layout.2) };
            assert!(next.continues(&first, Seq(4)));
        }
    }
}

#[test]
fn other_segments_end_a_train() {
    let (first, good) = (header(4, true), header(104, true));
    let others = [
        ("gap", PlainHeader { seq: Seq(105), ..good }),
        ("repetition", PlainHeader { seq: Seq(4), ..good }),
        ("acknowledgment", PlainHeader { ack: Seq(78), ..good }),
        ("window", PlainHeader { window: 999, ..good }),
        ("FIN", PlainHeader { flags: Flags::ACK | Flags::FIN, ..good }),
        ("CWR", PlainHeader { flags: Flags::ACK | Flags::CWR, ..good }),
        ("CE", PlainHeader { ecn: Ecn::Ce, ..good }),
        ("TSval", PlainHeader { ts: Some((6, 6)), ..good }),
        ("TSecr", PlainHeader { ts: Some((5, 7)), ..good }),
        ("no timestamps", PlainHeader { ts: None, ..good }),
    ];
    for (name, next) in others {
        assert!(!next.continues(&first, Seq(104)), "{name}");
    }
    assert!(good.continues(&first, Seq(104)));
}

#[test]
fn other_options_are_parsed_when_they_are_wanted() {
    for layout in layouts() {
        let mut good = fields(&header(4, layout.2));
        good.options.sack.push((Seq(1), Seq(2)));
        let [_, template] = templates(layout);
        for mode in MODES {
            let bytes = frame(layout, &good, PAYLOAD_LEN);
            let found = parse_plain(layout, &bytes, mode).expect("plain but for its options");
            assert!(found.has_other_options);
            let segment = parse(layout, &bytes, mode);
            assert_eq!(segment.as_ref().map(|segment| segment.options.sack.len()), Some(1));
            assert_eq!(template.segment(&found, &bytes).ok(), segment);
        }
        // An option that is longer than all of them.
        let mut bytes = frame(layout, &good, PAYLOAD_LEN);
        let found = parse_plain(layout, &bytes, ChecksumMode::NotNeeded).unwrap();
        bytes[usize::from(found.payload_start) - 9] = 40;
        let found = parse_plain(layout, &bytes, ChecksumMode::NotNeeded).unwrap();
        assert_eq!(template.segment(&found, &bytes), Err(ParseError::BadOption));
        assert_eq!(parse(layout, &bytes, ChecksumMode::NotNeeded), None);
    }
}

#[test]
fn frames_with_other_headers_are_not_plain() {
    for layout in layouts() {
        let good = fields(&header(4, layout.2));
        let bytes = frame(layout, &good, PAYLOAD_LEN);
        assert!(parse_plain(layout, &bytes, ChecksumMode::Software).is_some());
        let base_len = templates(layout)[0].base_len();
        let change = |at: usize, value: u8| {
            let mut changed = bytes.clone();
            changed[at] = value;
            changed
        };
        let l3 = if layout.1 { 18 } else { 14 };
        let others = [
            ("other destination", change(5, 0x77)),
            ("other VLAN or EtherType", change(if layout.1 { 15 } else { 12 }, 0x77)),
            ("version", change(l3, 0x57)),
            ("protocol", change(l3 + if layout.0 { 6 } else { 9 }, 17)),
            ("address", change(l3 + if layout.0 { 23 } else { 15 }, 0x77)),
            ("port", change(base_len - 19, 0x77)),
            ("data offset", change(base_len - 8, 0x40)),
            ("cut off", bytes[..bytes.len() - 1].to_vec()),
        ];
        for (name, other) in others {
            let found = parse_plain(layout, &other, ChecksumMode::NotNeeded);
            assert_eq!(found, None, "{name} {layout:?}");
        }
        for len in 0..bytes.len() {
            assert_eq!(parse_plain(layout, &bytes[..len], ChecksumMode::NotNeeded), None);
        }
        if !layout.0 {
            let options = change(l3, 0x46);
            assert_eq!(parse_plain(layout, &options, ChecksumMode::NotNeeded), None, "options");
            for (at, value) in [(l3 + 6, 0x60), (l3 + 7, 1)] {
                let fragment = change(at, value);
                let found = parse_plain(layout, &fragment, ChecksumMode::NotNeeded);
                assert_eq!(found, None, "fragment");
            }
        }
    }
}

#[test]
fn frame_in_several_parts_and_marked_frame_are_not_plain() {
    let layout = (false, false, true);
    let bytes = frame(layout, &fields(&header(4, true)), PAYLOAD_LEN);
    let [_, template] = templates(layout);
    let mode = ChecksumMode::Offload;
    let whole = Frame::contiguous(&bytes);
    let expected = template.parse_plain(&whole, mode).unwrap();
    assert_eq!(payload(&expected).len(), PAYLOAD_LEN);
    let chained = Frame { head: bytes.len() - 1, ..Frame::contiguous(&bytes) };
    assert_eq!(template.parse_plain(&chained, mode), None);
    let bad = Frame { checksum: ChecksumState::Bad, ..Frame::contiguous(&bytes) };
    assert_eq!(template.parse_plain(&bad, mode), None);
    let padded = [&bytes[..], &[0; 6]].concat();
    let padded = template.parse_plain(&Frame::contiguous(&padded), mode).unwrap();
    assert_eq!(padded, expected, "Ethernet padding");
}

proptest! {
    /// Whatever changes in a frame: if it is still a plain segment of the connection, then the
    /// parser finds the same.
    #[test]
    fn changed_frame_is_parsed_as_the_parser_parses_it(
        layout in any::<Layout>(),
        at in 0usize..200,
        value in any::<u8>(),
    ) {
        let good = frame(layout, &fields(&header(4, layout.2)), PAYLOAD_LEN);
        let mut changed = good.clone();
        let at = at % changed.len();
        changed[at] = value;
        for mode in MODES {
            let Some(found) = parse_plain(layout, &changed, mode) else {
                prop_assert!(changed != good);
                continue;
            };
            let [_, template] = templates(layout);
            let segment = template.segment(&found, &changed);
            prop_assert_eq!(segment.clone().ok(), parse(layout, &changed, mode));
            prop_assert!(segment.is_ok() || found.has_other_options);
            prop_assert_eq!(&changed[..6], &MACS.1[..]);
        }
    }
}
