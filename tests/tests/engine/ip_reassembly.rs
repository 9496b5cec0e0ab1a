//! ICMP Time Exceeded messages for packets whose reassembly was abandoned.

use ferrowarp_proto::net::icmp_error::{IcmpError, IcmpErrorKind};
use ferrowarp_proto::time::SECOND;
use ferrowarp_tests::compliance::fixture::{FpduFixture, PORT};
use ferrowarp_tests::compliance::messages::connected;
use ferrowarp_tests::ip;

/// Bytes of a segment's first fragment, after the IP header.
const FIRST_LEN: usize = 800;

/// One of the two fragments of a segment of the peer.
fn fragment(fx: &FpduFixture, id: u16, is_first: bool) -> Vec<u8> {
    let frame = fx.build_frame(|_| {}, &[7; 1200]);
    let (headers, segment) = frame.split_at(34);
    let (first, rest) = segment.split_at(FIRST_LEN);
    let place = if is_first { 0x2000 } else { u16::try_from(FIRST_LEN / 8).unwrap() };
    let bytes = if is_first { first } else { rest };
    let mut out = [headers, bytes].concat();
    out[16..18].copy_from_slice(&u16::try_from(20 + bytes.len()).unwrap().to_be_bytes());
    out[18..20].copy_from_slice(&id.to_be_bytes());
    out[20..22].copy_from_slice(&place.to_be_bytes());
    ip::set_checksum(&mut out[14..34], 10);
    out
}

/// Injects a fragment; returns the ICMP errors sent.
fn errors(fx: &mut FpduFixture, frame: Vec<u8>) -> Vec<IcmpError> {
    fx.engine.device().inbound.borrow_mut().push_back(frame);
    fx.drive();
    let sent: Vec<Vec<u8>> = fx.engine.device().outbound.borrow_mut().drain(..).collect();
    sent.iter().filter_map(|frame| IcmpError::parse(&frame[14..]).ok()).collect()
}

// req-test: MPA-171
#[test]
fn excess_fragments_are_answered_with_packet_too_big() {
    let mut fx = connected();
    // As many packets as may be in reassembly at a time.
    for id in 0..64 {
        let frame = fragment(&fx, id, true);
        assert_eq!(errors(&mut fx, frame), []);
    }
    let frame = fragment(&fx, 64, true);
    let icmp_errors = errors(&mut fx, frame);
    assert_eq!(icmp_errors.len(), 1);
    let len = u16::try_from(20 + FIRST_LEN).unwrap();
    assert_eq!(icmp_errors[0].kind, IcmpErrorKind::PacketTooBig { mtu: Some(len) });
    assert_eq!(icmp_errors[0].tuple.remote.port(), PORT);
    // The errors are rate-limited under a flood.
    let mut count = 1;
    for id in 65..1000 {
        let frame = fragment(&fx, id, true);
        count += errors(&mut fx, frame).len();
    }
    assert_eq!(count, 100);
    assert_eq!(fx.engine.counters().icmp_errors_out, 100);
    fx.now = fx.now + SECOND;
    let frame = fragment(&fx, 1000, true);
    assert_eq!(errors(&mut fx, frame).len(), 1);
}

#[test]
fn incomplete_packet_is_answered_with_time_exceeded() {
    let mut fx = connected();
    let frame = fragment(&fx, 1, true);
    assert_eq!(errors(&mut fx, frame), []);
    fx.now = fx.now + 15 * SECOND;
    let frame = fragment(&fx, 2, false);
    let icmp_errors = errors(&mut fx, frame);
    assert_eq!(
        icmp_errors.iter().map(|icmp_errors| icmp_errors.kind).collect::<Vec<_>>(),
        [IcmpErrorKind::TimeExceeded]
    );
    // No error is sent for a packet whose first fragment is missing.
    fx.now = fx.now + 15 * SECOND;
    let frame = fragment(&fx, 3, true);
    assert_eq!(errors(&mut fx, frame), []);
    // A complete packet is reassembled, and no error is sent.
    let frame = fragment(&fx, 3, false);
    assert_eq!(errors(&mut fx, frame), []);
    assert_eq!(fx.engine.counters().packets_reassembled, 1);
}
