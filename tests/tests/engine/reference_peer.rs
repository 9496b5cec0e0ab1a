//! The reference peer against itself: each half checks the other's FPDUs, and tshark, which shares
//! no code with either, checks the captures. This qualifies the peer to test the stack.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};

use ferrowarp_tests::capture::{self, Capture, Dissection};
use ferrowarp_tests::peer::{
    PEER_STAG, Peer, Segmentation, Startup, StartupFrame, fpdu, marked_fpdu, opcode,
};
use ferrowarp_tests::process;
use ferrowarp_tests::{netns, pattern, skip, test_name};

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

struct Pair {
    initiator: Peer,
    responder: Peer,
    request: StartupFrame,
    reply: StartupFrame,
}

fn pair(listener: &TcpListener, initiator: &Startup, responder: &Startup) -> Pair {
    let address = listener.local_addr().unwrap();
    let startup = initiator.clone();
    let thread = std::thread::spawn(move || {
        Peer::initiate(TcpStream::connect(address).unwrap(), &startup).unwrap()
    });
    let (responder, request) = Peer::respond(listener.accept().unwrap().0, responder).unwrap();
    let (initiator, reply) = thread.join().unwrap();
    let mut pair = Pair { initiator, responder, request, reply };
    pair.initiator.memory = vec![0; 300_000];
    pair.responder.memory = vec![0; 300_000];
    pair
}

fn listener() -> TcpListener {
    TcpListener::bind((LOCALHOST, 0)).unwrap()
}

/// Writes, Sends and Reads from the initiator; returns the number of FPDUs it sent.
fn exchange(pair: &mut Pair) {
    let Pair { initiator, responder, .. } = pair;
    for (index, len) in [0, 1, 2, 3, 4, 1428, 1429, 5000].into_iter().enumerate() {
        let bytes = pattern(0, len);
        initiator.write(PEER_STAG, 7, &bytes).unwrap();
        initiator.send(opcode::SEND_SOLICITED, 0, &bytes).unwrap();
        responder.serve_until(|peer| peer.sends.len() == index + 1).unwrap();
        assert_eq!(responder.sends[index].bytes, bytes);
        assert_eq!(responder.memory[7..7 + len], bytes);
        initiator.memory.fill(0);
        initiator.read(PEER_STAG, 7, u32::try_from(len).unwrap(), 11).unwrap();
        responder.serve_until(|peer| peer.reads_served == index + 1).unwrap();
        initiator.serve_until(|peer| peer.responses == index + 1).unwrap();
        assert_eq!(initiator.memory[11..11 + len], bytes);
    }
}

#[test]
fn exchange_with_every_revision_and_crc_setting() {
    for (revision, crc) in [(1, true), (1, false), (2, true), (2, false)] {
        let startup =
            Startup { revision, crc, private_data: b"hello".to_vec(), ..Startup::default() };
        let mut pair = pair(&listener(), &startup, &startup);
        assert_eq!(pair.initiator.crc(), crc);
        assert_eq!(pair.request.application_data(), b"hello");
        assert_eq!(pair.reply.application_data(), b"hello");
        assert_eq!(pair.reply.ird_ord(), (revision == 2).then_some((8, 8)));
        exchange(&mut pair);
    }
}

#[test]
fn exchange_with_markers() {
    for (ours, theirs) in [(false, true), (true, false), (true, true)] {
        for crc in [false, true] {
            let with = |markers| Startup { markers, crc, ..Startup::default() };
            let mut pair = pair(&listener(), &with(ours), &with(theirs));
            assert_eq!(pair.initiator.markers(), (ours, theirs));
            assert_eq!(pair.responder.markers(), (theirs, ours));
            exchange(&mut pair);
        }
    }
}

/// The FPDUs of RFC 5044 figures 5 and 6.
#[test]
fn marked_fpdus_match_the_figures_of_rfc5044() {
    let figures = [
        (1, 0, 0, [0, 0, 0, 0], [0x52, 0x23, 0x99, 0x83]),
        (2, 0x1EC, 20, [0, 0, 0, 0x14], [0x84, 0x92, 0x58, 0x98]),
    ];
    for (msn, sent, marker_at, marker, crc) in figures {
        let mut ulpdu = vec![0; 42];
        ulpdu[..2].copy_from_slice(&[0x41, 0x43]);
        ulpdu[13] = msn;
        let bytes = marked_fpdu(&ulpdu, true, sent);
        assert_eq!((bytes.len(), &bytes[48..]), (52, &crc[..]));
        assert_eq!(bytes[marker_at..marker_at + 4], marker);
    }
}

#[test]
fn crc_is_used_if_either_end_asks() {
    let (on, off) = (Startup::default(), Startup { crc: false, ..Startup::default() });
    for (initiator, responder) in [(&on, &off), (&off, &on)] {
        let pair = pair(&listener(), initiator, responder);
        assert!(pair.initiator.crc() && pair.responder.crc());
    }
}

#[test]
fn any_segmentation_is_understood() {
    for chop in
        [Segmentation::RandomSmall(1), Segmentation::FixedSize(1), Segmentation::FixedSize(1000)]
    {
        let mut pair = pair(&listener(), &Startup::default(), &Startup::default());
        pair.initiator.set_segmentation(chop);
        pair.responder.set_segmentation(chop);
        exchange(&mut pair);
    }
}

