use super::*;
use crate::perf::purpose::{PURPOSE_LEN, Purpose};

fn every_message() -> Vec<Message> {
    let region = |n: u64| Region { addr: n << 40 | 7, len: n * 4096, rkey: 0xA1B2_C3D4 };
    let tally =
        Tally { messages: 1, octets: u64::MAX, verified: 3, errors: 4, duration_ns: 5_000_000_000 };
    vec![
        Message::Hello(Hello {
            test: Test::SendBw,
            flags: FLAG_VERIFY | FLAG_CRC,
            qps: 4,
            tx_depth: 128,
            rx_depth: 256,
            token: 0xDEAD_BEEF,
            span: 1 << 33,
            tx: region(1),
            rx: region(2),
        }),
        Message::Welcome(Welcome { tx: region(3), rx: region(4) }),
        Message::Run(Run {
            size: 65536,
            iterations: 5000,
            duration_ms: 0,
            stride: 65536,
            slots: 128,
            credits: 128,
        }),
        Message::Ready,
        Message::Go,
        Message::Consumed { qp: 3, count: 1 << 50 },
        Message::Done(tally),
        Message::Counted(tally),
        Message::Report(tally),
        Message::Bye,
        Message::Failure("out of memory: use fewer slots".to_owned()),
        Message::Refilled { qp: 1, count: 9 },
        Message::Alive,
    ]
}

#[test]
fn each_message_survives_the_round_trip_and_fits() {
    for (run, message) in (0..).zip(every_message()) {
        let frame = Frame { run, message };
        let octets = frame.emit();
        assert!(octets.len() <= SEND_LEN_MAX, "{frame:?} has {} octets", octets.len());
        assert_eq!(Frame::parse(&octets), Ok(frame.clone()));
        let mut longer = octets.clone();
        longer.resize(RECEIVE_LEN, 0xEE);
        assert_eq!(Frame::parse(&longer), Ok(frame));
    }
}

#[test]
fn each_shorter_message_is_truncated() {
    for message in every_message() {
        let octets = Frame { run: 1, message }.emit();
        for len in 0..octets.len() {
            assert_eq!(Frame::parse(&octets[..len]), Err(ControlError::Truncated));
        }
    }
}

#[test]
fn the_layout_of_a_credit_is_the_documented_one() {
    let octets = Frame { run: 2, message: Message::Consumed { qp: 1, count: 0x0102 } }.emit();
    let expected = [
        b'F', b'W', b'P', b'F', 0, 1, 0, 6, 0, 0, 0, 2, //
        0, 0, 0, 1, 0, 0, 0, 0, //
        0, 0, 0, 0, 0, 0, 1, 2,
    ];
    assert_eq!(octets, expected);
}

#[test]
fn other_protocols_versions_and_types_are_told_apart() {
    let good = Frame { run: 0, message: Message::Ready }.emit();
    let mut other = good.clone();
    other[0] = b'X';
    assert_eq!(Frame::parse(&other), Err(ControlError::NotControl));
    let mut newer = good.clone();
    newer[5] = 9;
    assert_eq!(Frame::parse(&newer), Err(ControlError::Version(9)));
    let mut unknown = good;
    unknown[7] = 99;
    assert_eq!(Frame::parse(&unknown), Err(ControlError::Unknown(99)));
}

#[test]
fn hostile_octets_never_panic() {
    // Every single-octet change of every message, and text lengths that lie.
    for message in every_message() {
        let octets = Frame { run: 7, message }.emit();
        for index in 0..octets.len() {
            for value in [0, 1, 0x7F, 0x80, 0xFF] {
                let mut hostile = octets.clone();
                hostile[index] = value;
                let _ = Frame::parse(&hostile);
                let _ = Purpose::parse(&hostile);
            }
        }
    }
    let mut lying = Frame { run: 0, message: Message::Failure("x".into()) }.emit();
    lying[12..16].copy_from_slice(&u32::MAX.to_be_bytes());
    assert_eq!(Frame::parse(&lying), Err(ControlError::Truncated));
}

#[test]
fn the_text_of_a_failure_is_cut_at_a_character_and_cleaned() {
    let long = "ä".repeat(200);
    let octets = Frame { run: 0, message: Message::Failure(long.clone()) }.emit();
    let Ok(Frame { message: Message::Failure(text), .. }) = Frame::parse(&octets) else {
        panic!("no failure");
    };
    assert!(octets.len() <= SEND_LEN_MAX);
    assert!(long.starts_with(&text) && text.len() > 70);

    let rude = Frame { run: 0, message: Message::Failure("a\x1b[31m\nb".into()) }.emit();
    let parsed = Frame::parse(&rude).unwrap();
    assert_eq!(parsed.message, Message::Failure("a [31m b".into()));
}

#[test]
fn purposes_survive_the_round_trip() {
    for purpose in [
        Purpose::Control { token: 9, qps: 4, tx_depth: 128, rx_depth: 256 },
        Purpose::Data { token: 77, index: 1023 },
    ] {
        let octets = purpose.emit();
        assert_eq!(octets.len(), PURPOSE_LEN);
        assert_eq!(Purpose::parse(&octets), Ok(purpose));
        assert_eq!(Purpose::parse(&octets[..23]), Err(ControlError::Truncated));
    }
    assert_eq!(Purpose::parse(b"hello, is it rping?"), Err(ControlError::NotControl));
}
