//! Tests of all ICMP error types and codes, and of mutated messages.

use proptest::prelude::*;

use super::*;
use crate::device::ChecksumMode;
use crate::wire::checksum;
use crate::wire::tcp::{Fields, HeaderTemplate, Options};

const SEQ: Seq = Seq(0xfedc_ba98);
const ACK: Seq = Seq(0x1357_9bdf);

fn tuple(v6: bool) -> FourTuple {
    let (local, remote): (IpAddr, IpAddr) = if v6 {
        (Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).into(), Ipv6Addr::LOCALHOST.into())
    } else {
        (Ipv4Addr::new(198, 18, 0, 1).into(), Ipv4Addr::new(198, 19, 7, 9).into())
    };
    FourTuple { local: SocketAddr::new(local, 50_001), remote: SocketAddr::new(remote, 4420) }
}

/// A data segment of this host as an IP packet.
fn segment(v6: bool, payload_len: usize) -> Vec<u8> {
    let template = HeaderTemplate::new([2; 6], [4; 6], tuple(v6));
    let mut frame = vec![0x5a; 14 + 40 + 60 + payload_len];
    let fields = Fields {
        seq: SEQ,
        ack: ACK,
        flags: Flags::ACK | Flags::PSH,
        options: Options::timestamps(Some((1, 2))),
        ..Fields::default()
    };
    let len = template.emit(&mut frame, &fields, payload_len, ChecksumMode::Software);
    frame[14..len].to_vec()
}

/// An ICMP error that quotes `quoted`, from a router to the local address.
fn message(v6: bool, kind: u8, code: u8, word: u32, quoted: &[u8]) -> Vec<u8> {
    let mut icmp = vec![kind, code, 0, 0];
    icmp.extend(word.to_be_bytes());
    icmp.extend(quoted);
    let len = icmp.len() as u16;
    let us = tuple(v6).local.ip();
    let mut packet = Vec::new();
    let pseudo = match us {
        IpAddr::V4(us) => {
            packet.extend([0x45, 0, 0, 0, 0, 0, 0, 0, 60, 1, 0, 0, 10, 1, 1, 1]);
            packet.extend(us.octets());
            packet[2..4].copy_from_slice(&(len + 20).to_be_bytes());
            let sum = !checksum::sum(&packet);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            0
        }
        IpAddr::V6(us) => {
            packet.extend([0x60, 0, 0, 0, 0, 0, 58, 60]);
            packet[4..6].copy_from_slice(&len.to_be_bytes());
            packet.extend(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 7).octets());
            packet.extend(us.octets());
            checksum::add(checksum::sum(&packet[8..40]), checksum::add(len, 58))
        }
    };
    let sum = !checksum::add(pseudo, checksum::sum(&icmp));
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    packet.extend(icmp);
    packet
}

/// Parses an error about a segment with 1400 bytes of payload that quotes `quoted_len` bytes of it.
fn parse(
    v6: bool,
    kind: u8,
    code: u8,
    word: u32,
    quoted_len: usize,
) -> Result<IcmpErrorKind, ParseError> {
    let quoted = segment(v6, 1400);
    let parsed = IcmpError::parse(&message(v6, kind, code, word, &quoted[..quoted_len]))?;
    assert_eq!((parsed.tuple, parsed.seq), (tuple(v6), SEQ));
    assert_eq!(parsed.packet_len as usize, quoted.len());
    Ok(parsed.kind)
}

#[test]
fn icmpv4_types_and_codes_map_to_error_kinds() {
    for code in 0..=15 {
        let expected = match code {
            2 => IcmpErrorKind::ProtocolUnreachable,
            3 => IcmpErrorKind::PortUnreachable,
            4 => IcmpErrorKind::PacketTooBig { mtu: Some(1280) },
            code => IcmpErrorKind::DestinationUnreachable { code },
        };
        assert_eq!(parse(false, 3, code, 1280, 28), Ok(expected));
        assert_eq!(expected.is_hard(), [2, 3].contains(&code));
    }
    assert_eq!(
        parse(false, 3, 4, 0, 28),
        Ok(IcmpErrorKind::PacketTooBig { mtu: None }),
        "before RFC 1191"
    );
    // The bytes before the MTU are unused, or give the length of the quoted data (RFC 4884).
    assert_eq!(
        parse(false, 3, 4, 0x0011_05dc, 28),
        Ok(IcmpErrorKind::PacketTooBig { mtu: Some(1500) })
    );
    assert_eq!(parse(false, 4, 0, 0, 28), Ok(IcmpErrorKind::SourceQuench));
    assert_eq!(parse(false, 11, 0, 0, 28), Ok(IcmpErrorKind::TimeExceeded));
    assert_eq!(parse(false, 11, 1, 0, 28), Ok(IcmpErrorKind::TimeExceeded));
    assert_eq!(parse(false, 12, 0, 0, 28), Ok(IcmpErrorKind::ParameterProblem));
    for kind in [0, 5, 8, 9, 13, 40, 255] {
        assert_eq!(parse(false, kind, 0, 0, 28), Err(ParseError::NotError), "type {kind}");
    }
}

