use super::*;
use crate::perf::private_data::{ConnRole, Group, PRIVATE_DATA_LEN};

fn every_message() -> Vec<Message> {
    let region = |n: u64| Region { addr: n << 40 | 7, len: n * 4096, rkey: 0xA1B2_C3D4 };
    let tally =
        Tally { messages: 1, bytes: u64::MAX, verified: 3, errors: 4, duration_ns: 5_000_000_000 };
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
            inline_size: 220,
        }),
        Message::Welcome(Welcome { tx: region(3), rx: region(4) }),
        Message::Run(Run {
            size: 65536,
            iterations: 5000,
            duration_ms: 0,
            stride: 65536,
            slots: 128,
            credits: 128,
            post_list: 16,
            cq_mod: 8,
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
fn messages_round_trip_within_send_limit() {
    for (run, message) in (0..).zip(every_message()) {
        let frame = ControlFrame { run, message };
        let bytes = frame.emit();
        assert!(bytes.len() <= SEND_LEN_MAX, "{frame:?} has {} bytes", bytes.len());
        assert_eq!(ControlFrame::parse(&bytes), Ok(frame.clone()));
        let mut longer = bytes.clone();
        longer.resize(RECEIVE_LEN, 0xEE);
        assert_eq!(ControlFrame::parse(&longer), Ok(frame));
    }
}

#[test]
fn short_message_parses_as_truncated() {
    for message in every_message() {
        // Peers may omit the last fields.
        let optional = match message {
            Message::Hello(_) => 4,
            Message::Run(_) => 8,
            _ => 0,
        };
        let bytes = ControlFrame { run: 1, message }.emit();
        for len in 0..bytes.len() - optional {
            assert_eq!(ControlFrame::parse(&bytes[..len]), Err(ControlError::Truncated));
        }
        let parsed = ControlFrame::parse(&bytes[..bytes.len() - optional]).unwrap().message;
        match parsed {
            Message::Hello(hello) => assert_eq!(hello.inline_size, 0),
            Message::Run(run) => assert_eq!((run.post_list, run.cq_mod), (0, 0)),
            _ => assert_eq!(optional, 0),
        }
    }
}

#[test]
fn credit_layout_matches_control_md() {
    let bytes = ControlFrame { run: 2, message: Message::Consumed { qp: 1, count: 0x0102 } }.emit();
    let expected = [
        b'F', b'W', b'P', b'F', 0, 1, 0, 6, 0, 0, 0, 2, //
        0, 0, 0, 1, 0, 0, 0, 0, //
        0, 0, 0, 0, 0, 0, 1, 2,
    ];
    assert_eq!(bytes, expected);
}

#[test]
fn foreign_magic_version_and_type_are_rejected() {
    let good = ControlFrame { run: 0, message: Message::Ready }.emit();
    let mut other = good.clone();
    other[0] = b'X';
    assert_eq!(ControlFrame::parse(&other), Err(ControlError::NotControl));
    let mut newer = good.clone();
    newer[5] = 9;
    assert_eq!(ControlFrame::parse(&newer), Err(ControlError::Version(9)));
    let mut unknown = good;
    unknown[7] = 99;
    assert_eq!(ControlFrame::parse(&unknown), Err(ControlError::Unknown(99)));
}

#[test]
fn malformed_messages_never_panic() {
    // Every single-byte change of every message, and wrong text lengths.
    for message in every_message() {
        let bytes = ControlFrame { run: 7, message }.emit();
        for index in 0..bytes.len() {
            for value in [0, 1, 0x7F, 0x80, 0xFF] {
                let mut hostile = bytes.clone();
                hostile[index] = value;
                let _ = ControlFrame::parse(&hostile);
                let _ = ConnRole::parse(&hostile);
            }
        }
    }
    let mut truncated = ControlFrame { run: 0, message: Message::Failure("x".into()) }.emit();
    truncated[12..16].copy_from_slice(&u32::MAX.to_be_bytes());
    assert_eq!(ControlFrame::parse(&truncated), Err(ControlError::Truncated));
}

#[test]
fn failure_text_is_truncated_at_char_and_sanitized() {
    let long = "ä".repeat(200);
    let bytes = ControlFrame { run: 0, message: Message::Failure(long.clone()) }.emit();
    let Ok(ControlFrame { message: Message::Failure(text), .. }) = ControlFrame::parse(&bytes)
    else {
        panic!("no failure");
    };
    assert!(bytes.len() <= SEND_LEN_MAX);
    assert!(long.starts_with(&text) && text.len() > 70);

    let unprintable =
        ControlFrame { run: 0, message: Message::Failure("a\x1b[31m\nb".into()) }.emit();
    let parsed = ControlFrame::parse(&unprintable).unwrap();
    assert_eq!(parsed.message, Message::Failure("a\\u{1b}[31m\\nb".into()));
}

#[test]
fn number_of_connections_is_encoded_modulo_its_width() {
    for qps in [1, 4096, 65_535, 65_536] {
        let Message::Hello(hello) = every_message().remove(0) else { panic!("Hello is first") };
        let message = Message::Hello(Hello { qps, ..hello });
        let bytes = ControlFrame { run: 0, message: message.clone() }.emit();
        assert_eq!(ControlFrame::parse(&bytes).map(|frame| frame.message), Ok(message), "{qps}");
    }
}

#[test]
fn private_data_round_trips() {
    let group = Group::single(9);
    for purpose in [
        ConnRole::Control { token: 9, qps: 4, tx_depth: 128, rx_depth: 256, group },
        ConnRole::Data { token: 77, index: 1023 },
    ] {
        let bytes = purpose.emit();
        assert_eq!(bytes.len(), PRIVATE_DATA_LEN);
        assert_eq!(ConnRole::parse(&bytes), Ok(purpose));
        assert_eq!(ConnRole::parse(&bytes[..23]), Err(ControlError::Truncated));
    }
    let group = Group { token: 8, sessions: 64 };
    let grouped = ConnRole::Control { token: 9, qps: 4, tx_depth: 128, rx_depth: 256, group };
    let bytes = grouped.emit();
    assert_eq!((bytes.len(), ConnRole::parse(&bytes)), (PRIVATE_DATA_LEN + 8, Ok(grouped)));
    let single = ConnRole::parse(&bytes[..PRIVATE_DATA_LEN + 7]);
    let is_single = |role| {
        let ConnRole::Control { group, .. } = role else { return false };
        group == Group::single(9)
    };
    assert_eq!(single.map(is_single), Ok(true), "as from a peer without groups");
    assert_eq!(ConnRole::parse(b"hello, is it rping?"), Err(ControlError::NotControl));
}