#[test]
fn fpdus_larger_than_a_segment_are_understood() {
    let mut pair = pair(&listener(), &Startup::default(), &Startup::default());
    pair.initiator.ulpdu_len_max = 64_768;
    let bytes = pattern(0, 200_000);
    pair.initiator.write(PEER_STAG, 0, &bytes).unwrap();
    pair.initiator.send(opcode::SEND, 0, &[]).unwrap();
    pair.responder.serve_until(|peer| peer.sends.len() == 1).unwrap();
    assert_eq!(pair.responder.memory[..200_000], bytes);
    assert_eq!(pair.responder.largest_ulpdu, 64_768);
}

#[test]
fn reject_carries_private_data() {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        Peer::initiate(TcpStream::connect(address).unwrap(), &Startup::default()).unwrap_err()
    });
    let reject = Startup { reject: true, private_data: b"busy".to_vec(), ..Startup::default() };
    Peer::respond(listener.accept().unwrap().0, &reject).unwrap();
    let error = thread.join().unwrap();
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::ConnectionRefused, "busy"));
}

#[test]
fn malformed_fpdus_are_detected() {
    let mut wrong_crc = fpdu(&[0x41; 22], true);
    *wrong_crc.last_mut().unwrap() ^= 1;
    let mut wrong_pad = fpdu(&[0x41; 23], false);
    wrong_pad[26] = 1;
    let sealed = crc32c::crc32c(&wrong_pad[..28]).to_le_bytes();
    wrong_pad[28..].copy_from_slice(&sealed);
    let version = fpdu(&[&[0x42, 0x43][..], &[0; 16]].concat(), true);
    let cut_short = fpdu(&[0x41, 0x43, 0, 0], true);
    let out_of_turn = fpdu(&[&[0x41, 0x43][..], &[0; 15], &[9]].concat(), true);
    for bytes in [wrong_crc, wrong_pad, version, cut_short, out_of_turn] {
        let mut pair = pair(&listener(), &Startup::default(), &Startup::default());
        pair.initiator.write_raw(&bytes).unwrap();
        assert_eq!(pair.responder.serve_one().unwrap_err().kind(), ErrorKind::InvalidData);
    }
}

/// The ULPDUs of RFC 5044 figures 5 and 6, without markers.
#[test]
fn fpdus_match_the_figures_of_rfc5044() {
    for (msn, crc) in [(1, [0xB7, 0x24, 0x3E, 0xC3]), (2, [0x29, 0x0F, 0xBE, 0xDE])] {
        let mut ulpdu = vec![0; 42];
        ulpdu[..2].copy_from_slice(&[0x41, 0x43]);
        ulpdu[13] = msn;
        let bytes = fpdu(&ulpdu, true);
        assert_eq!(bytes.len(), 48);
        assert_eq!(bytes[..2], [0, 0x2A]);
        assert_eq!(bytes[44..], crc);
    }
}

fn captured(port: u16, work: impl FnOnce(&TcpListener)) -> Dissection {
    let dir = process::temp_dir().unwrap();
    let capture = Capture::start("lo", port, dir.path().join("lo.pcap")).unwrap();
    work(&TcpListener::bind((LOCALHOST, port)).unwrap());
    capture::dissect(&capture.stop().unwrap(), LOCALHOST, false).unwrap()
}

#[test]
fn tshark_accepts_the_peer() {
    if let Some(reason) = capture::missing_prerequisite() {
        return skip(reason);
    }
    if !netns::inside(test_name!()) {
        return;
    }
    let dissection = captured(4791, |listener| {
        let mut pair = pair(listener, &Startup::default(), &Startup::default());
        exchange(&mut pair);
        pair.responder.send_terminate(2, 0, 2).unwrap();
        pair.initiator.serve_until(|peer| peer.terminate.is_some()).unwrap();
    });
    assert!(dissection.is_clean(), "{dissection:?}");
    assert_eq!(dissection.startup_frames, 2);
    let expected = [
        ("Read Request", 8),
        // One segment each, except 1429 bytes (two) and 5000 bytes (four); a Send of 1428 bytes
        // takes two as well, since its header is longer.
        ("Read Response", 12),
        ("Send with SE", 13),
        ("Terminate", 1),
        ("Write", 12),
    ];
    let expected: BTreeMap<_, _> =
        expected.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
    assert_eq!(dissection.segments, expected);
    assert_eq!(dissection.good_crc, 8 + 12 + 13 + 1 + 12);

    // Negative control: a wrong CRC and a truncated header are detected.
    let dissection = captured(4792, |listener| {
        let mut pair = pair(listener, &Startup::default(), &Startup::default());
        pair.initiator.send(opcode::SEND, 0, b"right").unwrap();
        let mut bytes = fpdu(&[0x41; 30], true);
        *bytes.last_mut().unwrap() ^= 1;
        pair.initiator.write_raw(&bytes).unwrap();
        pair.responder.serve_one().unwrap();
        pair.responder.serve_one().unwrap_err();
    });
    assert_eq!((dissection.good_crc, dissection.bad_crc), (1, 1));
    assert!(!dissection.problems.is_empty());
}