#[test]
fn icmpv6_types_and_codes_map_to_error_kinds() {
    for code in 0..=7 {
        let expected = match code {
            4 => IcmpErrorKind::PortUnreachable,
            code => IcmpErrorKind::DestinationUnreachable { code },
        };
        assert_eq!(parse(true, 1, code, 0, 48), Ok(expected));
    }
    assert_eq!(parse(true, 2, 0, 1280, 48), Ok(IcmpErrorKind::PacketTooBig { mtu: Some(1280) }));
    assert_eq!(parse(true, 2, 0, 0, 48), Ok(IcmpErrorKind::PacketTooBig { mtu: Some(0) }));
    assert_eq!(
        parse(true, 2, 0, 0x1_0000, 48),
        Ok(IcmpErrorKind::PacketTooBig { mtu: Some(u16::MAX) })
    );
    assert_eq!(parse(true, 3, 0, 0, 48), Ok(IcmpErrorKind::TimeExceeded));
    assert_eq!(parse(true, 4, 0, 0, 48), Ok(IcmpErrorKind::ParameterProblem));
    assert_eq!(parse(true, 4, 1, 0, 48), Ok(IcmpErrorKind::ProtocolUnreachable));
    for kind in [0, 5, 100, 127, 128, 135, 255] {
        assert_eq!(parse(true, kind, 0, 0, 48), Err(ParseError::NotError), "type {kind}");
    }
}

#[test]
fn eight_quoted_tcp_bytes_suffice_and_ack_needs_fourteen() {
    for v6 in [false, true] {
        let ip_len = if v6 { 40 } else { 20 };
        let (kind, code) = if v6 { (1, 0) } else { (3, 1) };
        let quoted = segment(v6, 100);
        for len in 0..quoted.len() {
            let parsed = IcmpError::parse(&message(v6, kind, code, 0, &quoted[..len]));
            if len < ip_len + 8 {
                assert_eq!(parsed, Err(ParseError::Truncated), "{len}");
            } else {
                let ack = (len >= ip_len + 14).then_some(ACK);
                assert_eq!(parsed.unwrap().ack, ack, "{len}");
            }
        }
        // A SYN has no acknowledgment number, whatever its field contains.
        let mut syn = quoted;
        syn[ip_len + 13] = 0x02;
        let parsed = IcmpError::parse(&message(v6, kind, code, 0, &syn)).unwrap();
        assert_eq!(parsed.ack, None);
    }
}

