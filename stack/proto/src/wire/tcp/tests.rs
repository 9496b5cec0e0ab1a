//! Tests of TCP headers: round trips, parsing by smoltcp, golden bytes and malformed frames.

use core::net::SocketAddr;

use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire as smol;

use super::*;
use crate::wire::ip::{DSCP_MAX, IpFields, Packet};

pub(super) const MACS: ([u8; 6], [u8; 6]) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);

const ECN: [Ecn; 4] = [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce];

pub(super) struct Frame<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) head: usize,
    pub(super) checksum: ChecksumState,
}

impl<'a> Frame<'a> {
    pub(super) fn contiguous(bytes: &'a [u8]) -> Self {
        Self { bytes, head: bytes.len(), checksum: ChecksumState::Unknown }
    }
}

impl RxFrame for Frame<'_> {
    fn head(&self) -> &[u8] {
        &self.bytes[..self.head]
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn copy_out(&self, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.bytes[offset..offset + out.len()]);
    }

    fn checksum(&self) -> ChecksumState {
        self.checksum
    }
}

pub(super) fn tuple(v6: bool) -> FourTuple {
    let (local, remote) = if v6 {
        ("[fd00::1]:4420", "[fd00::2]:40000")
    } else {
        ("198.18.0.1:4420", "198.18.0.2:1")
    };
    FourTuple { local: local.parse().unwrap(), remote: remote.parse().unwrap() }
}

fn reversed(tuple: FourTuple) -> FourTuple {
    FourTuple { local: tuple.remote, remote: tuple.local }
}

/// Returns a frame as sent by `tuple.local`, with payload bytes that count up.
fn frame(v6: bool, fields: &Fields, payload_len: usize, mode: ChecksumMode) -> Vec<u8> {
    let template = HeaderTemplate::new(MACS.0, MACS.1, tuple(v6));
    let start = template.base_len() + fields.options.wire_len();
    let mut buf = vec![0xaa; start + payload_len];
    for (byte, value) in buf[start..].iter_mut().zip((0..=255).cycle()) {
        *byte = value;
    }
    let len = template.emit(&mut buf, fields, payload_len, mode);
    assert_eq!(len, buf.len());
    buf
}

fn parse(bytes: &[u8]) -> Result<Segment, ParseError> {
    Segment::parse(&Frame::contiguous(bytes), ChecksumMode::Software)
}

fn options() -> impl Strategy<Value = Options> {
    let sack = prop::collection::vec(any::<(u32, u32)>(), 0..=4);
    let syn = (any::<Option<u16>>(), prop::option::of(0..=14u8), any::<bool>());
    (syn, sack, any::<Option<(u32, u32)>>()).prop_map(|((mss, wscale, permitted), sack, ts)| {
        // No SACK blocks next to the options of a SYN: they would not fit.
        let syn = mss.is_some() || wscale.is_some() || permitted;
        let max = if syn {
            0
        } else if ts.is_some() {
            3
        } else {
            4
        };
        let sack = sack.into_iter().take(max).map(|(a, b)| (Seq(a), Seq(b))).collect();
        Options { mss, wscale, sack_permitted: permitted, sack, ts }
    })
}

fn fields() -> impl Strategy<Value = Fields> {
    let ecn = prop::sample::select(&ECN[..]);
    (any::<(u32, u32, u8, u16)>(), ecn, options()).prop_map(
        |((seq, ack, flags, window), ecn, options)| Fields {
            seq: Seq(seq),
            ack: Seq(ack),
            flags: Flags(flags),
            window,
            ecn,
            options,
        },
    )
}

