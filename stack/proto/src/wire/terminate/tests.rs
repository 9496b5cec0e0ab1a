use proptest::prelude::*;

use super::*;

/// Tagged DDP header: STag 0x01020304, TO 0x1122334455667788.
const TAGGED: [u8; 14] = [0xc1, 0x40, 1, 2, 3, 4, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88];

/// DDP and RDMAP header of a Read Request: QN 1, MSN 7; Data Sink STag 0x0a0b0c0d, TO
/// 0x0102030405060708; 4096 bytes; Data Source STag 0xdeadbeef, TO 0x1112131415161718.
const READ_REQUEST: [u8; 46] = [
    0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 0, 0x0a, 0x0b, 0x0c, 0x0d, 1, 2, 3, 4,
    5, 6, 7, 8, 0, 0, 0x10, 0, 0xde, 0xad, 0xbe, 0xef, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17,
    0x18,
];

fn emitted(terminate: &Terminate) -> Vec<u8> {
    let mut out = vec![0xee; terminate.wire_len()];
    terminate.emit(&mut out);
    out
}

// req-test: RDMAP-086, RDMAP-087, RDMAP-092, RDMAP-115, RDMAP-119
#[test]
fn four_forms_match_golden_bytes() {
    let crc = Terminate::new(2, 0, 2);
    assert_eq!(emitted(&crc), [0x20, 0x02, 0x00, 0x00]);

    let segment = [&TAGGED[..], b"abc"].concat();
    let write = Terminate::new(1, 1, 0).with_segment(&segment);
    let golden = [
        0x11, 0x00, 0xc0, 0x00, 0x00, 17, 0xc1, 0x40, 1, 2, 3, 4, 0x11, 0x22, 0x33, 0x44, 0x55,
        0x66, 0x77, 0x88,
    ];
    assert_eq!(emitted(&write), golden);

    let send = [0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0];
    let too_long = Terminate::new(1, 2, 5).with_segment(&[&send[..], &[7; 982]].concat());
    let golden = [
        0x12, 0x05, 0xc0, 0x00, 0x03, 0xe8, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0,
        0, 0,
    ];
    assert_eq!(emitted(&too_long), golden);

    let read = Terminate::new(0, 1, 2).with_read_request(&READ_REQUEST);
    let golden = [
        0x01, 0x02, 0xe0, 0x00, 0x00, 46, 0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0,
        0, 0x0a, 0x0b, 0x0c, 0x0d, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0x10, 0, 0xde, 0xad, 0xbe, 0xef,
        0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
    ];
    assert_eq!(emitted(&read), golden);
    for terminate in [crc, write, too_long, read] {
        assert_eq!(Terminate::parse(&emitted(&terminate)), Some(terminate));
    }
}

// req-test: RDMAP-118, RDMAP-120, RDMAP-122, RDMAP-123
#[test]
fn segment_shorter_than_its_header_is_copied_and_zero_padded() {
    let terminate = Terminate::new(1, 2, 6).with_segment(&[0x02, 0x42]);
    assert_eq!((terminate.segment_len, terminate.wire_len()), (Some(2), 24));
    assert_eq!(terminate.ddp_header(), [&[0x02, 0x42][..], &[0; 16]].concat());
    let terminate = Terminate::new(1, 1, 4).with_segment(&[0xc2; 13]);
    assert_eq!((terminate.segment_len, terminate.wire_len()), (Some(13), 20));
    assert_eq!(terminate.ddp_header(), [&[0xc2; 13][..], &[0]].concat());
}

// req-test: RDMAP-116, RDMAP-117
#[test]
fn reserved_bits_are_ignored() {
    let terminate = Terminate::new(1, 1, 0).with_segment(&TAGGED);
    let mut bytes = emitted(&terminate);
    bytes[2] |= 0x1f;
    bytes[3] = 0xff;
    assert_eq!(Terminate::parse(&bytes), Some(terminate));
    assert_eq!(Terminate::parse(&[0x11, 0, 0x1f, 0xff]), Some(Terminate::new(1, 1, 0)));
}