#[test]
fn quoted_ip_options_and_extension_headers_are_skipped() {
    let mut quoted = segment(false, 0);
    quoted[0] = 0x4f;
    quoted.splice(20..20, [1; 40]);
    assert_eq!(IcmpError::parse(&message(false, 11, 0, 0, &quoted)).unwrap().seq, SEQ);
    assert_eq!(
        IcmpError::parse(&message(false, 11, 0, 0, &quoted[..60])),
        Err(ParseError::Truncated)
    );
    quoted[0] = 0x44;
    assert_eq!(IcmpError::parse(&message(false, 11, 0, 0, &quoted)), Err(ParseError::BadQuote));

    let with = |headers: &[(u8, &[u8])]| {
        let mut quoted = segment(true, 0);
        let mut bytes = Vec::new();
        for (at, (kind, header)) in headers.iter().enumerate() {
            if at == 0 {
                quoted[6] = *kind;
            }
            let mut header = header.to_vec();
            header[0] = headers.get(at + 1).map_or(6, |next| next.0);
            bytes.extend(header);
        }
        quoted.splice(40..40, bytes);
        IcmpError::parse(&message(true, 3, 0, 0, &quoted)).map(|error| error.seq)
    };
    let all: [(u8, &[u8]); 5] = [
        (0, &[0; 8]),
        (43, &[0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (44, &[0; 8]),
        (51, &[0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (60, &[0; 8]),
    ];
    assert_eq!(with(&all), Ok(SEQ));
    let one: (u8, &[u8]) = (0, &[0; 8]);
    assert_eq!(with(&[one; 8]), Ok(SEQ));
    assert_eq!(with(&[one; 9]), Err(ParseError::BadQuote), "a bound");
    assert_eq!(with(&[(60, &[0, 200, 0, 0, 0, 0, 0, 0])]), Err(ParseError::Truncated));
    assert_eq!(with(&[(44, &[0, 0, 0, 8, 0, 0, 0, 0])]), Err(ParseError::BadQuote), "an offset");
    assert_eq!(with(&[(50, &[0; 8])]), Err(ParseError::BadQuote), "encrypted");
}

#[test]
fn quote_of_other_source_or_protocol_is_rejected() {
    let about = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut quoted = segment(false, 10);
        change(&mut quoted);
        IcmpError::parse(&message(false, 3, 1, 0, &quoted))
    };
    assert!(about(&|_| {}).is_ok());
    assert_eq!(about(&|quoted| quoted[9] = 17), Err(ParseError::BadQuote));
    assert_eq!(about(&|quoted| quoted[0] = 0x65), Err(ParseError::BadQuote));
    assert_eq!(about(&|quoted| quoted[7] = 1), Err(ParseError::BadQuote), "a later fragment");
    assert!(about(&|quoted| quoted[6] = 0x20).is_ok(), "the first of several");
    assert_eq!(
        about(&|quoted| quoted[15] ^= 1),
        Err(ParseError::BadQuote),
        "another source address"
    );
}

#[test]
fn corrupt_outer_header_is_rejected() {
    let good = message(false, 3, 1, 0, &segment(false, 10));
    assert!(IcmpError::parse(&good).is_ok());
    let change = |at: usize, xor: u8| {
        let mut packet = good.clone();
        packet[at] ^= xor;
        IcmpError::parse(&packet)
    };
    assert_eq!(change(10, 1), Err(ParseError::BadChecksum), "IP");
    assert_eq!(change(22, 1), Err(ParseError::BadChecksum), "ICMP");
    assert_eq!(change(9, 7), Err(ParseError::NotError), "TCP");
    assert_eq!(change(0, 0x10), Err(ParseError::NotError), "IP version 5");
    let mut fragment = good.clone();
    fragment[6] = 0x20;
    fragment[10..12].fill(0);
    let sum = !checksum::sum(&fragment[..20]);
    fragment[10..12].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(IcmpError::parse(&fragment), Err(ParseError::Fragment));
    let padded: Vec<u8> = good.iter().copied().chain([0xee; 9]).collect();
    assert_eq!(IcmpError::parse(&padded), IcmpError::parse(&good));
    let v6 = message(true, 2, 0, 1280, &segment(true, 10));
    for at in 8..v6.len() {
        let mut packet = v6.clone();
        packet[at] ^= 0x40;
        assert!(IcmpError::parse(&packet).is_err(), "byte {at}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// A corrupted packet is rejected or parses to the same error, and parsing never panics.
    #[test]
    fn bit_error_is_detected_by_icmp_checksum(
        v6: bool,
        quoted_len in 0usize..200,
        len in 0usize..260,
        at in 0usize..260,
        xor in 1u8..,
        repaired: bool,
    ) {
        let quoted = segment(v6, 100);
        let quoted = &quoted[..quoted_len.min(quoted.len())];
        let (kind, code) = if v6 { (2, 0) } else { (3, 4) };
        let mut packet = message(v6, kind, code, 1280, quoted);
        let whole = IcmpError::parse(&packet);
        packet.truncate(len.max(1));
        if let Some(byte) = packet.get_mut(at) {
            *byte ^= xor;
        }
        let start = if v6 { 40 } else { 20 };
        if repaired && packet.len() > start + 4 {
            // With a recomputed checksum, as an attacker sends it.
            let mut icmp = packet.split_off(start);
            icmp[2..4].fill(0);
            let pseudo = if v6 {
                let len = u16::from_be_bytes([packet[4], packet[5]]);
                checksum::add(checksum::sum(&packet[8..40]), checksum::add(len, 58))
            } else {
                0
            };
            let sum = !checksum::add(pseudo, checksum::sum(&icmp));
            icmp[2..4].copy_from_slice(&sum.to_be_bytes());
            packet.extend(icmp);
            let _ = IcmpError::parse(&packet);
        } else if let Ok(parsed) = IcmpError::parse(&packet) {
            // No checksum covers traffic class, flow label and hop limit of IPv6.
            prop_assert_eq!(Ok(parsed), whole);
        }
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..300),
        version in 0u8..3,
    ) {
        if let Some(first) = bytes.first_mut() {
            *first = [0x45, 0x60, *first][usize::from(version)];
        }
        let _ = IcmpError::parse(&bytes);
    }
}