proptest! {
    #[test]
    fn emitted_segment_parses_back(fields in fields(), v6: bool, len in 0usize..2000,
                              cut in 0usize..2000) {
        let bytes = frame(v6, &fields, len, ChecksumMode::Software);
        // The frame in one buffer, and in two with the split anywhere after the headers.
        let headers = bytes.len() - len;
        for head in [bytes.len(), headers + cut.min(len)] {
            let rx = Frame { bytes: &bytes, head, checksum: ChecksumState::Unknown };
            let seg = Segment::parse(&rx, ChecksumMode::Software).unwrap();
            prop_assert_eq!(seg.tuple, reversed(tuple(v6)));
            prop_assert_eq!((seg.seq, seg.ack, seg.flags, seg.window, seg.ecn),
                            (fields.seq, fields.ack, fields.flags, fields.window, fields.ecn));
            prop_assert_eq!(&seg.options, &fields.options);
            prop_assert_eq!(seg.payload.clone(), headers..bytes.len());
        }
    }

    #[test]
    fn emitted_segment_is_parsed_by_smoltcp(fields in fields(), v6: bool, len in 0usize..300) {
        let bytes = frame(v6, &fields, len, ChecksumMode::Software);
        let ethernet = smol::EthernetFrame::new_checked(&bytes[..]).unwrap();
        let caps = ChecksumCapabilities::default();
        let tuple = tuple(v6);
        let (src, dst) = (tuple.local.ip().into(), tuple.remote.ip().into());
        let payload = if v6 {
            let ip = smol::Ipv6Packet::new_checked(ethernet.payload()).unwrap();
            smol::Ipv6Repr::parse(&ip).unwrap();
            prop_assert_eq!(ip.traffic_class(), fields.ecn as u8);
            prop_assert_eq!(ip.flow_label(), 0);
            ip.into_inner()[40..].to_vec()
        } else {
            let ip = smol::Ipv4Packet::new_checked(ethernet.payload()).unwrap();
            prop_assert!(ip.verify_checksum() && ip.dont_frag() && !ip.more_frags());
            smol::Ipv4Repr::parse(&ip, &caps).unwrap();
            prop_assert_eq!((ip.dscp(), ip.ecn()), (0, fields.ecn as u8));
            ip.payload().to_vec()
        };
        let tcp = smol::TcpPacket::new_checked(&payload[..]).unwrap();
        prop_assert!(tcp.verify_checksum(&src, &dst));
        prop_assert_eq!(tcp.seq_number().0, fields.seq.0.cast_signed());
        prop_assert_eq!(tcp.window_len(), fields.window);
        prop_assert_eq!(tcp.payload().len(), len);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200),
                               flips in prop::collection::vec((0usize..90, any::<u8>()), 1..4),
                               v6: bool, head in 0usize..200) {
        let _ = parse(&bytes);
        let mut bytes = frame(v6, &syn(), 30, ChecksumMode::NotNeeded);
        for (at, value) in flips {
            bytes[at] = value;
        }
        let head = head.min(bytes.len());
        let rx = Frame { bytes: &bytes, head, checksum: ChecksumState::Good };
        if let Ok(seg) = Segment::parse(&rx, ChecksumMode::NotNeeded) {
            prop_assert!(seg.payload.start <= seg.payload.end && seg.payload.end <= bytes.len());
        }
    }

    #[test]
    fn bit_error_is_detected_by_checksum(v6: bool, at in 14usize..150, bit in 0u8..8) {
        let mut bytes = frame(v6, &syn(), 80, ChecksumMode::Software);
        let at = at.min(bytes.len() - 1);
        bytes[at] ^= 1 << bit;
        // Over IPv6 the checksum does not cover traffic class, flow label and hop limit.
        let uncovered = v6 && matches!(at, 14..=17 | 21);
        prop_assert!(uncovered || parse(&bytes).is_err());
    }
}

fn syn() -> Fields {
    Fields {
        seq: Seq(7),
        flags: Flags::SYN,
        window: 1000,
        options: Options {
            mss: Some(1460),
            wscale: Some(3),
            sack_permitted: true,
            ts: Some((1, 0)),
            ..Options::default()
        },
        ..Fields::default()
    }
}

fn data() -> Fields {
    Fields { flags: Flags::ACK, options: Options::timestamps(Some((1, 2))), ..Fields::default() }
}

#[test]
fn syn_matches_golden_bytes() {
    let bytes = frame(false, &syn(), 0, ChecksumMode::Software);
    let expected: &[u8] = &[
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00, // Ethernet
        0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 6, 0xae, 0x94, 198, 18, 0, 1, 198, 18, 0,
        2, // IPv4
        0x11, 0x44, 0, 1, 0, 0, 0, 7, 0, 0, 0, 0, 0xa0, 0x02, 0x03, 0xe8, 0xa6, 0xa7, 0,
        0, // TCP
        2, 4, 0x05, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 3, // options
    ];
    assert_eq!(bytes, expected);
}