#[test]
fn truncated_header_copies_are_ignored() {
    let bytes = emitted(&Terminate::new(0, 1, 2).with_read_request(&READ_REQUEST));
    for len in 4..bytes.len() {
        let terminate = Terminate::parse(&bytes[..len]).unwrap();
        assert_eq!(terminate.cause(), (0, 1, 2));
        assert_eq!(terminate.segment_len.is_some(), len >= 6);
        assert_eq!(terminate.ddp_header().len(), if len >= 24 { 18 } else { 0 });
        assert_eq!(terminate.rdma_header(), [0; 0]);
    }
    for len in 0..4 {
        assert_eq!(Terminate::parse(&bytes[..len]), None);
    }
    // HdrCt 0, followed by zeros: a sender may zero the absent fields instead of omitting them.
    let zeros = [&[0x02, 0x05, 0, 0][..], &[0; 48]].concat();
    assert_eq!(Terminate::parse(&zeros), Some(Terminate::new(0, 2, 5)));
    // D without M: the DDP Segment Length is present but not valid.
    let mut bytes = emitted(&Terminate::new(1, 1, 1).with_segment(&TAGGED));
    bytes[2] = 0x40;
    let terminate = Terminate::parse(&bytes).unwrap();
    assert_eq!((terminate.segment_len, terminate.ddp_header()), (None, &TAGGED[..]));
}

// req-test: RDMAP-094, RDMAP-097
#[test]
fn undefined_error_codes_are_parsed_unchanged() {
    for code in 0..=255 {
        assert_eq!(Terminate::parse(&[0x00, code, 0, 0]).unwrap().cause(), (0, 0, code));
    }
    assert_eq!(Terminate::parse(&[0xf7, 3, 0, 0]).unwrap().cause(), (15, 7, 3));
}

#[test]
fn siw_bit_order_is_recognized() {
    let cause = |bytes: &[u8]| Terminate::parse(bytes).unwrap().cause();
    // As captured: CRC error, without copied headers.
    assert_eq!(cause(&[0x02, 0x02, 0x00, 0x00]), (2, 0, 2));
    // Invalid DDP version of an untagged segment, without copied headers.
    assert_eq!(cause(&[0x21, 0x06, 0x00, 0x00]), (1, 2, 6));
    // Invalid STag of a Write, with length and tagged header; of a Read, with all three.
    let write = [&[0x11, 0x00, 0x03, 0x00, 0, 3][..], &TAGGED].concat();
    assert_eq!(Terminate::parse(&write).unwrap().ddp_header(), TAGGED);
    let read = [&[0x10, 0x00, 0x07, 0x00, 0, 0][..], &READ_REQUEST].concat();
    let terminate = Terminate::parse(&read).unwrap();
    assert_eq!((terminate.cause(), terminate.segment_len), ((0, 1, 0), Some(0)));
    assert_eq!(terminate.rdma_header(), &READ_REQUEST[18..]);
    // R is set for a Send, no Read Request header follows.
    let send = [&[0x10, 0x09, 0x07, 0x00, 0, 0][..], &[0x41; 18]].concat();
    let terminate = Terminate::parse(&send).unwrap();
    assert_eq!((terminate.cause(), terminate.rdma_header()), ((0, 1, 9), &[][..]));
}

#[test]
fn defined_error_codes_are_never_reordered() {
    for layer in 0..=2 {
        for error_type in 0..=3 {
            for code in (0..=10).chain([0xff]) {
                if !is_defined(layer, error_type, code) {
                    continue;
                }
                let plain = Terminate::new(layer, error_type, code);
                let tagged = plain.with_segment(&TAGGED);
                let read = plain.with_read_request(&READ_REQUEST);
                for terminate in [plain, tagged, read] {
                    assert_eq!(Terminate::parse(&emitted(&terminate)), Some(terminate));
                }
            }
        }
    }
    // A cause that is undefined in both bit orders is parsed in the order of RFC 5040.
    assert_eq!(Terminate::parse(&[0x3f, 0, 0, 0]).unwrap().cause(), (3, 15, 0));
}

proptest! {
    #[test]
    fn round_trip(bytes in proptest::collection::vec(any::<u8>(), 4..80)) {
        let terminate = Terminate::parse(&bytes).unwrap();
        prop_assert!(terminate.wire_len() <= TERMINATE_LEN_MAX);
        let again = Terminate::parse(&emitted(&terminate)).unwrap();
        // The bit order of an undefined cause is ambiguous.
        if is_defined(terminate.layer, terminate.error_type, terminate.code) {
            prop_assert_eq!(again, terminate);
        }
    }
}
