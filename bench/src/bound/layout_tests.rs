use super::*;

/// What the engine sends is compared byte by byte in the tests of `transfer`.
#[test]
fn segments_carry_every_byte_once_and_fit_their_frame() {
    for mtu in [576, 1500, 9000] {
        for message_len in [1, 64, 1428, 1429, 4096, 65_536, 1 << 20] {
            let layout = Layout::new(mtu, message_len);
            let mut expected = 0;
            for segment in &layout.segments {
                let mut at = FRAME_HEADER_LEN;
                for fpdu in segment {
                    assert_eq!((fpdu.at, fpdu.payload.start), (at, expected));
                    at += fpdu.wire_len();
                    expected = if fpdu.is_last { 0 } else { fpdu.payload.end };
                    assert_eq!(fpdu.is_last, fpdu.payload.end == message_len);
                }
                assert!(at <= usize::from(mtu) + ETHERNET_LEN, "{segment:?}");
            }
            assert_eq!(expected, 0, "ends with a message: {layout:?}");
        }
    }
}

#[test]
fn large_messages_are_split_and_small_ones_share_segments() {
    let counts = |mtu, message_len| {
        let layout = Layout::new(mtu, message_len);
        let fpdus = layout.segments.iter().flatten();
        (layout.segments.len(), fpdus.filter(|fpdu| fpdu.is_last).count())
    };
    // EMSS 1448, payload 1428: 45 full segments of 64 KiB and a shorter one.
    assert_eq!(counts(1500, 65_536), (46, 1));
    assert_eq!(counts(9000, 65_536), (8, 1));
    assert_eq!(counts(1500, 4096), (3, 1));
    assert_eq!(counts(9000, 4096), (1, 2));
    assert_eq!(counts(1500, 64), (1, 17));
    assert_eq!(Layout::new(1500, 65_536).covered_lens(), [1292, 1444]);
}

#[test]
fn single_message_has_no_company() {
    for (message_len, segments) in [(64, 1), (4096, 3)] {
        let layout = Layout::alone(1500, message_len);
        assert_eq!(layout.segments.len(), segments);
        assert_eq!(layout.segments.iter().flatten().filter(|fpdu| fpdu.is_last).count(), 1);
    }
}