#[test]
fn checksum_field_holds_pseudo_header_sum_under_offload() {
    for v6 in [false, true] {
        let l4 = if v6 { 54 } else { 34 };
        let bytes = frame(v6, &data(), 100, ChecksumMode::NotNeeded);
        assert_eq!(bytes[l4 + 16..l4 + 18], [0, 0]);
        for mode in [ChecksumMode::OffloadTcp, ChecksumMode::Offload] {
            let mut bytes = frame(v6, &data(), 100, mode);
            // The port sums TCP header and payload, the pseudo-header sum in the field included.
            let sum = !checksum::sum(&bytes[l4..]);
            bytes[l4 + 16..l4 + 18].copy_from_slice(&sum.to_be_bytes());
            if !v6 && mode == ChecksumMode::Offload {
                assert_eq!(bytes[24..26], [0, 0]);
                let sum = !checksum::sum(&bytes[14..34]);
                bytes[24..26].copy_from_slice(&sum.to_be_bytes());
            }
            assert!(parse(&bytes).is_ok());
        }
    }
}

#[test]
fn rx_checksum_state_decides_under_offload() {
    let mut bytes = frame(false, &data(), 100, ChecksumMode::Software);
    bytes[100] ^= 1;
    let check = |mode, checksum| {
        Segment::parse(&Frame { bytes: &bytes, head: bytes.len(), checksum }, mode).err()
    };
    let bad = Some(ParseError::BadTcpChecksum);
    assert_eq!(check(ChecksumMode::Offload, ChecksumState::Good), None);
    assert_eq!(check(ChecksumMode::OffloadTcp, ChecksumState::TransportGood), None);
    assert_eq!(check(ChecksumMode::Offload, ChecksumState::Unknown), bad);
    assert_eq!(check(ChecksumMode::Offload, ChecksumState::Bad), bad);
    assert_eq!(check(ChecksumMode::Software, ChecksumState::Unknown), bad);
    assert_eq!(check(ChecksumMode::NotNeeded, ChecksumState::Unknown), None);
}

#[test]
fn ipv4_header_is_verified_unless_the_port_has_done_so() {
    let mut bytes = frame(false, &data(), 100, ChecksumMode::Software);
    // Identification, which nothing else covers.
    bytes[18] ^= 1;
    let check = |checksum| {
        let rx = Frame { bytes: &bytes, head: bytes.len(), checksum };
        let template = HeaderTemplate::new(MACS.1, MACS.0, reversed(tuple(false)));
        let is_plain = template.parse_plain(&rx, ChecksumMode::OffloadTcp).is_some();
        let parsed = Segment::parse(&rx, ChecksumMode::OffloadTcp);
        assert_eq!(is_plain, parsed.is_ok(), "{checksum:?}");
        parsed.err()
    };
    assert_eq!(check(ChecksumState::Good), None);
    for checksum in [ChecksumState::TransportGood, ChecksumState::Unknown] {
        assert_eq!(check(checksum), Some(ParseError::BadIpChecksum), "{checksum:?}");
    }
}

#[test]
fn ethernet_padding_is_not_payload() {
    let mut bytes =
        frame(false, &Fields { flags: Flags::ACK, ..Fields::default() }, 0, ChecksumMode::Software);
    bytes.resize(60, 0x55);
    let seg = parse(&bytes).unwrap();
    assert_eq!(seg.payload, 54..54);
    assert_eq!(seg.seq_len(), 0);
}

#[test]
fn each_malformation_has_its_error() {
    let good = frame(false, &data(), 10, ChecksumMode::NotNeeded);
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        Segment::parse(&Frame::contiguous(&bytes), ChecksumMode::NotNeeded).map(|_| ())
    };
    assert_eq!(with(0, 9), Ok(()));
    assert_eq!(with(13, 6), Err(ParseError::NotIp));
    assert_eq!(with(14, 0x65), Err(ParseError::BadVersion));
    assert_eq!(with(14, 0x44), Err(ParseError::BadHeaderLength));
    assert_eq!(with(17, 255), Err(ParseError::Truncated));
    assert_eq!(with(20, 0x20), Err(ParseError::Fragment));
    assert_eq!(with(21, 1), Err(ParseError::Fragment));
    assert_eq!(with(23, 17), Err(ParseError::NotTcp));
    assert_eq!(with(26, 255), Err(ParseError::BadAddress));
    assert_eq!(with(26, 0), Err(ParseError::BadAddress));
    assert_eq!(with(46, 0x40), Err(ParseError::BadHeaderLength));
    assert_eq!(with(46, 0xf0), Err(ParseError::BadHeaderLength));
    assert_eq!(with(57, 0), Err(ParseError::BadOption));
    assert_eq!(with(57, 99), Err(ParseError::BadOption));
    let mut bytes = frame(false, &data(), 10, ChecksumMode::Software);
    bytes[22] ^= 1;
    assert_eq!(parse(&bytes), Err(ParseError::BadIpChecksum));
    let short = Frame { bytes: &bytes, head: 40, checksum: ChecksumState::Good };
    assert_eq!(Segment::parse(&short, ChecksumMode::Software), Err(ParseError::Truncated));
}

#[test]
fn flow_label_has_20_bits_beside_traffic_class() {
    let mut template = HeaderTemplate::new(MACS.0, MACS.1, tuple(true));
    for (label, expected) in [(0, 0), (0x1_2345, 0x1_2345), (0xffff_ffff, 0xf_ffff)] {
        template.set_flow_label(label);
        let mut buf = [0; MAX_HEADER_LEN];
        let fields = Fields { ecn: Ecn::Ce, ..data() };
        let len = template.emit(&mut buf, &fields, 0, ChecksumMode::Software);
        assert_eq!(parse(&buf[..len]).unwrap().tuple.local, tuple(true).remote);
        let ip = smol::Ipv6Packet::new_checked(&buf[14..len]).unwrap();
        assert_eq!((ip.flow_label(), ip.traffic_class(), ip.version()), (expected, 3, 6));
    }
}

proptest! {
    #[test]
    fn ip_fields_are_in_every_header_beside_ecn_and_flow_label(
        fields in fields(), v6: bool, dscp in 0..=DSCP_MAX, ttl in 1..=u8::MAX,
        label in 0..1u32 << 20,
    ) {
        let chosen = IpFields { dscp, ttl };
        let mut template = HeaderTemplate::new(MACS.0, MACS.1, tuple(v6));
        template.set_ip_fields(IpFields { dscp: DSCP_MAX, ttl: u8::MAX });
        if v6 {
            template.set_flow_label(label);
        }
        template.set_ip_fields(chosen);
        prop_assert_eq!(template.ip_fields(), chosen);
        prop_assert_eq!(template.tuple(), tuple(v6));
        prop_assert!(template.matches(&tuple(v6)));
        for mode in [ChecksumMode::Software, ChecksumMode::OffloadTcp] {
            let mut buf = [0x5a; MAX_HEADER_LEN];
            let len = template.emit(&mut buf, &fields, 0, mode);
            let ip = Packet::parse(&buf[..len], len, 14, true).unwrap();
            prop_assert_eq!((ip.traffic_class >> 2, ip.hop_limit), (dscp, ttl));
            prop_assert_eq!(ip.traffic_class & 3, fields.ecn as u8);
            if v6 {
                let ip = smol::Ipv6Packet::new_checked(&buf[14..len]).unwrap();
                prop_assert_eq!((ip.flow_label(), ip.version()), (label, 6));
            }
        }
    }
}

#[test]
fn rst_reply_follows_rfc_9293_section_3_10_7_1() {
    let reply = |fields: &Fields, payload_len| {
        let seg = parse(&frame(true, fields, payload_len, ChecksumMode::Software)).unwrap();
        let mut buf = [0; MAX_HEADER_LEN];
        let template = HeaderTemplate::new(MACS.1, MACS.0, seg.tuple);
        let len = template.emit(&mut buf, &rst_reply(&seg)?, 0, ChecksumMode::Software);
        Some(parse(&buf[..len]).unwrap())
    };
    let to_ack = reply(&Fields { ack: Seq(77), ..data() }, 5).unwrap();
    assert_eq!((to_ack.seq, to_ack.flags), (Seq(77), Flags::RST));
    assert_eq!(to_ack.tuple, tuple(true));
    let to_syn = reply(&syn(), 0).unwrap();
    assert_eq!((to_syn.seq, to_syn.ack, to_syn.flags), (Seq(0), Seq(8), Flags::RST | Flags::ACK));
    assert_eq!(reply(&Fields { flags: Flags::RST, ..data() }, 0), None);
}

#[test]
fn mixed_address_families_panic() {
    let local: SocketAddr = "198.18.0.1:1".parse().unwrap();
    let remote: SocketAddr = "[fd00::1]:1".parse().unwrap();
    let made = std::panic::catch_unwind(|| {
        HeaderTemplate::new(MACS.0, MACS.1, FourTuple { local, remote })
    });
    assert!(made.is_err(), "two families cannot be one connection");
}
